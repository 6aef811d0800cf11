"""Hypothesis strategies for operands and settings of every op, and the comparison of torch with numpy results."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.utils._python_dispatch import TorchDispatchMode

from trajspec.ir.apply import call_meaning
from trajspec.ir.canvas import Canvas
from trajspec.ir.errors import TrajspecError
from trajspec.ir.kinds import KINDS, Kind
from trajspec.ir.op import OPS, Op
from trajspec.ir.opset.score import FLOOR
from trajspec.ir.query import Query

INF, NAN = np.inf, np.nan

# Few levels, so that ties happen.
LOGITS = np.array([0.0, -0.0, 1.0, -2.0, 0.25, 3.5, 30.0, FLOOR])
RARE_LOGITS = np.array([0.0, 1.0, -2.0, -INF, NAN])
SCORES = np.array([0.0, -0.0, 1.0, -1.5, 0.5, INF, -INF, NAN, 7.0])
CONFS = np.append(np.log([0.5, 0.25, 0.9, 1.0, 0.999, 1e-9]), [-INF, NAN])
COUNTS = [0, 1, 2, 3, -1, 9, 2.5, 0.5, 0.9, 0.7, -0.5, 1.0]


class Sizes(NamedTuple):
    rows: int
    length: int
    vocab: int


sizes = st.builds(Sizes, st.integers(1, 3), st.integers(1, 7), st.integers(2, 6))


def leveled(levels: np.ndarray, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Arrays with entries of `levels`."""
    at = arrays(np.int8, shape, elements=st.integers(0, len(levels) - 1), fill=st.nothing())
    return at.map(lambda index: levels[index])


def whole(shape: tuple[int, ...], low: int, high: int) -> st.SearchStrategy[np.ndarray]:
    """int64 arrays from low to high."""
    return arrays(np.int64, shape, elements=st.integers(low, high), fill=st.nothing())


