"""The exported model is the training model, in transformers' words."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tools import export, tokenizer
from tools.tiny_model import TinyConfig, TinyModel


def random_model() -> TinyModel:
    torch.manual_seed(7)
    model = TinyModel(TinyConfig(vocab_size=tokenizer.build().get_vocab_size(), d_model=32, n_layers=2, n_heads=4,
                                 mlp_hidden_size=48, rope_theta=500.0))
    for weight in model.parameters():  # some start at zero or one, which would hide a mistake in their names
        torch.nn.init.normal_(weight, std=0.3)
    return model


def as_llama(directory, **changes) -> LlamaForCausalLM:
    c = json.loads((directory / "config.json").read_text())
    config = LlamaConfig(
        vocab_size=c["embedding_size"], hidden_size=c["d_model"], intermediate_size=c["mlp_hidden_size"],
        num_hidden_layers=c["n_layers"], num_attention_heads=c["n_heads"], num_key_value_heads=c["n_kv_heads"],
        rms_norm_eps=c["rms_norm_eps"], tie_word_embeddings=c["weight_tying"], pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": changes.get("theta", c["rope_theta"])},
        attn_implementation="eager",
    )
    model, info = LlamaForCausalLM.from_pretrained(
        directory, config=config, key_mapping=export.LLAMA_NAMES, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return model.eval()


def everything_sees_everything(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    rows, length = tokens.shape
    return model(tokens, attention_mask=torch.zeros(rows, 1, length, length), use_cache=False).logits


@torch.no_grad()
def test_reloads_through_llama_with_the_same_logits(tmp_path):
    model = random_model()
    export.save(model, tmp_path, torch.float32)
    tokens = torch.randint(0, model.config.vocab_size, (2, 19))
    llama = as_llama(tmp_path)
    torch.testing.assert_close(everything_sees_everything(llama, tokens), model(tokens), atol=1e-4, rtol=0)
    torch.testing.assert_close(llama(tokens, use_cache=False).logits, model(tokens, causal=True), atol=1e-4, rtol=0)


@torch.no_grad()
def test_comparison_notices_another_rotation_and_swapped_projections(tmp_path):
    model = random_model()
    export.save(model, tmp_path, torch.float32)
    tokens = torch.randint(0, model.config.vocab_size, (2, 19))
    other_theta = everything_sees_everything(as_llama(tmp_path, theta=400.0), tokens)
    assert (other_theta - model(tokens)).abs().max() > 1e-2
    weights = load_file(tmp_path / "model.safetensors")
    gate, up = (f"model.transformer.blocks.0.{name}.weight" for name in ("ff_proj", "up_proj"))
    weights[gate], weights[up] = weights[up], weights[gate]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert (everything_sees_everything(as_llama(tmp_path), tokens) - model(tokens)).abs().max() > 1e-2


def test_round_trip_keeps_every_weight_and_rejects_a_missing_one(tmp_path):
    model = random_model()
    export.save(model, tmp_path, torch.float32)
    again = export.load(tmp_path)
    assert again.config == model.config
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.transformer.ln_f.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match="ln_f"):
        export.load(tmp_path)


def test_default_precision_is_bf16(tmp_path):
    export.save(random_model(), tmp_path)
    assert {w.dtype for w in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}


def test_tokenizer_loads_and_its_template_gives_the_prompt_trained_on(tmp_path):
    export.save(random_model(), tmp_path)
    loaded, built = AutoTokenizer.from_pretrained(tmp_path), tokenizer.build()
    text = "sort 31 07 22"
    ids = loaded.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                     return_dict=False)
    bos, answer = built.token_to_id(tokenizer.BOS), built.token_to_id(tokenizer.ANSWER)
    assert ids == [bos, *built.encode(text).ids, answer]
    config = json.loads((tmp_path / "config.json").read_text())
    names = ("pad", "eos", "bos", "mask")
    assert [getattr(loaded, f"{name}_token_id") for name in names] == [config[f"{name}_token_id"] for name in names]
    for line in (" up 07 31\n    x = 5", "naïve 你好"):
        assert loaded.decode(loaded(line, add_special_tokens=False)["input_ids"]) == line
