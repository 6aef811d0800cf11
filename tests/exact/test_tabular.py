"""The tabular models against what they promise: functions of what is seen, row by row, with ties where asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import canvases, small_models
from trajspec.exact.tabular import FixedModel, FunctionModel, HashModel, StubModel, TapeModel
from trajspec.ir.errors import TrajspecError

TABLE = {"kind": "table", "seed": 12345, "length": 12, "vocab": 8, "mask_id": 7, "base_scale": 1.6, "ctx_scale": 1.6}
TABLE |= {"gain_lo": 0.8, "gain_hi": 4.0, "mask_bias": -30.0}
PEAKY = TABLE | {"kind": "peaky", "mask_id": 3, "amp_lo": 2.0, "amp_hi": 9.0, "fade": 0.5}


def canvas(mask_id, *tokens, length=12):
    """tokens, then masks: (tokens [1, L], positions [1, L])."""
    return np.array([[*tokens, *[mask_id] * (length - len(tokens))]]), np.arange(length)[None]


def near(got, expected):
    return np.abs(np.asarray(got) - expected).max() < 1e-8


@given(st.data())
def test_hash_model_is_a_function_of_what_is_seen(data):
    model = data.draw(small_models())
    tokens = data.draw(canvases(model.vocab_size, model.mask_id, rows=2))
    positions = np.tile(np.arange(tokens.shape[1]), (2, 1))
    logits = model(tokens, positions)
    levels = len(model._values)
    again = HashModel(model._seed, model.vocab_size, levels, model.mask_id)
    assert (again(tokens[1:], positions[1:]) == logits[1:]).all()  # rows are independent, the call order is nothing
    assert (model(tokens[:, ::-1], positions[:, ::-1])[:, ::-1] == logits).all()  # a set has no order
    assert len(np.unique(logits)) <= levels and np.isfinite(logits).all()
    # A copy of an entry, or an unseen one, changes nothing.
    more, where = np.hstack([tokens, tokens[:, :1]]), np.hstack([positions, positions[:, :1]])
    assert (model(more, where)[:, :-1] == logits).all()
    visible = np.ones((2, more.shape[1], more.shape[1]), bool)
    assert (model(more, where, visible)[:, :-1] == logits).all()
    visible[:, :, -1] = False
    more[:, -1] = (more[:, -1] + 1) % model.vocab_size
    assert (model(more, where, visible)[:, :-1] == logits).all()


@pytest.mark.parametrize("change", ["seed", "token", "mask", "position", "visible"])
def test_hash_model_reads_everything_it_sees(change):
    model, tokens, positions = HashModel(3, 5, 50), np.array([[0, 4, 2]]), np.arange(3)[None]
    visible = np.ones((1, 3, 3), bool)
    before = model(tokens, positions, visible)
    if change == "seed":
        model = HashModel(4, 5, 50)
    elif change == "token":
        tokens[0, 0] = 1
    elif change == "mask":
        tokens[0, 2] = 4
    elif change == "position":
        positions[0, 2] = 7
    else:
        visible[0, :, 0] = False
    after = model(tokens, positions, visible)
    assert (before != after).any(axis=2).all()  # every entry's row moved


def test_hash_model_fills_wide_vocabularies():
    logits = HashModel(0, 40, 10**6)(*canvas(39, length=6))[0]  # more tokens than one hash block holds
    assert len(np.unique(logits)) == logits.size


def test_hash_model_is_the_same_in_every_process():
    logits = HashModel(1, 5, 4)(*canvas(4, length=8))[0, 0]
    assert near(logits, [-4 / 3, -4, -4, -4, -4 / 3])


@pytest.mark.parametrize(("levels", "share"), [(1, 1.0), (2, 0.5), (50, 0.0)])
def test_few_levels_force_ties(levels, share):
    tops = []
    for seed in range(40):
        logits = np.sort(HashModel(seed, 4, levels)(*canvas(3, length=5))[0])
        tops.append((logits[:, -1] == logits[:, -2]).mean())
    assert np.mean(tops) >= share
    if levels == 50:
        assert np.mean(tops) < 0.1  # so the models with few levels are another test


def test_hash_model_votes_for_the_mask():
    votes = [HashModel(seed, 4, 50)(*canvas(3, length=5))[0].argmax(1) == 3 for seed in range(20)]
    assert 0 < np.mean(votes) < 1


def weights(*numbers):
    return [*np.log(numbers), -np.inf]


def test_tape_model_reads_weights_in_query_order():
    model = TapeModel([1, 2, 3, 1, 5], vocab_size=3, length=3)
    tokens, positions = np.array([[0, 2, 2]]), np.arange(3)[None]
    logits = model(tokens, positions)[0]
    # Masks first; the tape ends in the middle of entry 0's weights.
    assert near(np.exp(logits), np.exp([weights(5, 1), weights(1, 2), weights(3, 1)]))
    assert list(model.memo) == [(((0, 0), (1, 2), (2, 2)), position) for position in (1, 2, 0)]
    other = model(np.array([[1, 2, 2]]), positions)[0]
    assert near(np.exp(other), np.exp([weights(1, 1)] * 3))  # exhausted: uniform
    assert (model(tokens, positions)[0] == logits).all()  # remembered


def test_tape_model_is_a_function_of_what_is_seen():
    model = TapeModel([1, 2, 3, 4, 5, 6, 7, 8], vocab_size=3, length=4)
    tokens, positions = np.array([[2, 2]]), np.arange(2)[None]
    plain = model(tokens, positions)
    packed = model(np.array([[1, 2, 2]]), np.array([[1, 1, 0]]), np.array([[[True] * 3, *[[False, True, True]] * 2]]))
    assert (packed[0, [2, 1]] == plain[0]).all() and not (packed[0, 0] == plain[0, 1]).all()


def test_tape_model_zeros_negatives_and_empty():
    tokens, positions = np.array([[0]]), np.array([[0]])
    assert TapeModel([0, 1], 3, 1, mask_id=1)(tokens, positions).tolist() == [[[-np.inf, -np.inf, 0.0]]]
    assert TapeModel([0, 0], 3, 1)(tokens, positions).tolist() == [[[0.0, 0.0, -np.inf]]]
    assert TapeModel([], 3, 1)(tokens, positions).tolist() == [[[0.0, 0.0, -np.inf]]]
    with pytest.raises(TrajspecError, match="negative weight"):
        TapeModel([1, -1], 3, 1)


def test_fixed_model():
    model = FixedModel([(3, 5.0), {1: 7.0, 7: 9.0}, {0: -np.inf, 2: np.nan}])
    assert (model.vocab_size, model.mask_id) == (8, 7)
    tokens, positions = canvas(7, 3, length=3)
    expected = np.zeros((3, 8))
    expected[0, 3], expected[1, 1], expected[1, 7], expected[2, 0], expected[2, 2] = 5.0, 7.0, 9.0, -np.inf, np.nan
    assert np.array_equal(model(tokens, positions)[0], expected, equal_nan=True)
    assert np.array_equal(model(tokens * 0, positions)[0], expected, equal_nan=True)
    assert np.array_equal(model(tokens, positions[:, ::-1])[0], expected[::-1], equal_nan=True)
    shifted = FixedModel([(2, 40.0), (2, 0.1)], vocab_size=10, shift=True)(tokens[:, :2], positions[:, :2])
    assert shifted[0, :, 2].tolist() == [40.0, 40.0]
    before = model(tokens, positions)
    before[:] = 1.0  # the answer is the caller's own
    assert np.array_equal(model(tokens, positions)[0], expected, equal_nan=True)
    with pytest.raises(TrajspecError, match="row 1 names token 8"):
        FixedModel([(3, 5.0), (8, 1.0)])
    with pytest.raises(TrajspecError, match="rows is empty"):
        FixedModel([])


def test_function_model_gets_one_row_at_a_time():
    def mean(tokens, positions, visible):
        """Token = rounded mean of the visible tokens that are not masks."""
        logits = np.zeros((len(tokens), 8))
        for i, sees in enumerate(visible):
            known = tokens[sees & (tokens != 7)]
            logits[i, round(known.mean()) if len(known) else 0] = 1.0
        tokens[:] = 0  # must not reach the caller
        return logits

    model = FunctionModel(mean, 8)
    tokens, positions = np.array([[0, 0, 5, 7, 7], [1, 2, 3, 7, 7]]), np.array([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    visible = np.ones((2, 5, 5), bool)
    visible[0, :, :2] = False  # padding
    assert model(tokens, positions, visible).argmax(2)[:, 3:].tolist() == [[5, 5], [2, 2]]
    assert model(tokens, positions).argmax(2)[:, 3:].tolist() == [[2, 2], [2, 2]]  # padding seen: another answer
    assert tokens[0, 2] == 5
    with pytest.raises(TrajspecError, match=r"returned shape \(5,\); expected \[W, V\] = \(5, 8\)"):
        FunctionModel(lambda tokens, positions, visible: tokens, 8)(tokens, positions)


MODELS = {
    "stub": StubModel.from_spec(TABLE),
    "peaky": StubModel.from_spec(PEAKY),
    "hash": HashModel(0, 8, 4),
    "tape": TapeModel([3, 1, 2, 5], 8, 12),
    "fixed": FixedModel([(3, 1.0)] * 12),
    "function": FunctionModel(lambda tokens, positions, visible: visible.sum(1)[:, None] * np.ones(8), 8),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_independent_and_equal_inputs_give_equal_logits(name):
    model, rng = MODELS[name], np.random.default_rng(5)
    tokens, positions = rng.integers(0, 8, (4, 6)), np.stack([rng.permutation(12)[:6] for _ in range(4)])
    visible = rng.random((4, 6, 6)) < 0.6
    for sees in (None, visible):
        together = model(tokens, positions, sees)
        assert together.shape == (4, 6, model.vocab_size) and together.dtype == np.float64
        for r in (3, 0, 2, 1):
            alone = model(tokens[r : r + 1], positions[r : r + 1], None if sees is None else sees[r : r + 1])
            assert (alone[0] == together[r]).all()
    everything = np.ones((4, 6, 6), bool)
    assert (model(tokens, positions, everything) == model(tokens, positions)).all()
    assert model(tokens[:0], positions[:0]).shape == (0, 6, 8) and model(tokens[:, :0], positions[:, :0]).size == 0


@pytest.mark.parametrize("name", MODELS)
def test_wrong_calls_are_refused(name):
    model, (tokens, positions) = MODELS[name], canvas(7)
    with pytest.raises(TrajspecError, match="entry 2 holds token -1"):
        model(np.where(positions == 2, -1, tokens), positions)
    with pytest.raises(TrajspecError, match="holds token 8; expected 0 <= token < 8"):
        model(tokens + 1, positions)
    with pytest.raises(TrajspecError, match=r"expected that of the tokens, \(1, 12\)"):
        model(tokens, positions[:, 1:])
    with pytest.raises(TrajspecError, match=r"expected integers of shape \[R, W\]"):
        model(tokens[0], positions[0])
    with pytest.raises(TrajspecError, match=r"expected bool \(1, 12, 12\) or None"):
        model(tokens, positions, np.ones((1, 12, 12)))
    with pytest.raises(TrajspecError, match=r"expected bool \(1, 12, 12\) or None"):
        model(tokens, positions, np.ones((12, 12), bool))


@pytest.mark.parametrize("name", ["stub", "peaky", "tape", "fixed"])
def test_positions_outside_the_tables_must_be_hidden(name):
    model, (tokens, positions) = MODELS[name], canvas(7)
    off, visible = np.where(positions == 11, 12, positions), np.ones((1, 12, 12), bool)
    for sees in (None, visible):
        with pytest.raises(TrajspecError, match="entry 11 is at position 12; the model has positions 0 to 11"):
            model(tokens, off, sees)
    visible[0, :11, 11] = False  # it may still see itself, as padding does
    assert (model(tokens, off, visible)[0, :11] == model(tokens[:, :11], positions[:, :11])[0]).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda **ids: HashModel(0, levels=4, **ids),
        lambda **ids: TapeModel([], length=4, **ids),
        lambda **ids: FixedModel([(0, 1.0)], **ids),
        lambda **ids: FunctionModel(lambda *row: row[0], **ids),
    ],
    ids=["hash", "tape", "fixed", "function"],
)
def test_ids_are_checked(make):
    assert make(vocab_size=4).mask_id == 3 and make(vocab_size=4, mask_id=0).mask_id == 0
    with pytest.raises(TrajspecError, match="mask_id is 4"):
        make(vocab_size=4, mask_id=4)
    with pytest.raises(TrajspecError, match="vocab_size is 1"):
        make(vocab_size=1)


def test_levels_are_checked():
    with pytest.raises(TrajspecError, match="levels is 0"):
        HashModel(0, 4, 0)
