"""The passes: their text before and after, and that no policy commits anything else for them."""

from __future__ import annotations

import inspect
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trajspec as ts
from tests.policies.rules import OF_TOKENS, rows, rules
from tests.strategies import small_models
from trajspec.ir import TrajspecError, parse
from trajspec.ir.interpret import run
from trajspec.passes import PASSES, speculate
from trajspec.passes.pipeline import scans
from trajspec.policies import POLICIES

BODY = """def mine(prompt: canvas):
    x = prompt
    while unfinished(x):
{}
    return x
"""


def plan(*lines: str, start: str = "", carried: str = "x"):
    text = BODY.format("\n".join(f"        {line}" for line in lines))
    return parse(text.replace("    while", f"{start}    while") if start else text)


def body(plan) -> list[str]:
    """The lines of the loop."""
    lines = str(plan).splitlines()
    return [line.strip() for line in lines[lines.index("    while unfinished(x):") + 1 : -1]]


def named(name):
    return next(one for one in PASSES if one.name == name)


CASES = {
    "fold_constants": (
        ["logits = forward(x)", "token, conf = score(logits)",
         "x = advance(x, unmask(x, token, where=masked(x) & (conf >= 0.4 + 0.5) | top(conf, 3 - 2, where=masked(x))))"],
        ["logits = forward(x)", "token, conf = score(logits)",
         "y = unmask(x, token, where=masked(x) & (conf >= 0.9) | top(conf, 1, where=masked(x)))",
         "x = advance(x, y)"],
    ),
    "specialise": (
        ["logits = top_p(forward(x), p=None)", "token = sample(x, top_k(logits, k=5), temperature=0.0)",
         "x = advance(x, unmask(x, token, where=masked(x)))"],
        ["logits = forward(x)", "y = unmask(x, argmax(logits), where=masked(x))", "x = advance(x, y)"],
    ),
    "simplify": (
        ["logits = forward(x) / 1", "token, conf = score(logits)", "here = window(x, size=4) & masked(x)",
         "x = advance(x, unmask(x, token, where=~~(here & here)))"],
        ["logits = forward(x)", "token, conf = score(logits)", "y = unmask(x, token, where=window(x, size=4))",
         "x = advance(x, y)"],
    ),
    "fuse_scores": (
        ["logits = forward(x)", "token = argmax(logits)", "conf = confidence(logits, token)",
         "calm = entropy(logits) <= 0.5",
         "x = advance(x, unmask(x, token, where=masked(x) & (calm | top(conf, 1, where=masked(x)))))"],
        ["logits = forward(x)", "token, conf, nats = score_and_entropy(logits)", "calm = nats <= 0.5",
         "out = masked(x)", "y = unmask(x, token, where=out & (calm | top(conf, 1, where=out)))", "x = advance(x, y)"],
    ),
    "share_queries": (
        ["logits, again, unread = forward(x, x, hide(x, where=known(x)))", "token = argmax(logits)",
         "conf = confidence(again, token)",
         "x = advance(x, unmask(x, token, where=top(conf, 1, where=masked(x))))"],
        ["logits = forward(x)", "token = argmax(logits)", "conf = confidence(logits, token)",
         "x = advance(x, unmask(x, token, where=top(conf, 1, where=masked(x))))"],
    ),
}  # fmt: skip


def calm_names(lines):
    """Local names do not matter."""
    return parse(BODY.format("\n".join(f"        {line}" for line in lines)))


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name):
    before, after = CASES[name]
    change = named(name)(plan(*before))
    assert change.after == calm_names(after), str(change.after)
    assert change.before == plan(*before) and change.sentence
    assert named(name)(change.after).after == change.after
    assert str(named(name)(change.after)) == f"{name}: nothing"


