"""Calibrated drafters: what is counted, what it saves, and the file it is kept in."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trajspec as ts
from trajspec.calibration import Root, choose_states, visited
from trajspec.exact.tabular import HashModel
from trajspec.ir import canvas
from trajspec.ir.interpret import run as interpret


class Second:
    """A model after whose calls the second surest position is committed next: its confidences turn round each time."""

    vocab_size, mask_id = 6, 5

    def __call__(self, tokens, positions, visible):
        place = positions.astype(float)
        hidden = tokens == self.mask_id
        left = np.where(hidden, place, np.inf).min(-1, keepdims=True)
        # The leftmost mask is what the policy takes; the held logits made it the second choice.
        order = np.where(place == left, 1.0, np.where(place == left + 2, 0.9, 0.8 - 0.01 * place))
        return np.stack([2 * order, *[np.zeros_like(order)] * 5], -1)


def roots(*courses: list[tuple[float, list[int]]]) -> list[Root]:
    return [
        Root(conf, tuple(ahead), at == len(course) - 1) for course in courses for at, (conf, ahead) in enumerate(course)
    ]


def test_the_states_that_came_next_most_often_are_chosen():
    often = roots(*[[(0.5, [4, 5]), (0.5, [1])]] * 3, [(0.5, [1, 9])])
    assert choose_states(often, floors=(0.0,), most=2) == ((0.0, 4, 5),)
    assert set(choose_states(often, floors=(0.0,), most=3)[0][1:]) == {1, 4, 5}


def test_a_state_pays_only_behind_those_before_it():
    deep = roots(*[[(0.5, [7, 8])]] * 5, *[[(0.5, [6, 8])]] * 5, *[[(0.5, [1])]] * 4)
    table = choose_states(deep, floors=(0.0,), most=2)
    assert 8 not in table[0][1:2]


def test_strata_have_states_of_their_own():
    mixed = roots(*[[(0.9, [1])]] * 4, *[[(0.2, [4])]] * 4)
    high, low = choose_states(mixed, floors=(0.5, 0.0), most=1)
    assert high == (0.5, 1) and low == (0.0, 4)


def test_where_little_was_seen_single_commits_are_drafted():
    once = roots([(0.5, [1 + 4 + 64])])
    (_, *states), *_ = choose_states(once, floors=(0.0,), most=7, prior=4.0)
    assert states[:2] == [1, 5] and {21, 69} < set(states)
    assert choose_states(once, floors=(0.0,), most=7) == ((0.0, 69),)
    often = choose_states(once * 50, floors=(0.0,), most=7, prior=4.0)
    assert often[0][1] == 69


def test_rounds_of_a_run():
    course = roots([(0.5, [1, 5]), (0.5, [1]), (0.5, [4]), (0.5, [])], [(0.5, [])])
    assert list(visited(course, ((0.0, 1, 5),), 8)) == [0, 3, 4]
    assert list(visited(course, ((0.0, 1, 5),), 2)) == [0, 2, 3, 4]  # one state beside the root
    assert list(visited(course, ((0.0,),), 8)) == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def second():
    return ts.calibrate(Second(), [[1], [2, 3]], policy="fastdllm_threshold", gen_length=9, block_length=None)


def test_calibration_sees_what_ranks_are_chosen(second):
    row = canvas([4, 1], gen_length=14, vocab_size=6, mask_id=5)
    base = ts.policies.fastdllm_threshold(block_length=None)
    alone = interpret(base.plan(), Second(), row)
    chain, ours = (interpret(ts.speculate(base, drafter), Second(), row) for drafter in ("chain", second))
    for run in (chain, ours):
        assert [x.tokens.tolist() for x in run.path] == [x.tokens.tolist() for x in alone.path]
    assert ours.calls < chain.calls <= alone.calls
    assert second.notes["prompts"] == 2 and second.notes["calls"] < second.notes["base_calls"]


def test_calibration_counts_its_own_rounds():
    """What it says it saves is what decoding with it takes."""
    model, told = HashModel(3, 6, 8), {"policy": "fastdllm_quota", "gen_length": 8, "block_length": None, "steps": 8}
    drafter = ts.calibrate(model, [[1], [2], [3]], **told)
    result = ts.decode(model, [[1], [2], [3]], draft=drafter, **told)
    assert sum(row.calls for row in result) == drafter.notes["calls"]
    assert sum(row.calls for row in ts.decode(model, [[1], [2], [3]], **told)) == drafter.notes["base_calls"] == 24


def test_file(second, tmp_path):
    path = tmp_path / "second.json"
    second.save(path)
    again = ts.load_drafter(path)
    assert again == second and again.notes == second.notes
    assert again(nodes=4).settings["nodes"] == 4 and "2 prompts" in repr(again)
    told = {"policy": "fastdllm_threshold", "gen_length": 9, "block_length": None}
    one, other = ts.decode(Second(), [[1]], **told), ts.decode(Second(), [[1]], draft=str(path), **told)
    assert one[0].token_ids == other[0].token_ids and other[0].calls < one[0].calls
    plan = ts.speculate(ts.policies.fastdllm_threshold, again)
    assert ts.parse(str(plan)) == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "its format is 2, expected 1"), ({"strata": 5}, "'strata' must be"),
        ({"strata": [{"states": []}]}, "'strata' must be"), ({"strata": [{"from": 0.5}]}, "'states' of the stratum"),
        ({"strata": [{"from": 0.5, "states": [[[0, 3]]]}]}, r"\[\[0, 3\]\] is not a list of \[rank, choice\]"),
        ({"strata": [{"from": 0.5, "states": [[]]}]}, "is not a list of"),
        ({"strata": [{"from": 0.5, "states": [7]}]}, "the state 7 is not"),
        ({"strata": [{"from": 0.5, "states": [[[0, 1], [0, 2]]]}]}, "once each"),
        ({"strata": [{"from": 2, "states": []}]}, "from 1 down to 0"), ({"nodes": 0}, "nodes is 0"),
        ({"strata": [{"from": "high", "states": []}]}, "from 1 down to 0"), ({"nodes": "many"}, "'nodes' must be int"),
        ({"calibrated": 3}, "'calibrated' is 3"),
    ],
)  # fmt: skip
def test_files_that_are_none(second, tmp_path, change, message):
    path = tmp_path / "broken.json"
    second.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ts.TrajspecError, match=message) as failed:
        ts.load_drafter(path)
    assert str(path) in str(failed.value)


def test_no_file(tmp_path):
    with pytest.raises(ts.TrajspecError, match="No such file.*drafter.save"):
        ts.load_drafter(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(ts.TrajspecError, match="is no JSON"):
        ts.load_drafter(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ts.TrajspecError, match="its format is 'list'"):
        ts.load_drafter(tmp_path / "list.json")


def test_what_cannot_be_calibrated():
    with pytest.raises(ts.TrajspecError, match="leave out draft="):
        ts.calibrate(Second(), [[1]], gen_length=4, draft="chain")
    with pytest.raises(ts.TrajspecError, match="nothing to count"):
        ts.calibrate(Second(), [[1]], gen_length=1)
