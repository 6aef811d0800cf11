"""Torch meanings of what speculation starts from; the packed call and the walk are `runtime.ahead`."""

from __future__ import annotations

import torch

from ...ir.ahead import Draft, Held, nothing_held
from ...ir.canvas import Canvas
from .registry import meaning


@meaning("nothing")
def nothing(x: Canvas) -> Held:
    """What is held before the first call."""
    shape = (*x.tokens.shape, x.allowed.shape[-1])
    return nothing_held(x, torch.full(shape, float("nan"), device=x.tokens.device))


@meaning("no_draft")
def no_draft(x: Canvas) -> Draft:
    """No hypothetical state."""
    rows, length = x.tokens.shape
    return Draft(x.tokens.new_zeros(rows, 0, length), x.masked.new_zeros(rows, 0, length), x.masked.new_zeros(rows, 0))
