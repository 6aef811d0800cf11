"""The check of plans: flaws are found, sound plans are not refuted, and nothing drafted is no pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trajspec as ts
from tests.exact.decoders import left_to_right
from trajspec.exact.case import Drafts
from trajspec.exact.models import Hash, Table
from trajspec.exact.plan_check import (
    PlanCase,
    check,
    check_plan,
    compare_plans,
    read_plan_case,
    same_path,
)
from trajspec.exact.plan_witnesses import PLANS, adaptive, plan_case, sure, surest
from trajspec.exact.plans import CHOSEN, drafted_by, redrafted
from trajspec.exact.search import Log
from trajspec.ir.canvas import Canvas, canvas
from trajspec.ir.drafter import drafter
from trajspec.ir.errors import TrajspecError
from trajspec.ir.interpret import run
from trajspec.passes import speculate
from trajspec.policies import POLICIES

#: A search may take so many examples.
BUDGET = 600


@drafter
def silent(x, logits, *, nodes=4):
    """Drafts nothing."""
    return []


@pytest.mark.parametrize("name", PLANS)
def test_every_flaw_is_found_with_a_case_of_the_size_of_the_table(name: str) -> None:
    made = PLANS[name]
    most = len(made.case.canvas)
    lengths = (1, 5 if name == "C1c" else max(3, most))
    verdict = check_plan(made.flawed, made.base, examples=BUDGET, wrap=made.wrap, lengths=lengths)
    assert verdict.refuted and verdict.examples <= BUDGET
    case = verdict.counterexample.case
    # Shrinking stops at cases from which no single move leads to a smaller one.
    assert len(case.canvas) <= most + 1 and case.vocab == 2
    assert isinstance(case.model, Table) and len(case.model.rows) <= max(2, len(made.case.model.rows))
    chains = [chain for side in (case.drafts, case.others) if side for chain in side.chains]
    assert 1 <= sum(map(len, chains)) <= 2


@pytest.mark.parametrize(
    ("base", "view", "settings"),
    [
        (surest.bind(block_length=2), "dual", {}),
        (sure.bind(block_length=2), "prefix", {}),
        (adaptive, "full", {"carried": False}),
        (POLICIES["llada_low_confidence"](temperature=1.0), "full", {}),
        (surest, "full", {"recheck": 1e-3}),
    ],
)
def test_sound_plans_are_not_refuted(base: Any, view: str, settings: dict[str, Any]) -> None:
    plan = speculate(base, "tree", view=view, **settings)
    verdict = check(plan, against=base, examples=60, lengths=(2, 5))
    assert verdict.verdict == "not refuted", verdict
    assert verdict.accepted and verdict.coverage["rounds > 1"]


def test_refreshes_and_ends_inside_rounds_are_seen() -> None:
    log = Log()
    assert compare_plans(PLANS["C3"].sound, PLANS["C3"].base)(PLANS["C3"].case, log) is None
    assert log.coverage["a refresh crossed"] and log.coverage["several steps in a round"]
    ends, log = plan_case("___", {"a__@1": (1, 2)}, "a__", stop="b"), Log()
    assert compare_plans(PLANS["C6"].sound, PLANS["C6"].base)(ends, log) is None
    assert log.coverage["eos inside a round"] and log.accepted == 1


def test_nothing_drafted_is_inconclusive() -> None:
    verdict = check_plan(speculate(surest, CHOSEN), surest.plan(), examples=20, lengths=(1, 1))
    # On one position every drafted state is a full one, which nobody asks about.
    assert verdict.verdict == "inconclusive" and "nothing was drafted" in verdict.reason


def test_the_plan_s_own_drafter_is_checked_too() -> None:
    @drafter
    def failing(x, logits, *, nodes=4):
        """Names a position that does not exist."""
        return [[{99: 0}]]

    plan = speculate(surest, failing)
    assert not check(plan, examples=10, own=False, lengths=(2, 3)).refuted
    verdict = check(plan, examples=10, lengths=(2, 3))
    assert verdict.refuted and "its own drafter" in str(verdict)


def test_plain_policies_are_compared_path_by_path() -> None:
    assert check(surest, against=surest, examples=30).verdict == "not refuted"
    verdict = check(sure, against=surest, examples=200)
    assert verdict.refuted and len(verdict.counterexample.case.canvas) == 2


def test_foreign_programs() -> None:
    first = ts.policy(_leftmost)
    assert check(left_to_right, against=first, examples=60).verdict == "not refuted"
    assert check(left_to_right, against=surest, examples=200).refuted


def _leftmost(x, logits):
    """Commit the leftmost masked position."""
    token, _ = ts.score(logits)
    return ts.unmask(x, token, where=ts.first(1, where=ts.masked(x)))


def test_no_base() -> None:
    with pytest.raises(TrajspecError, match="give against="):
        check(surest)


def test_two_drafters_without_a_base() -> None:
    """Theorem A6: outputs that no drafter changes."""
    made = PLANS["C2"]
    assert check_plan(made.flawed, None, examples=BUDGET).refuted
    assert check_plan(made.sound, None, examples=60).verdict == "not refuted"


def test_noise_is_keyed_by_the_true_state() -> None:
    warm = POLICIES["llada_low_confidence"](temperature=1.0).plan()

    def differs(**settings: Any) -> list[bool]:
        compare = compare_plans(speculate(warm, CHOSEN, **settings), warm)
        cases = (PlanCase((-1,) * 3, 2, Hash(seed, 4), seed, Drafts((), follow=2)) for seed in range(25))
        return [compare(case, Log()) is not None for case in cases]

    assert any(differs(head="node")) and not any(differs())


def test_cases_are_written_and_read() -> None:
    made = PLANS["C6"]
    case = read_plan_case(made.case.as_dict())
    assert isinstance(case, PlanCase) and case == made.case
    assert compare_plans(made.flawed, made.base)(case, Log()) is not None
    with pytest.raises(TrajspecError, match="no case can be read"):
        read_plan_case({"canvas": "__"})


def test_the_drafter_of_a_plan_is_replaced_everywhere() -> None:
    plan = speculate(surest, "chain", carried=False)
    row = canvas([], gen_length=3, vocab_size=3, mask_id=2)
    asked: list[Canvas] = []

    def says(x: Canvas, held: Any) -> list[Any]:
        asked.append(x)
        return []

    from trajspec.exact.tabular import HashModel

    model = HashModel(0, 3, 4, 2)
    with drafted_by(says):
        result = run(redrafted(plan), model, row)
    assert asked and int(result.histories[-1].drafted[0]) == 0
    assert same_path(run(surest.plan(), model, row).path, result.path) == ""


def test_counters_are_part_of_a_path() -> None:
    row = canvas([], gen_length=2, vocab_size=3, mask_id=2)
    other = row._replace(step=np.array([1]))
    assert "step is 1" in same_path([row], [other])
    assert same_path([row], [other], counters=False) == ""
