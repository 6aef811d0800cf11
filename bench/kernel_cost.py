"""What finding tokens and confidences costs: one pass beside the published loops' selection, and on a GPU the kernel.

    python bench/kernel_cost.py [--runs 7] [--threads 1] [--vocabulary 126464] [--rows 32]

On the CPU: the published loops take a softmax of every row in float64, gather, and select row by row in Python; ours is
`score_rows` in torch, and the same rule on its result. All rows are masked, the rule is a threshold. Runs are paired:
every method once in each; a figure is the median with the first and third quartile, the ratio the median of the pairs'.
On a GPU as well: bytes of logits read per second by the kernel, captured in a graph over buffers larger than the cache
together, beside a copy measured in the same way (which reads and writes), and how far it is off float64.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # bench/ is no part of the package

from trajspec.benchmark.loops import transfer
from trajspec.runtime.kernels.score import score_rows
from trajspec.runtime.meanings import MEANINGS

THRESHOLD = 0.9
Selected = tuple[Tensor, Tensor]


def published(logits: Tensor, mask_id: int) -> Selected:
    """Fast-dLLM's selection: tokens and where they are committed, [R] each. The mask id is out already, as there."""
    shown = torch.full(logits.shape[:1], mask_id, device=logits.device)
    token, commit = transfer(logits[None], shown[None], mask_id, THRESHOLD)
    return token[0], commit[0]


def ours(logits: Tensor, mask_id: int) -> Selected:
    """The same rule on the scores of one pass."""
    told = score_rows(logits, mask_id)
    return told.token, chosen(told.log_confidence)


def op(logits: Tensor, mask_id: int) -> Selected:
    """The same rule on the library's `score`, as its steps on a CPU compute it."""
    token, conf = MEANINGS["score"](logits)
    return token, chosen(conf)


def chosen(conf: Tensor) -> Tensor:
    """Surer than the threshold, or the surest, the first of equals."""
    return (conf >= math.log(THRESHOLD)) | (torch.arange(len(conf), device=conf.device) == conf.argmax())


METHODS: dict[str, Callable[[Tensor, int], Selected]] = {
    "published, float64 by row": published,
    "score_rows": ours,
    "score, as in a step": op,
}


def rows_of(rows: int, size: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> tuple[Tensor, int]:
    """Logits of which about half are surer than the threshold, the mask id out; and that id."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, size, generator=g) * 2
    best = torch.randint(0, size - 1, (rows,), generator=g)
    logits[torch.arange(rows), best] = torch.linspace(10, 22, rows)
    logits[:, size - 1] = -math.inf
    return logits.to(device, dtype), size - 1


def beside(name: str, seconds: dict[str, list[float]], first: str) -> str:
    """A line of the table."""
    low, middle, high = (1e3 * part for part in statistics.quantiles(seconds[name], n=4))
    ratio = statistics.median(a / b for a, b in zip(seconds[first], seconds[name], strict=True))
    return f"{name:26} {middle:>9.2f} {f'{low:.2f} - {high:.2f}':>17} {ratio:>6.2f}"


def on_cpu(rows: int, size: int, runs: int) -> None:
    """The table of the CPU. Raises SystemExit when the methods do not select the same."""
    for dtype in (torch.float32, torch.bfloat16):
        logits, mask_id = rows_of(rows, size, dtype, seed=0)
        expected = published(logits, mask_id)
        seconds: dict[str, list[float]] = {name: [] for name in METHODS}
        for run in range(runs + 1):
            for name, method in METHODS.items():
                began = time.perf_counter()
                found = method(logits, mask_id)
                took = time.perf_counter() - began
                if not all(map(torch.equal, found, expected)):
                    raise SystemExit(f"{name} selects something else than the published loop")
                if run:  # the first warms up
                    seconds[name].append(took)
        print(f"\n{dtype}, {int(expected[1].sum())} of {rows} committed by every method")
        print(f"{'':26} {'ms':>9} {'quartiles':>17} {'ratio':>6}")
        for name in METHODS:
            print(beside(name, seconds, next(iter(METHODS))), flush=True)


def graph_of(work: Callable[[int], Any], count: int) -> torch.cuda.CUDAGraph:
    """`work(0)` to `work(count - 1)` as one graph, warm."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work(0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(count):
            work(number)
    return graph


def replayed(graph: torch.cuda.CUDAGraph) -> float:
    """Seconds of one replay, by the device's clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def on_gpu(size: int, runs: int) -> None:
    """Bandwidth beside a copy, and the distance from float64. Raises SystemExit for a token that is another one."""
    print(f"\n{torch.cuda.get_device_name()}, GB/s: logits read, or copied (read and written); median (quartiles)")
    for dtype in (torch.bfloat16, torch.float32):
        for rows in (32, 256, 2048):
            logits, mask_id = rows_of(rows, size, dtype, seed=0, device="cuda")
            count = max(2, math.ceil(2**30 / logits.nbytes))
            many = [logits.clone() for _ in range(count)]
            into = torch.empty_like(logits)
            graphs = {
                "copy": (graph_of(lambda n, many=many, into=into: into.copy_(many[n]), count), 2),
                "score": (graph_of(lambda n, many=many, mask=mask_id: score_rows(many[n], mask), count), 1),
                "score, margin, entropy": (
                    graph_of(lambda n, many=many, mask=mask_id: score_rows(many[n], mask, None, True, True), count), 1
                ),
            }  # fmt: skip
            speed: dict[str, list[float]] = {name: [] for name in graphs}
            for run in range(runs + 1):
                for name, (graph, passes) in graphs.items():
                    took = replayed(graph)
                    if run:
                        speed[name].append(passes * count * logits.nbytes / took / 1e9)
            told = [f"{name} {quartiles(found)}" for name, found in speed.items()]
            print(f"{dtype!s:14} {rows:>5} rows  " + "; ".join(told) + "; " + distance(logits, mask_id), flush=True)


def quartiles(found: list[float]) -> str:
    """Median, and the quartiles around it."""
    low, middle, high = statistics.quantiles(found, n=4)
    return f"{middle:.0f} ({low:.0f} - {high:.0f})"


def distance(logits: Tensor, mask_id: int) -> str:
    """How far the kernel is off float64 in units in the last place."""
    part = logits[:32]
    mine, exact = score_rows(part, mask_id), score_rows(part.double(), mask_id)
    if not torch.equal(mine.token, exact.token):
        raise SystemExit("the kernel's tokens are not those of float64")
    off = (mine.log_confidence - exact.log_confidence).abs() / exact.log_confidence.abs()
    return f"{float(off.max()) * 2**23:.1f} ulp"


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--runs", type=int, default=7, help="paired runs (default: 7)")
    reader.add_argument("--threads", type=int, default=1)
    reader.add_argument("--vocabulary", type=int, default=126_464)
    reader.add_argument("--rows", type=int, default=32)
    args = reader.parse_args()
    torch.set_num_threads(args.threads)
    print(f"vocabulary {args.vocabulary}, {args.rows} masked rows, threshold {THRESHOLD}, threads {args.threads}")
    print(f"torch {torch.__version__}, {args.runs} paired runs; ratio: the published selection's time by the method's")
    with torch.inference_mode():
        on_cpu(args.rows, args.vocabulary, args.runs)
        if torch.cuda.is_available():
            on_gpu(args.vocabulary, args.runs)


if __name__ == "__main__":
    main()
