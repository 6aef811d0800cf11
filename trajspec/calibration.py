"""Calibrated drafters: which states followed which, counted on a few prompts, and the file that keeps the counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .driving import drive_job
from .ir import Canvas, Plan, TrajspecError
from .ir.ahead import forward_of, nothing_held, told
from .ir.drafter import Drafter, threshold_of
from .ir.op import OPS
from .ir.opset.draft import RANKS, UNIT, Ranked, ranked, second_choice
from .prepare import prepare
from .runtime.batch import unstack

FORMAT = 1
FLOORS = (0.8, 0.6, 0.4, 0.0)  # of the surest held confidence: the strata
STATES = 24  # kept a stratum; a call takes the first `nodes` - 1
PRIOR = 2.0  # roots a stratum that count as if they had been seen
ELSEWHERE = 0.3  # what a state counts in the other strata


@dataclass(frozen=True)
class Calibrated(Drafter):
    """The drafter `ranks` with what it was calibrated on, and its counts."""

    notes: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **settings: Any) -> Calibrated:
        return Calibrated(self.op, super().__call__(**settings).settings, self.notes)

    def __repr__(self) -> str:
        told = {name: value for name, value in self.settings.items() if name != "table"}
        listed = [f"{name}={value!r}" for name, value in told.items()]
        return f"ranks({', '.join([*listed, 'calibrated on ' + str(self.notes.get('prompts', '?')) + ' prompts'])})"

    def save(self, path: str | Path) -> None:
        """Write the drafter to a JSON file, for `load_drafter` and `--draft FILE.json`."""
        strata = [
            {"from": floor, "states": [_pairs(code) for code in codes]} for floor, *codes in self.settings["table"]
        ]
        data = {
            "format": FORMAT,
            "nodes": self.settings.get("nodes", 8),
            "calibrated": dict(self.notes),
            "strata": strata,
        }
        Path(path).write_text(json.dumps(data, indent=1) + "\n")


def load_drafter(path: str | Path) -> Calibrated:
    """The drafter that `Calibrated.save` wrote.

    Raises TrajspecError that says what is wrong with a file.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise TrajspecError(f"{path}: {error.strerror}; expected a file that drafter.save wrote") from None
    except ValueError as error:
        raise TrajspecError(f"{path} is no JSON: {error}; expected a file that drafter.save wrote") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        got = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise TrajspecError(f"{path}: its format is {got!r}, expected {FORMAT}; calibrate again with this version")
    strata, notes = data.get("strata"), data.get("calibrated", {})
    if not isinstance(strata, list) or not all(isinstance(part, dict) and "from" in part for part in strata):
        raise TrajspecError(f"{path}: 'strata' must be a list of {{'from': confidence, 'states': [...]}}")
    if not isinstance(notes, dict):
        raise TrajspecError(f"{path}: 'calibrated' is {notes!r}, expected what it was calibrated on")
    table = []
    for part in strata:
        states = part.get("states")
        if not isinstance(states, list):
            raise TrajspecError(f"{path}: 'states' of the stratum from {part['from']!r} is {states!r}, expected a list")
        table.append((part["from"], *(_code(path, state) for state in states)))
    try:
        told = Drafter(OPS["ranks"])(table=tuple(table), nodes=data.get("nodes", 8)).settings
        check = OPS["ranks"].check
        assert check is not None
        check(**told, size=None)
    except TrajspecError as error:
        raise TrajspecError(f"{path}: {error}") from None
    return Calibrated(OPS["ranks"], told, notes)


def calibrate(model: Any, prompts: Any, *, nodes: int = 8, **options: Any) -> Calibrated:
    """A drafter that drafts the states which came next most often when the base decoded `prompts`.

    model, prompts and options (policy, threshold, block_length, cache, gen_length, infill, ...) are those of `decode`,
    without the ones about speculation; nodes: states a call, the root included. A few prompts are enough, of the kind
    that will be decoded. What is counted are ranks of the held confidences, so the drafter serves any canvas.

    Raises TrajspecError as `decode` does, and when no run has a step to learn from.
    """
    job = prepare(model, prompts, options)
    if job.speculation.drafter is not None:
        raise TrajspecError("calibrate runs the policy alone: leave out draft=, it gives the drafter")
    roots: list[Root] = []
    for number in range(len(job.rows)):
        course = list(_course(job.plan, drive_job(job, rows=[number])))
        roots += _roots(course, job.plan.block_length)
    if not roots:
        raise TrajspecError("no run of the prompts has two steps: there is nothing to count; give longer ones")
    table = choose_states(roots, prior=PRIOR)
    settings = Drafter(OPS["ranks"])(table=table, nodes=nodes).settings
    calls = sum(1 for _ in visited(roots, table, nodes)) + len(job.rows)
    notes = {
        "model": job.model.name, "policy": job.policy, "threshold": threshold_of(job.base), "cache": job.view,
        "prompts": len(job.rows), "base_calls": len(roots) + len(job.rows), "calls": calls,
    }  # fmt: skip
    return Calibrated(OPS["ranks"], settings, notes)


@dataclass(frozen=True)
class Root:
    """A state of a run: how sure the surest held token was, and the states that came next, as far as ranks say it."""

    conf: float
    ahead: tuple[int, ...]
    last: bool  # of its run


