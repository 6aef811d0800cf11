"""Speculation on tensors: rounds of one packed call on many states of a batch, and the walk through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ir import margins
from ..ir.ahead import Held
from ..ir.canvas import Canvas
from ..ir.errors import TrajspecError
from ..ir.nodes import Value, walk
from ..ir.plan import Plan
from ..ir.query import FLOOR
from .batch import differs, first_of, keep, of_rows
from .meanings import MEANINGS
from .program import Program
from .query import no_numbers
from .step import due, like, take
from .verify import Evaluated, Layout, Verifier
from .views import Kept, next_cache, shown

EXACT_WALK = {"head": "true", "key": "view", "halt": "each", "ties": "low", "adopt": False, "leave": False}


@dataclass
class Move:
    """One step of the walk: which rows made it, bool [R]; the carried values before and after it, what is held after
    it, what the model's call answers in it, and all that was computed (`Speculator.values`)."""

    went: Tensor
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    held: Held
    answers: tuple[Any, ...] = field(repr=False)
    slots: tuple[Any, ...] = field(default=(), repr=False)


@dataclass
class Round:
    """What one round did: the moves of its walk, the carried values after them, and by row of the group what it cost
    (rows, positions), the kind of its call, and how many states it had in it."""

    moves: list[Move]
    carried: tuple[Any, ...]
    costs: list[tuple[int, int]]
    kinds: list[str]
    states: list[int]

    @classmethod
    def packed(cls, moves: list[Move], carried: tuple[Any, ...], layout: Layout, sizes: Any) -> Round:
        """The round of a call in which states were laid out as `layout`."""
        states = layout.states
        # A packed call's kind is that of the row, had it run alone.
        kinds = [
            "verify" if count > 1 else "refresh" if due else "step"
            for count, due in zip(states, layout.due, strict=True)
        ]
        return cls(moves, carried, layout.cost(sizes), kinds, states)


