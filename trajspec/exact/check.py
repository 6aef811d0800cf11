"""Checks of a decoder against its base on arbitrary small models: equal paths, and outputs that no drafter changes."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..ir.errors import TrajspecError
from .case import Case, Drafts, draw_case, read_case
from .models import Key, Row, Table, Tape, letters, rows_met
from .program import Denoise, Program, State, accepted, run_program
from .search import Counterexample, Draw, Log, Skip, Verdict, judge

#: Says in a sentence what is wrong with the program's path beside the base's, or nothing.
Compare = Callable[[Sequence[State], Sequence[State]], str]

#: Scores closer than this without being equal are told apart by rounding alone.
NEAR = 1e-9


def whole_path(base: Sequence[State], ours: Sequence[State]) -> str:
    """Every state, one by one: the default, because an order that changes is a change (flaw C8)."""
    for place, (left, right) in enumerate(zip(base, ours, strict=False)):
        if left != right:
            return f"state {place} is {letters(right)}, the base has {letters(left)}"
    if len(base) != len(ours):
        return f"{len(ours)} states, the base has {len(base)}: a program that reports rounds wants paths=rounds_only"
    return ""


def rounds_only(base: Sequence[State], ours: Sequence[State]) -> str:
    """For programs that report one state a round: states of the base's path, in its order, with the same end.

    What happens inside a round is not seen, so this can refute less; it is never chosen by itself.
    """
    place = 0
    for number, state in enumerate(ours):
        while place < len(base) and base[place] != state:
            place += 1
        if place == len(base):
            return f"state {number}, {letters(state)}, is not on the base's path after the states before it"
    return "" if ours[-1] == base[-1] else f"it ends with {letters(ours[-1])}, the base with {letters(base[-1])}"


def last_state(base: Sequence[State], ours: Sequence[State]) -> str:
    """Only the outputs: for two runs of one program with different drafters, whose rounds differ (theorem A6)."""
    return "" if ours[-1] == base[-1] else f"one ends with {letters(base[-1])}, the other with {letters(ours[-1])}"


@dataclass(frozen=True)
class PathDifference:
    """Two paths that should be equal. `rows`: what the model was asked and does not answer uniformly."""

    what: str
    path: tuple[State, ...]
    ours: tuple[State, ...]
    names: tuple[str, str] = ("base", "program")
    rows: dict[Key, Row] = field(default_factory=dict)

    def summary(self) -> str:
        """What is different, in a sentence."""
        return self.what

    def lines(self) -> list[str]:
        """The table of states, the first line that differs marked."""
        width = max(len(self.names[0]), *(len(state) for state in self.path)) + 3
        lines, marked = [f"state   {self.names[0]:<{width}}{self.names[1]}"], False
        for place in range(max(len(self.path), len(self.ours))):
            pair = [letters(path[place]) if place < len(path) else "" for path in (self.path, self.ours)]
            mark = "" if marked or pair[0] == pair[1] else "   <-"
            marked = marked or bool(mark)
            lines.append(f"{place:>5}   {pair[0]:<{width}}{pair[1]}{mark}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        pairs = zip(self.names, (self.path, self.ours), strict=True)
        return {name: [letters(state) for state in path] for name, path in pairs}


def check_program(
    program: Program,
    base: Program,
    *,
    paths: Compare = whole_path,
    drafters: Sequence[Any] | None = None,
    examples: int = 1000,
    seed: int = 0,
    lengths: tuple[int, int] = (1, 5),
    vocab: tuple[int, int] = (2, 4),
    prompts: bool = True,
    near_ties: bool = True,
) -> Verdict:
    """Look for a model, canvas, seed and drafter on which `program` does not go the way of `base`.

    Both are programs (`exact.program`); `plan_program(plan)` makes one of a plan. If `program` takes `drafter=` it is
    given one of `drafters`, or an arbitrary one (`case.Drafts`) without them; if it takes `log=` it is expected to
    report its drafts, and is not passed when none was accepted. `lengths`, `vocab`: smallest and largest canvas and
    number of tokens. A program that raises is refuted; a case that the base refuses is left out. Without `near_ties`
    so is a case whose first difference hangs on scores that only rounding tells apart: for a program that computes its
    scores in another way than the base.
    """
    compare = compare_paths(program, base, paths, drafters, near_ties)
    draw = _drawing(program, drafters, 1, lengths=lengths, vocab=vocab, prompts=prompts)
    return judge(draw, compare, examples=examples, seed=seed, remark=near_tie)


def check_drafters(
    program: Program,
    *,
    drafters: Sequence[Any] | None = None,
    examples: int = 1000,
    seed: int = 0,
    lengths: tuple[int, int] = (1, 5),
    vocab: tuple[int, int] = (2, 4),
    prompts: bool = True,
) -> Verdict:
    """Look for two drafters under which `program` ends differently: no base is needed (theorem A6).

    Raises TrajspecError when the program takes no `drafter=`.
    """
    if not accepted(program) & {"drafter", "**"}:
        raise TrajspecError("the program takes no drafter; give it a parameter drafter=, or use check_program")

    def compare(case: Case, log: Log) -> PathDifference | None:
        model = case.model.build(case.vocab)
        log.reporting = "log" in accepted(program)
        first = _run(program, model, case, drafter=_drafter(case.drafts, drafters, None), log=log)
        # The second run's log is not the first's: rounds of two runs would add up.
        second = _run(program, model, case, drafter=_drafter(case.others, drafters, first), log=Log())
        what = last_state(first, second)
        names = "first drafter", "second drafter"
        return PathDifference(what, tuple(first), tuple(second), names, rows_met(model)) if what else None

    return judge(_drawing(program, drafters, 2, lengths=lengths, vocab=vocab, prompts=prompts), compare,
                 examples=examples, seed=seed)  # fmt: skip


def replay(
    text: str,
    program: Program,
    base: Program,
    *,
    paths: Compare = whole_path,
    drafters: Sequence[Any] | None = None,
) -> Counterexample | None:
    """Run the case of a counterexample's `replay` text again; None when the paths are equal now.

    Raises TrajspecError when the text holds no case.
    """
    try:
        case = read_case(json.loads(text))
    except json.JSONDecodeError as error:
        raise TrajspecError(f"the replay text is no JSON ({error}); copy the whole line") from error
    difference = compare_paths(program, base, paths, drafters)(case, Log())
    return None if difference is None else Counterexample(case, difference, near_tie(case, difference))


def _drawing(program: Program, drafters: Sequence[Any] | None, count: int, **sizes: Any) -> Callable[[Draw], Case]:
    takes = bool(accepted(program) & {"drafter", "**"})

    def draw_one(draw: Draw) -> Case:
        from hypothesis import strategies as st

        case = draw_case(draw, drafts=count if takes and drafters is None else 0, **sizes)
        if drafters is None or not takes:
            return case
        numbers = [draw(st.integers(0, len(drafters) - 1)) for _ in range(count)]
        return Case(case.canvas, case.vocab, case.model, case.seed, *numbers)

    return draw_one


def _drafter(drafts: Any, drafters: Sequence[Any] | None, path: Sequence[State] | None) -> Any:
    if isinstance(drafts, Drafts):
        return drafts.along(path) if path else drafts
    return drafters[drafts] if drafters is not None and drafts is not None else None


def compare_paths(
    program: Program,
    base: Program,
    paths: Compare = whole_path,
    drafters: Sequence[Any] | None = None,
    near_ties: bool = True,
) -> Callable[[Case, Log], PathDifference | None]:
    """The comparison of `check_program` on one case; raises `search.Skip` where the base raises TrajspecError."""

    def compare(case: Case, log: Log) -> PathDifference | None:
        model = case.model.build(case.vocab)
        try:
            left = run_program(base, Denoise(model, len(case.canvas)), case.canvas, case.seed)
        except TrajspecError as error:
            raise Skip("refused by the base") from error
        log.note("several base steps", int(len(left) > 2))
        log.note("ended with masks", int(-1 in left[-1]))
        log.reporting = "log" in accepted(program)
        right, what = left, ""
        try:
            drafter = _drafter(case.drafts, drafters, left)
            right = _run(program, model, case, **({} if drafter is None else {"drafter": drafter}), log=log)
            what = paths(left, right)
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            what, right = f"the program raises {error!r} in {line.name}, line {line.lineno}", []
        difference = PathDifference(what, tuple(left), tuple(right), rows=rows_met(model)) if what else None
        if difference and not near_ties and near_tie(case, difference):
            raise Skip("a near-tie")
        return difference

    return compare


def _run(program: Program, model: Any, case: Case, **wanted: Any) -> list[State]:
    return run_program(program, Denoise(model, len(case.canvas)), case.canvas, case.seed, **wanted)


def near_tie(case: Case, difference: PathDifference) -> str:
    """A line about scores that only rounding tells apart, if the first difference may hang on some; else ""."""
    pairs = zip(difference.path, difference.ours, strict=False)
    place = next((number for number, (left, right) in enumerate(pairs) if left != right), len(difference.ours))
    state = difference.path[min(max(place - 1, 0), len(difference.path) - 1)]
    # A tape is the same model again only when it is asked in the same order, hence the rows that were met.
    spec = Table(tuple(difference.rows.items())) if isinstance(case.model, Tape) else case.model
    logits = Denoise(spec.build(case.vocab), len(state))(np.array([state]))[0]
    masked = [number for number, token in enumerate(state) if token < 0]
    logits = logits[masked]
    scores = logits.max(axis=1) - np.logaddexp.reduce(logits, axis=1)
    order = np.argsort(scores)
    close = [
        (masked[low], masked[high])
        for low, high in pairwise(order.tolist())
        # Equal rows give equal scores in every library; the same numbers in another order need not.
        if scores[high] - scores[low] < NEAR and not np.array_equal(logits[low], logits[high])
    ]
    top = np.sort(logits, axis=1)[:, -2:]
    thin = [masked[row] for row, (second, first) in enumerate(top) if 0 < first - second < NEAR]
    if not close and not thin:
        return ""
    where = f"positions {close[0][0]} and {close[0][1]} are" if close else f"two tokens of position {thin[0]} are"
    return f"note    a near-tie: in {letters(state)} {where} equally sure but for rounding"
