"""One packed call on the present state of every row and on hypothetical ones, on the full and on cached views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ir import ahead
from ..ir.ahead import Draft, Held
from ..ir.canvas import Cache, Canvas
from ..ir.errors import TrajspecError
from ..ir.nodes import Node
from ..ir.plan import Plan
from ..ir.query import Query
from .batch import first_of, map_leaves, pick
from .meanings.canvas import stopped
from .packed import Before, Part
from .program import Program
from .query import ask, check_logits, finish, no_numbers
from .step import Recorder
from .views import Kept, Seen, at_first, next_cache, shown, spread


@dataclass
class Proposed:
    """The states of one round before the call, K entries a row; entry 0 is the root.

    `asked` int64 [R]: states asked for; `exists`, `stale` bool [R, K]: states to evaluate, and those looked at under an
    older cache; `opening`, `child`: states that open a later block, and states that stand on such a one; `due` bool
    [R]: rows whose root is a refresh; `wrong` bool [R]: rows whose draft no canvas can be; `keys`: what a state's view
    is, tensors [R, K, ...]; `tokens` and `masked` [R, K, L] its canvas; `nodes`: what the base carries in it, and its
    task inputs, [R * K, ...].
    """

    asked: Tensor
    exists: Tensor
    stale: Tensor
    opening: Tensor
    child: Tensor
    due: Tensor
    wrong: Tensor
    keys: tuple[Tensor, ...]
    tokens: Tensor
    masked: Tensor
    nodes: tuple[Any, ...]

    def fields(self) -> tuple[Any, ...]:
        """What makes it anew."""
        return (
            self.asked, self.exists, self.stale, self.opening, self.child, self.due, self.wrong, self.keys, self.tokens,
            self.masked, self.nodes,
        )  # fmt: skip

    def flags(self) -> Tensor:
        """bool [R, 3 K + 2]: all that the host has to know to lay the call out."""
        return torch.cat([self.exists, self.opening, self.child, self.due[:, None], self.wrong[:, None]], 1)


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


class Verifier:
    """The meaning of `verify` on a batch; holds what is kept of its rows between calls."""

    def __init__(self, verify: Node, model: Any, x: Canvas, kept: Kept | None = None) -> None:
        self.model, self.vocab_size = model, x.allowed.shape[-1]
        self.base: Plan = verify.attributes["of"]
        self.forward = ahead.forward_of(self.base)
        self.lookahead: str = verify.attributes["lookahead"]
        self.kept: Kept | None = None
        if self.forward.op.name == "forward_cached":
            attrs = self.forward.attributes
            self.kept = kept or Kept(model, x, attrs["view"], attrs["size"])
        #: What a state of the base consists of: what it carries, then its task inputs.
        self.names = (*self.base.carried, *self.base.inputs[1:])
        self._asked = Program([arg for arg in self.forward.args if arg is not None], self.names)
        self._where: Program | None = None
        self._cache = 0
        if self.kept is not None:
            _, cache, where = self.forward.args
            assert cache is not None and where is not None
            if cache not in self.base.carried:
                raise TrajspecError(f"plan {self.base.name}: its cache must be a carried value to be speculated")
            self._where, self._cache = Program([where], self.names), self.base.carried.index(cache)

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

    def propose(self, data: Sequence[Any]) -> Proposed:
        """The states that the operands of `verify` ask for, with what each needs; reads nothing from the device."""
        *state, draft, held = data
        x: Canvas = state[0]
        count = len(x.tokens)
        draft, wrong = _checked(x, draft, held)
        tokens = torch.cat([x.tokens[:, None], torch.where(draft.masked, x.mask_id[..., None], draft.tokens)], 1)
        masked = torch.cat([x.masked[:, None], draft.masked], 1)
        exists = torch.cat([torch.ones_like(x.done), draft.exists], 1)
        width = exists.shape[1]
        everyone = torch.arange(count, device=exists.device).repeat_interleave(width)
        nodes = list(pick(state, everyone))
        nodes[0] = nodes[0]._replace(tokens=tokens.flatten(0, 1), masked=masked.flatten(0, 1))
        if ahead.ends_full(self.base):
            exists = exists & masked.any(-1)
        if ahead.ends_at_stop(self.base):
            exists = exists & ~stopped(nodes[0]).unflatten(0, (count, width))[..., 0]
        stale = opening = child = torch.zeros_like(exists)
        due = torch.zeros_like(x.done[:, 0])
        if self.kept is not None:
            nodes[self._cache], kept, stale, opening = self._epochs(state, nodes, exists)
            exists = exists & kept
        arguments = self.arguments(nodes)
        keys = tuple(part.unflatten(0, (count, width)) for part in self.key(arguments, nodes[0]))
        exists = exists & ~_repeated(keys, exists)
        if self.kept is not None:
            _, cache, where = arguments
            other = (cache.where != where).any(-1).unflatten(0, (count, width))
            if self.kept.view != "block_causal":
                due = other[:, 0] & ~stale[:, 0]
            blocks = where.unflatten(0, (count, width))
            later = (blocks != blocks[:, :1]).any(-1)
            # States that stand on the refresh of a later block, for which their cache was made.
            child = later & ~other & ~opening & (self.lookahead == "exact")
        asked = 1 + draft.exists.sum(-1)
        return Proposed(
            asked, exists, stale, opening, child, due, wrong, keys, tokens, masked, tuple(nodes)
        )

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

    def arguments(self, state: Sequence[Any]) -> list[Any]:
        """The operands of the base's forward in a state (values of `names`)."""
        found = iter(self._asked(state))
        return [None if arg is None else next(found) for arg in self.forward.args]

    def key(self, arguments: Sequence[Any], x: Canvas) -> tuple[Tensor, ...]:
        """What the model's answer to these `arguments` is a function of, as in `ir.opset.verify.view_key`."""
        if self.kept is None:
            parts = []
            for query in arguments:
                row = torch.where(query.masked, x.mask_id, query.tokens)
                if isinstance(query, Query) and query.absent is not None:
                    row = row.masked_fill(query.absent, -2)
                parts.append(row)
                if isinstance(query, Query) and query.twins is not None:
                    parts.append(query.twins)
            return tuple(parts)
        x, cache, where = arguments
        row = shown(x)
        if self.kept.view == "block_causal":
            number = x.position // self.kept.size
            return where, torch.where(number <= torch.where(where, number, -1).amax(-1, keepdim=True), row, -1)
        due = (cache.where != where).any(-1, keepdim=True)
        inside = where if self.kept.view == "dual" else where.cumsum(-1) > 0
        reference = torch.where(cache.masked, x.mask_id, cache.tokens)
        return due, where, torch.where(due | inside, row, -1), torch.where(due, -1, reference)

    def _full(
        self, mine: Sequence[Any], all_real: bool
    ) -> tuple[list[Tensor], Tensor, Tensor, dict[str, tuple[int, int]]]:
        """Logits of all states on the whole canvas, where they are no numbers, and what each state cost."""
        recorder = Recorder(self.model)
        predict_mask = self.forward.attributes["predict_mask"]
        logits, bad, empty = ask(recorder, self.arguments(mine), predict_mask, all_real=all_real)
        count = len(logits[0])
        return logits, bad, empty, {"state": (recorder.rows // count, recorder.positions // count)}

    # Cached views: windows on what is kept, and refreshes.

    def _epochs(
        self, state: Sequence[Any], nodes: Sequence[Any], exists: Tensor
    ) -> tuple[Cache, Tensor, Tensor, Tensor]:
        """The cache that each state has; which can be evaluated, which under a stale cache, which open a later block,
        bool [R, K]. As `ir.opset.verify._hypothetical`."""
        assert self._where is not None
        count, width = exists.shape
        x: Canvas = nodes[0]
        length = x.tokens.shape[-1]
        where = self._where(nodes)[0]
        here = where.unflatten(0, (count, width))[:, 0].repeat_interleave(width, 0)
        root: Cache = state[self._cache]
        now: Canvas = state[0]
        held = map_leaves(lambda leaf: leaf.repeat_interleave(width, 0), next_cache(now, root, here[::width]))
        before = nodes[self._cache]
        same = (where == here).all(-1)
        is_root = torch.zeros_like(exists)
        is_root[:, 0] = True
        is_root = is_root.flatten()
        opened = x.free & (where.cumsum(-1) > 0)
        entry_tokens = torch.where(opened, x.mask_id, x.tokens)
        entry_masked = x.masked | opened
        later = ~same & where.any(-1)
        stale = opening = torch.zeros_like(exists)
        keep = same
        cache = held
        if self.lookahead == "cheap":
            stale, keep = later.unflatten(0, (count, width)), same | later
            cache = held._replace(where=where)
        elif self.lookahead == "exact":
            alone = (entry_masked == x.masked).all(-1)
            opens = (later & alone & exists.flatten()).unflatten(0, (count, width))
            some = opens.any(-1)
            chosen = first_of(opens)

            def of_entry(plane: Tensor) -> Tensor:
                rows = plane.unflatten(0, (count, width))
                picked = rows.gather(1, chosen[:, None, None].expand(-1, 1, length))[:, 0]
                return picked.repeat_interleave(width, 0)

            mine = (entry_tokens == of_entry(shown(x))).all(-1) & some.repeat_interleave(width) & later
            itself = mine & alone
            opening = itself.unflatten(0, (count, width))
            keep = same | mine
            child = mine & ~itself

            def which(old: Tensor, inside: Tensor, entry: Tensor) -> Tensor:
                return torch.where(child[:, None], entry, torch.where(itself[:, None], old, inside))

            cache = Cache(
                which(before.tokens, held.tokens, entry_tokens), which(before.masked, held.masked, entry_masked),
                which(before.where, held.where, where),
            )  # fmt: skip
        # The root is looked at as it is: a refresh where its block is not the cache's.
        cache = map_leaves(lambda old, new: torch.where(is_root[:, None], old, new), before, cache)
        return cache, keep.unflatten(0, (count, width)), stale, opening

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


def _checked(x: Canvas, draft: Draft, held: Held) -> tuple[Draft, Tensor]:
    """The draft with states of rows that take none left out, and bool [R]: rows whose draft no canvas can be."""
    length, vocab = x.tokens.shape[-1], x.allowed.shape[-1]
    if draft.tokens.shape[-1] != length or draft.tokens.shape != draft.masked.shape:
        raise TrajspecError(
            f"the drafter gave states of shape {list(draft.tokens.shape)}, expected [rows, states, {length}]"
        )
    exists = draft.exists & ~x.done & ~held.alone
    outside = ~draft.masked & ((draft.tokens < 0) | (draft.tokens >= vocab)) & (x.position >= 0)[:, None]
    changed = ~x.free[:, None] & ((draft.tokens != x.tokens[:, None]) | draft.masked) & (x.position >= 0)[:, None]
    wrong = ((outside | changed).any(-1) & exists).any(-1)
    # As when it is committed, the mask id leaves its position masked.
    masked = draft.masked | (x.free[:, None] & (draft.tokens == x.mask_id[..., None]))
    return Draft(draft.tokens.clamp(0, vocab - 1), masked, exists), wrong


def _refused(row: int, vocab_size: int) -> TrajspecError:
    return TrajspecError(
        f"row {row}: the drafter wrote a token outside the vocabulary of {vocab_size} ids, or changed a position that "
        "was given; a draft may write ids where the canvas was masked at the start"
    )


def _repeated(keys: Sequence[Tensor], exists: Tensor) -> Tensor:
    """bool [R, K]: entries whose view an earlier entry of their row has."""
    width = exists.shape[1]
    same = exists[:, :, None] & exists[:, None, :]
    for key in keys:
        same = same & (key[:, :, None] == key[:, None, :]).flatten(3).all(-1)
    earlier = torch.ones(width, width, dtype=torch.bool, device=exists.device).tril(-1)
    return (same & earlier).any(-1)
