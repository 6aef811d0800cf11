"""The stub denoisers against their published check values and their written formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import seeds
from trajspec.exact.tabular import StubModel
from trajspec.ir.errors import TrajspecError

SIZES = {"length": 12, "vocab": 8}
GAINS = {"gain_lo": 0.8, "gain_hi": 4.0}
TABLE = {"kind": "table", "seed": 12345, **SIZES, "mask_id": 7, "base_scale": 1.6, "ctx_scale": 1.6, **GAINS}
TABLE |= {"mask_bias": -30.0}
PEAKY = {"kind": "peaky", "seed": 67890, **SIZES, "mask_id": 3, "base_scale": 1.0, "ctx_scale": 1.0}
PEAKY |= {"gain_lo": 0.5, "gain_hi": 1.5, "mask_bias": -30.0, "amp_lo": 2.0, "amp_hi": 9.0, "fade": 0.5}

# Published with the golden trajectories: all-M row 0; 1 2 4 5 then M, row 11; its first 8 entries, row 7.
CHECKS = {
    "table": (
        [0.06461545, -1.74250853, 1.15736902, 1.30799823, -1.61770002, -1.41033004, -3.19924958, -27.35667115],
        [0.01204459, 0.41660066, -1.82821192, 0.54727767, 6.08442803, 4.56467247, 3.29451009, -31.45216410],
        [0.37066099, 1.83395367, -4.51025984, 0.10471139, -5.86463260, 1.94639024, 0.02211471, -26.04844297],
    ),
    "peaky": (
        [0.48996828, 0.09816813, -0.37756278, -29.7825103, -0.42606000, -0.45922542, 1.64251230, -0.50884206],
        [-0.55217799, 0.91935475, 6.17439286, -28.68345917, -1.39446000, -0.82777196, 0.28684848, 0.08309147],
        [0.61502234, -0.03025254, -0.86047092, -30.12019079, -0.38470442, -0.46143481, 2.16721211, -0.49851435],
    ),
}
WINO = [10.97127538, -13.41460024, 1.18722667, -10.14561421, -8.19547504, -0.12338208, 1.88840250, -18.97850270]


def canvas(mask_id, *tokens, length=12):
    """tokens, then masks: (tokens [1, L], positions [1, L])."""
    return np.array([[*tokens, *[mask_id] * (length - len(tokens))]]), np.arange(length)[None]


def wino_entries(length=12, start=4, stop=8):
    """The canvas 1 2 4 5 M.. followed by shadows of [start, stop)."""
    tokens, positions = canvas(7, 1, 2, 4, 5, length=length)
    shadow = np.arange(start, stop)
    tokens = np.concatenate([tokens, np.full((1, len(shadow)), 7)], 1)
    positions = np.concatenate([positions, shadow[None]], 1)
    visible = np.ones((1, tokens.shape[1], tokens.shape[1]), bool)
    visible[0, :length, length:] = False
    visible[0, length + np.arange(len(shadow)), shadow] = False
    return tokens, positions, visible


def near(got, expected):
    return np.abs(np.asarray(got) - expected).max() < 1e-8


@pytest.mark.parametrize("spec", [TABLE, PEAKY], ids=["table", "peaky"])
def test_stub_check_values(spec):
    model = StubModel.from_spec(spec)
    tokens, positions = canvas(spec["mask_id"], 1, 2, 4, 5)
    all_masks, later, cut = CHECKS[spec["kind"]]
    assert near(model(*canvas(spec["mask_id"]))[0, 0], all_masks)
    assert near(model(tokens, positions)[0, 11], later)
    assert near(model(tokens[:, :8], positions[:, :8])[0, 7], cut)
    hidden = np.zeros((1, 12, 12), bool)
    hidden[:, :, :8] = True
    assert near(model(tokens, positions, hidden)[0, 7], cut)  # hiding is the same as cutting
    # Negative controls: the values belong to these canvases and this visibility only.
    assert not near(model(tokens, positions)[0, 0], all_masks)
    assert not near(model(tokens, positions, hidden)[0, 11], later)
    assert not near(model(tokens, positions)[0, 7], cut)


def test_stub_check_value_of_a_shadow():
    model = StubModel.from_spec(TABLE)
    tokens, positions, visible = wino_entries()
    assert near(model(tokens, positions, visible)[0, 12], WINO)
    assert near(model(tokens, positions, visible)[0, 11], CHECKS["table"][1])  # real entries see no shadow
    seen = visible.copy()
    seen[0, 12, 4] = True  # its own twin
    assert not near(model(tokens, positions, seen)[0, 12], WINO)
    blind = visible.copy()
    blind[0, 12, 12] = False  # itself
    assert not near(model(tokens, positions, blind)[0, 12], WINO)


def test_stub_tables_are_drawn_in_the_stated_order():
    assert np.random.Philox(12345).random_raw(2).tolist() == [7761547988346370368, 12048877680314648833]
    assert near(np.random.Generator(np.random.Philox(12345)).random(2), [0.42075436, 0.65317097])
    plain = TABLE | {"gain_lo": 1.0, "gain_hi": 1.0, "mask_bias": None}
    tokens, positions = canvas(7)
    base = StubModel.from_spec(plain | {"base_scale": 1.0, "ctx_scale": 0.0})(tokens, positions)
    assert near(base[0, 0, :3], [-0.15849128, 0.30634194, -0.13367284])
    only = np.zeros((1, 12, 12), bool)
    only[0, 0, 0] = only[0, 3, 1] = True  # entry 0 sees itself, entry 3 sees entry 1
    context = StubModel.from_spec(plain | {"base_scale": 0.0, "ctx_scale": np.sqrt(12.0)})
    tokens[0, :2] = 0, 2
    logits = context(tokens, positions, only)
    assert near(logits[0, 0, :3], [-0.69265004, -0.85652364, -0.4573826])
    assert near(logits[0, 3, 4], 0.026064996359967285)
    gained = StubModel.from_spec(TABLE | {"mask_bias": None, "base_scale": 1.0, "ctx_scale": 0.0})(tokens, positions)
    assert near((gained / base)[0, :3, 0], [1.60450006, 3.1750576, 1.27371894])


def test_peaky_targets_and_amplitudes():
    peak = PEAKY | {"base_scale": 0.0, "ctx_scale": 0.0, "fade": 0.0, "mask_bias": None}
    logits = StubModel.from_spec(peak)(*canvas(3))[0]
    assert logits.argmax(1).tolist() == [6, 6, 4, 2, 4, 4, 6, 6, 2, 0, 4, 2]
    assert near(logits.max(1)[:3], [2.7143038, 2.53229225, 5.59969679])
    assert (np.sort(logits, 1)[:, :-1] == 0).all()
    base = StubModel.from_spec(PEAKY | {"ctx_scale": 0.0, "gain_lo": 1.0, "gain_hi": 1.0})(*canvas(3))[0]
    assert near(base[0, :3], [0.34842361, 0.7083076, -0.24777886])


def test_a_wrong_draw_order_changes_the_check_values(monkeypatch):
    class Swapped(np.random.Generator):
        """Draws each table with its axes reversed, i.e. in Fortran order."""

        def random(self, shape):
            return super().random(np.shape(np.empty(shape))[::-1]).T

    monkeypatch.setattr(np.random, "Generator", Swapped)
    assert not near(StubModel.from_spec(TABLE)(*canvas(7))[0, 0], CHECKS["table"][0])


def by_the_formula(spec, tokens, positions, visible, shift):
    """The stub's logits entry by entry, summed as the description writes them."""
    size, vocab, mask_id = spec["length"], spec["vocab"], spec["mask_id"]
    draw = np.random.Generator(np.random.Philox(spec["seed"])).random
    b, w = 2 * draw((size, vocab)) - 1, 2 * draw((size, vocab, size, vocab)) - 1
    gain = spec["gain_lo"] + (spec["gain_hi"] - spec["gain_lo"]) * draw((size,))
    logits = np.zeros((*tokens.shape, vocab))
    for r, i in np.ndindex(tokens.shape):
        p = max(positions[r, i] - 1, 0) if shift else positions[r, i]
        seen = [j for j in range(tokens.shape[1]) if visible[r, i, j]]
        context = sum((w[positions[r, j], tokens[r, j], p] for j in seen), np.zeros(vocab))
        logits[r, i] = gain[p] * (spec["base_scale"] * b[p] + spec["ctx_scale"] / np.sqrt(size) * context)
        logits[r, i, mask_id] += spec["mask_bias"] or 0.0
    if spec["kind"] == "peaky":
        amp = spec["amp_lo"] + (spec["amp_hi"] - spec["amp_lo"]) * draw((size,))
        target = [[v for v in range(vocab) if v != mask_id][int(u * (vocab - 1))] for u in draw((size,))]
        for r, i in np.ndindex(tokens.shape):
            p = max(positions[r, i] - 1, 0) if shift else positions[r, i]
            m = sum(visible[r, i, j] and tokens[r, j] == mask_id for j in range(tokens.shape[1]))
            logits[r, i, target[p]] += amp[p] * (1 - spec["fade"] * m / size)
    return logits


