"""Choosing positions: ranks, the best k, order noise."""

from __future__ import annotations

import numpy as np

from ..op import op


def ranks(by: np.ndarray, where: np.ndarray) -> np.ndarray:
    """int64 [..., L]: 0 for the best position of `where`, ties to the lowest position; L outside `where`."""
    key = np.where(np.isnan(by), -np.inf, by)
    order = np.argsort(-key, axis=-1, kind="stable")
    # Second pass, stable as well: eligible positions come before all others, whatever their scores.
    eligible = np.take_along_axis(where, order, axis=-1)
    order = np.take_along_axis(order, np.argsort(~eligible, axis=-1, kind="stable"), axis=-1)
    out = np.empty(order.shape, np.int64)
    np.put_along_axis(out, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1)
    return np.where(where, out, order.shape[-1])


@op("top(by: conf | scores, k: count, *, where: selection) -> best: selection", whole=("k",))
def top(by: np.ndarray, k: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """The k best positions of `where`, all of them when it has fewer; ties go to the lowest position."""
    by, where = np.broadcast_arrays(by, where)
    return where & (ranks(by, where) < k)


@op("rank(by: conf | scores, *, where: selection) -> rank: scores")
def rank(by: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """The place of each position of `where` from best (0) to worst; the length of the canvas outside `where`."""
    by, where = np.broadcast_arrays(by, where)
    return ranks(by, where)


@op("first(n: count, *, where: selection) -> first: selection", whole=("n",))
def first(n: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """The n leftmost positions of `where`."""
    return where & (np.cumsum(where, axis=-1) <= n)


@op("bottom(by: conf | scores, k: count, *, where: selection) -> worst: selection", whole=("k",))
def bottom(by: np.ndarray, k: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """The k worst positions of `where`, all of them when it has fewer; ties go to the lowest position."""
    by, where = np.broadcast_arrays(by, where)
    return where & (ranks(-by, where) < k)


@op("demote(conf: conf, *, where: selection) -> conf: conf")
def demote(conf: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """The confidence with probability 0 at the positions of `where`: still eligible, but after all others."""
    return np.where(where, -np.inf, conf)
