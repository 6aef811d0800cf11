"""Reference quirks under names of their own: what the published code does where it departs from the published rule."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from ..ir import Policy, TrajspecError
from .compat_blocks import dynamic_store, joint_kv_round, low_confidence_kv_round, static_store
from .compat_dinfer import credit_unroll, hierarchy_unroll, threshold_unroll
from .klass import settled
from .llada import needs, without_prompt


def _schedule(x: Any, clock: Any, steps: int, block_length: int) -> tuple[Any, Any, Any]:
    """Block number, step in it and tokens to commit when every block gets exactly steps / blocks steps."""
    turns = ts.most(steps // ts.most(ts.count(ts.free(x)) // block_length, 1), 1)
    number, turn = clock // turns, clock % turns
    each = block_length // turns
    return number, turn, each + ts.choose(turn < block_length - each * turns, 1, 0)


@ts.policy(name="llada_low_confidence", predict_mask=True)
def llada_idle_steps(x, logits, *, steps=128, block_length=32):
    """LLaDA's loop to the letter: all steps run, also those that commit nothing, and the mask id may be predicted."""
    number, _, n = _schedule(x, ts.step(x), steps, block_length)
    here = ts.masked(x) & (ts.block_of(x, size=block_length) <= number)
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=ts.top(conf, n, where=here))
    return ts.advance(x, y, size=block_length, done=ts.step(x) + 1 >= steps)


@ts.policy(name="llada_low_confidence")
def llada_eos_alias(
    x, logits, blind=ts.query(without_prompt), *, steps=128, block_length=32, cfg_scale=0.0, logits_eos_inf=False,
    confidence_eos_eot_inf=True, eos_id=None, eot_id=None,
):  # fmt: skip
    """LLaDA at temperature 0 with confidence_eos_eot_inf: EOS and EoT leave the softmax after the argmax was taken."""
    if not confidence_eos_eot_inf:
        raise TrajspecError("compat llada.eos_alias is about confidence_eos_eot_inf=True")
    if cfg_scale:
        logits = blind + (cfg_scale + 1) * (logits - blind)
    if logits_eos_inf:
        logits = ts.suppress(logits, ids=needs("logits_eos_inf", eos_id=eos_id))
    ids = needs("confidence_eos_eot_inf", eos_id=eos_id, eot_id=eot_id)
    token = ts.argmax(logits)
    conf = ts.confidence(ts.suppress(logits, ids=ids), token)
    n = ts.quota(x, steps=steps, size=block_length)
    return ts.unmask(x, token, where=ts.top(conf, n, where=ts.window(x, size=block_length)))


@ts.policy(name="fastdllm_factor")
def factor_last_index_bug(x, logits, *, factor=1.0, block_length=32):
    """Fast-dLLM's factor loop to the letter: when the test fails at the last candidate only, that one goes as well."""
    here = ts.window(x, size=block_length)
    token, conf = ts.score(logits)
    n = ts.rank(conf, where=here) + 1
    fits = here & ((n + 1) * (1 - ts.prob(conf)) < factor) | ts.top(conf, 1, where=here)
    everything = ts.count(fits) >= ts.count(here) - 1
    return ts.unmask(x, token, where=ts.choose(everything, here, fits))


def _dream(score: Any) -> Policy:
    @ts.policy(name=f"dream_{score.__name__}", predict_mask=True)
    def dream_idle_steps(x, logits, *, steps=512, eps=1e-3):
        """Dream's loop to the letter: all steps run, also idle ones, and the mask id may be predicted."""
        token = ts.argmax(logits)
        masked, rate = ts.masked(x), ts.linear_rate(ts.step(x), steps=steps, eps=eps)
        n = ts.floor(ts.count(masked) * rate)
        y = ts.unmask(x, token, where=ts.top(score(logits), n, where=masked))
        return ts.advance(x, y, done=ts.step(x) + 1 >= steps)

    return dream_idle_steps


def maskgit_plus(logits: Any) -> Any:
    """The highest probability."""
    return ts.prob(ts.score(logits)[1])


def topk_margin(logits: Any) -> Any:
    """The gap to the second likeliest."""
    return ts.margin(logits)


def entropy(logits: Any) -> Any:
    """The negative entropy."""
    return -ts.entropy(logits)


