"""DPad: the model is shown few of the masks behind the open block (Chen et al., arXiv 2508.14148; Crys-Chen/DPad)."""

from __future__ import annotations

import math
from typing import Any

import trajspec as ts

from ..ir import TrajspecError


def fill_after_eos(y: Any, *, block: Any, eos_id: int | None) -> Any:
    """`y` with every mask turned into `eos_id` once `block` is complete and holds that id."""
    if eos_id is None:
        return y
    hidden = ts.masked(y)
    ends = ts.any(block & ~hidden & (ts.tokens(y) == eos_id)) & ~ts.any(block & hidden)
    return ts.unmask(y, ts.choose(hidden, eos_id, ts.tokens(y)), where=hidden & ends)


def thinned(
    x: Any, *, block_length: int | None, dropout: str, sigma: float, scale: float, window: int, preserved_tokens: int
) -> Any:
    """The canvas without most masks behind the open block, drawn once for each block.

    gaussian: a mask at distance d < window stays with probability scale * N(sigma * d / (window - 1)), N the standard
    normal density; uniform: `preserved_tokens` of the masks at distances below `window` stay.
    """
    number = ts.block_of(x, size=block_length)
    opened = ts.total(number, where=ts.first(1, where=ts.masked(x)))
    later = number > opened
    distance = ts.position(x) - ts.total(ts.position(x), where=ts.first(1, where=later))
    near, u = ts.masked(x) & later & (distance < window), ts.uniform_of(x, opened)
    if dropout == "gaussian":
        z = distance * (sigma / max(window - 1, 1))
        stays = near & (u < ts.exp(z * z * -0.5) * (scale / math.sqrt(2 * math.pi)))
    elif dropout == "uniform":
        stays = ts.top(u, preserved_tokens, where=near)
    else:
        raise TrajspecError(f"dropout is {dropout!r:.60}, expected gaussian or uniform")
    return ts.without(x, where=ts.masked(x) & later & ~stays)


def by_threshold_or_share(
    x: Any, logits: Any, threshold: float | None, steps: int | None, block_length: int | None, temperature: float
) -> Any:
    """`x` with what is at least as sure as the threshold committed, and the surest; or the even schedule's share."""
    here = ts.window(x, size=block_length)
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    n = 1 if threshold is not None else ts.quota(x, steps=steps, size=block_length)
    chosen = ts.top(conf, n, where=here)
    if threshold is not None:
        chosen = chosen | here & (conf >= threshold)
    return ts.unmask(x, token, where=chosen)


@ts.policy
def dpad(
    x, logits=ts.query(thinned), *, threshold=None, steps=None, block_length=32, temperature=0.0, eos_id=None,
    early_termination=True, dropout="gaussian", sigma=4.0, scale=2.0, window=256, preserved_tokens=0,
):  # fmt: skip
    """Commit by threshold or by the even schedule, from logits that see a thinned suffix; a complete block with an end
    of sequence ends the row (DPad)."""
    y = by_threshold_or_share(x, logits, threshold, steps, block_length, temperature)
    return fill_after_eos(y, block=ts.block(x, size=block_length), eos_id=eos_id if early_termination else None)


@ts.policy
def dpad_all_kept(
    x, logits, *, threshold=None, steps=None, block_length=32, temperature=0.0, eos_id=None, early_termination=True
):
    """Commit by threshold or by the even schedule; a complete block with an end of sequence ends the row (DPad)."""
    y = by_threshold_or_share(x, logits, threshold, steps, block_length, temperature)
    return fill_after_eos(y, block=ts.block(x, size=block_length), eos_id=eos_id if early_termination else None)
