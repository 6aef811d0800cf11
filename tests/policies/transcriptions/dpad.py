"""DPad without a cache: the suffix behind the open block is mostly left out of the model's input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trajspec.ir.noise import ROLES, uniform

from .common import NEVER, draw, ranked, say, shares, softmax


def suffix_kept(
    dropout: str, behind: list[int], seed: int, number: int, sigma: float, scale: float, window: int, preserved: int,
    but: str = "",
) -> list[int]:  # fmt: skip
    """Which of the positions `behind` the block number `number` the model gets to see, in order."""
    end = behind[0] if behind else 0
    kept = []
    coin = {at: float(uniform(seed, ROLES["view"], number, at)) for at in behind}
    near = [at for at in behind if at - end < window]
    if dropout == "uniform":
        return sorted(sorted(near, key=lambda at: -coin[at])[:preserved])
    places = np.linspace(0, sigma, window)
    for at in near:
        z = places[at - end] if but != "off_by_one" else places[min(at - end + 1, window - 1)]
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        if coin[at] < min(1.0, scale * density):
            kept.append(at)
    return kept


def dpad(
    model: Any, mask_id: int, prompt: list[int], length: int, block: int, *, threshold: float | None = None,
    steps: int = 1, dropout: str = "gaussian", sigma: float = 4.0, scale: float = 2.0, window: int = 256,
    preserved: int = 0, temperature: float = 0.0, eos_id: int | None = None, seed: int = 0, but: str = "",
) -> list[list[int]]:  # fmt: skip
    """The states of filling in `length` ids, a multiple of `block`, by a threshold or `steps` even steps in all."""
    x = list(prompt) + [-1] * length
    states = [x[:]]
    for number in range(length // block):
        start = len(prompt) + number * block
        end = start + block
        left = shares(sum(x[i] < 0 for i in range(start, end)), steps // (length // block))
        draws = 0
        kept = suffix_kept(dropout, list(range(end, len(x))), seed, number, sigma, scale, window, preserved, but)
        while any(x[i] < 0 for i in range(start, end)):
            if but == "drawn_anew":
                behind = list(range(end, len(x)))
                kept = suffix_kept(dropout, behind, seed, len(states) - 1, sigma, scale, window, preserved)
            shown = list(range(end)) + (kept if but != "no_suffix" else [])
            places = list(range(len(shown))) if but == "close_up" else shown
            logits = say(model, [mask_id if x[at] < 0 else x[at] for at in shown], None, places)
            logits[:, mask_id] = NEVER
            token, sure = {}, {}
            for i in [at for at in range(start, end) if x[at] < 0]:
                token[i] = int(np.argmax(logits[i]))
                if temperature > 0:
                    token[i] = draw(logits[i] / temperature, seed, len(states) - 1, i)
                sure[i] = softmax(logits[i])[token[i]]  # of the logits as they are
            order = ranked(list(sure), sure)
            if threshold is None:
                take = order[: max(left[draws], 1)]
            else:
                take = [i for i in order if (sure[i] > threshold if but == "above" else sure[i] >= threshold)]
                take = take or order[:1]
            for i in take:
                x[i] = token[i]
            draws += 1
            if all(x[i] >= 0 for i in range(start, end)) and eos_id is not None and eos_id in x[start:end]:
                x = [eos_id if id_ < 0 else id_ for id_ in x]
            states.append(x[:])
        if all(id_ >= 0 for id_ in x):
            break
    return states
