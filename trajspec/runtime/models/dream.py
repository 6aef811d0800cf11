"""Dream (Ye et al. 2025, arXiv:2508.15487): Qwen2 without the causal mask, its logits still shifted by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trajspec.runtime.models.family import Family, refuse, require

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)
COMPUTED = {"use_sliding_window": False, "use_mrope": False, "rope_scaling": None, "hidden_act": "silu"}


def translate(source: str, config: Mapping[str, Any]) -> PreTrainedConfig:
    """Qwen2Config for Dream's config.json. Raises TrajspecError for a variant that Qwen2 does not compute."""
    from transformers import Qwen2Config

    refuse(source, config, COMPUTED)
    require(source, config, (*SIZES, "rope_theta"))
    return Qwen2Config(
        **{name: config[name] for name in SIZES},
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        use_sliding_window=False,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


DREAM = Family(
    architecture="DreamModel",
    model_type="Dream",
    network="Qwen2ForCausalLM",
    translate=translate,
    shifted=True,
    mask_id=151666,
    eos_ids=(151643,),
    eos_tokens=("<|im_end|>",),
    # Dream's own tokenizer class is a copy of Qwen2's.
    tokenizer="Qwen2Tokenizer",
)
"""Dream-7B and models trained from it in its format (DiffuCoder). The rotary table has the dtype of the weights."""
