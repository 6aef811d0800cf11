"""Checks of a sampler against its base in law: exact laws on arbitrary small models, and shrinking."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from ..ir.errors import TrajspecError
from .laws import Law, Rows, Sampler, Spot, Weights, World, law, tv
from .models import letters, unletters
from .program import State
from .search import Counterexample, Draw, Log, Verdict, judge


@dataclass(frozen=True)
class LawCase:
    """One input of the law check. Models are tapes as drawn, tables (spot, weights) when written down."""

    canvas: State
    vocab: int
    target: tuple[Any, ...] = ()
    draft: tuple[Any, ...] = ()
    tables: bool = False

    def open(self) -> World:
        """A fresh world with these models."""
        if self.tables:
            target, draft = (Rows((), self.vocab, dict(rows)) for rows in (self.target, self.draft))
        else:
            target, draft = (Rows(tape, self.vocab) for tape in (self.target, self.draft))
        return World(self.canvas, self.vocab, target, draft)

    def smaller(self, difference: LawDifference) -> Iterator[LawCase]:
        """Simpler cases: tables for tapes, a position or a token less, fewer rows, smaller weights."""
        if not self.tables:
            yield replace(self, target=difference.target, draft=difference.draft, tables=True)
            return
        for place in reversed(range(len(self.canvas))):
            if len(self.canvas) > 1:
                rest = self.canvas[:place] + self.canvas[place + 1 :]
                yield replace(self, canvas=rest, target=_without(self.target, place), draft=_without(self.draft, place))
        if self.vocab > 2:
            fewer_tokens = (_with_less(rows, self.vocab - 1) for rows in (self.target, self.draft))
            yield replace(self, vocab=self.vocab - 1, target=next(fewer_tokens), draft=next(fewer_tokens))
        for name in ("target", "draft"):
            rows: tuple[tuple[Spot, Weights], ...] = getattr(self, name)
            for place, (spot, row) in enumerate(rows):
                for fewer in (None, *_simpler(row)):
                    kept = () if fewer is None else ((spot, fewer),)
                    changed = rows[:place] + kept + rows[place + 1 :]
                    yield replace(self, target=changed) if name == "target" else replace(self, draft=changed)

    def lines(self) -> list[str]:
        """The models and the canvas, as text."""
        lines = [f"canvas  {letters(self.canvas)}   tokens {letters(range(self.vocab))}"]
        for name in ("target", "draft"):
            rows = getattr(self, name)
            if self.tables:
                text = [f"{letters(state)}@{at}:({','.join(map(str, row))})" for (state, at), row in rows]
                lines.append(f"{'model' if name == 'target' else name}   {'  '.join([*text, rest(text)])}")
            else:
                lines.append(f"{name}  tape {list(rows)}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `read_law_case` reads it."""
        models: dict[str, Any] = {"target": list(self.target), "draft": list(self.draft)}
        if self.tables:
            models = {
                name: {f"{letters(state)}@{at}": list(row) for (state, at), row in rows}
                for name, rows in models.items()
            }
        return {"canvas": letters(self.canvas), "vocab": self.vocab, **models}


def table_case(
    canvas: str, target: Mapping[str, Weights], draft: Mapping[str, Weights] | None = None, vocab: int = 2
) -> LawCase:
    """A case written down: `table_case("__", {"__@0": (2, 1)})`. All else is token a for sure.

    Raises TrajspecError when a row has not `vocab` weights.
    """
    tables = []
    for rows in (target, draft or {}):
        for text, row in rows.items():
            if len(row) != vocab:
                raise TrajspecError(f"row {text} has {len(row)} weights; expected {vocab}, one a token")
        spots = [text.partition("@") for text in rows]
        weights = [tuple(row) for row in rows.values()]
        tables.append(tuple(((unletters(s), int(at)), row) for (s, _, at), row in zip(spots, weights, strict=True)))
    return LawCase(unletters(canvas), vocab, tables[0], tables[1], tables=True)


