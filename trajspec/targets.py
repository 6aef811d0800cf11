"""Decoding an autoregressive target, alone or with a diffusion model that drafts (SpecDiff, arXiv 2408.05636)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch

from . import __version__
from .completion import Drafting, Target, Verification, load_target
from .completion.drafts import FORMS, Drafter, same_tokens
from .completion.loop import Text, Totals, drive
from .completion.target import is_target
from .completion.verify import Processing
from .ir import TrajspecError
from .ir.errors import OptionError
from .ir.noise import row_seed
from .options import canonical, flag
from .policies import POLICIES
from .prompts import items_of, seeds_of, spoken
from .result import KINDS_OF_CALLS, Result, Row
from .result import Totals as BatchTotals
from .runtime.denoiser import as_model
from .runtime.models import Model
from .runtime.text import cut_at_stop

DEFAULT_LENGTH = 128
SETTINGS = ("temperature", "top_k", "top_p", "repetition_penalty")
OPTIONS = (
    "target", "drafter", "draft", "draft_length", "drafts", "draft_steps", "draft_block_length", "verify",
    "policy", "gen_length", "seed",
    "seeds", "num_return_sequences", "stop", "eos_id", "ignore_eos", "dtype", "device", "keep_path", "attention_mask",
    *SETTINGS,
)  # fmt: skip


@dataclass(frozen=True)
class TargetJob:
    """What decoding a target needs to know."""

    target: Target
    drafter: Model | None
    drafting: Drafting
    adapt: bool
    verification: Verification
    gen_length: int
    eos: tuple[int, ...]
    stop: tuple[str, ...]
    keep_path: bool
    prompts: list[Any]
    texts: list[Text]

    @property
    def level(self) -> str:
        return "bitwise" if self.drafter is None else self.verification.level


def asks_target(model: Any, options: Mapping[str, Any]) -> bool:
    """Whether `decode(model, ..., **options)` is about an autoregressive target."""
    return "target" in options or "drafter" in options or is_target(model)


def prepare_target(model: Any, prompts: Any, options: Mapping[str, Any]) -> TargetJob:
    """The job of `decode` for a target: `model`, or with target= the drafter.

    Raises TrajspecError, or TypeError for an option nobody declares, before any call of a model.
    """
    rest = canonical(options)
    unknown = [name for name in rest if name not in OPTIONS]
    if unknown:
        raise OptionError(f"a target has no option {unknown[0]!r}; it has: {', '.join(OPTIONS)}")
    pop = rest.pop
    target, drafter = pop("target", None), pop("drafter", None)
    if target is not None and drafter is not None:
        raise TrajspecError(
            "target= and drafter= are both given: one of the two is the model that decode is called with"
        )
    first, second = (target, model) if target is not None else (model, drafter)
    policy = pop("policy", None)
    if policy not in (None, "autoregressive", "ar", "left_to_right", POLICIES["autoregressive"]):
        raise TrajspecError(
            f"policy={policy!r:.60}: an autoregressive target writes from left to right; policies are for "
            "diffusion models"
        )
    processing = Processing(**{name: rest.pop(name) for name in SETTINGS if rest.get(name) is not None})
    told = pop("draft", None)
    if (told is None or told is True) and second is not None:
        told = "mean_field"
    adapt = told == "auto"
    form = "mean_field" if adapt else told
    if form in (None, "none", False):
        about = ("draft_length", "drafts", "draft_steps", "draft_block_length", "verify")
        idle = [name for name in about if rest.get(name) is not None]
        if idle:
            raise TrajspecError(
                f"{idle[0]}={rest[idle[0]]!r} is about drafts, and nothing is drafted; give drafter=..."
            )
        second = None if told in ("none", False) else second
        drafting = Drafting()
    else:
        if second is None:
            raise TrajspecError(f"draft={told!r} needs a diffusion model that drafts: drafter='tiny', say")
        if form not in FORMS:
            raise TrajspecError(f"draft is {told!r:.60}, expected one of: {', '.join(FORMS)}, auto, none")
        names = {
            "draft_length": "length", "drafts": "drafts", "draft_steps": "steps", "draft_block_length": "block_length",
        }  # fmt: skip
        settings = {mine: rest.pop(name) for name, mine in names.items() if rest.get(name) is not None}
        drafting = Drafting(form, **settings)
    verification = Verification(pop("verify", None) or "equality", processing)
    if second is not None and verification.level == "law" and not FORMS[drafting.form]:
        raise TrajspecError(
            f"verify='rejection' with draft={drafting.form!r}: its tokens are revealed in another order than they are "
            "verified in, or chosen, so their probabilities are not those of a draw given the tokens before them, and "
            "the target's law would be lost (smallest witness: trajspec explain G1). Verify by equality, or draft "
            f"{', '.join(name for name, exact in FORMS.items() if exact)}"
        )
    dtype, device = pop("dtype", None), pop("device", None)
    loaded = load_target(first, dtype=dtype or torch.float32, device=device or "cpu")
    drafts: Any = None if second is None else as_model(second, dtype, device)
    if drafts is not None and not isinstance(drafts, Model):
        raise TrajspecError(
            f"the drafter is {type(drafts).__name__}; expected a name, folder or loaded diffusion model"
        )
    if drafts is not None and (drafts.kind != "text" or drafts.canvas):
        raise TrajspecError(
            f"{drafts.name} does not continue a text by unmasking; a drafter is such a model as tiny or LLaDA"
        )
    if drafts is not None and drafts.device != loaded.device:
        raise TrajspecError(
            f"{drafts.name} is on {drafts.device} and {loaded.name} on {loaded.device}; bring both to one"
        )
    if drafts is not None:
        same_tokens(loaded, drafts)  # says what is wrong before any call
    return _with_texts(
        TargetJob(
            loaded, drafts, drafting, adapt, verification, _whole(pop("gen_length", None)), (), (),
            flag(rest, "keep_path", True), [], [],
        ),
        prompts, rest,
    )  # fmt: skip


def _with_texts(job: TargetJob, prompts: Any, rest: dict[str, Any]) -> TargetJob:
    target = job.target
    given = rest.pop("eos_id", None)
    ids = target.eos_ids if given is None else (given,) if isinstance(given, Integral) else tuple(given)
    wrong = [token for token in ids if isinstance(token, bool) or not 0 <= int(token) < target.vocab_size]
    if wrong:
        raise TrajspecError(f"eos_id has {wrong[0]!r}, and the ids of {target.name} are 0 to {target.vocab_size - 1}")
    eos = () if flag(rest, "ignore_eos", False) else tuple(int(token) for token in ids)
    stop = rest.pop("stop", None) or ()
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if stop and target.codec is None:
        raise TrajspecError(f"stop strings need text, and {target.name} has no tokenizer files; give eos_id=")
    if not all(isinstance(text, str) and text for text in stop):
        raise TrajspecError(f"stop is {stop!r:.80}, expected texts that are not empty")
    samples = _whole(rest.pop("num_return_sequences", 1), "num_return_sequences", 1)
    items = [spoken(_Spoken(target), item) for item in items_of(prompts, rest.pop("attention_mask", None))]
    seeds = seeds_of(rest.pop("seed", None), rest.pop("seeds", None), len(items))
    texts, kept = [], []
    for item, seed in zip(items, seeds, strict=True):
        tokens = _tokens(target, item)
        limits = [one.max_positions for one in (target, job.drafter) if one is not None and one.max_positions]
        if limits and len(tokens) + job.gen_length > min(limits):
            raise TrajspecError(
                f"the prompt has {len(tokens)} tokens and gen_length is {job.gen_length}; together at most "
                f"{min(limits)} fit. Shorten it by {len(tokens) + job.gen_length - min(limits)}"
            )
        for sample in range(samples):
            told_ids = torch.tensor(tokens, dtype=torch.int64, device=target.device)
            texts.append(Text(told_ids, len(tokens), row_seed(seed, sample)))
            kept.append(item)
    told = {name: getattr(job, name) for name in job.__dataclass_fields__}
    return TargetJob(**told | {"eos": eos, "stop": stop, "prompts": kept, "texts": texts})


class _Spoken:
    """A target as what conversations are turned into text by."""

    kind = "text"

    def __init__(self, target: Target) -> None:
        self.name, self.codec = target.name, target.codec

    def chat(self, messages: Any) -> str:
        assert self.codec is not None
        return self.codec.chat(messages)


def _tokens(target: Target, item: Any) -> list[int]:
    if isinstance(item, str):
        if target.codec is None:
            raise TrajspecError(f"{target.name} has no tokenizer files, so there is no text; give token ids")
        tokens = [*target.codec.prefix, *target.codec.encode(item)]
    else:
        tokens = [int(token) for token in item]
    bad = [token for token in tokens if not 0 <= token < target.vocab_size]
    if bad:
        raise TrajspecError(
            f"token {bad[0]} is outside of the vocabulary of {target.name}, 0 to {target.vocab_size - 1}"
        )
    if not tokens:
        raise TrajspecError(f"the prompt has no tokens; {target.name} needs one to go on from, such as its start token")
    return tokens


def _whole(given: Any, name: str = "gen_length", least: int = 0) -> int:
    if given is None:
        return DEFAULT_LENGTH
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise TrajspecError(f"{name} is {given!r}, expected a whole number from {least} up")
    return int(given)


def drive_target(job: TargetJob) -> Generator[list[int], None, Result]:
    """Run the job: after every round the rows that it changed; the Result in the end."""
    drafter = None
    if job.drafter is not None:
        ids = same_tokens(job.target, job.drafter)
        drafter = Drafter(job.drafter, job.drafting, job.verification.processing, ids, job.verification.level == "law")

    def halt(number: int, text: Text) -> bool:
        return cut_at_stop(text_of(job, text), job.stop)[1]

    began = time.perf_counter()
    with torch.inference_mode(False):
        total = yield from drive(
            job.target, drafter, job.texts, gen_length=job.gen_length, eos=job.eos, verification=job.verification,
            adapt=job.adapt, halt=halt if job.stop else None,
        )  # fmt: skip
    return _report(job, total, time.perf_counter() - began)


def text_of(job: TargetJob, text: Text) -> str:
    """The answer so far, as text."""
    assert job.target.codec is not None
    return job.target.codec.decode([token for token in text.answer if token not in job.eos])


def _report(job: TargetJob, total: Totals, seconds: float) -> Result:
    rows = [_row(job, item, text, seconds) for item, text in zip(job.prompts, job.texts, strict=True)]
    batch = BatchTotals(total.calls, total.rows, total.positions, sum(row.answer_tokens for row in rows), seconds)
    width = max(len(text.ids) - len(text.answer) for text in job.texts)
    lines = []
    for text, row in zip(job.texts, rows, strict=True):
        pad = torch.full((width - text.start,), job.target.pad_id)
        lines.append(torch.cat([pad, text.ids[: text.start].cpu(), torch.tensor(row.token_ids, dtype=torch.int64)]))
    longest = max(map(len, lines))
    sequences = torch.stack(
        [torch.nn.functional.pad(one, (0, longest - len(one)), value=job.target.pad_id) for one in lines]
    )
    return Result(rows, batch, sequences)


def _row(job: TargetJob, item: Any, text: Text, seconds: float) -> Row:
    target, answer = job.target, text.answer
    shown = list(answer)
    if text.ended == "eos":
        answer = answer[:-1]
    written, reason = None, text.ended or "length"
    if target.codec is not None:
        written, cut = cut_at_stop(target.codec.decode(answer), job.stop)
        if cut:
            reason, codec = "stop", target.codec
            need = (n for n in range(len(answer) + 1) if codec.decode(answer[:n]).startswith(written))
            answer = shown = answer[: next(need, len(answer))]
    drafts = job.drafter is not None
    return Row(
        text=written,
        token_ids=shown + [target.pad_id] * (job.gen_length - len(shown)),
        prompt_tokens=text.start,
        answer_tokens=len(answer),
        answer_tokens_with_eos=len(shown),
        finish_reason=reason,
        calls=text.calls,
        calls_by_kind=dict.fromkeys(KINDS_OF_CALLS, 0)
        | {"prefill": min(text.calls, 1), "verify" if drafts else "step": max(text.calls - 1, 0)},
        rows=text.rows,
        positions=text.positions,
        tokens_per_call=len(answer) / text.calls if text.calls else 0.0,
        drafted=text.drafted,
        accepted=sum(text.accepted),
        base_steps=len(text.answer),
        policy="autoregressive",
        cache="causal",
        drafter=job.drafting.form if drafts else "none",
        nodes=_length(job, text) if drafts else 0,
        certificate=certificate(job),
        drift={"off_base": 0, "stale": 0, "first_divergence": None, "sum_tv": 0.0},
        seconds=seconds,
        compile_seconds=0.0,
        manifest=settings_of(job, text, item),
        path=text.path if job.keep_path else [],
        drafter_calls=text.drafter_calls,
        drafter_rows=text.drafter_rows,
        drafter_positions=text.drafter_positions,
        accepted_lengths=text.accepted,
    )  # fmt: skip


def settings_of(job: TargetJob, text: Text, item: Any) -> dict[str, Any]:
    """The manifest of a row: every setting, enough to run it again."""
    target, drafts = job.target, job.drafter is not None
    settings = {name: getattr(job.verification.processing, name) for name in SETTINGS}
    plan = str(POLICIES["autoregressive"].bind(**settings).plan())
    return {
        "trajspec": __version__, "torch": torch.__version__, "model": target.name,
        "dtype": str(target.dtype).removeprefix("torch."), "device": str(target.device), "policy": "autoregressive",
        "settings": settings, "plan": plan, "plan_sha256": hashlib.sha256(plan.encode()).hexdigest(),
        "drafter": job.drafter.name if job.drafter is not None else None,
        "draft": ("auto" if job.adapt else job.drafting.form) if drafts else "none",
        "draft_length": job.drafting.length, "drafts": job.drafting.drafts, "draft_steps": job.drafting.steps,
        "draft_block_length": job.drafting.block_length, "verify": job.verification.rule, "prompt": item,
        "gen_length": job.gen_length, "seed": text.seed, "stop": list(job.stop), "eos_ids": list(job.eos),
        "batch_rows": len(job.texts),
    }  # fmt: skip


def _length(job: TargetJob, text: Text) -> int:
    """How many tokens a draft has; of an adaptive one the most that were accepted."""
    return job.drafting.length if isinstance(job.drafting.length, int) else max(text.accepted, default=0)


def certificate(job: TargetJob) -> dict[str, Any]:
    """What the text equals and why, relative to the target alone (theorems A1, G1, G2)."""
    name, form = job.target.name, job.drafting.form
    packed = {
        "id": "A4.packed", "status": "declared",
        "text": "a call of several tokens gives the logits of calls of one token; on this model that is up to rounding",
    }  # fmt: skip
    if job.drafter is None:
        level, why, assumed = "bitwise", "nothing is drafted", []
    elif job.level == "bitwise":
        sampled = job.verification.processing.temperature > 0
        own = "drawn with noise keyed by (seed, step, position, token)" if sampled else "its likeliest one"
        level, assumed = "bitwise", [packed]
        why = f"every token is the target's own, {own}, given those before it; drafts only decide how many a call gives"
    else:
        given = {
            "mean_field": "the text before the round", "left_to_right": "the tokens before it",
            "two_phase": "a hint that was drawn first",
        }[form]  # fmt: skip
        level, assumed = "law", [packed]
        why = (
            "a draft is kept with probability min(1, p / q) and else replaced by a token of (p - q)+, with q its law "
            f"given {given}, and p and q processed alike"
        )
    words = {"bitwise": "lossless (bitwise)", "law": "lossless in distribution (not bitwise)"}[level]
    told = "; ".join(f"{one['text']} [{one['status']}]" for one in assumed) or "nothing"
    text = f"{words} relative to {name} alone because {why}; assumes: {told}"
    return {
        "schema": 1, "level": level.upper(), "relative_to": {"base": f"autoregressive({name})"}, "reasons": [why],
        "assumes": assumed, "text": text,
    }  # fmt: skip


def run_target(model: Any, prompts: Sequence[Any], options: Mapping[str, Any]) -> Result:
    """`decode` for a target."""
    driver = drive_target(prepare_target(model, prompts, options))
    while True:
        try:
            next(driver)
        except StopIteration as end:
            return end.value


__all__ = [
    "TargetJob", "asks_target", "certificate", "drive_target", "prepare_target", "run_target", "settings_of", "text_of",
]  # fmt: skip
