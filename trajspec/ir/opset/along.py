"""Sums along an order of positions, and maxima along runs of neighbours."""

from __future__ import annotations

import numpy as np

from ..op import op
from .select import ranks


@op("running(of: scores, *, by: conf | scores, where: selection) -> sum: scores")
def running(of: np.ndarray, *, by: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The sum of `of` over the positions of `where` from the best by `by` down to this one; 0 outside `where`.

    Ties of `by` go to the lowest position, so that no two positions have the same place in the order.
    """
    of, by, where = np.broadcast_arrays(of, by, where)
    place = ranks(by, where)
    ordered = np.zeros((*of.shape[:-1], of.shape[-1] + 1), of.dtype)
    np.put_along_axis(ordered, place, np.where(where, of, 0).astype(of.dtype), axis=-1)
    return np.where(where, np.take_along_axis(np.cumsum(ordered, axis=-1), place, axis=-1), 0)


@op(
    "run_max(by: conf | scores, *, where: selection) -> best: scores",
    infer=lambda kinds, attrs: (kinds[0],),
)
def run_max(by: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """The largest value among the unbroken run of positions of `where` that each position is in; -inf outside."""
    by, where = np.broadcast_arrays(by, where)
    values = np.where(where & ~np.isnan(by), by, -np.inf)
    run = np.cumsum(~where, axis=-1)
    flat = np.full((values[..., 0].size, values.shape[-1] + 1), -np.inf)
    numbers = run.reshape(flat.shape[0], -1)
    np.maximum.at(flat, (np.arange(flat.shape[0])[:, None], numbers), values.reshape(numbers.shape))
    return np.where(where, np.take_along_axis(flat, numbers, axis=-1).reshape(values.shape), -np.inf)
