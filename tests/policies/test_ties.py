"""What recorded runs cannot show: comparisons at exact equality, and the order of ties."""

from __future__ import annotations

import math

import numpy as np
import pytest

import trajspec as ts
from trajspec.exact.tabular import FixedModel
from trajspec.ir import interpret
from trajspec.policies import POLICIES
from trajspec.runtime.denoiser import FromNumpy
from trajspec.runtime.loop import run

EVEN = (0, 0.0)  # with the mask id (2) left out: two tokens of probability 1/2
SURE = (0, 9000.0)  # probability 1
FIVE = (0, 5.0)  # a gap of exactly 5


def first_step(name: str, logits: list[tuple[int, float]], settings: dict) -> list[int]:
    """The positions that the first step writes, the same in both meanings."""
    plan = POLICIES[name].bind(**settings).plan()
    model = FixedModel(logits, vocab_size=3)
    row = ts.canvas([], gen_length=len(logits), vocab_size=3, mask_id=2)
    path = interpret.run(plan, model, row).path
    (ours,), _ = run(plan, FromNumpy(model), [row])
    written = np.flatnonzero(path[0].masked & ~path[1].masked).tolist()
    assert [place for place, _ in ours.path[0]] == written
    return written


ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "settings", "logits", "written"),
    [
        # "At least the threshold".
        ("dinfer_threshold", {"threshold": 0.5}, [EVEN] * 4, ALL),
        ("dinfer_credit", {"threshold": 0.5, "credit_alpha": 0.0}, [EVEN] * 4, ALL),
        ("dpad_all_kept", {"threshold": 0.5}, [EVEN] * 4, ALL),
        ("dinfer_threshold", {"threshold": 0.50001}, [EVEN] * 4, [0]),
        # "Above the threshold": at equality only the leftmost of the surest goes.
        ("sdar_dynamic", {"threshold": 0.5, "denoising_steps": 4}, [EVEN] * 4, [0]),
        ("sdar_dynamic", {"threshold": 0.49999, "denoising_steps": 4}, [EVEN] * 4, ALL),
        ("sglang_low_confidence", {"threshold": 0.5}, [EVEN] * 4, [0]),
        ("sglang_low_confidence", {"threshold": 0.49999}, [EVEN] * 4, ALL),
        ("sglang_joint_threshold", {"threshold": 0.5}, [EVEN] * 4, [0]),
        ("sglang_joint_threshold", {"threshold": 0.49999}, [EVEN] * 4, ALL),
        # Above the low threshold, all that tie for the best of their run; at equality none of them.
        ("dinfer_hierarchy", {"low_threshold": 0.4}, [EVEN] * 4, ALL),
        ("dinfer_hierarchy", {"low_threshold": 0.5}, [EVEN] * 4, [0]),
        ("dinfer_hierarchy", {"threshold": 0.5, "low_threshold": 0.45}, [SURE, EVEN, EVEN, EVEN], [0]),
        # The bound of the second is exactly 0: 1 + 1/2 - 1 - 1/2.
        ("frechet", {"margin": 0.0}, [SURE, EVEN, EVEN, EVEN], [0]),
        ("frechet", {"margin": -1e-9}, [SURE, EVEN, EVEN, EVEN], [0, 1]),
        ("frechet", {"margin": -1e-9}, [EVEN, EVEN, SURE, EVEN], [0, 2]),
        # Entropies before the last one sum up to at most gamma; ties from left to right.
        ("eb_sampler", {"gamma": math.log(2)}, [EVEN] * 4, [0, 1]),
        ("eb_sampler", {"gamma": math.log(2) - 1e-9}, [EVEN] * 4, [0]),
        ("eb_sampler", {"gamma": math.log(2)}, [EVEN, EVEN, EVEN, SURE], [0, 1, 3]),
        # The gap is at least the limit.
        ("prophet", {"gap_thresholds": (5.0, 9.0, 9.0)}, [FIVE] * 4, ALL),
        ("prophet", {"gap_thresholds": (5.00001, 9.0, 9.0)}, [FIVE] * 4, [0]),
        # An even share of a tie goes to the leftmost.
        ("sdar_static", {"denoising_steps": 2}, [EVEN] * 4, [0, 1]),
        ("sdar_static", {"denoising_steps": 3}, [EVEN] * 4, [0, 1]),
    ],
)
def test_equality_and_ties(name, settings, logits, written):
    settings = settings | ({"block_length": 4} if name.startswith("sdar") else {"block_length": None})
    assert first_step(name, logits, settings) == written


def test_an_edit_at_the_threshold_is_not_made():
    # Once everything is written, token 1 has probability 1 wherever 0 stands.
    class Turning:
        vocab_size, mask_id = 3, 2

        def __call__(self, tokens, positions, visible):
            likes = np.array([[-np.inf, 3.0, 0.0], [0.0, 0.0, -30.0]])
            full = (tokens != 2).all(axis=-1, keepdims=True)
            begin = np.broadcast_to(np.array([3.0, 0.0, -30.0]), (*tokens.shape, 3))
            later = np.where((tokens == 0)[..., None], likes[0], likes[1])
            return np.where(full[..., None], later, begin)

    def ends(edit_threshold: float) -> list[int]:
        settings = {"threshold": 0.0, "edit_threshold": edit_threshold, "block_length": None}
        plan = POLICIES["sglang_joint_threshold"].bind(**settings).plan()
        row = ts.canvas([], gen_length=3, vocab_size=3, mask_id=2)
        end = interpret.run(plan, Turning(), row).canvas
        (ours,), _ = run(plan, FromNumpy(Turning()), [row])
        assert ours.canvas.tokens.tolist() == end.tokens.tolist()
        return end.tokens.tolist()

    assert ends(1.0) == [0, 0, 0]  # its probability is 1, not above 1
    assert ends(0.99) == [1, 1, 1]
