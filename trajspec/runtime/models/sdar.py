"""SDAR (Cheng et al. 2025, JetAstra/SDAR): Qwen3 that sees whole blocks, its logits about their own position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trajspec.runtime.models.family import Family, refuse, require

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "rms_norm_eps",
)  # fmt: skip
COMPUTED = {"use_sliding_window": False, "rope_scaling": None, "hidden_act": "silu"}


def translate(source: str, config: Mapping[str, Any]) -> PreTrainedConfig:
    """Qwen3Config for SDAR's config.json. Raises TrajspecError for a variant that Qwen3 does not compute."""
    from transformers import Qwen3Config

    refuse(source, config, COMPUTED)
    require(source, config, (*SIZES, "rope_theta"))
    return Qwen3Config(
        **{name: config[name] for name in SIZES},
        head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        attention_bias=bool(config.get("attention_bias")),
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        use_sliding_window=False,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


SDAR = Family(
    architecture="SDARForCausalLM",
    model_type="sdar",
    network="Qwen3ForCausalLM",
    translate=translate,
    mask_id=151669,
    eos_ids=(151643,),
    eos_tokens=("<|im_end|>",),
    tokenizer="Qwen2Tokenizer",
)
"""SDAR 1.7B to 8B; decode with cache="block_causal" and the block length the checkpoint was trained with, 4."""
