"""Declaring an op: a few lines in a user's file, or an error that shows how."""

from __future__ import annotations

import numpy as np
import pytest

import trajspec as ts
from trajspec.ir import OPS, TrajspecError, parse
from trajspec.ir.op import op, pairs


@pytest.fixture
def declare():
    """`op` whose ops are gone after the test."""
    before = dict(OPS)
    yield op
    OPS.clear()
    OPS.update(before)


def test_a_users_op(declare, tmp_path):
    @declare("evens(x: canvas, *, every: int = 2, where: selection) -> evens: selection")
    def evens(x, *, every, where):
        """The positions of `where` that `every` divides."""
        return where & (x.position % every == 0)

    assert ts.evens is evens and evens.sentence == "The positions of `where` that `every` divides."
    assert "evens" in dir(ts)

    @ts.policy
    def mine(x, logits):
        here = ts.masked(x)
        return ts.unmask(x, ts.argmax(logits), where=ts.evens(x, every=3, where=here) | ts.first(1, where=here))

    text = str(mine.plan())
    assert "evens(x, where=here, every=3)" in text and parse(text) == mine.plan()
    x = ts.canvas([0], gen_length=5, vocab_size=3, mask_id=2)
    assert mine(x, np.zeros((6, 3))).masked.tolist() == [False, False, True, False, True, True]


def test_several_results_and_many_operands(declare):
    @declare("spread(*all: scores, low: int | float = 0) -> least: scores, most: scores")
    def spread(*all, low):
        """The smallest and the largest of several scores."""
        return np.minimum(np.min(all, axis=0), low), np.max(all, axis=0)

    x = ts.canvas([0], gen_length=2, vocab_size=3, mask_id=2)
    least, most = ts.spread(ts.position(x), ts.position(x) * 2, low=1)
    assert np.asarray(least).tolist() == [0, 1, 1] and np.asarray(most).tolist() == [0, 2, 4]
    assert [operand.name for operand, _ in pairs(spread, [1, 2, 3])] == ["all"] * 3

    @ts.policy
    def mine(x, logits):
        low, high = ts.spread(ts.position(x), ts.margin(logits))
        return ts.unmask(x, ts.argmax(logits), where=low < high)

    assert parse(str(mine.plan())) == mine.plan()


def good(*args, **attrs):
    """One sentence."""


@pytest.mark.parametrize(
    ("signature", "problem"),
    [
        ("thing(x: canvas)", "it has no '-> name: kind'"),
        ("thing(x: canvas -> y: scores", "the part before '->' does not read like a Python function"),
        ("thing -> y: scores", "the part before '->' does not read like a Python function"),
        ("import(x: canvas) -> y: scores", "the part before '->' does not read like a Python function"),
        ("thing(x: canvas): pass\ndef other(x: canvas) -> y: scores", "it is more than one signature"),
        ("thing(x) -> y: scores", "parameter 'x' must be one of the kinds canvas, "),
        ("thing(x: canvs) -> y: scores", "parameter 'x' must be one of the kinds canvas, "),
        ("thing(x: canvas | int) -> y: scores", "parameter 'x' must be one of the kinds canvas, "),
        ("thing(x: canvas, x: tokens) -> y: scores", "parameter 'x' occurs twice"),
        ("thing(x: canvas | None) -> y: scores", "value 'x' may be None only after a *"),
        ("thing(x: canvas, size: int) -> y: scores", "setting 'size' must stand after a *"),
        ("thing(x: canvas = 1) -> y: scores", "it has a default before the *"),
        ("thing(x: canvas, /) -> y: scores", "it has a default before the *, a / or a **"),
        ("thing(x: canvas, **rest: int) -> y: scores", "it has a default before the *, a / or a **"),
        ("thing(x: canvas, *, w: selection = 3) -> y: scores", "value 'w' cannot have a default"),
        ("thing(x: canvas, *, size: int = 'a') -> y: scores", "default of setting 'size' must be int, got str"),
        ("thing(x: canvas, *, size: int = f()) -> y: scores", "default of setting 'size' must be written out"),
        ("thing(x: canvas) -> scores", "result 'scores' must be 'name: kind'"),
        ("thing(x: canvas) -> y: scores, z", "result 'z' must be 'name: kind'"),
        ("thing(x: canvas) -> y: scores | conf", "must be 'name: kind'"),
        ("top(x: canvas) -> y: scores", "op 'top' is declared already; choose another name or pass replace=True"),
    ],
)  # fmt: skip
def test_bad_signatures(declare, signature, problem):
    before = dict(OPS)
    with pytest.raises(TrajspecError) as caught:
        declare(signature)(good)
    assert problem in str(caught.value)
    if "top(" not in signature:
        assert str(caught.value).startswith(f"op signature {signature!r}: ")
        assert str(caught.value).endswith("'top(by: scores | conf, k: count, *, where: selection) -> best: selection'")
    assert before == OPS


def test_a_missing_sentence_and_a_function_that_does_not_fit(declare):
    with pytest.raises(TrajspecError, match="op 'thing' needs a docstring of one sentence that says what it computes"):
        declare("thing(x: canvas) -> y: scores")(lambda x: x)

    def thing(x, where):
        """One sentence."""

    with pytest.raises(TrajspecError, match=r"cannot be called like that.*write: def thing\(x, \*, size\)"):
        declare("thing(x: canvas, *, size: int = 3) -> y: scores")(thing)
    declare("thing(x: canvas, *, where: selection) -> y: scores")(thing)


def test_an_op_declared_again(declare):
    def made(value, **how):
        @declare("thing(x: canvas) -> y: scores", **how)
        def thing(x):
            """One sentence."""
            return np.full(x.tokens.shape, value)

        return thing

    x = ts.canvas([0], gen_length=1, vocab_size=3, mask_id=2)
    made(1.0)
    assert np.asarray(ts.thing(x)).tolist() == [1, 1]
    made(2.0, replace=True)
    assert np.asarray(ts.thing(x)).tolist() == [2, 2]


def test_settings_take_the_type_they_declare(declare):
    settings = "p: float = 1, q: int | float = 1, ids: tuple = (1, 2), kind: name = 'any'"

    @declare(f"thing(x: canvas, *, {settings}) -> y: scores")
    def thing(x, *, p, q, ids, kind):
        """One sentence."""
        return np.zeros(x.tokens.shape)

    @ts.policy
    def mine(x, logits, *, p=1, q=1.0, ids=(1, 2), kind="any"):
        return ts.unmask(x, ts.argmax(logits), where=ts.thing(x, p=p, q=q, ids=ids, kind=kind) > 0)

    assert "thing(x, q=1.0) > 0" in str(mine.plan())
    assert "thing(x, p=2.0, q=1.0, ids=(1.0, 2), kind=other)" in str(mine(p=2, ids=[1.0, 2], kind="other").plan())
    assert "thing(x, p=0.5, q=1.0)" in str(mine(p=np.float64(0.5), ids=(np.int64(1), 2)).plan())
    for bad in ({"kind": "not a name"}, {"kind": "x)"}, {"ids": (1, ((((2,),),),))}, {"ids": (float("nan"),)},
                {"p": "1"}, {"ids": range(3)}, {"ids": (0,) * 2000}, {"q": True}, {"q": 2**70}):  # fmt: skip
        with pytest.raises(TrajspecError, match=rf"thing: setting '{next(iter(bad))}' must be"):
            mine(**bad).plan()
