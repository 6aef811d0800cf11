"""Exact laws: what draws with and without keys mean, laws known by hand, and the check of samplers."""

from __future__ import annotations

from fractions import Fraction as F
from functools import partial

import pytest

from trajspec.exact.law_check import (
    LawCase,
    check_law,
    compare_laws,
    final,
    read_law_case,
    replay_law,
    table_case,
    whole,
)
from trajspec.exact.laws import Choices, Rows, law, tv
from trajspec.exact.samplers import couple, low_confidence, mean_field, node_walk, random_order, rejection
from trajspec.exact.search import Log
from trajspec.ir.errors import TrajspecError


def test_a_law_is_made_of_all_choices():
    def two_dice(choices):
        return choices.categorical([1] * 3) + choices.categorical([1] * 3)

    assert law(two_dice) == {0: F(1, 9), 1: F(2, 9), 2: F(3, 9), 3: F(2, 9), 4: F(1, 9)}

    def until_heads(choices):
        """A path's length may depend on its draws."""
        for count in range(3):
            if choices.flip(F(1, 3)):
                return count
        return 3

    assert law(until_heads) == {0: F(1, 3), 1: F(2, 9), 2: F(4, 27), 3: F(8, 27)}
    assert law(lambda choices: "sure") == {"sure": F(1)}
    assert law(lambda choices: (choices.categorical((0, 5, 0)), choices.flip(1), choices.flip(0))) == {
        (1, True, False): F(1)
    }


def test_a_keyed_draw_is_remembered():
    def same(choices):
        return choices.categorical((1, 1), "tok", 0), choices.categorical((1, 1), "tok", 0)

    def apart(choices):
        return choices.categorical((1, 1), "tok", 0), choices.categorical((1, 1), "draft", 0)

    assert law(same) == {(0, 0): F(1, 2), (1, 1): F(1, 2)}
    assert set(law(apart).values()) == {F(1, 4)}

    def other_weights(choices):
        """One number, read by two laws: the first token of each is where the number is small."""
        return choices.categorical((1, 2), "tok", 0), choices.categorical((1, 1), "tok", 0)

    assert law(other_weights) == {(0, 0): F(1, 3), (1, 0): F(1, 6), (1, 1): F(1, 2)}

    def coins(choices):
        return choices.flip(F(1, 2), key="k"), choices.flip(F(2, 3), key="k")

    assert law(coins) == {(True, True): F(1, 2), (False, True): F(1, 6), (False, False): F(1, 3)}


def test_total_variation():
    assert tv({"a": F(1)}, {"b": F(1)}) == 1 and tv({"a": F(1)}, {"a": F(1)}) == 0
    assert tv({"a": F(5, 27), "b": F(22, 27)}, {"a": F(1, 3), "b": F(2, 3)}) == F(4, 27)


@pytest.mark.parametrize("weights", [(0, 0), (1, -1), (2, -1), (-1, -1)])
def test_weights_are_checked(weights):
    with pytest.raises(TrajspecError, match="are no law"):
        Choices().categorical(weights)


def test_endless_laws_are_refused():
    def endless(choices):
        return [choices.flip(F(1, 2)) for _ in range(20)] and None

    with pytest.raises(TrajspecError, match="more than 100 choice paths"):
        law(endless, limit=100)


def test_rows_come_off_a_tape_in_the_order_of_the_queries():
    rows = Rows((1, 2, 0, 0, 3), 2)
    assert rows((-1, -1), 1) == (1, 2) and rows((-1, -1), 0) == (1, 0) and rows((0, -1), 1) == (3, 0)
    assert rows((-1, -1), 1) == (1, 2) and rows((1, -1), 1) == (1, 0)


def test_coupling_gives_the_target_law():
    """Theorem G1: min(p, q) and the residual make p; also with zeros on both sides."""
    for p, q in [((2, 1), (1, 1)), ((0, 1, 1), (1, 0, 1)), ((1, 1, 0), (0, 1, 2)), ((1, 2, 3), (1, 2, 3))]:

        def draw(choices, p=p, q=q):
            return couple(p, q, choices.categorical(q, "draft", 0), choices, 0)

        assert law(draw) == {token: F(weight, sum(p)) for token, weight in enumerate(p) if weight}


