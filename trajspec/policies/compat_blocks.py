"""The loops of block-causal references to the letter: a call that keeps the keys of a complete block is a step."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from .blocks import above, current, current_block, enough, joint, leave, share


def _stopped(x: Any, stop_id: int | None) -> Any:
    if stop_id is None:
        return False
    return ts.any(ts.free(x) & ~ts.masked(x) & (ts.tokens(x) == stop_id))


def _sdar(x: Any, token: Any, chosen: Any, block: Any, state: tuple[Any, ...], settings: tuple[Any, ...]) -> tuple:
    """Close a step: the first call may be the prompt's alone, and a complete block is kept by a call of its own."""
    number, turn, prefill = state
    size, stop_id = settings
    y = ts.unmask(x, token, where=chosen & ~prefill)
    kept = ~prefill & ~ts.any(ts.masked(x) & block)
    more = ts.any(ts.free(x) & (ts.block_of(x, size=size) > number))
    done = kept & (~more | _stopped(x, stop_id))
    turn = ts.choose(kept | prefill, 0, turn + 1)
    return ts.advance(x, y, size=size, done=done), ts.choose(kept, number + 1, number), turn


def _begin(x: Any, number: Any, size: int) -> tuple[Any, Any, Any]:
    """Block number, its positions, and whether this call is the prompt's."""
    first = number < 0
    number, block = current(x, number, size)
    return number, block, first & (number > 0)


@ts.policy(name="sdar_static", window=current_block)
def static_store(
    x, logits, number=ts.history("count", start=-1), turn=ts.history("count", start=0), *, denoising_steps=4,
    block_length=4, stop_id=None,
):  # fmt: skip
    """SDAR's static rule with the calls that fill its cache."""
    number, block, prefill = _begin(x, number, block_length)
    token, conf = ts.score(logits)
    chosen = ts.top(conf, share(x, block_length, denoising_steps, turn), where=block & ts.masked(x))
    return _sdar(x, token, chosen, block, (number, turn, prefill), (block_length, stop_id))


@ts.policy(name="sdar_dynamic", window=current_block)
def dynamic_store(
    x, logits, number=ts.history("count", start=-1), turn=ts.history("count", start=0), *, threshold=0.85,
    denoising_steps=4, block_length=4, stop_id=None,
):  # fmt: skip
    """SDAR's dynamic rule with the calls that fill its cache."""
    number, block, prefill = _begin(x, number, block_length)
    token, conf = ts.score(logits)
    chosen = enough(conf, share(x, block_length, denoising_steps, turn), block & ts.masked(x), threshold)
    return _sdar(x, token, chosen, block, (number, turn, prefill), (block_length, stop_id))


@ts.policy(name="sglang_low_confidence", window=current_block)
def low_confidence_kv_round(x, logits, number=ts.history("count", start=-1), *, threshold=0.95, block_length=32):
    """SGLang's loop: a round finds the block complete, and keeps its keys."""
    number, block = current(x, number, block_length)
    token, conf = ts.score(logits)
    here = block & ts.masked(x)
    y = ts.unmask(x, token, where=above(conf, here, threshold))
    return leave(x, y, ~ts.any(here), number, block_length)


@ts.policy(name="sglang_joint_threshold", window=current_block, predict_mask=True)
def joint_kv_round(
    x, logits, number=ts.history("count", start=-1), post=ts.history("count", start=0),
    finished=ts.history("count", start=0), *, threshold=0.5, edit_threshold=0.0, max_post_edit_steps=16,
    penalty_lambda=0.0, block_length=32,
):  # fmt: skip
    """SGLang's loop: a finished block gets one more round that keeps its keys; the mask id may be predicted."""
    number, block = current(x, number, block_length)
    settings = (threshold, edit_threshold, max_post_edit_steps, penalty_lambda)
    y, post, over = joint(x, logits, block, post, settings)
    kept = finished > 0
    y = ts.edit(x, ts.tokens(y), where=ts.choose(kept, ts.masked(x) & ~ts.masked(x), block))
    x, number = leave(x, y, kept, number, block_length)
    return x, number, ts.choose(kept, 0, post), ts.choose(over & ~kept, 1, 0)
