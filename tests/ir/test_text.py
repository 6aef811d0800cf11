"""Plan text: every plan prints as a subset of Python and reads back as the same object."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trajspec as ts
from trajspec.ir import Plan, parse, text, verify
from trajspec.ir.apply import build, const
from trajspec.ir.kinds import CANVAS, COUNT
from trajspec.ir.nodes import node
from trajspec.ir.op import OPS
from trajspec.ir.plan import carried_value, input_value, unfinished
from trajspec.policies import POLICIES
from trajspec.policies.compat import COMPAT

from .plans import expressions, plans

EVERY = [*POLICIES.items(), *((" ".join(names), policy) for names, policy in COMPAT.items())]
VALUES = {
    "steps": st.integers(1, 600), "block_length": st.integers(1, 64), "threshold": st.floats(0, 1),
    "temperature": st.sampled_from([0.0, 0, 0.7, 1]), "factor": st.floats(0.1, 4), "eps": st.floats(0, 0.5),
    "cfg_scale": st.sampled_from([0.0, 1, 2.5]), "logits_eos_inf": st.booleans(),
    "alg_temp": st.sampled_from([0.0, 0.4]),
    "top_p": st.sampled_from([None, 0.9, 1]), "top_k": st.sampled_from([None, 3]), "conf_threshold": st.floats(0, 1),
    "kl_threshold": st.floats(0, 1), "kl_history_length": st.integers(1, 4), "threshold_back": st.floats(0, 1),
    "unmask_strategy": st.sampled_from(["all", "max_conf", "min_kl", "random"]), "eos_id": st.just(1),
    "eot_id": st.just(2),
}  # fmt: skip
X = carried_value(0, CANVAS)
PROMPT = input_value("prompt", CANVAS)


def settings_of(policy, data):
    """Parameters drawn for every one that the policy has; ids always, so that flags may be set."""
    chosen = {"eos_id", "eot_id"} | data.draw(st.sets(st.sampled_from(sorted(VALUES))))
    return {name: data.draw(VALUES[name]) for name in policy.settings if name in chosen}


def round_trip(plan: Plan) -> str:
    written = str(plan)
    back = parse(written)
    assert back == plan
    assert str(back) == written
    return written


@pytest.mark.parametrize(("name", "policy"), EVERY, ids=[name for name, _ in EVERY])
@given(data=st.data())
@settings(max_examples=12, deadline=2000)
def test_policies_read_back(name, policy, data):
    round_trip(policy(**settings_of(policy, data)).plan())


@given(plan=plans())
@settings(max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_arbitrary_plans_read_back(plan):
    round_trip(verify(plan))


@given(plan=expressions())
@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
def test_arbitrary_expressions_read_back(plan):
    round_trip(verify(plan))


def test_a_wrong_printer_is_noticed(monkeypatch):
    plan = parse(step("(a + a) * a"))
    round_trip(plan)
    monkeypatch.setitem(text._LEVEL, "+", 7)
    with pytest.raises(AssertionError):
        round_trip(plan)


def step(expression: str) -> str:
    return (
        "def p(prompt: canvas):\n    x = prompt\n    a = fill(prompt, kind=scores, value=0)\n    while unfinished(x):\n"
        f"        x, a = x, {expression}\n    return x\n"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "a + a * a", "(a + a) * a", "a - (a - a)", "a - a - a", "a / (a * a)", "a / a * a", "-a * a", "-(a * a)", "--a",
        "a // 2 % 3", "a // (2 % 3)", "-2 * a", "a - -2", "a * -0.0", "a * 0.0", "a * 1", "a * 1.0", "2 * a",
        "a * 1e+300",
        "choose(a < 1, a, 0)", "choose((a < 1) | (a > 2) & ~(a == 3), a, -a)", "choose(~((a < 1) ^ (a != 2)), a, 1)",
        "choose(True & (step(x) < 3), a, 1)", "a + 9223372036854775807",
        "choose(any(a < 1), a, choose(any(a > 2), 1, a))",
    ],
)  # fmt: skip
def test_precedence(expression):
    assert str(parse(step(expression))) == step(expression)


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("((a) + (a))", "a + a"), ("-(5) * a", "-5 * a"), ("(-5) * a", "-5 * a"), ("a - (-(-5))", "a - 5"),
        ("a + 0x10", "a + 16"), ("a + 1_000", "a + 1000"), ("a * (a * (a))", "a * (a * a)"),
        ("kl(p=softmax(forward(x)), q=softmax(forward(x)), floor=1)", "kl(p, p, floor=1.0)"),
        ("kl(softmax(forward(x)), softmax(forward(x)), floor=1e-12)", "kl(p, p)"),
    ],
)  # fmt: skip
def test_normal_form(written, normal):
    plan = parse(step(written))
    assert f"x, a = x, {normal}\n" in str(plan)
    round_trip(plan)


def test_equal_values_are_one_object():
    def once():
        return build(OPS["top"], [build(OPS["uniform"], [X], {})[0], const(1), build(OPS["masked"], [X], {})[0]], {})[0]

    assert once() is once()
    assert POLICIES["wino"].plan().step[0] is POLICIES["wino"].plan().step[0]
    assert POLICIES["wino"].plan().step[0] is not POLICIES["wino"](threshold=0.5).plan().step[0]


def test_numbers_that_python_calls_equal_stay_apart():
    numbers = [1, 1.0, True, 0, 0.0, -0.0, False]
    assert len({const(number) for number in numbers}) == len(numbers)
    fills = [node(OPS["fill"], (PROMPT,), {"kind": "count", "value": number}, (COUNT,)) for number in numbers]
    assert len(set(fills)) == len(numbers)
    for number in [1, 1.0, 0, 0.0, -0.0]:
        assert str(parse(step(f"a * {number!r}"))) == step(f"a * {number!r}")
        assert len({parse(step(f"a * {other!r}")).step for other in (number, 2)}) == 2
    history = step("a").replace("value=0", "value=-0.0")
    assert str(parse(history)) == history
    # A default that equals what is given but is not the same is printed.
    zero = parse(step("uniform(x)").replace("uniform(x)", "linear_rate(step(x), steps=3, eps=-0.0) * a"))
    assert "eps=-0.0" in round_trip(zero)


def test_pickle_and_copy():
    for policy in (POLICIES["wino"], POLICIES["klass"]):
        plan = policy.plan()
        for twin in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), copy.copy(plan)):
            assert twin == plan and str(twin) == str(plan)
    assert copy.deepcopy(X) is X and copy.copy(X.node) is X.node


@pytest.mark.parametrize("name", ["llada_low_confidence", "fastdllm_threshold", "dream_entropy", "klass", "wino"])
def test_golden(name, golden):
    golden(name, str(POLICIES[name].plan()))


def test_golden_guided(golden):
    policy = POLICIES["llada_low_confidence"]
    golden("llada_guided", str(policy(cfg_scale=2.0, temperature=0.5, logits_eos_inf=True, eos_id=1).plan()))


def test_what_a_history_keeps_is_written():
    @ts.policy
    def keeps(x, logits, a=ts.history("count", start=1), b=ts.history("count", start=1.0)):
        return ts.unmask(x, ts.argmax(logits), where=ts.masked(x)), a, b

    @ts.policy
    def swaps(x, logits, a=ts.history("count", start=1), b=ts.history("count", start=1.0)):
        return ts.unmask(x, ts.argmax(logits), where=ts.masked(x)), b, a

    assert "x, a, b = advance(x, y), a, b\n" in round_trip(keeps.plan())
    assert "x, a, b = advance(x, y), b, a\n" in round_trip(swaps.plan())
    assert keeps.plan().starts[1] is not keeps.plan().starts[2]


def test_names_that_collide():
    @ts.policy
    def mine(x, logits, position=ts.given("scores"), top=ts.history("count", start=0)):
        window = ts.window(x, size=3)
        match = ts.score(logits)
        token, count = match
        any = ts.any(window)
        x2 = ts.unmask(x, token, where=window & (position > 1) & (count > 0.5) | ts.top(count, top, where=window))
        return x2, ts.choose(any, top, ts.count(window))

    written = round_trip(mine.plan())
    assert "def mine(prompt: canvas, position: scores):" in written
    assert "window_ = window(x, size=3)" in written and "token, count_ = score(logits)" in written


def test_an_unread_query_is_not_asked_and_one_kept_as_history_is():
    def blind(x):
        return ts.hide(x, where=ts.known(x))

    @ts.policy
    def reads(x, logits, other=ts.query(blind), last=ts.history("logits", start=0)):
        return ts.unmask(x, ts.argmax(logits), where=ts.masked(x)), other

    @ts.policy
    def ignores(x, logits, other=ts.query(blind)):
        return ts.unmask(x, ts.argmax(logits), where=ts.masked(x))

    assert "logits, other = forward(x, query)" in round_trip(reads.plan())
    assert "forward(x)" in round_trip(ignores.plan()) and "hide" not in str(ignores.plan())


def test_the_canvas_may_be_called_prompt():
    loop = "while unfinished(prompt):\n        prompt = remask(prompt, where=known(prompt))"
    plan = parse(f"def p(prompt: canvas):\n    {loop}\n    return prompt\n")
    assert plan.test is unfinished(X) and plan.starts == (PROMPT,)
    round_trip(plan)
