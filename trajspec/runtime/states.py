"""Hypothetical states of a batch: what is asked about each of them, and what it needs in the packed call."""

from __future__ import annotations

from collections.abc import Sequence
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
from .program import Program
from .views import Kept, next_cache, shown


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


class States:
    """The states that a plan's `verify` may be asked about, on a batch, and what is kept of its rows between calls."""

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


def _repeated(keys: Sequence[Tensor], exists: Tensor) -> Tensor:
    """bool [R, K]: entries whose view an earlier entry of their row has."""
    width = exists.shape[1]
    same = exists[:, :, None] & exists[:, None, :]
    for key in keys:
        same = same & (key[:, :, None] == key[:, None, :]).flatten(3).all(-1)
    earlier = torch.ones(width, width, dtype=torch.bool, device=exists.device).tril(-1)
    return (same & earlier).any(-1)