def test_bases_have_the_laws_worked_out_by_hand():
    case = table_case("__", {"__@0": (2, 1), "__@1": (1, 3), "_b@0": (1, 1)})
    # The surest position is 1: b with 3/4, then position 0 by its row; or a, and then a for sure.
    laws = compare_laws(mean_field, mean_field, case, outcome=whole)
    assert laws.base == {"__>_a>aa": F(1, 4), "__>_b>ab": F(3, 8), "__>_b>bb": F(3, 8)} and laws.tv == 0
    # Sampled everywhere: b at 1 is surest whatever comes at 0, a at 0 is surer than a at 1, and b at 0 than a at 1.
    laws = compare_laws(low_confidence, low_confidence, case, outcome=whole)
    assert laws.base == {"__>_b>ab": F(3, 8), "__>_b>bb": F(3, 8), "__>a_>aa": F(1, 6), "__>b_>ba": F(1, 12)}
    laws = compare_laws(random_order, random_order, table_case("___", {}), outcome=whole)
    assert set(laws.base.values()) == {F(1, 6)} and len(laws.base) == 6


def test_wider_steps_and_longer_chains_keep_the_law():
    for options in ({"width": 2}, {"depth": 1}, {"width": 2, "depth": 3}):
        base = partial(mean_field, width=options.get("width", 1))
        verdict = check_law(partial(rejection, **options), base, outcome=whole, examples=60)
        assert verdict.verdict == "not refuted" and verdict.accepted > 0
        assert verdict.coverage["more than one outcome"] > 20
    # Negative control: the width is part of the law of the path.
    assert check_law(partial(rejection, width=2), mean_field, outcome=whole, examples=200).refuted


def test_the_check_finds_shrinks_and_replays():
    program = partial(rejection, coin_hidden=False)
    verdict = check_law(program, mean_field, examples=500)
    found = verdict.counterexample
    assert verdict.refuted and found.case.canvas == (-1,) and found.case.vocab == 2
    assert len(found.case.target) + len(found.case.draft) <= 2 and found.difference.tv > 0
    assert f"total variation {found.difference.tv}" in str(verdict) and "<-" in str(verdict)
    assert read_law_case(found.replay) == found.case
    assert replay_law(found.replay, program, mean_field) == found
    assert replay_law(found.replay, rejection, mean_field) is None
    assert verdict.as_dict()["counterexample"]["tv"] == str(found.difference.tv)
    assert verdict == check_law(program, mean_field, examples=500)


def test_what_never_accepted_is_inconclusive():
    def rejects(world, choices):
        path = mean_field(world, choices)
        choices.log.round(1, 0)
        return path

    assert check_law(rejects, mean_field, examples=20).verdict == "inconclusive"
    verdict = check_law(mean_field, mean_field, examples=20)
    assert verdict.verdict == "not refuted" and verdict.drafted is None


def test_logs_count_all_choice_paths():
    log = Log()
    compare_laws(node_walk, low_confidence, table_case("__", {"a_@1": (1, 1)}), log=log)
    assert log.reporting and log.drafted == 2 and log.accepted == 2


def test_cases_are_read_and_refused():
    case = LawCase((-1, -1), 3, (1, 2, 0, 3), ())
    assert read_law_case('{"canvas": "__", "vocab": 3, "target": [1, 2, 0, 3], "draft": []}') == case
    assert "tape" in case.lines()[1]
    table = table_case("_b", {"_b@0": (1, 2, 3)}, vocab=3)
    assert table.lines() == ["canvas  _b   tokens abc", "model   _b@0:(1,2,3)  all else a", "draft   always a"]
    with pytest.raises(TrajspecError, match="row _@0 has 3 weights; expected 2"):
        table_case("_", {"_@0": (1, 2, 3)})
    with pytest.raises(TrajspecError, match="copy the whole replay text"):
        read_law_case("{}")
    assert final([(-1, -1), (0, 1)]) == "ab" and whole([(-1, -1), (0, 1)]) == "__>ab"
