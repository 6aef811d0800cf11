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
from ..ir.nodes import Node, Value
from ..ir.plan import Plan
from ..ir.query import Query
from .batch import map_leaves, pick
from .meanings.canvas import stopped
from .packed import Before, Part
from .query import ask, check_logits, finish, no_numbers
from .step import Recorder, evaluate
from .views import Kept, Seen, first_of, next_cache, shown, spread


@dataclass
class Evaluated:
    """The table of one round, K entries a row; entry 0 is the root's. The torch counterpart of `ir.ahead.Table`.

    `width`, `drafted` int64 [R]: states asked for, and hypothetical ones that were in the call; `rows`, `positions`
    int64 [R]: of the call, row by row; `due` bool [R]: rows whose root was a refresh. `exists`, `stale` bool [R, K];
    `entry` int64 [R, K]: where in `logits` [N, L, V] (one a query) an entry's answer is; `keys`: what its view is,
    tensors [R, K, ...]; `tokens` and `masked` [R, K, L] its canvas.
    """

    width: Tensor
    drafted: Tensor
    rows: Tensor
    positions: Tensor
    due: Tensor
    exists: Tensor
    stale: Tensor
    entry: Tensor
    logits: list[Tensor]
    keys: tuple[Tensor, ...]
    tokens: Tensor
    masked: Tensor
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

    def __init__(self, verify: Node, model: Any, x: Canvas) -> None:
        self.model = model
        self.base: Plan = verify.attributes["of"]
        self.forward = ahead.forward_of(self.base)
        self.lookahead: str = verify.attributes["lookahead"]
        self.kept: Kept | None = None
        self.spare: Any = None
        if self.forward.op.name == "forward_cached":
            attrs = self.forward.attributes
            self.kept = Kept(model, x, attrs["view"], attrs["size"])

    def evaluate(self, data: Sequence[Any], group: Sequence[int], rows: Tensor | None, all_real: bool) -> Evaluated:
        """One packed call for the operands of `verify`: the rows `group` of the batch (`rows` as a tensor, None: all).

        Raises TrajspecError when the logits of a root are no numbers, or the drafter gave what no canvas can be.
        """
        *values, draft, held = data
        known = ahead.split(self.base, values)
        x: Canvas = known[self.base.carried[0]]
        count = len(x.tokens)
        draft, wrong = _checked(x, draft, held)
        asked = 1 + draft.exists.sum(-1)
        tokens = torch.cat([x.tokens[:, None], torch.where(draft.masked, x.mask_id[..., None], draft.tokens)], 1)
        masked = torch.cat([x.masked[:, None], draft.masked], 1)
        exists = torch.cat([torch.ones_like(x.done), draft.exists], 1)
        width = exists.shape[1]
        everyone = torch.arange(count, device=exists.device).repeat_interleave(width)
        nodes = self._states(known, everyone, tokens.flatten(0, 1), masked.flatten(0, 1))
        if ahead.ends_full(self.base):
            exists = exists & masked.any(-1)
        if ahead.ends_at_stop(self.base):
            exists = exists & ~stopped(nodes[self.base.carried[0]]).unflatten(0, (count, width))[..., 0]
        stale = torch.zeros_like(exists)
        opening = torch.zeros_like(exists)
        if self.kept is not None:
            nodes, kept, stale, opening = self._epochs(known, nodes, exists)
            exists = exists & kept
        keys = tuple(part.unflatten(0, (count, width)) for part in self.key(self.arguments(nodes), nodes))
        exists = exists & ~_repeated(keys, exists)
        # The one read of the device before the call: which states there are.
        read = torch.cat([exists, wrong[:, None]], 1).tolist()
        _refuse(read, group, x.allowed.shape[-1])
        flat = [number for number, there in enumerate(there for row in read for there in row[:-1]) if there]
        chosen = torch.tensor(flat, device=exists.device)
        mine = {value: pick((data,), chosen)[0] for value, data in nodes.items()}
        owner = everyone.index_select(0, chosen)
        if self.kept is None:
            logits, bad, empty, sizes = self._full(mine, all_real)
            due, opened = torch.zeros_like(x.done[:, 0]), None
        else:
            flags = (opening.flatten().index_select(0, chosen), stale.flatten().index_select(0, chosen))
            logits, bad, empty, sizes, due, opened = self._cached(mine, owner, chosen % width == 0, rows, flags)
        is_root = chosen % width == 0
        lost = (bad | empty).any(-1)
        if bool((lost & is_root).any()):
            raise no_numbers(group, x, bad[is_root], empty[is_root])
        order = torch.arange(len(flat), device=exists.device)
        entry = torch.zeros(count * width, dtype=torch.int64, device=exists.device).scatter(0, chosen, order)
        gone = torch.zeros(count * width, dtype=torch.bool, device=exists.device).scatter(0, chosen, lost)
        ones = torch.zeros(count, dtype=torch.int64, device=exists.device)
        cost_rows, cost_positions = (ones.index_add(0, owner, size) for size in sizes)
        drafted = exists.sum(-1) - 1
        return Evaluated(
            asked, drafted, cost_rows, cost_positions, due, exists & ~gone.unflatten(0, (count, width)), stale,
            entry.unflatten(0, (count, width)), logits, keys, tokens, masked, opened,
        )  # fmt: skip

    def _states(self, known: Mapping[Value, Any], owner: Tensor, tokens: Tensor, masked: Tensor) -> dict[Value, Any]:
        """The base's values in hypothetical states [N, ...]: their canvases, and for the rest what their row has."""
        first = self.base.carried[0]
        mine = {value: pick((data,), owner)[0] for value, data in known.items()}
        mine[first] = mine[first]._replace(tokens=tokens, masked=masked)
        return mine

    def arguments(self, known: Mapping[Value, Any]) -> list[Any]:
        """The operands of the base's forward in the state `known`."""
        table = evaluate([arg for arg in self.forward.args if arg is not None], known)
        return [None if arg is None else table[arg] for arg in self.forward.args]

    def key(self, arguments: Sequence[Any], known: Mapping[Value, Any]) -> tuple[Tensor, ...]:
        """What the model's answer to these `arguments` is a function of, as in `ir.opset.verify.view_key`."""
        if self.kept is None:
            parts = []
            for query in arguments:
                mask_id = known[self.base.carried[0]].mask_id
                parts.append(torch.where(query.masked, mask_id, query.tokens))
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
        self, mine: Mapping[Value, Any], all_real: bool
    ) -> tuple[list[Tensor], Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Logits of all states on the whole canvas, where they are no numbers, and what each state cost."""
        recorder = Recorder(self.model)
        predict_mask = self.forward.attributes["predict_mask"]
        logits, bad, empty = ask(recorder, self.arguments(mine), predict_mask, all_real=all_real)
        count = len(logits[0])
        each = torch.ones(count, dtype=torch.int64, device=bad.device)
        return logits, bad, empty, (each * (recorder.rows // count), each * (recorder.positions // count))

    # Cached views: windows on what is kept, and refreshes.

    def _epochs(
        self, known: Mapping[Value, Any], nodes: dict[Value, Any], exists: Tensor
    ) -> tuple[dict[Value, Any], Tensor, Tensor, Tensor]:
        """The states with the cache that each has; which can be evaluated, which under a stale cache, which open a
        later block, bool [R, K]. As `ir.opset.verify._hypothetical`."""
        first, cache_value, where_value = self.base.carried[0], self.forward.args[1], self.forward.args[2]
        assert cache_value is not None and where_value is not None
        if cache_value not in self.base.carried:
            raise TrajspecError(f"plan {self.base.name}: its cache must be a carried value to be speculated")
        count, width = exists.shape
        x: Canvas = nodes[first]
        length = x.tokens.shape[-1]
        where = evaluate([where_value], nodes)[where_value]
        here = where.unflatten(0, (count, width))[:, 0].repeat_interleave(width, 0)
        root: Cache = known[cache_value]
        now: Canvas = known[first]
        held = map_leaves(lambda leaf: leaf.repeat_interleave(width, 0), next_cache(now, root, here[::width]))
        before = nodes[cache_value]
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
            chosen = opens.to(torch.uint8).argmax(-1)

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
        nodes = dict(nodes) | {cache_value: cache}
        return nodes, keep.unflatten(0, (count, width)), stale, opening

    def _cached(
        self, mine: dict[Value, Any], owner: Tensor, is_root: Tensor, rows: Tensor | None, flags: tuple[Tensor, Tensor]
    ) -> tuple[list[Tensor], Tensor, Tensor, tuple[Tensor, Tensor], Tensor, Opened | None]:
        """As `_full`, on a cached view; also which roots were refreshes, and the refreshes of later blocks."""
        kept = self.kept
        assert kept is not None
        opens, stale = flags
        x, cache, where = self.arguments(mine)
        predict_mask = self.forward.attributes["predict_mask"]
        due = (cache.where != where).any(-1) & ~stale & (kept.view != "block_causal")
        kinds = self._sorted(mine, owner, is_root & due, opens, where)
        device = owner.device
        names = torch.arange(kept.store.row_count, device=device) if rows is None else rows
        parts: list[Part] = []
        layout: list[tuple[str, Tensor, Seen, Canvas, Tensor]] = []
        refreshes: dict[str, tuple[int, Tensor, list[int]]] = {}
        opened: Opened | None = None
        if kept.view == "block_causal" and kinds["child"]:
            opened = self._stored_ahead(x, where, owner, names, kinds["child"])
            seen = kept.compose_fill(opened.rows, opened.canvas, opened.where)
            parts.append(kept.part(opened.canvas, seen, self.spare, opened.rows, keep=True))
        stored = len(parts)
        for kind, numbers in kinds.items():
            if not numbers:
                continue
            index = torch.tensor(numbers, device=device)
            canvas, block = pick((x,), index)[0], where.index_select(0, index)
            theirs = owner.index_select(0, index)
            at, whole = names.index_select(0, theirs), kind in ("refresh", "open")
            seen = kept.compose(canvas, block, refresh=whole)
            before: Before = None
            if whole:
                refreshes[kind] = (len(parts), block, theirs.tolist())
            elif kind == "window":
                before = None if kept.before is None else kept.before.index_select(0, at)
            elif kept.view != "block_causal":
                before = _from_refresh(refreshes["refresh" if kind == "fresh" else "open"], theirs.tolist(), device)
            store = self._spare() if kind in ("open", "child") else kept.store
            parts.append(kept.part(canvas, seen, store, at, keep=whole, before=before))
            layout.append((kind, index, seen, canvas, block))
        answers = self.model.packed(parts)
        bad, empty, positions = torch.zeros_like(x.masked), torch.zeros_like(x.masked), torch.zeros_like(owner)
        logits = answers[0].new_zeros((len(owner), x.tokens.shape[1], answers[0].shape[-1]))
        for (kind, index, seen, canvas, block), answer, part in zip(
            layout, answers[stored:], parts[stored:], strict=True
        ):
            check_logits(answer, part.tokens, x.allowed.shape[-1])
            if kind == "refresh":
                kept.note_refresh(part.rows, first_of(answer, block))
            elif kind == "open":
                opened = Opened(part.rows, self.spare, canvas, block, first_of(answer, block))
            full = answer if kind in ("refresh", "open") else spread(answer, seen)
            done, nan_here, empty_here = finish(canvas, full, seen.computed, predict_mask)
            logits = logits.index_copy(0, index, done)
            bad, empty = bad.index_copy(0, index, nan_here), empty.index_copy(0, index, empty_here)
            positions = positions.index_copy(0, index, torch.full_like(index, part.tokens.shape[1]))
        count = torch.ones_like(owner)
        if stored and opened is not None:
            # The store pass of a row is counted with its root.
            paid = is_root & torch.isin(names.index_select(0, owner), opened.rows)
            count, positions = count + paid, positions + paid * parts[0].tokens.shape[1]
        return [logits], bad, empty, (count, positions), (is_root & due)[is_root], opened

    def _stored_ahead(self, x: Canvas, where: Tensor, owner: Tensor, names: Tensor, children: Sequence[int]) -> Opened:
        """The rows with states in a later block, made ready to store the blocks before it (block_causal)."""
        kept = self.kept
        assert kept is not None
        owners = owner.tolist()
        one = {owners[number]: number for number in reversed(children)}  # the finished blocks are alike in all of them
        index = torch.tensor([one[row] for row in sorted(one)], device=owner.device)
        rows = names.index_select(0, owner.index_select(0, index))
        self._spare().put(rows, kept.store.part(rows))
        return Opened(rows, self.spare, pick((x,), index)[0], where.index_select(0, index), None)

    def _spare(self) -> Any:
        """Where refreshes of later blocks go until the walk has passed them."""
        assert self.kept is not None
        if self.spare is None:
            self.spare = self.model.new_store(self.kept.store.row_count, self.kept.length)
        return self.spare

    def _sorted(
        self, mine: Mapping[Value, Any], owner: Tensor, due: Tensor, opens: Tensor, where: Tensor
    ) -> dict[str, list[int]]:
        """The states by what they need: a refresh of their row; a refresh that opens a later block; a window on the
        row's cache as it was, or on one of these two refreshes. In an order in which each finds what it needs."""
        child = self._children(mine, owner, opens, where)
        kinds: dict[str, list[int]] = {"refresh": [], "open": [], "window": [], "fresh": [], "child": []}
        flags = torch.stack([owner, due, opens, child]).tolist()
        refreshed = {row for row, is_due in zip(flags[0], flags[1], strict=True) if is_due}
        for number, (row, is_due, is_open, is_child) in enumerate(zip(*flags, strict=True)):
            named = "refresh" if is_due else "open" if is_open else "child" if is_child else "window"
            if named == "open" and self.kept is not None and self.kept.view == "block_causal":
                named = "child"  # it needs no refresh, only that the blocks before it are stored
            kinds["fresh" if named == "window" and row in refreshed else named].append(number)
        return kinds

    def _children(self, mine: Mapping[Value, Any], owner: Tensor, opens: Tensor, where: Tensor) -> Tensor:
        """bool [N]: states that stand on the refresh of a later block, for which their cache was made."""
        cache_value = self.forward.args[1]
        assert cache_value is not None
        cache: Cache = mine[cache_value]
        starts = torch.cat([torch.full_like(owner[:1], -1), owner[:-1]]) != owner
        root = torch.where(starts, torch.arange(len(owner), device=owner.device), 0).cummax(0).values
        later = (where != where.index_select(0, root)).any(-1)
        return later & (cache.where == where).all(-1) & ~opens & (self.lookahead == "exact")

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


def _from_refresh(told: tuple[int, Tensor, list[int]], owners: list[int], device: Any) -> Any:
    """What gives a window its `before`: the logits of its row's refresh, an earlier part, at the block's start."""
    number, block, rows = told
    index = torch.tensor([rows.index(owner) for owner in owners], device=device)
    return lambda out: first_of(out[number], block).index_select(0, index)


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


def _refuse(read: Sequence[Sequence[bool]], group: Sequence[int], vocab_size: int) -> None:
    for row, flags in zip(group, read, strict=True):
        if flags[-1]:
            raise TrajspecError(
                f"row {row}: the drafter wrote a token outside the vocabulary of {vocab_size} ids, or changed a "
                "position that was given; a draft may write ids where the canvas was masked at the start"
            )


def _repeated(keys: Sequence[Tensor], exists: Tensor) -> Tensor:
    """bool [R, K]: entries whose view an earlier entry of their row has."""
    width = exists.shape[1]
    same = exists[:, :, None] & exists[:, None, :]
    for key in keys:
        same = same & (key[:, :, None] == key[:, None, :]).flatten(3).all(-1)
    earlier = torch.ones(width, width, dtype=torch.bool, device=exists.device).tril(-1)
    return (same & earlier).any(-1)
