"""Tables of one number a token, made from other tables."""

from __future__ import annotations

import numpy as np

from ..errors import TrajspecError
from ..op import op
from .score import FLOOR, exact


@op("only(p: probs, token: tokens) -> p: probs")
def only(p: np.ndarray, token: np.ndarray) -> np.ndarray:
    """The entry of `token` at each position; 0 for all other tokens."""
    out = np.zeros_like(p)
    np.put_along_axis(out, token[..., None], np.take_along_axis(p, token[..., None], axis=-1), axis=-1)
    return out


def _positive(exponent: float, **_: object) -> None:
    if not exponent > 0:
        raise TrajspecError(f"exponent is {exponent}, expected a number above 0")


@op(
    "power(a: scores | probs, *, exponent: float) -> out: scores",
    infer=lambda kinds, attrs: (kinds[0],),
    check=_positive,
)
def power(a: np.ndarray, *, exponent: float) -> np.ndarray:
    """Each number to the power of `exponent`."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.power(exact(a), exponent)


@op("log(p: probs) -> logits: logits")
def log(p: np.ndarray) -> np.ndarray:
    """The natural logarithm of each entry; "never" (-1e30) where that is 0 or less."""
    positive = p > 0
    return np.where(positive, np.log(np.where(positive, p, 1.0)), FLOOR)


@op("gap(logits: logits) -> gap: scores")
def gap(logits: np.ndarray) -> np.ndarray:
    """The largest logit minus the second largest, as they are (no softmax); infinite for a vocabulary of one id."""
    if logits.shape[-1] == 1:
        return np.full(logits.shape[:-1], np.inf)
    order = np.sort(exact(logits), axis=-1)
    with np.errstate(invalid="ignore"):
        return order[..., -1] - order[..., -2]


@op("subtract_at(logits: logits, token: tokens, *, amount: float, where: selection) -> logits: logits")
def subtract_at(logits: np.ndarray, token: np.ndarray, *, amount: float, where: np.ndarray) -> np.ndarray:
    """The logits with `amount` taken from the entry of `token` at the positions of `where`."""
    chosen = (np.arange(logits.shape[-1]) == token[..., None]) & where[..., None]
    return exact(logits) - np.where(chosen, amount, 0.0)


@op("previous(token: tokens) -> token: tokens")
def previous(token: np.ndarray) -> np.ndarray:
    """The token one place to the left; the first place has its own."""
    return np.concatenate([token[..., :1], token[..., :-1]], axis=-1)
