"""What several transcriptions need: probabilities, cuts, schedules and keyed draws, in the plainest form."""

from __future__ import annotations

from typing import Any

import numpy as np

from trajspec.ir.noise import ROLES, gumbel

NEVER = -1e30


def say(model: Any, tokens: list[int], sees: list[list[bool]] | None = None, positions: list[int] | None = None) -> Any:
    """The logits [W, V] of one row; `sees[i][j]`: entry i may look at entry j."""
    at = list(range(len(tokens))) if positions is None else positions
    visible = None if sees is None else np.array([sees])
    return np.array(model(np.array([tokens]), np.array([at]), visible)[0], np.float64)


def shift(raw: Any) -> Any:
    """The logits of an autoregressive model moved one place to the right, so that they are about their own place."""
    out = raw.copy()
    for i in range(1, len(raw)):
        out[i] = raw[i - 1]
    return out


def softmax(row: Any) -> Any:
    each = np.exp(row - max(row))
    return each / each.sum()


def top_p(row: Any, p: float | None) -> Any:
    """The row without the tokens behind the one at which the sorted probabilities reach p."""
    if p is None or p >= 1:
        return row
    order = sorted(range(len(row)), key=lambda v: (-row[v], v))
    share, out, total = softmax(row), row.copy(), 0.0
    for place, v in enumerate(order):
        if place > 0 and total > p:
            out[v] = NEVER
        total += share[v]
    return out


def top_k(row: Any, k: int | None) -> Any:
    """The row without the tokens below the k-th largest logit."""
    if k is None or k >= len(row):
        return row
    least = sorted(row, reverse=True)[k - 1]
    return np.array([value if value >= least else NEVER for value in row])


def draw(row: Any, seed: int, step: int, position: int) -> int:
    """A token from softmax(row), by the largest of logit plus Gumbel noise."""
    noise = gumbel(seed, ROLES["tok"], step, position, np.arange(len(row)))
    return int(np.argmax(row + noise))


def shares(masks: int, steps: int) -> list[int]:
    """An even schedule: the first steps take what is left over."""
    return [masks // steps + (1 if i < masks % steps else 0) for i in range(steps)]


def ranked(places: list[int], score: dict[int, float]) -> list[int]:
    """The places from the best score down, ties from left to right."""
    return sorted(places, key=lambda i: (-score[i], i))
