"""dInfer's runner to the letter: forwards in groups, so that a block may get more of them than it needs."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from .dinfer import sure, sure_of_each_run, with_credit
from .dpad import fill_after_eos


def _open(x: Any, number: Any, block_length: int) -> tuple[Any, Any]:
    mine = ts.block_of(x, size=block_length) == number
    return mine, ts.masked(x) & mine


def _close(
    x: Any, y: Any, mine: Any, number: Any, left: Any, block_length: int, unroll: tuple[int, int], eos_id: int | None
) -> tuple[Any, Any, Any]:
    """Close one forward of a group; a group ends with the question whether the block is complete."""
    most, each = unroll
    started = ts.most(1, ts.least(most, ts.count(ts.masked(x) & mine) // each))
    left = ts.choose(left == 0, started, left) - 1
    leaves = (left == 0) & ~ts.any(ts.masked(y) & mine)
    filled = fill_after_eos(y, block=mine, eos_id=eos_id)
    blocks = ts.most(ts.count(ts.free(x)) // block_length, 1)
    after = ts.choose(leaves, number + 1, number)
    y = ts.unmask(y, ts.tokens(filled), where=ts.masked(y) & ~ts.masked(filled) & leaves)
    over = (after >= blocks) | leaves & ~ts.any(ts.masked(y))
    return ts.advance(x, y, size=block_length, done=over), after, left


@ts.policy(name="dinfer_threshold")
def threshold_unroll(
    x, logits, number=ts.history("count", start=0), left=ts.history("count", start=0), *, threshold=0.9,
    block_length=32, eos_id=None, maximum_unroll=4, expected_tpf=8,
):  # fmt: skip
    """dInfer's threshold decoder with its groups of forwards."""
    mine, here = _open(x, number, block_length)
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=sure(here, conf, threshold))
    return _close(x, y, mine, number, left, block_length, (maximum_unroll, expected_tpf), eos_id)


@ts.policy(name="dinfer_hierarchy")
def hierarchy_unroll(
    x, logits, number=ts.history("count", start=0), left=ts.history("count", start=0), *, threshold=0.9,
    low_threshold=0.4, block_length=32, eos_id=None, maximum_unroll=4, expected_tpf=8,
):  # fmt: skip
    """dInfer's hierarchy decoder with its groups of forwards."""
    mine, here = _open(x, number, block_length)
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=sure_of_each_run(here, conf, threshold, low_threshold))
    return _close(x, y, mine, number, left, block_length, (maximum_unroll, expected_tpf), eos_id)


@ts.policy(name="dinfer_credit")
def credit_unroll(
    x, logits, credit=ts.history("probs", start=0.0), number=ts.history("count", start=0),
    left=ts.history("count", start=0), *, threshold=0.9, credit_alpha=0.7, boost_gamma=0.2, decay_beta=0.8,
    block_length=32, eos_id=None, maximum_unroll=4, expected_tpf=8,
):  # fmt: skip
    """dInfer's credit decoder with its groups of forwards."""
    mine, here = _open(x, number, block_length)
    logits, credit = with_credit(logits, credit, here, credit_alpha, boost_gamma, decay_beta)
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=sure(here, conf, threshold))
    after, number, left = _close(x, y, mine, number, left, block_length, (maximum_unroll, expected_tpf), eos_id)
    return after, credit, number, left
