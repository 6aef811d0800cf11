"""Published methods as drafters: the states of their papers, and the policy's own result."""

from __future__ import annotations

import numpy as np
import pytest

import trajspec as ts
from tests.runtime.test_ahead import Steady
from trajspec.exact.certificate import certify
from trajspec.ir.ahead import nothing_held
from trajspec.ir.canvas import canvas
from trajspec.methods import METHODS
from trajspec.passes import speculate
from trajspec.policies import POLICIES

PROMPTS = [[0, 1], [2], [3, 1, 0]]
OPTIONS = {"policy": "fastdllm_threshold", "threshold": 0.9, "gen_length": 12, "block_length": 4}


def held_row(seed=0, length=6):
    """A row in the midst of a block, and the logits known in it."""
    row = canvas([1], gen_length=length, vocab_size=6, mask_id=5)
    logits = np.random.default_rng(seed).normal(size=(length + 1, 6)) * 3
    logits[:, 5] = -1e30
    return row, logits


def shown(draft):
    """The drafted canvases, as tuples of tokens with -1 for masks."""
    return [tuple(state) for state in np.where(draft.masked, -1, draft.tokens)[draft.exists].tolist()]


def chain_by_rank(row, logits, count):
    """SSD's drafts from its paper: the surest positions one after the other, each with its likeliest token."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    order = sorted(np.flatnonzero(row.masked), key=lambda place: -p[place].max())
    state, found = np.where(row.masked, -1, row.tokens), []
    for place in order[:count]:
        state = state.copy()
        state[place] = p[place].argmax()
        found.append(tuple(state.tolist()))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_ssd_drafts_the_surest_positions_in_their_order(seed):
    row, logits = held_row(seed)
    drafted = shown(METHODS["ssd"].drafter.op.numpy(row, nothing_held(row, logits), nodes=4, size=None))
    assert drafted == chain_by_rank(row, logits, 3)
    # Control: another order is another chain.
    assert drafted != chain_by_rank(row, -logits, 3)


def test_freedave_drafts_nested_sets_of_the_policy():
    """Draft k is what the policy commits in k steps on the same logits, with one token a step: nested, in its order."""
    base = POLICIES["llada_low_confidence"].bind(steps=6, block_length=None).plan()
    row, logits = held_row(3)
    states = shown(METHODS["freedave"].drafter.op.numpy(row, held=nothing_held(row, logits), of=base, nodes=4))
    assert states == chain_by_rank(row, logits, 3)
    assert all(sum(token >= 0 for token in state) == 2 + number for number, state in enumerate(states))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("view", ["full", "dual", "block_causal"])
def test_methods_give_the_policy_s_own_result(name, view):
    model = Steady(3)
    alone = ts.decode(model, PROMPTS, cache=view, **OPTIONS)
    ours = ts.decode(model, PROMPTS, cache=view, draft=name, require_exact=True, **OPTIONS)
    assert [row.path for row in ours] == [row.path for row in alone]
    assert all(mine.calls <= theirs.calls for mine, theirs in zip(ours, alone, strict=True))
    # FreeDave's sets hold what the threshold commits at once: here it saves nothing in the block-causal view.
    fewer = sum(row.calls for row in ours) < sum(row.calls for row in alone)
    assert fewer == ((name, view) != ("freedave", "block_causal"))
    assert all(row.certificate["level"] == "BITWISE" for row in ours)
    assert {row.drafter for row in ours} == {METHODS[name].drafter.name}


def test_a_method_s_settings_can_be_overruled():
    model = Steady(3)
    told = {"cache": "dual", "draft": "ssd", **OPTIONS}
    first = ts.decode(model, PROMPTS[:1], **told)[0].manifest["speculation"]
    assert (first["nodes"], first["lookahead"]) == (5, "none")
    other = ts.decode(model, PROMPTS[:1], nodes=3, lookahead="exact", **told)[0].manifest["speculation"]
    assert (other["nodes"], other["lookahead"]) == (3, "exact")


def test_spiffy_is_calibrated(tmp_path):
    model = Steady(3)
    with pytest.raises(ts.TrajspecError, match=r"draft='spiffy' needs its table: .* ts.calibrate"):
        ts.decode(model, PROMPTS, draft="spiffy", **OPTIONS)
    spiffy = ts.calibrate(model, PROMPTS, **OPTIONS)
    spiffy.save(tmp_path / "spiffy.json")
    ours = ts.decode(model, PROMPTS, draft=str(tmp_path / "spiffy.json"), require_exact=True, **OPTIONS)
    alone = ts.decode(model, PROMPTS, **OPTIONS)
    assert sum(row.calls for row in ours) < sum(row.calls for row in alone)


def test_published_faults_are_not_inherited():
    """FreeDave with a threshold accepts subsets, which leaves the trajectory; as a drafter it cannot."""
    base = POLICIES["fastdllm_threshold"].plan()
    exact, subset = speculate(base, METHODS["freedave"].drafter), speculate(base, "frozen", accept="subset")
    assert certify(exact).level.name == "BITWISE" and certify(subset).level.name != "BITWISE"