def _course(plan: Plan, events: Iterator[Any]) -> Iterator[tuple[Canvas, np.ndarray]]:
    """The states of one row's run, each with the logits held when it was reached."""
    logits_value = forward_of(plan).results[0]
    held: np.ndarray | None = None
    for event in events:
        logits = event.values[logits_value][0].double().cpu().numpy()
        held = np.where(told(logits), logits, np.nan if held is None else held)
        yield unstack(event.after, 0), held


def _roots(course: Sequence[tuple[Canvas, np.ndarray]], size: int | None) -> list[Root]:
    roots = []
    for number, (x, logits) in enumerate(course[:-1]):
        held = nothing_held(x, logits)
        rank = ranked(x, held, size)
        second, _ = second_choice(held, rank)
        ahead = []
        for later, _ in course[number + 1 :]:
            code = _described(x, later, rank, second)
            if code is None or not later.masked.any():
                break
            ahead.append(code)
        surest = float(np.exp(rank.conf[0] / UNIT)) if rank.count[0] else 0.0
        roots.append(Root(surest, tuple(ahead), number == len(course) - 2))
    return roots


def _described(x: Canvas, later: Canvas, rank: Ranked, second: np.ndarray) -> int | None:
    """The state `later` as a number in ranks of the root `x`; None where ranks cannot say it."""
    changed = np.flatnonzero((x.tokens != later.tokens) | (x.masked != later.masked))
    place = {int(column): number for number, column in enumerate(rank.order[: min(RANKS, int(rank.count[0]))])}
    code = 0
    for column in changed.tolist():
        token = later.tokens[column]
        if column not in place or later.masked[column] or token not in (rank.token[column], second[column]):
            return None
        code |= (1 if token == rank.token[column] else 2) << 2 * place[column]
    return code or None


def choose_states(
    roots: Sequence[Root], floors: Sequence[float] = FLOORS, most: int = STATES, prior: float = 0.0
) -> tuple:
    """The table of `ranks`: by stratum the states that, one after another, let most roots go one step further.

    A state pays only where all states before it are in the table, so each choice counts the roots for which it is the
    next one that is missing. Roots that a run would not stop at, since a round passes them, count less. `prior`: so
    many roots of every stratum, not seen, go on by single commits, mostly the surest; it counts where little was seen.
    """
    unseen = []
    for floor in floors if prior else ():
        for ahead, weight in _PRIOR:
            unseen.append((Root(floor, ahead, True), prior * weight))
    table = _greedy([*((root, 1.0) for root in roots), *unseen], floors, most)
    stops = set(visited(roots, table, 8))
    weighed = [(root, 1.0 if at in stops else 0.25) for at, root in enumerate(roots)]
    return _greedy([*weighed, *unseen], floors, most)


_CHAIN = tuple(sum(1 << 2 * rank for rank in range(length)) for length in range(1, 8))
#: Half of the roots take the surest position, and each time 7 of 10 of them the next one; some skip one or two.
_PRIOR = (
    *((_CHAIN[: depth + 1], 0.5 * 0.7**depth * (0.3 if depth < 6 else 1.0)) for depth in range(7)), ((4,), 0.15),
    ((16,), 0.06),
)  # fmt: skip


def _greedy(weighed: Sequence[tuple[Root, float]], floors: Sequence[float], most: int) -> tuple:
    table = []
    for floor in floors:
        mine = [
            (root.ahead, weight * (1.0 if _stratum(root, floors) == floor else ELSEWHERE)) for root, weight in weighed
        ]
        chosen: dict[int, None] = {}
        while len(chosen) < most:
            gains: Counter[int] = Counter()
            for ahead, weight in mine:
                missing = next((code for code in ahead if code not in chosen), None)
                if missing is not None:
                    gains[missing] += weight  # type: ignore[assignment]
            if not gains:
                break
            # The smallest number among equals: the table does not depend on the order of the prompts.
            chosen[min(gains, key=lambda code: (-round(gains[code], 6), code))] = None
        table.append((floor, *chosen))
    return tuple(table)


def _stratum(root: Root, floors: Sequence[float]) -> float:
    return next((floor for floor in floors if root.conf >= floor), floors[-1])


def visited(roots: Sequence[Root], table: tuple, nodes: int) -> Iterator[int]:
    """The roots at which rounds would begin, with drafts of `table`, if their runs were speculated."""
    codes = {floor: set(states[: nodes - 1]) for floor, *states in table}
    floors = [floor for floor, *_ in table]
    at = 0
    while at < len(roots):
        yield at
        known, steps = codes[_stratum(roots[at], floors)], 1
        for code in roots[at].ahead:
            if code not in known:
                break
            steps += 1
        ends = next(number for number in range(at, len(roots)) if roots[number].last)
        at = min(at + steps, ends + 1)


def _pairs(code: int) -> list[list[int]]:
    return [[rank, code >> 2 * rank & 3] for rank in range(RANKS) if code >> 2 * rank & 3]


def _code(path: str | Path, state: Any) -> int:
    code = 0
    pairs: list[Any] = state if isinstance(state, list) and state else [()]
    for pair in pairs:
        whole = isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)
        if not whole or not 0 <= pair[0] < RANKS or pair[1] not in (1, 2) or code >> 2 * pair[0] & 3:
            raise TrajspecError(
                f"{path}: the state {state!r} is not a list of [rank, choice], ranks 0 to {RANKS - 1} once each, "
                "choice 1 (likeliest token) or 2 (second)"
            )
        code |= pair[1] << 2 * pair[0]
    return code


__all__ = ["Calibrated", "calibrate", "load_drafter"]
