"""MDLM and ReMDM beside independent transcriptions, and the laws of one step."""

from __future__ import annotations

import numpy as np
import pytest

import trajspec as ts
from tests.policies.transcriptions import ancestral
from trajspec.exact.certificate import certify
from trajspec.exact.tabular import FixedModel, HashModel
from trajspec.ir import interpret
from trajspec.passes import speculate
from trajspec.passes.speculate import named
from trajspec.policies import POLICIES
from trajspec.runtime.denoiser import Bare, FromNumpy
from trajspec.runtime.loop import run

VOCAB, MASK = 6, 5
TOLD = {"eta": 0.3, "top_p": None, "t_on": 0.55, "t_off": 0.05, "alpha_on": 0.9}


def row_of(seed, length=5):
    return ts.canvas([1, 2], gen_length=length, vocab_size=VOCAB, mask_id=MASK, seed=seed)


def ours(name, model, row, **settings):
    """The states of the library's policy, the same in numpy and torch."""
    plan = POLICIES[name].bind(**settings).plan()
    path = interpret.run(plan, model, row).path
    states = [np.where(one.masked, MASK, one.tokens).tolist() for one in path]
    (mine,), _ = run(plan, Bare(FromNumpy(model)), [row])
    pairs = zip(states, states[1:], strict=False)
    assert mine.path == [[(i, b[i] if b[i] != MASK else MASK) for i in range(len(b)) if a[i] != b[i]] for a, b in pairs]
    return states


def theirs(function, model, row, **settings):
    shown = np.where(row.masked, MASK, row.tokens)
    return [state.tolist() for state in function(model, shown, row.free, int(row.seed[0]), mask=MASK, **settings)]


@pytest.mark.parametrize("seed", range(25))
def test_mdlm(seed):
    model, row = HashModel(seed, VOCAB, 997, MASK), row_of(seed)
    settings = {"steps": [1, 3, 8, 20][seed % 4], "eps": 1e-5}
    assert ours("mdlm", model, row, **settings) == theirs(ancestral.mdlm, model, row, **settings)


@pytest.mark.parametrize("seed", range(8))
def test_a_draft_takes_no_more_calls_than_the_published_cache(seed):
    """The sampler of the paper asks again only when a token changed, and once for what is left."""
    model, row = HashModel(seed, VOCAB, 997, MASK), row_of(seed)
    base = POLICIES["mdlm"].bind(steps=60).plan()
    fast = speculate(base, named("frozen")(nodes=64))
    (alone,), _ = run(base, Bare(FromNumpy(model)), [row])
    (mine,), cost = run(fast, Bare(FromNumpy(model)), [row])
    assert mine.path == alone.path
    changed = sum(1 for step in alone.path if step)
    assert cost.calls <= changed + 1 < alone.cost.calls
    assert interpret.run(fast, model, row).calls == cost.calls


@pytest.mark.parametrize("strategy", ["cap", "rescale", "conf", "loop", "forward_backward", "none"])
@pytest.mark.parametrize("top_p", [None, 0.6])
def test_remdm(strategy, top_p):
    masked_again = 0
    for seed in range(12):
        model, row = HashModel(seed, VOCAB, 997, MASK), row_of(seed)
        settings = TOLD | {"steps": [4, 9, 20][seed % 3], "eps": 1e-5, "strategy": strategy, "top_p": top_p}
        states = ours("remdm", model, row, **settings)
        assert states == theirs(ancestral.remdm, model, row, **settings)
        masked_again += sum(
            a != MASK and b == MASK for old, new in zip(states, states[1:], strict=False)
            for a, b in zip(old, new, strict=True)
        )  # fmt: skip
        assert MASK not in states[-1]
    assert (masked_again > 0) == (strategy != "none")


@pytest.mark.parametrize(
    ("name", "wrong", "settings"),
    [
        ("mdlm", "schedule", {"steps": 8, "eps": 1e-5}),
        ("remdm", "sigma", TOLD | {"steps": 9, "eps": 1e-5, "strategy": "cap"}),
        ("remdm", "crossing", TOLD | {"steps": 9, "eps": 1e-5, "strategy": "cap", "top_p": 0.6}),
    ],
)
def test_a_wrong_detail_is_seen(name, wrong, settings):
    differing = 0
    for seed in range(12):
        model, row = HashModel(seed, VOCAB, 997, MASK), row_of(seed)
        mine = ours(name, model, row, **settings)
        differing += mine != theirs(getattr(ancestral, name), model, row, wrong=wrong, **settings)
    assert differing >= 5


def test_the_share_that_is_written_follows_the_schedule():
    """Over many rows the written share at time t is 1 - t, with and without masking again (the same marginals)."""
    model, steps = FixedModel([(0, 3.0)] * 8, VOCAB), 10
    cases = (("mdlm", {}), ("remdm", {"strategy": "cap", "eta": 0.2}), ("remdm", {"strategy": "rescale"}))
    for name, settings in cases:
        plan = POLICIES[name].bind(steps=steps, **settings).plan()
        written = np.zeros(steps)
        for seed in range(300):
            row = ts.canvas([], gen_length=8, vocab_size=VOCAB, mask_id=MASK, seed=seed)
            path = interpret.run(plan, model, row).path
            for step in range(steps):
                state = path[min(step + 1, len(path) - 1)]
                written[step] += (~state.masked).mean() / 300
        expected = np.arange(1, steps + 1) / steps
        assert np.abs(written - expected).max() < 0.04, (name, settings)


@pytest.mark.parametrize("name", ["mdlm", "remdm"])
def test_speculated_with_keyed_noise(name):
    """The same path for the same seed; a step that writes nothing needs no call: MDLM's cache."""
    model, settings = HashModel(1, VOCAB, 997, MASK), {"steps": 40, "gen_length": 6}
    base = ts.decode(model, [[1], [2, 3]], policy=name, seed=4, **settings)
    ahead = ts.decode(model, [[1], [2, 3]], policy=name, seed=4, draft="chain", **settings)
    assert [row.path for row in ahead] == [row.path for row in base]
    assert sum(row.calls for row in ahead) < 0.7 * sum(row.calls for row in base)
    certificate = certify(speculate(POLICIES[name], "chain"))
    assert certificate.plan_level.name == "BITWISE" and "token" in certificate.noise


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"strategy": "often"}, "strategy is 'often', expected one of cap, rescale"),
        ({"steps": 0}, "steps is 0, expected how many steps"),
        ({"steps": None}, "steps is None, expected how many steps"),
        ({"eps": 1.0}, "eps is 1.0, expected a number from 0 to below 1"),
        ({"eta": "x"}, "eta is 'x', expected a number"),
        ({"t_off": 0.0}, "expected 0 < t_off < t_on"),
        ({"t_on": 0.01}, "expected 0 < t_off < t_on"),
    ],
)
def test_settings_that_make_no_schedule(settings, told):
    with pytest.raises(ts.TrajspecError, match=told):
        ts.decode(HashModel(1, VOCAB, 4, MASK), [[1]], policy="remdm", gen_length=2, **settings)
