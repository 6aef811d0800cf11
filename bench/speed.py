"""How long decoding takes: the published loops and this library, side by side in one run, warm.

    python bench/speed.py [--count 9] [--runs 7] [--threads 1] [--thresholds 0.9999 0.9] [--json FILE]

Every method decodes the same unseen problems with `tiny`, one at a time, in every one of `--runs` passes; a figure is
the median over the passes, with the first and third quartile, and the ratio is the median of the ratios of the same
pass. Published loops do not end at EOS, as published; `same` says that the answers up to EOS are those of the policy
alone. Seconds are wall time without compiling, which is told apart. `trajspec bench` is this for prompts of your own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/ is no part of the package

import trajspec as ts
from tools import tiny_data
from trajspec.benchmark import compare, problems_of

GEN, BLOCK = 48, 32


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--count", type=int, default=9, help="problems (default: 9)")
    reader.add_argument("--runs", type=int, default=7, help="passes over them (default: 7)")
    reader.add_argument("--threads", type=int, default=1)
    reader.add_argument("--thresholds", type=float, nargs="+", default=(0.9999, 0.9))
    reader.add_argument("--no-compile", action="store_true", help="leave compiled steps out")
    reader.add_argument("--json", type=Path, help="write the numbers there as well")
    args = reader.parse_args()
    torch.set_num_threads(args.threads)
    model = ts.load_model("tiny")
    tasks = sorted(tiny_data.TASKS)
    texts = [tiny_data.item(tasks[n % len(tasks)], "test", n // len(tasks)).prompt for n in range(args.count)]
    problems = problems_of(model, [[{"role": "user", "content": text}] for text in texts], GEN, infill=False)
    print(
        f"tiny, {args.count} unseen problems, {GEN} tokens, blocks of {BLOCK}, float32, torch {torch.__version__}, "
        f"threads {args.threads}, {args.runs} passes"
    )
    told = {}
    for threshold in args.thresholds:
        print(f"\nthreshold {threshold}", flush=True)
        told[str(threshold)] = compare(
            model, problems, gen_length=GEN, block_length=BLOCK, threshold=threshold, runs=args.runs,
            compiles=not args.no_compile,
        )  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