@ts.policy(name="klass")
def klass_masks_left(
    x, logits, before=ts.history("probs", start=0.0), calm=ts.history("scores", start=0),
    number=ts.history("count", start=0), turn=ts.history("count", start=0), *, steps=256, block_length=64,
    conf_threshold=0.9, kl_threshold=0.01, kl_history_length=2, unmask_strategy="all",
):  # fmt: skip
    """KLASS's loop to the letter: a block that has used up its steps is left, with the masks it still has."""
    blocks = ts.most(ts.count(ts.free(x)) // block_length, 1)
    turns = ts.most(steps // blocks, 1)
    each = block_length // turns
    n = each + ts.choose(turn < block_length - each * turns, 1, 0)
    mine = ts.block_of(x, size=block_length) == number
    limits = (conf_threshold, kl_threshold, kl_history_length, unmask_strategy)
    token, conf, ready, now, calm = settled(x, logits, before, calm, ts.masked(x) & mine, turn, limits)
    fallback = ts.top(conf, n, where=ts.masked(x) & mine)
    y = ts.unmask(x, token, where=ts.choose(ts.any(ready), ready, fallback))
    left = (turn + 1 >= turns) | ~ts.any(ts.masked(y) & mine)
    after, number, turn = _leave(x, y, left, number, turn, block_length)
    return after, now, calm, number, turn


@ts.policy(name="fastdllm_dream_entropy")
def dream_block_idle_steps(x, logits, *, block_steps=32, eps=1e-3, block_length=32):
    """Fast-dLLM's entropy loop for Dream to the letter: steps that commit nothing are run as well."""
    here, turn = ts.window(x, size=block_length), ts.block_step(x)
    token = ts.argmax(logits)
    n = ts.floor(ts.count(here) * ts.linear_rate(turn, steps=block_steps, eps=eps))
    best = ts.top(-ts.entropy(logits), n, where=here)
    return ts.unmask(x, token, where=ts.choose(turn == 0, ts.first(1, where=here), best))


def counted_block(x: Any, *, number: Any, block_length: int) -> Any:
    """The block that a counter says, whether or not it has masks."""
    return ts.block_of(x, size=block_length) == number


def _leave(x: Any, y: Any, left: Any, number: Any, turn: Any, block_length: int) -> tuple[Any, Any, Any]:
    """Close a step of a loop over numbered blocks: go to the next block when `left` says so."""
    blocks = ts.most(ts.count(ts.free(x)) // block_length, 1)
    number, turn = ts.choose(left, number + 1, number), ts.choose(left, 0, turn + 1)
    return ts.advance(x, y, size=block_length, done=number >= blocks), number, turn


@ts.policy(name="fastdllm_threshold", window=counted_block)
def threshold_extra_forward(
    x, logits, number=ts.history("count", start=0), turn=ts.history("count", start=0), *, threshold=0.9, block_length=32
):
    """Fast-dLLM's old cached loops to the letter: a block gets a second forward even when the first one filled it."""
    mine = ts.block_of(x, size=block_length) == number
    here = ts.masked(x) & mine
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=here & (conf >= threshold) | ts.top(conf, 1, where=here))
    full = ~ts.any(ts.masked(y) & mine)
    return _leave(x, y, full & (turn >= 1), number, turn, block_length)


@ts.policy(name="fastdllm_threshold", window=counted_block)
def threshold_max_steps(
    x, logits, number=ts.history("count", start=0), turn=ts.history("count", start=0), *, steps=128, threshold=0.9,
    block_length=32,
):  # fmt: skip
    """Fast-dLLM's dual loop to the letter: a block is left after steps / blocks forwards, with the masks it still has;
    the forward that opens the next block may commit them."""
    blocks = ts.most(ts.count(ts.free(x)) // block_length, 1)
    mine = ts.block_of(x, size=block_length) == number
    upto = ts.block_of(x, size=block_length) <= number
    here = ts.masked(x) & ts.choose(turn == 0, upto, mine)
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=here & (conf >= threshold) | ts.top(conf, 1, where=here))
    full = ~ts.any(ts.masked(y) & mine)
    return _leave(x, y, full | (turn + 1 >= steps // blocks), number, turn, block_length)


COMPAT: dict[tuple[str, str], Policy] = {
    ("llada_low_confidence", "llada.idle_steps"): llada_idle_steps,
    ("llada_low_confidence", "mask_predicted"): llada_idle_steps,
    ("llada_low_confidence", "llada.eos_alias"): llada_eos_alias,
    ("fastdllm_factor", "factor.last_index_bug"): factor_last_index_bug,
    ("fastdllm_threshold", "prefix.old_extra_forward"): threshold_extra_forward,
    ("fastdllm_threshold", "dual.old_extra_forward"): threshold_extra_forward,
    ("fastdllm_threshold", "dual.max_steps_bound"): threshold_max_steps,
    ("fastdllm_dream_entropy", "dream.idle_steps"): dream_block_idle_steps,
    ("klass", "klass.masks_left"): klass_masks_left,
    ("sdar_static", "sdar.store_calls"): static_store,
    ("sdar_dynamic", "sdar.store_calls"): dynamic_store,
    ("sglang_low_confidence", "sglang.extra_kv_round"): low_confidence_kv_round,
    ("sglang_joint_threshold", "sglang.extra_kv_round"): joint_kv_round,
    ("sglang_joint_threshold", "mask_predicted"): joint_kv_round,
    ("dinfer_threshold", "dinfer.unroll"): threshold_unroll,
    ("dinfer_hierarchy", "dinfer.unroll"): hierarchy_unroll,
    ("dinfer_credit", "dinfer.unroll"): credit_unroll,
}
for _score in (maskgit_plus, topk_margin, entropy):
    _policy = _dream(_score)
    COMPAT[(_policy.name, "dream.idle_steps")] = COMPAT[(_policy.name, "mask_predicted")] = _policy
