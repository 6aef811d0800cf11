"""Positions drawn at random."""

from __future__ import annotations

import itertools

import numpy as np
import torch

import trajspec as ts
from trajspec.exact.tabular import FixedModel
from trajspec.ir import OPS
from trajspec.ir.canvas import canvas
from trajspec.runtime.batch import stack
from trajspec.runtime.meanings import MEANINGS

# T15: random choice of positions


SCORES = np.array([-np.inf, 0, -6, -6, -np.inf])
INSIDE = np.array([False, True, True, True, False])


def chosen(seed: int, k: int, alg_temp: float) -> tuple[int, ...]:
    """Positions that a draw with weights by / alg_temp takes, the same in numpy and torch."""
    x = canvas([0, 7, 7, 7, 0], [False, True, True, True, False], vocab_size=8, mask_id=7, seed=seed)
    noisy = SCORES / alg_temp + OPS["gumbel"].numpy(x)
    plain = OPS["top"].numpy(noisy, np.array([k]), where=INSIDE)
    batch = stack([x])
    noisy = torch.tensor(SCORES)[None] / alg_temp + MEANINGS["gumbel"](batch)
    assert MEANINGS["top"](noisy, k, where=torch.tensor(INSIDE)[None])[0].tolist() == plain.tolist()
    return tuple(plain.nonzero()[0].tolist())


def test_t15_only_masks_are_drawn():
    assert {chosen(seed, 3, 0.05) for seed in range(60)} == {(1, 2, 3)}
    assert {chosen(seed, 2, 0.05) for seed in range(200)} == {(1, 2), (1, 3)}
    for k, alg_temp in itertools.product((1, 2, 3, 4), (1e-3, 1.0, 50.0)):
        assert all(set(chosen(seed, k, alg_temp)) <= {1, 2, 3} for seed in range(30))


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    return float(((counts - counts.sum() * law) ** 2 / (counts.sum() * law)).sum())


def test_t15_the_first_choice_follows_the_softmax():
    alg_temp, draws = 6.0, 3000
    law = np.exp(SCORES[1:4] / alg_temp)
    law /= law.sum()
    rows = [
        canvas([0, 7, 7, 7, 0], [False, True, True, True, False], vocab_size=8, mask_id=7, seed=seed)
        for seed in range(draws)
    ]
    noisy = torch.tensor(SCORES) / alg_temp + MEANINGS["gumbel"](stack(rows))
    first = MEANINGS["top"](noisy, 1, where=torch.from_numpy(INSIDE).expand(draws, -1))
    counts = first.sum(0).numpy()[1:4]
    assert counts.sum() == draws
    assert chi_square(counts, law) < 9.2  # the 99 % point with two degrees of freedom; the seeds are fixed
    # Another law is told apart.
    assert chi_square(counts, np.full(3, 1 / 3)) > 50
    assert chi_square(counts, np.exp(SCORES[1:4] / 5.0) / np.exp(SCORES[1:4] / 5.0).sum()) > 9.2


def test_t15_given_tokens_stay():
    model = FixedModel([(2, 40.0)] + [(2, 0.1)] * 6, vocab_size=10, mask_id=9, shift=True)
    for seed in range(20):
        result = ts.decode(
            model, [1, 9, 9, 9, 9, 4, 9], infill=True, policy="entropy", alg_temp=0.02, steps=2, seed=seed
        )
        assert result[0].token_ids == [1, 2, 2, 2, 2, 4, 2]
