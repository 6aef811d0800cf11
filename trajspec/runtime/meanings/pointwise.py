"""Torch meanings of the operators, and of the other pointwise ops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...ir.kinds import CONF, Kind
from .registry import Number, double, is_real, meaning, numbers


@meaning("const")
def const(*, value: float) -> Number:
    """The Python number itself: it names no device, and every op that takes a count or flag takes it."""
    return value


def _common(values: Sequence[Number], kinds: Sequence[Kind]) -> list[Any]:
    """Operands in one type. Next to values a token the numbers take that type (at least float32) and one more axis."""
    wide = [value.dtype for value, kind in zip(values, kinds, strict=True) if kind.axes == "LV"]  # type: ignore[union-attr]
    if not wide:
        return numbers(*values)
    dtype = functools.reduce(torch.promote_types, wide, torch.float32)
    return [
        (value[..., None] if kind.axes == "1" else value).to(dtype) if isinstance(value, Tensor) else value
        for value, kind in zip(values, kinds, strict=True)
    ]


def _log(number: Number) -> Number:
    if not isinstance(number, Tensor):
        return math.log(number) if number > 0 else -math.inf
    number = number.double()
    positive = number > 0
    return torch.where(positive, torch.log(torch.where(positive, number, 1.0)), -math.inf)


def _logs(values: Sequence[Number], kinds: Sequence[Kind]) -> list[Number]:
    """Numbers compared with a confidence become logarithms."""
    if CONF not in kinds:
        return list(values)
    return [value if kind is CONF else _log(value) for value, kind in zip(values, kinds, strict=True)]


def _binary(name: str, compute: Callable[[Any, Any], Tensor]) -> None:
    def function(a: Number, b: Number, *, kinds: Sequence[Kind]) -> Tensor:
        a, b = _common(_logs((a, b), kinds), kinds)
        return compute(a, b)

    meaning(name, numbers=True)(function)


def _quotient(a: Any, b: Any) -> Tensor:
    if not (is_real(a) or is_real(b)):
        a, b = double(a), double(b)  # torch divides two whole tensors in float32
    return a / b


def _tensors(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    """`compute` for functions that want two tensors: a number becomes a filled one of the other's type."""

    def function(a: Any, b: Any) -> Tensor:
        if not isinstance(a, Tensor):
            a = torch.full((), a, dtype=b.dtype, device=b.device)
        if not isinstance(b, Tensor):
            b = torch.full((), b, dtype=a.dtype, device=a.device)
        return compute(a, b)

    return function


def _whole_safe(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    """`compute` with 0 where a whole divisor is 0 (torch raises on the CPU and gives anything elsewhere)."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        if a.is_floating_point():
            return compute(a, b)
        zero = b == 0
        return torch.where(zero, 0, compute(a, torch.where(zero, 1, b)))

    return _tensors(function)


_binary("add", lambda a, b: a + b)
_binary("sub", lambda a, b: a - b)
_binary("mul", lambda a, b: a * b)
_binary("div", _quotient)
_binary("floordiv", _whole_safe(torch.floor_divide))
_binary("mod", _whole_safe(torch.remainder))
_binary("ge", lambda a, b: a >= b)
_binary("gt", lambda a, b: a > b)
_binary("le", lambda a, b: a <= b)
_binary("lt", lambda a, b: a < b)
_binary("eq", lambda a, b: a == b)
_binary("ne", lambda a, b: a != b)
_binary("and_", lambda a, b: a & b)
_binary("or_", lambda a, b: a | b)
_binary("xor", lambda a, b: a ^ b)


@meaning("neg", numbers=True)
def neg(a: Tensor) -> Tensor:
    """The opposite number."""
    return -a


@meaning("invert", numbers=True)
def invert(a: Tensor) -> Tensor:
    """The complement."""
    return ~a


@meaning("least", numbers=True)
def least(a: Number, b: Number) -> Tensor:
    """The smaller of two numbers."""
    return _tensors(torch.minimum)(*numbers(a, b))


@meaning("most", numbers=True)
def most(a: Number, b: Number) -> Tensor:
    """The larger of two numbers."""
    return _tensors(torch.maximum)(*numbers(a, b))


@meaning("floor", numbers=True)
def floor(a: Tensor) -> Tensor:
    """The number rounded down; whole numbers stay int64."""
    return torch.floor(a) if a.is_floating_point() else a


@meaning("exp", numbers=True)
def exp(a: Tensor) -> Tensor:
    """e to the power of the number, in float64."""
    return torch.exp(a.double())


@meaning("prob")
def prob(conf: Tensor) -> Tensor:
    """The confidence as a number, in float64: float32 would round all sure tokens to 1."""
    return torch.exp(conf.double())


@meaning("choose", numbers=True)
def choose(when: Number, a: Number, b: Number, *, kinds: Sequence[Kind]) -> Tensor:
    """`a` where `when` holds, else `b`."""
    device = next(value.device for value in (when, a, b) if isinstance(value, Tensor))
    if not isinstance(when, Tensor):
        when = torch.full((1,), when, dtype=torch.bool, device=device)
    if any(kind.axes == "LV" for kind in kinds):
        when = when[..., None]
    a, b = _common((a, b), kinds[1:])
    if not isinstance(a, Tensor) and is_real(a):
        a = torch.full((1,), a, dtype=torch.float64, device=device) if not isinstance(b, Tensor) else a
    return torch.where(when, a, b)
