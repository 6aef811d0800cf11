"""Where checkpoints are looked for, and every way in which one is refused."""

import contextlib
import json
import pickle
import shutil

import pytest
import torch
import transformers
from transformers.utils import logging

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models import FAMILIES, load_model
from trajspec.runtime.models.fill_mask import ARCHITECTURES


@pytest.fixture
def folder(tmp_path, kit):
    return kit.save(tmp_path / "tiny", "BertForMaskedLM")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """The hub out of reach, with an empty cache of its own in the returned folder."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def into_hub_cache(folder, cache, name, commit="0123456789abcdef0123456789abcdef01234567"):
    entry = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, entry / "snapshots" / commit)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(commit)


def test_a_hub_id_that_is_not_there(offline):
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with pytest.raises(
        TrajspecError, match=r"some/model: not a known name \(tiny, antiberty\), not a folder.*hub id.*Offline"
    ):
        load_model("some/model")
    # What was changed to be quiet is back after a failure too.
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (level, bars)


def test_a_hub_id_in_the_cache(offline, folder):
    into_hub_cache(folder, offline, "some/model")
    model, local = load_model("some/model"), load_model(folder)
    tokens = torch.tensor([[2, 5, 7, 3]])
    assert model.name == "some/model"
    assert torch.equal(model(tokens, torch.arange(4)[None]), local(tokens, torch.arange(4)[None]))


def test_a_hub_id_without_safetensors_is_refused(offline, folder):
    torch.save(transformers.BertForMaskedLM.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    into_hub_cache(folder, offline, "some/pickle")
    with pytest.raises(TrajspecError, match=r"weights cannot be loaded.*safetensors.*give its folder"):
        load_model("some/pickle")


def test_safetensors_come_before_a_pickle(folder):
    expected = load_model(folder)
    torch.save({}, folder / "pytorch_model.bin")
    tokens = torch.tensor([[2, 5, 7, 3]])
    assert torch.equal(load_model(folder)(tokens, torch.arange(4)[None]), expected(tokens, torch.arange(4)[None]))


def test_a_pickle_of_tensors_is_read(folder):
    expected = load_model(folder)
    torch.save(transformers.BertForMaskedLM.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    tokens = torch.tensor([[2, 5, 7, 3]])
    assert torch.equal(load_model(folder)(tokens, torch.arange(4)[None]), expected(tokens, torch.arange(4)[None]))


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return open, (self.file, "w")


def test_a_pickle_that_runs_code_is_refused(folder, tmp_path):
    trap = tmp_path / "sprung"
    torch.save({"bert.embeddings.word_embeddings.weight": Trap(trap)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(TrajspecError, match="weights cannot be loaded: the file holds more than tensors"):
        load_model(folder)
    assert not trap.exists()
    # Control: the trap works.
    pickle.loads(pickle.dumps(Trap(trap))).close()
    assert trap.exists()


def test_code_in_a_checkpoint_is_never_run(folder, tmp_path, kit):
    trap = tmp_path / "sprung"
    (folder / "custom.py").write_text(f"open({str(trap)!r}, 'w').close()\n")
    auto = {"AutoConfig": "custom.C", "AutoModelForMaskedLM": "custom.M"}
    kit.edit_json(folder / "config.json", auto_map=auto)
    load_model(folder)
    kit.edit_json(
        folder / "tokenizer_config.json", tokenizer_class="Custom", auto_map={"AutoTokenizer": ["custom.T", None]}
    )
    with contextlib.suppress(TrajspecError):  # refused or read with a class of transformers: either is fine
        load_model(folder)
    assert not trap.exists()


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c"])
def test_a_path_that_is_not_there_is_not_looked_up(name):
    with pytest.raises(TrajspecError, match=r"no such folder. Known names: tiny, antiberty"):
        load_model(name)


def test_a_folder_without_config(tmp_path):
    with pytest.raises(TrajspecError, match=r"no config.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TrajspecError, match=r"config.json cannot be read"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(TrajspecError, match="must hold an object, got list"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        {"architectures": ["BertForSequenceClassification"], "model_type": "bert"},
        {"architectures": ["BertForMaskedLM"], "model_type": "roberta"},
        {"architectures": ["LLaDAMoEModelLM"], "model_type": "llada"},
        {"architectures": ["DreamForCausalLM"], "model_type": "Dream"},
        {"model_type": "esm"},
        {},
    ],
)
def test_an_unsupported_architecture_lists_the_supported(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(TrajspecError) as caught:
        load_model(tmp_path)
    assert all(title in str(caught.value) for title in (*ARCHITECTURES, *FAMILIES))
    assert repr(config.get("model_type")) in str(caught.value)


def test_without_architectures_the_model_type_decides(folder, kit):
    kit.edit_json(folder / "config.json", architectures=None)
    assert type(load_model(folder).network).__name__ == "BertForMaskedLM"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_decoder": True}, "is_decoder is true"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'; only 'absolute'"),
        ({"mask_token_id": 7}, r"config.json says mask_token_id 7, the tokenizer says 4 \(\[MASK\]\)"),
        ({"num_hidden_layers": 4}, "weights of BertForMaskedLM are not in the checkpoint: bert.encoder.layer.3"),
        ({"hidden_size": 64}, "weights cannot be loaded"),
    ],
)
def test_a_config_that_does_not_fit(folder, change, said, kit):
    kit.edit_json(folder / "config.json", **change)
    with pytest.raises(TrajspecError, match=said):
        load_model(folder)


def test_the_right_mask_id_may_be_declared(folder, kit):
    kit.edit_json(folder / "config.json", mask_token_id=4)
    assert load_model(folder).mask_id == 4


def test_weights_without_the_head(tmp_path, kit):
    transformers.BertModel(kit.config("BertForMaskedLM")).save_pretrained(tmp_path)
    kit.tokenizer().save_pretrained(tmp_path)
    kit.edit_json(tmp_path / "config.json", architectures=["BertForMaskedLM"])
    with pytest.raises(TrajspecError, match=r"not in the checkpoint: cls.predictions.*saved from another class"):
        load_model(tmp_path)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(TrajspecError, match=r"weights cannot be loaded.*model.safetensors"):
        load_model(folder)


def test_no_tokenizer_files(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(TrajspecError, match="tokenizer has no tokens besides 5 special ones"):
        load_model(folder)


def test_a_tokenizer_without_mask_token(folder, kit):
    bare = transformers.PreTrainedTokenizerFast(
        tokenizer_object=kit.tokenizer().backend_tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    )
    bare.save_pretrained(folder)
    with pytest.raises(TrajspecError, match="no mask token"):
        load_model(folder)


def test_a_tokenizer_without_padding(folder, kit):
    bare = transformers.PreTrainedTokenizerFast(
        tokenizer_object=kit.tokenizer().backend_tokenizer, unk_token="[UNK]", mask_token="[MASK]"
    )
    bare.save_pretrained(folder)
    with pytest.raises(TrajspecError, match="no padding token"):
        load_model(folder)


def test_a_mask_id_outside_the_vocabulary(folder):
    vocab = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *[f"w{i}" for i in range(12)]])}
    transformers.BertTokenizer(vocab=vocab).save_pretrained(folder)
    with pytest.raises(TrajspecError, match=r"mask id 16 \(\[MASK\]\) is outside the vocabulary of 16"):
        load_model(folder)


def test_a_tokenizer_with_more_tokens_than_the_model(folder, kit):
    tokenizer = kit.tokenizer()
    tokenizer.add_tokens(["zebra", "yak"])
    tokenizer.save_pretrained(folder)
    model = load_model(folder)
    assert model.encode_infill("zebra").tokens == [2, 15, 3]
    with pytest.raises(TrajspecError, match="the tokenizer wrote id 16, the model knows ids below 16"):
        model.encode_infill("yak")


def test_a_special_token_that_was_added_is_never_predicted(folder, kit):
    tokenizer = kit.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["[EXTRA]"]})
    tokenizer.save_pretrained(folder)
    model = load_model(folder)
    assert 15 in model.banned_ids
    assert model.decode_text([2, 5, 15, 7, 3]) == "the cat"


@pytest.mark.parametrize("dtype", [torch.int64, "float32", None])
def test_dtype_must_be_a_floating_dtype(dtype):
    with pytest.raises(TrajspecError, match="dtype must be a floating torch dtype"):
        load_model("antiberty", dtype=dtype)


@pytest.mark.parametrize("device", ["nonsense", "cuda:999"])
def test_device_must_be_there(device):
    with pytest.raises(TrajspecError, match=f"device '{device}' cannot be used"):
        load_model("antiberty", device=device)
