"""The exact law of every draft form and verification is the target's, and every dropped condition is found."""

from __future__ import annotations

from functools import partial

import pytest

from trajspec.exact import completion_witnesses  # noqa: F401  (registers its own)
from trajspec.exact.completions import autoregressive, completion
from trajspec.exact.law_check import check_law, compare_laws, table_case, whole
from trajspec.exact.witnesses import WITNESSES, explain

G = [f"G{number}" for number in range(1, 14)]

SOUND = [
    {"form": "mean_field"},
    {"form": "mean_field", "drafts": 2},
    {"form": "mean_field", "drafts": 3, "length": 1},
    {"form": "left_to_right"},
    {"form": "two_phase"},
    {"form": "mean_field", "equality": True},
    {"form": "mean_field", "equality": True, "drafts": 2},
    {"form": "left_to_right", "equality": True},
    {"form": "right_to_left", "equality": True},
    {"form": "two_phase", "equality": True},
    {"greedy": True, "equality": True},
    {"certain": True},  # a draft without a law has probability 1, which is exact
    {"distinct": True},
]


@pytest.mark.parametrize("options", SOUND, ids=str)
def test_every_form_has_the_law_of_the_target(options):
    verdict = check_law(partial(completion, **options), autoregressive, outcome=whole, examples=60, seed=1)
    assert not verdict.refuted, str(verdict)
    assert verdict.accepted > 0 and verdict.drafted > verdict.accepted


@pytest.mark.parametrize("options", SOUND[:6], ids=str)
def test_two_rounds_over_three_tokens(options):
    """A law written down: three tokens, three positions, drafts of one or two."""
    row = {"___@0": (1, 2, 1), "a__@1": (1, 1, 1), "b__@1": (1, 1, 1), "c__@1": (0, 1, 2), "ab_@2": (1, 1, 0)}
    draft = {"___@0": (2, 1, 1), "___@1": (1, 1, 1), "a__@1": (1, 1, 1), "_a_@0": (1, 0, 1), "b__@1": (0, 1, 1)}
    told = options | {"length": min(options.get("length", 2), 2), "drafts": min(options.get("drafts", 1), 1)}
    found = compare_laws(partial(completion, **told), autoregressive, table_case("___", row, draft, 3), outcome=whole)
    assert found.tv == 0 and len(found.base) >= 8


def test_processed_laws():
    verdict = check_law(
        partial(completion, processed=True), partial(autoregressive, processed=True), outcome=whole, examples=60
    )
    assert not verdict.refuted and verdict.accepted > 0
    assert check_law(partial(completion, processed=True), autoregressive, outcome=whole, examples=60).refuted


@pytest.mark.parametrize("name", G)
def test_every_dropped_condition_is_found_and_the_sound_form_passes(name):
    witness = WITNESSES[name]
    found = witness.found(0)
    assert found.refuted and found.examples <= 400, str(found)
    assert witness.sound is not None and not witness.sound(0).refuted
    assert "total variation" in explain(name) and explain(name).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("name", "tv"),
    [
        ("G1", "1/24"), ("G2", "1/2"), ("G3", "1/12"), ("G4", "1/10"), ("G5", "1/6"), ("G6", "1/6"), ("G7", "1/4"),
        ("G8", "2/15"), ("G9", "1/3"), ("G10", "1/4"), ("G11", "1/4"), ("G12", "1/4"), ("G13", "1/4"),
    ],
)  # fmt: skip
def test_how_far_the_witnesses_are_off(name, tv):
    assert f"total variation {tv}\n" in explain(name)