def read_law_case(text: str) -> LawCase:
    """The case of a counterexample's `replay` text. Raises TrajspecError when there is none in it."""
    try:
        data = json.loads(text)
        if isinstance(data["target"], dict):
            return table_case(data["canvas"], data["target"], data["draft"], data["vocab"])
        return LawCase(unletters(data["canvas"]), data["vocab"], tuple(data["target"]), tuple(data["draft"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TrajspecError(
            f"no case can be read from {text[:120]!r}: {error!r}; copy the whole replay text"
        ) from error


def _without(rows: Sequence[tuple[Spot, Weights]], place: int) -> tuple[tuple[Spot, Weights], ...]:
    """The rows on canvases without this position; where several become one, the first."""
    out: dict[Spot, Weights] = {}
    for (state, at), row in rows:
        if at != place:
            out.setdefault((state[:place] + state[place + 1 :], at - (at > place)), row)
    return tuple(out.items())


def _with_less(rows: Sequence[tuple[Spot, Weights]], vocab: int) -> tuple[tuple[Spot, Weights], ...]:
    """The rows without the tokens from `vocab` on."""
    kept = ((spot, row[:vocab]) for spot, row in rows if max(spot[0]) < vocab)
    return tuple((spot, row) for spot, row in kept if any(row))


def _simpler(row: Weights) -> Iterator[Weights]:
    for place, weight in enumerate(row):
        for less in sorted({0, 1, weight - 1}):
            if 0 <= less < weight and any((*row[:place], less, *row[place + 1 :])):
                yield (*row[:place], less, *row[place + 1 :])


@dataclass(frozen=True)
class LawDifference:
    """Two laws that should be equal, by outcome as text; `target`, `draft`: the rows the models were asked for."""

    base: Law[str]
    ours: Law[str]
    target: tuple[tuple[Spot, Weights], ...] = field(default=(), repr=False)
    draft: tuple[tuple[Spot, Weights], ...] = field(default=(), repr=False)

    @property
    def tv(self) -> Fraction:
        return tv(self.base, self.ours)

    def summary(self) -> str:
        """How far the laws are apart."""
        return f"the laws differ: total variation {self.tv}"

    def lines(self) -> list[str]:
        """Both laws, one outcome a line."""
        outcomes = sorted({*self.base, *self.ours})
        width = max(len("outcome"), *map(len, outcomes)) + 2
        lines = [f"{'outcome':<{width}}{'base':<10}program"]
        for outcome in outcomes:
            left, right = (str(side.get(outcome, 0)) for side in (self.base, self.ours))
            lines.append(f"{outcome:<{width}}{left:<10}{right}{'' if left == right else '   <-'}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For JSON; fractions as text."""
        laws = {"base": self.base, "program": self.ours}
        return {name: {key: str(p) for key, p in side.items()} for name, side in laws.items()} | {"tv": str(self.tv)}


def final(path: Sequence[State]) -> str:
    """The outcome is the last state."""
    return letters(path[-1])


def whole(path: Sequence[State]) -> str:
    """The outcome is the whole path: stricter than `final`."""
    return ">".join(map(letters, path))


def compare_laws(
    program: Sampler, base: Sampler, case: LawCase, *, outcome: Callable[[Sequence[State]], str] = final,
    log: Log | None = None,
) -> LawDifference:  # fmt: skip
    """Both laws on one case, equal or not; the base is run first."""
    world = case.open()
    left = law(lambda choices: outcome(base(world, choices)))
    right = law(lambda choices: outcome(program(world, choices)), log=log)
    rows = [tuple(item for item in side.memo.items() if _uneven(item[1])) for side in (world.target, world.draft)]
    return LawDifference(left, right, *rows)


def rest(rows: Sequence[str]) -> str:
    """What is said of the rows that are not written down."""
    return "all else a" if rows else "always a"


def _uneven(row: Weights) -> bool:
    return any(row[1:])  # anything but token 0 for sure


def check_law(
    program: Sampler,
    base: Sampler,
    *,
    outcome: Callable[[Sequence[State]], str] = final,
    examples: int = 250,
    seed: int = 0,
    lengths: tuple[int, int] = (1, 3),
    vocab: tuple[int, int] = (2, 3),
) -> Verdict:
    """Look for models under which two samplers have different laws, compared exactly; weights are 0 to 3.

    The laws are of `outcome(path)`: of the last state (`final`) or of the whole path (`whole`). A sampler that
    reports drafts (`choices.log.round`) and never has one accepted is not passed. Canvases of 3 and more have 2 tokens,
    so that a law stays at some hundreds of choice paths.
    """

    def draw_case(draw: Draw) -> LawCase:
        from hypothesis import strategies as st

        size = draw(st.integers(*lengths))
        tokens = draw(st.integers(*vocab)) if size < 3 else vocab[0]
        # Short tapes are models that are sure of everything.
        least = draw(st.sampled_from((0, 4, 8)))
        tape = st.lists(st.integers(0, 3), min_size=least, max_size=6 * tokens).map(tuple)
        return LawCase((-1,) * size, tokens, draw(tape), draw(tape))

    def compare(case: LawCase, log: Log) -> LawDifference | None:
        difference = compare_laws(program, base, case, outcome=outcome, log=log)
        log.note("more than one outcome", int(len(difference.base) > 1))
        return difference if difference.tv else None

    # A comparison costs two laws, so the few steps of `LawCase.smaller` do better than hypothesis' many.
    return judge(draw_case, compare, examples=examples, seed=seed, shrink=False)


def replay_law(
    text: str, program: Sampler, base: Sampler, *, outcome: Callable[[Sequence[State]], str] = final
) -> Counterexample | None:
    """Run the case of a counterexample's `replay` text again; None when the laws are equal now."""
    case = read_law_case(text)
    difference = compare_laws(program, base, case, outcome=outcome)
    return Counterexample(case, difference) if difference.tv else None
