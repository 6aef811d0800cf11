"""What is committed: thresholds nobody reaches, mask ids in prompts and predictions, EOS last, the right block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import trajspec as ts
from tests.cases.reading import interpreted, order, whole
from tests.policies.rules import OF_TOKENS
from tests.toys import further, logits_for
from trajspec.exact.tabular import FixedModel
from trajspec.ir import OPS
from trajspec.ir.canvas import canvas
from trajspec.policies import get_policy
from trajspec.runtime.batch import stack
from trajspec.runtime.denoiser import FromNumpy
from trajspec.runtime.loop import drive
from trajspec.runtime.meanings import MEANINGS
from trajspec.runtime.step import start, take

# T01: a threshold nobody reaches


FLAT = FixedModel([(3, 0.1)] * 5)


def test_t01_the_surest_goes_when_none_passes():
    result = ts.decode(FLAT, [3], gen_length=4, block_length=4, threshold=0.9)
    assert whole(result) == [3] * 5
    assert result[0].calls == 4
    assert order(result[0]) == [1, 2, 3, 4]
    policy = get_policy("fastdllm_threshold").bind(threshold=0.9, block_length=4)
    assert interpreted(policy, FLAT, [3], gen_length=4) == ([3] * 5, 4)


def test_t01_the_confidence_leaves_the_mask_out():
    seen = []
    policy = get_policy("fastdllm_threshold").bind(threshold=0.9)
    ts.run(policy.plan(), FLAT, canvas([3], gen_length=1, vocab_size=8, mask_id=7), on_step=lambda s: seen.append(s))
    scores = [np.exp(data) for value, data in seen[0].values.items() if value.kind.name == "conf"]
    assert any(abs(score[1] - 0.156) < 5e-4 for score in scores)


@pytest.mark.parametrize("options", [{"policy": "klass", "conf_threshold": 0.9}, {"policy": "wino"}, {"factor": 1.0}])
def test_t01_no_rule_waits_for_ever(options):
    result = ts.decode(FLAT, [3], gen_length=4, block_length=4, **options)
    assert whole(result) == [3] * 5
    assert result[0].calls == 4


def test_t01_a_finished_row_stays_as_it_is():
    plan = get_policy("fastdllm_threshold").bind(threshold=0.9, block_length=4).plan()
    rows = [
        canvas([3], gen_length=4, vocab_size=8, mask_id=7), canvas([5, 1, 2, 4, 6], vocab_size=8, mask_id=7)
    ]  # fmt: skip
    batch = stack(rows)
    bound = {plan.inputs[0]: batch}
    outcome = take(plan, FromNumpy(FLAT), bound, start(plan, bound), True)
    for before, after in zip(batch, outcome.carried[0], strict=True):
        assert torch.equal(before[1], after[1])
    assert outcome.carried[0].tokens[0].tolist() == [3, 3, 7, 7, 7]
    # In the loop it costs nothing either.
    *_, last = _outputs(drive(plan, FromNumpy(FLAT), rows))
    assert [run.cost.calls for run in last[0]] == [4, 0]
    assert last[0][1].canvas.tokens.tolist() == [5, 1, 2, 4, 6]


def _outputs(driver: Any) -> list[Any]:
    events = []
    while True:
        try:
            events.append(next(driver))
        except StopIteration as end:
            return [*events, end.value]


# T02: the prompt contains the mask id


HOLES = FixedModel([(3, 5), (4, 6), (1, 4), (2, 3)])


@pytest.mark.parametrize("options", [{"steps": 2}, {"threshold": 0.99}, {"policy": "llada_random"}])
def test_t02_a_mask_id_in_the_prompt_is_data(options):
    result = ts.decode(HOLES, [3, 7], gen_length=2, block_length=2, **options)
    assert whole(result) == [3, 7, 1, 2]
    assert result[0].calls == 2
    assert result[0].prompt_tokens == 2


def test_t02_infilling_fills_it():
    result = ts.decode(HOLES, [3, 7], gen_length=2, block_length=2, steps=3, infill=True)
    assert whole(result) == [3, 4, 1, 2]
    assert order(result[0]) == [1, 2, 3]
    assert result[0].calls == 3
    assert result[0].token_ids == [3, 4, 1, 2]


def test_t02_every_policy_leaves_the_prompt_alone():
    for name in OF_TOKENS:
        policy = ts.policies.POLICIES[name]
        settings = {"steps": 4} if "steps" in policy.settings else {}
        model = FixedModel([(3, 5), (4, 6), (1, 4), (2, 3)] * 2)
        result = ts.decode(model, [7, 3, 7], gen_length=4, policy=name, **settings, **further(name, model))
        assert whole(result)[:3] == [7, 3, 7], name
        assert 7 not in whole(result)[3:], name


# T03: the denoiser votes for the mask


VOTES = FixedModel([(3, 5), {1: 1, 7: 9}, {1: 1, 7: 9}])


def test_t03_the_mask_is_never_predicted():
    for options in ({"steps": 2}, {"threshold": 0.9}, {"factor": 1.0}, {"policy": "wino"}):
        assert whole(ts.decode(VOTES, [3], gen_length=2, block_length=2, **options)) == [3, 1, 1]
    plan = get_policy("fastdllm_threshold").bind(block_length=2).plan()
    confidences = []
    driver = drive(plan, FromNumpy(VOTES), [canvas([3], gen_length=2, vocab_size=8, mask_id=7)])
    for event in _outputs(driver)[:-1]:
        confidences += [data for value, data in event.values.items() if value.kind.name == "conf"]
    assert any(abs(float(conf[0, 1].exp()) - 0.3118) < 5e-5 for conf in confidences)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 30.0])
def test_t03_not_by_sampling_either(temperature):
    for seed in range(20):
        result = ts.decode(VOTES, [3], gen_length=2, block_length=2, steps=2, temperature=temperature, seed=seed)
        assert 7 not in result[0].token_ids


# T04: suppress before sampling, EOS last


@pytest.mark.parametrize("meanings", [{name: op.numpy for name, op in OPS.items()}, MEANINGS], ids=["numpy", "torch"])
def test_t04_suppressed_ids_are_gone_before_the_argmax(meanings):
    logits = np.array([[5.0, 1.0, 9.0]]) if meanings is not MEANINGS else torch.tensor([[5.0, 1.0, 9.0]])
    token, conf = meanings["score"](meanings["suppress"](logits, ids=(2,)))
    assert int(token[0]) == 0
    assert abs(math.exp(float(conf[0])) - 0.98201) < 5e-6
    assert logits.tolist() == [[5.0, 1.0, 9.0]]


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.1])
def test_t04_eos_comes_last_at_every_temperature(temperature):
    model = FixedModel([(3, 5), (6, 30), (5, 20), (4, 25)])
    result = ts.decode(
        model, [3], gen_length=3, steps=3, block_length=3, eos_id=6, eot_id=6, confidence_eos_eot_inf=True,
        ignore_eos=True, temperature=temperature, policy="llada",
    )  # fmt: skip
    assert order(result[0]) == [3, 2, 1]
    assert whole(result) == [3, 6, 5, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", OF_TOKENS)
def test_t04_the_callers_logits_are_not_edited(name, dtype):
    kept = torch.zeros(1, 5, 8, dtype=dtype)
    kept[0, :, 7] = 9
    kept[0, 2, 3] = -torch.inf
    before = kept.clone()

    class Held:
        vocab_size, mask_id, device = 8, 7, torch.device("cpu")

        def __call__(self, tokens, positions, visible):
            # WINO asks more: then the answer is another tensor.
            return kept if tokens.shape == (1, 5) else torch.zeros(*tokens.shape, 8, dtype=dtype)

    steps = {"steps": 4} if "steps" in ts.policies.POLICIES[name].settings else {}
    ts.decode(Held(), [3], gen_length=4, policy=name, **steps, **further(name, Held()))
    assert torch.equal(kept, before)


# T16: choose inside the block


@pytest.mark.parametrize("options", [{"steps": 12}, {"threshold": 0.95}, {"policy": "fastdllm_quota"}])
def test_t16_positions_are_chosen_inside_the_block(options):
    model = FixedModel(logits_for([0.3, 0.2, 0.9, 0.8] + [0.5] * 8))
    result = ts.decode(model, [[]], gen_length=12, block_length=2, **options)
    assert order(result[0])[:4] == [0, 1, 2, 3]
    assert 7 not in whole(result)
