"""Plan text with plans above it: what speculation makes prints as two functions and reads back as the same object."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import trajspec as ts
from tests.policies.rules import OF_TOKENS
from trajspec.ir import Plan, TrajspecError, parse, text, verify
from trajspec.ir.opset.verify import LOOKAHEAD
from trajspec.ir.opset.walk import ACCEPT
from trajspec.passes import speculate
from trajspec.passes.speculate import draft_and_verify, named
from trajspec.policies import POLICIES

from .plans import plans
from .test_text import round_trip

WALKS = {
    "accept": st.sampled_from(ACCEPT), "strata": st.just((0.9, 0.7)), "budget": st.sampled_from([0.0, 1.5]),
    "then": st.just("stop"), "recheck": st.just(0.25), "head": st.just("node"), "key": st.just("block"),
    "halt": st.just("end"), "ties": st.just("high"), "adopt": st.booleans(), "leave": st.booleans(),
}  # fmt: skip


@ts.policy
def remembers(x, logits, answer=ts.given("selection"), last=ts.history("probs", start=0), *, threshold=0.7):
    """A history and a task input."""
    token, conf = ts.score(logits)
    here = ts.window(x, size=4) & answer
    sure = here & (conf >= threshold) | ts.top(conf, 1, where=ts.window(x, size=4))
    return ts.unmask(x, token, where=sure), ts.softmax(logits)


def speculated(base, data: st.DataObject, view: str = "full") -> Plan:
    """Speculation of `base` with drawn settings of every op."""
    told = {name: data.draw(values) for name, values in WALKS.items() if data.draw(st.booleans())}
    if told.get("accept", "base") != "base":
        told["strata"] = (0.9,)
    lookahead = None if view == "full" else data.draw(st.sampled_from([None, *LOOKAHEAD]))
    drafter = named("chain")(nodes=data.draw(st.integers(1, 9)))
    return speculate(
        base, drafter, view=view, lookahead=lookahead, carried=data.draw(st.booleans()),
        isolate=data.draw(st.booleans()), **told,
    )  # fmt: skip


@pytest.mark.parametrize("view", ["full", "prefix", "dual", "block_causal"])
@given(data=st.data())
@settings(max_examples=25, deadline=4000)
def test_speculated_policies_read_back(view, data):
    policy = data.draw(st.sampled_from([*(POLICIES[name] for name in OF_TOKENS), remembers]))
    try:
        base = policy.plan(view)
    except TrajspecError:
        assume(False)
    assume(not base.models)
    plan = speculated(base, data, view)
    written = round_trip(plan)
    assert parse(written).base == base
    assert "Plan(" not in written and written.count("def ") == 2
    assert written.startswith(str(base) + "\n\ndef ")


@given(base=plans(), data=st.data())
@settings(max_examples=150, deadline=4000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_arbitrary_speculated_plans_read_back(base, data):
    try:
        plan = speculated(base, data)
    except TrajspecError as error:
        # No forward in the step, or a task input that no policy can declare.
        assert "needs one forward" in str(error) or "got conf from" in str(error)
        assume(False)
    round_trip(plan)


@pytest.mark.parametrize(
    ("name", "view"), [("fastdllm_threshold", "full"), ("fastdllm_threshold", "dual"), ("klass", "full")]
)
def test_golden(name, view, golden):
    plan = speculate(POLICIES[name], "chain", view=view)
    golden(plan.name + f"_{view}" * (view != "full"), str(plan))


def test_golden_before_carry(golden):
    base = POLICIES["klass"].plan()
    golden("klass_draft_and_verify", str(draft_and_verify(base, named("chain"))))


def test_settings_of_an_approximate_walk_are_written():
    plan = speculate(POLICIES["fastdllm_threshold"], "chain", accept="relaxed", strata=(0.9, 0.7), budget=2)
    assert "of=fastdllm_threshold, accept=relaxed, strata=(0.9, 0.7), budget=2.0)\n" in round_trip(plan)


def test_the_state_of_the_base_keeps_its_names():
    written = round_trip(speculate(remembers, "chain"))
    assert "def remembers_chain(prompt: canvas, answer: selection):\n" in written
    assert (
        "x, last, held, trail = walk(x, last, answer, table=table, held=held, of=remembers)\n    return x\n" in written
    )
    both = round_trip(speculate(remembers, "chain", carried=False))
    assert "x2, last2, held2, trail = walk(x, last, answer, " in both
    assert "x, last, held, trail2 = walk(x2, last2, answer, " in both


def test_pickle_and_copy():
    for view in ("full", "dual"):
        plan = speculate(POLICIES["fastdllm_threshold"], "chain", view=view)
        for twin in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), copy.copy(plan)):
            assert twin == plan and str(twin) == str(plan) and twin.base == plan.base


def test_other_bases_make_other_plans():
    one, other = (speculate(POLICIES["fastdllm_threshold"](threshold=t), "chain") for t in (0.9, 0.8))
    assert one != other and one.step[0] is not other.step[0]
    assert one == speculate(POLICIES["fastdllm_threshold"](threshold=0.9), "chain")
    assert str(one).replace("0.9", "0.8") == str(other)


def test_two_bases():
    # The two ops may name two plans; each prints once, in the order of use.
    base, outer = str(speculate(POLICIES["fastdllm_threshold"], "chain")).split("\n\n\n")
    first = base.replace("def fastdllm_threshold(", "def first(")
    second = first.replace("first", "second").replace("0.9", "0.5")
    outer = outer.replace("of=fastdllm_threshold", "of=first", 1).replace("of=fastdllm_threshold", "of=second")
    plan = parse("\n\n\n".join([second, first, outer]))
    assert [part.name for part in plan.bases] == ["first", "second"]
    assert plan.base is not None and plan.base.name == "second"
    assert re.findall(r"^def (\w+)", round_trip(plan), re.M) == ["first", "second", "fastdllm_threshold_chain"]


def test_names_must_differ():
    plan = speculate(POLICIES["fastdllm_threshold"], "chain")
    renamed = replace(plan, name="fastdllm_threshold")
    with pytest.raises(TrajspecError, match="need different names, got fastdllm_threshold, fastdllm_threshold"):
        verify(renamed)
    with pytest.raises(TrajspecError, match="is not a name in Python of at most 200 characters"):
        verify(replace(plan, name="a" * 201))
    round_trip(verify(replace(plan, name="a" * 200)))


def test_a_base_has_no_base_itself():
    inner = str(speculate(POLICIES["fastdllm_threshold"], "chain"))
    inner = inner.replace("    held = nothing(prompt)\n", "").replace(
        "draft = chain", "held = nothing(x)\n        draft = chain"
    )
    assert len(parse(inner).starts) == 1
    outer = inner[inner.index("def fastdllm_threshold_chain") :].replace("of=fastdllm_threshold", "of=inner")
    inner = inner.replace("fastdllm_threshold_chain", "inner")
    with pytest.raises(TrajspecError, match="its base inner has a base itself; expected a plan that asks the model"):
        parse(inner + "\n\n" + outer)


def test_a_wrong_printer_is_noticed(monkeypatch):
    plan = speculate(POLICIES["fastdllm_threshold"], "chain")
    same = replace(plan, step=(plan.step[0], plan.carried[-1]))
    for good in (plan, same):
        round_trip(good)
    with monkeypatch.context() as patch:
        patch.setattr(text, "_gives_all", lambda step: None)
        assert "x, held = x2, held2\n" in round_trip(plan)  # the long way round says the same
    with monkeypatch.context() as patch:
        patch.setattr(text, "_gives_all", lambda step: step[0].node)
        with pytest.raises(AssertionError):
            round_trip(same)
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "bases", ())
        with pytest.raises(TrajspecError, match="None is defined above"):
            round_trip(plan)
