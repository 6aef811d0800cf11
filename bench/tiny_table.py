"""Accuracy of the bundled text model against calls, by task, view and rule, as one table.

    python bench/tiny_table.py tiny --count 1000

Every row decodes the same unseen problems. `calls` and `positions` are means a problem; the interval is Wilson's, 95%.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/ is no part of the package

import trajspec as ts
from tools import tiny_data
from tools.evaluate import interval

VIEWS = ("full", "prefix", "dual")
HEAD = (
    f"{'task':6} {'view':7} {'rule':11} {'exact':>7} {'95% interval':>16} {'calls':>6} "
    f"{'tokens/call':>12} {'positions':>10}"
)


def measure(
    model: object, problems: list[tiny_data.Item], view: str, threshold: float | None, args: argparse.Namespace
) -> dict:
    """Decode all problems one way; counts of what was right and what it cost."""
    rule = {"policy": "llada_low_confidence"} if threshold is None else {"threshold": threshold}
    options = {"gen_length": args.gen_length, "block_length": args.block_length, "cache": view, "keep_path": False}
    right = calls = tokens = positions = 0
    for first in range(0, len(problems), args.rows):
        group = problems[first : first + args.rows]
        prompts = [[{"role": "user", "content": problem.prompt}] for problem in group]
        result = ts.decode(model, prompts, **options, **rule)
        for problem, row in zip(group, result, strict=True):
            right += tiny_data.is_correct(problem, row.text)
            calls, tokens, positions = calls + row.calls, tokens + row.answer_tokens, positions + row.positions
    low, high = interval(right, len(problems))
    return {
        "right": right, "count": len(problems), "low": low, "high": high, "calls": calls / len(problems),
        "tokens_per_call": tokens / calls, "positions": positions / len(problems),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a name or folder")
    parser.add_argument("--tasks", nargs="+", default=sorted(tiny_data.TASKS), choices=sorted(tiny_data.TASKS))
    parser.add_argument("--views", nargs="+", default=VIEWS, choices=VIEWS)
    parser.add_argument("--thresholds", nargs="+", type=float, default=(0.99, 0.9, 0.7))
    parser.add_argument("--count", type=int, default=1000, help="unseen problems a task")
    parser.add_argument("--gen-length", type=int, default=48)
    parser.add_argument("--block-length", type=int, default=32)
    parser.add_argument("--rows", type=int, default=50, help="rows a batch")
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    args = parser.parse_args()
    model = ts.load_model(args.model)
    threads = torch.get_num_threads()
    print(f"{args.model}, {args.count} unseen problems a task, torch {torch.__version__}, threads: {threads}")
    print(HEAD, flush=True)
    found = []
    for task in args.tasks:
        problems = [tiny_data.item(task, "test", index) for index in range(args.count)]
        for view in args.views:
            for threshold in (None, *args.thresholds):
                began = time.perf_counter()
                row = measure(model, problems, view, threshold, args)
                rule = "one a call" if threshold is None else f"{threshold:g}"
                span = f"{row['low']:.1%} - {row['high']:.1%}"
                print(
                    f"{task:6} {view:7} {rule:11} {row['right'] / row['count']:>7.1%} {span:>16} {row['calls']:>6.1f} "
                    f"{row['tokens_per_call']:>12.2f} {row['positions']:>10.0f}",
                    flush=True,
                )
                found.append({"task": task, "view": view, "rule": rule, "seconds": time.perf_counter() - began} | row)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
