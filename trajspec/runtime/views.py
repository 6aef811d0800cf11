"""Cached views on tensors: calls on a block of each row, in the midst of the keys and values kept of the rest."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ir.canvas import Cache, Canvas
from ..ir.errors import TrajspecError
from .batch import first_of
from .packed import Before, Part
from .query import finish, front


class Seen(NamedTuple):
    """What one call computes of each row: `columns` int64 [n, W] of the canvas, of which `exists` are meant; `keys`
    bool [n, S] or, entry by entry, [n, W, S], the slots that it reads; `computed` bool [n, L], where logits count."""

    columns: Tensor
    exists: Tensor
    keys: Tensor
    computed: Tensor


def shown(x: Canvas) -> Tensor:
    """int64 [..., L]: the ids that a model is shown."""
    return torch.where(x.masked, x.mask_id, x.tokens)


def spread(logits: Tensor, seen: Seen) -> Tensor:
    """Logits [n, W, V] of a window at their places on the canvas, [n, L, V]; NaN elsewhere."""
    out = logits.new_full((*seen.computed.shape, logits.shape[-1]), math.nan)
    out = out.scatter(1, seen.columns[..., None].expand_as(logits), logits)
    return out.masked_fill(~seen.computed[..., None], math.nan)


def at_first(logits: Tensor, where: Tensor) -> Tensor:
    """The logits [n, V] at the first entry of the block `where`, from those of a whole canvas [n, L, V]."""
    first = first_of(where)
    return logits.gather(1, first[:, None, None].expand(-1, 1, logits.shape[-1]))[:, 0]


class Kept:
    """What is kept of a batch's rows between calls. `rows` int64 [n] in the methods says which rows of the batch are
    meant; None: all, in their order."""

    def __init__(self, model: Any, x: Canvas, view: str, size: int | None) -> None:
        if not getattr(model, "supports_cache", False):
            name = getattr(model, "name", type(model).__name__)
            raise TrajspecError(
                f"view {view} works on stored keys and {name} cannot: decode with a plan of the full view "
                "(a bare denoiser goes in as_model(...))"
            )
        count, self.length = x.tokens.shape
        self.model, self.view = model, view
        #: Whether raw logits predict the next entry.
        self.shifted: bool = getattr(getattr(model, "denoise", None), "shifted", False)
        self.size = min(size or self.length, self.length)
        self.store, self.spare = model.new_store(count, self.length), None
        self._new_store = model.new_store
        # Logits of the block's first entry at the last refresh, for families whose logits are shifted.
        self.before: Tensor | None = None
        # block_causal: how many blocks are stored, and from which tokens.
        self.filled, self.stored = torch.zeros_like(x.start[:, 0]), torch.full_like(x.tokens, -1)

    def ahead(self) -> Any:
        """A store of the same size, where what opens later blocks goes until the trajectory has passed it."""
        if self.spare is None:
            self.spare = self._new_store(self.store.row_count, self.length)
        return self.spare

    def tensors(self) -> list[Tensor]:
        """What calls write in place."""
        held = [*self.store.keys, *self.store.values, self.store._positions]
        return held if self.before is None else [*held, self.before]

    def refresh(self, rows: Tensor | None, x: Canvas, where: Tensor, predict_mask: bool) -> tuple[Tensor, ...]:
        """A call on the whole canvas, which is kept. Logits [n, L, V], and where they are no numbers."""
        seen = self.compose(x, where, refresh=True)
        logits = self._call(rows, x, seen.columns, seen.exists, seen.keys, None)
        self.note_refresh(rows, at_first(logits, where))
        return finish(x, logits, seen.computed, predict_mask)

    def note_refresh(self, rows: Tensor | None, before: Tensor) -> None:
        """Keep the logits [n, V] that a refresh gave at the first entry of the block."""
        if self.before is None:
            self.before = before.new_zeros(self.store.row_count, before.shape[-1])
        # In place: a captured step finds the same storage at every replay.
        if rows is None:
            self.before.copy_(before)
        else:
            self.before.index_copy_(0, rows, before.to(self.before.dtype))

    def window(self, rows: Tensor | None, x: Canvas, where: Tensor, predict_mask: bool) -> tuple[Tensor, ...]:
        """A call on the block `where` (prefix: and all behind it). Logits [n, L, V], NaN where nothing is computed."""
        seen = self.compose(x, where, refresh=False)
        before = self.before  # block_causal has no refresh, and so none
        if before is not None and rows is not None:
            before = before.index_select(0, rows)
        logits = self._call(rows, x, seen.columns, seen.exists, seen.keys, before)
        return finish(x, spread(logits, seen), seen.computed, predict_mask)

    def compose(self, x: Canvas, where: Tensor, refresh: bool) -> Seen:
        """Which entries a call on the whole canvas, or on the block `where`, computes, and which keys it reads."""
        real = x.position >= 0
        if refresh:
            columns = torch.arange(self.length, device=real.device).expand(real.shape)
            return Seen(columns, real, self._keys(real), real)
        asked = computed = where & real
        width, keys = self.size, real
        if self.view == "prefix":
            asked = computed = real & (where.cumsum(-1) > 0)
            width = int(computed.sum(-1).max())  # a read of the device: this window has no fixed length
        elif self.view == "block_causal":
            number, opened = x.position // self.size, self._open(x, where)[:, None]
            # The whole block, also where a policy's own window is a part of it: its keys are read.
            asked, keys = real & (number == opened), real & (number <= opened)
            if self.shifted:
                # The block's first entry is predicted by the entry before it, which sees its own block and no more.
                return self._after(real & (number == opened - 1), asked, number, keys, computed)
        columns = front(asked, width)
        return Seen(columns, asked.gather(-1, columns), self._keys(keys), computed)

    def _after(self, before: Tensor, asked: Tensor, number: Tensor, keys: Tensor, computed: Tensor) -> Seen:
        """A call on a block `asked` and on the last entry of the block `before` it."""
        last = before & ~torch.nn.functional.pad(before[:, 1:], (0, 1))
        asked = asked | last
        columns = front(asked, min(self.size + 1, self.length))
        mine = number.gather(-1, columns)
        sees = keys[:, None, :] & (number[:, None, :] <= mine[:, :, None])
        return Seen(columns, asked.gather(-1, columns), self._keys(sees), computed)

    def part(self, x: Canvas, seen: Seen, store: Any, rows: Tensor, keep: bool = False, before: Before = None) -> Part:
        """The states `x` as rows of a packed call, on the rows `rows` of `store`."""
        slots = torch.where(seen.exists, seen.columns, self.length)
        tokens, positions = shown(x).gather(-1, seen.columns), x.position.gather(-1, seen.columns)
        return Part(tokens, positions, slots, seen.keys, store, rows, keep, before)

    def behind(self, x: Canvas, where: Tensor) -> Tensor:
        """bool [n]: rows that have finished blocks which are not stored yet (block_causal; x of all rows).

        A block that was stored and then changed (masked again, edited) counts as not stored, and all behind it.
        """
        number = x.position // self.size
        changed = (shown(x) != self.stored) & (number < self.filled[:, None]) & (x.position >= 0)
        self.filled = torch.where(changed, number, self.filled[:, None]).amin(-1).minimum(self.filled)
        return self.filled < self._open(x, where)

    def spans(self, x: Canvas, where: Tensor) -> Tensor:
        """bool [n]: rows whose window is no part of one block (block_causal; blocks count from position 0)."""
        number = x.position // self.size
        return (where & (number != self._open(x, where)[:, None])).any(-1)

    def fill(self, rows: Tensor | None, x: Canvas, where: Tensor) -> int:
        """Store the finished blocks of these rows, from their final tokens (block_causal); the positions it took."""
        seen = self.compose_fill(rows, x, where)
        self._call(rows, x, seen.columns, seen.exists, seen.keys, None)
        self.note_fill(rows, x, where)
        return seen.columns.numel()

    def compose_fill(self, rows: Tensor | None, x: Canvas, where: Tensor) -> Seen:
        """What a store pass computes: the finished blocks before the open one that are not stored yet."""
        number, upto = x.position // self.size, self._open(x, where)[:, None]
        done = (self.filled if rows is None else self.filled.index_select(0, rows))[:, None]
        real = x.position >= 0
        wanted = (number >= done) & (number < upto) & real
        columns = front(wanted, int(wanted.sum(-1).max()))
        mine = number.gather(-1, columns)
        keys = (number[:, None, :] <= mine[:, :, None]) & (real & (number < upto))[:, None, :]
        return Seen(columns, wanted.gather(-1, columns), self._keys(keys), wanted)

    def note_fill(self, rows: Tensor | None, x: Canvas, where: Tensor) -> None:
        """The blocks before the open one of `x` are stored now, as they are in `x`."""
        upto, tokens = self._open(x, where), shown(x)
        self.filled = upto if rows is None else self.filled.index_copy(0, rows, upto)
        self.stored = tokens if rows is None else self.stored.index_copy(0, rows, tokens)

    def _open(self, x: Canvas, where: Tensor) -> Tensor:
        number = x.position // self.size
        return torch.where(where, number, 0).amax(-1)

    @staticmethod
    def _keys(real: Tensor) -> Tensor:
        """Visible slots: the real entries, and never the scratch slot behind them."""
        return torch.cat([real, torch.zeros_like(real[..., :1])], -1)

    def _call(
        self, rows: Tensor | None, x: Canvas, columns: Tensor, exists: Tensor, keys: Tensor, before: Tensor | None
    ) -> Tensor:
        tokens = shown(x).gather(-1, columns)
        positions = x.position.gather(-1, columns)
        slots = torch.where(exists, columns, self.length)
        store = self.store if rows is None else self.store.part(rows)
        return self.model.cached(tokens, positions, slots, store, keys, before)


def next_cache(x: Canvas, cache: Cache, where: Tensor) -> Cache:
    """The cache after a forward on `x`: made anew where the block is another one."""
    due = (cache.where != where).any(-1, keepdim=True)
    return Cache(torch.where(due, x.tokens, cache.tokens), torch.where(due, x.masked, cache.masked), where)
