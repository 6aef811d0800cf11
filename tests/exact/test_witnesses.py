"""The witnesses: the numbers and paths they are known for, that a search finds every flaw, and that sound forms pass.

`found` and `sound` of a witness take a seed: long runs are the same calls with many seeds.
"""

from __future__ import annotations

from fractions import Fraction as F
from functools import partial

import numpy as np
import pytest

from trajspec.exact.cached import delayed, delayed_view, delayed_walk, every_n, every_n_walk, frozen_after
from trajspec.exact.check import check_drafters, replay
from trajspec.exact.law_check import compare_laws, read_law_case
from trajspec.exact.models import letters
from trajspec.exact.program import Denoise
from trajspec.exact.samplers import (
    low_confidence,
    mean_field,
    node_walk,
    random_order,
    rejection,
    rejection_sampled,
    seeded_walk,
)
from trajspec.exact.search import Log, Verdict
from trajspec.exact.tabular import HashModel
from trajspec.exact.witnesses import WITNESSES, Witness, explain, register
from trajspec.ir.errors import TrajspecError

HALF = F(1, 2)
#: What the witnesses' laws are: (base, flawed program), by outcome.
LAWS = {
    "K1": ({"aa": F(22, 27), "ba": F(5, 27)}, {"aa": F(2, 3), "ba": F(1, 3)}),
    "K2": ({"aa": HALF, "ab": HALF}, {"aa": F(3, 4), "ab": F(1, 4)}),
    "K3": ({"aa": F(1)}, {"aa": HALF, "ba": HALF}),
    "K3'": ({"aa": F(1)}, {"aa": HALF, "ba": HALF}),
    "K4": ({"aa": HALF, "bb": HALF}, {"aa": HALF, "ba": HALF}),
    "K5": ({"a": HALF, "b": HALF}, {"a": F(3, 4), "b": F(1, 4)}),
    "K6": ({"aaa": F(49, 64), "aba": F(15, 64)}, {"aaa": F(3, 4), "aba": F(1, 4)}),
    "K7": ({"a": F(2, 3), "b": F(1, 3)}, {"a": HALF, "b": HALF}),
}
VARIATIONS = {"K1": F(4, 27), "K2": F(1, 4), "K3": HALF, "K4": HALF, "K5": F(1, 4), "K6": F(1, 64), "K7": F(1, 6)}
#: Base, flawed program, and the program that keeps the condition.
SAMPLERS = {
    "K1": (low_confidence, partial(seeded_walk, step_in_key=False), seeded_walk),
    "K2": (low_confidence, partial(node_walk, blind=False), node_walk),
    "K3": (low_confidence, partial(rejection_sampled, whole_vector=False), rejection_sampled),
    "K3'": (mean_field, partial(rejection, target_positions=False), rejection),
    "K4": (mean_field, partial(rejection, true_logits=False), rejection),
    "K5": (mean_field, partial(rejection, candidates=2), rejection),
    "K6": (partial(random_order, ties=True), partial(random_order, ties=True, frozen=True), None),
    "K7": (mean_field, partial(rejection, coin_hidden=False), rejection),
}
PATHS = {
    "C1age": (["____", "a___", "aa__", "aaa_", "aaab"], ["____", "a___", "aa__", "aaa_", "aaaa"]),
    "C3b": (["__", "_a", "ba"], ["__", "_a", "aa"]),
    "C3c": (["___", "a__", "a_a", "aba"], ["___", "a__", "a_a", "aaa"]),
}
PROGRAMS = {
    "C1age": (partial(every_n, n=3), partial(every_n_walk, n=3, true_age=False), partial(every_n_walk, n=3)),
    "C3b": (partial(every_n, n=1), partial(every_n_walk, n=1, epoch_in_key=False), partial(every_n_walk, n=1)),
    "C3c": (delayed, partial(delayed_walk, path_in_key=False), delayed_walk),
}


def replay_line(text: str) -> str:
    return text.rpartition("replay  ")[2]


@pytest.mark.parametrize("name", LAWS)
def test_laws_are_those_of_the_table(name):
    base, flawed, sound = SAMPLERS[name]
    text = WITNESSES[name].replay()
    case = read_law_case(replay_line(text))
    laws = compare_laws(flawed, base, case)
    assert (laws.base, laws.ours) == LAWS[name]
    assert laws.tv == VARIATIONS[name.rstrip("'")] and f"total variation {laws.tv}" in text
    assert sum(laws.base.values()) == sum(laws.ours.values()) == 1
    if sound is not None:
        assert compare_laws(sound, base, case).tv == 0


