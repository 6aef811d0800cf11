"""What test_kernels.py has done in processes of their own: whether Triton interprets is settled when it is imported."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch


@cache
def module_at(path: str) -> Any:
    """The module of kernels at `path`: the library's, or a copy with a flaw."""
    spec = importlib.util.spec_from_file_location(f"kernels_{abs(hash(path))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def interpreted(path: str, logits: np.ndarray, dtype: str, wide: bool, *rest: Any) -> list[np.ndarray]:
    """What the kernels at `path` give for `logits` as `dtype`, by Triton's interpreter; the rest as for `launch`.

    `wide`: as a part of a larger tensor, as sliced logits are.
    """
    from trajspec.runtime.kernels.score import launch

    module = module_at(path)
    assert type(module.score_parts).__name__ == "InterpretedFunction"
    given = torch.tensor(logits).to(getattr(torch, dtype))
    if wide:
        given = torch.cat([torch.full_like(given[:, :1], 1e4), given, torch.full_like(given, 1e4)], dim=1)
        given = given[:, 1 : logits.shape[1] + 1]
    mask_id, allowed, *cut = rest
    plane = None if allowed is None else torch.tensor(allowed)
    return [part.numpy() for part in launch(module, given, mask_id, plane, True, True, *cut)]


def compiled(path: str, kernel: str, dtype: str, asked: bool, plane: bool) -> dict[str, Any] | None:
    """Registers, bytes spilled and PTX of a kernel as it is launched on sm_90; None where there is no ptxas."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from trajspec.runtime.kernels.score import BLOCK, PART

    fn = getattr(module_at(path), kernel)
    constants = {"MARGIN": asked, "ENTROPY": asked, "PLANE": plane, "PART": PART, "BLOCK": BLOCK, "PARTS": 16}
    types = {
        "logits": f"*{dtype}", "plane": "*i1", "reals": "*fp32", "whole": "*i32", "token_out": "*i64",
        "token2_out": "*i64", "bad_out": "*i1", "empty_out": "*i1",
    }  # fmt: skip
    signature = {}
    for name in fn.arg_names:
        known = "*fp32" if name.endswith("_out") else "i32"
        signature[name] = "constexpr" if name.isupper() else types.get(name, known)
    # As the launcher tells it: tensors begin at, and both vocabularies and their strides are, multiples of 16.
    even = [at for at, (name, of) in enumerate(signature.items()) if of[0] == "*" or name in ("size", "stride", "step")]
    made = triton.compile(
        ASTSource(
            fn=fn, signature=signature, constexprs={name: constants[name] for name in signature if name.isupper()},
            attrs={(at,): [["tt.divisibility", 16]] for at in even},
        ),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 8 if kernel == "score_parts" else 1, "enable_fp_fusion": True},
    )  # fmt: skip
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernel.ptx"
        text.write_text(made.asm["ptx"])
        # The one that reads the newest PTX first.
        for tool in (tools / "ptxas-blackwell", tools / "ptxas"):
            if not tool.exists():
                continue
            command = [str(tool), "-v", "-arch=sm_90a", str(text), "-o", str(Path(folder) / "kernel.cubin")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                report = done.stdout + done.stderr
                return {
                    "registers": int(re.findall(r"Used (\d+) registers", report)[0]),
                    "spilled": sum(int(count) for count in re.findall(r"(\d+) bytes spill", report)),
                    "report": report, "ptx": made.asm["ptx"],
                }  # fmt: skip
            raise AssertionError(f"{tool.name} refused the kernel: {done.stderr}")
    return None
