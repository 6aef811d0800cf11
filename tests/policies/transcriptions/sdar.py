"""SDAR's block diffusion with the order of positions as they stand."""

from __future__ import annotations

from typing import Any

import numpy as np

from .common import NEVER, draw, say, shares


def sdar_sequential(
    model: Any, mask_id: int, prompt: list[int], total: int, block: int, steps: int, *, temperature: float = 0.0,
    stop_id: int | None = None, seed: int = 0, but: str = "",
) -> list[list[int]]:  # fmt: skip
    """The states on the way to `total` ids, a multiple of `block`; the prompt's tail stands in the first open block."""
    x = list(prompt) + [-1] * (total - len(prompt))
    states = [x[:]]
    for start in range(len(prompt) // block * block, total, block):
        left = shares(block, steps)
        if but == "share_of_masks":
            left = shares(sum(x[i] < 0 for i in range(start, start + block)), steps)
        for i in range(steps):
            masks = [at for at in range(start, start + block) if x[at] < 0]
            if not masks:
                break
            # Finished blocks are stored; a call sees them and the open block, and nothing behind it.
            shown = [mask_id if token < 0 else token for token in (x if but == "sees_all" else x[: start + block])]
            sees = [[b // block <= a // block for b in range(len(shown))] for a in range(len(shown))]
            logits = say(model, shown, sees if but != "sees_all" else None)
            logits[:, mask_id] = NEVER
            first, n = masks[0], left[i]
            if but == "one_less" and n > 1:
                n -= 1
            places = range(first, min(first + n, start + block))
            for at in places if but != "last_first" else masks[-n:]:
                one = logits[at]
                if temperature > 0:
                    x[at] = draw(one / temperature, seed, len(states) - 1, at)
                else:
                    x[at] = int(np.argmax(one))
            states.append(x[:])
        if stop_id is not None and stop_id in x[len(prompt) :]:
            break
    return states
