"""Ties and saturated confidences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trajspec as ts
from tests.toys import InTorch
from trajspec.exact.tabular import FixedModel
from trajspec.ir import OPS
from trajspec.runtime.meanings import MEANINGS

# T05: ties


TIES = [([0.5, 0.5, 0.5, 0.2], 1, [0]), ([0.25] * 40, 3, [0, 1, 2]), ([3.0, 2.0, 3.0, 2.0, 1.0, 1.0], 2, [0, 2])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("values", "k", "best"), TIES)
def test_t05_ties_go_to_the_lowest_position(values, k, best, dtype):
    for rows in (1, 3):
        by = torch.tensor([values] * rows, dtype=dtype)
        chosen = MEANINGS["top"](by, torch.full((rows, 1), k), where=torch.ones(by.shape, dtype=torch.bool))
        assert [row.nonzero()[:, 0].tolist() for row in chosen] == [best] * rows
        worst = MEANINGS["bottom"](-by, torch.full((rows, 1), k), where=torch.ones(by.shape, dtype=torch.bool))
        assert torch.equal(chosen, worst)
    plain = OPS["top"].numpy(np.array(values), np.array([k]), where=np.ones(len(values), bool))
    assert plain.nonzero()[0].tolist() == best


def test_t05_negative_zero_ties_with_zero():
    by = np.array([-0.0, 0.0, -0.0])
    where = np.ones(3, bool)
    assert OPS["top"].numpy(by, np.array([1]), where=where).tolist() == [True, False, False]
    assert MEANINGS["top"](torch.from_numpy(by)[None], 1, where=torch.from_numpy(where)[None]).tolist() == [
        [True, False, False]
    ]
    for dtype in (torch.float32, torch.float64):
        assert MEANINGS["argmax"](torch.tensor([[-0.0, 0.0]], dtype=dtype)).tolist() == [0]


def test_t05_what_ties_after_float32_goes_to_the_lowest_position():
    values = [1.0, 1.0 + 1e-12]
    where = torch.ones(1, 2, dtype=torch.bool)
    assert MEANINGS["top"](torch.tensor([values], dtype=torch.float32), 1, where=where).tolist() == [[True, False]]
    assert MEANINGS["top"](torch.tensor([values], dtype=torch.float64), 1, where=where).tolist() == [[False, True]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_t05_ties_of_tokens_go_to_the_lowest_id(dtype):
    logits = torch.tensor([[[0.0, 2, 2, 1], [1, 1, 1, 1]]], dtype=dtype)
    assert MEANINGS["argmax"](logits).tolist() == MEANINGS["score"](logits)[0].tolist() == [[1, 0]]
    assert OPS["argmax"].numpy(logits.double().numpy()).tolist() == [[1, 0]]


@pytest.mark.parametrize("options", [{"steps": 6}, {"threshold": 0.9}, {"policy": "wino"}, {"factor": 0.5}])
def test_t05_equal_positions_are_written_from_left_to_right(options):
    result = ts.decode(FixedModel([(3, 1.0)] * 6), [[]], gen_length=6, block_length=6, **options)
    assert [position for step in result[0].path for position, _ in step] == list(range(6))


# T06: saturated confidence


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_t06_sure_tokens_keep_an_order(dtype):
    logits = torch.zeros(1, 2, 4, dtype=dtype)
    logits[0, 0, 1], logits[0, 1, 1] = 2, 5
    for temperature in (1.0, 0.1):
        token, conf = MEANINGS["score"](logits / temperature)
        assert token.tolist() == [[1, 1]]
        chosen = MEANINGS["top"](conf, 1, where=torch.ones(1, 2, dtype=torch.bool))
        assert chosen.tolist() == [[False, True]]
    cold = MEANINGS["score"](logits / 0.1)[1][0]
    assert cold[0].item() == pytest.approx(-6.18e-9, rel=1e-2)
    assert cold[1].item() == pytest.approx(-5.79e-22, rel=1e-2)
    warm = MEANINGS["score"](logits)[1].exp()[0]
    assert warm.tolist() == pytest.approx([0.711, 0.980], abs=5e-4)


def test_t06_plain_probabilities_would_tie():
    logits = torch.tensor([[20.0, 0, 0, 0], [50.0, 0, 0, 0]])
    assert torch.softmax(logits, -1)[:, 0].tolist() == [1.0, 1.0]


def test_t06_bf16_logits_keep_an_order():
    logits = torch.tensor([[[7.0, 0], [8, 0], [12, 0]]], dtype=torch.bfloat16)
    _, conf = MEANINGS["score"](logits)
    assert conf.exp()[0].tolist() == pytest.approx([0.9991, 0.9997, 0.99999], abs=5e-5)
    assert MEANINGS["rank"](conf, where=torch.ones(1, 3, dtype=torch.bool)).tolist() == [[2, 1, 0]]
    model = FixedModel([(0, 7), (0, 8), (0, 12)], vocab_size=3)
    result = ts.decode(InTorch(model, torch.bfloat16), [[]], gen_length=3, steps=3, block_length=3)
    assert [position for step in result[0].path for position, _ in step] == [2, 1, 0]
