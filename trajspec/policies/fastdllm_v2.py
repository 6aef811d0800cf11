"""Fast-dLLM v2: block diffusion on an autoregressive model, in sub-blocks (Wu et al., arXiv 2509.26328;
`generation_functions.py` of NVlabs/Fast-dLLM).

Its blocks count from position 0 (a canvas with start=0), and its view is block_causal.
"""

from __future__ import annotations

import trajspec as ts

from .blocks import above, after_stop


@ts.policy
def fastdllm_v2(
    x, logits, *, threshold=0.95, block_length=32, small_block_size=8, temperature=0.0, top_p=0.95, stop_id=None
):
    """Commit the first token of a block alone and greedily, then all of a sub-block above the threshold, and always its
    surest (Fast-dLLM v2)."""
    block = ts.block(x, size=block_length)
    head = ts.first(1, where=block) & ts.masked(x)
    size = small_block_size if block_length is None else min(small_block_size, block_length)
    tempered = ts.top_p(logits / temperature, p=top_p) if temperature else logits
    token = ts.sample(x, tempered, temperature=1.0 if temperature else 0.0)
    sure = above(ts.confidence(tempered, token), ts.window(x, size=size) & block, threshold)
    y = ts.unmask(x, ts.choose(head, ts.argmax(logits), token), where=ts.choose(ts.any(head), head, sure))
    return after_stop(x, y, block, block_length, stop_id)
