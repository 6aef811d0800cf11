"""Looking for a counterexample with hypothesis: drawing cases, shrinking them, counting, and the verdict.

A check is two functions: `draw_case(draw) -> case` and `compare(case, log) -> difference or None`. What a case and a
difference are is the caller's; `Case` and `Difference` say what they must be able to do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, Literal, Protocol, TypeVar

#: hypothesis' `draw(strategy)`.
Draw = Callable[[Any], Any]
Word = Literal["not refuted", "refuted", "inconclusive"]


class Skip(Exception):
    """Raised by a `compare` that can say nothing about a case, for instance because the base refuses it."""


class Difference(Protocol):
    """What is different between base and program on one case."""

    def summary(self) -> str:
        """One sentence."""

    def lines(self) -> list[str]:
        """The table a person follows."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""


class SearchCase(Protocol):
    """One input of a check: a value, so that it can be run again."""

    def smaller(self, difference: Any) -> Iterator[Any]:
        """Simpler cases that may differ as well, the most promising first; never one as complex as this one."""

    def lines(self) -> list[str]:
        """The model, the canvas and the drafts, as text."""

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON: what `replay` reads."""


C = TypeVar("C", bound=SearchCase)


@dataclass
class Log:
    """What programs report of their drafts. `reporting`: whether they do at all."""

    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    reporting: bool = False
    coverage: Counter[str] = field(default_factory=Counter)

    def round(self, drafted: int, accepted: int) -> None:
        """One round: so many hypothetical states were evaluated, so many were walked through."""
        self.reporting = True
        self.drafted, self.accepted, self.rounds = self.drafted + drafted, self.accepted + accepted, self.rounds + 1

    def note(self, what: str, count: int = 1) -> None:
        """Something worth knowing happened, such as "eos inside a round"."""
        if count:
            self.coverage[what] += count

    def add(self, run: Log) -> None:
        """Count one example's log in."""
        self.drafted, self.accepted = self.drafted + run.drafted, self.accepted + run.accepted
        self.rounds, self.reporting = self.rounds + run.rounds, self.reporting or run.reporting
        self.note("drafted > 0", int(run.drafted > 0))
        self.note("accepted > 0", int(run.accepted > 0))
        self.note("rounds > 1", int(run.rounds > 1))
        self.note("accepted > 0 and rounds > 1", int(run.accepted > 0 and run.rounds > 1))
        for what in run.coverage:
            self.note(what)


@dataclass
class Found(Generic[C]):
    """How a search ended. `examples`: cases compared up to and with the first that differs."""

    case: C | None
    difference: Any
    examples: int
    log: Log
    repeatable: bool = True


