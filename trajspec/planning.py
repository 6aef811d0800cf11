"""What the planner of `draft="auto"` stands on: the plans it chooses from, and what calls cost on this machine."""

from __future__ import annotations

import json
import os
import platform
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .ir import TrajspecError
from .prepare import Job
from .runtime.planner import NODES, Costs, Planner, Sampler
from .runtime.rounds import Auto, drive_rounds

#: Rounds of the calibration run, and how often it begins anew to get them.
ROUNDS, RUNS = 24, 4

_planners: weakref.WeakKeyDictionary[Any, dict[Any, Planner]] = weakref.WeakKeyDictionary()


def planned(job: Job, compiler: Any = None) -> Auto:
    """The plans of a job with draft="auto", and the planner that the same job on the same model had before.

    Without one, what calls cost is read from the file `costs_file()`, or measured in a short run of the first row and
    written there. Raises TrajspecError for settings that drafters with few states do not take.
    """
    most = job.speculation.nodes
    plans = {nodes: job.speculation.at(nodes).apply(job.base) for nodes in NODES if 1 < nodes <= most}
    if not plans:
        raise TrajspecError(f"draft='auto' chooses from {NODES} states a call, nodes={most} leaves one")
    known = _planners.setdefault(getattr(job.model, "network", job.model), {})
    key = (job.base, tuple(plans), compiler is not None, torch.get_num_threads())
    if key not in known:
        known[key] = Planner(_costs(job, plans, compiler), (1, *plans))
    # A compiler lives for one run.
    known[key].clock = _clock(compiler)
    return Auto(known[key], plans)


def _clock(compiler: Any) -> Callable[[], float]:
    """Seconds, without what compiling takes."""
    return lambda: time.perf_counter() - (compiler.seconds if compiler is not None else 0.0)


def costs_file() -> Path:
    """Where measured costs are kept: trajspec/costs.json in the user's cache directory (XDG_CACHE_HOME)."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "trajspec" / "costs.json"


def _costs(job: Job, plans: Any, compiler: Any) -> Costs:
    name = "/".join(
        str(part) for part in (
            platform.node(), job.model.device, torch.get_num_threads(), job.model.name, job.model.dtype, job.view,
            job.base.block_length, job.gen_length, "compiled" if compiler else "eager", torch.__version__,
        )
    )  # fmt: skip
    path = costs_file()
    try:
        saved = json.loads(path.read_text())
        return Costs(float(saved[name]["fixed"]), float(saved[name]["each"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nothing there, or not ours to understand: measured anew
    costs = measure(job, plans, compiler)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else {}
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(known | {name: {"fixed": costs.fixed, "each": costs.each}}, indent=1))
        part.replace(path)
    except (OSError, ValueError):
        pass  # a cache that cannot be written is measured again next time
    return costs


def measure(job: Job, plans: Any, compiler: Any = None) -> Costs:
    """What calls cost, from rounds of the first row with all numbers of states in turn; what it writes is dropped."""
    sampler = Sampler(_clock(compiler), (1, *plans))
    row = job.rows[0]
    for _ in range(RUNS):
        driver = drive_rounds(
            plans[max(plans)], job.model, [row.canvas], inputs=[row.inputs], pad_id=job.model.pad_id,
            device=job.model.device, keep_path=False, compiler=compiler, auto=Auto(sampler, plans),
        )  # fmt: skip
        for _ in driver:
            if sampler.rounds >= ROUNDS:
                driver.close()
                break
    return fitted(sampler.samples)


def fitted(samples: list[tuple[int, float]]) -> Costs:
    """Costs from the quickest half of the samples of every number of states; a guess where they say nothing."""
    quick: list[tuple[int, float]] = []
    for count in {states for states, _ in samples}:
        times = sorted(seconds for states, seconds in samples if states == count)
        quick += [(count, seconds) for seconds in times[: -(-len(times) // 2)]]
    try:
        return Costs.fit(quick)
    except ValueError:
        return Costs(1.0, 1.0)


__all__ = ["costs_file", "measure", "planned"]
