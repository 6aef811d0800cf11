"""LLaDA's samplers (Nie et al., arXiv 2502.09992; `generate.py` of ML-GSAI/LLaDA)."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from ..ir import TrajspecError


def without_prompt(x: Any) -> Any:
    """What the model says when the prompt is masked as well: the other half of classifier-free guidance."""
    return ts.hide(x, where=ts.known(x))


def needs(flag: str, **ids: int | None) -> tuple[int, ...]:
    """The ids that `flag` is about; TrajspecError when one is not known."""
    for name, value in ids.items():
        if value is None:
            raise TrajspecError(f"{flag} needs {name}: the id of that token; pass {name}=...")
    return tuple(value for value in ids.values() if value is not None)


@ts.policy
def llada_low_confidence(
    x, logits, blind=ts.query(without_prompt), *, steps=None, block_length=32, temperature=0.0, cfg_scale=0.0,
    logits_eos_inf=False, confidence_eos_eot_inf=False, eos_id=None, eot_id=None,
):  # fmt: skip
    """Commit the surest tokens of the block, as many as the even schedule says (LLaDA, low_confidence)."""
    if cfg_scale:
        logits = blind + (cfg_scale + 1) * (logits - blind)
    if logits_eos_inf:
        logits = ts.suppress(logits, ids=needs("logits_eos_inf", eos_id=eos_id))
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    if confidence_eos_eot_inf:
        eos, eot = needs("confidence_eos_eot_inf", eos_id=eos_id, eot_id=eot_id)
        conf = ts.demote(conf, where=(token == eos) | (token == eot))
    n = ts.quota(x, steps=steps, size=block_length)
    return ts.unmask(x, token, where=ts.top(conf, n, where=ts.window(x, size=block_length)))


@ts.policy
def llada_random(x, logits, *, steps=None, block_length=32, temperature=0.0):
    """Commit tokens of the block at random positions, as many as the even schedule says (LLaDA, random)."""
    token = ts.sample(x, logits, temperature=temperature)
    n = ts.quota(x, steps=steps, size=block_length)
    return ts.unmask(x, token, where=ts.top(ts.uniform(x), n, where=ts.window(x, size=block_length)))
