"""Torch meanings of sums along an order of positions, and of maxima along runs of neighbours."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .positions import ranks
from .registry import meaning


@meaning("running")
def running(of: Tensor, *, by: Tensor, where: Tensor) -> Tensor:
    """The sum of `of` from the best position of `where` down to each, in float64 unless whole."""
    of = of.double() if of.is_floating_point() else of
    of, by, where = torch.broadcast_tensors(of, by, where)
    place = ranks(by, where)
    ordered = torch.zeros_like(of).new_zeros((*of.shape[:-1], of.shape[-1] + 1))
    # Positions outside `where` share the last place, and all put a 0 there.
    ordered = ordered.scatter(-1, place, torch.where(where, of, 0))
    return torch.where(where, ordered.cumsum(dim=-1).gather(-1, place), 0)


@meaning("run_max")
def run_max(by: Tensor, *, where: Tensor) -> Tensor:
    """The largest value among the run of positions of `where` that each position is in."""
    by, where = torch.broadcast_tensors(by if by.is_floating_point() else by.double(), where)
    values = torch.where(where & ~by.isnan(), by, -math.inf)
    run = (~where).cumsum(dim=-1)
    best = values.new_full((*values.shape[:-1], values.shape[-1] + 1), -math.inf)
    best = best.scatter_reduce(-1, run, values, "amax")
    return torch.where(where, best.gather(-1, run), -math.inf)
