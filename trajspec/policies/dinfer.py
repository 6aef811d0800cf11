"""dInfer's decoders (Ma et al., arXiv 2510.08666; `parallel_strategy.py` of inclusionAI/dInfer)."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from .dpad import fill_after_eos


def sure(here: Any, conf: Any, threshold: float) -> Any:
    """The positions at least as sure as the threshold, and the surest."""
    return here & (conf >= threshold) | ts.top(conf, 1, where=here)


def sure_of_each_run(here: Any, conf: Any, threshold: float, low_threshold: float) -> Any:
    """The positions above the threshold, the surest of each unbroken run above the low one, and the surest of all."""
    peaks = here & (conf >= ts.run_max(conf, where=here))
    return here & (conf > threshold) | peaks & (conf > low_threshold) | ts.top(conf, 1, where=here)


def with_credit(logits: Any, credit: Any, here: Any, alpha: float, gamma: float, beta: float) -> tuple[Any, Any]:
    """The logits raised by what each token was found to be likeliest before, and that credit after this step."""
    p = ts.softmax(logits)
    kept = credit * beta
    credit = ts.choose(here, kept + ts.power(ts.only(p, ts.argmax(logits)), exponent=gamma), kept)
    return logits + ts.log(credit + 1) * alpha, credit


@ts.policy
def dinfer_threshold(x, logits, *, threshold=0.9, block_length=32, temperature=0.0, eos_id=None):
    """Commit every token of the block at least as sure as the threshold, and always the surest (dInfer, threshold)."""
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    y = ts.unmask(x, token, where=sure(ts.window(x, size=block_length), conf, threshold))
    return fill_after_eos(y, block=ts.block(x, size=block_length), eos_id=eos_id)


@ts.policy
def dinfer_hierarchy(x, logits, *, threshold=0.9, low_threshold=0.4, block_length=32, temperature=0.0, eos_id=None):
    """Commit what is above the threshold, and the surest of each run of masks above a lower one (dInfer, hierarchy)."""
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    chosen = sure_of_each_run(ts.window(x, size=block_length), conf, threshold, low_threshold)
    y = ts.unmask(x, token, where=chosen)
    return fill_after_eos(y, block=ts.block(x, size=block_length), eos_id=eos_id)


@ts.policy
def dinfer_credit(
    x, logits, credit=ts.history("probs", start=0.0), *, threshold=0.9, credit_alpha=0.7, boost_gamma=0.2,
    decay_beta=0.8, block_length=32, temperature=0.0, eos_id=None,
):  # fmt: skip
    """Commit by threshold from logits that favour what a position was predicted to be before (dInfer, credit)."""
    here = ts.window(x, size=block_length)
    logits, credit = with_credit(logits, credit, here, credit_alpha, boost_gamma, decay_beta)
    token = ts.sample(x, logits, temperature=temperature)
    y = ts.unmask(x, token, where=sure(here, ts.confidence(logits, token), threshold))
    return fill_after_eos(y, block=ts.block(x, size=block_length), eos_id=eos_id), credit
