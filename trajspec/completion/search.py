"""A path through a diffusion model's candidates that reads well from left to right (DiffuSpec, arXiv 2510.02358)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from torch import Tensor

#: As published: candidates up to this share of a position, at most so many, and so many paths kept.
SHARE, CANDIDATES, BEAM = 0.8, 15, 3
#: The weight of the diffusion model against the counts.
WEIGHT = 0.5


def best_paths(probabilities: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each of `probabilities`, R of [k, V], the tokens of the best path after the text, by a beam from the left.

    A path's score is the sum of WEIGHT log p + (1 - WEIGHT) log of a count model: triples, pairs and tokens of the
    text, mixed, with one more count for every token. (The paper counts a corpus; here it is the text itself.)
    """
    return [_best(rows, list(text)) for rows, text in zip(probabilities, texts, strict=True)]


def _best(rows: Tensor, text: list[int]) -> list[int]:
    counts = [Counter(tuple(text[at : at + size]) for at in range(len(text) - size + 1)) for size in (1, 2, 3)]
    size = rows.shape[-1]

    def log_count(before: list[int], token: int) -> float:
        pair, triple = (tuple(before[-n:]) for n in (1, 2))
        one = (counts[0][(token,)] + 1) / (len(text) + size)
        two = (counts[1][(*pair, token)] + one) / (counts[0][pair] + 1)
        return math.log((counts[2][(*triple, token)] + two) / (counts[1][triple] + 1))

    paths: list[tuple[float, list[int]]] = [(0.0, [])]
    for row in rows:
        values, ids = row.sort(descending=True, stable=True)
        count = min(int((values.cumsum(0) < SHARE).sum()) + 1, CANDIDATES)
        options = list(zip(values[:count].tolist(), ids[:count].tolist(), strict=True))
        grown = [
            (
                score + WEIGHT * math.log(max(p, 1e-30)) + (1 - WEIGHT) * log_count([*text[-2:], *path], token),
                [*path, token],
            )
            for score, path in paths
            for p, token in options
        ]
        paths = sorted(grown, key=lambda one: -one[0])[:BEAM]
    return paths[0][1]
