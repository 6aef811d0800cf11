"""Plans under arbitrary drafters: the drafter of a speculated plan replaced by one that a check chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..ir.ahead import Draft, Held, Table
from ..ir.canvas import Canvas
from ..ir.drafter import Drafter
from ..ir.interpret import Run, Step
from ..ir.interpret import run as run_plan
from ..ir.kinds import DRAFT
from ..ir.nodes import Value, node
from ..ir.op import op
from ..ir.plan import Plan
from ..ir.query import Denoiser
from .program import State
from .search import Log

#: What a drafter under test says in a round: hypothetical states, token ids with -1 where masked. `x`: numpy, one row.
Says = Callable[[Canvas, Held], Sequence[State]]
_SAYS: ContextVar[Says] = ContextVar("says", default=lambda x, held: ())


@op("chosen_by_check(x: canvas, held: held) -> draft: draft")
def chosen_by_check(x: Canvas, held: Held) -> Draft:
    """The states that the check at hand says (`drafted_by`); none outside of one."""
    length = x.tokens.shape[-1]
    states = np.array(list(_SAYS.get()(x, held)), np.int64).reshape(-1, length)
    masked = states < 0
    return Draft(np.where(masked, x.mask_id, states), masked, np.ones(len(states), bool))


#: The drafter of the plans that a check runs.
CHOSEN = Drafter(chosen_by_check)


@contextmanager
def drafted_by(says: Says) -> Iterator[None]:
    """Inside, the drafter `CHOSEN` proposes what `says` returns."""
    token = _SAYS.set(says)
    try:
        yield
    finally:
        _SAYS.reset(token)


def ahead_only(states: Sequence[State]) -> Says:
    """Always the same states, those that do not extend the row's canvas left out."""
    return lambda x, held: [state for state in states if _extends(np.array(state), x)]


def as_they_are(states: Sequence[State]) -> Says:
    """Always the same states; where the canvas was given they hold what it holds."""

    def says(x: Canvas, held: Held) -> list[State]:
        return [tuple(np.where(x.free, np.array(state), x.tokens).tolist()) for state in states]

    return says


def _extends(state: np.ndarray, x: Canvas) -> bool:
    known = ~x.masked
    return bool((state[known] == x.tokens[known]).all() and not (state[x.masked] < 0).all())


@lru_cache(maxsize=512)
def redrafted(plan: Plan) -> Plan:
    """`plan` with every drafter in it replaced by `CHOSEN`; verification and walk stay as they are."""
    swap: dict[Value, Value] = {}
    for item in plan.nodes():
        args = [swap.get(value, value) if value is not None else None for value in item.args]
        if item.results[0].kind is DRAFT and item.op.name not in ("no_draft", CHOSEN.name):
            swap[item.results[0]] = node(CHOSEN.op, (args[0], args[-1]), {}, (DRAFT,)).results[0]
        elif args != list(item.args):
            made = node(item.op, args, item.attributes, [value.kind for value in item.results])
            swap.update(zip(item.results, made.results, strict=True))
    step = tuple(swap.get(value, value) for value in plan.step)
    return replace(plan, step=step, names=tuple((swap.get(value, value), name) for value, name in plan.names))


class PackedNoise:
    """A denoiser whose calls of more than one row are off by `eps`: up at one token of one position, or as `off` says.

    `off(tokens int64 [R, W], positions int64 [R, W]) -> float64 [R, W, V]` with entries from -eps to eps.
    """

    def __init__(self, model: Denoiser, eps: float, off: Callable[[Any, Any], Any] | None = None) -> None:
        self.vocab_size, self.mask_id = model.vocab_size, model.mask_id
        self.model, self.eps, self.off = model, eps, off

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        logits = np.array(self.model(tokens, positions, visible), np.float64)
        if len(tokens) < 2:
            return logits
        if self.off is not None:
            return logits + self.off(tokens, positions)
        # The second token of the first position, which a uniform model and low ties would not take.
        logits[positions == 0, 1 if self.mask_id != 1 else 2] += self.eps
        return logits


def watched(plan: Plan, model: Denoiser, row: Canvas, says: Says | None, log: Log) -> Run:
    """Run a plan, its drafter replaced by `says` (None: its own), and report to `log` what its rounds did."""
    rounds: list[list[tuple[Step, Table]]] = []
    seen: list[Any] = []

    def note(step: Step) -> None:
        if not seen or seen[-1] is not step.values:
            seen.append(step.values)
            rounds.append([])
        tables = [value for value in step.values.values() if isinstance(value, Table)]
        rounds[-1].append((step, tables[-1]))

    if says is None or plan.base is None:
        result = run_plan(plan, model, row, on_step=note if plan.base else None)
    else:
        with drafted_by(says):
            result = run_plan(redrafted(plan), model, row, on_step=note)
    if plan.base is not None:
        _report(log, result, rounds, plan)
    return result


def _report(log: Log, result: Run, rounds: list[list[tuple[Step, Table]]], plan: Plan) -> None:
    held: Held = result.histories[-1]
    log.reporting = True
    log.drafted, log.accepted = log.drafted + int(held.drafted[0]), log.accepted + int(held.accepted[0])
    log.rounds += len(rounds)
    size = plan.base.block_length if plan.base else None
    for steps in rounds:
        first, table = steps[0]
        last = steps[-1][0].after
        ahead = bool(table.drafted) and len(steps) > 1
        log.note("several steps in a round", int(len(steps) > 1))
        log.note("eos inside a round", int(ahead and bool(last.done[0]) and bool(last.masked.any())))
        crossed = ahead and _block(first.before, size) != _block(steps[-1][0].before, size)
        log.note("a block's edge crossed inside a round", int(crossed))
        if any(key[0] == "refresh" for key in table.keys[1:]):
            log.note("a refresh drafted")
            log.note("a refresh crossed", int(crossed))


def _block(x: Canvas, size: int | None) -> int:
    from ..ir.opset.read import block_numbers

    return int(np.where(x.masked, block_numbers(x, size), 2**40).min())
