"""Speculation with every drafter of the library, good and bad: rows and paths are the base's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.rules import ALONE, rows, rules
from tests.strategies import small_models
from trajspec.ir import canvas
from trajspec.ir.drafter import drafter
from trajspec.ir.interpret import run as interpret
from trajspec.ir.op import OPS
from trajspec.passes import speculate
from trajspec.passes.speculate import named
from trajspec.policies import POLICIES
from trajspec.runtime.denoiser import Bare, FromNumpy
from trajspec.runtime.loop import run

from .test_ahead import BLOCKED, Steady, compare

SEEN = ((0.7, 1, 5, 21, 4, 2, 6, 9), (0.3, 1, 2, 8), (0.0, 1, 4, 5, 16))
DRAFTERS = {
    "chain": named("chain"), "tree": named("tree"), "frozen": named("frozen"), "ranks": named("ranks")(table=SEEN)
}  # fmt: skip


@pytest.mark.parametrize("name", DRAFTERS)
def test_full_view(name):
    @given(st.data())
    @settings(max_examples=10, deadline=None)
    def same_rows(data):
        model = data.draw(st.one_of(small_models(), st.integers(0, 999).map(Steady)))
        base = data.draw(rules(ALONE)).plan()
        drafting = DRAFTERS[name](nodes=data.draw(st.integers(1, 6)))
        compare(base, speculate(base, drafting), model, [data.draw(rows(model)) for _ in range(2)])

    same_rows()


@pytest.mark.parametrize("name", DRAFTERS)
def test_cached_views(name):
    @given(st.data())
    @settings(max_examples=10, deadline=None)
    def same_rows(data):
        model = data.draw(st.one_of(small_models(), st.integers(0, 999).map(Steady)))
        policy = data.draw(rules(BLOCKED))
        if "cfg_scale" in policy.settings:
            policy = policy.bind(cfg_scale=0.0)
        base = policy.plan(data.draw(st.sampled_from(["prefix", "dual"])))
        drafting = DRAFTERS[name](nodes=data.draw(st.integers(1, 6)))
        compare(base, speculate(base, drafting), model, [data.draw(rows(model)) for _ in range(2)])

    same_rows()


def calls(policy: str, drafting: str, model: object, length: int = 12, **told: object) -> tuple[int, int]:
    """Calls of the base and of the speculated plan, on a canvas of masks."""
    base = POLICIES[policy].bind(**told).plan()
    row = canvas([1], gen_length=length, vocab_size=model.vocab_size, mask_id=model.mask_id)
    one, other = interpret(base, model, row), interpret(speculate(base, drafting), model, row)
    assert [x.tokens.tolist() for x in one.path] == [x.tokens.tolist() for x in other.path]
    return one.calls, other.calls


class Fixed:
    """A model whose answer never changes: the base's whole future can be known."""

    vocab_size, mask_id = 6, 5

    def __call__(self, tokens, positions, visible):
        return np.random.default_rng(0).normal(size=(64, 6))[positions] * 2


def test_frozen_is_right_where_the_answer_stays():
    """Nothing but the budget ends a round: 8 steps of schedules, windows and quotas at once."""
    for policy, told in (
        ("llada_low_confidence", {"steps": 12, "block_length": 4}), ("fastdllm_threshold", {"block_length": 4}),
        ("dream_entropy", {"steps": 12}), ("fastdllm_quota", {"steps": 12, "block_length": 4}),
    ):  # fmt: skip
        base, ours = calls(policy, "frozen", Fixed(), **told)
        assert ours == 1 + -(-(base - 1) // 8), policy


def test_chain_and_tree_know_single_commits():
    for name in ("chain", "tree"):
        base, ours = calls("fastdllm_quota", name, Fixed(), steps=12, block_length=None)
        assert base == 12 and ours < 5


def test_one_node_is_the_root_alone():
    for name in DRAFTERS:
        base, ours = calls("fastdllm_quota", DRAFTERS[name](nodes=1), Fixed(), steps=6)
        assert base == ours == 6


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("nodes", [0, -3])
def test_no_nodes_is_an_error(name, nodes):
    with pytest.raises(Exception, match="the root included"):
        speculate(POLICIES["fastdllm_threshold"], DRAFTERS[name](nodes=nodes))


# Drafters that should not be: a clear error or no speculation, and never another result.


@drafter
def outside(x, logits, *, nodes=8):
    """A position that does not exist."""
    return [[{99: 1}]]


@drafter
def no_such_token(x, logits, *, nodes=8):
    """A token that does not exist."""
    return [[{int(np.flatnonzero(x.masked)[0]): 99}]]


@drafter
def over_the_prompt(x, logits, *, nodes=8):
    """Changes what was given."""
    return [[{0: 3}]]


@drafter
def raising(x, logits, *, nodes=8):
    """Fails."""
    raise KeyError("nothing here")


@drafter
def no_trajectories(x, logits, *, nodes=8):
    """Gives something else."""
    return 7


@drafter
def nothing_at_all(x, logits, *, nodes=8):
    """No states."""
    return []


@drafter
def nothing_said(x, logits, *, nodes=8):
    """Forgets to return."""


@drafter
def everything(x, logits, *, width=40):
    """Far too many states, impossible and repeated ones, the root and the end."""
    free = np.flatnonzero(x.free)
    some = [[{int(at): token % 5} for at in free] for token in range(width)]
    return [[{}], *some, *some]


BAD = {
    "outside": "position 99.*positions below 5", "no_such_token": "token 99.*tokens below 6",
    "over_the_prompt": "given", "raising": "KeyError.*nothing here.*test_drafters.py, line",
    "no_trajectories": "TypeError.*trajectories: lists of updates",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_drafter_is_a_clear_error(name):
    plan = speculate(POLICIES["fastdllm_quota"].bind(steps=4), name)
    row = canvas([1], gen_length=4, vocab_size=6, mask_id=5)
    for start in (lambda: interpret(plan, Fixed(), row), lambda: run(plan, Bare(FromNumpy(Fixed())), [row])):
        with pytest.raises(Exception, match=BAD[name]) as failed:
            start()
        assert type(failed.value).__name__ == "TrajspecError"


@pytest.mark.parametrize("name", ["nothing_at_all", "nothing_said", "everything"])
def test_a_useless_drafter_changes_nothing(name):
    base = POLICIES["fastdllm_quota"].bind(steps=4).plan()
    row = canvas([1], gen_length=4, vocab_size=6, mask_id=5)
    runs = compare(base, speculate(base, name), Fixed(), [row, row])
    assert runs[0].cost.calls == 4 or name == "everything"


def teardown_module() -> None:
    for name in (*BAD, "nothing_at_all", "nothing_said", "everything"):
        OPS.pop(name, None)
