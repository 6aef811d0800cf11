"""The loop of a speculated plan: rounds of one packed call, every base step of them reported as if it ran alone."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..ir.ahead import Held
from ..ir.canvas import Canvas
from ..ir.interpret import bind_inputs, endless, idle_limit, stalled, step_limit
from ..ir.nodes import Value
from ..ir.plan import Plan
from .ahead import Move, Round, Speculator
from .batch import differs, map_leaves, of_rows, pick, put, stack, stack_inputs, unstack
from .loop import Cost, Halt, Outputs, RowRun, StepEvent, Storing, changes
from .planner import Planner, Sampler
from .step import start, take


@dataclass
class Auto:
    """Plans of one base with different numbers of states a call, by that number, and who chooses between them."""

    planner: Planner | Sampler
    plans: Mapping[int, Plan]


class _Rows:
    """What the loop keeps of every row on the host."""

    def __init__(self, count: int) -> None:
        self.costs = [Cost() for _ in range(count)]
        self.paths: list[list[list[tuple[int, int]]]] = [[] for _ in range(count)]
        self.idle = [0] * count
        self.steps = [0] * count
        self.final: dict[int, tuple[Canvas, dict[str, Any]]] = {}
        self.halted: set[int] = set()


def drive_rounds(
    plan: Plan,
    model: Any,
    rows: Sequence[Canvas],
    *,
    inputs: Sequence[Mapping[str, Any]] | None = None,
    pad_id: int = 0,
    device: torch.device | str = "cpu",
    halt: Halt | None = None,
    keep_path: bool = True,
    compiler: Any = None,
    auto: Auto | None = None,
) -> Generator[StepEvent, None, Outputs]:
    """`loop.drive` for a speculated plan: the same events, rows and paths as its base gives, from fewer calls.

    With `auto` every round runs the plan that its planner chooses, or the base's own step; `plan` is one of them.
    """
    least = compiler.padded(max(len(row.tokens) for row in rows)) if compiler is not None else 0
    # In the mode of the rounds: a graph tells tensors made in it from others.
    with torch.inference_mode():
        batch = stack(rows, pad_id=pad_id, device=device, least=least)
        bound = bind_inputs(plan, batch, stack_inputs(plan, rows, inputs, device, least))
        carried = start(plan, bound)
        all_real = bool((batch.position >= 0).all())
        first = Speculator(plan, model, batch)
        kept = first.verifier.kept
        specs = {} if auto is None else {n: Speculator(p, model, batch, kept) for n, p in auto.plans.items()}
    base = first.base
    step = take if compiler is None or auto is None else compiler(base).take
    storing = Storing(base, model, kept)
    told = _Rows(len(rows))
    total = Cost()
    patience, most = idle_limit(base, batch.tokens.shape[-1]), step_limit(batch.tokens.shape[-1])
    live = [row for row, done in enumerate(batch.done[:, 0].tolist()) if not done]
    while live:
        base_known = {value: bound[mine] for value, mine in zip(base.inputs, plan.inputs, strict=True)}
        storing.finished(live, base_known, carried[: len(base.starts)], told.costs, total)
        ended: set[int] = set()
        chosen = None if auto is None else auto.planner.choose()
        spec = first if chosen is None else specs.get(chosen, first)
        # A decision that is made again is made in a call without hypothetical states, as the base makes it.
        for group in _apart(live, carried[-1].alone):
            index = None if len(group) == len(rows) else torch.tensor(group, device=batch.tokens.device)
            mine, inside = of_rows(bound, carried, index)
            rounds: Iterator[tuple[list[int], Round]]
            if chosen == 1:
                rounds = spec.alone(inside, mine, group, index, all_real, step)
            else:
                rounds = _whole(spec, compiler, inside, mine, group, index, all_real)
            while True:
                # Not around the caller's code: what the loop yields to must not run in this mode.
                with torch.inference_mode():
                    numbers, made = next(rounds, ([], None))
                if made is None:
                    break
                part = [group[number] for number in numbers]
                _count(told, total, part, made)
                for move in made.moves:
                    yield from _report(spec, move, part, told, ended, halt, keep_path, patience, most)
                done = made.carried[0].done[:, 0].tolist()
                ended |= {row for row, over in zip(part, done, strict=True) if over}
                if auto is not None and chosen is not None:
                    went = torch.stack([move.went for move in made.moves]).sum(0).tolist()
                    for states, taken, over, kind in zip(made.states, went, done, made.kinds, strict=True):
                        auto.planner.saw(chosen, taken if over else states, taken, kind)
                if len(part) == len(rows):
                    carried = made.carried
                else:
                    carried = put(carried, torch.tensor(part, device=batch.tokens.device), made.carried)
        if auto is not None:
            auto.planner.done()
        live = [row for row in live if row not in ended]
    runs = []
    for row in range(len(rows)):
        canvas, meters = told.final.get(row) or (unstack(carried[0], row), _meters(carried[-1], row))
        runs.append(RowRun(canvas, told.costs[row], told.paths[row], row in told.halted, meters))
    return runs, total


def _whole(
    spec: Speculator, compiler: Any, known: Mapping[Value, Any], carried: Sequence[Any], group: Sequence[int],
    index: Tensor | None, all_real: bool,
) -> Iterator[tuple[list[int], Round]]:  # fmt: skip
    """One round of all rows of the group."""
    run = spec.round if compiler is None else partial(compiler(spec.plan).round, spec)
    yield list(range(len(group))), run(known, carried, group, index, all_real)


def _apart(live: Sequence[int], alone: Tensor) -> list[list[int]]:
    flags = alone[:, 0].tolist()
    groups = ([row for row in live if flags[row]], [row for row in live if not flags[row]])
    return [group for group in groups if group]


def _count(told: _Rows, total: Cost, live: Sequence[int], made: Round) -> None:
    """A packed call is one call, with all its rows and positions; its kind is that of the row, had it run alone."""
    for row, kind, cost in zip(live, made.kinds, made.costs, strict=True):
        told.costs[row].add(kind, *cost)
    kind = "verify" if "verify" in made.kinds else made.kinds[0]
    total.add(kind, *(sum(part) for part in zip(*made.costs, strict=True)))


def _report(
    spec: Speculator, move: Move, live: Sequence[int], told: _Rows, ended: set[int], halt: Halt | None, keep_path: bool,
    patience: int, most: int,
) -> Generator[StepEvent, None, None]:  # fmt: skip
    """One base step of the rows that made it."""
    before, after = move.before[0], move.after[0]
    changed = differs(before, after).any(-1)
    went, moved, done = torch.stack([move.went, changed, after.done[:, 0]]).tolist()
    numbers = [number for number, row in enumerate(live) if went[number] and row not in ended]
    if not numbers:
        return
    index = torch.tensor(numbers, device=changed.device)
    old, new = pick((before, after), index)
    for place, number in enumerate(numbers):
        row = live[number]
        told.steps[row] += 1
        told.idle[row] = 0 if moved[number] else told.idle[row] + 1
        if told.idle[row] >= patience and not done[number]:
            raise stalled(spec.plan.name, told.steps[row] - 1, int(after.masked[number].sum()))
        if told.steps[row] > most:
            raise endless(spec.plan.name, told.steps[row])
        if keep_path:
            told.paths[row].append(changes(old, new, place))
    values = spec.values(move)
    if len(numbers) < len(live):
        values = _values(values, index)
    yield StepEvent(told.steps[live[numbers[0]]] - 1, tuple(live[number] for number in numbers), old, new, values)
    for place, number in enumerate(numbers):
        row = live[number]
        if halt is not None and row not in ended and halt(row, unstack(new, place)):
            told.halted.add(row)
            ended.add(row)
            # The round went on; what this row committed after its end is not kept.
            told.final[row] = (unstack(new, place), _meters(move.held, number))


def _values(values: Mapping[Value, Any], index: Tensor) -> dict[Value, Any]:
    def one(leaf: Any) -> Any:
        return leaf.index_select(0, index) if isinstance(leaf, Tensor) and leaf.dim() else leaf

    return {
        value: map_leaves(one, data) if isinstance(data, (Tensor, tuple)) else data for value, data in values.items()
    }


def _meters(held: Held, row: int) -> dict[str, Any]:
    """What was drafted and accepted, and how far the run left its base."""
    names = ("drafted", "accepted", "off_base", "stale", "first", "sum_tv")
    return {name: getattr(held, name)[row, 0].item() for name in names}
