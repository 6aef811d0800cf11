"""The checker of programs: what it refutes and how small, what it lets pass, and when it says it cannot tell."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from tests.exact.decoders import (
    by_softmax,
    crashing,
    left_to_right,
    nondeterministic,
    one_a_step,
    speculating,
)
from trajspec.exact.case import Case, Drafts
from trajspec.exact.check import check_drafters, check_program, last_state, replay, rounds_only, whole_path
from trajspec.exact.models import Hash, Table
from trajspec.exact.program import plan_program
from trajspec.exact.search import Log, minimise, search
from trajspec.ir.errors import TrajspecError
from trajspec.policies import POLICIES

FLAWS = ("positions", "node isolation")


def test_a_right_program_passes_and_says_what_it_met():
    verdict = check_program(speculating, one_a_step, examples=120)
    assert verdict.verdict == "not refuted" and not verdict.refuted and verdict.counterexample is None
    assert verdict.drafted > verdict.accepted > 0
    for fact in ("accepted > 0", "rounds > 1", "accepted > 0 and rounds > 1", "several base steps"):
        assert verdict.coverage[fact] >= 5, verdict
    assert "NOT REFUTED after 120 examples" in str(verdict) and "drafted" in str(verdict)


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_found_and_shrunk(flaw):
    program = partial(speculating, flaw=flaw)
    verdict = check_program(program, one_a_step, examples=2000)
    found = verdict.counterexample
    assert verdict.refuted and found.difference.path != found.difference.ours
    assert len(found.case.canvas) <= 3 and found.case.vocab == 2
    assert isinstance(found.case.model, Table) and len(found.case.model.rows) <= 2
    assert isinstance(found.case.drafts, Drafts) and sum(map(len, found.case.drafts.chains)) <= 2
    # The text says it all, and the replay line brings it back.
    text = str(verdict)
    assert "REFUTED" in text and "all else uniform" in text and "<-" in text and "___"[: len(found.case.canvas)] in text
    again = replay(found.replay, program, one_a_step)
    assert again == found and again.as_dict() == found.as_dict()
    assert replay(found.replay, speculating, one_a_step) is None
    assert json.loads(json.dumps(verdict.as_dict()))["counterexample"]["base"][0] == found.as_dict()["canvas"]


def test_the_same_seed_finds_the_same():
    program = partial(speculating, flaw="node isolation")
    first, second = (check_program(program, one_a_step, examples=400, seed=3) for _ in range(2))
    assert first == second and first.refuted and first.seed == 3
    other = (
        check_program(speculating, one_a_step, examples=20, seed=3),
        check_program(speculating, one_a_step, examples=20, seed=4),
    )
    assert other[0].coverage != other[1].coverage


@pytest.mark.parametrize(
    ("flaw", "reason"), [("no drafts", "nothing was drafted"), ("never accepts", "no drafted state was ever accepted")]
)
def test_what_never_verified_anything_is_inconclusive(flaw, reason):
    verdict = check_program(partial(speculating, flaw=flaw), one_a_step, examples=60)
    assert verdict.verdict == "inconclusive" and reason in verdict.reason and reason in str(verdict)
    assert verdict.accepted == 0 and verdict.as_dict()["verdict"] == "inconclusive"


def test_a_program_that_reports_nothing_is_judged_by_its_path():
    verdict = check_program(one_a_step, one_a_step, examples=60)
    assert verdict.verdict == "not refuted" and verdict.drafted is None and verdict.accepted is None
    assert "drafts could not be counted" in str(verdict)
    verdict = check_program(left_to_right, one_a_step, examples=500)
    case = verdict.counterexample.case
    assert verdict.refuted and case.canvas == (-1, -1) and len(case.model.rows) == 1
    assert verdict.counterexample.as_dict()["program"][1] == "a_"


def test_a_plan_is_a_program():
    plan = plan_program(POLICIES["llada_low_confidence"].bind(steps=8, block_length=8).plan())
    assert check_program(one_a_step, plan, examples=60).verdict == "not refuted"
    assert check_program(speculating, plan, examples=40).verdict == "not refuted"
    # Noise of the same seed is the same noise.
    warm = plan_program(POLICIES["llada_low_confidence"].bind(steps=8, block_length=8, temperature=1.0).plan())
    assert check_program(warm, warm, examples=60).verdict == "not refuted"
    assert check_program(lambda d, c, seed: warm(d, c, seed + 1), warm, examples=100, lengths=(1, 2)).refuted


def test_a_case_the_base_refuses_is_left_out():
    def picky(denoise, canvas, seed):
        if len(canvas) != 2:
            raise TrajspecError("only two")
        return one_a_step(denoise, canvas, seed)

    verdict = check_program(one_a_step, picky, examples=100)
    assert verdict.verdict == "not refuted"
    assert 0 < verdict.examples < 100 and verdict.coverage["refused by the base"] + verdict.examples == 100
    verdict = check_program(one_a_step, picky, examples=20, lengths=(3, 4))
    assert verdict.verdict == "inconclusive" and verdict.reason == "no case could be compared"


def test_a_program_that_raises_is_refuted():
    verdict = check_program(crashing, one_a_step, examples=100)
    assert verdict.refuted and len(verdict.counterexample.case.canvas) == 3
    assert "the program raises IndexError" in str(verdict) and "in crashing" in str(verdict)
    verdict = check_program(lambda d, canvas, seed: [canvas, d(canvas)], one_a_step, examples=10)
    assert "asked for canvases, int64 [1]; expected integers [n, 1]" in str(verdict)
    verdict = check_program(lambda d, canvas, seed: [], one_a_step, examples=10)
    assert "expected a list of states, the canvas first" in str(verdict)


def test_a_program_that_is_no_function_is_refuted_as_such():
    verdict = check_program(nondeterministic, one_a_step, examples=200, vocab=(2, 2))
    assert verdict.refuted and "depends on more than its inputs" in verdict.reason
    assert verdict.reason in str(verdict)


def test_near_ties_are_told_and_can_be_left_out():
    verdict = check_program(by_softmax, one_a_step, examples=500, vocab=(3, 3), lengths=(2, 3))
    assert verdict.refuted and "a near-tie" in verdict.counterexample.note and "near-tie" in str(verdict)
    verdict = check_program(by_softmax, one_a_step, examples=500, vocab=(3, 3), lengths=(2, 3), near_ties=False)
    assert verdict.verdict == "not refuted" and verdict.coverage["a near-tie"] > 0
    # Leaving them out hides no real difference.
    verdict = check_program(left_to_right, one_a_step, examples=200, lengths=(2, 2), near_ties=False)
    assert verdict.refuted and not verdict.counterexample.note


def test_ways_to_compare_paths():
    a, b, c, d = (-1, -1), (0, -1), (0, 1), (-1, 1)
    assert whole_path([a, b, c], [a, b, c]) == "" and last_state([a, b, c], [a, c]) == ""
    assert "state 1 is _b, the base has a_" in whole_path([a, b, c], [a, d, c])
    assert "2 states, the base has 3" in whole_path([a, b, c], [a, b])
    assert rounds_only([a, b, c], [a, c]) == rounds_only([a, b, c], [a, b, c]) == ""
    assert "state 1, _b, is not on the base's path" in rounds_only([a, b, c], [a, d, c])
    assert "state 2, a_, is not on" in rounds_only([a, b, c], [a, c, b])
    assert "ends with a_" in rounds_only([a, b, c], [a, b])
    assert last_state([a, b], [a, c]) == "one ends with a_, the other with ab"


def test_a_program_may_report_one_state_a_round():
    program = partial(speculating, rounds=True)
    assert check_program(program, one_a_step, examples=60, paths=rounds_only).verdict == "not refuted"
    assert check_program(program, one_a_step, examples=300).refuted  # never without being asked for
    assert check_program(partial(program, flaw="positions"), one_a_step, examples=2000, paths=rounds_only).refuted


def test_drafters_of_ones_own():
    drafters = [lambda state: [], lambda state: [[np.where(state < 0, 0, state)]]]
    assert check_program(speculating, one_a_step, drafters=drafters, examples=40).verdict == "inconclusive"
    # A node that is complete never has a successor; one that fills a single position has.
    drafters.append(lambda state: [[np.where(np.arange(len(state)) == (state < 0).argmax(), 0, state)]])
    assert check_program(speculating, one_a_step, drafters=drafters, examples=100).verdict == "not refuted"
    flawed = partial(speculating, flaw="node isolation")
    verdict = check_program(flawed, one_a_step, drafters=drafters, examples=500)
    assert verdict.refuted and "drafter number" in str(verdict)
    assert replay(verdict.counterexample.replay, flawed, one_a_step, drafters=drafters) == verdict.counterexample


def test_two_drafters_must_agree():
    verdict = check_drafters(speculating, examples=60)
    assert verdict.verdict == "not refuted" and verdict.accepted > 0
    # The flaw of the positions may end alike; that of isolation shows without any base.
    verdict = check_drafters(partial(speculating, flaw="node isolation"), examples=1000)
    assert verdict.refuted and len(verdict.counterexample.case.canvas) <= 2
    assert "first drafter" in str(verdict) and "second drafter" in str(verdict)
    assert check_drafters(partial(speculating, flaw="no drafts"), examples=30).verdict == "inconclusive"
    with pytest.raises(TrajspecError, match="takes no drafter"):
        check_drafters(one_a_step)


def test_replay_refuses_what_holds_no_case():
    for text in ("", "{}", '{"canvas": "__"}', '{"canvas": 3, "vocab": 2, "model": {"rows": {}}}'):
        with pytest.raises(TrajspecError, match="replay text"):
            replay(text, one_a_step, one_a_step)


def test_search_shrinks_any_case():
    """The search knows nothing of programs: here it looks for a canvas of three that is not all the same."""
    found = search(
        lambda draw: Case(tuple(draw(_states())), 2),
        lambda case, log: case.canvas if len(set(case.canvas)) > 1 else log.note("dull"),
        examples=200,
    )
    assert len(found.case.canvas) == 2 and found.repeatable and found.log.coverage["dull"] >= 0
    nothing = search(lambda draw: Case((-1,), 2), lambda case, log: None, examples=5)
    assert nothing.case is None and nothing.examples >= 1


def _states():
    from hypothesis import strategies as st

    return st.lists(st.integers(-1, 1), min_size=1, max_size=6)


def test_minimise_keeps_the_difference():
    def compare(case, log):
        logits = case.model.build(case.vocab)(np.array([[case.vocab]]), np.zeros((1, 1), int))[0, 0]
        return Met(case) if logits[1] > logits[0] else None

    class Met:
        def __init__(self, case):
            self.path, self.rows = ((-1,), (1,)), {(((0, case.vocab),), 0): (-4.0, 4.0)}

    start = next(
        Case((-1,), 2, Hash(seed, 50), seed=9) for seed in range(99) if compare(Case((-1,), 2, Hash(seed, 50)), 0)
    )
    case, difference = minimise(start, compare(start, Log()), compare)
    assert case == Case((-1,), 2, Table(((next(iter(difference.rows)), (1, 2)),)))
