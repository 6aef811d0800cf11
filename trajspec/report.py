"""What finished runs become: the answer of every row, what it cost, and all it takes to run it again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import __version__
from .exact.certificate import Numerics, row_certificate, row_drift
from .ir import Canvas
from .ir.opset.write import stopped
from .prepare import Job, RowPlan
from .result import KINDS_OF_CALLS, Result, Row, Totals
from .runtime.loop import Cost, RowRun
from .runtime.text import cut_at_stop


def report(job: Job, runs: Sequence[RowRun], total: Cost, seconds: float) -> Result:
    """The result of a batch whose rows ended as `runs`, after `total` calls and `seconds`."""
    rows = [_finish(job, row, run, seconds, total.compile_seconds) for row, run in zip(job.rows, runs, strict=True)]
    totals = Totals(total.calls, total.rows, total.positions, sum(row.answer_tokens for row in rows), seconds)
    return Result(rows, totals, _sequences(job, runs, rows))


def text_so_far(job: Job, number: int, row: Canvas) -> str:
    """The text of row `number` up to its first mask or stop token; of the answer only, when there is a prompt."""
    return job.model.decode_text(_settled(row, job.infill))


def _settled(row: Canvas, whole: bool) -> list[int]:
    """The written tokens before the first mask or stop token; `whole`: the given ones between them as well."""
    tokens = []
    for token, hidden, free in zip(row.tokens.tolist(), row.masked, row.free, strict=True):
        if hidden or (free and token in row.stop):
            break
        if whole or free:
            tokens.append(token)
    return tokens


def _finish(job: Job, plan: RowPlan, run: RowRun, seconds: float, compiling: float) -> Row:
    answer = _infilled(job, run.canvas) if job.infill else _continued(job, run)
    known = run.canvas.tokens[~run.canvas.free].tolist()
    prompt = known if job.model.codec is None else job.model.content_ids(known)
    plan_text = str(job.base)
    digest = hashlib.sha256(plan_text.encode()).hexdigest()
    calls = run.cost.calls
    stops = bool((run.canvas.stop >= 0).any())
    return Row(
        **answer,
        prompt_tokens=len(prompt),
        calls=calls,
        calls_by_kind=dict.fromkeys(KINDS_OF_CALLS, 0) | run.cost.kinds,
        rows=run.cost.rows,
        positions=run.cost.positions,
        tokens_per_call=answer["answer_tokens"] / calls if calls else 0.0,
        drafted=run.meters.get("drafted", 0),
        accepted=run.meters.get("accepted", 0),
        base_steps=int(run.canvas.step[0]),
        policy=job.policy,
        cache=job.view,
        drafter=job.speculation.name,
        nodes=job.speculation.nodes if job.speculation.drafter else 0,
        certificate=row_certificate(job.plan, run.meters, stops=stops, numerics=_numerics(job)),
        drift=row_drift(job.plan, run.meters),
        seconds=seconds,
        compile_seconds=compiling,
        manifest=_manifest(job, plan, plan_text, digest),
        path=run.path,
    )


def _numerics(job: Job) -> Numerics:
    """What is known of packed logits: states that read their row together add in another order than calls alone."""
    return Numerics.ASSUMED if job.speculation.packing == "rows" else Numerics.UNKNOWN


def _infilled(job: Job, row: Canvas) -> dict[str, Any]:
    """The answer of an infilled row: all of it, special tokens left out."""
    tokens = row.tokens.tolist()
    count = int((row.free & ~row.masked).sum())
    text = None
    if job.model.codec is not None:
        tokens, text = job.model.content_ids(tokens), job.model.decode_text(tokens)
    return {
        "text": text, "token_ids": tokens, "answer_tokens": count, "answer_tokens_with_eos": count,
        "finish_reason": "length",
    }  # fmt: skip


def _continued(job: Job, run: RowRun) -> dict[str, Any]:
    """The answer of a continuation: what was written up to a stop token or stop string, padding from there on."""
    row, model = run.canvas, job.model
    written = row.tokens[row.free].tolist()
    ended = bool(stopped(row)[0])
    # Without an end, all that is written counts: a compat policy may leave masks in between.
    answer = _settled(row, False) if ended or run.halted else row.tokens[row.free & ~row.masked].tolist()
    shown = answer + [token for token in written[len(answer) : len(answer) + 1] if ended]
    text, reason = None, "eos" if ended else "length"
    if model.codec is not None:
        text = model.decode_text(answer)
        text, cut = cut_at_stop(text, job.stop)
        if cut:
            reason = "stop"
            # The tokens it takes to write the text before the stop string; the last may hold the string's beginning.
            need = (n for n in range(len(answer) + 1) if model.decode_text(answer[:n]).startswith(text))
            answer = shown = answer[: next(need, len(answer))]
    return {
        "text": text,
        "token_ids": (shown + [model.pad_id] * (len(written) - len(shown))) if reason != "length" else written,
        "answer_tokens": len(answer),
        "answer_tokens_with_eos": len(shown),
        "finish_reason": reason,
    }


def _manifest(job: Job, row: RowPlan, plan_text: str, digest: str) -> dict[str, Any]:
    return {
        "trajspec": __version__,
        "torch": torch.__version__,
        "model": job.model.name,
        "dtype": str(job.model.dtype).removeprefix("torch."),
        "device": str(job.model.device),
        "policy": job.policy,
        "settings": plain(job.settings),
        "unused": plain(job.unused),
        "plan": plan_text,
        "plan_sha256": digest,
        "speculation": plain(job.speculation.as_dict()),
        "cache": job.view,
        "prompt": row.prompt,
        "gen_length": job.gen_length,
        "infill": job.infill,
        "seed": row.seed,
        "stop": list(job.stop),
        "eos_ids": list(job.eos),
        "allowed": None if row.allowed is None else {str(place): plain(ids) for place, ids in row.allowed.items()},
        "inputs": plain(row.inputs),
        "models": {name: getattr(one, "name", type(one).__name__) for name, one in job.model.others.items()},
        "compile": job.compile,
        "batch_rows": len(job.rows),
    }


def plain(value: Any) -> Any:
    """`value` as JSON can hold it; what JSON does not know becomes its repr."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic, Tensor)):
        return value.tolist()
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _sequences(job: Job, runs: Sequence[RowRun], rows: Sequence[Row]) -> Tensor:
    whole = []
    for run, row in zip(runs, rows, strict=True):
        tokens = torch.tensor(run.canvas.tokens)
        if not job.infill:
            tokens[torch.as_tensor(run.canvas.free)] = torch.tensor(row.token_ids, dtype=torch.int64)
        whole.append(tokens)
    width = max(len(tokens) for tokens in whole)
    pads = [torch.full((width - len(tokens),), job.model.pad_id) for tokens in whole]
    return torch.stack([torch.cat([pad, tokens]) for pad, tokens in zip(pads, whole, strict=True)])