@given(st.data())
def test_stub_follows_its_formula(data):
    spec = dict(data.draw(st.sampled_from([TABLE, PEAKY])), length=5, vocab=4, mask_id=data.draw(st.integers(0, 3)))
    spec |= {"seed": data.draw(st.integers(0, 2**32)), "mask_bias": data.draw(st.sampled_from([None, -30.0]))}
    shift = data.draw(st.booleans())
    rows, width = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 7))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    tokens, positions = rng.integers(0, 4, (rows, width)), rng.integers(0, 5, (rows, width))
    visible = rng.random((rows, width, width)) < 0.6
    model = StubModel.from_spec(spec, shift=shift)
    expected = by_the_formula(spec, tokens, positions, visible, shift)
    assert np.abs(model(tokens, positions, visible) - expected).max() < 1e-12
    everything = np.ones_like(visible)
    assert (model(tokens, positions) == model(tokens, positions, everything)).all()


@given(seeds, st.integers(0, 4), st.sampled_from([TABLE, PEAKY]))
def test_stub_logits_do_not_depend_on_the_packing(seed, extra, spec):
    rng = np.random.default_rng(seed % 2**64)
    model = StubModel.from_spec(spec)
    tokens, positions = rng.integers(0, 8, (1, 12)), np.arange(12)[None]
    # A packed call: the plain canvas, in any order, among entries that it does not see, two of them off the tables.
    order = rng.permutation(14 + extra)
    packed_tokens = np.hstack([tokens, rng.integers(0, 8, (1, extra + 2))])[:, order]
    packed_positions = np.hstack([positions, rng.integers(0, 12, (1, extra)), [[-1, 12]]])[:, order]
    visible = np.broadcast_to(order < 12, (1, len(order), len(order))).copy()
    got = model(packed_tokens, packed_positions, visible)[:, np.argsort(order)[:12]]
    assert (got == model(tokens, positions)).all()  # bit for bit
    if extra:  # negative control: once the others are seen, the logits move
        visible[0, :, order < 12 + extra] = True
        assert (model(packed_tokens, packed_positions, visible)[:, np.argsort(order)[:12]] != got).any()


