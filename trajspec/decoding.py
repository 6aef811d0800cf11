"""Decoding: a model, prompts and a policy become text. The one place that joins plans with the runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from .driving import drive_job
from .ir import TrajspecError
from .prepare import Job, prepare
from .report import report, text_so_far
from .result import Result
from .runtime.batch import unstack
from .runtime.denoiser import as_model
from .runtime.loop import StepEvent, exhaust
from .runtime.text import TextStream
from .targets import TargetJob, asks_target, drive_target, prepare_target, run_target, text_of


@dataclass(frozen=True)
class Piece:
    """New text of one row while it is decoded; `final` closes the row."""

    row: int
    text: str
    final: bool


def decode(
    model: Any, prompts: Any = None, *, on_step: Callable[[StepEvent], None] | None = None, **options: Any
) -> Result:
    """Decode `prompts` with `model` by a policy.

    model: a name or path for `load_model`, a loaded `Model`, or any denoiser (`ir.query.Denoiser`: numpy or torch).
    prompts: a string, a list of token ids, a conversation (a list of {"role", "content"}, put into the model's chat
    template), a list of any of these, or a tensor int64 [rows, P] (with `attention_mask` for padding).
    Options, under any of the field's names (`options.ALIASES`):

    * policy: a name, a Policy, a Plan or plan text; without it threshold=, factor= or steps= say which; its own
      parameters (threshold, steps, block_length, temperature, ...) go beside it; compat: a recorded quirk by name
    * cache: full (default), prefix, dual or block_causal: what a model call looks at, whatever the policy
    * gen_length (128), infill (False: masks written in the prompt are data; True: they are filled in)
    * seed (0): of every row, so that a row's text does not depend on its place; seeds: one a prompt;
      num_return_sequences (1): samples a prompt, each with its own seed derived from the prompt's
    * stop: strings that end a row; eos_id: one or more ids in place of the model's; ignore_eos
    * allowed: {position: ids, or letters} restricts single positions, counted from the start of the prompt (one
      mapping, or a list with one a prompt)
    * draft ("none"): "tree", "chain", "frozen", a `Drafter` or a calibrated FILE.json: evaluate states that may lie
      ahead in the same call, and take as many steps of the policy as they allow: its own result, in fewer calls;
      nodes (8): states a call, the present one included; lookahead: "exact" (default of prefix and dual), "none" or
      "cheap" (approximate) for states in the next block of a cached view
    * accept ("base"), strata, budget, then: leave the policy's trajectory on purpose, see `speculate`; recheck: a bound
      on how far packed logits may be off, beyond which a decision is made again in a call of its own
    * packing ("rows"): how the states of a call share kept keys and values: copies, the reference; "isolated" or
      "merged", which read them once and are equal up to rounding; "auto", the quickest here (`runtime.packing`)
    * require_exact (False): run the policy alone as well and stop at the first difference
    * inputs: task inputs the policy declares, one mapping a prompt; dtype, device: for loading
    * compile (False): steps as compiled graphs, which takes from seconds to minutes the first time (docs/compiling.md)
    * models: {name: model} for policies that ask a further model (apd: {"ar": ...}); each is what `model` may be, or a
      causal language model of transformers with the same tokenizer
    * target: an autoregressive model for which `model` drafts; or drafter: a diffusion model that drafts for `model`,
      which is then the target (docs/targets.md). Then draft: "mean_field" (default), "left_to_right", "two_phase",
      "denoise", "search", "auto" (mean_field where it pays) or "none"; draft_length (8; "adaptive"), drafts (1),
      draft_steps (4), draft_block_length (of drafters that see whole blocks); verify: "equality" (default: the
      target's own text) or "rejection" (its law); temperature, top_k, top_p, repetition_penalty
    * on_step: called after every step with a StepEvent; keep_path (True): whether rows carry their path

    Rows cost what their single runs cost; see `result.Row`. Raises TrajspecError for anything that cannot be done,
    before any work where that can be known, and TypeError for an option nobody declares.
    """
    if asks_target(model, options):
        if on_step is not None:
            raise TrajspecError("on_step shows the steps of a policy; a target's rounds are in row.path")
        return run_target(model, prompts, options)
    return exhaust(_drive(prepare(model, prompts, options)), on_step)


def infill(model: Any, texts: Any, **options: Any) -> Result:
    """`decode(..., infill=True)`: fill in the masks written in `texts` (token ids: where the mask id stands)."""
    return decode(model, texts, infill=True, **options)


def stream(model: Any, prompts: Any, **options: Any) -> Generator[Piece, None, Result]:
    """Decode and yield text as soon as everything before it is committed; the Result is the generator's return value.

    Stop strings are found across pieces, and no piece has to be taken back: a policy that masks or edits committed
    tokens again (WINO) gives its whole text in the last piece. Arguments and errors as in `decode`; what
    is wrong with them is said by the call, not by the first piece.
    """
    if asks_target(model, options):
        told = prepare_target(model, prompts, options)
        if told.target.codec is None:
            raise TrajspecError(f"stream needs text, and {told.target.name} has no tokenizer files")
        return _target_pieces(told)
    job = prepare(model, prompts, options)
    if job.model.codec is None:
        raise TrajspecError("stream needs a model with text; a bare denoiser has none: use on_step= of decode")
    return _pieces(job)


def _target_pieces(job: TargetJob) -> Generator[Piece, None, Result]:
    streams = [TextStream(job.stop) for _ in job.texts]
    driver = drive_target(job)
    while True:
        try:
            changed = next(driver)
        except StopIteration as end:
            result: Result = end.value
            for number, row in enumerate(result):
                yield Piece(number, streams[number].feed(row.text or "", final=True), True)
            return result
        for number in changed:
            piece = streams[number].feed(text_of(job, job.texts[number]))
            if piece:
                yield Piece(number, piece, False)


def _pieces(job: Job) -> Generator[Piece, None, Result]:
    streams = [TextStream(job.stop) for _ in job.rows]
    revises = any(node.op.name in ("remask", "edit") for node in job.base.nodes())
    driver = _drive(job)
    while True:
        try:
            event = next(driver)
        except StopIteration as end:
            result: Result = end.value
            for number, row in enumerate(result):
                yield Piece(number, streams[number].feed(row.text or "", final=True), True)
            return result
        for place, number in enumerate(() if revises else event.rows):
            piece = streams[number].feed(text_so_far(job, number, unstack(event.after, place)))
            if piece:
                yield Piece(number, piece, False)


def _drive(job: Job) -> Generator[StepEvent, None, Result]:
    """Run the job to its end, an event a step; returns the Result."""
    began = time.perf_counter()
    runs, total = yield from drive_job(job)
    seconds = time.perf_counter() - began - total.compile_seconds
    if job.speculation.strict:
        from .strict import require_exact

        require_exact(job, runs)
    return report(job, runs, total, seconds)


__all__ = ["Piece", "as_model", "decode", "infill", "stream"]
