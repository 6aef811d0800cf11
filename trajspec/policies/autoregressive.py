"""What an autoregressive model does: the next token, then the one after it."""

from __future__ import annotations

from typing import Any

import trajspec as ts


def processed(x: Any, logits: Any, temperature: float, top_k: Any, top_p: Any, repetition_penalty: float) -> Any:
    """The logits that a token is drawn from, in the order of transformers: penalty, temperature, top_k, top_p."""
    logits = ts.penalise(x, logits, penalty=repetition_penalty)
    if temperature > 0:
        logits = logits / temperature
    return ts.top_p(ts.top_k(logits, k=top_k), p=top_p)


@ts.policy
def autoregressive(x, logits, *, temperature=0.0, top_k=None, top_p=None, repetition_penalty=1.0):
    """Write the leftmost masked position: the likeliest token, or at a temperature above 0 a drawn one."""
    logits = processed(x, logits, temperature, top_k, top_p, repetition_penalty)
    token = ts.sample(x, logits, temperature=1.0) if temperature > 0 else ts.argmax(logits)
    return ts.unmask(x, token, where=ts.first(1, where=ts.masked(x)))
