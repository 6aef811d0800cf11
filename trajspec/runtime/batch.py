"""Rows become a batch and come back: padding, devices, picking rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ir.canvas import Canvas
from ..ir.errors import TrajspecError
from ..ir.kinds import KINDS, Kind
from ..ir.plan import Plan


def stack(
    rows: Sequence[Canvas], *, pad_id: int = 0, device: torch.device | str = "cpu", least: int = 0
) -> Canvas:
    """Numpy rows as one batch of tensors [R, L], padded on the right: a column is a position.

    L is the length of the longest row, and `least` at least.

    Padding has position -1, is neither masked nor free, and may not be looked at. It stands behind a row so that every
    entry lies where it lies in the row's single run, and attention adds up its keys in the same order.
    """
    length = max(least, *(row.tokens.shape[-1] for row in rows))

    def right(array: np.ndarray, fill: Any) -> np.ndarray:
        return np.concatenate([array, np.full(length - len(array), fill, array.dtype)])

    width = max(row.stop.shape[-1] for row in rows)
    full = any(row.allowed.shape[0] > 1 for row in rows)
    fields: dict[str, list[np.ndarray]] = {name: [] for name in Canvas._fields}
    for row in rows:
        missing = length - row.tokens.shape[-1]
        fields["tokens"].append(right(row.tokens, pad_id))
        fields["masked"].append(right(row.masked, False))
        fields["free"].append(right(row.free, False))
        fields["position"].append(right(np.arange(length - missing), -1))
        fields["stop"].append(np.concatenate([row.stop, np.full(width - len(row.stop), -1)]))
        allowed = row.allowed
        if full:
            allowed = np.broadcast_to(allowed, (row.tokens.shape[-1], allowed.shape[-1]))
            allowed = np.concatenate([allowed, np.ones((missing, allowed.shape[-1]), bool)])
        fields["allowed"].append(allowed)
        for name in ("start", "step", "block_step", "seed", "done", "mask_id"):
            fields[name].append(getattr(row, name))
    return Canvas(**{name: torch.from_numpy(np.stack(parts)).to(device) for name, parts in fields.items()})


def stack_inputs(
    plan: Plan,
    rows: Sequence[Canvas],
    inputs: Sequence[Mapping[str, Any]] | None,
    device: torch.device | str = "cpu",
    least: int = 0,
) -> dict[str, Tensor]:
    """Task inputs of every row as tensors with the axes of their kinds, padded on the right like the canvas.

    Raises TrajspecError for an input that one row has and another lacks, and for one of the wrong shape or type.
    """
    kinds = {value.node.attributes["name"]: value.kind for value in plan.inputs[1:]}
    names = {name for row in inputs or () for name in row}
    length = max(least, *(row.tokens.shape[-1] for row in rows))
    stacked = {}
    for name in sorted(names):
        parts = []
        for number, (row, mine) in enumerate(zip(rows, inputs or (), strict=True)):
            if name not in mine:
                raise TrajspecError(f"task input {name!r} is missing for row {number}; give one for every row")
            kind = kinds.get(name, KINDS["count"])
            value = torch.from_numpy(_input(name, number, kind, mine[name], row))
            missing = 0 if kind.axes == "1" else length - value.shape[0]
            parts.append(torch.cat([value, value.new_zeros((missing, *value.shape[1:]))]))
        stacked[name] = torch.stack(parts).to(device)
    return stacked


def _input(name: str, number: int, kind: Kind, given: Any, row: Canvas) -> np.ndarray:
    wanted: dict[str, tuple[int, ...]] = {
        "1": (1,), "L": row.tokens.shape, "LV": (*row.tokens.shape, row.allowed.shape[-1])
    }  # fmt: skip
    try:
        value = np.asarray(given.tolist() if hasattr(given, "tolist") else given)
        value = value.reshape(1) if kind.axes == "1" else value
        if kind.name in ("selection", "flag") and not np.isin(value, (0, 1)).all():
            raise ValueError
        value = value.astype(bool if kind.name in ("selection", "flag") else np.result_type(value, np.int64))
        if kind.name == "tokens" and value.dtype != np.int64:
            raise ValueError
    except (TypeError, ValueError):
        raise TrajspecError(
            f"task input {name!r} of row {number} is {given!r:.80}, expected {kind}: {kind.sentence}"
        ) from None
    if value.shape != wanted[kind.axes]:
        raise TrajspecError(
            f"task input {name!r} of row {number} has shape {list(value.shape)}, expected {list(wanted[kind.axes])} "
            f"({kind}; the canvas has {row.tokens.shape[-1]} positions)"
        )
    return value


def unstack(batch: Canvas, row: int) -> Canvas:
    """Row `row` as numpy arrays, without its padding. Reads the device."""
    arrays = {name: getattr(batch, name)[row].cpu().numpy() for name in Canvas._fields}
    real = arrays["position"] >= 0
    for name in ("tokens", "masked", "free", "position"):
        arrays[name] = arrays[name][real]
    if arrays["allowed"].shape[0] > 1:
        arrays["allowed"] = arrays["allowed"][real]
    return Canvas(**arrays)


def map_leaves(function: Any, *values: Any) -> Any:
    """`function` on the tensors of values that are tensors, or canvases or caches of tensors."""
    if isinstance(values[0], tuple):  # a canvas, a cache, what is held
        return type(values[0])(*(function(*leaves) for leaves in zip(*values, strict=True)))
    return function(*values)


def pick(values: Sequence[Any], rows: Tensor) -> tuple[Any, ...]:
    """The rows `rows` (int64 [n]) of carried values."""
    return tuple(map_leaves(lambda leaf: leaf.index_select(0, rows), value) for value in values)


def of_rows(
    bound: Mapping[Any, Any], carried: Sequence[Any], rows: Tensor | None
) -> tuple[tuple[Any, ...], dict[Any, Any]]:
    """Carried values and bound inputs of the rows `rows` (int64 [n]) of a batch; None: of all."""
    if rows is None:
        return tuple(carried), dict(bound)
    return pick(carried, rows), {value: pick((data,), rows)[0] for value, data in bound.items()}


def keep(rows: Tensor, new: Any, old: Any) -> Any:
    """`new` in the rows `rows` (bool [R]) and `old` in the others, in the type of `new`."""

    def one(fresh: Tensor, before: Tensor) -> Tensor:
        if fresh is before:
            return fresh
        return torch.where(rows.reshape(-1, *[1] * (fresh.dim() - 1)), fresh, before.to(fresh.dtype))

    return map_leaves(one, new, old)


def differs(x: Canvas, y: Canvas) -> Tensor:
    """bool [R, L]: where two canvases differ in token or mask."""
    return (x.tokens != y.tokens) | (x.masked != y.masked)


def first_of(flags: Tensor) -> Tensor:
    """int64 [...]: where the first set flag of the last axis is, 0 where none is."""
    # No argmax: which of equals it takes is left open on some devices, and torch.compile got one of bytes wrong.
    size = flags.shape[-1]
    places = torch.arange(size, device=flags.device)
    return torch.where(flags, places, size).amin(-1) % size


def put(values: Sequence[Any], rows: Tensor, parts: Sequence[Any]) -> tuple[Any, ...]:
    """Carried values with `parts` in the rows `rows`."""

    def one(leaf: Tensor, part: Tensor) -> Tensor:
        return leaf.to(part.dtype).index_copy(0, rows, part)

    return tuple(map_leaves(one, value, part) for value, part in zip(values, parts, strict=True))
