"""Fast-dLLM v2 (Wu et al. 2025): Qwen2.5 that sees whole blocks, its logits still shifted by one."""

from __future__ import annotations

from trajspec.runtime.models.dream import translate
from trajspec.runtime.models.family import Family

FAST_DLLM_V2 = Family(
    architecture="Fast_dLLM_QwenForCausalLM",
    model_type="Fast_dLLM_Qwen",
    network="Qwen2ForCausalLM",
    translate=translate,
    shifted=True,
    mask_id=151665,
    eos_ids=(151645,),
    eos_tokens=("<|im_end|>",),
    tokenizer="Qwen2Tokenizer",
)
"""Fast-dLLM v2 1.5B and 7B; decode with cache="block_causal", blocks of 32."""
