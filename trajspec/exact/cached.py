"""Decoders whose network reads caches that published views do not have here, with speculation and its flaws.

Two views, as programs (`exact.program`): `every_n` recomputes all keys and values every n steps and reads the old
ones in between; `delayed` freezes the keys and values of a position one step after its token was written (dKV-cache,
Ma et al., arXiv 2505.15781). What the network was shown besides the canvas is the `context` of a question. All commit
one token a step: the likeliest of the surest position, ties to the lowest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .program import Denoise, Floats, Ints, State
from .search import Log

#: What a question to the network consists of: the canvas, and the context it is read in (none: all computed anew).
View = tuple[State, tuple[int, ...] | None]
#: For every position the canvas at which its keys and values were frozen, or None.
Frozen = tuple[State | None, ...]
Drafter = Callable[[Ints], list[list[Ints]]]


def commit_surest(state: State, logits: Floats) -> State:
    """The state with the likeliest token of the surest masked position; logits [L, V]."""
    sure = logits.max(axis=1) - np.logaddexp.reduce(logits, axis=1)
    place = max((place for place, token in enumerate(state) if token < 0), key=lambda place: (sure[place], -place))
    return tuple(int(logits[place].argmax()) if at == place else token for at, token in enumerate(state))


def ask(denoise: Denoise, views: list[View]) -> list[Floats]:
    """Logits [L, V] of each view: a call for those without a context, and a call for those with one."""
    out: dict[View, Floats] = {}
    for plain in (True, False):
        part = [view for view in dict.fromkeys(views) if (view[1] is None) == plain]
        if part:
            canvases = np.array([state for state, _ in part])
            answers = denoise(canvases, None if plain else np.array([context for _, context in part]))
            out |= dict(zip(part, answers, strict=True))
    return [out[view] for view in views]


def _states(drafter: Drafter, state: State) -> list[list[State]]:
    return [[tuple(map(int, node)) for node in chain] for chain in drafter(np.array(state))]


# A refresh every n steps: flaws C3b and C1age.


def every_n(denoise: Denoise, canvas: Ints, seed: int, *, n: int) -> list[State]:
    """The base: a full pass at the start and when the cache has served n steps, the cache's canvas otherwise."""
    path, reference, age = [_value(canvas)], None, 0
    while -1 in path[-1]:
        if reference is None or age >= n:
            reference, age, context = path[-1], 0, None
        else:
            context = reference
        path.append(commit_surest(path[-1], ask(denoise, [(path[-1], context)])[0]))
        age += 1
    return path


def every_n_walk(
    denoise: Denoise,
    canvas: Ints,
    seed: int,
    *,
    n: int,
    drafter: Drafter,
    log: Log,
    epoch_in_key: bool = True,
    true_age: bool = True,
) -> list[State]:
    """`every_n` by drafts: drafted states are evaluated in the epoch of the round's root, and walked through.

    Dropped conditions: without `epoch_in_key` (C3b) a state is looked up by its canvas alone, also where the base
    would refresh first; without `true_age` (C1age) the age is copied from the node, whose count began at the root.
    """
    path, reference, age = [_value(canvas)], None, 0
    while -1 in path[-1]:
        root, due = path[-1], reference is None or age >= n
        epoch = root if due else reference
        node_age = 0 if due else age
        nodes = [node for chain in _states(drafter, root) for node in chain]
        views: list[View] = [(root, None if due else epoch), *((node, epoch) for node in nodes)]
        table: dict[Any, Floats] = {}
        for view, logits in zip(views, ask(denoise, views), strict=True):
            table.setdefault(view if epoch_in_key else view[0], logits)
        start = len(path)
        while -1 in path[-1]:
            due = reference is None or age >= n
            view = (path[-1], None if due else reference)
            logits_here = table.get(view if epoch_in_key else view[0])
            if logits_here is None:
                break
            if due:
                reference, age = path[-1], 0
            if not true_age and len(path) > start:
                age = node_age
            path.append(commit_surest(path[-1], logits_here))
            age += 1
        log.round(len(nodes), len(path) - start - 1)
    return path


# Keys and values frozen one step after the commit: flaw C3c.


def frozen_after(state: State, frozen: Frozen) -> Frozen:
    """What is frozen after a pass on `state`: the positions that were known in it, each at its first such pass."""
    return tuple(
        state if token >= 0 and old is None else old for token, old in zip(state, frozen, strict=True)
    )  # fmt: skip


def delayed_view(state: State, frozen: Frozen) -> View:
    """The question: for every position the canvas its keys and values come from; all masks stand for this canvas."""
    if all(old is None for old in frozen):
        return state, None
    return state, tuple(token for old in frozen for token in (old or (-1,) * len(state)))


def delayed(denoise: Denoise, canvas: Ints, seed: int) -> list[State]:
    """The base: every pass reads the keys and values of known positions as they were at their first pass."""
    path = [_value(canvas)]
    frozen: Frozen = (None,) * len(canvas)
    while -1 in path[-1]:
        logits = ask(denoise, [delayed_view(path[-1], frozen)])[0]
        frozen = frozen_after(path[-1], frozen)
        path.append(commit_surest(path[-1], logits))
    return path


def delayed_walk(
    denoise: Denoise, canvas: Ints, seed: int, *, drafter: Drafter, log: Log, path_in_key: bool = True
) -> list[State]:
    """`delayed` by drafts: each chain is a path from the root, and its nodes freeze along it.

    Without `path_in_key` (C3c) nodes on equal canvases are merged, whatever path they came by.
    """
    path = [_value(canvas)]
    frozen: Frozen = (None,) * len(canvas)
    while -1 in path[-1]:
        views = [delayed_view(path[-1], frozen)]
        for chain in _states(drafter, path[-1]):
            held = frozen_after(path[-1], frozen)
            for node in chain:
                views.append(delayed_view(node, held))
                held = frozen_after(node, held)
        table: dict[Any, Floats] = {}
        for view, logits in zip(views, ask(denoise, views), strict=True):
            table.setdefault(view if path_in_key else view[0], logits)
        start = len(path)
        while -1 in path[-1]:
            view = delayed_view(path[-1], frozen)
            logits_here = table.get(view if path_in_key else view[0])
            if logits_here is None:
                break
            frozen = frozen_after(path[-1], frozen)
            path.append(commit_surest(path[-1], logits_here))
        log.round(len(views) - 1, len(path) - start - 1)
    return path


def _value(canvas: Ints) -> State:
    return tuple(map(int, canvas))
