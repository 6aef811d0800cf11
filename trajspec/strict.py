"""Whether a speculated run is its base's on a real model, token by token; and packed calls the same as single ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .driving import drive_job
from .ir import Plan, TrajspecError
from .ir.ahead import forward_of
from .prepare import Job, prepare
from .runtime.loop import RowRun, StepEvent, exhaust


@dataclass
class Difference:
    """Where a run first left its base's trajectory.

    `tokens`: what the base and the run wrote at `position`, None where one of them wrote nothing; `margin`: the gap of
    the two largest logits there in the base's own call; `error`: the largest difference between the logits of the
    packed call and the base's at this step; `near_tie`: margin <= 2 error.
    """

    row: int
    step: int
    position: int
    tokens: tuple[int | None, int | None]
    margin: float
    error: float

    @property
    def near_tie(self) -> bool:
        return self.margin <= 2 * self.error

    def __str__(self) -> str:
        def wrote(token: int | None) -> str:
            return "nothing" if token is None else f"token {token}"

        why = (
            f"a near-tie of numerics: the packed call was off by up to {self.error:.3g}; recheck={2 * self.error:.1g} "
            "makes such decisions again in a call of their own"
            if self.near_tie
            else f"no near-tie: the packed call was off by {self.error:.3g} at most"
        )
        return (
            f"row {self.row}, base step {self.step}, position {self.position}: the base writes "
            f"{wrote(self.tokens[0])}, the speculated run {wrote(self.tokens[1])}; the two largest logits are "
            f"{self.margin:.3g} apart: {why}"
        )


@dataclass
class PackingReport:
    """How often packed and single calls disagree on the states that both runs went through.

    `states`: base steps compared; `equal`: with the same logits bit for bit; `largest`: the largest difference of two
    logits; `argmax_flips` of `predictions` (masked positions); `changed_steps`: base steps that commit something else.
    """

    model: str
    dtype: str
    nodes: int
    states: int = 0
    equal: int = 0
    largest: float = 0.0
    predictions: int = 0
    argmax_flips: int = 0
    changed_steps: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.dtype}, {self.nodes} nodes: {self.equal} of {self.states} states bit for bit equal, "
            f"largest difference {self.largest:.3g}, {self.argmax_flips} of {self.predictions} predictions and "
            f"{self.changed_steps} of {self.states} steps changed"
        )


def require_exact(job: Job, runs: Sequence[RowRun]) -> None:
    """Run the base of `job` as well; TrajspecError at the first token that differs from `runs`, with its margin."""
    if job.plan.base is None:
        return
    whole, _ = exhaust(drive_job(job, job.base))
    for number, (mine, theirs) in enumerate(zip(runs, whole, strict=True)):
        same = mine.canvas.tokens.tolist() == theirs.canvas.tokens.tolist()
        if not (same and (not job.keep_path or mine.path == theirs.path)):
            found = _first_difference(job, number)
            raise TrajspecError(f"require_exact: {found}" if found else f"require_exact: row {number} differs")


def compare_calls(model: Any, prompts: Any, **options: Any) -> PackingReport:
    """Decode `prompts` speculated and not, and compare the logits at every state; options as in `decode`, with draft=.

    For this model, dtype, machine and number of nodes, it says how far "the packed call equals the single one" holds,
    which is what an exact certificate assumes. Keeps all logits of both runs: meant for a few short prompts.
    """
    job = prepare(model, prompts, options)
    if job.plan.base is None:
        raise TrajspecError("compare_calls needs something that is drafted: give draft='tree'")
    report = PackingReport(job.model.name, str(job.model.dtype).removeprefix("torch."), job.speculation.nodes)
    mine, theirs = _logits(job, job.plan), _logits(job, job.base)
    for row in range(len(job.rows)):
        for step in range(len(theirs[row])):
            if step >= len(mine[row]):
                break
            (one, hidden, wrote), (other, _, wrote_alone) = mine[row][step], theirs[row][step]
            seen = hidden & ~one.isnan().any(-1) & ~other.isnan().any(-1)
            report.states += 1
            report.equal += bool(torch.equal(one[seen], other[seen]))
            if bool(seen.any()):
                report.largest = max(report.largest, _error(one[seen], other[seen]))
                report.predictions += int(seen.sum())
                report.argmax_flips += int((one[seen].argmax(-1) != other[seen].argmax(-1)).sum())
            if wrote != wrote_alone:
                report.changed_steps += 1
                break  # from here on the runs look at different states
    return report


Step = tuple[Tensor, Tensor, list[tuple[int, int]]]


def _logits(job: Job, plan: Plan) -> list[list[Step]]:
    """Of every row and base step: logits [L, V] and masked positions [L] without padding, and what was written."""
    value = forward_of(job.base).results[0]
    steps: list[list[Step]] = [[] for _ in job.rows]

    def note(event: StepEvent) -> None:
        for place, row in enumerate(event.rows):
            real = event.before.position[place] >= 0
            logits = event.values[value][place][real].detach().clone()
            steps[row].append((logits, event.before.masked[place][real], event.committed(row)))

    exhaust(drive_job(job, plan), note)
    return steps


def _error(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def _first_difference(job: Job, row: int) -> Difference | None:
    mine, theirs = _logits(job, job.plan)[row], _logits(job, job.base)[row]
    for step, ((packed, _, wrote), (alone, hidden, wrote_alone)) in enumerate(zip(mine, theirs, strict=False)):
        if wrote == wrote_alone:
            continue
        position = min(set(wrote) ^ set(wrote_alone))[0]
        top = alone[position].double().topk(min(2, alone.shape[-1])).values
        seen = hidden & ~packed.isnan().any(-1) & ~alone.isnan().any(-1)
        tokens = (dict(wrote_alone).get(position), dict(wrote).get(position))
        return Difference(row, step, position, tokens, float(top[0] - top[-1]), _error(packed[seen], alone[seen]))
    return None
