"""How long decoding takes: the published loops and this library, side by side in one run, warm.

    python bench/speed.py [--count 8] [--runs 7] [--threads 1] [--json FILE]

Every method decodes the same unseen problems with `tiny`, one at a time, in every one of `--runs` passes; a figure is
the median over the passes, with the spread between the first and third quartile, and the ratio is the median of the
ratios of the same pass. Published loops do not end at EOS, as published; `same` says that the answers up to EOS are
those of the policy alone. Seconds are wall time without compiling, which is told apart; cpu is process time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/ is no part of the package

import trajspec as ts
from bench.published_loops import fast_dllm, vanilla
from tools import tiny_data

GEN, BLOCK = 48, 32
HEAD = (
    f"{'':26} {'calls':>6} {'rows':>6} {'positions':>9} {'tok/call':>8} {'ms/token':>8} {'spread':>13} {'ratio':>6} "
    "same"
)


def problems(count: int) -> list[list[dict[str, str]]]:
    """Unseen problems of all tasks in turn."""
    tasks = sorted(tiny_data.TASKS)
    found = [tiny_data.item(tasks[n % len(tasks)], "test", n // len(tasks)).prompt for n in range(count)]
    return [[{"role": "user", "content": text}] for text in found]


def answer(ids: list[int], eos: tuple[int, ...]) -> list[int]:
    """The tokens up to the first end."""
    ends = [place for place, token in enumerate(ids) if token in eos]
    return ids[: ends[0]] if ends else ids


class Method:
    """One way to decode: `run(prompt)` gives the answer, calls, rows, positions and seconds of compiling."""

    def __init__(self, name: str, run: Callable[[Any], tuple[list[int], int, int, int, float]]) -> None:
        self.name, self.run = name, run
        self.seconds: list[float] = []
        self.compiling = 0.0
        self.cost = [0, 0, 0]
        self.answers: list[list[int]] = []

    def once(self, prompts: list[Any], keep: bool) -> None:
        """One pass over the prompts."""
        began = time.perf_counter()
        found = [self.run(prompt) for prompt in prompts]
        took = time.perf_counter() - began
        compiling = sum(one[4] for one in found)
        self.compiling += compiling
        self.answers = [one[0] for one in found]
        self.cost = [sum(one[part] for one in found) for part in (1, 2, 3)]
        if keep:
            self.seconds.append(took - compiling)


def published(model: Any, loop: Any, **options: Any) -> Any:
    """A published loop as a method's run."""

    def run(prompt: Any) -> tuple[list[int], int, int, int, float]:
        ids = model.encode_prompt(model.chat(prompt), GEN).tokens[:-GEN]
        done = loop(model, ids, GEN, BLOCK, **options)
        return answer(done.x[0, len(ids) :].tolist(), model.eos_ids), done.calls, done.calls, done.positions, 0.0

    return run


def ours(model: Any, **options: Any) -> Any:
    """`decode` as a method's run."""

    def run(prompt: Any) -> tuple[list[int], int, int, int, float]:
        row = ts.decode(model, [prompt], gen_length=GEN, block_length=BLOCK, keep_path=False, **options)[0]
        return answer(row.token_ids, model.eos_ids), row.calls, row.rows, row.positions, row.compile_seconds

    return run


def methods(model: Any, threshold: float, compiles: bool) -> list[Method]:
    """Every way to decode at one threshold; the policy alone, eager, is the one that answers are compared with."""
    dual = {"threshold": threshold, "cache": "dual"}
    found = [
        Method("LLaDA, one a call", published(model, vanilla)),
        Method("Fast-dLLM none", published(model, fast_dllm, threshold=threshold, cache="none")),
        Method("Fast-dLLM prefix", published(model, fast_dllm, threshold=threshold, cache="prefix")),
        Method("Fast-dLLM dual", published(model, fast_dllm, threshold=threshold, cache="dual")),
        Method("trajspec dual", ours(model, **dual)),
        Method("  tree, 8 nodes", ours(model, draft="tree", **dual)),
        Method("  auto", ours(model, draft="auto", **dual)),
    ]
    if compiles:
        found += [
            Method("  compiled", ours(model, compile=True, **dual)),
            Method("  compiled, tree, 8 nodes", ours(model, compile=True, draft="tree", **dual)),
            Method("  compiled, auto", ours(model, compile=True, draft="auto", **dual)),
        ]
    return found


def table(found: list[Method], against: Method, base: Method) -> list[dict[str, Any]]:
    """Print the table of one threshold; its numbers."""
    print(HEAD)
    told = []
    for method in found:
        tokens = sum(len(part) for part in method.answers)
        per_token = [1e3 * seconds / tokens for seconds in method.seconds]
        low, middle, high = statistics.quantiles(per_token, n=4)
        ratio = statistics.median(a / b for a, b in zip(against.seconds, method.seconds, strict=True))
        same = sum(mine == theirs for mine, theirs in zip(method.answers, base.answers, strict=True))
        calls, rows, positions = method.cost
        compiling = f"  ({method.compiling:.0f} s to compile)" if method.compiling else ""
        print(
            f"{method.name:26} {calls:>6} {rows:>6} {positions:>9} {tokens / calls:>8.2f} {middle:>8.2f} "
            f"{f'{low:.2f} - {high:.2f}':>13} {ratio:>6.2f} {same} of {len(base.answers)}{compiling}"
        )
        told.append(
            {
                "method": method.name.strip(), "calls": calls, "rows": rows, "positions": positions, "tokens": tokens,
                "ms_per_token": middle, "quartiles": [low, high], "ratio": ratio, "same": same,
                "compile_seconds": method.compiling,
            }
        )  # fmt: skip
    return told


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
    prompts = problems(args.count)
    print(
        f"tiny, {args.count} unseen problems, {GEN} tokens, blocks of {BLOCK}, float32, torch {torch.__version__}, "
        f"threads {args.threads}, {args.runs} passes; ratio: Fast-dLLM dual = 1\n"
    )
    told = {}
    for threshold in args.thresholds:
        found = methods(model, threshold, not args.no_compile)
        for method in found:
            for _ in range(2):  # compiles and warms up
                method.once(prompts, keep=False)
        for _ in range(args.runs):
            for method in found:
                method.once(prompts, keep=True)
        print(f"threshold {threshold}")
        named = {method.name: method for method in found}
        told[str(threshold)] = table(found, named["Fast-dLLM dual"], named["trajspec dual"])
        print(flush=True)
    if args.json:
        args.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
