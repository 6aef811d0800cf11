"""Thin decisions: what logits that are a little off could change, judged against what they do change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import trajspec as ts
from tests.policies.rules import ALONE, rows, rules
from tests.strategies import small_models
from trajspec.exact.plan_check import same_path
from trajspec.exact.plans import CHOSEN, PackedNoise, as_they_are, watched
from trajspec.exact.search import Log
from trajspec.exact.tabular import FixedModel, FunctionModel
from trajspec.ir.ahead import forward_of
from trajspec.ir.canvas import canvas
from trajspec.ir.errors import TrajspecError
from trajspec.ir.interpret import evaluate, run
from trajspec.ir.margins import doubts_of, thin
from trajspec.ir.op import op
from trajspec.passes import speculate


@ts.policy
def sure(x, logits, *, threshold=0.6):
    """Commit what is surer than the threshold, and always the surest."""
    token, conf = ts.score(logits)
    here = ts.masked(x)
    return ts.unmask(x, token, where=here & (conf >= threshold) | ts.top(conf, 1, where=here))


@ts.policy
def surest(x, logits):
    """Commit the surest token."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))


def stepped(policy: Any, *logits: Any) -> tuple[Any, Any]:
    """The plan, and all values of its first step on masks with these logits (of three tokens, the last the mask)."""
    plan = policy.plan()
    x = canvas([], gen_length=len(logits), vocab_size=3, mask_id=2)
    known = {plan.carried[0]: x, forward_of(plan).results[0]: np.array([[*row, -1e30] for row in logits], float)}
    return plan, evaluate(plan.step, known)


@pytest.mark.parametrize(
    ("policy", "logits", "eps", "expected"),
    [
        (surest, [(5.0, 4.999), (1.0, 1.0)], 0.01, True),  # the two likeliest tokens of the committed position
        (surest, [(5.0, 4.0), (1.0, 1.0)], 0.01, False),
        (surest, [(5.0, 4.0), (1.0, 1.0)], 0.5, True),
        (surest, [(5.0, 4.0), (1.0, 0.9999)], 0.001, False),  # a near tie of tokens that are not committed
        (surest, [(5.0, 4.0), (5.0, 4.001)], 0.01, True),  # which position is the surest
        (sure, [(0.406, 0.0), (9.0, 0.0)], 0.001, True),  # sigmoid(.4055) is .6
        (sure, [(0.42, 0.0), (9.0, 0.0)], 0.001, False),
        (sure, [(0.39, 0.0), (9.0, 0.0)], 0.001, False),
    ],
)
def test_thin(policy: Any, logits: Any, eps: float, expected: bool) -> None:
    plan, values = stepped(policy, *logits)
    assert thin(plan, values, eps) is expected


def test_what_no_judge_knows_is_thin() -> None:
    @op("half_of(of: scores) -> out: scores", replace=True)
    def half_of(of):
        """Half of it."""
        return of / 2

    @ts.policy
    def unknown(x, logits):
        """The surest by half the margin."""
        token, _ = ts.score(logits)
        return ts.unmask(x, token, where=ts.top(ts.half_of(ts.margin(logits)), 1, where=ts.masked(x)))

    plan, values = stepped(unknown, (5.0, 0.0), (1.0, 0.0))
    assert thin(plan, values, 1e-9)


def test_a_history_of_logits_is_thin_and_one_of_counts_is_not() -> None:
    @ts.policy
    def smooth(x, logits, before=ts.history("probs", start=0.0)):
        """Commit by the mean of the last two predictions."""
        now = (ts.softmax(logits) + before) / 2
        token, _ = ts.score(logits)
        return ts.unmask(x, token, where=ts.top(ts.max(now), 1, where=ts.masked(x))), now

    @ts.policy
    def counted(x, logits, k=ts.history("count", start=1)):
        """Commit one token, then two, and so on."""
        token, conf = ts.score(logits)
        return ts.unmask(x, token, where=ts.top(conf, k, where=ts.masked(x))), k + 1

    for policy, expected in ((smooth, True), (counted, False)):
        plan = policy.plan()
        x = canvas([], gen_length=2, vocab_size=3, mask_id=2)
        logits = np.array([[5.0, 0.0, -1e30], [1.0, 0.0, -1e30]])
        start = evaluate(plan.starts, {plan.inputs[0]: x})
        known = dict(zip(plan.carried, (start[value] for value in plan.starts), strict=True))
        values = evaluate(plan.step, known | {forward_of(plan).results[0]: logits})
        assert thin(plan, values, 1e-9) is expected


