"""Run by test_kernels.py in a process of its own, with Triton's interpreter or compiler: a JSON line on stdout."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch


def module_at(path: str) -> Any:
    """The module of kernels at `path`: the library's, or a copy with a flaw."""
    spec = importlib.util.spec_from_file_location("kernels_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def cases() -> list[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """Logits and allowed tokens: all types, odd sizes, ties, nothing allowed, numbers that are none."""
    g = torch.Generator().manual_seed(0)
    found: list[tuple[str, torch.Tensor, torch.Tensor | None]] = []
    for rows, size, dtype in (
        (3, 1000, torch.float32), (2, 2049, torch.bfloat16), (1, 33, torch.float16), (2, 257, torch.float32),
    ):  # fmt: skip
        logits = (torch.randn(rows, size, generator=g) * 4).to(dtype)
        keep = torch.rand(rows, size, generator=g) > 0.2
        found += [("plain", logits, None), ("allowed by row", logits, keep), ("allowed for all", logits, keep[0])]
    ties = torch.zeros(4, 700)
    ties[1, 300:] = 1.0
    ties[2, [10, 600]] = 5.0
    ties[3, 699] = 5.0
    found.append(("ties", ties, None))
    without = torch.ones(700, dtype=torch.bool)
    without[10] = False  # as the mask id is
    found.append(("a tie without its first", ties, without))
    sure = torch.full((1, 300), -90.0)
    sure[0, 7] = 30.0
    found.append(("sure", sure, None))
    wrong = torch.randn(4, 300, generator=g)
    wrong[0, 200], wrong[1, 3], wrong[2], wrong[3, :299] = math.nan, math.inf, -math.inf, -math.inf
    found.append(("no numbers", wrong, None))
    found.append(("nothing allowed", torch.randn(2, 300, generator=g), torch.zeros(300, dtype=torch.bool)))
    found.append(("no rows", torch.randn(0, 300, generator=g), None))
    return found


def compare(module: Any, oracle: Any) -> dict[str, Any]:
    """Where the kernel of `module` is off the float64 oracle: names of cases; and the largest errors elsewhere."""
    wrong, errors = set(), [0.0, 0.0, 0.0]
    for name, logits, allowed in cases():
        exact = oracle.finished(oracle.torch_parts(logits.double(), allowed))
        for programs, block in ((1, 128), (64, 256)):
            mine = module.finished(module.merged(module.kernel_parts(logits, allowed, programs=programs, block=block)))
            usable = ~exact.bad & ~exact.empty
            same = torch.equal(mine.token[usable], exact.token[usable])
            flags = torch.equal(mine.bad, exact.bad) and torch.equal(mine.empty, exact.empty)
            off = [0.0, 0.0, 0.0]
            if bool(usable.any()):
                pairs = [(a[usable], b[usable]) for a, b in zip(mine[1:4], exact[1:4], strict=True)]
                off = [float(((a - b).abs() / b.abs().clamp(min=1)).max()) for a, b in pairs]
            if not (same and flags and all(part < 2e-6 for part in off)):
                wrong.add(name)
            else:
                errors = [max(pair) for pair in zip(errors, off, strict=True)]
    return {"wrong": sorted(wrong), "errors": errors}


def compiled(module: Any) -> dict[str, Any]:
    """Registers and spills of the kernel for sm_90, from ptxas, by type of logits and with a mask or without."""
    import re
    import subprocess
    import tempfile

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    places = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    tools = [places / name for name in ("ptxas-blackwell", "ptxas") if (places / name).exists()]
    told = {}
    for dtype in ("bf16", "fp32"):
        for masked in (False, True):
            signature = {"logits": f"*{dtype}", "allowed": "*u8" if masked else f"*{dtype}"}
            signature |= {"tokens": "*i64", "bads": "*i8"}
            signature |= dict.fromkeys(("tops", "others", "seconds", "moments"), "*fp32")
            signature |= dict.fromkeys(("size", "width", "stride", "mask_stride"), "i32")
            signature |= {"HAS_MASK": "constexpr", "BLOCK": "constexpr"}
            fn = module.kernel()
            signature = {name: signature[name] for name in fn.arg_names}
            source = ASTSource(fn=fn, signature=signature, constexprs={"HAS_MASK": masked, "BLOCK": module.BLOCK})
            made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
            with tempfile.TemporaryDirectory() as folder:
                ptx = Path(folder) / "kernel.ptx"
                ptx.write_text(made.asm["ptx"])
                for tool in tools:
                    command = [str(tool), "-v", "-arch=sm_90a", str(ptx), "-o", str(Path(folder) / "kernel.cubin")]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    if done.returncode == 0:
                        report = done.stdout + done.stderr
                        spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", report))
                        told[f"{dtype}{', mask' if masked else ''}"] = {
                            "registers": int(re.findall(r"Used (\d+) registers", report)[0]), "spilled_bytes": spills,
                        }  # fmt: skip
                        break
    return told


if __name__ == "__main__":
    library = str(Path(__file__).parents[2] / "trajspec" / "runtime" / "kernels" / "score.py")
    oracle = module_at(library)
    if sys.argv[1] == "compile":
        print(json.dumps(compiled(oracle)))
    else:
        print(json.dumps(compare(module_at(sys.argv[2] if len(sys.argv) > 2 else library), oracle)))
