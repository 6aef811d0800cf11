"""Dream's samplers (Ye et al., arXiv 2508.15487; `generation_utils.py` of the Dream model card)."""

from __future__ import annotations

from typing import Any

import trajspec as ts


def draw(x: Any, logits: Any, temperature: float, top_p: float | None, top_k: int | None) -> tuple[Any, Any]:
    """A token at each position from the tempered and cut distribution, and the logits of that distribution."""
    if temperature:
        logits = logits / temperature
    if top_p is not None:
        logits = ts.top_p(logits, p=top_p)
    if top_k is not None:
        logits = ts.top_k(logits, k=top_k)
    return ts.sample(x, logits, temperature=1.0 if temperature else 0.0), logits


def commit(x: Any, token: Any, by: Any, clock: Any, steps: int, eps: float, alg_temp: float) -> tuple[Any, Any]:
    """Commit the best masked positions, as many as the linear schedule says; at random with weights by / alg_temp."""
    masked = ts.masked(x)
    n, clock = ts.linear_quota(ts.count(masked), clock, steps=steps, eps=eps)
    if alg_temp:
        by = by / alg_temp + ts.gumbel(x)
    return ts.unmask(x, token, where=ts.top(by, n, where=masked)), clock


@ts.policy
def dream_maskgit_plus(
    x, logits, clock=ts.history("count", start=0), *, steps=512, eps=1e-3, temperature=0.0, top_p=None, top_k=None,
    alg_temp=0.0,
):  # fmt: skip
    """Commit the tokens with the highest probability, on the linear schedule (Dream, maskgit_plus)."""
    token, logits = draw(x, logits, temperature, top_p, top_k)
    return commit(x, token, ts.prob(ts.confidence(logits, token)), clock, steps, eps, alg_temp)


@ts.policy
def dream_topk_margin(
    x, logits, clock=ts.history("count", start=0), *, steps=512, eps=1e-3, temperature=0.0, top_p=None, top_k=None,
    alg_temp=0.0,
):  # fmt: skip
    """Commit the tokens with the widest gap to the second likeliest, on the linear schedule (Dream, topk_margin)."""
    token, logits = draw(x, logits, temperature, top_p, top_k)
    return commit(x, token, ts.margin(logits), clock, steps, eps, alg_temp)


@ts.policy
def dream_entropy(
    x, logits, clock=ts.history("count", start=0), *, steps=512, eps=1e-3, temperature=0.0, top_p=None, top_k=None,
    alg_temp=0.0,
):  # fmt: skip
    """Commit the tokens with the lowest entropy, on the linear schedule (Dream, entropy)."""
    token, logits = draw(x, logits, temperature, top_p, top_k)
    return commit(x, token, -ts.entropy(logits), clock, steps, eps, alg_temp)


@ts.policy
def dream_origin(x, logits, *, steps=512, eps=1e-3, temperature=0.0, top_p=None, top_k=None):
    """Commit each masked position with the probability that the linear schedule gives it now (Dream, origin)."""
    token, logits = draw(x, logits, temperature, top_p, top_k)
    rate = ts.linear_rate(ts.step(x), steps=steps, eps=eps)
    return ts.unmask(x, token, where=ts.masked(x) & (ts.uniform(x) < rate))
