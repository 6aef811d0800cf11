"""Every rule of a well-formed plan, by a plan that breaks it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trajspec as ts
from trajspec.ir import OPS, TrajspecError, verify
from trajspec.ir.apply import const
from trajspec.ir.kinds import CANVAS, COUNT, FLAG, KINDS, LOGITS, SCORES, SELECTION, TOKENS
from trajspec.ir.nodes import node
from trajspec.ir.op import op
from trajspec.ir.plan import carried_value, input_value, unfinished

PLAN = ts.policies.fastdllm_threshold(block_length=4).plan()
PROMPT, X = input_value("prompt", CANVAS), carried_value(0, CANVAS)


def value(name, /, *args, kinds=None, **attrs):
    """The first result of a node made without any check."""
    return node(OPS[name], args, attrs, kinds or [kind for _, kind in OPS[name].results]).results[0]


def selection(name="masked", **attrs):
    return value(name, X, **attrs)


def becomes(selected):
    """The plan that masks again what is selected."""
    return replace(PLAN, step=(value("remask", X, selected),))


def remembers(start=None, step=None):
    """The plan with a history of scores."""
    start, step = start or FILL, step or carried_value(1, SCORES)
    return replace(PLAN, starts=(PROMPT, start), step=(*PLAN.step, step), carried_names=("x", "a"))


FORWARD = {attribute.name: attribute.default for attribute in OPS["forward"].attributes}
LOGITS_NOW = value("forward", X, **FORWARD)
LOGITS_TOO = value("forward", X, X, kinds=[LOGITS, LOGITS], **FORWARD)
FILL = value("fill", PROMPT, kind="scores", value=0)
WITH_HISTORY = remembers()

BAD = {
    "name": (replace(PLAN, name="two words"), "its name 'two words' is not a name in Python"),
    "keyword as name": (replace(PLAN, name="lambda"), "its name 'lambda' is not a name in Python"),
    "no inputs": (replace(PLAN, inputs=()), "the first input must be a canvas"),
    "other input first": (replace(PLAN, inputs=(input_value("a", TOKENS),)), "the first input must be a canvas"),
    "input that is none": (replace(PLAN, inputs=(PROMPT, X)), "must be a plan's argument, got a value of carried"),
    "same names": (replace(PLAN, inputs=(PROMPT, input_value("prompt", TOKENS))), "inputs need different names"),
    "input's name": (replace(PLAN, inputs=(PROMPT, input_value("a b", TOKENS))), "inputs need different names"),
    "no starts": (replace(PLAN, starts=()), "the first carried value must be a canvas"),
    "other start first": (replace(PLAN, starts=(FILL,)), "the first carried value must be a canvas"),
    "other test": (replace(PLAN, test=value("any", selection())), "the loop must go on while unfinished(x)"),
    "test of the prompt": (replace(PLAN, test=unfinished(PROMPT)), "the loop must go on while unfinished(x)"),
    "too few names": (replace(WITH_HISTORY, carried_names=("x",)), "carries 2 values and has 1 names"),
    "too few steps": (replace(WITH_HISTORY, step=PLAN.step), "the loop carries 2 values, the step gives 1"),
    "changed kind": (
        remembers(step=selection()),
        "carried value 1 starts as scores and becomes selection in the step",
    ),
    "unknown input": (
        becomes(input_value("answer", SELECTION)), "input 'answer' is used but not declared",
    ),
    "loop value at the start": (remembers(value("position", X)), "used outside of it"),
    "carried value too many": (becomes(carried_value(7, SELECTION)), "used outside of it"),
    "carried value of another kind": (becomes(carried_value(0, SELECTION)), "used outside of it"),
    "unknown setting": (
        becomes(selection("masked", size=3)), "masked has settings ['size'], expected []",
    ),
    "missing setting": (becomes(selection("window")), "window has settings [], expected ['size']"),
    "setting of another type": (
        becomes(selection("window", size=2.5)), "setting 'size' must be int or None, got 2.5",
    ),
    "setting out of range": (becomes(selection("window", size=0)), "size is 0, expected 1 or more"),
    "number of numpy": (
        becomes(selection("window", size=np.int64(3))), "setting 'size' is np.int64(3), expected 3",
    ),
    "not finite": (
        remembers(value("fill", PROMPT, kind="scores", value=float("nan"))),
        "setting 'value' must be",
    ),
    "unknown kind": (becomes(value("input", name="prompt", kind="b", kinds=[CANVAS])), "is used but not declared"),
    "wrong operand": (becomes(X), "remask: operand 'where' must be selection, got canvas"),
    "too many operands": (becomes(value("masked", X, X)), "masked has 2 operands, expected 1"),
    "too few operands": (replace(PLAN, step=(value("remask", X),)), "remask has 1 operands, expected 2"),
    "missing operand": (becomes(None), "operand 'where' is missing"),
    "wrong result": (
        becomes(value("position", X, kinds=[SELECTION])),
        "position gives scores, the plan says selection",
    ),
    "wrong inferred result": (
        becomes(value("add", FILL, FILL, kinds=[SELECTION])),
        "add gives scores, the plan says selection",
    ),
    "operands that do not go together": (
        becomes(value("ge", LOGITS_NOW, const(0.9), kinds=[SELECTION])),
        ">=: expected counts, scores",
    ),
    "confidence in per cent": (
        becomes(value("ge", value("max", value("softmax", LOGITS_NOW)), const(90), kinds=[SELECTION])),
        "expected a number from 0 to 1",
    ),
    "negated number": (
        remembers(step=value("mul", FILL, value("neg", const(5), kinds=[COUNT]))),
        "a negated number must be a negative number",
    ),
    "model at the start": (
        remembers(value("margin", value("forward", PROMPT, **FORWARD))),
        "the model may be called in the step only",
    ),
    "two calls": (
        becomes(value("ge", value("margin", LOGITS_NOW), value("margin", LOGITS_TOO), kinds=[SELECTION])),
        "a step may call the model once: give all queries to one forward",
    ),
}  # fmt: skip


def test_good_plans_pass():
    assert verify(PLAN) is PLAN and verify(WITH_HISTORY) is WITH_HISTORY


@pytest.mark.parametrize("name", BAD)
def test_bad_plans(name):
    plan, problem = BAD[name]
    with pytest.raises(TrajspecError) as caught:
        verify(plan)
    assert str(caught.value).startswith(f"plan {plan.name}: ")
    assert problem in str(caught.value)


def test_ops_that_are_gone():
    def declare(replace=False):
        @op("half(x: canvas) -> half: selection", replace=replace)
        def half(x):
            """Some positions."""
            return x.masked

        return half

    try:
        declare()
        plan = verify(becomes(selection("half")))
        declare(replace=True)
        with pytest.raises(TrajspecError, match=r"op 'half' is not declared \(any more\)"):
            verify(plan)
    finally:
        del OPS["half"]
    with pytest.raises(TrajspecError, match=r"op 'half' is not declared \(any more\)"):
        verify(plan)


def test_a_bad_node_does_not_spoil_the_good_one():
    bad = value("position", X, kinds=[FLAG])
    assert value("position", X).kind is KINDS["scores"] and bad.kind is FLAG
