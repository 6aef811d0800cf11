"""LLaDA (Nie et al. 2025, arXiv:2502.09992): Llama without the causal mask, under names of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trajspec.runtime.models.family import Family, refuse, require

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Anchored: the head and every layer's down projection are both called ff_out.
_BLOCK = r"^model\.transformer\.blocks\.(\d+)\."
RENAMES = {
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    r"^model\.transformer\.ff_out\.": "lm_head.",
    _BLOCK + r"attn_norm\.": r"model.layers.\1.input_layernorm.",
    _BLOCK + r"ff_norm\.": r"model.layers.\1.post_attention_layernorm.",
    _BLOCK + r"q_proj\.": r"model.layers.\1.self_attn.q_proj.",
    _BLOCK + r"k_proj\.": r"model.layers.\1.self_attn.k_proj.",
    _BLOCK + r"v_proj\.": r"model.layers.\1.self_attn.v_proj.",
    _BLOCK + r"attn_out\.": r"model.layers.\1.self_attn.o_proj.",
    _BLOCK + r"ff_proj\.": r"model.layers.\1.mlp.gate_proj.",
    _BLOCK + r"up_proj\.": r"model.layers.\1.mlp.up_proj.",
    _BLOCK + r"ff_out\.": r"model.layers.\1.mlp.down_proj.",
}

COMPUTED = {
    "block_type": "llama",
    "block_group_size": 1,
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rope": True,
    "rope_scaling": None,
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "clip_qkv": None,
}
"""What the Llama class computes; the published configs spell all of it out."""


def translate(source: str, config: Mapping[str, Any]) -> PreTrainedConfig:
    """LlamaConfig for LLaDA's config.json. Raises TrajspecError for a variant that Llama does not compute."""
    from transformers import LlamaConfig

    refuse(source, config, COMPUTED)
    require(source, config, ("d_model", "n_heads", "n_layers", "max_sequence_length", "rms_norm_eps", "rope_theta"))
    heads = config["n_heads"]
    return LlamaConfig(
        vocab_size=config.get("embedding_size") or config["vocab_size"],
        hidden_size=config["d_model"],
        intermediate_size=config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
        num_hidden_layers=config["n_layers"],
        num_attention_heads=heads,
        num_key_value_heads=config.get("n_kv_heads") or (1 if config.get("multi_query_attention") else heads),
        max_position_embeddings=config["max_sequence_length"],
        rms_norm_eps=config["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        tie_word_embeddings=bool(config.get("weight_tying")),
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def _full_precision(config: Mapping[str, Any]) -> bool:
    return config.get("rope_full_precision") is not False


LLADA = Family(
    architecture="LLaDAModelLM",
    model_type="llada",
    network="LlamaForCausalLM",
    translate=translate,
    renames=RENAMES,
    float32_rotary=_full_precision,
    mask_id=126336,
    eos_ids=(126081, 126348),
    eos_tokens=("<|eot_id|>",),
)
"""LLaDA-8B and LLaDA-1.5. Logits predict their own entry; the template closes every turn with <|eot_id|>."""
