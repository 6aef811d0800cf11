"""The witnesses of plans: the states of the table, that a search finds every flaw, and that the sound plan passes."""

from __future__ import annotations

import pytest

from trajspec.exact.models import letters
from trajspec.exact.plan_check import compare_plans
from trajspec.exact.plan_witnesses import PLANS
from trajspec.exact.search import Log
from trajspec.exact.witnesses import WITNESSES, explain

#: What base and flawed plan go through on the smallest case, after the canvas itself.
PATHS = {
    "C1": ("_b_>aba", "_b_>ab_>abb"),
    "C1c": ("a__>aa_>aaa", "a__>aaa"),
    "C2": ("b_>ba", "a_>aa"),
    "C3": ("b_>bb", "b_>ba"),
    "C4": ("a_>aa", "b_>ba"),
    "C5": ("a_>aa", "_b>ab"),
    "C6": ("b_", "b_>ba"),
    "C7": ("_a>aa", "ba"),
    "C8": ("_b>ab", "a_>aa"),
    "C8b": ("_b>ab", "a_>aa"),
    "C8c": ("b", "a"),
    "C8d": ("a", "b"),
    "C8e": ("ab", "a_>aa"),
    "C9": ("b___>ba__>baa_>baaa", "a___>aa__>aaa_>aaaa"),
}


def text(path: object) -> str:
    return ">".join(map(letters, path[1:]))  # type: ignore[index]


def test_there_is_one_for_every_condition() -> None:
    assert set(PATHS) == set(PLANS) <= set(WITNESSES)


@pytest.mark.parametrize("name", PATHS)
def test_states_are_those_of_the_table(name: str) -> None:
    made = PLANS[name]
    difference = compare_plans(made.flawed, made.base, wrap=made.wrap)(made.case, Log())
    assert difference is not None
    assert (text(difference.path), text(difference.ours)) == PATHS[name]


@pytest.mark.parametrize("name", PATHS)
def test_the_setting_that_keeps_the_condition_keeps_the_path(name: str) -> None:
    made = PLANS[name]
    assert compare_plans(made.sound, made.base, wrap=made.wrap)(made.case, Log()) is None


@pytest.mark.parametrize("name", PATHS)
def test_explained(name: str) -> None:
    told = explain(name)
    base, ours = PATHS[name]
    assert told.startswith(f"{name}: ") and "<-" in told
    for state in (*base.split(">"), *ours.split(">")):
        assert state in told
