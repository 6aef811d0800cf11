"""Keys and values of whole canvases, kept between calls in buffers that never move and never grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trajspec.ir.errors import TrajspecError


class Store:
    """One pair of buffers [R, H, S, D] a layer, S = `length` + 1: a slot for every canvas entry and a scratch slot.

    A call writes the keys and values of its window into the slots it names, row by row, and reads all slots. Slots say
    where something lies, positions say where it stands in the text: padded rows, and rows at different blocks,
    share a call. The scratch slot, number `length`, takes what must not be kept (queries that only pad a window); no
    query ever sees it. `positions` int64 [R, S] are those of what was last written into each slot.

    Keys are held as the network rotated them: an entry keeps its position for as long as it keeps its slot.

    With `index` int64 [n] (no repeats) it stands for those rows of the buffers, in that order: see `part`.
    """

    def __init__(
        self, keys: Sequence[Tensor], values: Sequence[Tensor], positions: Tensor, index: Tensor | None = None
    ) -> None:
        self.keys, self.values, self.index = tuple(keys), tuple(values), index
        self._positions = positions

    @classmethod
    def empty(
        cls, *, layers: int, rows: int, heads: int, length: int, depth: int, dtype: torch.dtype, device: torch.device
    ) -> Store:
        """Zeros: a slot that was never written must hold a finite number, since hiding it multiplies it by zero.

        Raises TrajspecError for a number of rows or a length below 1.
        """
        if rows < 1 or length < 1:
            raise TrajspecError(f"a store needs rows and a length of 1 or more, got {rows} and {length}")

        def buffers() -> list[Tensor]:
            return [torch.zeros(rows, heads, length + 1, depth, dtype=dtype, device=device) for _ in range(layers)]

        return cls(buffers(), buffers(), torch.zeros(rows, length + 1, dtype=torch.int64, device=device))

    @property
    def positions(self) -> Tensor:
        """int64 [R, S]: the position of what was last written into each slot."""
        return self._positions if self.index is None else self._positions.index_select(0, self.index)

    @property
    def row_count(self) -> int:
        return self._positions.shape[0] if self.index is None else self.index.shape[0]

    @property
    def length(self) -> int:
        """How many slots are for entries; also the number of the scratch slot."""
        return self._positions.shape[1] - 1

    def part(self, index: Tensor) -> Store:
        """The rows `index` (int64 [n], no repeats) of these same buffers: what is written to it is written here.

        A call on it writes its window alone and copies what it reads, one layer at a time.
        """
        return Store(self.keys, self.values, self._positions, self._at(index))

    def at(self, slots: Tensor, positions: Tensor) -> Window:
        """The store as one call writes it: entry i of row r, at `positions[r, i]`, goes to `slots[r, i]`.

        Both int64 [R, W]. In a row every slot but the scratch slot is named at most once, else which entry stays is
        undefined; slots from 0 to `length`. The values are not looked at, since that would read the device.
        """
        if self.index is None:
            self._positions.scatter_(1, slots, positions)
        else:
            self._positions[self.index[:, None], slots] = positions
        return Window(self, slots)

    def hide_scratch(self, keys: Tensor) -> Tensor:
        """`keys` bool [..., S] with the scratch slot taken out."""
        return keys & (torch.arange(keys.shape[-1], device=keys.device) < self.length)

    def rows(self, index: Tensor) -> Store:
        """A new store of copies of the rows `index` (int64 [n], repeats allowed), in that order."""
        index = self._at(index)
        return Store(
            [keys.index_select(0, index) for keys in self.keys],
            [values.index_select(0, index) for values in self.values],
            self._positions.index_select(0, index),
        )

    def put(self, index: Tensor, other: Store) -> None:
        """Write the rows of `other` over the rows `index` (int64 [n], no repeats) in place; the rest stays untouched.

        Raises TrajspecError when `other` has another length or not a row for each number in `index`.
        """
        if other.length != self.length or index.shape != (other.row_count,):
            raise TrajspecError(
                f"put needs a row of length {self.length} for each of {list(index.shape)} row numbers, "
                f"got {other.row_count} rows of length {other.length}"
            )
        if other.index is not None:
            other = other.rows(torch.arange(other.row_count, device=index.device))
        for mine, new in zip(self._buffers(), other._buffers(), strict=True):
            mine.index_copy_(0, self._at(index), new)

    def _at(self, index: Tensor) -> Tensor:
        return index if self.index is None else self.index.index_select(0, index)

    def _buffers(self) -> tuple[Tensor, ...]:
        return (*self.keys, *self.values, self._positions)


@dataclass(frozen=True)
class Fork:
    """Rows of a `Store` for hypothetical states: what a call writes goes into copies and is gone with the call.

    `index` int64 [n] names rows of `store`, repeats allowed: several states of one row share what is kept of it.
    """

    store: Store
    index: Tensor
    slots: Tensor
    positions: Tensor
    layout: str = "rows"

    @classmethod
    def at(cls, store: Store, index: Tensor, slots: Tensor, positions: Tensor, layout: str = "rows") -> Fork:
        """The fork as one call writes it: entry i of state n, at `positions[n, i]`, goes to `slots[n, i]`.

        `layout`: how states of one row share what is kept of it (`runtime.packing`); of several rows each has copies.
        """
        rows = store._at(index)
        one = len(store._positions) == 1
        told = store._positions.index_select(0, rows).scatter_(1, slots, positions)
        return cls(store, rows, slots, told, layout if one else "rows")

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Copies [n, H, S, D] of the rows' keys and values of `layer` with this call's in their slots."""
        index = self.slots[:, None, :, None].expand(key.shape)
        keys = self.store.keys[layer].index_select(0, self.index).scatter_(2, index, key)
        values = self.store.values[layer].index_select(0, self.index).scatter_(2, index, value)
        return keys, values


@dataclass(frozen=True)
class Window:
    """A `Store` and the slots that one call writes; this is what attention layers see."""

    store: Store
    slots: Tensor

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write [R, H, W, D] keys and values of `layer` into the slots; the whole rows, each [R, H, S, D]."""
        keys, values, rows = self.store.keys[layer], self.store.values[layer], self.store.index
        # In place, so that a captured graph finds the same storage at every replay.
        if rows is None:
            index = self.slots[:, None, :, None].expand(key.shape)
            keys.scatter_(2, index, key)
            values.scatter_(2, index, value)
            return keys, values
        at = (rows[:, None], self.slots)
        keys.transpose(1, 2)[at] = key.transpose(1, 2)
        values.transpose(1, 2)[at] = value.transpose(1, 2)
        return keys.index_select(0, rows), values.index_select(0, rows)
