"""The counter-based noise in numpy: the published vectors, open interval, separate streams, sound laws."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajspec.ir import noise
from trajspec.ir.errors import TrajspecError
from trajspec.ir.noise import ROLES

# Random123, tests/kat_vectors, threefry2x32 with 20 rounds: counter, key, result.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]
INT64 = st.integers(-(2**63), 2**63 - 1)


def block_by_hand(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32-20 in Python's integers, written as the paper states it."""
    mask = 2**32 - 1
    keys = (key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = (counter[0] + key[0]) & mask, (counter[1] + key[1]) & mask
    for r in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[r % 8]
        a = (a + b) & mask
        b = ((b << turn | b >> (32 - turn)) & mask) ^ a
        if (r + 1) % 4 == 0:
            s = (r + 1) // 4
            a, b = (a + keys[s % 3]) & mask, (b + keys[(s + 1) % 3] + s) & mask
    return a, b


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter, key, result, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = noise.threefry2x32(*(np.full(shape, word, np.uint32) for word in (*key, *counter)))
    for word, expected in zip(got, result, strict=True):
        assert word.shape == shape and word.dtype == np.uint32
        assert (word == expected).all()


@pytest.mark.parametrize("constant", ["ROTATIONS", "PARITY", "ROUNDS"])
def test_known_answers_catch_a_wrong_cipher(monkeypatch, constant):
    wrong = {"ROTATIONS": (13, 15, 26, 6, 17, 29, 24, 16), "PARITY": 0x1BD11BDB, "ROUNDS": 16}[constant]
    monkeypatch.setattr(noise, constant, wrong)
    for counter, key, result in KNOWN:
        got = noise.threefry2x32(*(np.array(word, np.uint32) for word in (*key, *counter)))
        assert tuple(map(int, got)) != result


@given(seed=INT64, role=st.sampled_from(list(ROLES.values())), step=INT64, position=INT64, token=INT64)
def test_uniform_follows_its_definition(seed, role, step, position, token):
    mask = 2**32 - 1
    k1 = block_by_hand((seed >> 32 & mask, seed & mask), (role, step & mask))
    high, low = block_by_hand(k1, (position & mask, token & mask))
    n = (high >> 5) * 2**26 + (low >> 6)
    expected = min((n + 0.5) * 2.0**-53, 1 - 2.0**-53)
    got = noise.uniform(seed, role, step, position, token)
    assert got == expected
    assert noise.gumbel(seed, role, step, position, token) == -np.log(-np.log(np.float64(expected)))
    assert noise.uniform(seed % 2**64, role, step, position, token) == got  # unsigned spelling of the same seed


@pytest.mark.parametrize("words", [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_the_interval_is_open(monkeypatch, words):
    pair = tuple(np.array([word], np.uint32) for word in words)
    monkeypatch.setattr(noise, "words", lambda *key: pair)
    value = noise.uniform(0, 0, 0, 0)
    assert 0 < value[0] < 1
    assert np.isfinite(noise.gumbel(0, 0, 0, 0)).all()
    assert value[0] == (2.0**-54 if words[0] == 0 else 1 - 2.0**-53)


def test_a_plain_half_would_round_to_one():
    assert (np.float64(2**53 - 1) + 0.5) * 2.0**-53 == 1.0


def test_arguments_broadcast_and_scalars_agree_with_arrays():
    seeds, steps = np.array([7, -7])[:, None, None], np.array([0, 3])[:, None, None]
    positions, tokens = np.array([0, 5, 2**40 + 1])[:, None], np.arange(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = noise.uniform(seeds, ROLES["tok"], steps, positions, tokens)
        assert values.shape == (2, 3, 4) and values.dtype == np.float64
        for r, i, v in np.ndindex(values.shape):
            one = noise.uniform(seeds[r, 0, 0], 0, int(steps[r, 0, 0]), positions[i, 0], v)
            assert one.shape == () and one == values[r, i, v]
    assert (noise.uniform(7, 0, 0, positions) == noise.uniform(7, 0, 0, positions, 0)).all()
    assert noise.uniform(7, 0, 0, np.zeros((0, 1), np.int64), tokens).shape == (0, 4)


def test_streams_are_distinct():
    base = {"seed": 7, "role": 0, "step": 0, "position": 0, "token": 0}
    everything = noise.uniform(
        np.array([7, 7 + 2**32])[:, None, None, None, None],
        np.array(list(ROLES.values()))[:, None, None, None],
        np.arange(4)[:, None, None],
        np.arange(4)[:, None],
        np.arange(4),
    )
    assert np.unique(everything).size == everything.size
    for name in base:  # every component matters, also against the one beside it
        moved = noise.uniform(**(base | {name: base[name] + 1}))
        assert moved != noise.uniform(**base)
    assert len(set(ROLES.values())) == len(ROLES) == 6
    # The check can fail: position and token taken modulo 2 collide.
    assert np.unique(noise.uniform(7, 0, 0, np.arange(4)[:, None] % 2, np.arange(4) % 2)).size == 4


@pytest.mark.parametrize("vary", ["seed", "step", "position", "token"])
def test_uniform_law(vary):
    count, bins = 20_000, 50
    key = {"seed": 11, "role": ROLES["coin"], "step": 2, "position": 3, "token": 5}
    values = noise.uniform(**(key | {vary: np.arange(count)}))

    def chi_square(sample):
        return ((np.histogram(sample, bins, (0, 1))[0] - count / bins) ** 2).sum() / (count / bins)

    grid = (np.arange(count) + 0.5) / count
    distance = np.abs(np.sort(values) - grid).max()
    # 49 degrees of freedom: 94.6 has tail probability 1e-4; Kolmogorov-Smirnov: 2.23 / sqrt(count) likewise.
    assert chi_square(values) < 94.6 and distance < 2.23 / np.sqrt(count)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(count)
    # Negative control: a sample that is slightly bent is told apart.
    assert chi_square(values**1.1) > 94.6 and np.abs(np.sort(values**1.1) - grid).max() > 2.23 / np.sqrt(count)


def test_gumbel_draws_from_the_softmax():
    probabilities = np.array([0.6, 0.3, 0.1])
    picks = (np.log(probabilities) + noise.gumbel(5, 0, np.arange(20_000)[:, None], 1, np.arange(3))).argmax(1)
    counts = np.bincount(picks, minlength=3)
    assert ((counts - 20_000 * probabilities) ** 2 / (20_000 * probabilities)).sum() < 18.4  # 2 dof, tail 1e-4
    wrong = np.array([0.57, 0.33, 0.1])
    assert ((counts - 20_000 * wrong) ** 2 / (20_000 * wrong)).sum() > 18.4


@given(seed=INT64, index=st.integers(1, 2**32 - 1))
def test_row_seeds(seed, index):
    assert noise.row_seed(seed, 0) == seed
    derived = noise.row_seed(seed, index)
    assert -(2**63) <= derived < 2**63 and derived != seed
    high, low = block_by_hand((seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF), (0xFFFFFFFF, index))
    assert derived % 2**64 == high * 2**32 + low
    assert noise.row_seed(seed % 2**64, index) == derived
    assert noise.row_seed(seed % 2**64, 0) == seed


def test_row_seeds_are_distinct():
    derived = [noise.row_seed(seed, index) for seed in (0, 1, -1, 2**32) for index in range(50)]
    assert len(set(derived)) == len(derived)


@pytest.mark.parametrize("bad", [0.5, True, "7", np.array([1.0]), 2**64, [2**63, -1]])
@pytest.mark.parametrize("name", ["seed", "role", "step", "position", "token"])
def test_only_integers_are_keys(name, bad):
    key = {"seed": 7, "role": 0, "step": 0, "position": 0, "token": 0}
    with pytest.raises(TrajspecError, match=f"{name} holds .* int64"):
        noise.uniform(**(key | {name: bad}))


@pytest.mark.parametrize(("seed", "index"), [(2**64, 0), (-(2**63) - 1, 1), (7, -1), (7, 2**32)])
def test_row_seed_ranges(seed, index):
    with pytest.raises(TrajspecError, match=str(seed if index in (0, 1) else index)):
        noise.row_seed(seed, index)
