"""Small models of an autoregressive target with drafts, and one switch for each condition that may be dropped.

All are written against `laws.Choices`, so their laws are exact. `completion` is what `trajspec.completion` does, round
by round. Sources: Leviathan et al. (arXiv 2211.17192), SpecInfer, SpecDiff (arXiv 2408.05636); theorems G1 to G4 say
what the law of a draft has to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from .laws import Choices, World
from .program import State
from .samplers import Path, masked, write

Law = tuple[Fraction, ...]


class Draft(NamedTuple):
    """Drafted tokens from the first masked position on, and the law that each is said to have."""

    tokens: tuple[int, ...]
    laws: tuple[Law, ...]


def share(row: Sequence[int | Fraction]) -> Law:
    """Weights as probabilities."""
    total = Fraction(sum(row))
    return tuple(Fraction(weight) / total for weight in row)


def sharper(row: Sequence[int | Fraction]) -> Law:
    """The law at half the temperature: how a processor changes it."""
    return share([Fraction(weight) ** 2 for weight in row])


def autoregressive(world: World, choices: Choices, *, processed: bool = False) -> Path:
    """The base: from left to right, each token drawn given those before it."""
    path = [world.canvas]
    while masked(path[-1]):
        place = masked(path[-1])[0]
        law = (sharper if processed else share)(world.target(path[-1], place))
        path.append(write(path[-1], {place: choices.categorical(law, "tok", (len(path), place))}))
    return path


def completion(
    world: World, choices: Choices, *, form: str = "mean_field", length: int = 2, drafts: int = 1,
    equality: bool = False, processed: bool = False, distinct: bool = False, **flaws: bool,
) -> Path:  # fmt: skip
    """Rounds of a draft and its verification, by `equality` or by rejection.

    form: mean_field, left_to_right, two_phase, or right_to_left, whose tokens have the probabilities that they had when
    they were revealed (G1, if verified by rejection). `drafts`: so many a round, `distinct` ones drawn without putting
    back; `certain`: the likeliest token is drafted, with probability 1. Conditions dropped by name: greedy (G2),
    from_target (G3), hotter (G4), best (G5), coin_again (G6), stale (G7), raw_ratio (G8), not_renormalised (G9),
    not_updated (G10), draft_again (G11), redrawn (G12), one_hot_rest (G13).
    """
    path, number = [world.canvas], 0
    while masked(path[-1]):
        root = path[-1]
        chains = _chains(world, choices, root, number, form, length, drafts, distinct, flaws)
        start = len(path)
        _verify(world, choices, path, chains, number, equality, processed, flaws)
        offered = max(len(chain.tokens) for chain in chains)
        choices.log.round(offered, min(len(path) - start - 1, offered))
        number += 1
    return path


def _chains(
    world: World, choices: Choices, root: State, number: int, form: str, length: int, drafts: int, distinct: bool,
    flaws: dict[str, bool],
) -> list[Draft]:  # fmt: skip
    if distinct:
        return _siblings(world, choices, root, number, flaws)
    made = [_draft(world, choices, root, (number, which), form, length, flaws) for which in range(drafts)]
    if flaws.get("best"):
        # The one that the drafter itself finds likeliest, judged as if it had been the only one.
        def chance(chain: Draft) -> Fraction:
            out = Fraction(1)
            for token, law in zip(chain.tokens, chain.laws, strict=True):
                out *= law[token]
            return out

        return [max(made, key=chance)]
    return made


def _siblings(world: World, choices: Choices, root: State, number: int, flaws: dict[str, bool]) -> list[Draft]:
    """Two drafts of one token, the second another one than the first, each with the law it was drawn from."""
    place = masked(root)[0]
    law = share(world.draft(root, place))
    first = choices.categorical(law, "draft", (number, 0))
    rest = [Fraction(0) if token == first else weight for token, weight in enumerate(law)]
    if not any(rest):
        return [Draft((first,), (law,))]
    second = choices.categorical(rest, "draft", (number, 1))
    return [Draft((first,), (law,)), Draft((second,), (law if flaws.get("not_renormalised") else share(rest),))]


def _draft(
    world: World, choices: Choices, root: State, key: tuple[int, int], form: str, length: int, flaws: dict[str, bool]
) -> Draft:  # fmt: skip
    places = masked(root)[:length]
    tokens: dict[int, int] = {}
    laws: dict[int, Law] = {}
    hint = root
    if form == "two_phase":
        hint = write(root, {at: choices.categorical(world.draft(root, at), "hint", (*key, at)) for at in places})
    for at in reversed(places) if form == "right_to_left" else places:
        state = root
        if form in ("left_to_right", "right_to_left"):
            state = write(root, tokens)
        elif form == "two_phase":
            # A position sees the hint at those of the other kind, counted from the draft's start.
            odd = places.index(at) % 2
            state = write(root, {other: hint[other] for n, other in enumerate(places) if n % 2 != odd})
        law = share(world.draft(state, at))
        laws[at] = law
        if flaws.get("greedy") or flaws.get("certain"):
            tokens[at] = law.index(max(law))
            if flaws.get("certain"):
                laws[at] = tuple(Fraction(int(token == tokens[at])) for token in range(len(law)))
        else:
            drawn = sharper(law) if flaws.get("hotter") else law
            tokens[at] = choices.categorical(drawn, "draft", (*key, at))
    return Draft(tuple(tokens[at] for at in places), tuple(laws[at] for at in places))


def _verify(
    world: World, choices: Choices, path: Path, chains: Sequence[Draft], number: int, equality: bool, processed: bool,
    flaws: dict[str, bool],
) -> None:  # fmt: skip
    process = sharper if processed else share
    root, places = path[-1], masked(path[-1])
    alive = list(range(len(chains)))
    for at, place in enumerate(places[: max(len(chain.tokens) for chain in chains) + 1]):
        state = path[-1]
        if flaws.get("stale") and at:
            # As if everything drafted so far had been accepted.
            state = write(root, dict(zip(places[:at], chains[0].tokens, strict=False)))
        raw = share(world.target(state, place))
        p = process(raw)
        here = [chain for chain in alive if at < len(chains[chain].tokens)]
        key = (number, at)
        if equality:
            token = choices.categorical(p, "tok", (len(path), place))
            if flaws.get("redrawn") and here and token != chains[here[0]].tokens[at]:
                token = choices.categorical(p, "again", (len(path), place))
        elif here:
            token = _coupled(choices, p, raw, chains, here, at, key, place, flaws)
        else:
            token = choices.categorical(p, "tok", (len(path), place))
        path.append(write(path[-1], {place: token}))
        alive = [chain for chain in here if chains[chain].tokens[at] == token]
        if not alive and not (flaws.get("stale") and at + 1 < len(chains[0].tokens)):
            return
        alive = alive or [0]


def _coupled(
    choices: Choices, p: Law, raw: Law, chains: Sequence[Draft], here: Sequence[int], at: int, key: tuple[int, int],
    place: int, flaws: dict[str, bool],
) -> int:  # fmt: skip
    """A token of law p out of drafts of their laws, by recursive rejection."""
    left = p
    for number in here:
        token, q = chains[number].tokens[at], chains[number].laws[at]
        ratio = (raw if flaws.get("raw_ratio") else left)[token]
        if choices.flip(min(Fraction(1), ratio / q[token]) if q[token] else Fraction(1), "coin", (*key, number)):
            return token
        taken = q
        if flaws.get("one_hot_rest"):
            taken = tuple(Fraction(int(other == token)) for other in range(len(q)))
        rest = [max(Fraction(0), mine - theirs) for mine, theirs in zip(left, taken, strict=True)]
        if flaws.get("from_target") or not any(rest):
            rest = list(p)
        if not flaws.get("not_updated") or number == here[-1]:
            left = share(rest)
    if flaws.get("coin_again"):
        return choices.categorical(left, "coin", (*key, here[0]))
    if flaws.get("draft_again"):
        return choices.categorical(left, "draft", (key[0], 0, place))
    return choices.categorical(left, "resid", key)
