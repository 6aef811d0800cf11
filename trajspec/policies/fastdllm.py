"""Fast-dLLM's parallel decoding rules (Wu et al., arXiv 2505.22618; `generate.py` of NVlabs/Fast-dLLM)."""

from __future__ import annotations

import trajspec as ts


@ts.policy
def fastdllm_threshold(x, logits, *, threshold=0.9, block_length=32, temperature=0.0):
    """Commit every token of the block at least as sure as the threshold, and always the surest (Fast-dLLM)."""
    here = ts.window(x, size=block_length)
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    return ts.unmask(x, token, where=here & (conf >= threshold) | ts.top(conf, 1, where=here))


@ts.policy
def fastdllm_quota(x, logits, *, steps=None, block_length=32, temperature=0.0):
    """Commit the surest tokens of the block, as many as the even schedule says (Fast-dLLM without a threshold)."""
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    n = ts.quota(x, steps=steps, size=block_length)
    return ts.unmask(x, token, where=ts.top(conf, n, where=ts.window(x, size=block_length)))


@ts.policy
def fastdllm_factor(x, logits, *, factor=1.0, block_length=32, temperature=0.0):
    """Commit the n surest tokens of the block, n the largest with (n + 1)(1 - c_n) < factor (Fast-dLLM, factor)."""
    here = ts.window(x, size=block_length)
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    n = ts.rank(conf, where=here) + 1
    fits = here & ((n + 1) * (1 - ts.prob(conf)) < factor)
    return ts.unmask(x, token, where=fits | ts.top(conf, 1, where=here))
