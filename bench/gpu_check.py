"""Whether what was written for a GPU works on one, and how fast it is there: one table, and a file of JSON.

    python bench/gpu_check.py [--out gpu_check.json] [--device cuda] [--small] [--parts kernel graphs speculated big]

Under ten minutes on one H200, without anything that is not in the repository. Every part runs in a process of its own
with a limit of its own, so that one that fails, hangs or breaks the device leaves the others their turn; what a part
found before that is kept. `ok` says that something is as it has to be, `WRONG` that it is not; lines without either are
measurements. `--device cpu --small` is the smoke test: the same code on small shapes, with the CPU's tape in place of
CUDA graphs. Exits with 1 when something is wrong or a part did not end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # bench/ is no part of the package

#: Seconds for everything together.
ALL = 570


def measure(name: str, device: str, small: bool) -> None:
    """Run one part here; a line of JSON for every row as it is found, and one for what stopped it."""
    import torch

    from bench.gpu_parts import PARTS, Setting

    torch.manual_seed(0)
    try:
        for what, value, unit, ok in PARTS[name][0](Setting(device, small)):
            print(json.dumps({"what": what, "value": value, "unit": unit, "ok": ok}), flush=True)
    except Exception:
        print(json.dumps({"error": traceback.format_exc()}), flush=True)
        raise SystemExit(1) from None


def run_part(name: str, args: argparse.Namespace, limit: float) -> dict[str, Any]:
    """One part in a process of its own: its rows, how long it took, and what went wrong."""
    command = [sys.executable, str(Path(__file__)), "--device", args.device, "--measure", name]
    command += ["--small"] if args.small else []
    began = time.perf_counter()
    told: dict[str, Any] = {"part": name, "rows": [], "error": None}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        told["error"] = f"stopped after {limit:.0f} s"
    for line in out.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue  # something else that a library printed
        if "error" in found:
            told["error"] = found["error"]
        elif "what" in found:
            told["rows"].append(found)
    if process.returncode and not told["error"]:
        told["error"] = f"ended with {process.returncode}: {err[-2000:]}"
    told["seconds"] = time.perf_counter() - began
    return told


def shown(row: dict[str, Any]) -> str:
    """A line of the table."""
    value = row["value"]
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    mark = {True: "ok", False: "WRONG", None: ""}[row["ok"]]
    return f"  {row['what']:72} {text:>12} {row['unit']:20} {mark}".rstrip()


def report(args: argparse.Namespace) -> bool:
    """Run the parts, print and write; whether all is as it has to be."""
    import torch

    from bench.gpu_parts import PARTS

    there = torch.cuda.is_available()
    if args.device.startswith("cuda") and not there:
        raise SystemExit("there is no CUDA device here; --device cpu --small runs what a CPU can")
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    print(f"{name}; torch {torch.__version__}, CUDA {torch.version.cuda}; {'small shapes' if args.small else 'full'}")
    began = time.perf_counter()
    told: dict[str, Any] = {
        "device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "small": args.small, "parts": []
    }  # fmt: skip
    for part in args.parts or PARTS:
        left = ALL - (time.perf_counter() - began)
        found = run_part(part, args, max(10.0, min(PARTS[part][1], left)))
        told["parts"].append(found)
        print(f"{part} ({found['seconds']:.0f} s)")
        print("\n".join(map(shown, found["rows"])), flush=True)
        if found["error"]:
            print(f"  NOT FINISHED: {found['error'].strip().splitlines()[-1]}", flush=True)
        told["ok"] = good(told["parts"])
        args.out.write_text(json.dumps(told, indent=1))  # after every part: what is known stays known
    print(f"{'all as it has to be' if told['ok'] else 'SOMETHING IS WRONG'}; {args.out}")
    return told["ok"]


def good(parts: list[dict[str, Any]]) -> bool:
    """Whether every part ended, and nothing is wrong in any."""
    return all(part["error"] is None and all(row["ok"] is not False for row in part["rows"]) for part in parts)


def main() -> None:
    from bench.gpu_parts import PARTS

    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    reader.add_argument("--device", default="cuda")
    reader.add_argument("--small", action="store_true", help="small shapes, for a smoke test")
    reader.add_argument("--parts", nargs="+", choices=list(PARTS))
    reader.add_argument("--measure", choices=list(PARTS), help=argparse.SUPPRESS)
    args = reader.parse_args()
    if args.measure:
        measure(args.measure, args.device, args.small)
    elif not report(args):
        raise SystemExit(1)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
