"""From one value a position to one value a row."""

from __future__ import annotations

import numpy as np

from ..op import op


@op("count(of: selection) -> n: count")
def count(of: np.ndarray) -> np.ndarray:
    """How many positions a selection holds."""
    return of.sum(axis=-1, keepdims=True)


@op("any(of: selection) -> some: flag")
def any_(of: np.ndarray) -> np.ndarray:
    """Whether a selection holds a position."""
    return np.logical_or.reduce(of, axis=-1, keepdims=True)


@op("all(of: selection, *, where: selection) -> every: flag")
def all_(of: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """Whether every position of `where` is in the selection."""
    return (of | ~where).all(axis=-1, keepdims=True)


@op("total(of: scores, *, where: selection) -> total: count")
def total(of: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """The sum over the positions of `where`; 0 when there are none."""
    return np.where(where, of, 0).sum(axis=-1, keepdims=True)


@op("mean(of: scores, *, where: selection) -> mean: count")
def mean(of: np.ndarray, *, where: np.ndarray) -> np.ndarray:
    """The mean over the positions of `where`; 0 when there are none."""
    n = where.sum(axis=-1, keepdims=True)
    return np.where(where, of, 0).sum(axis=-1, keepdims=True) / np.maximum(n, 1)
