"""From logits to tokens and how sure they are."""

from __future__ import annotations

import numpy as np

from ..canvas import Canvas
from ..errors import TrajspecError
from ..op import op
from ..query import FLOOR


def exact(logits: np.ndarray) -> np.ndarray:
    """Logits in at least float32 (numpy computes in float64): half precision ties sure tokens."""
    return logits.astype(np.float64, copy=False)


def first_max(values: np.ndarray) -> np.ndarray:
    """Index of the largest entry, the lowest index among equals."""
    return values.argmax(axis=-1)


def log_prob(logits: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Log probability of `token`: -log1p(sum over the others of exp(l_v - max)) for the likeliest one.

    Going through log1p and expm1 keeps an order among sure tokens, which max - logsumexp rounds to 0.
    """
    logits = exact(logits)
    top = logits.max(axis=-1)
    own = np.take_along_axis(logits, token[..., None], axis=-1)[..., 0] - top
    each = np.exp(logits - top[..., None])
    np.put_along_axis(each, token[..., None], 0.0, axis=-1)
    return own - np.log1p(np.expm1(own) + each.sum(axis=-1))


@op("score(logits: logits) -> token: tokens, conf: conf")
def score(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest token of each position and its probability; ties go to the lowest id."""
    token = first_max(logits)
    return token, log_prob(logits, token)


@op("confidence(logits: logits, token: tokens) -> conf: conf")
def confidence(logits: np.ndarray, token: np.ndarray) -> np.ndarray:
    """The probability of a given token at each position."""
    return log_prob(logits, token)


@op("softmax(logits: logits) -> p: probs")
def softmax(logits: np.ndarray) -> np.ndarray:
    """The probabilities of all tokens at each position."""
    logits = exact(logits)
    each = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return each / each.sum(axis=-1, keepdims=True)


@op("argmax(of: logits | probs) -> token: tokens")
def argmax(of: np.ndarray) -> np.ndarray:
    """The token with the largest entry; ties go to the lowest id."""
    return first_max(of)


@op("max(p: probs) -> conf: conf")
def max_(p: np.ndarray) -> np.ndarray:
    """The largest probability of each position."""
    with np.errstate(divide="ignore"):
        return np.log(p.max(axis=-1))


@op("margin(logits: logits) -> margin: scores")
def margin(logits: np.ndarray) -> np.ndarray:
    """The largest probability minus the second largest; 1 for a vocabulary of one id."""
    logits = exact(logits)
    order = np.sort(logits, axis=-1)[..., ::-1]
    total = np.exp(logits - order[..., :1]).sum(axis=-1)
    gap = order[..., 1] - order[..., 0] if logits.shape[-1] > 1 else np.full(logits.shape[:-1], -np.inf)
    return -np.expm1(gap) / total


@op("entropy(logits: logits) -> entropy: scores")
def entropy(logits: np.ndarray) -> np.ndarray:
    """The entropy of the prediction at each position, in nats."""
    shifted = exact(logits) - logits.max(axis=-1, keepdims=True)
    each = np.exp(shifted)
    total = each.sum(axis=-1)
    return np.log(total) - (each * shifted).sum(axis=-1) / total


@op("score_and_entropy(logits: logits) -> token: tokens, conf: conf, entropy: scores")
def score_and_entropy(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `score` and `entropy` give, from one pass over the vocabulary."""
    return (*score.numpy(logits), entropy.numpy(logits))


@op("score_and_margin(logits: logits) -> token: tokens, conf: conf, margin: scores")
def score_and_margin(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `score` and `margin` give, from one pass over the vocabulary."""
    return (*score.numpy(logits), margin.numpy(logits))


def _positive(floor: float, **_: object) -> None:
    if not floor > 0:
        raise TrajspecError(f"floor is {floor}, expected a small number above 0")


@op("kl(p: probs, q: probs, *, floor: float = 1e-12) -> kl: scores", check=_positive)
def kl(p: np.ndarray, q: np.ndarray, *, floor: float) -> np.ndarray:
    """The Kullback-Leibler divergence of p from q at each position, in nats; `floor` is added inside the logarithms."""
    return (p * (np.log(p + floor) - np.log(q + floor))).sum(axis=-1)


@op("suppress(logits: logits, *, ids: tuple) -> logits: logits")
def suppress(logits: np.ndarray, *, ids: tuple[int, ...]) -> np.ndarray:
    """The logits with these ids made impossible."""
    out = np.array(logits)
    out[..., list(ids)] = FLOOR
    return out


def _share(p: float | None, **_: object) -> None:
    if p is not None and not 0 < p <= 1:
        raise TrajspecError(f"p is {p}, expected a probability above 0 and at most 1 (None: no cut)")


@op("top_p(logits: logits, *, p: float | None = None, crossing: bool = True) -> logits: logits", check=_share)
def top_p(logits: np.ndarray, *, p: float | None, crossing: bool) -> np.ndarray:
    """The logits of the likeliest tokens until their sum reaches p; the rest is out, never the likeliest.

    The token whose sum crosses p is kept (Dream), or, with `crossing=False`, out as well (ReMDM).
    """
    if p is None or p >= 1:
        return logits
    order = np.argsort(-exact(logits), axis=-1, kind="stable")
    ranked = np.take_along_axis(softmax.numpy(logits), order, axis=-1)
    upto = np.cumsum(ranked, axis=-1)
    out_ranked = (upto - ranked if crossing else upto) > p
    out_ranked[..., 0] = False
    out = np.zeros(logits.shape, bool)
    np.put_along_axis(out, order, out_ranked, axis=-1)
    return np.where(out, FLOOR, logits)


def _whole(k: int | None, **_: object) -> None:
    if k is not None and k < 1:
        raise TrajspecError(f"k is {k}, expected 1 or more tokens (None: no cut)")


@op("top_k(logits: logits, *, k: int | None = None) -> logits: logits", check=_whole)
def top_k(logits: np.ndarray, *, k: int | None) -> np.ndarray:
    """The logits of the k likeliest tokens; tokens equal to the k-th stay, the rest is out."""
    if k is None or k >= logits.shape[-1]:
        return logits
    least = np.sort(exact(logits), axis=-1)[..., -k]
    return np.where(logits < least[..., None], FLOOR, logits)


def _factor(penalty: float, **_: object) -> None:
    if not penalty > 0:
        raise TrajspecError(f"penalty is {penalty}, expected a number above 0 (1: none)")


@op("penalise(x: canvas, logits: logits, *, penalty: float = 1.0) -> logits: logits", check=_factor)
def penalise(x: Canvas, logits: np.ndarray, *, penalty: float) -> np.ndarray:
    """The logits with those of tokens that the row holds already divided by `penalty`, or multiplied where negative.

    Source: CTRL (arXiv 1909.05858), as transformers' repetition penalty.
    """
    if penalty == 1:
        return logits
    there = (~x.masked & (x.position >= 0)).reshape(-1, x.tokens.shape[-1])
    seen = np.zeros((len(there), logits.shape[-1]), bool)
    for row, tokens, known in zip(seen, x.tokens.reshape(there.shape), there, strict=True):
        row[tokens[known]] = True
    seen = seen.reshape(*x.tokens.shape[:-1], 1, logits.shape[-1])
    return np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)
