"""LLaDA2.x (inclusionAI 2025): a mixture of experts that sees whole blocks, its logits about their own position."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from trajspec.runtime.models.family import Family, refuse, require

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "num_experts_per_tok",
    "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor",
)  # fmt: skip
COMPUTED = {
    "use_qkv_bias": False, "use_bias": False, "rope_scaling": None, "hidden_act": "silu", "score_function": "sigmoid",
    "norm_topk_prob": True, "use_qk_norm": True,
}  # fmt: skip


def translate(source: str, config: Mapping[str, Any]) -> PreTrainedConfig:
    """Glm4MoeConfig for LLaDA2's config.json. Raises TrajspecError for a variant that Glm4Moe does not compute."""
    from transformers import Glm4MoeConfig

    refuse(source, config, COMPUTED)
    require(source, config, (*SIZES, "rope_theta", "num_experts", "num_shared_experts"))
    sizes: dict[str, Any] = {name: config[name] for name in SIZES}
    sizes["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return Glm4MoeConfig(
        **sizes,
        n_routed_experts=config["num_experts"],
        n_shared_experts=config["num_shared_experts"],
        norm_topk_prob=True,
        use_qk_norm=True,
        attention_bias=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config["rope_theta"],
            "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
        },
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


@cache
def network() -> type:
    """Glm4MoeForCausalLM under a name of its own, for which transformers is told the published weight names."""
    from transformers import Glm4MoeForCausalLM
    from transformers.conversion_mapping import register_checkpoint_conversion_mapping
    from transformers.core_model_loading import Concatenate, MergeModulelist, Split, WeightConverter, WeightRenaming

    # Queries, keys and values are one matrix in the checkpoint, and every expert a module of its own.
    heads = [f"self_attn.{part}_proj.weight" for part in ("q", "k", "v")]
    experts = [f"mlp.experts.*.{part}_proj.weight" for part in ("gate", "up")]
    mapping: list[WeightConverter | WeightRenaming] = [
        WeightRenaming("word_embeddings", "embed_tokens"),
        WeightRenaming(r"attention\.dense", "self_attn.o_proj"),
        WeightRenaming(r"attention\.query_layernorm", "self_attn.q_norm"),
        WeightRenaming(r"attention\.key_layernorm", "self_attn.k_norm"),
        WeightRenaming(r"mlp\.gate\.expert_bias", "mlp.gate.e_score_correction_bias"),
        WeightConverter("attention.query_key_value.weight", heads, [Split(dim=0)]),
        WeightConverter(experts, "mlp.experts.gate_up_proj", [MergeModulelist(dim=0), Concatenate(dim=1)]),
        WeightConverter("mlp.experts.*.down_proj.weight", "mlp.experts.down_proj", [MergeModulelist(dim=0)]),
    ]
    register_checkpoint_conversion_mapping("LLaDA2MoeModelLM", mapping, overwrite=True)
    return type("LLaDA2MoeModelLM", (Glm4MoeForCausalLM,), {"__doc__": network.__doc__})


LLADA2 = Family(
    architecture="LLaDA2MoeModelLM",
    model_type="llada2_moe",
    network=network,
    translate=translate,
    mask_id=156895,
    eos_ids=(156892,),
    eos_tokens=("<|role_end|>",),
)
"""LLaDA2.0 and 2.1, mini and flash; decode with cache="block_causal", blocks of 32."""
