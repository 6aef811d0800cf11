"""Tiny random checkpoints of every supported architecture, saved to disk once, and the bundled-by-package model."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from trajspec.runtime.models import load_model

from .completion import SAVE, save_tokenizer

WORDS = ["the", "a", "cat", "mat", "sat", "on", "##s", "dog", "saw", "."]
TITLES = ["BertForMaskedLM", "ModernBertForMaskedLM", "DistilBertForMaskedLM", "RobertaForMaskedLM"]
GOLDENS = Path(__file__).parents[2] / "goldens"
WINDOW = 8  # ModernBERT's local_attention: a key is read up to 4 positions away


def tiny_tokenizer():
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return transformers.BertTokenizer(vocab={token: i for i, token in enumerate(vocab)})


def tiny_config(title, vocab_size=16, layers=3):
    # A wide initialisation makes attention sharp, so that a wrong mask shows. One id more than the tokenizer has.
    shared = dict(vocab_size=vocab_size, pad_token_id=0, initializer_range=0.4)
    bert = dict(hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=48)
    if title == "DistilBertForMaskedLM":
        return transformers.DistilBertConfig(
            dim=32, n_layers=layers, n_heads=4, hidden_dim=48, max_position_embeddings=64, **shared
        )
    if title == "ModernBertForMaskedLM":
        return transformers.ModernBertConfig(
            local_attention=WINDOW, global_attn_every_n_layers=2, max_position_embeddings=64, **bert, **shared
        )
    if title == "RobertaForMaskedLM":
        return transformers.RobertaConfig(max_position_embeddings=65, type_vocab_size=1, **bert, **shared)
    return transformers.BertConfig(max_position_embeddings=64, **bert, **shared)


def save_tiny(folder: Path, title: str, **changes) -> Path:
    """A random checkpoint of `title` in `folder`; `changes` are written into its config.json afterwards."""
    torch.manual_seed(7)
    getattr(transformers, title)(tiny_config(title)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    edit_json(folder / "config.json", **changes)
    return folder


def edit_json(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture(scope="session")
def kit():
    """The helpers above, for tests that make their own checkpoint."""
    return SimpleNamespace(
        window=WINDOW, config=tiny_config, tokenizer=tiny_tokenizer, save=save_tiny, edit_json=edit_json
    )


@pytest.fixture(scope="session", params=TITLES)
def checkpoint(request, tmp_path_factory):
    """(class name, folder) of each supported architecture."""
    return request.param, save_tiny(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def model(checkpoint):
    """The loaded model."""
    return load_model(checkpoint[1])


@pytest.fixture(scope="session")
def plain(checkpoint):
    """The same weights in the plain class with eager attention."""
    title, folder = checkpoint
    return getattr(transformers, title).from_pretrained(folder, attn_implementation="eager").eval()


@pytest.fixture(scope="session", params=["tiny_llada", "tiny_dream"])
def golden_folder(request):
    """The folder of each completion checkpoint with recorded logits; it has no tokenizer."""
    return GOLDENS / request.param


@pytest.fixture(scope="session")
def completion(golden_folder):
    """The loaded model, on one thread: with more, sums are split and rows of a batch differ from their single runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(golden_folder)
    torch.set_num_threads(threads)


@pytest.fixture(params=["llada", "dream"])
def kind(request):
    return request.param


@pytest.fixture
def written(kind, tmp_path):
    """A checkpoint of each completion family with a tokenizer."""
    SAVE[kind](tmp_path)
    save_tokenizer(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def antiberty():
    if importlib.util.find_spec("antiberty") is None:
        pytest.skip("the package antiberty is not installed")
    return load_model("antiberty")
