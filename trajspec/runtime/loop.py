"""The loop on the host: run steps until every row has ended, count what they cost, keep the path."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ..ir.canvas import Canvas
from ..ir.interpret import bind_inputs, endless, idle_limit, stalled, step_limit
from ..ir.nodes import Value
from ..ir.plan import Plan
from ..ir.views import spanning
from .batch import of_rows, pick, put, stack, stack_inputs, unstack
from .query import no_numbers
from .step import Outcome, block_of, cached_forward, start, take
from .views import Kept


@dataclass
class Cost:
    """What was asked of the model: calls, sequences in them, query tokens in them (padding included); and how long
    steps of this run took to compile, in seconds, of a whole batch only."""

    calls: int = 0
    rows: int = 0
    positions: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    compile_seconds: float = field(default=0.0, compare=False, repr=False)

    def add(self, kind: str, rows: int, positions: int) -> None:
        """One more call, for `rows` sequences with `positions` query tokens in all."""
        self.calls, self.rows, self.positions = self.calls + 1, self.rows + rows, self.positions + positions
        self.kinds[kind] = self.kinds.get(kind, 0) + 1


@dataclass
class StepEvent:
    """What a callback sees after every step.

    `rows` are the numbers of the rows that were live; `before` and `after` hold those rows as tensors [n, L], with
    padding on the right where `before.position` is negative; `values` is everything the step computed.
    """

    step: int
    rows: tuple[int, ...]
    before: Canvas
    after: Canvas
    values: Mapping[Value, Any] = field(repr=False)

    def committed(self, row: int) -> list[tuple[int, int]]:
        """(position, token) of what the step changed in row number `row`; reads the device."""
        return changes(self.before, self.after, self.rows.index(row))


@dataclass
class RowRun:
    """One row at its end: its canvas (numpy, unpadded), what its single run costs, and its path."""

    canvas: Canvas
    cost: Cost
    path: list[list[tuple[int, int]]]
    halted: bool = False
    meters: dict[str, Any] = field(default_factory=dict)


OnStep = Callable[[StepEvent], None]
Halt = Callable[[int, Canvas], bool]
Outputs = tuple[list[RowRun], Cost]
Returned = TypeVar("Returned")


def run(plan: Plan, model: Any, rows: Sequence[Canvas], *, on_step: OnStep | None = None, **options: Any) -> Outputs:
    """`drive` to its end; `on_step` sees every step. Each row's result, and the cost of the batch."""
    return exhaust(drive(plan, model, rows, **options), on_step)


def exhaust(driver: Generator[StepEvent, None, Returned], on_step: OnStep | None = None) -> Returned:
    """Run `driver` to its end, showing `on_step` every event; what it returns."""
    while True:
        try:
            event = next(driver)
        except StopIteration as end:
            return end.value
        if on_step is not None:
            on_step(event)


