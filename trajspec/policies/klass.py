"""KLASS: commit what is sure and has stopped changing (Kim et al., arXiv 2511.05664; shkim0116/KLASS)."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from ..ir import TrajspecError


def settled(x: Any, logits: Any, before: Any, calm: Any, here: Any, age: Any, limits: tuple) -> tuple[Any, ...]:
    """The sure positions of `here` whose prediction moved less than the limit in each of the last steps."""
    conf_threshold, kl_threshold, length, strategy = limits
    now = ts.softmax(logits)
    token, conf = ts.score(logits)
    moved = ts.kl(now, before)
    calm = ts.choose(moved < kl_threshold, calm + 1, 0)
    ready = here & (conf > conf_threshold) & (calm >= length) & (age >= length - 1)
    if strategy != "all":
        by = {"max_conf": lambda: ts.prob(conf), "min_kl": lambda: -moved, "random": lambda: ts.uniform(x)}
        if strategy not in by:
            raise TrajspecError(f"unmask_strategy is {strategy!r}, expected all, max_conf, min_kl or random")
        ready = ts.top(by[strategy](), 1, where=ready)
    return token, conf, ready, now, calm


@ts.policy
def klass(
    x, logits, before=ts.history("probs", start=0.0), calm=ts.history("scores", start=0), *, steps=None,
    block_length=64, conf_threshold=0.9, kl_threshold=0.01, kl_history_length=2, unmask_strategy="all",
):  # fmt: skip
    """Commit the sure tokens of the block whose prediction has settled, else the schedule's share (KLASS)."""
    here = ts.window(x, size=block_length)
    limits = (conf_threshold, kl_threshold, kl_history_length, unmask_strategy)
    token, conf, ready, now, calm = settled(x, logits, before, calm, here, ts.block_step(x), limits)
    fallback = ts.top(conf, ts.quota(x, steps=steps, size=block_length), where=here)
    return ts.unmask(x, token, where=ts.choose(ts.any(ready), ready, fallback)), now, calm