def test_drop_histories():
    text = """def mine(prompt: canvas):
    x = prompt
    seen = fill(prompt, kind=probs, value=0)
    count = fill(prompt, kind=count, value=0)
    idle = fill(prompt, kind=count, value=0)
    while unfinished(x):
        logits = forward(x)
        token, conf = score(logits)
        y = unmask(x, token, where=top(conf, count + 1, where=masked(x)))
        x, seen, count, idle = advance(x, y), softmax(logits), count + 1, idle + count
    return x
"""
    change = named("drop_histories")(parse(text))
    assert change.after.carried_names == ("x", "count")
    assert change.scans == (2, 1) and change.nodes[0] > change.nodes[1]
    assert "softmax" not in str(change.after) and parse(str(change.after)) == change.after
    kept = text.replace("count + 1, where", "count + idle, where")
    assert named("drop_histories")(parse(kept)).after.carried_names == ("x", "count", "idle")


def test_the_docstrings_show_before_and_after():
    for one in PASSES:
        if one.function is not None:
            assert "\n=> " in (inspect.getdoc(one.function) or "").replace("\n   ", "\n"), one.name


def test_equal_values_and_unused_ones_need_no_pass():
    made = plan(
        "logits = forward(x)",
        "unread = softmax(logits)",
        "token, conf = score(logits)",
        "same, again = score(logits)",
        "x = advance(x, unmask(x, token, where=top(again, 1, where=masked(x))))",
    )
    assert "softmax" not in str(made) and str(made).count("score(") == 1 and scans(made) == 1


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("view", ["full", "dual"])
def test_every_policy_goes_through(name, view):
    try:
        before = POLICIES[name].plan(view)
    except TrajspecError:
        pytest.skip("no such view")
    after, changes = ts.optimise(before)
    assert parse(str(after)) == after and str(parse(str(after))) == str(after)
    assert scans(after) <= scans(before) and [one.name for one in changes] == [one.name for one in PASSES]
    assert changes[0].before == before and changes[-1].after == after
    again, more = ts.optimise(after)
    assert again == after and not any(one.used for one in more)
    assert (before.name, before.doc, before.inputs) == (after.name, after.doc, after.inputs)


def test_published_policies_take_fewer_passes():
    plans = [POLICIES[name].plan() for name in POLICIES]
    before, after = sum(map(scans, plans)), sum(scans(ts.optimise(one)[0]) for one in plans)
    assert after <= before - 20
    assert scans(ts.optimise(POLICIES["fastdllm_threshold"].plan())[0]) == 1


def test_the_same_path_for_every_policy():
    met: Counter = Counter()

    for name in OF_TOKENS:

        @given(data=st.data(), name=st.just(name))
        @settings(max_examples=6, deadline=None)
        def compare(data, name):
            model = data.draw(small_models(levels=(1, 2, 4, 50)))
            before = data.draw(rules((name,))).plan()
            row = data.draw(rows(model))
            after, _ = ts.optimise(before)
            met[name if after != before else "same"] += 1
            try:
                expected = run(before, model, row)
            except TrajspecError:
                return
            done = run(after, model, row)
            assert done.calls == expected.calls and len(done.path) == len(expected.path)
            for one, other in zip(done.path, expected.path, strict=True):
                assert np.array_equal(one.tokens, other.tokens) and np.array_equal(one.masked, other.masked)

        compare()
    assert len(met) >= 15, met


def test_a_wrong_rule_is_noticed_by_that_comparison():
    """Control: with a rule that does not hold some path differs."""

    @ts.rule(exact=True, l="logits")
    def upside_down(l):  # noqa: E741
        """Wrong."""
        return ts.confidence(l, ts.argmax(l)), ts.confidence(-l, ts.argmax(l))

    found = 0

    @given(data=st.data())
    @settings(max_examples=40, deadline=None)
    def compare(data):
        nonlocal found
        model = data.draw(small_models(levels=(4, 50)))
        before = POLICIES["llada_low_confidence"].plan()
        before = named("specialise")(before).after
        row = data.draw(rows(model))
        after, _ = ts.optimise(before, rules=[upside_down])
        paths = [[state.masked.tolist() for state in run(one, model, row).path] for one in (before, after)]
        found += paths[0] != paths[1]

    compare()
    assert found >= 5


def test_speculated_plans_are_refused():
    made = speculate(POLICIES["fastdllm_threshold"], "chain")
    with pytest.raises(TrajspecError, match="optimise its base fastdllm_threshold"):
        ts.optimise(made)
    base, _ = ts.optimise(POLICIES["fastdllm_threshold"].plan())
    assert speculate(base, "chain").base == base
