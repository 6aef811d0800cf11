"""trajspec: a compiler for the decoding policies of diffusion language models."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

_PUBLIC = {
    "Canvas": "trajspec.ir", "Plan": "trajspec.ir", "Policy": "trajspec.ir", "TrajspecError": "trajspec.ir",
    "canvas": "trajspec.ir", "given": "trajspec.ir", "history": "trajspec.ir", "op": "trajspec.ir",
    "parse": "trajspec.ir", "policy": "trajspec.ir", "query": "trajspec.ir", "run": "trajspec.ir",
    "policies": "trajspec.policies",
    "decode": "trajspec.decoding", "infill": "trajspec.decoding", "stream": "trajspec.decoding",
    "drafter": "trajspec.ir.drafter", "trajectories": "trajspec.ir.ahead", "Drafter": "trajspec.ir.drafter",
    "calibrate": "trajspec.calibration", "load_drafter": "trajspec.calibration",
    "compare_calls": "trajspec.strict", "speculate": "trajspec.passes", "certify": "trajspec.exact.certificate",
    "drafted_by": "trajspec.completion.generate", "load_target": "trajspec.completion",
    "rule": "trajspec.passes", "optimise": "trajspec.passes", "check_rule": "trajspec.exact.rule_check",
    "check": "trajspec.exact.plan_check", "step_source": "trajspec.runtime.lower",
    "load_model": "trajspec.runtime.models",
}  # fmt: skip

__version__ = "0.1.0"
__all__ = [*sorted(_PUBLIC), "__version__"]


def __getattr__(name: str) -> Any:
    # Names are looked up when they are used: `import trajspec` must not import torch.
    if name == "policies":
        return import_module("trajspec.policies")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    from .ir import OPS

    op = OPS.get(name)
    if op is None or op.infix or op.hidden:
        close = get_close_matches(name, __dir__(), n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise AttributeError(f"module 'trajspec' has no attribute {name!r}{hint} dir(trajspec) lists what there is")
    return op


def __dir__() -> list[str]:
    from .ir import OPS

    return sorted([*__all__, *(name for name, op in OPS.items() if not op.infix and not op.hidden)])
