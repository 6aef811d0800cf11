"""Tiny random LLaDA and Dream checkpoints in the published layout, and a tokenizer for them."""

import json

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

# Weight names as published, against those of transformers' Llama; written out apart from the adapter's patterns.
BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}
PUBLISHED = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"} | {
    f"model.layers.{layer}.{name}": f"blocks.{layer}.{title}" for layer in range(3) for name, title in BLOCK.items()
}
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|bos|>", "<|end|>", "<|eot_id|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|mask|>"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "."]
SIZE = len(LETTERS) + len(SPECIAL) + 3  # the embedding has rows that the tokenizer lacks
MASK = len(LETTERS) + len(SPECIAL) - 1


def save_llada(folder, **changes):
    """A random LLaDA checkpoint of three layers with two key heads, and the plain network behind it."""
    config = dict(
        architectures=["LLaDAModelLM"], model_type="llada", d_model=32, n_layers=3, n_heads=4, n_kv_heads=2,
        mlp_hidden_size=40, embedding_size=SIZE, vocab_size=SIZE - 1, max_sequence_length=64, rms_norm_eps=1e-5,
        rope_theta=10000.0, weight_tying=False, mask_token_id=MASK, block_type="llama", activation_type="silu",
    ) | changes  # fmt: skip
    torch.manual_seed(3)
    plain = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=SIZE, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.4,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=config["weight_tying"], attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    weights = {name.removesuffix(".weight"): tensor for name, tensor in plain.state_dict().items()}
    if config["weight_tying"]:
        del weights["lm_head"]
    folder.mkdir(exist_ok=True)
    named = {f"model.transformer.{PUBLISHED[name]}.weight": tensor.clone() for name, tensor in weights.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return plain


def save_dream(folder, **changes):
    """A random Dream checkpoint: Qwen2's names under another model type."""
    torch.manual_seed(4)
    config = transformers.Qwen2Config(
        vocab_size=SIZE, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.4, attn_implementation="eager",
    )  # fmt: skip
    plain = transformers.Qwen2ForCausalLM(config).eval()
    plain.save_pretrained(folder)
    kept = json.loads((folder / "config.json").read_text())
    kept = {name: kept[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps")}  # fmt: skip
    kept |= {"architectures": ["DreamModel"], "model_type": "Dream", "rope_theta": 10000.0, "mask_token_id": MASK}
    (folder / "config.json").write_text(json.dumps(kept | changes))
    # Settings of a decoding loop that transformers does not know, as published.
    (folder / "generation_config.json").write_text(json.dumps({"alg": "origin", "eps": 0.001, "steps": 512}))
    return plain


SAVE = {"llada": save_llada, "dream": save_dream}


def save_tokenizer(folder, **changes):
    """tokenizer.json and tokenizer_config.json over LETTERS and SPECIAL."""
    backend = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(LETTERS)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|end|>",
              "pad_token": "<|end|>", "chat_template": CHAT}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes))
