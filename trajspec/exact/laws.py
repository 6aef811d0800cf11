"""Exact laws of small samplers: every choice path of the sampler itself is run, and its probability is a fraction.

A sampler is `sampler(world, choices) -> path`: it draws through `choices` only, and reads the models of its `world`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

from ..ir.errors import TrajspecError
from .program import State
from .search import Log

O = TypeVar("O", bound=Hashable)  # noqa: E741
Law = dict[O, Fraction]
Weights = tuple[int, ...]
#: Where a row of a law's model stands: the canvas, and the position asked about.
Spot = tuple[State, int]
Sampler = Callable[["World", "Choices"], Sequence[State]]

#: The most choice paths a law is made of.
PATHS = 200_000
#: What is known of a number that was never read: it lies in [0, 1).
UNKNOWN = Fraction(0), Fraction(1)


class Choices:
    """One choice path of a sampler: every draw, its probability, and what keyed noise is remembered.

    A keyed draw reads a uniform number at (role, key): the same key gives the same number whatever the weights, so
    the token is the inverse of the weights' cumulative law at it. What is known of the number is an interval, made
    smaller by each draw. A draw without a key is fresh.
    """

    def __init__(self, script: Sequence[int] = (), log: Log | None = None) -> None:
        """The first draws take the options of `script`, by number; the others take the first option."""
        self.probability = Fraction(1)
        self.log = log or Log()
        self.taken: list[int] = list(script)
        self.options: list[int] = []
        self._known: dict[tuple[str, Hashable], tuple[Fraction, Fraction]] = {}

    def categorical(self, weights: Sequence[int | Fraction], role: str = "tok", key: Hashable = None) -> int:
        """A number below len(weights), with probability proportional to the weights.

        Raises TrajspecError for a negative weight and when all weights are 0.
        """
        known = self._known.get((role, key), UNKNOWN) if key is not None else UNKNOWN
        parts = _parts(tuple(weights), *known)
        number, part, share = parts[self._choose(len(parts))] if len(parts) > 1 else parts[0]
        if share != 1:
            self.probability *= share
        if key is not None:
            self._known[role, key] = part
        return number

    def flip(self, p: int | Fraction, role: str = "coin", key: Hashable = None) -> bool:
        """True with probability p: a keyed coin is True when its number lies below p."""
        return self.categorical((Fraction(p), 1 - Fraction(p)), role, key) == 0

    def _choose(self, options: int) -> int:
        if len(self.options) == len(self.taken):
            self.taken.append(0)
        self.options.append(options)
        return self.taken[len(self.options) - 1]


@lru_cache(maxsize=100_000)
def _parts(
    weights: tuple[int | Fraction, ...], low: Fraction, high: Fraction
) -> list[tuple[int, tuple[Fraction, Fraction], Fraction]]:
    """The tokens a number between low and high may mean: (token, the part of the interval, its share of it)."""
    total = Fraction(sum(weights))
    if total <= 0 or min(weights) < 0:
        raise TrajspecError(f"weights {list(map(str, weights))} are no law; expected numbers from 0, not all 0")
    parts, at = [], Fraction(0)
    for number, weight in enumerate(weights):
        left, at = at, at + weight / total
        if max(left, low) < min(at, high):
            part = max(left, low), min(at, high)
            parts.append((number, part, (part[1] - part[0]) / (high - low)))
    return parts


def law(sampler: Callable[[Choices], O], *, log: Log | None = None, limit: int = PATHS) -> Law[O]:
    """The exact law of what `sampler(choices)` returns, outcomes in the order in which they were met.

    `log` gets what the sampler reports (`choices.log`), all choice paths together. Raises TrajspecError when there
    are more than `limit` choice paths.
    """
    out: Law[O] = {}
    script: list[int] = []
    for _ in range(limit):
        choices = Choices(script, log)
        outcome = sampler(choices)
        out[outcome] = out.get(outcome, Fraction(0)) + choices.probability
        script = choices.taken[: len(choices.options)]
        while script and script[-1] + 1 == choices.options[len(script) - 1]:
            script.pop()
        if not script:
            return out
        script[-1] += 1
    raise TrajspecError(f"more than {limit} choice paths; use a shorter canvas, fewer tokens or a larger limit")


def tv(left: Mapping[O, Fraction], right: Mapping[O, Fraction]) -> Fraction:
    """The total variation between two laws: half the sum of the differences."""
    keys = {*left, *right}
    return sum((abs(left.get(key, Fraction(0)) - right.get(key, Fraction(0))) for key in keys), Fraction(0)) / 2


class Rows:
    """A model of a law: int weights of the tokens at (canvas, position), read off a tape in the order of the queries.

    What is not on the tape, or all 0, gives token 0 for sure.
    """

    def __init__(self, tape: Sequence[int], vocab: int, table: Mapping[Spot, Weights] | None = None) -> None:
        self.vocab, self.memo = vocab, dict(table or {})
        self._tape = list(tape)

    def __call__(self, state: State, position: int) -> Weights:
        """The weights, [V] ints."""
        if (state, position) not in self.memo:
            read, self._tape = self._tape[: self.vocab], self._tape[self.vocab :]
            row = (*read, *[0] * (self.vocab - len(read)))
            self.memo[state, position] = row if any(row) else (1, *row[1:])
        return self.memo[state, position]


@dataclass(frozen=True)
class World:
    """What a sampler works on: a canvas, V tokens, the target model, and the drafter's model."""

    canvas: State
    vocab: int
    target: Rows
    draft: Rows
