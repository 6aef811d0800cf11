"""Reading results in the cases' own terms."""

from __future__ import annotations

from typing import Any

import trajspec as ts
from trajspec.ir.canvas import canvas


def whole(result: Any, row: int = 0) -> list[int]:
    """Prompt and answer of a row."""
    return result.sequences[row].tolist()


def order(row: Any) -> list[int]:
    """Positions in the order they were written."""
    return [position for step in row.path for position, _ in step]


def interpreted(policy: Any, model: Any, prompt: list[int], **options: Any) -> tuple[list[int], int]:
    """Canvas and calls of the reference meaning."""
    row = canvas(prompt, vocab_size=model.vocab_size, mask_id=model.mask_id, **options)
    done = ts.run(policy.plan(), model, row)
    return done.canvas.tokens.tolist(), done.calls
