"""Option names: what people type in the dialects of the field, and the one name each has here."""

from __future__ import annotations

import difflib
import math
import sys
import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

from .ir import Policy, TrajspecError
from .ir.errors import OptionError

ALIASES: dict[str, tuple[str, ...]] = {
    "gen_length": ("max_new_tokens", "max_gen_length", "max_gen_toks", "max_tokens", "gen_len"),
    "steps": (
        "diffusion_steps", "num_denoising_steps", "denoising_steps", "num_inference_steps", "max_denoising_steps",
    ),
    "block_length": ("block_size", "canvas_length", "dllm_block_length"),
    "threshold": (
        "confidence_threshold", "dynamic_threshold", "accept_threshold", "decoded_token_threshold",
        "commit_confidence_threshold", "dllm_confidence_threshold",
    ),
    "policy": (
        "remasking", "remasking_strategy", "alg", "dllm_unmasking_strategy", "dllm_algorithm", "diffusion_algorithm",
        "decoding_strategy", "selection_policy",
    ),
    "alg_temp": ("position_temperature",),
    "top_p": ("topp",),
    "top_k": ("topk",),
    "eos_id": ("eos_token_id", "stop_token"),
    "mask_id": ("mask_token_id",),
    "stop": ("stop_words", "stop_strings"),
    "dtype": ("torch_dtype",),
}  # fmt: skip
_CANONICAL = {alias: name for name, aliases in ALIASES.items() for alias in aliases}


def canonical(options: Mapping[str, Any], declared: frozenset[str] = frozenset()) -> dict[str, Any]:
    """`options` under the library's own names; a name in `declared` (a policy's parameters) stays as it is.

    Raises TrajspecError when one thing is given under two names.
    """
    out: dict[str, Any] = {}
    came: dict[str, str] = {}
    for given, value in options.items():
        name = given if given in declared else _CANONICAL.get(given, given)
        if name in out:
            raise TrajspecError(
                f"{came[name]}={out[name]!r} and {given}={value!r} are the same option; give one of them"
            )
        out[name], came[name] = value, given
    return out


def flag(options: dict[str, Any], name: str, default: bool) -> bool:
    """The option `name`, taken out of `options`; None is the default. Raises TrajspecError unless True or False."""
    given = options.pop(name, None)
    if given is None:
        return default
    if type(given).__name__ not in ("bool", "bool_"):  # numpy's own counts
        raise TrajspecError(f"{name} is {given!r:.80}, expected True or False")
    return bool(given)


def _check_numbers(policy: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """TrajspecError for numbers that plans would take and make nonsense of, or that Python would trip over."""
    for name in ("alg_temp", "cfg_scale"):
        value, default = settings.get(name), defaults.get(name)
        if name not in settings or not isinstance(default, (int, float)) or isinstance(default, bool):
            continue
        least = 0 if name == "alg_temp" else -math.inf
        fits = (
            isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and float(value) >= least
        )
        if not fits:
            wanted = (
                "a number from 0 up; 0 is without noise" if name == "alg_temp" else "a number; 0 is without guidance"
            )
            raise TrajspecError(f"{name} of {policy} is {value!r:.80}, expected {wanted}")


_VIEWS = {
    "full": "full", "none": "full", "off": "full", "prefix": "prefix", "dual": "dual",
    "block_causal": "block_causal", "blockcausal": "block_causal", "block": "block_causal",
}  # fmt: skip


def choose_view(options: dict[str, Any]) -> str:
    """The view that `cache=`, or Fast-dLLM's `use_cache=` and `dual_cache=`, ask for; they are taken out of `options`.

    True means prefix, or dual beside dual_cache=True. Raises TrajspecError for a value nobody knows, and for options
    that ask for different views.
    """
    names = [name for name in ("cache", "use_cache", "dual_cache") if name in options]
    given = {name: value for name in names if (value := options.pop(name)) is not None}
    dual = given.get("dual_cache")
    if dual is not None and not isinstance(dual, bool):
        raise TrajspecError(f"dual_cache is {dual!r}, expected True or False; cache= takes the name of a view")
    views = {"dual"} if dual else set()
    for name, value in given.items():
        key = value.lower().replace("-", "_") if isinstance(value, str) else None
        if name == "dual_cache":
            continue
        if isinstance(value, bool):
            views.add(("dual" if dual else "prefix") if value else "full")
        elif key in _VIEWS:
            views.add(_VIEWS[key])
        else:
            raise TrajspecError(f"{name} is {value!r}, expected full, prefix, dual or block_causal")
    if len(views) > 1 or (dual is False and views == {"dual"}):
        raise TrajspecError(f"{', '.join(f'{k}={v!r}' for k, v in given.items())} ask for different views; give one")
    return views.pop() if views else "full"


def choose_policy(name: str | None, options: dict[str, Any]) -> str:
    """The policy that `name` (or none) and the other options mean; None for a threshold or factor is dropped.

    Without a name a threshold or a factor ask for theirs, and steps for the schedule. "low_confidence" beside a
    threshold or a factor is how Fast-dLLM's callers write its rules.
    """
    for unset in ("threshold", "factor"):
        if unset in options and options[unset] is None:
            del options[unset]
    if name is not None and name != "low_confidence":
        return name
    if "threshold" in options:
        return "fastdllm_threshold"
    if "factor" in options:
        return "fastdllm_factor"
    return "llada_low_confidence" if name or options.get("steps") is not None else "fastdllm_threshold"


def settle(policy: Policy, options: dict[str, Any]) -> tuple[Policy, dict[str, Any]]:
    """`policy` with the parameters among `options`, and what was given but is not used (only `steps` may be).

    Unused steps are warned about once. Raises TypeError for an option that the policy does not declare, and
    TrajspecError for an `alg_temp` below 0 and for other numbers that are none.
    """
    mine = {name: value for name, value in options.items() if name in policy.settings}
    rest = {name: value for name, value in options.items() if name not in policy.settings}
    _check_numbers(policy.name, mine, policy.settings)
    steps = rest.pop("steps", None)
    unused = {} if steps is None else {"steps": steps}
    if rest:
        close = difflib.get_close_matches(next(iter(rest)), [*policy.settings, *_CANONICAL, *ALIASES], n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise OptionError(
            f"policy {policy.name} has no option {', '.join(map(repr, sorted(rest)))}; "
            f"it has: {', '.join(policy.settings)}{hint}"
        )
    if unused:
        warnings.warn(f"policy {policy.name} has no schedule: steps={steps} is not used", stacklevel=_outside())
    return policy.bind(**mine), unused


def _outside() -> int:
    """The stacklevel of the line outside this package that asked, for a warning of the caller's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    return level