@dataclass(frozen=True)
class Counterexample:
    """The smallest case found, and what happens on it. `replay` is the text the check's `replay` function takes."""

    case: Any
    difference: Any
    note: str = ""

    @property
    def replay(self) -> str:
        return json.dumps(self.case.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        out = self.case.as_dict() | self.difference.as_dict()
        return out | {"summary": self.difference.summary(), "note": self.note, "replay": self.replay}

    def __str__(self) -> str:
        lines = [self.difference.summary(), *self.case.lines(), *self.difference.lines()]
        lines += [self.note] if self.note else []
        return "\n".join([*lines, f"replay  {self.replay}"])


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check. `drafted` and `accepted` are None when the program does not report them."""

    verdict: Word
    examples: int
    drafted: int | None = None
    accepted: int | None = None
    coverage: Counter[str] = field(default_factory=Counter)
    counterexample: Counterexample | None = None
    reason: str = ""
    seed: int = 0

    @property
    def refuted(self) -> bool:
        return self.verdict == "refuted"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.counterexample
        return {
            "schema": 1, "verdict": self.verdict, "reason": self.reason, "examples": self.examples, "seed": self.seed,
            "drafted": self.drafted, "accepted": self.accepted, "coverage": dict(self.coverage),
            "counterexample": found.as_dict() if found else None,
        }  # fmt: skip

    def __str__(self) -> str:
        drafts = "drafts could not be counted: the program reports none"
        if self.drafted is not None:
            drafts = f"{self.drafted} states drafted, {self.accepted} accepted"
        lines = [f"{self.verdict.upper()} after {self.examples} examples (seed {self.seed}); {drafts}"]
        lines += [self.reason] if self.reason else []
        lines += [str(self.counterexample)] if self.counterexample else []
        if self.coverage:
            lines.append("examples with: " + ", ".join(f"{what} {n}" for what, n in sorted(self.coverage.items())))
        return "\n".join(lines)


def search(
    draw_case: Callable[[Draw], C],
    compare: Callable[[C, Log], Any],
    *,
    examples: int = 1000,
    seed: int = 0,
    shrink: bool = True,
) -> Found[C]:
    """Draw `examples` cases; at the first that differs, let hypothesis shrink it, unless told not to.

    The same seed draws the same cases. `compare` must depend on the case alone; a difference that does not come
    back on the same case is returned with `repeatable` False.
    """
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import Flaky, NoSuchExample

    total, count = Log(), 0
    last: tuple[C, Any] | None = None

    def differs(case: C) -> bool:
        nonlocal count, last
        log = Log()
        try:
            difference = compare(case, log)
        except Skip as reason:
            if last is None:
                total.note(str(reason))
            return False
        if last is None:  # what happens while shrinking is not counted
            total.add(log)
            count += 1
        if difference is None:
            return False
        last = case, difference
        return True

    options = settings(
        max_examples=examples, database=None, deadline=None, derandomize=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,), suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @st.composite
    def cases(draw: Draw) -> C:
        return draw_case(draw)

    try:
        case = find(cases(), differs, settings=options, random=Random(seed))
    except NoSuchExample:
        return Found(None, None, count, total)
    except Flaky:
        assert last is not None
        return Found(last[0], last[1], count, total, repeatable=False)
    again = compare(case, Log())
    if again is None:
        assert last is not None
        return Found(last[0], last[1], count, total, repeatable=False)
    return Found(case, again, count, total)


def minimise(case: C, difference: Any, compare: Callable[[C, Log], Any], budget: int = 600) -> tuple[C, Any]:
    """Go to a smaller case (`case.smaller`) for as long as there is one that differs; at most `budget` comparisons.

    Hypothesis shrinks what was drawn; this shrinks what it meant, such as a single row of the model's table.
    """
    going = True
    while going and budget:
        going = False
        for candidate in case.smaller(difference):
            budget -= 1
            try:
                found = compare(candidate, Log())
            except Skip:
                found = None
            if found is not None:
                case, difference, going = candidate, found, True
                break
            if not budget:
                break
    return case, difference


def judge(
    draw_case: Callable[[Draw], C],
    compare: Callable[[C, Log], Any],
    *,
    examples: int = 1000,
    seed: int = 0,
    shrink: bool = True,
    remark: Callable[[C, Any], str] | None = None,
) -> Verdict:
    """Search, shrink (with `minimise` always, with hypothesis before that if `shrink`), and say what came out.

    Inconclusive when nothing was compared, or when the program reports its drafts and none was made or accepted: a
    verifier that never had anything to accept was not tested. `remark(case, difference)` adds a line to the report.
    """
    found = search(draw_case, compare, examples=examples, seed=seed, shrink=shrink)
    log = found.log
    drafted, accepted = (log.drafted, log.accepted) if log.reporting else (None, None)
    known: dict[str, Any] = dict(
        examples=found.examples, drafted=drafted, accepted=accepted, coverage=log.coverage, seed=seed
    )
    if found.case is not None:
        case, difference, reason = found.case, found.difference, ""
        if found.repeatable:
            case, difference = minimise(case, difference, compare)
        # A few runs more, for programs that draw from a generator of their own.
        if not found.repeatable or any(compare(case, Log()) != difference for _ in range(3)):
            reason = "the difference is not the same when the case is run again: it depends on more than its inputs"
        note = remark(case, difference) if remark else ""
        return Verdict("refuted", counterexample=Counterexample(case, difference, note), reason=reason, **known)
    if not found.examples:
        return Verdict("inconclusive", reason="no case could be compared", **known)
    if log.reporting and not log.drafted:
        return Verdict("inconclusive", reason="nothing was drafted, so no verification was tested", **known)
    if log.reporting and not log.accepted:
        return Verdict("inconclusive", reason="no drafted state was ever accepted", **known)
    return Verdict("not refuted", **known)
