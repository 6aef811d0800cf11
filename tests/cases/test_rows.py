"""Rows of a batch: seeds belong to them, padding is not seen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import trajspec as ts
from tests.toys import Counting
from trajspec.exact.tabular import FixedModel, FunctionModel

# T08: seeds belong to rows


FLAT = FixedModel([(1, 0.5)] * 12)
WARM = {"gen_length": 9, "block_length": 4, "steps": 5, "temperature": 1.0}


def test_t08_a_seed_gives_one_text_wherever_the_row_stands():
    alone = ts.decode(FLAT, [3], seed=7, **WARM)
    again = ts.decode(FLAT, [3], seed=7, **WARM)
    third = ts.decode(FLAT, [[1, 2], [2], [3]], seeds=[1, 2, 7], **WARM)
    assert alone[0].token_ids == again[0].token_ids == third[2].token_ids
    assert alone[0].path == third[2].path
    assert len({tuple(ts.decode(FLAT, [3], seed=seed, **WARM)[0].token_ids) for seed in range(8)}) == 8


def test_t08_return_sequences_differ():
    result = ts.decode(FLAT, [[3], [4]], seed=7, num_return_sequences=2, **WARM)
    assert len(result) == 4
    assert result[0].token_ids != result[1].token_ids
    assert result[0].token_ids == ts.decode(FLAT, [3], seed=7, **WARM)[0].token_ids
    # Every sample can be had alone again.
    assert ts.decode(FLAT, [3], seed=result[1].manifest["seed"], **WARM)[0].token_ids == result[1].token_ids


def test_t08_seeds_are_one_a_prompt():
    model = Counting(FLAT)
    with pytest.raises(ts.TrajspecError, match="3 seeds for 2 prompts"):
        ts.decode(model, [[3], [4]], seeds=[1, 2, 3], **WARM)
    with pytest.raises(ts.TrajspecError, match="expected a whole number"):
        ts.decode(model, [3], seed=1.5, **WARM)
    with pytest.raises(ts.TrajspecError, match="64 bits"):
        ts.decode(model, [3], seed=2**64, **WARM)
    assert model.calls == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_t08_no_generator_moves(temperature):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()
    ts.decode(FLAT, [[3], [4, 4]], **WARM | {"temperature": temperature})
    ts.decode(FLAT, [3], policy="llada_random", gen_length=4)
    ts.decode(FLAT, [3], policy="dream_origin", steps=4, gen_length=4)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert all(np.array_equal(a, b) for a, b in zip(numpy_state, np.random.get_state(), strict=True))


# T09: a batch equals its single runs


def _mean(tokens, positions, visible):
    logits = np.zeros((len(tokens), 11))
    for entry in range(len(tokens)):
        seen = tokens[visible[entry] & (tokens != 10)]
        logits[entry, round(float(seen.mean())) if seen.size else 0] = 5.0
    return logits


MEAN = FunctionModel(_mean, 11, 10)
RULES = [
    {"steps": 2}, {"threshold": 0.9}, {"policy": "wino"}, {"policy": "klass"}, {"policy": "dream_entropy", "steps": 2},
    {"policy": "llada", "cfg_scale": 1.0},
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("prompts", [[[5], [1, 2, 3]], [[1, 2, 3], [5]]])
def test_t09_padding_is_not_seen(prompts, rule):
    result = ts.decode(MEAN, prompts, gen_length=2, **rule)
    for prompt, row in zip(prompts, result, strict=True):
        assert row.token_ids == ([5, 5] if prompt == [5] else [2, 2])
        assert row.path == ts.decode(MEAN, [prompt], gen_length=2, **rule)[0].path
    assert result.sequences.shape == (2, 5)


def _slow(tokens, positions, visible):
    """Sure of the mean of what it sees at even sums, unsure at odd ones; an end now and then."""
    logits = np.zeros((len(tokens), 11))
    for entry in range(len(tokens)):
        total = int((tokens * (positions + 1))[visible[entry]].sum()) + int(positions[entry])
        logits[entry, total % 10] = 1.0 + total % 7
    return logits


SLOW = FunctionModel(_slow, 11, 10)
PROMPTS = [[5], [1, 2, 3], [4, 4, 4, 4, 4], [0, 9]]


@pytest.mark.parametrize("rule", [*RULES, {"factor": 1.0}, {"policy": "llada_random"}, {"temperature": 1.0}])
def test_t09_rows_that_end_at_different_times(rule):
    blocks = {} if "dream" in rule.get("policy", "") else {"block_length": 4}
    options = {"gen_length": 6, "eos_id": 3, **blocks, **rule}
    alone = {number: ts.decode(SLOW, [PROMPTS[number]], seed=number, **options)[0] for number in range(4)}
    for size in (2, 3, 4):
        for chosen in itertools.permutations(range(4), size):
            if size == 4 and chosen[0] > chosen[-1]:
                continue
            result = ts.decode(SLOW, [PROMPTS[number] for number in chosen], seeds=list(chosen), **options)
            for number, row in zip(chosen, result, strict=True):
                one = alone[number]
                assert (row.token_ids, row.path, row.calls, row.finish_reason) == (
                    one.token_ids, one.path, one.calls, one.finish_reason
                )  # fmt: skip
                assert row.rows == one.rows
            assert result.totals.calls == max(alone[number].calls for number in chosen)


def test_t09_the_rows_above_do_end_at_different_times():
    rows = ts.decode(SLOW, PROMPTS, seeds=[0, 1, 2, 3], gen_length=6, eos_id=3, block_length=4)
    assert len({row.calls for row in rows}) > 1
    assert {row.finish_reason for row in rows} == {"eos", "length"}


def test_t09_positions_count_from_the_first_real_token():
    seen = []

    def look(tokens, positions, visible):
        seen.append((positions[visible.any(axis=0)].min(), positions[tokens == 10].min()))
        return np.zeros((len(tokens), 11))

    ts.decode(FunctionModel(look, 11, 10), [[5], [1, 2, 3]], gen_length=2, steps=1)
    assert seen == [(0, 1), (0, 3)]
