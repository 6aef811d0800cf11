"""Run the rows of a prepared job through a plan, the job's own or its base's, to where decoding ends them."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any

from .ir import Canvas, Plan
from .passes import optimise
from .prepare import Job
from .report import text_so_far
from .runtime.loop import Cost, RowRun, StepEvent, drive
from .runtime.planner import Planner
from .runtime.text import cut_at_stop


def drive_job(
    job: Job, plan: Plan | None = None, rows: Sequence[int] | None = None
) -> Generator[StepEvent, None, tuple[list[RowRun], Cost]]:
    """An event a step; returns the runs of the rows `rows` (None: all) and what they cost together.

    `plan` is the job's own by default. A row ends at a stop string here, whichever plan runs it.
    """
    numbers = range(len(job.rows)) if rows is None else rows
    chosen: list[Any] = [job.rows[number] for number in numbers]

    def reached_stop(place: int, row: Canvas) -> bool:
        return cut_at_stop(text_so_far(job, numbers[place], row), job.stop)[1]

    compiler = None
    if job.compile:
        from .runtime.compiled import Compiler

        capture: Any = "graph" if job.model.device.type == "cuda" else "none"
        compiler = Compiler(job.model, capture=capture, announce=logging.getLogger("trajspec").info)
    auto = None
    if job.speculation.auto and (plan is None or plan is job.plan):
        from .planning import planned

        auto = planned(job, compiler)
        longest = max(int(row.canvas.masked.sum()) for row in chosen)
        if isinstance(auto.planner, Planner) and auto.planner.skip(longest // 2):
            auto, plan = None, job.base
    running = plan or job.plan
    if compiler is not None and running.base is None:
        # Exact rules only; what is named in the result and compared with is the plan as it was written.
        running = _optimised(running)
    before = compiler.seconds if compiler else 0.0
    runs, total = yield from drive(
        running, job.model, [row.canvas for row in chosen], inputs=[row.inputs for row in chosen],
        pad_id=job.model.pad_id, device=job.model.device, halt=reached_stop if job.stop else None,
        keep_path=job.keep_path, compiler=compiler, auto=auto,
    )  # fmt: skip
    total.compile_seconds = (compiler.seconds if compiler else 0.0) - before
    return runs, total


@lru_cache(maxsize=64)
def _optimised(plan: Plan) -> Plan:
    """The plan after the passes, made once."""
    return optimise(plan)[0]


__all__ = ["drive_job"]
