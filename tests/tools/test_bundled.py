"""The weights in the package are those of this data, this tokenizer and this model."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import trajspec
from tools import evaluate, export, tiny_data, tokenizer

BUNDLED = Path(trajspec.__file__).parent / "data" / "tiny"


def test_tokenizer_is_the_one_built_from_the_tasks():
    saved, built = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")), tokenizer.build()
    assert saved.get_vocab() == built.get_vocab()
    assert json.loads((BUNDLED / "config.json").read_text())["vocab_size"] == built.get_vocab_size()


def test_model_is_small():
    assert (BUNDLED / "model.safetensors").stat().st_size < 16 * 2**20
    assert sum(weight.numel() for weight in export.load(BUNDLED).parameters()) < 8_000_000


@pytest.mark.parametrize("task", sorted(tiny_data.TASKS))
def test_most_unseen_problems_are_answered(task):
    torch.set_num_threads(1)
    result = evaluate.score(export.load(BUNDLED), task, count=24, length=40, threshold=0.95)
    assert result.right >= 16, result.wrong
    assert result.calls < result.tokens  # more than one token a call


def test_a_model_of_random_weights_answers_nothing():
    model = export.load(BUNDLED)
    model.reset()
    assert evaluate.score(model, "sort", count=24, length=40, threshold=0.0).right == 0