def drive(
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
    auto: Any = None,
) -> Generator[StepEvent, None, Outputs]:
    """Run `plan` on numpy `rows` with a torch denoiser, an event a step; returns the rows and the cost of the batch.

    A row costs calls while it is live; finished rows leave the batch. `halt(row, canvas)` may end a row between steps
    (stop strings); it reads the device. Raises TrajspecError naming row, position and step when logits are no numbers,
    and when a policy commits nothing for ever; nothing of the step that failed is kept. `compiler` gives compiled
    steps (`runtime.compiled`), None: they are eager. `auto`: who chooses the states a call (`rounds.Auto`).
    """
    if plan.base is not None:
        from .rounds import drive_rounds

        return (
            yield from drive_rounds(
                plan, model, rows, inputs=inputs, pad_id=pad_id, device=device, halt=halt, keep_path=keep_path,
                compiler=compiler, auto=auto,
            )
        )
    least = compiler.padded(max(len(row.tokens) for row in rows)) if compiler is not None else 0
    # In the mode of the steps: a graph tells tensors made in it from others.
    with torch.inference_mode():
        batch = stack(rows, pad_id=pad_id, device=device, least=least)
        bound = bind_inputs(plan, batch, stack_inputs(plan, rows, inputs, device, least))
        all_real = all(len(row.tokens) == batch.tokens.shape[-1] for row in rows)
        state = _Batch(plan, model, bound, start(plan, bound), all_real, compiler)
    costs = [Cost() for _ in rows]
    total = Cost()
    paths: list[list[tuple[Canvas, Canvas, int]]] = [[] for _ in rows]
    idle = [0] * len(rows)
    patience = idle_limit(plan, batch.tokens.shape[-1])
    live = [row for row, done in enumerate(batch.done[:, 0].tolist()) if not done]
    halted: set[int] = set()
    step = 0
    while live:
        state.storing.finished(live, bound, state.carried, costs, total)
        for kind, group in state.groups(live):
            before, outcome, status = state.step(group, refresh=kind == "refresh")
            total.add(kind, outcome.rows, outcome.positions)
            for rows_asked, positions in outcome.further:
                total.add("further", rows_asked, positions)
            for number, row in enumerate(group):
                costs[row].add(kind, outcome.rows // len(group), outcome.positions // len(group))
                for rows_asked, positions in outcome.further:
                    costs[row].add("further", rows_asked // len(group), positions // len(group))
                if keep_path:
                    paths[row].append((before, outcome.carried[0], number))
                idle[row] = 0 if status["changed"][number] else idle[row] + 1
                if idle[row] >= patience and not status["done"][number]:
                    raise stalled(plan.name, step, int(outcome.carried[0].masked[number].sum()))
            yield StepEvent(step, tuple(group), before, outcome.carried[0], outcome.values)
            ended = {row for number, row in enumerate(group) if status["done"][number]}
            if halt is not None:
                asked = {row for number, row in enumerate(group) if halt(row, unstack(outcome.carried[0], number))}
                halted |= asked
                ended |= asked
            live = [row for row in live if row not in ended]
        step += 1
        if live and step > step_limit(batch.tokens.shape[-1]):
            raise endless(plan.name, step)
    return [
        RowRun(unstack(state.carried[0], row), costs[row], [changes(*part) for part in paths[row]], row in halted)
        for row in range(len(rows))
    ], total


class _Batch:
    """The carried values of all rows, what is kept of them between calls, and which of them need a refresh."""

    def __init__(
        self, plan: Plan, model: Any, bound: Mapping[Value, Any], carried: tuple[Any, ...], all_real: bool,
        compiler: Any = None,
    ) -> None:  # fmt: skip
        self.plan, self.model, self.bound, self.carried, self.all_real = plan, model, bound, carried, all_real
        self.take = compiler(plan).take if compiler is not None else take
        self.size = carried[0].tokens.shape[0]
        self.forward = cached_forward(plan)
        self.kept: Kept | None = None
        self.due = [False] * self.size
        if self.forward is not None:
            attrs = self.forward.attributes
            self.kept = Kept(model, carried[0], attrs["view"], attrs["size"])
            # Blocks of block_causal are exact however old they are: they never need a refresh.
            self.due = [attrs["view"] != "block_causal"] * self.size
        self.storing = Storing(plan, model, self.kept)

    def groups(self, live: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Live rows that make a call together: at most two groups, those to refresh and the others.

        A list: what the first group's step changes must not move a row into the second.
        """
        kinds = (("refresh", True), ("step", False))
        named = [(kind, [row for row in live if self.due[row] == due]) for kind, due in kinds]
        return [(kind, group) for kind, group in named if group]

    def step(self, group: Sequence[int], refresh: bool) -> tuple[Canvas, Outcome, dict[str, list[bool]]]:
        """One step of these rows: their canvas before, the outcome, and what the host reads of it."""
        rows = None if len(group) == self.size else torch.tensor(group, device=self.carried[0].tokens.device)
        mine, inside = of_rows(self.bound, self.carried, rows)
        # Not around the caller's code: what the loop yields to must not run in this mode.
        with torch.inference_mode():
            outcome = self.take(self.plan, self.model, inside, mine, self.all_real, self.kept, rows, refresh)
        # The one read of the device in a step: what became of the rows.
        wrong = (outcome.bad | outcome.empty).any(-1)
        names = ("done", "changed", "due", "wrong")
        read = torch.stack([outcome.done, outcome.changed, outcome.due, wrong]).tolist()
        status = dict(zip(names, read, strict=True))
        if any(status["wrong"]):
            raise no_numbers(group, mine[0], outcome.bad, outcome.empty)
        self.carried = outcome.carried if rows is None else put(self.carried, rows, outcome.carried)
        if self.forward is not None and self.forward.attributes["view"] != "block_causal":
            for number, row in enumerate(group):
                self.due[row] = status["due"][number]
        return mine[0], outcome, status


class Storing:
    """The store pass of the block-causal view: finished blocks are kept as their final tokens are."""

    def __init__(self, plan: Plan, model: Any, kept: Kept | None) -> None:
        self.plan, self.model = plan, model
        self.kept = kept if kept is not None and kept.view == "block_causal" else None
        self.forward = cached_forward(plan)

    def finished(
        self,
        live: Sequence[int],
        bound: Mapping[Value, Any],
        carried: Sequence[Any],
        costs: Sequence[Cost],
        total: Cost,
    ) -> None:
        """Store the blocks that were finished since the last call; what it takes is added to the costs."""
        if self.kept is None or self.forward is None:
            return
        known = dict(bound) | dict(zip(self.plan.carried, carried, strict=True))
        x: Canvas = carried[0]
        _, where = block_of(self.plan, known, self.forward)
        asked = (self.kept.behind(x, where), x.step[:, 0] == 0, self.kept.spans(x, where))
        behind, fresh, spans = torch.stack(asked).tolist()
        for row in live:
            if spans[row]:
                raise spanning(row, self.kept.size, int(x.start[row, 0]))
        for kind, first in (("prefill", True), ("store", False)):
            group = [row for row in live if behind[row] and fresh[row] == first]
            if group:
                rows = None if len(group) == len(x.tokens) else torch.tensor(group, device=x.tokens.device)
                self.kept.model = self.model
                mine = x if rows is None else pick((x,), rows)[0]
                with torch.inference_mode():
                    positions = self.kept.fill(rows, mine, where if rows is None else where.index_select(0, rows))
                total.add(kind, len(group), positions)
                for row in group:
                    costs[row].add(kind, 1, positions // len(group))


def changes(before: Canvas, after: Canvas, number: int) -> list[tuple[int, int]]:
    """(position, token) of what differs in row number `number` of two batches; reads the device."""
    changed = (before.tokens[number] != after.tokens[number]) | (before.masked[number] != after.masked[number])
    places = before.position[number][changed].tolist()
    return list(zip(places, after.tokens[number][changed].tolist(), strict=True))
