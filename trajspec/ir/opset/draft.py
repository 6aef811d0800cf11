"""The drafters of the library: which hypothetical states a round evaluates, from the logits already held."""

from __future__ import annotations

import numpy as np

from ..ahead import Draft, Held
from ..canvas import Canvas
from ..errors import TrajspecError
from ..op import op
from .read import block_numbers, whole
from .score import first_max, log_prob


def _budget(nodes: int, size: int | None = None, **_: object) -> None:
    if nodes < 0:
        raise TrajspecError(f"nodes is {nodes}, expected the number of hypothetical states, 0 or more")
    whole(size)


def ranked(x: Canvas, held: Held, size: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Positions in the order in which they will likely be committed: block by block, the surest first.

    order int64 [..., L]: columns, the masked ones with known logits first; count int64 [..., 1]: how many those are;
    token int64 [..., L] and conf float64 [..., L] (a logarithm) at their columns.
    """
    logits = np.where(np.isnan(held.logits), -1e30, held.logits)
    known = x.masked & ~np.isnan(held.logits).any(axis=-1)
    token = first_max(logits)
    conf = log_prob(logits, token)
    number = np.where(known, block_numbers(x, size), 2**40)
    order = np.argsort(-conf, axis=-1, kind="stable")
    order = np.take_along_axis(order, np.argsort(np.take_along_axis(number, order, -1), axis=-1, kind="stable"), -1)
    return order, known.sum(axis=-1, keepdims=True), token, conf


@op("chain(x: canvas, held: held, *, nodes: int = 7, size: int | None = None) -> draft: draft", check=_budget)
def chain(x: Canvas, held: Held, *, nodes: int, size: int | None) -> Draft:
    """The surest position first, then the two surest, and so on: one trajectory of single commits."""
    order, count, token, _ = ranked(x, held, size)
    length = x.tokens.shape[-1]
    place = np.empty(order.shape, np.int64)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(length), order.shape), axis=-1)
    taken = place[..., None, :] <= np.arange(nodes)[:, None]
    taken = taken & (np.arange(nodes) < count)[..., None]
    tokens = np.where(taken, token[..., None, :], x.tokens[..., None, :])
    return Draft(tokens, x.masked[..., None, :] & ~taken, np.arange(nodes) < count)
