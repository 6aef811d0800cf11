"""Decoders as somebody else might write them, right and wrong, for tests of the checker."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

RUNS = count()


def confidence(logits: np.ndarray) -> np.ndarray:
    """Log probability of the likeliest token [L], computed as the interpreter computes it."""
    top = logits.argmax(-1)
    others = np.exp(logits - logits.max(-1, keepdims=True))
    others[np.arange(len(logits)), top] = 0
    return -np.log1p(others.sum(-1))


def softmax_confidence(logits: np.ndarray) -> np.ndarray:
    """The same but for rounding."""
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return (exps / exps.sum(-1, keepdims=True)).max(-1)


def commit(canvas: np.ndarray, logits: np.ndarray, sure: Any = confidence) -> np.ndarray:
    """The canvas with the likeliest token of the surest masked position, ties to the lowest."""
    canvas, place = canvas.copy(), np.where(canvas < 0, sure(logits), -np.inf).argmax()
    canvas[place] = logits[place].argmax()
    return canvas


def one_a_step(denoise, canvas, seed):
    """The base of these tests: the surest position of the canvas, one a step."""
    path = [canvas]
    while (path[-1] < 0).any():
        path.append(commit(path[-1], denoise(path[-1][None])[0]))
    return path


def by_softmax(denoise, canvas, seed):
    """The same with scores that round differently."""
    path = [canvas]
    while (path[-1] < 0).any():
        path.append(commit(path[-1], denoise(path[-1][None])[0], softmax_confidence))
    return path


def left_to_right(denoise, canvas, seed):
    """Another rule: the first masked position."""
    path = [canvas]
    while (path[-1] < 0).any():
        place = int((path[-1] < 0).argmax())
        state = path[-1].copy()
        state[place] = denoise(state[None])[0, place].argmax()
        path.append(state)
    return path


def nondeterministic(denoise, canvas, seed):
    """Goes wrong in every third run, whatever it is given."""
    path = one_a_step(denoise, canvas, seed)
    last = path[-1].copy()
    if next(RUNS) % 3 == 2:
        last[0] = 1 - min(last[0], 1)
    return [*path[:-1], last]


def crashing(denoise, canvas, seed):
    """Reads one position too many on canvases of 3 and more."""
    path = one_a_step(denoise, canvas, seed)
    if len(canvas) > 2:
        canvas[len(canvas)] = 0
    return path


def speculating(denoise, canvas, seed, *, drafter, log, flaw="", rounds=False):
    """`one_a_step` by a table of drafted states, with a flaw by name or none."""
    path, reported = [canvas], [canvas]
    while (path[-1] < 0).any():
        nodes = [] if flaw == "no drafts" else [node for chain in drafter(path[-1]) for node in chain]
        asked = np.array([path[-1], *nodes])
        table = {tuple(state.tolist()): logits for state, logits in zip(asked, denoise(asked), strict=True)}
        start = len(path)
        while (path[-1] < 0).any() and tuple(path[-1].tolist()) in table:
            state, logits = path[-1], table[tuple(path[-1].tolist())]
            if flaw == "never accepts" and len(path) > start:
                break
            if flaw == "node isolation" and nodes:
                logits = table[tuple(nodes[-1].tolist())]
            if flaw == "positions" and len(path) > start:
                state = state.copy()
                place = int((state < 0).argmax())
                state[place] = logits[place].argmax()
                path.append(state)
            else:
                path.append(commit(state, logits))
        log.round(len(nodes), len(path) - start - 1)
        reported.append(path[-1])
        if flaw == "jumps" and nodes and len(nodes[0]) and (nodes[0] >= 0).all():
            path.append(nodes[0])
    return reported if rounds else path
