"""The published decoding policies, each as a user would write it, under the names people type."""

from __future__ import annotations

import difflib

from ..ir import Policy, TrajspecError
from . import compat
from .apd import apd
from .autoregressive import autoregressive
from .blocks import sdar_dynamic, sdar_sequential, sdar_static, sglang_joint_threshold, sglang_low_confidence
from .diffusion_gemma import diffusion_gemma
from .dinfer import dinfer_credit, dinfer_hierarchy, dinfer_threshold
from .dpad import dpad, dpad_all_kept
from .dream import dream_entropy, dream_maskgit_plus, dream_origin, dream_topk_margin
from .eb import eb_sampler
from .fastdllm import (
    fastdllm_dream_block,
    fastdllm_dream_entropy,
    fastdllm_factor,
    fastdllm_quota,
    fastdllm_threshold,
)
from .fastdllm_v2 import fastdllm_v2
from .frechet import frechet
from .klass import klass
from .llada import llada_low_confidence, llada_random
from .mdlm import mdlm, remdm
from .prophet import prophet
from .wino import wino

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        llada_low_confidence,
        llada_random,
        fastdllm_threshold,
        fastdllm_quota,
        fastdllm_factor,
        fastdllm_dream_block,
        fastdllm_dream_entropy,
        dream_maskgit_plus,
        dream_topk_margin,
        dream_entropy,
        dream_origin,
        klass,
        wino,
        eb_sampler,
        frechet,
        dinfer_threshold,
        dinfer_hierarchy,
        dinfer_credit,
        prophet,
        dpad,
        dpad_all_kept,
        apd,
        mdlm,
        remdm,
        fastdllm_v2,
        sdar_sequential,
        sdar_static,
        sdar_dynamic,
        sglang_low_confidence,
        sglang_joint_threshold,
        diffusion_gemma,
        autoregressive,
    )
}

# What the papers and engines call the same rule.
ALIASES: dict[str, str] = {
    "low_confidence": "llada_low_confidence",
    "low_confidence_static": "llada_low_confidence",
    "confidence": "llada_low_confidence",
    "llada_flags": "llada_low_confidence",
    "llada": "llada_low_confidence",
    "random": "llada_random",
    "threshold": "fastdllm_threshold",
    "confidence_threshold": "fastdllm_threshold",
    "low_confidence_dynamic": "fastdllm_threshold",
    "lowconfidence": "fastdllm_threshold",
    "quota": "fastdllm_quota",
    "factor": "fastdllm_factor",
    "maskgit_plus": "dream_maskgit_plus",
    "topk_margin": "dream_topk_margin",
    "margin": "dream_topk_margin",
    "entropy": "dream_entropy",
    "origin": "dream_origin",
    "sdar": "sdar_dynamic",
    "joint_threshold": "sglang_joint_threshold",
    "jointthreshold": "sglang_joint_threshold",
    "llada2": "sglang_low_confidence",
    "llada21": "sglang_joint_threshold",
    "eb": "eb_sampler",
    "entropy_bound": "eb_sampler",
    "entropy_bounded": "eb_sampler",
    "fastdllm_frechet": "frechet",
    "fastdllm_plusplus": "frechet",
    "hierarchy": "dinfer_hierarchy",
    "credit": "dinfer_credit",
    "adaptive_parallel_decoding": "apd",
    "fast_dllm_v2": "fastdllm_v2",
    "sequential": "sdar_sequential",
    "diffusiongemma": "diffusion_gemma",
    "left_to_right": "autoregressive",
    "ar": "autoregressive",
}


def get_policy(name: str, compat_name: str | None = None) -> Policy:
    """The policy called `name` (or a name the field uses for it), with a recorded quirk when `compat_name` says so.

    Raises TrajspecError for a name nobody has, with the list of those there are.
    """
    full = ALIASES.get(name.lower().replace("-", "_"), name.lower().replace("-", "_"))
    if full not in POLICIES:
        close = difflib.get_close_matches(full, [*POLICIES, *ALIASES], n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise TrajspecError(
            f"no policy is called {name!r}.{hint} There are: {', '.join(POLICIES)}. A policy of your own is named "
            "FILE.py:NAME"
        )
    if not compat_name:
        return POLICIES[full]
    found = compat.COMPAT.get((full, compat_name))
    if found is None:
        names = [quirk for policy, quirk in compat.COMPAT if policy == full]
        raise TrajspecError(f"{full} has no compat name {compat_name!r}; it has: {', '.join(names) or 'none'}")
    return found


__all__ = ["ALIASES", "POLICIES", "get_policy", *POLICIES]
