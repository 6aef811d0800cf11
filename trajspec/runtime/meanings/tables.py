"""Torch meanings of tables of one number a token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...ir.opset.score import FLOOR
from .registry import double, meaning, wide


@meaning("only")
def only(p: Tensor, token: Tensor) -> Tensor:
    """The entry of `token` at each position; 0 for all other tokens."""
    at = token[..., None]
    return torch.zeros_like(p).scatter(-1, at, p.gather(-1, at))


@meaning("power")
def power(a: Tensor, *, exponent: float) -> Tensor:
    """Each number to the power of `exponent`."""
    return torch.pow(a if a.is_floating_point() else double(a), exponent)


@meaning("log")
def log(p: Tensor) -> Tensor:
    """The natural logarithm of each entry."""
    p = wide(p)
    positive = p > 0
    return torch.where(positive, torch.log(torch.where(positive, p, 1.0)), FLOOR)


@meaning("gap")
def gap(logits: Tensor) -> Tensor:
    """The largest logit minus the second largest, in float64."""
    if logits.shape[-1] == 1:
        return torch.full(logits.shape[:-1], math.inf, dtype=torch.float64, device=logits.device)
    two = logits.topk(2, dim=-1).values.double()
    return two[..., 0] - two[..., 1]


@meaning("subtract_at")
def subtract_at(logits: Tensor, token: Tensor, *, amount: float, where: Tensor) -> Tensor:
    """The logits with `amount` taken from the entry of `token` at the positions of `where`."""
    logits = wide(logits)
    at = token[..., None]
    less = torch.where(where[..., None], logits.gather(-1, at) - amount, logits.gather(-1, at))
    return logits.scatter(-1, at, less)


@meaning("previous")
def previous(token: Tensor) -> Tensor:
    """The token one place to the left; the first place has its own."""
    return torch.cat([token[..., :1], token[..., :-1]], dim=-1)