def test_frozen_order_noise_without_ties_is_the_same_law():
    case = read_law_case(replay_line(WITNESSES["K6"].replay()))
    laws = compare_laws(partial(random_order, frozen=True), random_order, case)
    assert laws.tv == 0 and laws.base == {"aaa": F(11, 12), "aba": F(1, 12)}


@pytest.mark.parametrize("name", PATHS)
def test_paths_are_those_of_the_table(name):
    base, flawed, sound = PROGRAMS[name]
    text = WITNESSES[name].replay()
    found = replay(replay_line(text), flawed, base)
    assert [list(map(letters, path)) for path in (found.difference.path, found.difference.ours)] == list(PATHS[name])
    assert all(state in text for path in PATHS[name] for state in path)
    assert replay(replay_line(text), sound, base) is None


@pytest.mark.parametrize("name", [*LAWS, *PATHS])
def test_a_search_finds_the_flaw(name):
    verdict = WITNESSES[name].found(0)
    assert verdict.refuted and verdict.examples <= 400
    found = verdict.counterexample.case
    assert len(found.canvas) <= (4 if name == "C1age" else 3) and found.vocab <= 3
    rows = found.model.rows if name in PATHS else found.target
    assert len(rows) <= 4


@pytest.mark.parametrize("name", ["K1", "K2", "K3", "K4", "K6", "C1age", "C3b", "C3c"])
def test_the_sound_form_passes(name):
    """K3', K5 and K7 have the sound program of K4. Laws are compared on whole paths."""
    verdict = WITNESSES[name].sound(0)
    assert verdict.verdict == "not refuted" and verdict.examples >= 250
    if name != "K6":
        assert verdict.accepted > 50 and verdict.coverage["accepted > 0 and rounds > 1"] >= 5
    if name in LAWS:
        assert verdict.coverage["more than one outcome"] >= 100


def test_drafters_do_not_change_a_cached_decoder():
    walk = partial(every_n_walk, n=2)
    assert check_drafters(walk, examples=40, lengths=(2, 3)).verdict == "not refuted"
    assert check_drafters(partial(walk, epoch_in_key=False), examples=500, lengths=(3, 3), vocab=(2, 2)).refuted


def test_a_refresh_at_every_step_leaves_nothing_to_accept():
    log = Log()
    canvas, denoise = np.full(4, -1), Denoise(HashModel(3, 3, 50), 4)
    path = every_n(denoise, canvas, 0, n=1)
    # Even the base's own path as a draft is of no use: its states are evaluated in an old epoch.
    drafts = [[np.array(state) for state in path[1:]]]
    walked = every_n_walk(denoise, canvas, 0, n=1, drafter=lambda state: drafts, log=log)
    assert walked == path and log.accepted == 0 and log.drafted == 4 * 4
    lazy, log = every_n(denoise, canvas, 0, n=4), Log()
    drafts = [[np.array(state) for state in lazy[1:]]]
    assert every_n_walk(denoise, canvas, 0, n=4, drafter=lambda state: drafts, log=log) == lazy
    assert (log.rounds, log.accepted) == (1, 3) and lazy != path


def test_what_a_delayed_cache_has_seen():
    none = (None, None, None)
    first, second = (0, -1, -1), (0, -1, 1)
    assert frozen_after((-1, -1, -1), none) == none and delayed_view(first, none) == (first, None)
    held = frozen_after(first, none)
    assert held == (first, None, None) and frozen_after(second, held) == (first, None, second)
    assert delayed_view(second, held) == (second, (*first, -1, -1, -1, -1, -1, -1))


def test_explain():
    for name in [*LAWS, *PATHS]:
        text = explain(name)
        assert text.startswith(f"{name}: ") and "replay  " in text and "canvas  " in text
        assert WITNESSES[name].id == name
    assert explain("c3B") == explain("C3b") and explain("K3\u2032") == explain("K3'")
    assert "5/27" in explain("K1") and "ba       5/27      1/3   <-" in explain("K1")
    with pytest.raises(TrajspecError, match="no witness is called 'C99'; there are: C1, C1age"):
        explain("C99")


def test_an_id_is_taken_once():
    with pytest.raises(TrajspecError, match="a witness K1 already"):
        register(Witness("K1", "", "", str, lambda seed: Verdict("refuted", 0)))
