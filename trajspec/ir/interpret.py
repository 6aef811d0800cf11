"""The reference meaning of a plan: run it on numpy arrays, one row, with any denoiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .apply import call_meaning
from .canvas import Canvas
from .errors import TrajspecError
from .kinds import TRAIL
from .nodes import Node, Value, walk
from .plan import Plan
from .query import Denoiser
from .views import mixed


@dataclass
class Run:
    """What a run did. `path[k]` is the canvas after k base steps, `path[0]` the prompt."""

    canvas: Canvas
    path: list[Canvas]
    calls: int = 0
    rows: int = 0
    positions: int = 0
    histories: tuple[Any, ...] = ()


@dataclass
class Step:
    """One step as a callback sees it: the canvas before and after, and every value computed in between."""

    index: int
    before: Canvas
    after: Canvas
    values: dict[Value, Any] = field(repr=False)


class _Counting:
    """A denoiser that counts what it is asked."""

    def __init__(self, model: Denoiser) -> None:
        self.model, self.calls, self.rows, self.positions = model, 0, 0, 0
        self.vocab_size, self.mask_id = model.vocab_size, model.mask_id
        self.others = {name: _Beside(self, other) for name, other in (getattr(model, "others", None) or {}).items()}
        self._inside = False

    def __call__(self, tokens: Any, *rest: Any) -> Any:
        self._count(len(tokens), tokens.size)
        return self.model(tokens, *rest)

    def _count(self, rows: int, positions: int) -> None:
        self.calls, self.rows = self.calls + (not self._inside), self.rows + rows
        self.positions += positions

    @contextmanager
    def packed(self) -> Iterator[None]:
        """What is asked inside counts as one call."""
        self.calls, self._inside = self.calls + 1, True
        try:
            yield
        finally:
            self._inside = False

    def stale(self, tokens: Any, positions: Any, reference: Any, window: Any) -> Any:
        """A call on a cached view (`ir.views.ask_cached`), for denoisers with a meaning of their own and without."""
        self._count(1, int(window.sum()))
        if hasattr(self.model, "stale"):
            return self.model.stale(tokens, positions, reference, window)
        return mixed(self.model, tokens, positions, reference, window, self.model.vocab_size)


class _Beside:
    """A further model, whose calls count with those of the first."""

    def __init__(self, owner: _Counting, model: Denoiser) -> None:
        self.owner, self.model = owner, model
        self.vocab_size, self.mask_id = model.vocab_size, model.mask_id

    def __call__(self, tokens: Any, *rest: Any) -> Any:
        self.owner._count(len(tokens), tokens.size)
        return self.model(tokens, *rest)


def evaluate(values: Sequence[Value], known: dict[Value, Any], model: Any = None) -> dict[Value, Any]:
    """Everything that `values` depend on, computed by the ops' numpy meanings from the `known` values."""
    table = dict(known)
    for item, attributes in _order(tuple(values)):
        if item.results[0] in table:
            continue
        data = [None if arg is None else table[arg] for arg in item.args]
        meaning = partial(item.op.numpy, model) if item.op.calls_model else item.op.numpy
        out = call_meaning(item.op, meaning, data, attributes, item.args)
        outs = out if len(item.results) > 1 else (out,)
        table.update(zip(item.results, outs, strict=True))
    return table


@lru_cache(maxsize=1024)
def _order(values: tuple[Value, ...]) -> tuple[tuple[Node, dict[str, Any]], ...]:
    # Kept, because a step evaluates the same values over and over.
    return tuple((item, item.attributes) for item in walk(values))


def start(plan: Plan, prompt: Canvas, inputs: dict[str, Any] | None = None) -> tuple[dict[Value, Any], tuple[Any, ...]]:
    """The plan's inputs bound to arrays, and the carried values before the first step."""
    bound = bind_inputs(plan, prompt, inputs)
    table = evaluate(plan.starts, bound)
    return bound, tuple(table[value] for value in plan.starts)


