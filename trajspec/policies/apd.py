"""APD: write from left to right what an autoregressive model would go along with (Israel et al., arXiv 2506.00413;
danielmisrael/apd)."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from .dream import draw


def reach(x: Any, max_lookahead: int | None) -> tuple[Any, Any]:
    """The masks less than `max_lookahead` behind the first one, and everything behind them."""
    first = ts.total(ts.position(x), where=ts.first(1, where=ts.masked(x)))
    beyond = ts.position(x) >= first + max_lookahead if max_lookahead is not None else ts.position(x) < 0
    return ts.masked(x) & ~beyond, beyond


def in_reach(x: Any, *, max_lookahead: int | None) -> Any:
    """The canvas up to the end of the lookahead."""
    return x if max_lookahead is None else ts.without(x, where=reach(x, max_lookahead)[1])


def drafted(x: Any, *, logits: Any, temperature: float, top_p: Any, top_k: Any, max_lookahead: int | None) -> Any:
    """The canvas up to the end of the lookahead, with what the diffusion model would write at its masks."""
    here, beyond = reach(x, max_lookahead)
    token, _ = draw(x, logits, temperature, top_p, top_k)
    return ts.without(ts.substitute(x, token, where=here), where=beyond)


@ts.policy
def apd(
    x, logits=ts.query(in_reach), ar=ts.query(drafted, model="ar"), *, apd_mixture_weight=0.7, max_lookahead=100,
    tokens_per_step=1, temperature=0.0, top_p=None, top_k=None,
):  # fmt: skip
    """Commit what is drafted from the left up to the first token that a mixture with an autoregressive model's logits
    would not choose, and always one (APD); without a mixture weight a fixed number of tokens."""
    here, _ = reach(x, max_lookahead)
    token, _ = draw(x, logits, temperature, top_p, top_k)
    if apd_mixture_weight is None:
        return ts.unmask(x, token, where=ts.first(tokens_per_step, where=here))
    target = ts.argmax(apd_mixture_weight * logits + (1 - apd_mixture_weight) * ar)
    refused = here & (token != target) & ~ts.first(1, where=here)
    before = ts.running(ts.choose(refused, 1, 0), by=-ts.position(x), where=here)
    return ts.unmask(x, token, where=here & (before == 0))
