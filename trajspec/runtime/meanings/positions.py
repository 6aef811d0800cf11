"""Torch meanings of the ops that choose positions, and of those that sum a row up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .registry import Number, double, meaning, numbers


def ranks(by: Tensor, where: Tensor) -> Tensor:
    """int64 [R, L]: 0 for the best position of `where`, ties to the lowest position, NaN last; L outside `where`."""
    by, where = torch.broadcast_tensors(by if by.is_floating_point() else by.double(), where)
    # -0.0 equals 0.0, but a radix sort tells them apart.
    key = by.masked_fill(by.isnan(), -math.inf).masked_fill(by == 0, 0.0)
    order = key.sort(dim=-1, descending=True, stable=True).indices
    place = where.gather(-1, order).cumsum(dim=-1) - 1
    return torch.where(where, torch.zeros_like(order).scatter(-1, order, place), where.shape[-1])


@meaning("top")
def top(by: Tensor, k: Number, *, where: Tensor) -> Tensor:
    """The k best positions of `where`."""
    place, k = numbers(ranks(by, where), k)
    return where & (place < k)


@meaning("bottom")
def bottom(by: Tensor, k: Number, *, where: Tensor) -> Tensor:
    """The k worst positions of `where`."""
    place, k = numbers(ranks(-by, where), k)
    return where & (place < k)


@meaning("rank")
def rank(by: Tensor, *, where: Tensor) -> Tensor:
    """The place of each position of `where`."""
    return ranks(by, where)


@meaning("first")
def first(n: Number, *, where: Tensor) -> Tensor:
    """The n leftmost positions of `where`."""
    number, n = numbers(where.cumsum(dim=-1), n)
    return where & (number <= n)


@meaning("demote")
def demote(conf: Tensor, *, where: Tensor) -> Tensor:
    """The confidence with probability 0 at the positions of `where`."""
    return conf.masked_fill(where, -math.inf)


@meaning("count")
def count(of: Tensor) -> Tensor:
    """How many positions a selection holds."""
    return of.sum(dim=-1, keepdim=True)


@meaning("any")
def any_(of: Tensor) -> Tensor:
    """Whether a selection holds a position."""
    return of.any(dim=-1, keepdim=True)


@meaning("all")
def all_(of: Tensor, *, where: Tensor) -> Tensor:
    """Whether every position of `where` is in the selection."""
    return (of | ~where).all(dim=-1, keepdim=True)


@meaning("total")
def total(of: Tensor, *, where: Tensor) -> Tensor:
    """The sum over the positions of `where`, in float64 unless whole."""
    of = of.double() if of.is_floating_point() else of
    return torch.where(where, of, 0).sum(dim=-1, keepdim=True)


@meaning("mean")
def mean(of: Tensor, *, where: Tensor) -> Tensor:
    """The mean over the positions of `where`, in float64; 0 when there are none."""
    size = where.sum(dim=-1, keepdim=True).clamp(min=1)
    return double(total(of, where=where)) / double(size)
