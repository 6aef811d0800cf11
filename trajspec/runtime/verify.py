"""One packed call on the present state of every row and on hypothetical ones, on the full and on cached views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ir.canvas import Canvas
from ..ir.errors import TrajspecError
from .batch import pick
from .packed import Before, Part
from .query import ask, check_logits, finish, no_numbers
from .states import Proposed, States
from .step import Recorder
from .views import Seen, at_first, spread


@dataclass
class Layout:
    """How the states of a round share a call: by kind, numbers of states (row K + entry), int64 [n]; for states on a
    refresh in the same call, its place among the refreshes; `entry` int64 [R, K]: where an entry's answer is; and on
    the host `due`, and by kind the rows of the group that the states belong to."""

    kinds: dict[str, Tensor]
    sources: dict[str, Tensor]
    entry: Tensor
    due: list[bool]
    owners: dict[str, list[int]]

    @property
    def states(self) -> list[int]:
        """How many states each row of the group has in the call, the root included."""
        rows = [row for owners in self.owners.values() for row in owners]
        return [rows.count(row) for row in range(len(self.due))]

    def cost(self, sizes: Mapping[str, tuple[int, int]]) -> list[tuple[int, int]]:
        """(rows, positions) of each row of the group, from those of one state of each kind."""
        found = [[0, 0] for _ in self.due]
        # A row that stores finished blocks ahead pays for it once, with its first state on them.
        owners = self.owners | ({"store": sorted(set(self.owners["child"]))} if "store" in sizes else {})
        for kind, rows in owners.items():
            for row in rows:
                found[row] = [total + size for total, size in zip(found[row], sizes[kind], strict=True)]
        return [(rows, positions) for rows, positions in found]


@dataclass
class Evaluated:
    """The table of one round, K entries a row; entry 0 is the root's. The torch counterpart of `ir.ahead.Table`.

    `width`, `drafted` int64 [R]: states asked for, and hypothetical ones that were in the call; `exists`, `stale` bool
    [R, K]; `entry` int64 [R, K]: where in `logits` [N, L, V] (one a query) an entry's answer is; `keys`, `tokens`,
    `masked` as in `Proposed`; `bad`, `empty` bool [R, L]: where the root's logits are no numbers; `sizes`: the rows and
    positions of one state of each kind.
    """

    width: Tensor
    drafted: Tensor
    exists: Tensor
    stale: Tensor
    entry: Tensor
    logits: list[Tensor]
    keys: tuple[Tensor, ...]
    tokens: Tensor
    masked: Tensor
    bad: Tensor
    empty: Tensor
    sizes: dict[str, tuple[int, int]]
    opened: Opened | None = None


@dataclass
class Opened:
    """What a round kept ahead for later blocks: `rows` int64 [n] of the batch, in `store` until the walk says which of
    them the trajectory went through. A refresh gives `before` [n, V] as in `Kept.before`; in the block-causal view
    finished blocks were stored, as they are in `canvas` before the block `where`."""

    rows: Tensor
    store: Any
    canvas: Canvas
    where: Tensor
    before: Tensor | None


class Verifier(States):
    """The meaning of `verify` on a batch; holds what is kept of its rows between calls."""

    def evaluate(
        self, data: Sequence[Any], group: Sequence[int], rows: Tensor | None, all_real: bool
    ) -> tuple[Evaluated, Layout]:
        """One packed call for the operands of `verify`: the rows `group` of the batch (`rows` as a tensor, None: all).

        Raises TrajspecError when the logits of a root are no numbers, or the drafter gave what no canvas can be.
        """
        proposed = self.propose(data)
        # The one read of the device before the call: which states there are, and what each needs.
        layout = self.layout(proposed.flags().tolist(), group, proposed.tokens)
        found = self.answer(proposed, layout.kinds, layout.sources, layout.entry, rows, all_real)
        if bool((found.bad | found.empty).any()):
            raise no_numbers(group, data[0], found.bad, found.empty)
        return found, layout

    def layout(self, read: Sequence[Sequence[bool]], group: Sequence[int], like: Tensor) -> Layout:
        """How the states that there are share a call, from `Proposed.flags` as read; tensors on the device of `like`.

        Raises TrajspecError for what no canvas can be.
        """
        causal = self.kept is not None and self.kept.view == "block_causal"
        width = (len(read[0]) - 2) // 3
        names = ("state",) if self.kept is None else ("refresh", "open", "window", "fresh", "child")
        kinds: dict[str, list[int]] = {name: [] for name in names}
        for row, flags in enumerate(read):
            due, wrong = flags[-2:]
            if wrong:
                raise _refused(group[row], self.vocab_size)
            for node in range(width):
                there, opens, child = (flags[part * width + node] for part in range(3))
                if there:
                    kinds[self._kind(node, due, opens, child, causal)].append(row * width + node)
        order = [number for numbers in kinds.values() for number in numbers]
        places = {number: place for place, number in enumerate(order)}
        device = like.device

        def tensor(numbers: Sequence[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        sources = {}
        for name, told in (("fresh", "refresh"), ("child", "open")):
            if kinds.get(name) and kinds.get(told):
                owners = [number // width for number in kinds[told]]
                sources[name] = tensor([owners.index(number // width) for number in kinds[name]])
        entry = [places.get(number, 0) for number in range(len(read) * width)]
        return Layout(
            {name: tensor(numbers) for name, numbers in kinds.items() if numbers}, sources,
            tensor(entry).view(len(read), width), [row[-2] for row in read],
            {name: [number // width for number in numbers] for name, numbers in kinds.items() if numbers},
        )  # fmt: skip

    def _kind(self, node: int, due: bool, opens: bool, child: bool, causal: bool) -> str:
        """What a state needs: a refresh of its row; the refresh that opens a later block; a window on the row's cache
        as it was, or on one of these two refreshes."""
        if self.kept is None:
            return "state"
        if due and node == 0:
            return "refresh"
        if opens:
            return "child" if causal else "open"  # it needs no refresh there, only that the blocks before it are stored
        return "child" if child else "fresh" if due else "window"

    def answer(
        self,
        proposed: Proposed,
        kinds: Mapping[str, Tensor],
        sources: Mapping[str, Tensor],
        entry: Tensor,
        rows: Tensor | None,
        all_real: bool,
    ) -> Evaluated:
        """The packed call, and the table it makes; nothing is read from the device (but by block_causal's store pass).

        `kinds`, `sources` and `entry` as in `Layout`, `rows` as in `evaluate`.
        """
        opened: Opened | None = None
        if self.kept is None:
            logits, bad, empty, sizes = self._full(pick(proposed.nodes, kinds["state"]), all_real)
        else:
            logits, bad, empty, sizes, opened = self._cached(proposed, kinds, sources, rows)
        lost = (bad | empty).any(-1).index_select(0, entry.flatten()).unflatten(0, tuple(entry.shape))
        return Evaluated(
            proposed.asked, proposed.exists.sum(-1) - 1, proposed.exists & ~lost, proposed.stale, entry, logits,
            proposed.keys, proposed.tokens, proposed.masked, bad.index_select(0, entry[:, 0]),
            empty.index_select(0, entry[:, 0]), sizes, opened,
        )  # fmt: skip

    def _full(
        self, mine: Sequence[Any], all_real: bool
    ) -> tuple[list[Tensor], Tensor, Tensor, dict[str, tuple[int, int]]]:
        """Logits of all states on the whole canvas, where they are no numbers, and what each state cost."""
        recorder = Recorder(self.model)
        predict_mask = self.forward.attributes["predict_mask"]
        logits, bad, empty = ask(recorder, self.arguments(mine), predict_mask, all_real=all_real)
        count = len(logits[0])
        return logits, bad, empty, {"state": (recorder.rows // count, recorder.positions // count)}

    def _cached(
        self, proposed: Proposed, kinds: Mapping[str, Tensor], sources: Mapping[str, Tensor], rows: Tensor | None
    ) -> tuple[list[Tensor], Tensor, Tensor, dict[str, tuple[int, int]], Opened | None]:
        """As `_full`, on a cached view; also the refreshes of later blocks."""
        kept = self.kept
        assert kept is not None
        width = proposed.exists.shape[1]
        x, _, where = self.arguments(proposed.nodes)
        predict_mask = self.forward.attributes["predict_mask"]
        names = torch.arange(kept.store.row_count, device=where.device) if rows is None else rows
        parts: list[Part] = []
        told: list[tuple[str, Seen, Canvas, Tensor]] = []
        refreshes: dict[str, tuple[int, Tensor]] = {}
        opened: Opened | None = None
        sizes: dict[str, tuple[int, int]] = {}
        if kept.view == "block_causal" and "child" in kinds:
            opened = self._stored_ahead(x, where, names, kinds["child"], width)
            seen = kept.compose_fill(opened.rows, opened.canvas, opened.where)
            parts.append(kept.part(opened.canvas, seen, kept.ahead(), opened.rows, keep=True))
            sizes["store"] = (1, seen.columns.shape[1])
        stored = len(parts)
        for kind, index in kinds.items():
            canvas, block = pick((x,), index)[0], where.index_select(0, index)
            at, whole = names.index_select(0, index // width), kind in ("refresh", "open")
            seen = kept.compose(canvas, block, refresh=whole)
            before: Before = None
            if whole:
                refreshes[kind] = (len(parts), block)
            elif kind == "window":
                before = None if kept.before is None else kept.before.index_select(0, at)
            elif kept.view != "block_causal":
                before = _from_refresh(refreshes["refresh" if kind == "fresh" else "open"], sources[kind])
            store = kept.ahead() if kind in ("open", "child") else kept.store
            parts.append(kept.part(canvas, seen, store, at, keep=whole, before=before))
            told.append((kind, seen, canvas, block))
        answers = self.model.packed(parts)
        found: list[tuple[Tensor, ...]] = []
        for (kind, seen, canvas, block), answer, part in zip(told, answers[stored:], parts[stored:], strict=True):
            check_logits(answer, part.tokens, canvas.allowed.shape[-1])
            if kind == "refresh":
                kept.note_refresh(part.rows, at_first(answer, block))
            elif kind == "open":
                opened = Opened(part.rows, kept.ahead(), canvas, block, at_first(answer, block))
            full = answer if kind in ("refresh", "open") else spread(answer, seen)
            found.append(finish(canvas, full, seen.computed, predict_mask))
            sizes[kind] = (1, part.tokens.shape[1])
        logits, bad, empty = (torch.cat(planes) for planes in zip(*found, strict=True))
        return [logits], bad, empty, sizes, opened

    def _stored_ahead(self, x: Canvas, where: Tensor, names: Tensor, children: Tensor, width: int) -> Opened:
        """The rows with states in a later block, made ready to store the blocks before it (block_causal)."""
        kept = self.kept
        assert kept is not None
        one = {number // width: number for number in reversed(children.tolist())}
        # The finished blocks are alike in all states of a row.
        index = torch.tensor([one[row] for row in sorted(one)], device=names.device)
        rows = names.index_select(0, index // width)
        kept.ahead().put(rows, kept.store.part(rows))
        return Opened(rows, kept.ahead(), pick((x,), index)[0], where.index_select(0, index), None)

    def enter(self, opened: Opened, through: Tensor, rows: Tensor | None) -> None:
        """Keep the refreshes that the trajectory went through."""
        kept = self.kept
        assert kept is not None
        names = torch.arange(len(through), device=through.device) if rows is None else rows
        went = names[through]
        chosen = [row for row in opened.rows.tolist() if row in set(went.tolist())]
        if not chosen:
            return
        index = torch.tensor(chosen, device=through.device)
        kept.store.put(index, opened.store.part(index))
        places = torch.tensor([opened.rows.tolist().index(row) for row in chosen], device=through.device)
        if opened.before is not None:
            kept.note_refresh(index, opened.before.index_select(0, places))
        else:
            kept.note_fill(index, pick((opened.canvas,), places)[0], opened.where.index_select(0, places))


def _from_refresh(told: tuple[int, Tensor], source: Tensor) -> Any:
    """What gives a window its `before`: the logits of its row's refresh, an earlier part, at the block's start."""
    number, block = told
    return lambda out: at_first(out[number], block).index_select(0, source)


def _refused(row: int, vocab_size: int) -> TrajspecError:
    return TrajspecError(
        f"row {row}: the drafter wrote a token outside the vocabulary of {vocab_size} ids, or changed a position that "
        "was given; a draft may write ids where the canvas was masked at the start"
    )