class Speculator:
    """Runs the rounds of one speculated plan on a batch; holds what stays between them, or shares it (`kept`)."""

    def __init__(self, plan: Plan, model: Any, x: Canvas, kept: Kept | None = None) -> None:
        nodes = list(plan.nodes())
        verifies = [item for item in nodes if item.op.name == "verify"]
        walks = [item for item in nodes if item.op.name == "walk"]
        if len(verifies) != 1 or len(walks) != 1:
            raise TrajspecError(
                f"plan {plan.name} has {len(verifies)} verify and {len(walks)} walk; the runtime takes one of each: "
                "apply the pass `carry`, or run it in the reference interpreter (trajspec.run)"
            )
        self.plan, self.walk = plan, walks[0]
        flawed = {name: value for name, value in self.walk.attributes.items() if EXACT_WALK.get(name, value) != value}
        told = verifies[0].attributes
        flawed |= {name: told[name] for name, right in (("isolate", True), ("ended", False)) if told[name] != right}
        if flawed or self.walk.attributes["accept"] not in ("base", "relaxed", "subset"):
            named = flawed or {"accept": self.walk.attributes["accept"]}
            listed = ", ".join(f"{name}={value}" for name, value in named.items())
            raise TrajspecError(
                f"plan {plan.name}: {listed} is a flaw that exists for the checker; only the reference interpreter "
                "(trajspec.run) runs it"
            )
        self.verifier = Verifier(verifies[0], model, x, kept)
        self.base = self.verifier.base
        given = (*plan.carried, *plan.inputs)
        table = verifies[0].results[0]
        rest = [value for value in self.walk.args if value is not None and value is not table]
        self._operands = Program([*(value for value in verifies[0].args if value is not None), *rest], given)
        self._count, self._carries = len(verifies[0].args), len(self.base.starts)
        self._size = next((item.attributes["size"] for item in self.base.nodes() if item.op.name == "advance"), None)
        self._step = Program(self.base.step, (*self.verifier.names, *self.verifier.forward.results))
        self._final = Program(plan.step, (*given, *self.walk.results))

    def round(
        self,
        known: Mapping[Value, Any],
        carried: Sequence[Any],
        group: Sequence[int],
        rows: Tensor | None,
        all_real: bool,
    ) -> Round:
        """One round of the rows `group` of the batch (`rows` as a tensor, None: all of them).

        `known` are the plan's inputs and `carried` its values, of these rows. Raises TrajspecError when the logits of a
        root are no numbers, or the drafter gave what no canvas can be; nothing of the round is kept then.
        """
        state = (*carried, *(known[value] for value in self.plan.inputs))
        asked, rest = self.operands(state)
        table, layout = self.verifier.evaluate(asked, group, rows, all_real)
        moves, after, through = self.moves(rest, table)
        if table.opened is not None:
            self.verifier.enter(table.opened, through, rows)
        return Round.packed(moves, self.final(state, after), layout, table.sizes)

    def alone(
        self, known: Mapping[Value, Any], carried: Sequence[Any], group: Sequence[int], rows: Tensor | None,
        all_real: bool, step: Any = take,
    ) -> Iterator[tuple[list[int], Round]]:  # fmt: skip
        """The next step of the rows `group` by the base's own calls, a call for the rows to refresh and one for the
        others: numbers in the group, and what became of them. `step`: as `step.take`."""
        inputs = dict(zip(self.base.inputs, (known[value] for value in self.plan.inputs), strict=True))
        here = inputs | dict(zip(self.base.carried, carried[: self._carries], strict=True))
        kept = self.verifier.kept
        flags = [False] * len(group)
        if kept is not None and kept.view != "block_causal":
            flags = due(self.base, here).tolist()
        for refresh in (True, False):
            numbers = [number for number, flag in enumerate(flags) if flag == refresh]
            if not numbers:
                continue
            index = torch.tensor(numbers, device=carried[0].tokens.device)
            mine, inside = of_rows(inputs, carried, None if len(numbers) == len(group) else index)
            at = rows if len(numbers) == len(group) else index if rows is None else rows.index_select(0, index)
            before, held = tuple(mine[: self._carries]), mine[-1]
            out = step(self.base, self.verifier.model, inside, before, all_real, kept, at, refresh)
            if bool((out.bad | out.empty).any()):
                raise no_numbers([group[number] for number in numbers], before[0], out.bad, out.empty)
            logits = out.values[self.verifier.forward.results[0]]
            on = ~before[0].done
            held = held._replace(logits=_noted(held.logits, logits, on), alone=held.alone & False)
            answers = tuple(out.values.get(value) for value in self.verifier.forward.results)
            move = Move(on[:, 0], before, out.carried, held, answers)
            cost = [(out.rows // len(numbers), out.positions // len(numbers))] * len(numbers)
            names = ["refresh" if refresh else "step"] * len(numbers)
            yield numbers, Round([move], (*out.carried, held), cost, names, [1] * len(numbers))

    def operands(self, state: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The operands of verify, and those of walk but the table, from what the plan carries and its inputs."""
        found = self._operands(state)
        return found[: self._count], found[self._count :]

    def final(self, state: Sequence[Any], after: Sequence[Any]) -> tuple[Any, ...]:
        """What the plan carries after a round that began in `state` and whose walk gave `after`."""
        return self._final((*state, *after, None))

    def moves(
        self, operands: Sequence[Any], table: Evaluated, unrolled: bool = False
    ) -> tuple[list[Move], tuple[Any, ...], Tensor]:
        """The walk: its moves, what the base carries and what is held after it, and bool [R]: rows that went through
        the refresh of a later block. `unrolled`: as many moves as there may be, without a look at the device."""
        *values, held = operands
        inputs = tuple(values[self._carries :])
        carried = tuple(values[: self._carries])
        told = self.walk.attributes
        alive = ~carried[0].done[:, 0]
        through, alone = torch.zeros_like(alive), torch.zeros_like(alive)
        moves: list[Move] = []
        kept = self.verifier.kept
        opening_block = self.verifier.arguments(values)[2] if kept is not None else None
        held = held._replace(drafted=held.drafted + table.drafted[:, None])
        for taken in range(table.exists.shape[1]):
            now = (*carried, *inputs)
            arguments = self.verifier.arguments(now)
            at, hit = self._find(table, self.verifier.key(arguments, carried[0]), carried[0])
            alive = alive & hit & ~carried[0].done[:, 0] & (taken < table.width)
            if not unrolled and not bool(alive.any()):
                break
            entry = table.entry.gather(1, at[:, None])[:, 0]
            logits = [part.index_select(0, entry) for part in table.logits]
            outs: tuple[Any, ...] = tuple(logits)
            if kept is not None:
                x, cache, where = arguments
                after_cache = next_cache(x, cache, where)
                stale = table.stale.gather(1, at[:, None])
                if self.verifier.lookahead == "cheap":
                    # A stale look is not a refresh: the cache stays that of the block before.
                    after_cache = keep(~stale[:, 0], after_cache, cache)
                outs = (logits[0], after_cache)
                due = (cache.where != where).any(-1)
                if kept.view == "block_causal":
                    due = (where != opening_block).any(-1)
                through = through | (alive & due & (at > 0) & ~stale[:, 0])
            slots = self._step.run((*now, *outs))
            if told["recheck"] is not None:
                thin = self._thin(self._step.table(slots), (alive & (table.drafted > 0)).tolist(), told["recheck"])
                alone, alive = alone | thin, alive & ~thin
                if not bool(alive.any()):
                    break
            exact = tuple([slots[place] for place in self._step.results])
            exact = tuple([like(new, old) for new, old in zip(exact, carried, strict=True)])
            after = exact
            if told["accept"] != "base":
                after = self._accepted(carried, exact, table, at, logits[0], held)
            held = _metered(held, alive, carried[0], exact[0], after[0], table, at, logits[0])
            if told["then"] == "stop" and told["budget"] is not None:
                spent = held.sum_tv >= told["budget"]
                after = (after[0]._replace(done=after[0].done | spent), *after[1:])
            after = tuple([keep(alive, new, old) for new, old in zip(after, carried, strict=True)])
            moves.append(Move(alive, carried, after, held, outs, tuple(slots)))
            carried = after
        return moves, (*carried, held._replace(alone=alone[:, None])), through

    def values(self, move: Move) -> Mapping[Value, Any]:
        """All that was computed in a move; of a compiled one, the model's answers."""
        if move.slots:
            return self._step.table(move.slots)
        return dict(zip(self.verifier.forward.results, move.answers, strict=True))

    def _thin(self, values: Mapping[Value, Any], asked: Sequence[bool], eps: float) -> Tensor:
        """bool [R]: rows among the asked whose step hangs on less than packed logits may be off; reads the device."""
        used = [
            value for item in walk(self.base.step) for value in (*item.args, *item.results) if value and value in values
        ]
        found = [False] * len(asked)
        for row, wanted in enumerate(asked):
            if wanted:
                one = {value: _numpy_row(values[value], row) for value in used}
                found[row] = margins.thin(self.base, one, eps)
        return torch.tensor(found, device=values[self.base.carried[0]].done.device)

    def _find(self, table: Evaluated, key: Sequence[Tensor], x: Canvas) -> tuple[Tensor, Tensor]:
        """The entry of the table for the current state, int64 [R], and whether there is one, bool [R]."""
        match = table.exists & ~table.stale
        for whole, one in zip(table.keys, key, strict=True):
            match = match & (whole == one[:, None]).flatten(2).all(-1)
        if self.verifier.lookahead == "cheap":
            same = self._states(table, x) & table.stale
            match = torch.where(match.any(-1, keepdim=True), match, same)
        return first_of(match), match.any(-1)

    @staticmethod
    def _states(table: Evaluated, x: Canvas) -> Tensor:
        """bool [R, K]: the entries that look like the canvas `x`."""
        theirs = torch.where(table.masked, x.mask_id[..., None], table.tokens)
        return (theirs == shown(x)[:, None]).all(-1) & table.exists

    def _accepted(
        self, before: tuple[Any, ...], after: tuple[Any, ...], table: Evaluated, at: Tensor, logits: Tensor, held: Held
    ) -> tuple[Any, ...]:
        """As `ir.opset.walk._accepted`, on a batch."""
        told = self.walk.attributes
        x, target = before[0], after[0]
        token, conf = MEANINGS["score"](logits)
        writes = x.masked & ~target.masked
        new = x.masked[:, None] & ~table.masked  # [R, K, L]
        kept = (~x.masked[:, None] & (table.masked | (table.tokens != x.tokens[:, None]))).any(-1)
        size = new.sum(-1)
        allowed = table.exists & ~kept & (size > 0)
        allowed[:, 0] = False
        if told["accept"] == "relaxed":
            same = (~new | (table.tokens == token[:, None])).all(-1)
            length = new.shape[-1]
            sure = torch.where(new, conf[:, None].double().exp(), -1.0).sort(dim=-1, descending=True).values
            strata = torch.tensor([told["strata"][min(rank, len(told["strata"]) - 1)] for rank in range(length)])
            enough = ((sure >= strata.to(sure)) | (torch.arange(length, device=sure.device) >= size[..., None])).all(-1)
            allowed = allowed & same & enough & (size > writes.sum(-1, keepdim=True))
        else:
            inside = (~new | writes[:, None]).all(-1) & (~new | (table.tokens == target.tokens[:, None])).all(-1)
            known = self._states(table, target)[:, 1:].any(-1, keepdim=True)
            allowed = allowed & inside & ~known
        if told["budget"] is not None:
            allowed = allowed & (held.sum_tv < told["budget"])
        # The one with most new tokens, the first of equals.
        most = torch.where(allowed, size, 0)
        best = first_of(most == most.amax(-1, keepdim=True))
        jump = allowed.any(-1)
        pick_ = best[:, None, None].expand(-1, 1, x.tokens.shape[-1])
        jumped = x._replace(tokens=table.tokens.gather(1, pick_)[:, 0], masked=table.masked.gather(1, pick_)[:, 0])
        there = MEANINGS["advance"](x, jumped, size=self._size, done=None)
        return (keep(jump, there, target), *after[1:])


def _numpy_row(value: Any, row: int) -> Any:
    if isinstance(value, tuple):
        return type(value)(*(_numpy_row(part, row) for part in value))
    if not isinstance(value, Tensor):
        return np.asarray([value]) if isinstance(value, (bool, int, float)) else value
    one = value[row].detach().cpu()
    return (one.double() if one.is_floating_point() else one).numpy()


def _metered(
    held: Held, alive: Tensor, x: Canvas, exact: Canvas, after: Canvas, table: Evaluated, at: Tensor, logits: Tensor
) -> Held:
    on = alive[:, None]
    off = differs(exact, after).any(-1, keepdim=True) & on
    stale = table.stale.gather(1, at[:, None]) & on
    return held._replace(
        logits=_noted(held.logits, logits, on),
        accepted=held.accepted + ((at > 0)[:, None] & on),
        off_base=held.off_base + off,
        stale=held.stale + stale,
        first=torch.where((held.first < 0) & (off | stale), x.step, held.first),
        sum_tv=held.sum_tv + (off | stale),
    )


def _noted(held: Tensor, logits: Tensor, on: Tensor) -> Tensor:
    """The logits held [R, L, V], with the new ones of rows `on` bool [R, 1] where a call computed some."""
    known = ~logits.isnan().any(-1, keepdim=True) & (logits > FLOOR / 10).any(-1, keepdim=True) & on[..., None]
    return torch.where(known, logits, held.to(logits.dtype))


__all__ = ["Move", "Round", "Speculator"]
