"""Layouts of packed calls: the same logits up to rounding, no state sees another one, and what says so."""

from __future__ import annotations

import pytest
import torch

import trajspec as ts
from trajspec.ir import TrajspecError
from trajspec.runtime import packing
from trajspec.runtime.packed import Part

SHARED = [name for name in packing.LAYOUTS if name != packing.ROWS]
TOLD = {"gen_length": 24, "block_length": 8, "policy": "threshold", "threshold": 0.4, "ignore_eos": True}


@pytest.fixture(scope="module", params=["tiny_llada", "tiny_dream"])
def model(request):
    """Without and with grouped heads."""
    return ts.load_model(f"tests/goldens/{request.param}")


def parts_of(model, count, length=29, width=8, seed=0):
    """States of one window on a filled row, some entries hidden, one query that sees nothing and one that only pads."""
    generator = torch.Generator().manual_seed(seed)
    store = model.new_store(1, length)
    at = torch.arange(length)[None]
    keys = torch.cat([torch.ones(1, length), torch.zeros(1, 1)], 1).bool()
    row = torch.randint(0, model.vocab_size, (1, length), generator=generator)
    model.cached(row, at, at, store, keys)
    slots = at[:, 10 : 10 + width].repeat(count, 1)
    tokens = torch.randint(0, model.vocab_size, (count, width), generator=generator)
    seen = torch.rand(count, width, length + 1, generator=generator) < 0.7
    seen[..., length] = False
    seen[0, 2] = False
    slots[-1, -1] = length
    before = torch.zeros(count, model.vocab_size)
    return store, Part(tokens, slots.clone(), slots, seen, store, torch.zeros(count, dtype=torch.int64), before=before)


@pytest.mark.parametrize("layout", SHARED)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_logits_of_the_reference(model, layout, count):
    for seed in range(3):
        store, part = parts_of(model, count, seed=seed)
        kept = [tensor.clone() for tensor in (*store.keys, *store.values)]
        with torch.inference_mode():
            expected = model.packed([part])[0]
            found = model.cache.laid_out(layout).packed([part])[0]
        real = part.slots < store.length
        assert torch.allclose(found[real], expected[real], atol=2e-5)
        assert all(torch.equal(a, b) for a, b in zip(kept, (*store.keys, *store.values), strict=True))


@pytest.mark.parametrize("layout", SHARED)
def test_a_state_does_not_see_its_neighbours(model, layout):
    _, part = parts_of(model, 4)
    with torch.inference_mode():
        told = model.cache.laid_out(layout).packed([part])[0]
        part.tokens[1:] = (part.tokens[1:] + 7) % model.vocab_size
        other = model.cache.laid_out(layout).packed([part])[0]
    assert torch.allclose(told[0], other[0], atol=1e-5) and not torch.allclose(told[1], other[1], atol=1e-2)


def test_a_mask_that_does_not_keep_them_apart_is_noticed(model, monkeypatch):
    """Control of the two tests above."""
    _, part = parts_of(model, 4)
    expected = model.packed([part])[0]
    monkeypatch.setattr(packing.torch, "eye", lambda n, **told: torch.ones(n, n, **told))
    found = model.cache.laid_out("isolated").packed([part])[0]
    assert (found[0, :2] - expected[0, :2]).abs().max() > 1e-3


@pytest.mark.parametrize("layout", SHARED)
@pytest.mark.parametrize("view", ["dual", "prefix", "block_causal"])
def test_runs(model, layout, view):
    if view == "block_causal" and model.name.endswith("dream"):
        pytest.skip("its blocks are not causal")
    prompt = [[1, 2, 3, 4, 5]]
    base = ts.decode(model, prompt, cache=view, **TOLD)[0]
    row = ts.decode(model, prompt, cache=view, draft="tree", nodes=4, packing=layout, **TOLD)[0]
    rows = ts.decode(model, prompt, cache=view, draft="tree", nodes=4, **TOLD)[0]
    # A near tie could part them; on these networks there is none.
    assert row.path == base.path and (row.calls, row.rows) == (rows.calls, rows.rows)
    assert row.manifest["speculation"]["packing"] == layout
    assert row.certificate["level"] == "APPROX" and rows.certificate["level"] == "BITWISE"
    assert "packed calls" in row.certificate["text"]


def test_a_batch_is_computed_by_rows(model):
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    one, other = (
        ts.decode(model, prompts, cache="dual", draft="tree", nodes=4, packing=layout, **TOLD)
        for layout in ("rows", "merged")
    )
    assert [row.path for row in one] == [row.path for row in other]


def test_auto_takes_what_is_quickest(model, monkeypatch):
    row = ts.decode(model, [[1, 2, 3]], cache="dual", draft="tree", packing="auto", **TOLD)[0]
    assert row.manifest["speculation"]["packing"] in packing.LAYOUTS
    best, seconds = packing.quickest(model, 40, 8, 4, runs=2)
    assert set(seconds) == set(packing.LAYOUTS) and (best == "rows" or seconds[best] < 0.9 * seconds["rows"])
    times = iter([0.0, 9.0, 0.0, 1.0, 0.0, 5.0] * 9)
    monkeypatch.setattr(packing.time, "perf_counter", lambda: next(times))
    assert packing.quickest(model, 40, 8, 4, runs=2)[0] == "isolated"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "dual", "draft": "tree", "packing": "loose"}, "packing is 'loose', expected one of: rows, isolated"),
        ({"draft": "tree", "packing": "merged"}, "full view keeps nothing"),
        ({"cache": "dual", "packing": "merged"}, "nothing is drafted"),
    ],
)
def test_what_makes_no_sense_is_refused(model, options, message):
    with pytest.raises(TrajspecError, match=message):
        ts.decode(model, [[1, 2, 3]], **TOLD, **options)
