"""Drafts inside transformers' generate."""

from __future__ import annotations

import pytest
import torch

from tests.completion.test_targets import problems
from trajspec.completion import load_target
from trajspec.completion.generate import drafted_by
from trajspec.ir import TrajspecError


@pytest.fixture(scope="module")
def target():
    return load_target("tiny-ar")


def ids_of(target, prompt):
    return [*target.codec.prefix, *target.codec.encode(target.codec.chat(prompt))]


def test_generate_writes_the_same(target):
    for prompt in problems(6, skip=20):
        ids = torch.tensor([ids_of(target, prompt)])
        told = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
        plain = target.network.generate(ids, **told)
        drafted = target.network.generate(ids, custom_generate=drafted_by("tiny"), **told)
        assert torch.equal(plain, drafted)


def test_padded_rows(target):
    rows = [ids_of(target, prompt) for prompt in problems(3, skip=40)]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    told = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    plain = target.network.generate(ids, **told)
    drafted = target.network.generate(ids, custom_generate=drafted_by("tiny", draft_length="adaptive"), **told)
    assert torch.equal(plain, drafted)


def test_sampling_repeats_with_its_seed(target):
    ids = torch.tensor([ids_of(target, problems(1, skip=2)[0])])
    told = {"max_new_tokens": 16, "do_sample": True, "temperature": 3.0, "top_k": 50, "pad_token_id": 0}
    one, again, other = (
        target.network.generate(ids, custom_generate=drafted_by("tiny", seed=seed), **told) for seed in (3, 3, 4)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)
    plain = target.network.generate(ids, custom_generate=drafted_by("tiny", seed=3, draft_length=1), **told)
    assert torch.equal(one, plain)


@pytest.mark.parametrize("told", [{"num_beams": 3}, {"no_repeat_ngram_size": 2}])
def test_what_it_does_not_compute_is_refused(target, told):
    ids = torch.tensor([ids_of(target, problems(1)[0])])
    with pytest.raises(TrajspecError, match=next(iter(told))):
        target.network.generate(ids, custom_generate=drafted_by("tiny"), max_new_tokens=4, pad_token_id=0, **told)
