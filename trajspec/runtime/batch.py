"""Rows become a batch and come back: left padding, devices, picking rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ir.canvas import Canvas


def stack(rows: Sequence[Canvas], *, pad_id: int = 0, device: torch.device | str = "cpu") -> Canvas:
    """Numpy rows as one batch of tensors [R, L], L the longest row, padded on the left.

    Padding has position below 0, is neither masked nor free, and may not be looked at.
    """
    length = max(row.tokens.shape[-1] for row in rows)

    def left(array: np.ndarray, fill: Any) -> np.ndarray:
        return np.concatenate([np.full(length - len(array), fill, array.dtype), array])

    width = max(row.stop.shape[-1] for row in rows)
    full = any(row.allowed.shape[0] > 1 for row in rows)
    fields: dict[str, list[np.ndarray]] = {name: [] for name in Canvas._fields}
    for row in rows:
        missing = length - row.tokens.shape[-1]
        fields["tokens"].append(left(row.tokens, pad_id))
        fields["masked"].append(left(row.masked, False))
        fields["free"].append(left(row.free, False))
        fields["position"].append(np.arange(length) - missing)
        fields["stop"].append(np.concatenate([row.stop, np.full(width - len(row.stop), -1)]))
        allowed = row.allowed
        if full:
            allowed = np.broadcast_to(allowed, (row.tokens.shape[-1], allowed.shape[-1]))
            allowed = np.concatenate([np.ones((missing, allowed.shape[-1]), bool), allowed])
        fields["allowed"].append(allowed)
        for name in ("start", "step", "block_step", "seed", "done", "mask_id"):
            fields[name].append(getattr(row, name))
    return Canvas(**{name: torch.from_numpy(np.stack(parts)).to(device) for name, parts in fields.items()})


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
    """`function` on the tensors of values that are tensors or canvases of tensors."""
    if isinstance(values[0], Canvas):
        return Canvas(*(function(*leaves) for leaves in zip(*values, strict=True)))
    return function(*values)


def pick(values: Sequence[Any], rows: Tensor) -> tuple[Any, ...]:
    """The rows `rows` (int64 [n]) of carried values."""
    return tuple(map_leaves(lambda leaf: leaf.index_select(0, rows), value) for value in values)


def put(values: Sequence[Any], rows: Tensor, parts: Sequence[Any]) -> tuple[Any, ...]:
    """Carried values with `parts` in the rows `rows`."""

    def one(leaf: Tensor, part: Tensor) -> Tensor:
        return leaf.to(part.dtype).index_copy(0, rows, part)

    return tuple(map_leaves(one, value, part) for value, part in zip(values, parts, strict=True))