@settings(max_examples=150)
@given(data=st.data(), eps=st.sampled_from([1e-6, 1e-3, 0.05, 0.5]))
def test_what_is_not_thin_does_not_change(data: st.DataObject, eps: float) -> None:
    """Arbitrary policies, and logits moved by up to eps at random: a step that is not thin commits the same."""
    model = data.draw(small_models())
    x = data.draw(rows(model))
    try:
        plan = data.draw(rules(ALONE)).plan()
    except TrajspecError:
        assume(False)
    forward = forward_of(plan)
    start = evaluate(plan.starts, {plan.inputs[0]: x})
    known = dict(zip(plan.carried, (start[value] for value in plan.starts), strict=True))
    values = evaluate(plan.step, known, model)
    if thin(plan, values, eps):
        return
    chance = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    for _ in range(6):
        moved = {
            value: np.where(values[value] > -1e29, values[value] + chance.choice([-eps, eps, 0.0], values[value].shape),
                            values[value])
            for value in forward.results
        }  # fmt: skip
        other = evaluate(plan.step, known | moved)
        assert same_path([values[plan.step[0]]], [other[plan.step[0]]]) == ""


@settings(max_examples=60)
@given(data=st.data(), eps=st.sampled_from([1e-6, 1e-3, 0.05]))
def test_recheck_makes_noisy_packed_calls_exact(data: st.DataObject, eps: float) -> None:
    model = data.draw(small_models())
    x = data.draw(rows(model))
    policy = data.draw(rules(("llada_low_confidence", "fastdllm_threshold", "fastdllm_factor", "dream_entropy")))
    base = policy.bind(**({"cfg_scale": 0.0} if "cfg_scale" in policy.settings else {})).plan()
    chance = np.random.default_rng(data.draw(st.integers(0, 2**16)))

    def off(tokens: Any, positions: Any) -> Any:
        return chance.uniform(-eps, eps, (*tokens.shape, model.vocab_size))

    noisy = PackedNoise(model, eps, off)
    try:
        path = run(base, noisy, x).path
    except TrajspecError:
        assume(False)
    states = [tuple(np.where(y.masked, -1, y.tokens).tolist()) for y in path]
    log = Log()
    got = watched(speculate(base, CHOSEN, recheck=eps), noisy, x, as_they_are(states), log)
    assert same_path(path, got.path) == ""
    # A thin step costs its round once more.
    assert got.calls <= 2 * len(path)


def test_recheck_costs_a_call_where_a_decision_is_thin_only() -> None:
    base = surest.plan()
    x = canvas([], gen_length=3, vocab_size=3, mask_id=2)
    clear = FixedModel([(0, 5.0), (1, 4.0), (0, 3.0)], 3)
    plan = speculate(base, "chain", recheck=1e-3)
    assert run(plan, clear, x).calls == run(speculate(base, "chain"), clear, x).calls
    tied = FunctionModel(lambda tokens, positions, visible: np.zeros((len(tokens), 3)), 3)
    assert run(plan, tied, x).calls > run(speculate(base, "chain"), tied, x).calls
    assert same_path(run(base, tied, x).path, run(plan, tied, x).path) == ""


def test_doubts_are_bounds() -> None:
    plan, values = stepped(surest, (1.0, 0.0), (0.5, 0.0))
    doubts = doubts_of(plan, values, 0.01)
    conf = next(value for value in doubts if value.kind.name == "conf")
    assert np.allclose(doubts[conf], 0.02)
