"""Where rows end and what is counted."""

from __future__ import annotations

import numpy as np
import pytest

import trajspec as ts
from trajspec.exact.tabular import FixedModel, FunctionModel

# T11, T21: ends of rows and what is counted


def _t11(tokens, positions, visible):
    logits = np.zeros((len(tokens), 32))
    first = {1: 5, 2: 2}
    for entry, position in enumerate(positions):
        token = 6 if 20 in tokens else first.get(int(position), 7)
        logits[entry, token] = 5.0
    return logits


ENDS = FunctionModel(_t11, 32, 31)


@pytest.mark.parametrize("options", [{"threshold": 0.9}, {"steps": 5}, {"steps": 2}, {"policy": "wino"}])
@pytest.mark.parametrize("swap", [False, True])
def test_t11_eos_ends_a_row_of_its_own(options, swap):
    prompts = [[20], [10]] if swap else [[10], [20]]
    result = ts.decode(ENDS, prompts, gen_length=5, block_length=3, eos_id=2, **options)
    short, full = (result[1], result[0]) if swap else (result[0], result[1])
    assert short.token_ids == [5, 2, 0, 0, 0]
    assert (short.answer_tokens, short.answer_tokens_with_eos, short.finish_reason) == (1, 2, "eos")
    assert full.token_ids == [6] * 5
    assert (full.answer_tokens, full.answer_tokens_with_eos, full.finish_reason) == (5, 5, "length")
    assert short.calls < full.calls


@pytest.mark.parametrize("block_length", [1, 2, 3, 5, None])
def test_t11_the_text_does_not_depend_on_where_the_engine_stops(block_length):
    result = ts.decode(ENDS, [10], gen_length=5, block_length=block_length, eos_id=[2, 9], threshold=0.9)
    assert result[0].token_ids == [5, 2, 0, 0, 0]


def test_t11_ignored_eos_ends_nothing():
    result = ts.decode(ENDS, [10], gen_length=5, block_length=3, eos_id=2, ignore_eos=True, threshold=0.9)
    assert result[0].token_ids == [5, 2, 7, 7, 7]
    assert result[0].finish_reason == "length"


def test_t11_a_stop_token_in_the_prompt_ends_nothing():
    result = ts.decode(ENDS, [2, 20], gen_length=3, block_length=3, eos_id=2, threshold=0.9)
    assert result[0].token_ids == [6, 6, 6]


def test_t21_accounting():
    model = FixedModel([(1, 1.0)] * 5 + [(3, 5.0), (4, 5.0), (6, 5.0)] + [(5, 1.0)] * 5)
    result = ts.decode(model, [1, 2, 3, 4, 5], gen_length=8, block_length=8, eos_id=6, steps=8)
    row = result[0]
    assert (row.answer_tokens, row.answer_tokens_with_eos) == (2, 3)
    assert row.prompt_tokens == 5
    assert row.calls == row.calls_by_kind["step"] == sum(row.calls_by_kind.values()) == row.base_steps == 3
    assert row.tokens_per_call == pytest.approx(2 / 3)
    assert (row.rows, row.positions) == (3, 39)
    assert row.token_ids == [3, 4, 6, 0, 0, 0, 0, 0]
    assert result.totals.answer_tokens == 2
