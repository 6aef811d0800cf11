"""What leaving the base's trajectory buys and costs on the bundled text model, with the causes told apart.

    python bench/tiny_drift.py --tasks arith --count 1000

The base, its exact speculation, and approximate settings, one cause switched on at a time and then together, decode the
same unseen problems. `times`: tokens a call against the base's; `change`: accuracy minus the base's on the same
problems, with a 95% interval (paired: only problems that one of both gets right count); `off` and `stale`: commits a
problem that the base would not have made, and base steps under an old cache; `TV`: the summed bound a problem;
`altered`: problems whose output is not the base's.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/ is no part of the package

import trajspec as ts
from bench.tiny_ahead import chats, decode_all, options, per_call, point_of_comparison
from tools import tiny_data

SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "relaxed .99": {"accept": "relaxed", "strata": (0.99,)},
    "relaxed .9": {"accept": "relaxed", "strata": (0.9,)},
    "relaxed .7": {"accept": "relaxed", "strata": (0.7,)},
    "relaxed .9 .7": {"accept": "relaxed", "strata": (0.9, 0.7)},
    "subset": {"accept": "subset"},
    "cheap": {"lookahead": "cheap"},
    "relaxed .9 cheap": {"accept": "relaxed", "strata": (0.9,), "lookahead": "cheap"},
}
HEAD = (
    f"{'setting':17} {'calls':>6} {'tokens/call':>12} {'times':>6} {'right':>7} {'change':>7} {'95% interval':>18} "
    f"{'off':>6} {'stale':>6} {'TV':>6} {'altered':>8}"
)


def paired(mine: Sequence[bool], theirs: Sequence[bool]) -> tuple[float, float, float]:
    """The difference of two accuracies on the same problems, with its 95% interval.

    Source: Agresti and Min (2005): the normal interval after half a problem is added to each of the four cells.
    """
    count = len(mine)
    gained = sum(a and not b for a, b in zip(mine, theirs, strict=True))
    lost = sum(b and not a for a, b in zip(mine, theirs, strict=True))
    more, less, all_of = gained + 0.5, lost + 0.5, count + 2
    middle = (more - less) / all_of
    spread = 1.96 * math.sqrt(more + less - (more - less) ** 2 / all_of) / all_of
    return (gained - lost) / count, middle - spread, middle + spread


def line(name: str, runs: Sequence[Any], base: Sequence[Any], problems: Sequence[tiny_data.Item]) -> str:
    """One line of the table."""
    count = len(runs)
    right, before = (
        [tiny_data.is_correct(problem, run.text) for problem, run in zip(problems, part, strict=True)]
        for part in (runs, base)
    )
    change, low, high = paired(right, before)
    off, stale, tv = (sum(run.drift[key] for run in runs) / count for key in ("off_base", "stale", "sum_tv"))
    altered = sum(mine.token_ids != theirs.token_ids for mine, theirs in zip(runs, base, strict=True)) / count
    return (
        f"{name:17} {sum(run.calls for run in runs) / count:>6.2f} {per_call(runs):>12.2f} "
        f"{per_call(runs) / per_call(base):>6.2f} {sum(right) / count:>7.1%} {change:>+7.1%} "
        f"{f'{low:+.1%} - {high:+.1%}':>18} {off:>6.2f} {stale:>6.2f} {tv:>6.2f} {altered:>8.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="tiny", help="a name or folder")
    parser.add_argument("--tasks", nargs="+", default=["arith"], choices=sorted(tiny_data.TASKS))
    parser.add_argument("--count", type=int, default=100, help="unseen problems a task")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--thresholds", nargs="+", type=float, help="default: 2.5 to 3 tokens a call, and 0.9")
    parser.add_argument("--draft", default="tree")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rows", type=int, default=50, help="rows a batch")
    args = parser.parse_args()
    began, model = time.perf_counter(), ts.load_model(args.model)
    print(
        f"{args.model}, {args.count} unseen problems a task, dual view, {args.draft} with {args.nodes} nodes; torch "
        f"{torch.__version__}, threads: {torch.get_num_threads()}"
    )
    for task in args.tasks:
        problems = [tiny_data.item(task, "test", number) for number in range(args.count)]
        prompts = chats(task, args.count)
        found = args.thresholds or (point_of_comparison(model, task, min(args.count, 50), args.rows), 0.9)
        for threshold in found:
            told = options(task, threshold)
            base = decode_all(model, prompts, args.rows, **told)
            print(f"\n{task}, threshold {threshold:g}\n{HEAD}\n{line('base', base, base, problems)}", flush=True)
            for name in args.settings:
                runs = decode_all(
                    model, prompts, args.rows, **told, draft=args.draft, nodes=args.nodes, **SETTINGS[name]
                )
                print(line(name, runs, base, problems), flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
