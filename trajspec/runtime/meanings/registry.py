"""The table of torch meanings, and the decorator that fills it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...ir.kinds import KINDS, Kind
from ...ir.op import OPS

Number = Tensor | int | float | bool
"""A count or flag: a tensor [R, 1], or the plain Python number that a literal is."""

Meaning = Callable[..., Any]

MEANINGS: dict[str, Meaning] = {}
"""By op name, what the op computes on tensors; called like the numpy meaning (`ir.apply.call_meaning`)."""


def meaning(name: str, *, numbers: bool = False) -> Callable[[Meaning], Meaning]:
    """Register the torch meaning of op `name`.

    `numbers` says that all operands may be Python numbers; the result then is one too, taken from the numpy meaning
    when the call is made, so that nothing is created on a device that no operand names.
    """

    def register(function: Meaning) -> Meaning:
        MEANINGS[name] = _with_literals(name, function) if numbers else function
        return function

    return register


def _with_literals(name: str, function: Meaning) -> Meaning:
    @functools.wraps(function)
    def either(*values: Any, kinds: Sequence[Kind] | None = None, **attrs: Any) -> Any:
        if not any(isinstance(value, Tensor) for value in values):
            names = None if kinds is None else tuple(kind.name for kind in kinds)
            return _literal(name, values, names, tuple(attrs.items()))
        return function(*values, **attrs) if kinds is None else function(*values, kinds=kinds, **attrs)

    return either


@torch.compiler.assume_constant_result
def _literal(name: str, values: tuple, kinds: tuple[str, ...] | None, attrs: tuple) -> Any:
    extra = dict(attrs) | ({} if kinds is None else {"kinds": [KINDS[kind] for kind in kinds]})
    out = OPS[name].numpy(*(np.asarray([value]) for value in values), **extra)
    return tuple(part[0].item() for part in out) if isinstance(out, tuple) else out[0].item()


def is_real(value: Number) -> bool:
    """Whether a value is a floating-point one (read off its type)."""
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)


def double(value: Number) -> Any:
    """float64 of a tensor, float of a number."""
    return value.double() if isinstance(value, Tensor) else float(value)


def numbers(*values: Number) -> list[Any]:
    """Values a position or a row in one type: float64 as soon as one is real, as in numpy; else as they are.

    torch would take float32 for int64 next to a Python float, and would let float32 win over a Python float.
    """
    return [double(value) for value in values] if any(map(is_real, values)) else list(values)


def wide(values: Tensor) -> Tensor:
    """Logits or probabilities in at least float32: half precision ties sure tokens."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
