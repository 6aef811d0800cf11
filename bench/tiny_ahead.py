"""How many calls speculation saves on the bundled text model, with its output unchanged, by task, drafter and nodes.

    python bench/tiny_ahead.py --count 200

Every row decodes the same unseen problems in the dual view and is compared with the base token by token, and call by
call: an output that differs, or a prompt that takes more calls than its base, ends the program with an error. `fewer`
are calls the base needed and the run did not; `worst`: the least of that over single prompts. Thresholds: 0.9, and the
one at which the base writes 2.5 to 3 tokens a call, found on the first problems.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/ is no part of the package

import trajspec as ts
from tools import tiny_data

BLOCK = 32
LENGTHS = {"sort": 32}
GRID = (0.99, 0.997, 0.999, 0.9997, 0.9999, 0.99997, 0.99999)
GOAL, NODES, WANTED = 2.75, 8, 0.4
HEAD = (
    f"{'drafter':8} {'nodes':>5} {'lookahead':>9} {'calls':>6} {'rows':>6} {'positions':>10} {'tokens/call':>12} "
    f"{'fewer':>6} {'worst':>7} {'same output':>12}"
)


def chats(task: str, count: int, split: str = "test", first: int = 0) -> list[list[dict[str, str]]]:
    """Prompts of `count` problems of a task; those of the split `test` were never trained on."""
    return [[{"role": "user", "content": tiny_data.item(task, split, first + n).prompt}] for n in range(count)]


def options(task: str, threshold: float) -> dict[str, Any]:
    """What a base run of a task is given."""
    return {"gen_length": LENGTHS.get(task, 48), "block_length": BLOCK, "cache": "dual", "threshold": threshold}


def decode_all(model: Any, prompts: Sequence[Any], rows: int, **told: Any) -> list[Any]:
    """One result row a prompt, decoded in batches of `rows`."""
    found: list[Any] = []
    for first in range(0, len(prompts), rows):
        found += list(ts.decode(model, prompts[first : first + rows], keep_path=False, **told))
    return found


def per_call(runs: Sequence[Any]) -> float:
    """Answer tokens a call, over all rows."""
    return sum(run.answer_tokens for run in runs) / sum(run.calls for run in runs)


def point_of_comparison(model: Any, task: str, count: int, rows: int) -> float:
    """The threshold of the grid at which the base comes closest to 2.75 tokens a call."""
    near: tuple[float, float] | None = None
    for threshold in GRID:
        rate = per_call(decode_all(model, chats(task, count), rows, **options(task, threshold)))
        if near is None or abs(rate - GOAL) < near[0]:
            near = (abs(rate - GOAL), threshold)
        if rate < GOAL:
            break
    assert near is not None
    return near[1]


def line(name: str, nodes: object, lookahead: str, runs: Sequence[Any], base: Sequence[Any]) -> str:
    """One line of the table. AssertionError for an output that differs from the base's, and for a call too many."""
    count = len(runs)
    for number, (mine, theirs) in enumerate(zip(runs, base, strict=True)):
        assert mine.token_ids == theirs.token_ids, f"{name}, {nodes} nodes: problem {number} ends differently"
        assert mine.calls <= theirs.calls, (
            f"{name}, {nodes} nodes: problem {number} took {mine.calls} calls, {theirs.calls}"
        )
    calls, before = (sum(run.calls for run in part) for part in (runs, base))
    worst = min(theirs.calls - mine.calls for mine, theirs in zip(runs, base, strict=True))
    rows, positions = sum(run.rows for run in runs) / count, sum(run.positions for run in runs) / count
    return (
        f"{name:8} {nodes!s:>5} {lookahead:>9} {calls / count:>6.2f} {rows:>6.1f} {positions:>10.0f} "
        f"{per_call(runs):>12.2f} {1 - calls / before:>6.1%} {worst:>7} {f'{count} of {count}':>12}"
    )


def compare(model: Any, task: str, threshold: float, args: argparse.Namespace) -> None:
    """Print the table of one task at one threshold."""
    prompts, told = chats(task, args.count), options(task, threshold)
    base = decode_all(model, prompts, args.rows, **told)
    print(f"\n{task}, threshold {threshold:g}: the base writes {per_call(base):.2f} tokens a call\n{HEAD}")
    print(line("base", "", "", base, base), flush=True)
    drafters: dict[str, Any] = {name: name for name in args.drafters if name != "ranks"}
    if "ranks" in args.drafters:
        # Of the training split: what is counted on the problems themselves would be no forecast.
        drafters["ranks"] = ts.calibrate(model, chats(task, args.calibrate, "train"), **told)
    best: float | None = None
    for lookahead in args.lookaheads:
        for nodes in args.nodes:
            for name, drafter in drafters.items():
                runs = decode_all(
                    model, prompts, args.rows, **told, draft=drafter, nodes=nodes, lookahead=lookahead
                )  # fmt: skip
                print(line(name, nodes, lookahead, runs, base), flush=True)
                if nodes == NODES and lookahead == "exact":
                    best = max(best or 0.0, 1 - sum(run.calls for run in runs) / sum(run.calls for run in base))
    least = sum(1 + (run.answer_tokens_with_eos > BLOCK) for run in base)
    bound = 1 - least / sum(run.calls for run in base)
    if best is not None:
        verdict = "reached" if best >= WANTED else "missed"
        print(
            f"{WANTED:.0%} fewer calls with {NODES} nodes and exact look-ahead: {verdict}, {best:.1%} at best"
            + (f"; one call a block would be {bound:.1%} fewer" if best < WANTED else "")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="tiny", help="a name or folder")
    parser.add_argument("--tasks", nargs="+", default=sorted(tiny_data.TASKS), choices=sorted(tiny_data.TASKS))
    parser.add_argument("--count", type=int, default=200, help="unseen problems a task")
    parser.add_argument("--nodes", nargs="+", type=int, default=(4, 8, 16))
    parser.add_argument("--drafters", nargs="+", default=("chain", "tree", "ranks"), help="ranks: calibrated first")
    parser.add_argument("--lookaheads", nargs="+", default=("none", "exact"), choices=("none", "exact"))
    parser.add_argument("--thresholds", nargs="+", type=float, help="default: 0.9 and the point of comparison")
    parser.add_argument("--calibrate", type=int, default=50, help="training problems that ranks is calibrated on")
    parser.add_argument("--rows", type=int, default=50, help="rows a batch")
    args = parser.parse_args()
    began, model = time.perf_counter(), ts.load_model(args.model)
    print(
        f"{args.model}, {args.count} unseen problems a task, dual view, blocks of {BLOCK}; torch {torch.__version__}, "
        f"threads: {torch.get_num_threads()}; calls, rows and positions are means a problem"
    )
    for task in args.tasks:
        for threshold in args.thresholds or (0.9, point_of_comparison(model, task, min(args.count, 50), args.rows)):
            compare(model, task, threshold, args)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
