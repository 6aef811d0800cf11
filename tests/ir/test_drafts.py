"""Which states the drafters of the library choose, and tables as settings of an op."""

from __future__ import annotations

import numpy as np
import pytest

import trajspec as ts
from trajspec.ir import canvas
from trajspec.ir.ahead import Draft, nothing_held
from trajspec.ir.op import OPS
from trajspec.ir.opset.draft import RANKS
from trajspec.passes import speculate
from trajspec.passes.speculate import named
from trajspec.policies import POLICIES


def drafted(name: str, surest: list[float], masked: list[bool] | None = None, **told: object) -> list[str]:
    """The states of a draft on tokens 0 (likeliest everywhere, with these probabilities) and 1 (second)."""
    length = len(surest)
    hidden = masked if masked is not None else [True] * length
    x = canvas([3] * length, hidden, vocab_size=5, mask_id=4)
    p = np.array([[c, (1 - c) * 0.5, (1 - c) * 0.3, (1 - c) * 0.2, 1e-9] for c in surest])
    attrs = {attribute.name: attribute.default for attribute in OPS[name].attributes} | told
    draft: Draft = OPS[name].numpy(x, nothing_held(x, np.log(p)), **attrs)
    return [
        "".join("_" if hide else str(token) for token, hide in zip(tokens, hides, strict=True))
        for tokens, hides, there in zip(draft.tokens, draft.masked, draft.exists, strict=True)
        if there
    ]


def test_chain():
    assert drafted("chain", [0.5, 0.9, 0.7], nodes=8) == ["_0_", "_00", "000"]
    assert drafted("chain", [0.5, 0.9, 0.7], nodes=3) == ["_0_", "_00"]
    assert drafted("chain", [0.5, 0.9, 0.7], masked=[True, False, True], nodes=8) == ["_30", "030"]


def test_blocks_come_one_after_another():
    assert drafted("chain", [0.4, 0.5, 0.9, 0.8], size=2, nodes=8) == ["_0__", "00__", "000_", "0000"]
    assert drafted("tree", [0.4, 0.5, 0.9, 0.8], size=2, nodes=2) == ["_0__"]
    in_tree = drafted("tree", [0.4, 0.5, 0.9, 0.8], size=2, nodes=16)
    assert "00__" in in_tree and "000_" in in_tree  # the end of a block, and into the next one
    assert not [state for state in in_tree if state[2:] != "__" and "_" in state[:2]]


def test_tree_has_skips_second_choices_and_whole_strata():
    surest = [0.6, 0.55, 0.5, 0.4, 0.35]
    states = drafted("tree", surest, nodes=30, threshold=0.9)
    states.remove("00000")  # every way leads there
    assert drafted("tree", surest, nodes=2) == ["0____"]
    for state in ("0____", "_0___", "00___", "__0__", "1____", "000__"):
        assert state in states, state
    assert drafted("tree", surest, nodes=30, branching=1, alternatives=0, strata=())[:2] == ["0____", "00___"]
    assert "1____" not in drafted("tree", surest, nodes=30, alternatives=0)
    assert "_0___" not in drafted("tree", surest, nodes=30, branching=1)


def test_a_state_is_reached_through_kept_states():
    for nodes in range(2, 12):
        states = [set(np.flatnonzero([c != "_" for c in state])) for state in drafted("tree", [0.5] * 6, nodes=nodes)]
        assert len(states) == nodes - 1
        for state in states:
            assert len(state) == 1 or any(other < state for other in states) or len(state) in (2, 4, 6)


def test_nothing_is_drafted_where_nothing_is_known():
    x = canvas([], gen_length=3, vocab_size=4, mask_id=3)
    held = nothing_held(x, np.full((3, 4), np.nan))
    for name in ("chain", "tree"):
        told = {attribute.name: attribute.default for attribute in OPS[name].attributes}
        assert not OPS[name].numpy(x, held, **told).exists.any()


def test_ranks():
    table = ((0.8, 1, 5), (0.0, 4, 2, 16))
    assert drafted("ranks", [0.5, 0.9, 0.7], table=table) == ["_0_", "_00"]
    assert drafted("ranks", [0.5, 0.6, 0.7], table=table) == ["_0_", "__1", "0__"]
    assert drafted("ranks", [0.5, 0.6, 0.7], table=table, nodes=2) == ["_0_"]
    assert drafted("ranks", [0.5, 0.6], table=table) == ["0_", "_1"]  # there is no rank 2
    assert drafted("ranks", [0.5, 0.6], table=()) == []


def test_a_table_is_a_setting_of_a_plan():
    told = named("ranks")(table=[[0.5, 1, 5], [0, 4]], nodes=4)
    assert told.settings["table"] == ((0.5, 1, 5), (0, 4))
    plan = speculate(POLICIES["fastdllm_threshold"], told)
    assert "table=((0.5, 1, 5), (0, 4))" in str(plan)
    assert ts.parse(str(plan)) == plan
    assert plan != speculate(POLICIES["fastdllm_threshold"], told(table=((0.5, 1, 5), (0.0, 4))))  # 0 is not 0.0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (((0.5, 3),), "two bits a rank"), (((0.5, 4**RANKS),), "two bits a rank"), (((0.5, 0),), "two bits a rank"),
        (((0.5, 1.0),), "two bits a rank"), (((0.1, 1), (0.5, 1)), "from 1 down to 0"), (((2.0, 1),), "from 1 down"),
        ((1, 5), "a tuple a stratum"), (((),), "a tuple a stratum"), (((True, 1),), "a tuple a stratum"),
        (((0.5, (1, (2, (3,)))),), "a tuple of more than"), (((0.5, *range(1, 2000)),), "at most 1000"),
        (((0.5, float("inf")),), "a tuple of more than"), (((0.5, None),), "a tuple of more than"),
    ],
)  # fmt: skip
def test_tables_that_are_none(table, message):
    with pytest.raises(ts.TrajspecError, match=message):
        speculate(POLICIES["fastdllm_threshold"], named("ranks")(table=table))


def test_ranks_need_a_table():
    with pytest.raises(ts.TrajspecError, match="needs table="):
        speculate(POLICIES["fastdllm_threshold"], "ranks")


@pytest.mark.parametrize("told", [{"strata": (1.5,)}, {"strata": ("a",)}, {"branching": 0}, {"alternatives": -1}])
def test_shapes_that_are_none(told):
    with pytest.raises(ts.TrajspecError):
        speculate(POLICIES["fastdllm_threshold"], named("tree")(**told))


def test_the_threshold_is_the_base_s():
    text = str(speculate(POLICIES["fastdllm_threshold"].bind(threshold=0.8), "tree"))
    assert "threshold=0.8" in text and ts.parse(text) == speculate(
        POLICIES["fastdllm_threshold"].bind(threshold=0.8), "tree"
    )
