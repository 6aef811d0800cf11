"""The verifier: what a draft may and may not do, runs without drafts, near-ties, reported laws (case T19)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import trajspec as ts
from tests.exact.decoders import left_to_right
from trajspec.completion.drafts import Drafter, Drafting
from trajspec.completion.verify import Processing, Verification, judge
from trajspec.exact.case import Drafts
from trajspec.exact.models import letters
from trajspec.exact.plan_check import PlanCase, check, check_plan, compare_plans
from trajspec.exact.plan_witnesses import surest
from trajspec.exact.plans import CHOSEN, PackedNoise, as_they_are, watched
from trajspec.exact.search import Log
from trajspec.exact.tabular import FixedModel
from trajspec.ir.ahead import forward_of
from trajspec.ir.canvas import canvas
from trajspec.ir.drafter import drafter
from trajspec.ir.interpret import evaluate, run
from trajspec.ir.margins import thin
from trajspec.passes import speculate


@ts.policy
def leftmost(x, logits):
    """Commit the leftmost masked position."""
    token, _ = ts.score(logits)
    return ts.unmask(x, token, where=ts.first(1, where=ts.masked(x)))


@drafter
def nobody(x, logits, *, nodes=4):
    """Drafts nothing."""
    return []


# T19 (a)


def test_t19_a_draft_with_another_token_is_not_accepted() -> None:
    """The target always says 2; the prompt is 1 1 1 and the draft says 1."""
    target = FixedModel([(2, 5.0)] * 5, 4)
    row = canvas([1, 1, 1], gen_length=2, vocab_size=4, mask_id=3)
    log = Log()
    result = watched(speculate(leftmost, CHOSEN), target, row, as_they_are([(1, 1, 1, 1, -1)]), log)
    assert result.canvas.tokens.tolist() == [1, 1, 1, 2, 2]
    assert log.drafted > 0 and log.accepted == 0


def test_t19_a_draft_in_another_order_is_rejected_at_its_first_step() -> None:
    """The draft commits position 1 first, with the right token; the policy wants position 0."""
    target = FixedModel([(2, 6.0), (2, 5.0), (2, 4.0)], 4)
    row = canvas([], gen_length=3, vocab_size=4, mask_id=3)
    log = Log()
    chain = [(-1, 2, -1), (2, 2, -1)]
    result = watched(speculate(surest, CHOSEN), target, row, as_they_are(chain[:1]), log)
    base = run(surest.plan(), target, row)
    assert [x.tokens.tolist() for x in result.path] == [x.tokens.tolist() for x in base.path]
    assert result.path[1].tokens.tolist() == [2, 3, 3]
    assert log.drafted > 0 and log.accepted == 0
    # The state that the base does reach, by another way, is walked through: equal states are one.
    log = Log()
    watched(speculate(surest, CHOSEN), target, row, as_they_are([*chain, (2, -1, -1)]), log)
    assert log.accepted == 2


# T19 (b)


def test_t19_b_without_drafts_nothing_was_tested() -> None:
    plan = speculate(surest, nobody)
    row = canvas([], gen_length=3, vocab_size=4, mask_id=3)
    log = Log()
    watched(plan, FixedModel([(2, 5.0)] * 3, 4), row, None, log)
    assert log.reporting and log.drafted == log.accepted == 0
    # One position leaves no state to draft.
    verdict = check_plan(plan, surest.plan(), examples=15, lengths=(1, 1))
    assert verdict.verdict == "inconclusive" and "nothing was drafted" in verdict.reason
    assert check(plan, own=False, examples=40, lengths=(2, 4)).verdict == "not refuted"


def test_t19_b_nothing_accepted_is_inconclusive_too() -> None:
    def silent(denoise: Any, state: Any, seed: int, log: Log) -> list[Any]:
        log.round(drafted=1, accepted=0)
        return left_to_right(denoise, state, seed)

    verdict = check(silent, against=leftmost, examples=15)
    assert verdict.verdict == "inconclusive" and "accepted" in verdict.reason


# T19 (c)


class Near:
    """Token 0 is 0.001 ahead of token 1 at position 0; a packed call puts token 1 ahead by up to 0.01."""

    EPS = 0.01

    def build(self, vocab: int) -> FixedModel:
        return FixedModel([{0: 5.0, 1: 4.999}, (0, 0.0)], vocab + 1)


def test_t19_c_a_near_tie_is_named_with_margin_and_position() -> None:
    base = surest.plan()
    model = Near().build(3)
    row = canvas([], gen_length=2, vocab_size=4, mask_id=3)

    def off(tokens: Any, positions: Any) -> Any:
        return np.where((positions == 0)[..., None] & (np.arange(4) == 1), Near.EPS, 0.0)

    noisy = PackedNoise(model, Near.EPS, off)
    case = PlanCase((-1, -1), 3, Near(), drafts=Drafts((((0, -1),),)))
    found = compare_plans(speculate(base, CHOSEN), base, wrap=lambda built: PackedNoise(built, Near.EPS, off))(
        case, Log()
    )
    assert found is not None and letters(found.ours[1]) == "b_" and letters(found.path[1]) == "a_"
    note = found.note
    assert "near-tie" in note and "position 0" in note and "0.001" in note and "0.01" in note
    # Strict: thin decisions are made again by the base's own call, and the path is the base's.
    result = watched(speculate(base, CHOSEN, recheck=Near.EPS), noisy, row, as_they_are([(0, -1)]), Log())
    assert [x.tokens.tolist() for x in result.path] == [x.tokens.tolist() for x in run(base, model, row).path]


def test_t19_c_the_decision_is_thin_at_the_noise_and_not_below() -> None:
    base = surest.plan()
    row = canvas([], gen_length=2, vocab_size=4, mask_id=3)
    logits = np.array([[5.0, 4.999, 0.0, -1e30], [0.0, 0.0, 0.0, -1e30]])
    values = evaluate(base.step, {base.carried[0]: row, forward_of(base).results[0]: logits})
    assert thin(base, values, 0.01) and not thin(base, values, 0.0004)


def law_of(reported: list[float]) -> torch.Tensor:
    """What is written where the target says (.6, .3, .1) and the drafter always drafts token 1, but says `reported`."""
    rows = 40_000
    each = torch.arange(rows)
    logits = torch.tensor([[0.6, 0.3, 0.1], [1.0, 1.0, 1.0]]).log().expand(rows, 1, 2, 3)
    law = torch.tensor(reported).log().expand(rows, 1, 1, 3)
    drafted = torch.ones(rows, 1, 1, dtype=torch.int64)
    told = judge(
        Verification("rejection", Processing(1.0)), logits, drafted, each * 0 + 1, law, each, each * 0, each * 0, None
    )
    return torch.bincount(told.tokens[:, 0], minlength=3).double() / rows


def test_t19_d_the_law_that_is_reported_is_the_law_that_was_drawn_from() -> None:
    """A draft that is certain has probability 1, and keeps the target's law; another report gives another law."""
    assert (law_of([0.0, 1.0, 0.0]) - torch.tensor([0.6, 0.3, 0.1])).abs().max() < 0.01
    assert (law_of([0.3, 0.5, 0.2]) - torch.tensor([0.4, 0.6, 0.0])).abs().max() < 0.01


def test_t19_d_what_the_drafter_reports_is_what_it_drew_from() -> None:
    """Temperature and cuts are in the law of the draft: over many rows tokens come as often as it says."""
    rows = 20_000

    class Model:
        mask_id, banned_ids, vocab_size, device = 4, (4,), 5, torch.device("cpu")

        def __call__(self, tokens, positions, visible):
            return torch.tensor([0.0, 1.0, 2.0, 3.0, 9.0]).expand(*tokens.shape, 5)

    processing = Processing(temperature=0.7, top_k=3, top_p=0.95)
    drafter = Drafter(Model(), Drafting(length=2), processing, None, by_law=True)
    each = torch.arange(rows)
    told = drafter.draft([torch.tensor([1, 2])] * rows, [2] * rows, [2] * rows, 5, each, each * 0)
    assert told.law is not None
    for at in (0, 1):
        found = torch.bincount(told.tokens[:, 0, at], minlength=5).double() / rows
        assert (found - told.law[0, 0, at].exp()).abs().max() < 0.012
    assert told.law[0, 0, 0].exp()[[0, 4]].tolist() == [0.0, 0.0]