def bind_inputs(plan: Plan, prompt: Any, inputs: dict[str, Any] | None = None) -> dict[Value, Any]:
    """`prompt` and the task inputs by name as the plan's input values; TrajspecError when the names do not match."""
    inputs = dict(inputs or {})
    bound: dict[Value, Any] = {plan.inputs[0]: prompt}
    for value in plan.inputs[1:]:
        name = value.node.attributes["name"]
        if name not in inputs:
            raise TrajspecError(f"plan {plan.name} needs the task input {name!r} ({value.kind}); pass {name}=...")
        bound[value] = inputs.pop(name)
    if inputs:
        names = [value.node.attributes["name"] for value in plan.inputs[1:]]
        raise TrajspecError(f"plan {plan.name} has no task input {sorted(inputs)}; it has {names}")
    return bound


def advance(
    plan: Plan, bound: dict[Value, Any], carried: Sequence[Any], model: Any
) -> tuple[tuple[Any, ...], dict[Value, Any]]:
    """One step from `carried`; a step on a finished row is the identity and asks nothing."""
    known = bound | dict(zip(plan.carried, carried, strict=True))
    if not bool(evaluate([plan.test], known)[plan.test][..., 0]):
        return tuple(carried), known
    table = evaluate(plan.step, known, model)
    return tuple(table[value] for value in plan.step), table


def run(
    plan: Plan,
    model: Denoiser,
    prompt: Canvas,
    inputs: dict[str, Any] | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Run:
    """Run `plan` on one row (`ir.canvas.canvas(...)`) until it is finished.

    Raises TrajspecError when the policy stops making progress, or the model gives values that are no numbers.
    """
    bound, carried = start(plan, prompt, inputs)
    counting = _Counting(model)
    result = Run(carried[0], [carried[0]])
    patience = idle_limit(plan, carried[0].tokens.shape[-1])
    idle = 0
    while True:
        test = evaluate([plan.test], bound | dict(zip(plan.carried, carried, strict=True)))[plan.test]
        if not bool(test[..., 0]):
            break
        before = carried[0]
        carried, table = advance(plan, bound, carried, counting)
        for after in _states(plan, carried[0], table):
            result.path.append(after)
            if on_step is not None:
                on_step(Step(len(result.path) - 2, before, after, table))
            same = np.array_equal(before.tokens, after.tokens) and np.array_equal(before.masked, after.masked)
            idle = idle + 1 if same else 0
            if len(result.path) > step_limit(before.tokens.shape[-1]):
                raise endless(plan.name, len(result.path) - 1)
            if idle >= patience and not bool(after.done[0]):
                raise stalled(plan.name, int(after.step[0]), int(after.masked.sum()))
            before = after
    result.canvas, result.histories = carried[0], tuple(carried[1:])
    result.calls, result.rows, result.positions = counting.calls, counting.rows, counting.positions
    return result


def _states(plan: Plan, after: Canvas, table: dict[Value, Any]) -> list[Canvas]:
    """The states a step went through: one for a base plan, a whole trail for a speculated one."""
    trails = [table[value] for item, _ in _order(plan.step) for value in item.results if value.kind is TRAIL]
    return [state[0] for trail in trails for state in trail.states] if trails else [after]


def idle_limit(plan: Plan, length: int) -> int:
    """How many steps in a row may leave the canvas as it is before the run counts as stuck."""
    base = plan.base or plan
    return 4096 + 4 * length if base.clocked else 1


def step_limit(length: int) -> int:
    """How many steps a run on `length` positions may take: far more than any published schedule, and not for ever."""
    return 16384 + 64 * length


def endless(name: str, steps: int) -> TrajspecError:
    """The error about a policy that goes round in circles."""
    return TrajspecError(
        f"policy {name} has not ended after {steps} steps: it masks again, or puts off, as much as it commits; "
        "let it take back less than it writes"
    )


def stalled(name: str, step: int, masks: int) -> TrajspecError:
    """The error about a policy that goes on for ever."""
    return TrajspecError(
        f"policy {name} committed nothing in step {step} with {masks} masks left and would never end; "
        "add the surest position to what it selects: | ts.top(conf, 1, where=here)"
    )
