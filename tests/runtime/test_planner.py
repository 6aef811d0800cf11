"""The planner chooses states a call by what calls cost and drafts carry, and never changes what is decoded."""

from __future__ import annotations

import json

import pytest

import trajspec as ts
from tests.runtime.test_ahead import Steady
from trajspec import planning
from trajspec.exact.tabular import HashModel
from trajspec.ir import TrajspecError
from trajspec.runtime.planner import NODES, PATIENCE, Costs, Planner, Sampler


def test_costs_are_fitted_and_relative_to_one_state():
    costs = Costs.fit([(1, 3.0), (2, 5.0), (4, 9.0), (8, 17.0)])
    assert (costs.fixed, costs.each) == pytest.approx((1.0, 2.0)) and costs(8) == pytest.approx(17 / 3)
    assert Costs.fit([(1, 3.0), (8, 1.0)])(8) == 1.0  # more states never cost less
    with pytest.raises(ValueError, match="two different numbers"):
        Costs.fit([(2, 1.0), (2, 3.0)])
    assert planning.fitted([(1, 1.0)] * 3) == Costs(1.0, 1.0)


def followed(planner, advance, rounds=300):
    """The planner after `rounds` rounds in which n states take `advance(n)` base steps."""
    for number in range(rounds):
        nodes = planner.choose()
        if nodes > 1:
            planner.saw(nodes, nodes, advance(nodes, number))
    return planner


def test_free_states_are_all_taken():
    planner = followed(Planner(Costs(1.0, 0.0)), lambda nodes, _: nodes)
    assert planner.choose() == 8 and planner.chosen.get(1, 0) == 0


def test_states_that_never_hit_are_not_drafted():
    planner = followed(Planner(Costs(0.0, 1.0)), lambda nodes, _: 1)
    assert planner.chosen[1] > 250 and planner.patience > PATIENCE
    # What does not pay is tried more and more rarely.
    before = sum(count for nodes, count in planner.chosen.items() if nodes > 1)
    followed(planner, lambda nodes, _: 1)
    assert sum(count for nodes, count in planner.chosen.items() if nodes > 1) - before <= before


def test_in_between_the_best_number_wins():
    """c(n) = 0.8 + 0.2 n and drafts that carry at most three steps: 4 states a call are best, 3 / 1.6."""
    planner = followed(Planner(Costs(0.8, 0.2)), lambda nodes, _: min(nodes, 3))
    assert max(planner.chosen, key=planner.chosen.get) == 4
    gains = {nodes: min(nodes, 3) / planner.costs(nodes) for nodes in NODES}
    assert max(gains, key=gains.get) == 4


def test_it_comes_back_when_drafts_carry_again():
    planner = followed(Planner(Costs(0.8, 0.2)), lambda nodes, _: 1)
    assert planner.gain(8) < 1
    followed(planner, lambda nodes, _: nodes, rounds=2000)
    assert planner.choose() > 1


def test_a_sampler_tries_all_numbers():
    now = iter(range(1000))
    sampler = Sampler(lambda: float(next(now)))
    for _ in range(12):
        sampler.saw(sampler.choose(), 2, 1)
        sampler.done()
    assert len(sampler.samples) == 8 and all(sample == (2, 1.0) for sample in sampler.samples)
    sampler.saw(sampler.choose(), 5, 1, "refresh")
    sampler.done()
    assert len(sampler.samples) == 8


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planning._planners.clear()
    return planning.costs_file()


@pytest.mark.parametrize("view", ["full", "dual", "block_causal"])
@pytest.mark.parametrize("costs", [Costs(1.0, 0.0), Costs(0.0, 1.0), Costs(0.6, 0.4)])
def test_the_output_is_the_base_s_whatever_is_chosen(cache, monkeypatch, view, costs):
    monkeypatch.setattr(planning, "measure", lambda *_: costs)
    model = Steady(3)
    options = {"policy": "fastdllm_threshold", "threshold": 0.9, "gen_length": 12, "block_length": 4, "cache": view}
    prompts = [[0, 1], [2], [3, 1, 0]]
    alone = ts.decode(model, prompts, **options)
    for _ in range(3):
        ours = ts.decode(model, prompts, draft="auto", require_exact=True, **options)
        assert [row.path for row in ours] == [row.path for row in alone]
        assert all(mine.calls <= theirs.calls for mine, theirs in zip(ours, alone, strict=True))
    if costs.each == 0.0:
        assert sum(row.calls for row in ours) < sum(row.calls for row in alone)
    assert ours[0].manifest["speculation"]["draft"] == "auto"


def test_costs_are_measured_once_and_kept(cache):
    model = ts.load_model("tests/goldens/tiny_llada")
    options = {"policy": "fastdllm_threshold", "gen_length": 16, "block_length": 8, "cache": "dual", "draft": "auto"}
    ts.decode(model, [[1, 2, 3]], **options)
    (saved,) = json.loads(cache.read_text()).values()
    assert saved["fixed"] >= 0 and saved["each"] >= 0
    planning._planners.clear()
    cache.write_text(json.dumps({name: {"fixed": 0.0, "each": 2.0} for name in json.loads(cache.read_text())}))
    ts.decode(model, [[1, 2, 3]], **options)
    (planner,) = next(iter(planning._planners.values())).values()
    assert planner.costs == Costs(0.0, 2.0)
    planning._planners.clear()
    cache.write_text("no JSON")  # measured anew
    assert ts.decode(model, [[1, 2, 3]], **options)[0].calls > 0


def test_one_node_leaves_nothing_to_choose(cache):
    with pytest.raises(TrajspecError, match="nodes=1 leaves one"):
        ts.decode(HashModel(3, 6, 50, 5), [[0]], policy="fastdllm_threshold", gen_length=4, draft="auto", nodes=1)


def test_what_cannot_be_speculated_is_decoded_by_itself():
    model = HashModel(3, 6, 50, 5)
    model.others = {"ar": HashModel(4, 6, 50, 5)}
    told = {"policy": "apd", "gen_length": 4}
    ours, base = (ts.decode(model, [[0]], **told, **more)[0] for more in ({"draft": "auto"}, {}))
    assert ours.path == base.path and ours.drafter == "none" and ours.calls == base.calls
    with pytest.raises(TrajspecError, match="speculated|further"):
        ts.decode(model, [[0]], **told, draft="tree")


def test_a_calibration_that_was_wrong_is_put_right():
    """Costs say that states are free; the clock says that they are not."""
    now = [0.0]

    def rounds(planner, count, seconds):
        chosen = []
        for _ in range(count):
            nodes = planner.choose()
            chosen.append(nodes)
            now[0] += seconds(nodes)
            planner.saw(nodes, nodes, min(nodes, 2))
            planner.done()
        return chosen

    planner = Planner(Costs(1.0, 0.0), clock=lambda: now[0])
    chosen = rounds(planner, 60, lambda nodes: 1.0 if nodes == 1 else 3.0)
    assert chosen[:3] == [1, 1, 1] and 8 in chosen[3:8] and chosen[-20:].count(1) >= 18
    free = Planner(Costs(0.0, 1.0), clock=lambda: now[0], advances={8: 2.0})
    # Costs say that nothing pays; it is tried now and then, and found to pay.
    assert rounds(free, 120, lambda nodes: 1.0)[-40:].count(1) == 0
    # A round that refreshes a row is not timed.
    planner.choose()
    before = {nodes: list(times) for nodes, times in planner.seconds.items()}
    planner.saw(1, 1, 1, "refresh")
    planner.done()
    assert planner.seconds == before
