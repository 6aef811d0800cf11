"""Programs and what they ask: shapes, ids, counts, contexts, and a plan as a program."""

from __future__ import annotations

import numpy as np
import pytest

import trajspec as ts
from tests.exact.decoders import one_a_step
from trajspec.exact.models import letters
from trajspec.exact.program import Denoise, accepted, code, plan_program, run_program, uncode
from trajspec.exact.tabular import HashModel, TapeModel
from trajspec.ir.errors import TrajspecError
from trajspec.ir.interpret import run
from trajspec.policies import POLICIES


@pytest.mark.parametrize("mask_id", [0, 2, 3])
def test_tokens_are_numbered_without_the_mask(mask_id):
    model = HashModel(5, 4, 50, mask_id)
    denoise = Denoise(model, 3)
    assert denoise.vocab_size == 3 and denoise.ids.tolist() == [token for token in range(4) if token != mask_id]
    logits = denoise(np.array([[0, -1, 2], [-1, -1, -1]]))
    ids = denoise.ids
    tokens = np.array([[ids[0], mask_id, ids[2]], [mask_id] * 3])
    assert (logits == model(tokens, np.tile(np.arange(3), (2, 1)))[..., ids]).all()
    assert (denoise.calls, denoise.rows) == (1, 2)
    denoise([[0, 0, 0]])
    denoise.model(tokens, np.tile(np.arange(3), (2, 1)), None)
    assert (denoise.calls, denoise.rows) == (3, 5)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (np.zeros(3, int), r"int64 \[3\]; expected integers \[n, 3\]"),
        (np.zeros((2, 4), int), r"int64 \[2, 4\]; expected integers \[n, 3\]"),
        (np.zeros((1, 3)), "float64"),
        ([[0, 1, 3]], "with the token 3; expected 0 to 2, or -1 for masked"),
        ([[0, -2, 1]], "with the token -2"),
    ],
)
def test_bad_questions_are_refused(asked, message):
    denoise = Denoise(HashModel(0, 4, 4), 3)
    with pytest.raises(TrajspecError, match=message):
        denoise(asked)
    assert denoise.calls == 0


def test_contexts_are_told_apart():
    denoise = Denoise(HashModel(0, 4, 50), 2)
    canvas = np.array([[0, -1]])
    answers = [denoise(canvas)] + [denoise(canvas, [context]) for context in ([-1, -1], [0, -1], [-1], [0, -1, 0, -1])]
    assert len({answer.tobytes() for answer in answers}) == 5
    assert (denoise(np.repeat(canvas, 2, 0), [[0, -1], [-1, -1]]) == np.concatenate([answers[2], answers[1]])).all()
    with pytest.raises(TrajspecError, match=r"in a context, int64 \[2, 2\]; expected integers \[1, n\]"):
        denoise(canvas, [[0, 0], [0, 0]])
    with pytest.raises(TrajspecError, match="context with the token 3"):
        denoise(canvas, [[0, 3]])
    with pytest.raises(TrajspecError, match="too long"):
        denoise(canvas, [[0] * 40])


def test_contexts_have_numbers():
    contexts = [[], [-1], [0], [-1, -1], [2, -1, 0], [-1, 2, 2]]
    assert [uncode(code(context, 3), 3) for context in contexts] == contexts
    assert len({code(context, 3) for context in contexts}) == len(contexts) and code([], 3) == 1


def test_a_plan_runs_as_itself():
    policy = POLICIES["fastdllm_threshold"].bind(threshold=0.6, block_length=2)
    for mask_id in (3, 1):
        model = HashModel(11, 4, 50, mask_id)
        ids = np.delete(np.arange(4), mask_id)
        denoise = Denoise(model, 5)
        states = plan_program(policy.plan())(denoise, np.array([2, -1, -1, -1, -1]), 7)
        row = ts.canvas([ids[2]], gen_length=4, vocab_size=4, mask_id=mask_id, seed=7)
        expected = run(policy.plan(), model, row)
        assert len(states) == len(expected.path) > 2
        for state, x in zip(states, expected.path, strict=True):
            assert ((state < 0) == x.masked).all() and (ids[state] == x.tokens)[~x.masked].all()
        assert (denoise.calls, denoise.rows) == (expected.calls, expected.rows)


def test_a_plan_program_knows_stops_views_and_starts():
    model = TapeModel([1, 1, 1, 1, 1, 1, 1, 1], 3, 9)
    policy = POLICIES["llada_low_confidence"].bind(steps=4, block_length=4)
    states = plan_program(policy.plan(), stop=[0])(Denoise(model, 4), np.full(4, -1), 0)
    assert [letters(state) for state in states] == ["____", "a___"]
    # Known tokens behind a mask: blocks count from 0 then, and from the prompt's end otherwise.
    blocks = POLICIES["llada_low_confidence"].bind(steps=1, block_length=2).plan()
    for canvas, start, expected in (
        ([0, -1, -1, -1], None, ["a___", "aaa_", "aaaa"]),
        ([0, -1, -1, -1], lambda canvas: 0, ["a___", "aa__", "aaaa"]),
        ([0, -1, 0, -1], None, ["a_a_", "aaa_", "aaaa"]),
    ):
        states = plan_program(blocks, start=start)(Denoise(HashModel(0, 3, 1), 4), np.array(canvas), 0)
        assert [letters(state) for state in states] == expected
    dual = POLICIES["fastdllm_threshold"].bind(block_length=2).plan()
    guided = POLICIES["llada_low_confidence"].bind(steps=4, block_length=4, cfg_scale=1.0).plan()
    for plan in (dual, guided, POLICIES["wino"].plan()):
        assert (plan_program(plan)(Denoise(HashModel(0, 3, 50), 4), np.full(4, -1), 0)[-1] >= 0).all()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "expected a list of states"),
        ([], "expected a list of states"),
        ([[0, -1]], "first state is"),
        ([[-1, -1], [0]], r"int64 \[1\]; expected integers \[2\]"),
        ([[-1, -1], [0, 2]], "with the token 2"),
        ([[-1, -1], [0.0, 1.0]], "float64"),
    ],
)
def test_bad_paths_are_refused(answer, message):
    with pytest.raises(TrajspecError, match=message):
        run_program(lambda denoise, canvas, seed: answer, Denoise(HashModel(0, 3, 1), 2), (-1, -1), 0)


def test_programs_get_what_they_ask_for():
    def takes_both(denoise, canvas, seed, *, log, drafter=3):
        return [canvas, np.array([log, drafter])]

    denoise = Denoise(HashModel(0, 9, 1), 2)
    assert accepted(takes_both) == {"denoise", "canvas", "seed", "log", "drafter"}
    assert run_program(takes_both, denoise, (-1, -1), 0, log=1, drafter=2)[-1] == (1, 2)
    assert run_program(one_a_step, denoise, (-1, -1), 0, log=1, drafter=2)[-1] == (0, 0)

    def in_place(denoise, canvas, seed):
        canvas[:] = 0
        return [canvas]

    with pytest.raises(TrajspecError, match="first state"):
        run_program(in_place, denoise, (-1, -1), 0)
