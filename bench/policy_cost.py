"""What choosing costs beside the network: the threshold rule on 32 masked positions of a vocabulary of 126,464.

    python bench/policy_cost.py [--runs 7]

The published selection (softmax in float64, row by row in Python) and this library's, eager and compiled, on the same
logits in one run; medians with quartiles. `reads` counts how often the host asks the device for a number.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[1]))

import trajspec as ts
from trajspec.benchmark.loops import transfer
from trajspec.policies import POLICIES
from trajspec.runtime.batch import stack
from trajspec.runtime.lower import lower
from trajspec.runtime.step import start

VOCAB, WIDTH, THRESHOLD = 126464, 32, 0.9


READS = {
    torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default, torch.ops.aten.nonzero.default
}  # fmt: skip


class Reads(TorchDispatchMode):
    """Counts reads of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in READS
        return func(*args, **(kwargs or {}))


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--runs", type=int, default=7)
    args = reader.parse_args()
    torch.set_num_threads(1)
    plan, _ = ts.optimise(POLICIES["fastdllm_threshold"].bind(threshold=THRESHOLD).plan())
    step = lower(plan)
    row = ts.canvas([], gen_length=WIDTH, vocab_size=VOCAB, mask_id=VOCAB - 1)
    batch = stack([row])
    carried = start(plan, {plan.inputs[0]: batch})

    def ours(logits: torch.Tensor) -> Any:
        return step.function(lambda number, *data: (logits,), batch, *carried)[0][0].tokens

    compiled = torch.compile(ours, fullgraph=True)
    print(f"{'logits':9} {'selection':22} {'ms':>7} {'quartiles':>15} {'times less':>10} {'reads':>6}")
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(1, WIDTH, VOCAB, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
        logits[..., VOCAB - 1] = -1e30
        ways: list[tuple[str, Callable[[], Any]]] = [
            ("published", lambda logits=logits: transfer(logits, batch.tokens, VOCAB - 1, THRESHOLD)),
            ("trajspec", lambda logits=logits: ours(logits)),
            ("trajspec, compiled", lambda logits=logits: compiled(logits)),
        ]
        with torch.inference_mode():
            token, where = ways[0][1]()
            if not torch.equal(torch.where(where, token, batch.tokens), ours(logits)):
                raise SystemExit("the two selections differ")
            times: dict[str, list[float]] = {name: [] for name, _ in ways}
            for _, way in ways:
                way()
            for _ in range(args.runs):
                for name, way in ways:
                    began = time.perf_counter()
                    way()
                    times[name].append(1e3 * (time.perf_counter() - began))
            for name, way in ways:
                reads = Reads()
                if "compiled" not in name:
                    with reads:
                        way()
                low, middle, high = statistics.quantiles(times[name], n=4)
                less = statistics.median(a / b for a, b in zip(times["published"], times[name], strict=True))
                print(
                    f"{str(dtype).removeprefix('torch.'):9} {name:22} {middle:>7.1f} {f'{low:.1f} - {high:.1f}':>15} "
                    f"{less:>10.1f} {reads.count:>6}"
                )


if __name__ == "__main__":
    main()
