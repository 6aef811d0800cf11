"""Schedules and limits: lengths that do not divide, steps that commit nothing, arguments that clash."""

from __future__ import annotations

import warnings

import pytest
import torch

import trajspec as ts
from tests.cases.reading import order, whole
from tests.toys import Counting, InTorch
from trajspec.exact.tabular import FixedModel

HOLES = FixedModel([(3, 5), (4, 6), (1, 4), (2, 3)])


FLAT = FixedModel([(3, 0.1)] * 5)


# T12, T13: schedules


def test_t12_a_last_block_may_be_shorter():
    model = FixedModel([(3, 1.0)] * 7)
    result = ts.decode(model, [3], gen_length=6, block_length=4, steps=6)
    assert [len(step) for step in result[0].path] == [1] * 6
    assert len(whole(result)) == 7
    assert set(order(result[0])[:4]) == {1, 2, 3, 4}


def test_t12_steps_go_to_blocks_by_their_masks():
    result = ts.decode(FixedModel([(3, 1.0)] * 9), [3], gen_length=8, block_length=4, steps=5)
    assert [len(step) for step in result[0].path] == [2, 1, 1, 2, 2]
    assert result[0].calls == 5


def test_t12_the_context_limit_is_checked_before_any_forward():
    fits = Counting(FixedModel([(3, 1.0)] * 7), max_positions=7)
    assert len(whole(ts.decode(fits, [3], gen_length=6, block_length=4, steps=6))) == 7
    small = Counting(FixedModel([(3, 1.0)] * 7), max_positions=6)
    with pytest.raises(ValueError, match=r"7 positions.*takes 6"):
        ts.decode(small, [3], gen_length=6, block_length=4, steps=6)
    assert small.calls == 0
    # One row too long among good ones is enough.
    with pytest.raises(ValueError, match=r"7 positions.*takes 6"):
        ts.decode(small, [[3], [], [3]], gen_length=6, block_length=4, steps=6)
    assert small.calls == 0


def test_t12_nothing_behind_the_end_is_asked():
    model = Counting(FixedModel([(3, 1.0)] * 7))
    ts.decode(model, [3], gen_length=6, block_length=4, threshold=0.9)
    assert {asked.shape for asked in model.asked} == {(1, 7)}


@pytest.mark.parametrize(("gen_length", "block_length", "steps"), [(8, 4, 1), (9, 2, 4), (3, 1, 2)])
def test_t12_fewer_steps_than_blocks_are_refused_before_any_forward(gen_length, block_length, steps):
    model = Counting(FixedModel([(3, 1.0)] * 12))
    with pytest.raises(ts.TrajspecError, match=f"steps={steps} cannot fill"):
        ts.decode(model, [3], gen_length=gen_length, block_length=block_length, steps=steps)
    assert model.calls == 0


def test_t13_steps_that_would_commit_nothing_are_not_made():
    model = FixedModel([(3, 5), (1, 4), (2, 3)])
    short = ts.decode(model, [3], gen_length=2, block_length=2, steps=2)
    long = ts.decode(model, [3], gen_length=2, block_length=2, steps=4)
    assert whole(short) == whole(long)
    assert short[0].calls == long[0].calls == 2


@pytest.mark.parametrize(("n", "steps", "parity", "calls"), [(8, 8, [0, 1, 1, 1, 1, 1, 1, 2], 7), (16, 32, None, 15)])
@pytest.mark.parametrize("name", ["dream_maskgit_plus", "dream_topk_margin", "dream_entropy"])
def test_t13_dreams_idle_steps(name, n, steps, parity, calls):
    model = FixedModel([(3, 1.0 + position / 7) for position in range(n + 1)])
    recorded = ts.decode(model, [3], gen_length=n, steps=steps, policy=name, compat="dream.idle_steps")
    counts = [len(step) for step in recorded[0].path]
    assert recorded[0].calls == len(counts) == steps
    if parity:
        assert counts == parity
    assert counts.count(0) == steps - calls
    ours = ts.decode(model, [3], gen_length=n, steps=steps, policy=name)
    assert ours[0].calls == calls
    assert whole(ours) == whole(recorded)
    assert ours[0].path == [step for step in recorded[0].path if step]


# T20: arguments that clash


def test_t20_steps_a_block_without_a_threshold():
    result = ts.decode(FixedModel([(1, 5.0)] * 5), [3], gen_length=4, block_length=2, steps=2)
    assert whole(result) == [3, 1, 1, 1, 1]
    assert result[0].calls == 2


@pytest.mark.parametrize("steps", [2, 8])
def test_t20_a_threshold_wins_over_steps_with_one_warning(steps):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = ts.decode(
            FixedModel([(1, 5.0)] * 5), [[3], [2]], gen_length=4, block_length=2, steps=steps, threshold=0.9,
            num_return_sequences=2,
        )  # fmt: skip
    assert [str(warning.message) for warning in caught] == [
        f"policy fastdllm_threshold has no schedule: steps={steps} is not used"
    ]
    assert caught[0].filename == __file__
    assert result[0].policy == "fastdllm_threshold"
    assert result[0].manifest["unused"] == {"steps": steps}
    assert result[0].token_ids == [1, 1, 1, 1]


def test_t20_fast_dllms_own_call():
    with pytest.warns(UserWarning, match="steps=2 is not used"):
        fast = ts.decode(FLAT, [3], gen_length=4, block_length=2, steps=2, remasking="low_confidence", threshold=0.9)
    assert fast[0].policy == "fastdllm_threshold"
    plain = ts.decode(FLAT, [3], gen_length=4, block_length=2, steps=2, remasking="low_confidence", threshold=None)
    assert plain[0].policy == "llada_low_confidence"
    assert plain[0].calls == 2


@pytest.mark.parametrize("name", ["treshold", "schema", "kv_cache", "top_z"])
def test_t20_an_unknown_name_is_a_type_error(name):
    model = Counting(FLAT)
    with pytest.raises(TypeError, match=name), warnings.catch_warnings():
        warnings.simplefilter("error")  # a refused call does not warn as well
        ts.decode(model, [3], gen_length=4, steps=3, threshold=0.9, **{name: 1})
    assert model.calls == 0


def test_t20_one_thing_under_two_names():
    with pytest.raises(ts.TrajspecError, match="gen_length=4 and max_new_tokens=4 are the same option"):
        ts.decode(FLAT, [3], gen_length=4, max_new_tokens=4)
    with pytest.raises(ts.TrajspecError, match="seed=1 and seeds="):
        ts.decode(FLAT, [3], gen_length=4, seed=1, seeds=[1])


def test_t20_a_policy_by_name_does_not_change_its_rule():
    with pytest.raises(TypeError, match="threshold"):
        ts.decode(FLAT, [3], gen_length=4, policy="dream_entropy", steps=4, threshold=0.9)


def test_t20_guidance_needs_no_attention_mask():
    model = FixedModel([(1, 5.0)] * 5)
    result = ts.decode(model, [3], gen_length=4, block_length=2, steps=2, cfg_scale=1.5)
    assert whole(result) == [3, 1, 1, 1, 1]
    assert (result[0].calls, result[0].rows) == (2, 4)


def test_half_precision_models_decode():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert whole(ts.decode(InTorch(HOLES, dtype), [3, 7], gen_length=2, steps=2, block_length=2)) == [3, 7, 1, 2]
