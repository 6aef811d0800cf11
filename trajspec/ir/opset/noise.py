"""Randomness that belongs to the row: a function of (row seed, role, step, position, token), never of a generator."""

from __future__ import annotations

import numpy as np

from .. import noise
from ..canvas import Canvas
from ..errors import TrajspecError
from ..op import op
from .score import exact, first_max


def _warm(temperature: float, **_: object) -> None:
    if temperature < 0:
        raise TrajspecError(f"temperature is {temperature}, expected 0 (the likeliest token) or more")


@op("sample(x: canvas, logits: logits, *, temperature: float = 1.0) -> token: tokens", clocked=True, check=_warm)
def sample(x: Canvas, logits: np.ndarray, *, temperature: float) -> np.ndarray:
    """A token drawn at each position from softmax(logits / temperature); at temperature 0 the likeliest one.

    The largest of logits / temperature + Gumbel noise, which has exactly that law.
    """
    if temperature == 0:
        return first_max(logits)
    tokens = np.arange(logits.shape[-1])
    seed, step = x.seed[..., None], x.step[..., None]
    noisy = noise.gumbel(seed, noise.ROLES["tok"], step, x.position[..., None], tokens)
    return first_max(exact(logits) / temperature + noisy)


@op("uniform(x: canvas) -> u: scores", clocked=True)
def uniform(x: Canvas) -> np.ndarray:
    """A number between 0 and 1 at each position, new at every step."""
    return noise.uniform(x.seed, noise.ROLES["ord"], x.step, x.position)


@op("gumbel(x: canvas) -> g: scores", clocked=True)
def gumbel(x: Canvas) -> np.ndarray:
    """Gumbel noise at each position: the k largest of score + gumbel are a draw without replacement from exp(score)."""
    return noise.gumbel(x.seed, noise.ROLES["ord"], x.step, x.position)


@op("uniform_of(x: canvas, number: count) -> u: scores", whole=("number",))
def uniform_of(x: Canvas, number: np.ndarray) -> np.ndarray:
    """A number between 0 and 1 at each position, the same as long as `number` is: what is drawn once for a block.

    Keyed by (row seed, role "view", number, position); of `number` the whole part counts.
    """
    return noise.uniform(x.seed, noise.ROLES["view"], np.floor(number).astype(np.int64), x.position)


@op("token_at(x: canvas, u: scores) -> token: tokens")
def token_at(x: Canvas, u: np.ndarray) -> np.ndarray:
    """The token that a number u from 0 to below 1 stands for: floor(u V), every id of the vocabulary alike."""
    size = x.allowed.shape[-1]
    return np.clip(np.floor(u * size).astype(np.int64), 0, size - 1)