def planes(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """bool arrays, now and then constant ones."""
    some = arrays(bool, shape, fill=st.nothing())
    return st.one_of(some, some, some, st.sampled_from([np.zeros(shape, bool), np.ones(shape, bool)]))


@st.composite
def canvases(draw: st.DrawFn, size: Sizes) -> Canvas:
    """A batch of canvases in the middle of a run: left padding, prompts, committed tokens, counters."""
    rows, length, vocab = size
    pad = draw(whole((rows, 1), 0, length - 1))
    position = np.arange(length) - pad
    start = np.minimum(draw(whole((rows, 1), 0, draw(st.sampled_from([2, length])))), length - pad)
    free = (position >= start) & (draw(planes((rows, length))) | draw(st.booleans()))
    masked = free & draw(planes((rows, length)))
    mask_id = draw(whole((rows, 1), 0, vocab - 1))
    allowed = draw(planes((rows, draw(st.sampled_from([1, length])), vocab)))
    allowed = allowed & (np.arange(vocab) != mask_id)[:, None, :]
    return Canvas(
        tokens=np.where(masked, mask_id, draw(whole((rows, length), 0, vocab - 1))),
        masked=masked,
        free=free,
        position=position,
        start=start,
        step=draw(whole((rows, 1), 0, 12)),
        block_step=draw(whole((rows, 1), 0, 5)),
        seed=draw(whole((rows, 1), -(2**63), 2**63 - 1)),
        done=draw(planes((rows, 1))),
        mask_id=mask_id,
        stop=draw(whole((rows, draw(st.integers(1, 2))), -1, vocab - 1)),
        allowed=allowed,
    )


@st.composite
def probabilities(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    weights = draw(leveled(np.array([0.0, 1.0, 3.0, 1e-6]), shape))
    return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-6)


def logits(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    usual = leveled(LOGITS, shape)
    return st.one_of(usual, usual, usual, leveled(RARE_LOGITS, shape), st.just(np.full(shape, NAN)))


def scores(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    return st.one_of(leveled(SCORES, shape), whole(shape, -2, 9))


def counts(rows: int) -> st.SearchStrategy[Any]:
    """[rows, 1], int64 or float64, or a literal."""
    real = leveled(np.array([0.0, 1.0, 2.5, 0.5, -0.5, 0.9, 3.0]), (rows, 1))
    return st.one_of(st.sampled_from(COUNTS), whole((rows, 1), -2, 9), real)


@st.composite
def queries(draw: st.DrawFn, size: Sizes) -> Query:
    """The canvas with more of it masked, now and then without some of its positions."""
    x = draw(canvases(size))
    absent = draw(st.one_of(st.none(), planes(x.tokens.shape)))
    return Query(x.tokens, x.masked | draw(planes(x.tokens.shape)), None, None, absent, x)


VALUES = {
    "canvas": canvases,
    "query": queries,
    "logits": lambda size: logits(tuple(size)),
    "probs": lambda size: probabilities(tuple(size)),
    "conf": lambda size: leveled(CONFS, size[:2]),
    "scores": lambda size: scores(size[:2]),
    "tokens": lambda size: whole(size[:2], 0, size.vocab - 1),
    "selection": lambda size: planes(size[:2]),
    "count": lambda size: counts(size.rows),
    "flag": lambda size: st.one_of(st.booleans(), planes((size.rows, 1))),
}

# An op whose meaning takes less than its kinds say.
SPECIAL = {
    "linear_rate.clock": lambda size: st.one_of(st.integers(0, 15), whole((size.rows, 1), 0, 15)),
    "linear_quota.clock": lambda size: st.one_of(st.integers(0, 15), whole((size.rows, 1), 0, 15)),
    "linear_quota.masks": lambda size: st.one_of(st.integers(0, 99), whole((size.rows, 1), 0, 600)),
}

SETTINGS = {
    "const.value": lambda size: st.one_of(st.booleans(), st.sampled_from(COUNTS)),
    "fill.kind": lambda size: st.sampled_from([name for name, kind in KINDS.items() if kind.axes and name != "conf"]),
    "fill.value": lambda size: st.sampled_from([0, 1, True, False, 0.0, 0.1, 2.5, 1e300, 30]),
    "size": lambda size: st.one_of(st.none(), st.integers(1, size.length + 1)),
    "steps": lambda size: st.sampled_from([1, 2, 3, 5, 8, 12, 128, 512]),
    "eps": lambda size: st.sampled_from([0.0, 1e-3, 0.25]),
    "temperature": lambda size: st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    "crossing": lambda size: st.booleans(),
    "penalty": lambda size: st.sampled_from([1.0, 1.5, 0.5]),
    "p": lambda size: st.sampled_from([None, 0.123, 0.377, 0.61, 0.913, 0.9997, 1.0]),
    "k": lambda size: st.one_of(st.none(), st.integers(1, size.vocab + 1)),
    "floor": lambda size: st.sampled_from([1e-12, 1e-3]),
    "exponent": lambda size: st.sampled_from([0.2, 1.0, 3.0]),
    "amount": lambda size: st.sampled_from([0.0, 0.5, 1.5]),
    "ids": lambda size: st.lists(st.integers(0, size.vocab - 1), max_size=3).map(tuple),
}


class Typed(NamedTuple):
    kind: Kind


class Case(NamedTuple):
    """One call of an op: `values` in batch form; Python numbers are literals."""

    op: Op
    rows: int
    kinds: list[Kind | None]
    values: list[Any]
    attrs: dict[str, Any]

    def numpy(self, row: int | None = None) -> Any:
        """The numpy meaning on one row, or on the batch."""
        data = [reference_form(value, self.rows, row) for value in self.values]
        with np.errstate(all="ignore"):
            out = self.call(self.op.numpy, data)
        return np.broadcast_to(out, (self.rows, 1)) if row is None and not data else out

    def call(self, meaning: Any, data: list[Any]) -> Any:
        typed = [None if kind is None else Typed(kind) for kind in self.kinds]
        return call_meaning(self.op, meaning, data, self.attrs, typed)


def accepted(op: Op, attrs: dict[str, Any]) -> list[tuple[Kind, ...]]:
    """The kinds of operands that `op` takes."""
    found = []
    for kinds in itertools.product(*(operand.kinds for operand in op.operands)):
        try:
            if op.infer is not None:
                op.infer(kinds, attrs)
        except TrajspecError:
            continue
        found.append(kinds)
    return found


def setting(op: Op, name: str) -> Any:
    return SETTINGS.get(f"{op.name}.{name}") or SETTINGS[name]


@st.composite
def cases(draw: st.DrawFn, name: str) -> Case:
    """Valid calls of the op `name`. KeyError when a setting or kind of it has no strategy."""
    op, size = OPS[name], draw(sizes)
    attrs = {attribute.name: draw(setting(op, attribute.name)(size)) for attribute in op.attributes}
    kinds: list[Kind | None] = list(draw(st.sampled_from(accepted(op, attrs))))
    values = []
    for at, operand in enumerate(op.operands):
        kind = kinds[at]
        if operand.optional and draw(st.booleans()):
            kinds[at] = None
            values.append(None)
            continue
        assert kind is not None
        values.append(draw((SPECIAL.get(f"{name}.{operand.name}") or VALUES[kind.name])(size)))
    return Case(op, size.rows, kinds, values, attrs)


def reference_form(value: Any, rows: int, row: int | None) -> Any:
    """A batch value as the numpy meanings take it: the batch itself, or one row of it."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return type(value)(*(reference_form(part, rows, row) for part in value))
    if not isinstance(value, np.ndarray):
        value = np.full((rows, 1), value)
    return value.copy() if row is None else value[row].copy()


def tensors(value: Any, device: str = "cpu") -> Any:
    """A batch value as the torch meanings take it; literals stay Python numbers."""
    if isinstance(value, np.ndarray):
        return torch.tensor(value, device=device)
    if isinstance(value, tuple):
        return type(value)(*(tensors(part, device) for part in value))
    return value


def pick(value: Any, row: int) -> Any:
    """One row of a batch result in numpy; a Python number becomes [1]."""
    if isinstance(value, Query):
        return tuple(part if part is None or part is value.size else pick(part, row) for part in value)
    if isinstance(value, tuple):
        return tuple(pick(part, row) for part in value)
    if isinstance(value, torch.Tensor):
        return value[row].numpy()
    return value[row] if isinstance(value, np.ndarray) else np.asarray([value])


def same(expected: Any, got: Any, tolerance: float = 1e-9) -> None:
    """AssertionError unless both have the same shapes, types and values (reals up to `tolerance`, NaN equals NaN)."""
    if isinstance(expected, tuple):
        assert len(expected) == len(got)
        for one, other in zip(expected, got, strict=True):
            same(one, other, tolerance)
    elif isinstance(expected, np.ndarray):
        assert expected.shape == got.shape
        types = {expected.dtype.kind, got.dtype.kind}
        assert len(types) == 1, f"{expected.dtype} against {got.dtype}"
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, expected)
    else:
        assert expected == got


class NoHostReads(TorchDispatchMode):
    """Raises where a step would wait for the device, or have a shape that depends on data."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name.rstrip("_").startswith(self.READS) and not name.startswith(("equal_",)):
            raise AssertionError(f"{name} reads the device")
        if name in ("index", "index_put", "index_put_"):
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise AssertionError(f"{name} with a boolean mask reads the device")
        return func(*args, **(kwargs or {}))
