"""Option names: what people type in the dialects of the field, and the one name each has here."""

from __future__ import annotations

import warnings
from typing import Any

from .ir import Policy, TrajspecError

ALIASES: dict[str, tuple[str, ...]] = {
    "gen_length": ("max_new_tokens", "max_gen_length", "max_gen_toks", "max_tokens", "gen_len"),
    "steps": (
        "diffusion_steps", "num_denoising_steps", "denoising_steps", "num_inference_steps", "max_denoising_steps",
    ),
    "block_length": ("block_size", "dllm_block_length"),
    "threshold": (
        "confidence_threshold", "dynamic_threshold", "accept_threshold", "decoded_token_threshold",
        "commit_confidence_threshold", "dllm_confidence_threshold",
    ),
    "policy": ("remasking", "remasking_strategy", "alg", "dllm_unmasking_strategy", "decoding_strategy"),
    "top_p": ("topp",),
    "top_k": ("topk",),
    "eos_id": ("eos_token_id", "stop_token"),
    "mask_id": ("mask_token_id",),
    "stop": ("stop_words", "stop_strings"),
}  # fmt: skip
_CANONICAL = {alias: name for name, aliases in ALIASES.items() for alias in aliases}


def canonical(options: dict[str, Any], declared: frozenset[str] = frozenset()) -> dict[str, Any]:
    """`options` under the library's own names; a name in `declared` (a policy's parameters) stays as it is.

    Raises TrajspecError when one thing is given under two names.
    """
    out: dict[str, Any] = {}
    came: dict[str, str] = {}
    for given, value in options.items():
        name = given if given in declared else _CANONICAL.get(given, given)
        if name in out:
            raise TrajspecError(f"{came[name]}={out[name]!r} and {given}={value!r} are the same option; give one of them")
        out[name], came[name] = value, given
    return out


def choose_policy(options: dict[str, Any]) -> str:
    """The policy meant by options that name none: a threshold or a factor ask for theirs, steps for the schedule."""
    if "threshold" in options:
        return "fastdllm_threshold"
    if "factor" in options:
        return "fastdllm_factor"
    if options.get("steps") is not None:
        return "llada_low_confidence"
    return "fastdllm_threshold"


def settle(policy: Policy, options: dict[str, Any]) -> tuple[Policy, dict[str, Any]]:
    """`policy` with the parameters among `options`, and what was given but is not used (only `steps` may be).

    Raises TypeError for an option that the policy does not declare.
    """
    mine = {name: value for name, value in options.items() if name in policy.settings}
    rest = {name: value for name, value in options.items() if name not in policy.settings}
    unused: dict[str, Any] = {}
    if "steps" in rest:
        unused["steps"] = rest.pop("steps")
        if unused["steps"] is not None:
            warnings.warn(
                f"policy {policy.name} has no schedule: steps={unused['steps']} is not used", stacklevel=4
            )
    if rest:
        raise TypeError(
            f"policy {policy.name} has no option {', '.join(map(repr, sorted(rest)))}; "
            f"it has: {', '.join(policy.settings)}"
        )
    return policy.bind(**mine), unused
