"""The loop on the host: run steps until every row has ended, count what they cost, keep the path."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..ir.canvas import Canvas
from ..ir.errors import TrajspecError
from ..ir.interpret import bind_inputs, idle_limit, stalled
from ..ir.nodes import Value
from ..ir.plan import Plan
from ..ir.query import nonfinite
from .batch import pick, put, stack, stack_inputs, unstack
from .step import start, take


@dataclass
class Cost:
    """What was asked of the model: calls, sequences in them, query tokens in them (padding included)."""

    calls: int = 0
    rows: int = 0
    positions: int = 0


@dataclass
class StepEvent:
    """What a callback sees after every step.

    `rows` are the numbers of the rows that were live; `before` and `after` hold those rows as tensors [n, L], with
    padding on the left where `before.position` is negative; `values` is everything the step computed.
    """

    step: int
    rows: tuple[int, ...]
    before: Canvas
    after: Canvas
    values: Mapping[Value, Any] = field(repr=False)

    def committed(self, row: int) -> list[tuple[int, int]]:
        """(position, token) of what the step changed in row number `row`; reads the device."""
        mine = self.rows.index(row)
        before, after = unstack(self.before, mine), unstack(self.after, mine)
        places = ((before.tokens != after.tokens) | (before.masked != after.masked)).nonzero()[0]
        return [(int(place), int(after.tokens[place])) for place in places]


@dataclass
class RowRun:
    """One row at its end: its canvas (numpy, unpadded), what its single run costs, and its path."""

    canvas: Canvas
    cost: Cost
    path: list[list[tuple[int, int]]]
    halted: bool = False


OnStep = Callable[[StepEvent], None]
Halt = Callable[[int, Canvas], bool]
Outputs = tuple[list[RowRun], Cost]


def run(plan: Plan, model: Any, rows: Sequence[Canvas], *, on_step: OnStep | None = None, **options: Any) -> Outputs:
    """`drive` to its end; `on_step` sees every step. Each row's result, and the cost of the batch."""
    driver = drive(plan, model, rows, **options)
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
) -> Generator[StepEvent, None, Outputs]:
    """Run `plan` on numpy `rows` with a torch denoiser, an event a step; returns the rows and the cost of the batch.

    A row costs calls while it is live; finished rows leave the batch. `halt(row, canvas)` may end a row between steps
    (stop strings); it reads the device. Raises TrajspecError naming row, position and step when logits are no numbers,
    and when a policy commits nothing for ever; nothing of the step that failed is kept.
    """
    batch = stack(rows, pad_id=pad_id, device=device)
    all_real = all(row.tokens.shape[-1] == batch.tokens.shape[-1] for row in rows)
    bound = bind_inputs(plan, batch, stack_inputs(plan, rows, inputs, device))
    carried = start(plan, bound)
    costs = [Cost() for _ in rows]
    total = Cost()
    paths: list[list[tuple[Canvas, Canvas, int]]] = [[] for _ in rows]
    idle = [0] * len(rows)
    patience = idle_limit(plan, batch.tokens.shape[-1])
    live = [row for row, done in enumerate(batch.done[:, 0].tolist()) if not done]
    halted: set[int] = set()
    step = 0
    while live:
        index = torch.tensor(live, device=batch.tokens.device)
        whole = len(live) == len(rows)
        mine = carried if whole else pick(carried, index)
        inside = dict(bound) if whole else {value: pick((data,), index)[0] for value, data in bound.items()}
        # Not around the yield: the caller's own code must not run in this mode.
        with torch.inference_mode():
            outcome = take(plan, model, inside, mine, all_real)
        # The one read of the device in a step: what became of the rows.
        status = torch.stack([outcome.done, outcome.changed, (outcome.bad | outcome.empty).any(-1)]).tolist()
        if any(status[2]):
            raise _nonfinite(live, mine[0], outcome.bad, outcome.empty)
        carried = outcome.carried if whole else put(carried, index, outcome.carried)
        total.calls, total.rows = total.calls + 1, total.rows + outcome.rows
        total.positions += outcome.positions
        for number, row in enumerate(live):
            costs[row].calls += 1
            costs[row].rows += outcome.rows // len(live)
            costs[row].positions += outcome.positions // len(live)
            if keep_path:
                paths[row].append((mine[0], outcome.carried[0], number))
            idle[row] = 0 if status[1][number] else idle[row] + 1
            if idle[row] >= patience and not status[0][number]:
                raise stalled(plan.name, step, int(outcome.carried[0].masked[number].sum()))
        yield StepEvent(step, tuple(live), mine[0], outcome.carried[0], outcome.values)
        ended = {row for number, row in enumerate(live) if status[0][number]}
        if halt is not None:
            asked = {row for number, row in enumerate(live) if halt(row, unstack(outcome.carried[0], number))}
            halted |= asked
            ended |= asked
        live = [row for row in live if row not in ended]
        step += 1
    return [
        RowRun(unstack(carried[0], row), costs[row], [_changes(*part) for part in paths[row]], row in halted)
        for row in range(len(rows))
    ], total


def _changes(before: Canvas, after: Canvas, number: int) -> list[tuple[int, int]]:
    changed = (before.tokens[number] != after.tokens[number]) | (before.masked[number] != after.masked[number])
    places = before.position[number][changed].tolist()
    return list(zip(places, after.tokens[number][changed].tolist(), strict=True))


def _nonfinite(live: Sequence[int], x: Canvas, bad: Tensor, empty: Tensor) -> TrajspecError:
    number, column = (int(part) for part in (bad | empty).nonzero()[0])
    return nonfinite(
        live[number], int(x.position[number, column]), int(x.step[number, 0]), bool(bad[number, column])
    )
