"""A policy run on numpy arrays does what one step of its plan does, and can be looked at on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trajspec as ts
from tests.strategies import seeds, small_models
from trajspec.ir.declare import Asked, History
from trajspec.ir.interpret import run
from trajspec.policies import POLICIES
from trajspec.policies.compat import COMPAT

EVERY = [*POLICIES.items(), *((" ".join(names), policy) for names, policy in COMPAT.items())]
# A loop in which the mask id may be predicted need not end on an arbitrary model.
EVERY = [(name, policy) for name, policy in EVERY if not (policy.predict_mask and policy.arguments)]
SMALL = {
    "steps": st.integers(1, 9), "block_length": st.integers(1, 6), "threshold": st.floats(0, 1),
    "temperature": st.sampled_from([0.0, 0.8]), "factor": st.floats(0.1, 3), "cfg_scale": st.sampled_from([0.0, 1.5]),
    "conf_threshold": st.floats(0, 1), "kl_threshold": st.floats(0, 0.5), "threshold_back": st.floats(0, 1),
    "alg_temp": st.sampled_from([0.0, 0.5]), "top_p": st.sampled_from([None, 0.6]), "top_k": st.sampled_from([None, 2]),
    "unmask_strategy": st.sampled_from(["all", "max_conf", "min_kl", "random"]), "eos_id": st.just(1),
    "eot_id": st.just(2), "confidence_eos_eot_inf": st.just(True),
}  # fmt: skip


@st.composite
def canvases(draw, model):
    """The start of a run, by a prompt or by masks anywhere."""
    ids = st.integers(0, model.vocab_size - 1)
    prompt = draw(st.lists(ids, max_size=3))
    masked = draw(st.lists(st.booleans(), min_size=len(prompt), max_size=len(prompt))) if draw(st.booleans()) else None
    length = draw(st.integers(1, 6))
    return ts.canvas(
        prompt, masked, gen_length=length, vocab_size=model.vocab_size, mask_id=model.mask_id, seed=draw(seeds)
    )


@pytest.mark.parametrize(("name", "policy"), EVERY, ids=[name for name, _ in EVERY])
@given(data=st.data())
@settings(max_examples=10, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
def test_on_arrays_as_in_the_plan(name, policy, data):
    policy = policy(**{key: data.draw(SMALL[key]) for key in policy.settings if key in SMALL})
    model = data.draw(small_models())
    plan = policy.plan()
    forwards = [node for node in plan.nodes() if node.op.calls_model]
    compared = 0

    def compare(step):
        nonlocal compared
        answers = [step.values[value] for forward in forwards for value in forward.results]
        carried = [step.values[value] for value in plan.carried[1:]]
        args = [step.before, answers.pop(0)]
        for _, declared in policy.arguments:
            if isinstance(declared, Asked) and not answers:
                break  # not read with these parameters, so not asked
            args.append(carried.pop(0) if isinstance(declared, History) else answers.pop(0))
        returned = policy(*args)
        after, *memory = returned if isinstance(returned, tuple) else (returned,)
        assert np.array_equal(after.tokens, step.after.tokens) and np.array_equal(after.masked, step.after.masked)
        for value, remembered in zip(plan.step[1:], memory, strict=True):
            assert np.array_equal(np.asarray(remembered), step.values[value], equal_nan=True)
        compared += 1

    run(plan, model, data.draw(canvases(model)), on_step=compare)
    assert compared > 0


def prompt():
    return ts.canvas([1, 0], gen_length=3, vocab_size=4, mask_id=3)


def test_values_can_be_looked_at():
    seen = {}

    @ts.policy
    def mine(x, logits):
        token, conf = ts.score(logits)
        here = ts.masked(x) & (conf > 0.3)
        seen.update(
            tokens=x.tokens, masked=x.masked, step=x.step, conf=np.asarray(conf), here=np.asarray(here),
            text=repr(here), shape=conf.shape,
        )  # fmt: skip
        return ts.unmask(x, token, where=here)

    logits = np.log([[0.7, 0.1, 0.2, 1e-9]] * 3 + [[0.3, 0.3, 0.4, 1e-9], [0.3, 0.3, 0.2, 0.2]])
    after = mine(prompt(), logits)
    assert seen["tokens"].tolist() == [1, 0, 3, 3, 3] and seen["masked"].tolist() == [False, False, True, True, True]
    assert seen["step"].tolist() == [0] and seen["shape"] == (5,)
    np.testing.assert_allclose(np.exp(seen["conf"]), [0.7, 0.7, 0.7, 0.4, 0.3], rtol=1e-6)
    assert seen["here"].tolist() == [False, False, True, True, False]
    assert seen["text"].startswith("<selection from &: array([False")
    assert after.tokens.tolist() == [1, 0, 0, 2, 3] and after.masked.tolist() == [False] * 4 + [True]


def test_arrays_beside_values():
    scores = np.array([0.5, 0.1, 0.4, 0.2, 0.3])
    x = prompt()
    position = ts.position(x)
    assert np.asarray(position + scores).tolist() == (np.arange(5) + scores).tolist()
    assert np.asarray(scores * position).tolist() == (np.arange(5) * scores).tolist()
    assert np.asarray(scores > position).tolist() == (scores > np.arange(5)).tolist()
    assert np.asarray((scores > 0.25) & ts.masked(x)).tolist() == [False, False, True, False, True]
    assert np.asarray(ts.tokens(x) == np.array([1, 1, 3, 0, 3])).tolist() == [True, False, True, False, True]
    assert np.asarray(ts.top(scores, 2, where=x.masked)).tolist() == [False, False, True, False, True]


def test_batches():
    logits = np.stack([np.eye(5, 4) * 3, np.eye(5, 4)[::-1] * 2])
    rows = ts.Canvas(*(np.stack([a, b]) for a, b in zip(prompt(), prompt(), strict=True)))
    policy = ts.policies.fastdllm_threshold(block_length=2)
    both = policy(rows, logits)
    for row in range(2):
        one = policy(prompt(), logits[row])
        assert np.array_equal(both.tokens[row], one.tokens) and np.array_equal(both.masked[row], one.masked)


def test_what_may_be_left_out():
    logits = np.zeros((5, 4))
    llada = ts.policies.llada_low_confidence(steps=3, block_length=3)
    assert llada(prompt(), logits).masked.sum() == 2
    with pytest.raises(ts.TrajspecError) as caught:
        llada(prompt(), logits, cfg_scale=1.0)
    assert "'blind' is needed here and was not given" in str(caught.value)
    assert llada(prompt(), logits, logits, cfg_scale=1.0).masked.sum() == 2
    y, clock = ts.policies.dream_entropy(prompt(), logits, steps=3)
    assert np.asarray(clock).tolist() == [2] and y.masked.sum() == 2
