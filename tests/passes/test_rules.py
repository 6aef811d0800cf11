"""Rules: each of the library holds, wrong ones are refuted, and a user's own are used."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trajspec as ts
from trajspec.ir import TrajspecError, parse
from trajspec.passes.equations import RULES
from trajspec.passes.rules import rewrite


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_holds(rule):
    assert ts.check_rule(rule) is None
    assert rule.doc.endswith(".") and ("(exact)" in str(rule)) == rule.exact


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.exact], ids=lambda rule: rule.name)
def test_what_holds_up_to_ties_is_not_exact(rule):
    assert "rule " + rule.name in (ts.check_rule(replace(rule, exact=True)) or "")


@ts.rule(exact=True, l="logits")
def second_best(l):  # noqa: E741
    """Wrong: without the likeliest of three, another one is the likeliest."""
    return ts.argmax(ts.suppress(l, ids=(0,))), ts.argmax(l)


@ts.rule(exact=True, a="selection", b="selection")
def de_morgan_halved(a, b):
    """Wrong."""
    return ~(a & b), ~a & ~b


@ts.rule(exact=False, l="logits")
def other_confidence(l):  # noqa: E741
    """Wrong by more than rounding."""
    return ts.entropy(l), ts.margin(l)


@ts.rule(exact=True, x="canvas")
def window_of_all(x, *, size=(None, 2)):
    """Right without blocks, wrong with them."""
    return ts.window(x, size=size), ts.masked(x)


@ts.rule(exact=True, x="canvas", l="logits")
def unmask_all(x, l):  # noqa: E741
    """Wrong about a canvas."""
    return ts.unmask(x, ts.argmax(l), where=ts.masked(x)), ts.unmask(x, ts.argmax(-l), where=ts.masked(x))


@ts.rule(exact=True, l="logits")
def temperature_is_none(l):  # noqa: E741
    """Wrong in the scores, right in the order."""
    return l / 2, l


@pytest.mark.parametrize(
    "rule",
    [second_best, de_morgan_halved, other_confidence, window_of_all, unmask_all, temperature_is_none],
    ids=lambda rule: rule.name,
)
def test_a_wrong_rule_is_refuted(rule):
    told = ts.check_rule(rule)
    assert told is not None and f"rule {rule.name}, example" in told and "on the left" in told
    assert ts.check_rule(rule) == told


@ts.rule(exact=True, a="selection", b="selection")
def de_morgan(a, b):
    """What is outside of one or the other is outside of both together."""
    return ~a | ~b, ~(a & b)


TEXT = """def sure(prompt: canvas):
    x = prompt
    while unfinished(x):
        logits = forward(x)
        token, conf = score(logits)
        known = ~(conf >= 0.9) | ~masked(x)
        y = unmask(x, token, where=~known | top(conf, 1, where=masked(x)))
        x = advance(x, y)
    return x
"""


def test_a_rule_of_ones_own_is_used():
    assert ts.check_rule(de_morgan) is None
    plan = parse(TEXT)
    after, changes = ts.optimise(plan, rules=[de_morgan])
    assert changes[0].used == ("de_morgan",) and changes[0].name == "rules"
    assert "(conf >= 0.9) & hidden | top(conf, 1, where=hidden)" in str(after) and "~" not in str(after)
    assert ts.optimise(plan)[0] == plan


def test_settings_stand_for_what_the_plan_has():
    @ts.rule(exact=True, x="canvas")
    def wider(x, *, size=(2, 3)):
        """Not checked here: only which settings are found."""
        return ts.window(x, size=size) & ts.known(x), ts.window(x, size=size)

    text = TEXT.replace("known = ~(conf >= 0.9) | ~masked(x)", "known = ~(window(x, size=17) & known(x))")
    after, used = rewrite(parse(text), [wider])
    assert used == ["wider"] and "window(x, size=17)" in str(after) and "known(x)" not in str(after)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ts.rule(exact=True, a="selection")(lambda a: a), "must return"),
        (lambda: ts.rule(exact=True, a="selection")(lambda a: (a, ~a)), "matches everything"),
        (lambda: ts.rule(exact=True, a="selection")(lambda b: (~b, b)), "takes the values"),
        (lambda: ts.rule(exact=True, a="picture")(lambda a: (~a, a)), "takes the values"),
        (lambda: ts.rule(exact=True, a="logits")(lambda a: (ts.argmax(a), a)), "one kind"),
        (
            lambda: ts.rule(exact=True, a="selection", b="selection")(lambda a, b: (~a, b)),
            "b is on its right side only",
        ),
        (lambda: ts.rule(exact=True, x="canvas")(lambda x, *, size=3: (ts.window(x), ts.masked(x))), "a tuple"),
    ],
)
def test_what_is_no_rule_is_refused(make, message):
    with pytest.raises(TrajspecError, match=message):
        make()


def test_rules_that_go_round_in_circles_are_refused():
    @ts.rule(exact=True, a="selection", b="selection")
    def swapped(a, b):
        """True, and never done."""
        return a & b, b & a

    with pytest.raises(TrajspecError, match="rules swapped still find something"):
        ts.optimise(parse(TEXT.replace("~(conf >= 0.9) | ~masked(x)", "~((conf >= 0.9) & masked(x))")), rules=[swapped])
