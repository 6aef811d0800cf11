"""Decoding: a model, prompts and a policy become text. The one place that joins plans with the runtime."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import __version__
from .ir import Canvas, Plan, Policy, TrajspecError, canvas
from .ir.noise import row_seed
from .ir.opset.write import stopped
from .options import canonical, choose_policy, settle
from .policies import get_policy
from .result import KINDS_OF_CALLS, Result, Row, Totals
from .runtime.denoiser import FromNumpy
from .runtime.loop import Cost, RowRun, StepEvent, drive
from .runtime.models import Model, load_model
from .runtime.text import TextStream, cut_at_stop

Prompt = str | Sequence[int]
DEFAULT_LENGTH = 128


@dataclass(frozen=True)
class Piece:
    """New text of one row while it is decoded; `final` closes the row."""

    row: int
    text: str
    final: bool


def decode(model: Any, prompts: Any = None, *, on_step: Callable[[StepEvent], None] | None = None, **options: Any) -> Result:
    """Decode `prompts` with `model` by a policy.

    model: a name or path for `load_model`, a loaded `Model`, or any denoiser (`ir.query.Denoiser`: numpy or torch).
    prompts: a string, a list of token ids, a list of either, or a tensor int64 [rows, P] (with `attention_mask`
    for padding). Options, under any of the field's names (`options.ALIASES`):

    * policy: a name, a Policy, a Plan or plan text; without it threshold=, factor= or steps= say which; its own
      parameters (threshold, steps, block_length, temperature, ...) go beside it; compat: a recorded quirk by name
    * gen_length (128), infill (False: masks written in the prompt are data; True: they are filled in)
    * seed (0): of every row, so that a row's text does not depend on its place; seeds: one a prompt;
      num_return_sequences (1): samples a prompt, each with its own seed derived from the prompt's
    * stop: strings that end a row; eos_id: one or more ids in place of the model's; ignore_eos
    * allowed: {position: ids, or letters} restricts single positions (one mapping, or a list with one a prompt)
    * inputs: task inputs the policy declares, one mapping a prompt; dtype, device: for loading
    * on_step: called after every step with a StepEvent; keep_path (True): whether rows carry their path

    Rows cost what their single runs cost; see `result.Row`. Raises TrajspecError for anything that cannot be done,
    before any work where that can be known, and TypeError for an option nobody declares.
    """
    driver = _Job(model, prompts, options, stacklevel=3).drive()
    while True:
        try:
            event = next(driver)
        except StopIteration as end:
            return end.value
        if on_step is not None:
            on_step(event)


def infill(model: Any, texts: Any, **options: Any) -> Result:
    """`decode(..., infill=True)`: fill in the masks that are written in `texts` (token ids: where the mask id stands)."""
    return decode(model, texts, infill=True, **options)


def stream(model: Any, prompts: Any, **options: Any) -> Generator[Piece, None, Result]:
    """Decode and yield text as soon as everything before it is committed; the Result is the generator's return value.

    Stop strings are found across pieces, and no piece has to be taken back. Same arguments as `decode`.
    """
    job = _Job(model, prompts, options, stacklevel=3)
    if job.model.codec is None:
        raise TrajspecError("stream needs a model with text; a bare denoiser has none: use on_step= of decode")
    streams = [TextStream(job.stop) for _ in job.rows]
    driver = job.drive()
    while True:
        try:
            event = next(driver)
        except StopIteration as end:
            result: Result = end.value
            for number, row in enumerate(result):
                piece = streams[number].feed(row.text or "", final=True)
                yield Piece(number, piece, True)
            return result
        from .runtime.batch import unstack

        for place, number in enumerate(event.rows):
            piece = streams[number].feed(job.text_so_far(number, unstack(event.after, place)))
            if piece:
                yield Piece(number, piece, False)


@dataclass(frozen=True)
class _Bare:
    """A denoiser without text, under the attributes that decoding asks of a model."""

    network: Any
    name: str = "denoiser"
    kind: str = "text"
    pad_id: int = 0
    eos_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()
    codec: Any = None

    @property
    def vocab_size(self) -> int:
        return self.network.vocab_size

    @property
    def mask_id(self) -> int:
        return self.network.mask_id

    @property
    def max_positions(self) -> int | None:
        return getattr(self.network, "max_positions", None)

    @property
    def device(self) -> torch.device:
        return torch.device(getattr(self.network, "device", "cpu"))

    @property
    def dtype(self) -> str:
        return "float64"

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        return self.network(tokens, positions, visible)


def as_model(model: Any, dtype: torch.dtype | None = None, device: str | torch.device | None = None) -> Any:
    """`model` as something with a vocabulary, a device and maybe text. Raises TrajspecError when it is none of these."""
    if isinstance(model, str) or hasattr(model, "__fspath__"):
        return load_model(model, dtype=dtype or torch.float32, device=device or "cpu")
    if isinstance(model, Model):
        return model
    if not callable(model) or not hasattr(model, "vocab_size") or not hasattr(model, "mask_id"):
        raise TrajspecError(
            f"model is {type(model).__name__}; expected a name or path, a loaded model, or a callable with vocab_size "
            "and mask_id that takes (tokens, positions, visible)"
        )
    # A torch denoiser says which device it is on; everything else is numpy.
    return _Bare(model if hasattr(model, "device") else FromNumpy(model), name=type(model).__name__)


class _Job:
    """One call of decode: everything checked and laid out before the first model call."""

    def __init__(self, model: Any, prompts: Any, options: dict[str, Any], stacklevel: int) -> None:
        policy = options.get("policy")
        declared = frozenset(policy.settings) if isinstance(policy, Policy) else frozenset()
        options = canonical(options, declared)
        pop = options.pop
        self.model = as_model(model, pop("dtype", None), pop("device", None))
        infill = bool(pop("infill", False)) or (self.model.kind == "infill" and options.get("gen_length") is None)
        length = pop("gen_length", None)
        self.infill, self.gen_length = infill, _length(length, 0 if infill else DEFAULT_LENGTH)
        self.seed, seeds = pop("seed", 0), pop("seeds", None)
        samples = pop("num_return_sequences", 1)
        stop = pop("stop", ())
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop or ())
        self.keep_path = pop("keep_path", True)
        ends = self._ends(pop("eos_id", None) if "eos_id" not in declared else options.get("eos_id"), pop("ignore_eos", False))
        allowed, inputs, attention = pop("allowed", None), pop("inputs", None), pop("attention_mask", None)
        mask_id = pop("mask_id", None)
        if mask_id is not None and mask_id != self.model.mask_id:
            raise TrajspecError(f"mask_id={mask_id}, but the mask id of {self.model.name} is {self.model.mask_id}")
        if self.stop and self.model.codec is None:
            raise TrajspecError("stop strings need a model with text; a bare denoiser takes eos_id=")
        self._eos = ends
        self.policy_name, self.plan, self.settings, self.unused = self._plan(options)
        items = _items(prompts, attention)
        if not isinstance(samples, int) or samples < 1:
            raise TrajspecError(f"num_return_sequences is {samples!r}, expected 1 or more")
        per_prompt = _seeds(self.seed, seeds, len(items))
        per_allowed = _spread("allowed", allowed, len(items))
        per_input = _spread("inputs", inputs, len(items))
        self.rows: list[Canvas] = []
        self.prompt_lengths: list[int] = []
        self.inputs: list[Mapping[str, Any]] = []
        self.seeds: list[int] = []
        for number, item in enumerate(items):
            for sample in range(samples):
                seed = per_prompt[number] if sample == 0 else row_seed(per_prompt[number], sample)
                self.rows.append(self._row(item, seed, per_allowed[number], () if infill else ends))
                self.inputs.append(per_input[number] or {})
                self.seeds.append(seed)
        self._check_steps()

    def _ends(self, given: Any, ignore: bool) -> tuple[int, ...]:
        if ignore:
            return ()
        if given is None:
            return tuple(self.model.eos_ids)
        return (given,) if isinstance(given, int) else tuple(given)

    def _plan(self, options: dict[str, Any]) -> tuple[str, Plan, dict[str, Any], dict[str, Any]]:
        chosen, compat = options.pop("policy", None), options.pop("compat", None)
        if isinstance(chosen, Plan) or isinstance(chosen, str) and "\n" in chosen:
            from .ir import parse

            plan = chosen if isinstance(chosen, Plan) else parse(chosen)
            if options:
                raise TypeError(f"a plan takes no options, got {', '.join(map(repr, options))}; edit its text instead")
            return plan.name, plan, {}, {}
        if isinstance(chosen, Policy):
            policy = chosen
        elif chosen is None or isinstance(chosen, str):
            policy = get_policy(chosen or choose_policy(options), compat)
        else:
            raise TrajspecError(f"policy is {type(chosen).__name__}; expected a name, a Policy, a Plan or plan text")
        if self.infill and "block_length" in policy.settings and not isinstance(chosen, Policy):
            # Infilling has no blocks unless they are asked for.
            options.setdefault("block_length", None)
        for name in ("eos_id",):
            if policy.settings.get(name, 0) is None and len(self._eos) == 1:
                options.setdefault(name, self._eos[0])
        policy, unused = settle(policy, options)
        return policy.name, policy.plan(), dict(policy.settings), unused

    def _row(self, item: Prompt, seed: int, allowed: Any, ends: Iterable[int]) -> Canvas:
        model = self.model
        prefix = 0
        if isinstance(item, str):
            if model.codec is None:
                raise TrajspecError("a bare denoiser has no tokenizer: give prompts as token ids")
            prefix = len(model.codec.prefix)
            if self.infill and not self.gen_length:
                made = model.encode_infill(item)
            else:
                made = model.encode_prompt(item, self.gen_length)
            tokens, masked, start = made.tokens, made.masked, 0 if self.infill else made.prompt_length
        else:
            tokens = [int(token) for token in item] + [model.mask_id] * self.gen_length
            masked = [False] * len(item) + [True] * self.gen_length
            start = 0 if self.infill else len(item)
        if self.infill:
            masked = [hidden or token == model.mask_id for hidden, token in zip(masked, tokens, strict=True)]
        limit = model.max_positions
        if limit is not None and len(tokens) > limit:
            raise TrajspecError(
                f"{model.name}: the canvas has {len(tokens)} positions (prompt {len(tokens) - self.gen_length} + "
                f"gen_length {self.gen_length}), the model takes {limit}. Shorten it by {len(tokens) - limit}."
            )
        self.prompt_lengths.append(start)
        return canvas(
            tokens, masked, start=start, vocab_size=model.vocab_size, mask_id=model.mask_id, seed=seed, stop=ends,
            banned=model.banned_ids, allowed=self._allowed(allowed, prefix),
        )  # fmt: skip

    def _allowed(self, allowed: Any, prefix: int) -> dict[int, list[int]] | None:
        if allowed is None:
            return None
        table = {}
        for position, ids in allowed.items():
            if isinstance(ids, str):
                if self.model.codec is None:
                    raise TrajspecError("allowed: a bare denoiser has no letters; give token ids")
                ids = self.model.codec.encode(ids)
            table[int(position) + prefix] = list(ids)
        return table

    def _check_steps(self) -> None:
        from .ir.opset.read import block_numbers

        for quota in (node for node in self.plan.nodes() if node.op.name == "quota"):
            steps, size = quota.attributes["steps"], quota.attributes["size"]
            for row in self.rows:
                blocks = len(set(block_numbers(row, size)[row.free].tolist()))
                if steps is not None and steps < blocks:
                    raise TrajspecError(
                        f"steps={steps} cannot fill {blocks} blocks of {size}: a block takes a step at least. "
                        f"Give steps={blocks} or more, or a longer block_length"
                    )

    def drive(self) -> Generator[StepEvent, None, Result]:
        """Run to the end, an event a step; returns the Result."""
        began = time.perf_counter()
        halt = self._reached_stop if self.stop else None
        with torch.inference_mode():
            runs, total = yield from drive(
                self.plan, self.model, self.rows, inputs=self.inputs, pad_id=self.model.pad_id,
                device=self.model.device, halt=halt, keep_path=self.keep_path,
            )  # fmt: skip
        return self._result(runs, total, time.perf_counter() - began)

    def _reached_stop(self, number: int, row: Canvas) -> bool:
        return cut_at_stop(self.text_so_far(number, row), self.stop)[1]

    def text_so_far(self, number: int, row: Canvas) -> str:
        """The text of the answer up to its first mask or stop token."""
        return self.model.decode_text(_settled(row, self.prompt_lengths[number], self.infill))

    def _result(self, runs: list[RowRun], total: Cost, seconds: float) -> Result:
        rows = [self._finish(number, run, seconds) for number, run in enumerate(runs)]
        totals = Totals(total.calls, total.rows, total.positions, sum(row.answer_tokens for row in rows), seconds)
        return Result(rows, totals, self._sequences(runs, rows))

    def _finish(self, number: int, run: RowRun, seconds: float) -> Row:
        row, start, model = run.canvas, self.prompt_lengths[number], self.model
        if self.infill:
            answer = [int(token) for token in row.tokens]
            token_ids = model.content_ids(answer) if model.codec is not None else answer
            count = with_eos = int(row.free.sum()) - int(row.masked.sum())
            reason = "length"
        else:
            answer, ended = _answer(row, start)
            count, with_eos = len(answer), len(answer) + ended
            reason = "stop" if run.halted else "eos" if ended else "length"
            written = [int(token) for token in row.tokens[row.free]]
            token_ids = written[:with_eos] + [model.pad_id] * (len(written) - with_eos)
            if run.halted:
                token_ids = answer + [model.pad_id] * (len(written) - len(answer))
        text = None
        if model.codec is not None:
            text = model.decode_text(token_ids if self.infill else answer)
            text, _ = cut_at_stop(text, self.stop)
        known = [int(token) for token in row.tokens[~row.free]]
        prompt = len(model.content_ids(known)) if model.codec is not None else len(known)
        cost, plan_hash = run.cost, hashlib.sha256(str(self.plan).encode()).hexdigest()
        return Row(
            text=text,
            token_ids=token_ids,
            prompt_tokens=prompt,
            answer_tokens=count,
            answer_tokens_with_eos=with_eos,
            finish_reason=reason,
            calls=cost.calls,
            calls_by_kind=dict.fromkeys(KINDS_OF_CALLS, 0) | {"step": cost.calls},
            rows=cost.rows,
            positions=cost.positions,
            tokens_per_call=count / cost.calls if cost.calls else 0.0,
            drafted=0,
            accepted=0,
            base_steps=cost.calls,
            policy=self.policy_name,
            cache="full",
            drafter="none",
            nodes=0,
            certificate={
                "schema": 1,
                "level": "BITWISE",
                "relative_to": {"base": f"sha256:{plan_hash}", "policy": self.policy_name},
                "reasons": [],
                "text": "lossless (bitwise): the base policy itself ran, nothing was drafted",
            },
            drift={"off_base": 0, "first_divergence": None, "sum_tv": 0.0},
            seconds=seconds,
            compile_seconds=0.0,
            manifest=self._manifest(number, plan_hash),
            path=run.path,
        )

    def _manifest(self, number: int, plan_hash: str) -> dict[str, Any]:
        return {
            "trajspec": __version__,
            "torch": torch.__version__,
            "model": self.model.name,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "policy": self.policy_name,
            "settings": self.settings,
            "unused": self.unused,
            "plan": str(self.plan),
            "plan_sha256": plan_hash,
            "gen_length": self.gen_length,
            "infill": self.infill,
            "seed": self.seeds[number],
            "stop": list(self.stop),
            "eos_ids": list(self._eos),
            "batch_rows": len(self.rows),
        }

    def _sequences(self, runs: list[RowRun], rows: list[Row]) -> torch.Tensor:
        whole = []
        for run, row in zip(runs, rows, strict=True):
            tokens = torch.as_tensor(run.canvas.tokens)
            if not self.infill:
                tokens = tokens.clone()
                tokens[torch.as_tensor(run.canvas.free)] = torch.tensor(row.token_ids, dtype=torch.int64)
            whole.append(tokens)
        width = max(len(tokens) for tokens in whole)
        pads = [torch.full((width - len(tokens),), self.model.pad_id) for tokens in whole]
        return torch.stack([torch.cat([pad, tokens]) for pad, tokens in zip(pads, whole, strict=True)])


def _length(given: Any, default: int) -> int:
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise TrajspecError(f"gen_length is {given!r}, expected a whole number of tokens")
    return given


def _items(prompts: Any, attention: Any) -> list[Prompt]:
    """The prompts one by one; a single one may come bare."""
    if isinstance(prompts, str):
        return [prompts]
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
    if prompts is None or not isinstance(prompts, Sequence):
        raise TrajspecError(f"prompts is {type(prompts).__name__}; expected text, token ids, or a list of either")
    if len(prompts) == 0:
        raise TrajspecError("there are no prompts; give at least one (an empty text is one: [''])")
    if all(isinstance(item, int) for item in prompts):
        prompts = [prompts]
    items: list[Prompt] = []
    for number, item in enumerate(prompts):
        item = item.tolist() if hasattr(item, "tolist") else item
        if not isinstance(item, str) and not (isinstance(item, Sequence) and all(isinstance(t, int) for t in item)):
            raise TrajspecError(f"prompt {number} is {type(item).__name__}; expected text or a list of token ids")
        items.append(item)
    if attention is not None:
        kept = attention.tolist() if hasattr(attention, "tolist") else attention
        items = [
            [token for token, real in zip(item, real_row, strict=True) if real]
            for item, real_row in zip(items, kept, strict=True)
        ]
    return items


def _seeds(seed: int, seeds: Sequence[int] | None, count: int) -> list[int]:
    if seeds is None:
        return [seed] * count
    if len(seeds) != count:
        raise TrajspecError(f"{len(seeds)} seeds for {count} prompts; a seed belongs to its row: give one each")
    return list(seeds)


def _spread(name: str, given: Any, count: int) -> list[Any]:
    if given is None or isinstance(given, Mapping):
        return [given] * count
    if len(given) != count:
        raise TrajspecError(f"{name} has {len(given)} entries for {count} prompts; give one mapping, or one a prompt")
    return list(given)


def _settled(row: Canvas, start: int, infill: bool) -> list[int]:
    """The answer's tokens up to the first mask or stop token (infilling: the whole row up to the first mask)."""
    begin = 0 if infill else start
    tokens = []
    for place in range(begin, len(row.tokens)):
        token = int(row.tokens[place])
        if row.masked[place] or (row.free[place] and token in row.stop):
            break
        tokens.append(token)
    return tokens


def _answer(row: Canvas, start: int) -> tuple[list[int], int]:
    """The written tokens before the stop token that ended the row, and 1 when there is one."""
    if not bool(stopped(row)[0]):
        return [int(token) for token in row.tokens[row.free & ~row.masked]], 0
    return _settled(row, start, False), 1


__all__ = ["Piece", "as_model", "decode", "infill", "stream"]