@pytest.mark.parametrize("spec", [TABLE, PEAKY], ids=["table", "peaky"])
def test_shift_moves_the_rows_of_a_plain_canvas(spec):
    tokens, positions = canvas(spec["mask_id"], 1, 2, 4, 5)
    raw, shifted = (
        StubModel.from_spec(spec)(tokens, positions),
        StubModel.from_spec(spec, shift=True)(tokens, positions),
    )
    assert (shifted[:, 1:] == raw[:, :-1]).all() and (shifted[:, 0] == raw[:, 0]).all()
    assert not (shifted == raw).all()
    back = StubModel.from_spec(spec, shift=True)(tokens[:, ::-1], positions[:, ::-1])
    assert (back[:, ::-1] == shifted).all()


def test_stub_specs_that_are_refused():
    with pytest.raises(TrajspecError, match="kind is 'tiny_llada'"):
        StubModel.from_spec({"kind": "tiny_llada", "weights": "x"})
    with pytest.raises(TrajspecError, match="lacks amp_hi, fade"):
        StubModel.from_spec({key: value for key, value in PEAKY.items() if key not in ("fade", "amp_hi")})
    with pytest.raises(TrajspecError, match="mask_id is 8"):
        StubModel.from_spec(TABLE | {"mask_id": 8})
