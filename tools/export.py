"""Writes and reads the bundled models: in the layout of the public LLaDA checkpoints, and of transformers' Llama."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from tools import tokenizer
from tools.tiny_model import TinyConfig, TinyModel

PREFIX = "model.transformer."

# What transformers' LlamaForCausalLM calls the same weights: from_pretrained(key_mapping=LLAMA_NAMES).
LLAMA_NAMES = {
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    r"^model\.transformer\.ff_out\.": "lm_head.",
    r"^model\.transformer\.blocks\.(\d+)\.attn_norm\.": r"model.layers.\1.input_layernorm.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_norm\.": r"model.layers.\1.post_attention_layernorm.",
    r"^model\.transformer\.blocks\.(\d+)\.attn_out\.": r"model.layers.\1.self_attn.o_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.q_proj\.": r"model.layers.\1.self_attn.q_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.k_proj\.": r"model.layers.\1.self_attn.k_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.v_proj\.": r"model.layers.\1.self_attn.v_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_proj\.": r"model.layers.\1.mlp.gate_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.up_proj\.": r"model.layers.\1.mlp.up_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_out\.": r"model.layers.\1.mlp.down_proj.",
}


def llada_config(c: TinyConfig, special: Mapping[str, int]) -> dict[str, object]:
    """The config.json of a LLaDA checkpoint of these sizes; `special` gives the ids of pad, eos, bos and mask."""
    return {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "block_type": "llama", "block_group_size": 1,
        "activation_type": "silu", "alibi": False, "attention_dropout": 0.0, "attention_layer_norm": False,
        "attention_layer_norm_with_affine": True, "bias_for_layer_norm": False, "d_model": c.d_model,
        "embedding_dropout": 0.0, "embedding_size": c.vocab_size, "flash_attention": False, "include_bias": False,
        "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "cpu", "init_fn": "mitchell",
        "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms", "layer_norm_with_affine": True,
        "max_sequence_length": c.max_sequence_length, "mlp_hidden_size": c.mlp_hidden_size, "mlp_ratio": 4,
        "multi_query_attention": None, "n_heads": c.n_heads, "n_kv_heads": c.n_heads, "n_layers": c.n_layers,
        "precision": None, "residual_dropout": 0.0, "rms_norm_eps": c.rms_norm_eps, "rope": True,
        "rope_full_precision": True, "rope_theta": c.rope_theta, "scale_logits": False, "use_cache": False,
        "vocab_size": c.vocab_size, "weight_tying": False, "pad_token_id": special[tokenizer.PAD],
        "eos_token_id": special[tokenizer.EOS], "bos_token_id": special[tokenizer.BOS],
        "mask_token_id": special[tokenizer.MASK],
    }


def llama_config(c: TinyConfig, special: Mapping[str, int]) -> dict[str, object]:
    """The config.json of a causal Llama of these sizes."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": c.vocab_size,
        "hidden_size": c.d_model, "intermediate_size": c.mlp_hidden_size, "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads, "num_key_value_heads": c.n_heads, "head_dim": c.d_model // c.n_heads,
        "hidden_act": "silu", "max_position_embeddings": c.max_sequence_length, "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        "pad_token_id": special[tokenizer.PAD], "eos_token_id": special[tokenizer.EOS],
        "bos_token_id": special[tokenizer.BOS],
    }


def save_causal(model: TinyModel, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """As `save`, for a model trained on the next token: what `AutoModelForCausalLM.from_pretrained` reads."""
    tokenizer.save(directory, model.config.max_sequence_length)
    known = tokenizer.build()
    special = {name: known.token_to_id(name) for name in tokenizer.SPECIAL}
    (directory / "config.json").write_text(json.dumps(llama_config(model.config, special), indent=1) + "\n")
    weights = {}
    for name, value in model.named_parameters():
        for pattern, ours in LLAMA_NAMES.items():
            renamed, changed = re.subn(pattern, ours, PREFIX + name)
            if changed:
                weights[renamed] = value.detach().to(dtype).contiguous()
    (directory / "model.safetensors").write_bytes(serialize(weights, metadata={"format": "pt"}))


def save(model: TinyModel, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    tokenizer.save(directory, model.config.max_sequence_length)
    known = tokenizer.build()
    special = {name: known.token_to_id(name) for name in tokenizer.SPECIAL}
    (directory / "config.json").write_text(json.dumps(llada_config(model.config, special), indent=1) + "\n")
    weights = {PREFIX + name: value.detach().to(dtype).contiguous() for name, value in model.named_parameters()}
    # Bytes written here get the usual permissions; the library's own writer makes a file only its owner can read.
    (directory / "model.safetensors").write_bytes(serialize(weights, metadata={"format": "pt"}))


def load(directory: Path) -> TinyModel:
    """The training model in fp32 with exported weights; KeyError or RuntimeError where a name or shape differs."""
    c = json.loads((directory / "config.json").read_text())
    config = TinyConfig(**{name: c[name] for name in TinyConfig.__dataclass_fields__})
    model = TinyModel(config)
    weights = load_file(directory / "model.safetensors")
    model.load_state_dict({name.removeprefix(PREFIX): value.float() for name, value in weights.items()})
    return model


def from_checkpoint(path: Path, raw: bool = False) -> TinyModel:
    """The model of a training checkpoint: its averaged weights, or the latest ones if `raw`."""
    pack: dict[str, dict[str, Tensor]] = torch.load(path, weights_only=True)
    model = TinyModel(TinyConfig(**pack["config"]))
    model.load_state_dict(pack["model"] if raw else pack["ema"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--raw", action="store_true", help="the latest weights instead of their moving average")
    args = parser.parse_args()
    objective = torch.load(args.checkpoint, weights_only=True)["objective"]
    (save_causal if objective == "next" else save)(from_checkpoint(args.checkpoint, args.raw), args.directory)


if __name__ == "__main__":
    main()
