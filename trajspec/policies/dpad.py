"""DPad with its whole suffix kept (Chen et al., arXiv 2508.14148; `generate_dropout.py` of Crys-Chen/DPad)."""

from __future__ import annotations

from typing import Any

import trajspec as ts


def fill_after_eos(y: Any, *, block: Any, eos_id: int | None) -> Any:
    """`y` with every mask turned into `eos_id` once `block` is complete and holds that id."""
    if eos_id is None:
        return y
    hidden = ts.masked(y)
    ends = ts.any(block & ~hidden & (ts.tokens(y) == eos_id)) & ~ts.any(block & hidden)
    return ts.unmask(y, ts.choose(hidden, eos_id, ts.tokens(y)), where=hidden & ends)


@ts.policy
def dpad_all_kept(
    x, logits, *, threshold=None, steps=None, block_length=32, temperature=0.0, eos_id=None, early_termination=True
):
    """Commit by threshold or by the even schedule; a complete block with an end of sequence ends the row (DPad)."""
    here, block = ts.window(x, size=block_length), ts.block(x, size=block_length)
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    n = 1 if threshold is not None else ts.quota(x, steps=steps, size=block_length)
    chosen = ts.top(conf, n, where=here)
    if threshold is not None:
        chosen = chosen | here & (conf >= threshold)
    y = ts.unmask(x, token, where=chosen)
    return fill_after_eos(y, block=block, eos_id=eos_id if early_termination else None)
