"""Fast-dLLM++: parallel decoding by the Frechet bound (`generate.py` of Ringo-Star/FastdLLM_plusplus)."""

from __future__ import annotations

import trajspec as ts


@ts.policy
def frechet(x, logits, *, margin=0.25, block_length=32, temperature=0.0):
    """Commit the surest tokens while the Frechet bound on their joint probability, less the doubt in the last one, is
    above the margin (Fast-dLLM++)."""
    here = ts.window(x, size=block_length)
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    bound = ts.running(ts.prob(conf), by=conf, where=here) - ts.rank(conf, where=here)
    fits = here & (bound - (1 - ts.prob(conf)) > margin)
    return ts.unmask(x, token, where=fits | ts.top(conf, 1, where=here))
