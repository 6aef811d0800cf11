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


@ts.policy
def fastdllm_dream_block(x, logits, *, threshold=0.9, block_length=32):
    """Commit the first token of a block on entering it, then all above the threshold (Fast-dLLM for Dream).

    A window's first logits belong to the position before it, which Dream's shift needs and a cached view has lost; so
    the position is filled from the call that opened the block.
    """
    here = ts.window(x, size=block_length)
    token, conf = ts.score(logits)
    sure = here & (conf >= threshold) | ts.top(conf, 1, where=here)
    return ts.unmask(x, token, where=ts.choose(ts.block_step(x) == 0, ts.first(1, where=here), sure))


@ts.policy
def fastdllm_dream_entropy(x, logits, clock=ts.history("count", start=1), *, block_steps=32, eps=1e-3, block_length=32):
    """Commit the first token of a block on entering it, then the lowest entropies, on a linear schedule in each block
    (Fast-dLLM for Dream, entropy)."""
    here, entering = ts.window(x, size=block_length), ts.block_step(x) == 0
    token = ts.argmax(logits)
    n, after = ts.linear_quota(ts.count(here), clock, steps=block_steps, eps=eps)
    where = ts.choose(entering, ts.first(1, where=here), ts.top(-ts.entropy(logits), n, where=here))
    return ts.unmask(x, token, where=where), ts.choose(entering, 1, after)
