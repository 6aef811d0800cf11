"""Policies of block-causal models: SDAR (Cheng et al., arXiv 2510.06303) and LLaDA2 as SGLang decodes it.

Their blocks count from position 0: make the canvas with start=0 and decode with the block_causal view.
"""

from __future__ import annotations

from typing import Any

import trajspec as ts


def share(x: Any, block_length: int | None, denoising_steps: int, turn: Any) -> Any:
    """The tokens that step `turn` of a block takes when the block's length is spread over its steps; at least one.

    Without blocks (None) the whole of what may be written is spread.
    """
    size = ts.count(ts.free(x)) if block_length is None else block_length
    each, more = size // denoising_steps, size % denoising_steps
    return ts.most(each + ts.choose(turn < more, 1, 0), 1)


def enough(conf: Any, n: Any, here: Any, threshold: float) -> Any:
    """The positions above the threshold when they are `n` or more, else the n surest."""
    high = here & (conf > threshold)
    return ts.choose(ts.count(high) >= n, high, ts.top(conf, n, where=here))


def above(conf: Any, here: Any, threshold: float) -> Any:
    """The positions above the threshold, and the surest."""
    return here & (conf > threshold) | ts.top(conf, 1, where=here)


def after_stop(x: Any, y: Any, block: Any, size: int | None, stop_id: int | None) -> Any:
    """Close the step; a complete block with `stop_id` behind the prompt ends the row."""
    if stop_id is None:
        return y
    written = ts.free(y) & ~ts.masked(y)
    stops = ts.any(written & (ts.tokens(y) == stop_id)) & ~ts.any(block & ts.masked(y))
    return ts.advance(x, y, size=size, done=stops | ~ts.any(ts.masked(y)))


@ts.policy
def sdar_static(x, logits, *, denoising_steps=4, block_length=4, temperature=0.0, stop_id=None):
    """Commit the surest tokens of the block, an even share of its length each step (SDAR, low_confidence_static)."""
    token = ts.sample(x, logits, temperature=temperature)
    n = share(x, block_length, denoising_steps, ts.block_step(x))
    y = ts.unmask(x, token, where=ts.top(ts.confidence(logits, token), n, where=ts.window(x, size=block_length)))
    return after_stop(x, y, ts.block(x, size=block_length), block_length, stop_id)


@ts.policy
def sdar_sequential(x, logits, *, denoising_steps=4, block_length=4, temperature=0.0, stop_id=None):
    """Commit the leftmost tokens of the block, an even share of its length each step (SDAR, sequential)."""
    token = ts.sample(x, logits, temperature=temperature)
    n = share(x, block_length, denoising_steps, ts.block_step(x))
    y = ts.unmask(x, token, where=ts.first(n, where=ts.window(x, size=block_length)))
    return after_stop(x, y, ts.block(x, size=block_length), block_length, stop_id)


@ts.policy
def sdar_dynamic(x, logits, *, threshold=0.85, denoising_steps=4, block_length=4, temperature=0.0, stop_id=None):
    """Commit what is above the threshold, at least an even share of the block (SDAR, low_confidence_dynamic)."""
    token = ts.sample(x, logits, temperature=temperature)
    n = share(x, block_length, denoising_steps, ts.block_step(x))
    chosen = enough(ts.confidence(logits, token), n, ts.window(x, size=block_length), threshold)
    y = ts.unmask(x, token, where=chosen)
    return after_stop(x, y, ts.block(x, size=block_length), block_length, stop_id)


@ts.policy
def sglang_low_confidence(x, logits, *, threshold=0.95, block_length=32, temperature=0.0):
    """Commit every token of the block surer than the threshold, and always the surest (LLaDA2.0 in SGLang)."""
    token = ts.sample(x, logits, temperature=temperature)
    chosen = above(ts.confidence(logits, token), ts.window(x, size=block_length), threshold)
    return ts.unmask(x, token, where=chosen)


def current(x: Any, number: Any, block_length: int | None) -> tuple[Any, Any]:
    """The number of the block in work, the first with a mask at the start (number -1), and its positions."""
    of = ts.block_of(x, size=block_length)
    opening = ts.total(of, where=ts.first(1, where=ts.masked(x)))
    number = ts.choose(number < 0, opening, number)
    return number, (of == number) & (ts.position(x) >= 0)


def current_block(x: Any, *, number: Any, block_length: int | None) -> Any:
    """The block in work, whether or not it has masks."""
    return current(x, number, block_length)[1]


def leave(x: Any, y: Any, leaves: Any, number: Any, block_length: int | None) -> tuple[Any, Any]:
    """Close a step, and go to the next block when `leaves` says so; behind the last one the row ends."""
    more = ts.any(ts.free(x) & (ts.block_of(x, size=block_length) > number))
    return ts.advance(x, y, size=block_length, done=leaves & ~more), ts.choose(leaves, number + 1, number)


def joint(x: Any, logits: Any, block: Any, post: Any, settings: tuple[float, float, int, float]) -> tuple[Any, ...]:
    """The canvas after one round of committing and editing `block`, its edits after completion, whether it is over."""
    threshold, edit_threshold, most, penalty = settings
    if penalty:
        inner = block & ~ts.first(1, where=block)
        logits = ts.subtract_at(logits, ts.previous(ts.tokens(x)), amount=penalty, where=inner)
    token, conf = ts.score(logits)
    here = block & ts.masked(x)
    change = block & ts.free(x) & ~ts.masked(x) & (conf > edit_threshold) & (token != ts.tokens(x))
    post = ts.choose(ts.any(here), post, post + 1)
    over = (post > most) | ~ts.any(here | change)
    write = (above(conf, here, threshold) | change) & ~over
    return ts.edit(x, token, where=write), post, over


@ts.policy(window=current_block)
def sglang_joint_threshold(
    x, logits, number=ts.history("count", start=-1), post=ts.history("count", start=0), *, threshold=0.5,
    edit_threshold=0.0, max_post_edit_steps=16, penalty_lambda=0.0, block_length=32,
):  # fmt: skip
    """Commit above a threshold and rewrite what the model now reads otherwise, until it agrees (LLaDA2.1 in SGLang)."""
    number, block = current(x, number, block_length)
    settings = (threshold, edit_threshold, max_post_edit_steps, penalty_lambda)
    y, post, over = joint(x, logits, block, post, settings)
    x, number = leave(x, y, over, number, block_length)
    return x, number, ts.choose(over, 0, post)
