"""The counter-based noise in torch: the published vectors, equality with numpy, and one graph under the compiler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trajspec.ir import noise as reference
from trajspec.ir.errors import TrajspecError
from trajspec.runtime import noise

# Random123, tests/kat_vectors, threefry2x32 with 20 rounds: counter, key, result.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]
ELEMENTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 8), st.sampled_from([2**31, 2**32 - 1, 2**32]))


@st.composite
def keys(draw):
    """Five int64 arrays that broadcast to [R, L, V]."""
    r, length, v = (draw(st.integers(1, 3)) for _ in range(3))
    shapes = [(r, 1, 1), (), draw(st.sampled_from([(), (r, 1, 1)])), (r, length, 1), (v,)]
    return [draw(arrays(np.int64, shape, elements=ELEMENTS)) for shape in shapes]


@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter, key, result, shape):
    got = noise.threefry2x32(*(torch.full(shape, word) for word in (*key, *counter)))
    for word, expected in zip(got, result, strict=True):
        assert word.shape == shape and word.dtype == torch.int64
        assert (word == expected).all()


@pytest.mark.parametrize("constant", ["ROTATIONS", "PARITY", "ROUNDS", "MASK32"])
def test_known_answers_catch_a_wrong_cipher(monkeypatch, constant):
    wrong = {"ROTATIONS": (13, 15, 26, 6, 17, 29, 24, 16), "PARITY": 0x1BD11BDB, "ROUNDS": 16, "MASK32": 2**33 - 1}
    monkeypatch.setattr(noise, constant, wrong[constant])
    for counter, key, result in KNOWN:
        got = noise.threefry2x32(*(torch.tensor(word) for word in (*key, *counter)))
        assert tuple(map(int, got)) != result


@given(keys())
def test_equal_to_numpy(key):
    tensors = [torch.from_numpy(np.array(part)) for part in key]
    for got, expected in zip(noise.words(*tensors), reference.words(*key), strict=True):
        assert got.shape == expected.shape and (got.numpy() == expected).all()
    uniform = noise.uniform(*tensors)
    assert uniform.dtype == torch.float64 and (uniform.numpy() == reference.uniform(*key)).all()
    assert np.abs(noise.gumbel(*tensors).numpy() - reference.gumbel(*key)).max() <= 1e-12


@given(seed=st.integers(-(2**63), 2**64 - 1), step=ELEMENTS, position=ELEMENTS)
def test_ints_are_keys_too(seed, step, position):
    got = noise.uniform(seed, 3, step, torch.tensor([position]))
    assert (got.numpy() == reference.uniform(seed, 3, step, [position])).all()


@given(seed=ELEMENTS, index=st.integers(0, 2**32 - 1))
def test_row_seeds_equal_numpy(seed, index):
    got = noise.row_seed(torch.tensor([seed, seed]), torch.tensor([index, 0]))
    assert got.tolist() == [reference.row_seed(seed, index), seed]


@pytest.mark.parametrize("words", [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_the_interval_is_open(monkeypatch, words):
    monkeypatch.setattr(noise, "words", lambda *key: tuple(torch.tensor([word]) for word in words))
    value = noise.uniform(torch.tensor(0), 0, 0, 0)
    assert value.item() == (2.0**-54 if words[0] == 0 else 1 - 2.0**-53)
    assert torch.isfinite(noise.gumbel(torch.tensor(0), 0, 0, 0)).all()


def test_streams_are_distinct():
    axes = (torch.tensor([7, 7 + 2**32]), torch.arange(5), torch.arange(4), torch.arange(4), torch.arange(4))
    grid = torch.meshgrid(*axes, indexing="ij")
    values = noise.uniform(*grid)
    assert values.unique().numel() == values.numel()
    assert noise.uniform(*grid[:4], grid[4] % 2).unique().numel() == values.numel() // 2


def test_uniform_law():
    count, bins = 20_000, 50
    values = noise.uniform(11, 3, 2, torch.arange(count))

    def chi_square(sample):
        return ((torch.histc(sample, bins, 0, 1) - count / bins) ** 2).sum().item() / (count / bins)

    # 49 degrees of freedom: 94.6 has tail probability 1e-4.
    assert chi_square(values) < 94.6 < chi_square(values**1.1)


def test_one_graph_under_the_compiler():
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def draw(seed, step, position, token):
        return noise.gumbel(seed, 0, step, position, token), noise.row_seed(seed, step)

    compiled = torch.compile(draw, fullgraph=True, backend=count)
    token = torch.arange(5)
    for step in range(3):  # the step is data: no graph of its own
        key = (torch.tensor([[[7]], [[-7]]]), torch.tensor(step), torch.arange(4)[:, None] + 2**40, token)
        got, seeds = compiled(*key)
        expected = reference.gumbel(key[0].numpy(), 0, step, key[2].numpy(), token.numpy())
        assert got.shape == (2, 4, 5) and np.abs(got.numpy() - expected).max() <= 1e-12
        assert seeds.flatten().tolist() == [reference.row_seed(seed, step) for seed in (7, -7)]
    assert len(graphs) == 1


def test_ints_compile_as_well():
    compiled = torch.compile(noise.uniform, fullgraph=True, backend="aot_eager")
    position = torch.arange(3)
    for step in range(4):  # from the second value on the compiler takes the int as a symbol
        assert (compiled(-5, 0, step, position).numpy() == reference.uniform(-5, 0, step, position.numpy())).all()


def test_nothing_is_read_by_the_host():
    # A meta tensor has no values, so any read of one raises.
    key = [torch.zeros(shape, dtype=torch.int64, device="meta") for shape in ((2, 1, 1), (), (2, 1, 1), (3, 1), (4,))]
    assert noise.gumbel(*key).shape == (2, 3, 4) and noise.gumbel(*key).device.type == "meta"
    assert noise.row_seed(key[0], 3).device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        noise.gumbel(*key).sum().item()


@pytest.mark.parametrize("bad", [0.5, True, "7", torch.tensor([1.0]), torch.tensor([True])])
@pytest.mark.parametrize("name", ["seed", "role", "step", "position", "token"])
def test_only_integers_are_keys(name, bad):
    key = {"seed": 7, "role": 0, "step": torch.tensor(0), "position": torch.tensor([0]), "token": 0}
    with pytest.raises(TrajspecError, match=f"{name} (is|holds) .* int64"):
        noise.uniform(**(key | {name: bad}))


def test_a_tensor_is_needed():
    with pytest.raises(TrajspecError, match="tensor among its arguments"):
        noise.uniform(7, 0, 0, 0)
