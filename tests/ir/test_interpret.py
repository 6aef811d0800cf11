"""The reference interpreter: runs end, given tokens stay, finished rows rest, bad models and policies are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import trajspec as ts
from tests.policies.rules import OF_TOKENS
from tests.strategies import small_models
from trajspec.exact.tabular import HashModel
from trajspec.ir import TrajspecError
from trajspec.ir.interpret import advance, idle_limit, run, start
from trajspec.policies import POLICIES

from .test_eager import SMALL, canvases


@pytest.mark.parametrize("name", OF_TOKENS)
@given(data=st.data())
@settings(max_examples=12, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
def test_runs_end_and_leave_what_was_given(name, data):
    policy = POLICIES[name]
    policy = policy(**{key: data.draw(SMALL[key]) for key in policy.settings if key in SMALL})
    model = data.draw(small_models(levels=(1, 2, 2, 4, 50)))
    prompt = data.draw(canvases(model))
    plan = policy.plan()
    done = run(plan, model, prompt)
    assert not done.canvas.masked.any() and done.canvas.done.all()
    assert done.calls == (len(done.path) - 1) * (1 + len(plan.models))
    assert done.path[0] is prompt and done.path[-1] is done.canvas
    for before, after in zip(done.path, done.path[1:], strict=False):
        assert np.array_equal(after.tokens[~prompt.free], prompt.tokens[~prompt.free])
        assert not after.masked[~prompt.free].any()
        assert (after.tokens[after.masked] == model.mask_id).all()
        assert (after.tokens[prompt.free & ~after.masked] != model.mask_id).all()
        assert after.step == before.step + 1
    # A step of a finished row is the identity, asks nothing and computes nothing.
    bound, _ = start(plan, prompt)
    carried = (done.canvas, *done.histories)
    rested, _ = advance(plan, bound, carried, None)
    assert all(after is before for after, before in zip(rested, carried, strict=True))


@pytest.mark.parametrize("name", OF_TOKENS)
def test_defaults_end_on_ties(name):
    model = HashModel(0, 5, levels=1)
    model.others = {"ar": model}
    done = run(POLICIES[name].plan(), model, ts.canvas([1], gen_length=9, vocab_size=5, mask_id=4, seed=7))
    assert not done.canvas.masked.any()


@given(seed=st.integers(-(2**63), 2**64 - 1), data=st.data())
@settings(max_examples=30, deadline=2000)
def test_a_run_is_a_function_of_its_seed(seed, data):
    model = data.draw(small_models())
    plan = POLICIES["dream_origin"](steps=4, temperature=0.7).plan()

    def once():
        prompt = ts.canvas([], gen_length=5, vocab_size=model.vocab_size, mask_id=model.mask_id, seed=seed)
        return [state.tokens.tolist() for state in run(plan, model, prompt).path]

    assert once() == once()


def prompt(**how):
    return ts.canvas(**({"tokens": [0, 1], "gen_length": 3, "vocab_size": 4, "mask_id": 3} | how))


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"tokens": [0, 4]}, "token 4 at position 1: expected ids from 0 to 3"),
        ({"tokens": [-1]}, "token -1 at position 0: expected ids from 0 to 3"),
        ({"tokens": [], "gen_length": 0}, "the canvas is empty: give a prompt, or gen_length of 1 or more"),
        ({"gen_length": -1}, "gen_length is -1, expected 0 or more"),
        ({"mask_id": 4}, "mask id 4 lies outside the vocabulary of 4 ids"),
        ({"mask_id": -1}, "mask id -1 lies outside the vocabulary of 4 ids"),
        ({"masked": [True]}, "masked has 1 entries, expected 2, one a token"),
        ({"banned": [9]}, "banned id 9 lies outside the vocabulary of 4 ids"),
        ({"banned": [0, 1, 2]}, "every id of the vocabulary is banned: nothing is left to predict"),
        ({"allowed": {7: [1]}}, "allowed: position 7 lies outside the canvas of 5 positions"),
        ({"allowed": {3: [9]}}, "allowed: id 9 at position 3 lies outside the 4 ids"),
        ({"allowed": {3: []}}, "allowed: no id is left for position 3; expected at least one that may occur"),
        ({"allowed": {3: [3]}}, "allowed: no id is left for position 3; expected at least one that may occur"),
        ({"seed": 2**64}, f"seed {2**64} does not fit into 64 bits"),
    ],
)
def test_a_canvas_that_cannot_be(how, problem):
    with pytest.raises(TrajspecError) as caught:
        prompt(**how)
    assert problem in str(caught.value)


@example(levels=1)
@given(levels=st.sampled_from([1, 2, 50]))
@settings(max_examples=10, deadline=2000)
def test_tokens_that_may_not_be_are_not(levels):
    model = HashModel(3, 4, levels)
    x = prompt(banned=[0], allowed={4: [2]})
    done = run(POLICIES["fastdllm_threshold"].plan(), model, x).canvas
    assert 0 not in done.tokens[2:] and done.tokens[4] == 2


def test_a_prompt_may_hold_the_mask_id():
    done = run(POLICIES["fastdllm_threshold"].plan(), HashModel(0, 4, 50, 3), prompt(tokens=[3, 1, 3])).canvas
    assert done.tokens[:3].tolist() == [3, 1, 3] and 3 not in done.tokens[3:]


def test_a_row_ends_at_a_stop_token():
    def sure(tokens, positions, visible):
        return np.eye(4)[(positions == 3) * 1 + (positions != 3) * 2] * 9.0

    sure.vocab_size, sure.mask_id = 4, 3
    plan = POLICIES["fastdllm_threshold"](block_length=1).plan()
    done = run(plan, sure, prompt(stop=[1])).canvas
    assert done.done.all() and done.tokens.tolist() == [0, 1, 2, 1, 3] and done.masked.tolist() == [False] * 4 + [True]


def test_a_stuck_policy_is_told():
    @ts.policy
    def shy(x, logits):
        token, conf = ts.score(logits)
        return ts.unmask(x, token, where=ts.masked(x) & (conf > 1))

    with pytest.raises(TrajspecError) as caught:
        run(shy.plan(), HashModel(0, 4, 50, 3), prompt())
    assert str(caught.value) == (
        "policy shy committed nothing in step 1 with 3 masks left and would never end; "
        "add the surest position to what it selects: | ts.top(conf, 1, where=here)"
    )


def test_a_policy_with_a_clock_may_wait_but_not_for_ever(monkeypatch):
    @ts.policy
    def waits(x, logits, *, until=3):
        ready = ts.choose(ts.step(x) >= until, ts.masked(x), ts.masked(x) & False)
        return ts.unmask(x, ts.argmax(logits), where=ready)

    model = HashModel(0, 4, 50, 3)
    assert run(waits.plan(), model, prompt()).calls == 4
    assert idle_limit(waits.plan(), 5) > 4096 and idle_limit(POLICIES["wino"].plan(), 5) > 4096
    assert idle_limit(POLICIES["llada_low_confidence"](temperature=0.0).plan(), 5) >= 1
    monkeypatch.setattr("trajspec.ir.interpret.idle_limit", lambda plan, length: 40)
    with pytest.raises(TrajspecError, match="would never end"):
        run(waits(until=10**9).plan(), model, prompt())


@pytest.mark.parametrize(
    ("kind", "begin", "shape", "dtype"),
    [
        ("count", 3, (1,), "i"), ("count", 0.5, (1,), "f"), ("scores", 2, (5,), "f"), ("probs", 0.25, (5, 4), "f"),
        ("logits", -1.5, (5, 4), "f"), ("selection", True, (5,), "b"), ("flag", False, (1,), "b"),
        ("tokens", 2, (5,), "i"),
    ],
)  # fmt: skip
def test_histories_start_as_declared(kind, begin, shape, dtype):
    @ts.policy
    def mine(x, logits, seen=ts.history(kind, start=begin)):
        return ts.unmask(x, ts.argmax(logits), where=ts.masked(x)), seen

    plan = mine.plan()
    _, carried = start(plan, prompt())
    assert carried[1].shape == shape and carried[1].dtype.kind == dtype and (carried[1] == begin).all()
    done = run(plan, HashModel(0, 4, 50, 3), prompt())
    assert np.array_equal(done.histories[0], carried[1])


def test_histories_are_what_was_returned_the_step_before():
    @ts.policy
    def mine(x, logits, n=ts.history("count", start=10)):
        return ts.unmask(x, ts.argmax(logits), where=ts.first(1, where=ts.masked(x))), n + 1

    seen = []
    plan = mine.plan()

    def look(step):
        seen.append(int(step.values[plan.carried[1]][0]))

    done = run(plan, HashModel(0, 4, 50, 3), prompt(), on_step=look)
    assert seen == [10, 11, 12] and done.histories[0].tolist() == [13]


def test_task_inputs_go_by_name():
    @ts.policy
    def mine(x, logits, answer=ts.given("selection")):
        return ts.unmask(x, ts.argmax(logits), where=ts.masked(x) & answer | ts.first(1, where=ts.masked(x)))

    model, plan = HashModel(0, 4, 50, 3), mine.plan()
    assert run(plan, model, prompt(), {"answer": np.array([False, False, False, True, True])}).calls == 1
    with pytest.raises(TrajspecError, match="needs the task input 'answer'"):
        run(plan, model, prompt())
    with pytest.raises(TrajspecError, match=r"has no task input \['other'\]; it has \['answer'\]"):
        run(plan, model, prompt(), {"answer": np.zeros(5, bool), "other": 1})


@pytest.mark.parametrize(
    ("value", "problem"),
    [(np.nan, "a logit is NaN or +inf"), (np.inf, "a logit is NaN or +inf"), (-np.inf, "all logits are -inf")],
)
def test_logits_that_are_no_numbers(value, problem):
    calls = []

    def broken(tokens, positions, visible):
        logits = np.zeros((*tokens.shape, 4))
        if calls:
            logits[0, 4, :] = value
        calls.append(tokens)
        return logits

    broken.vocab_size, broken.mask_id = 4, 3
    with pytest.raises(TrajspecError) as caught:
        run(POLICIES["fastdllm_threshold"](block_length=1).plan(), broken, prompt())
    assert str(caught.value).startswith(f"row 0, position 4, step 1: {problem}; expected finite numbers")
    assert len(calls) == 2


def test_single_impossible_tokens_are_fine():
    def strict(tokens, positions, visible):
        logits = np.full((*tokens.shape, 4), -np.inf)
        logits[..., 1] = 0.0
        return logits

    strict.vocab_size, strict.mask_id, strict.others = 4, 3, {"ar": strict}
    for name in OF_TOKENS:
        assert run(POLICIES[name].plan(), strict, prompt()).canvas.tokens.tolist() == [0, 1, 1, 1, 1]
