"""EB-Sampler: commit until the joint error may be too large (Ben-Hamu et al., arXiv 2505.24857)."""

from __future__ import annotations

import trajspec as ts


@ts.policy
def eb_sampler(x, logits, *, gamma=0.1, block_length=None, temperature=0.0):
    """Commit the lowest entropies while those before the last one sum up to at most gamma (EB-Sampler)."""
    here = ts.window(x, size=block_length)
    entropy = ts.entropy(logits)
    before = ts.running(entropy, by=-entropy, where=here) - entropy
    token = ts.sample(x, logits, temperature=temperature)
    return ts.unmask(x, token, where=here & (before <= gamma) | ts.bottom(entropy, 1, where=here))
