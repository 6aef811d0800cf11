"""Rounds of drafting and verification: a batch of texts written by a target, each at its own pace."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..ir.errors import TrajspecError
from .drafts import Drafted, Drafter, Lengths
from .target import Reading, Target
from .verify import Judged, Verification, judge

#: Rounds of each kind before the quicker one is chosen, and rounds before the other one is tried again.
TRIALS, PATIENCE = 3, 32


@dataclass
class Text:
    """One text: `ids` int64 of prompt and answer, what it cost as a single run, and how it ended (None: not yet)."""

    ids: Tensor
    start: int
    seed: int
    ended: str | None = None
    calls: int = 0
    rows: int = 0
    positions: int = 0
    drafted: int = 0
    drafter_calls: int = 0
    drafter_rows: int = 0
    drafter_positions: int = 0
    accepted: list[int] = field(default_factory=list)
    path: list[list[tuple[int, int]]] = field(default_factory=list)

    @property
    def answer(self) -> list[int]:
        return self.ids[self.start :].tolist()


@dataclass
class Totals:
    """What the batch asked: calls, sequences and query tokens of the target and of the drafter."""

    calls: int = 0
    rows: int = 0
    positions: int = 0
    drafter_calls: int = 0


@dataclass
class Pace:
    """Whether drafting pays: tokens per second of rounds with drafts and without, the better one goes on.

    It goes by the clock, so which rounds draft may differ from run to run; what is written does not depend on it where
    it equals the target's own text, and keeps its law otherwise.
    """

    adapt: bool
    rates: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    rounds: int = 0

    def drafts(self) -> bool:
        """Whether the next round drafts."""
        if not self.adapt:
            return True
        for kind in (True, False):
            if len(self.rates[kind]) < TRIALS:
                return kind
        best = max((True, False), key=lambda kind: sorted(self.rates[kind])[len(self.rates[kind]) // 2])
        return not best if self.rounds % PATIENCE == PATIENCE - 1 else best

    def saw(self, drafted: bool, tokens: int, seconds: float) -> None:
        """A round wrote so many tokens."""
        self.rounds += 1
        self.rates[drafted] = [*self.rates[drafted][-8:], tokens / max(seconds, 1e-9)]


def drive(
    target: Target,
    drafter: Drafter | None,
    texts: Sequence[Text],
    *,
    gen_length: int,
    eos: Sequence[int],
    verification: Verification,
    adapt: bool = False,
    halt: Callable[[int, Text], bool] | None = None,
) -> Generator[list[int], None, Totals]:
    """Write until every text has ended; the numbers of the texts that a round changed after each; what it cost.

    A text ends with a token of `eos`, after `gen_length` tokens, or where `halt(number, text)` says so. Nothing is
    written behind an end that lies inside an accepted run. Raises TrajspecError for logits that are no numbers.
    """
    live = [number for number, text in enumerate(texts) if gen_length > 0]
    for number, text in enumerate(texts):
        if number not in live:
            text.ended = "length"
    total = Totals()
    reading = target.read(len(live))
    unread = [text.ids for text in texts]
    lengths = Lengths(drafter.drafting, len(texts)) if drafter is not None else None
    pace = Pace(adapt)
    several = drafter.drafting.drafts if drafter is not None else 1
    if several > 1 and live:
        _prefill(target, reading, texts, live, unread, total)
    while live:
        began = time.perf_counter()
        left = [gen_length - (len(texts[number].ids) - texts[number].start) for number in live]
        drafted: Drafted | None = None
        if drafter is not None and lengths is not None and pace.drafts():
            # One token more than is drafted is written, so the last one is never worth a draft.
            want = [min(lengths.of(number), rest - 1) for number, rest in zip(live, left, strict=True)]
            if max(want) > 0:
                drafted = _draft(drafter, texts, live, left, want, target, total)
        count = several if drafted is not None else 1
        logits, width = _call(target, reading, texts, live, unread, drafted, count, total)
        told = _judge(verification, texts, live, logits, drafted, target)
        written = _write(texts, live, told, drafted, left, eos, lengths)
        pace.saw(drafted is not None, sum(map(len, written)), time.perf_counter() - began)
        index = [row * count + int(best) for row, best in enumerate(told.best.tolist())]
        if count > 1:
            reading.rows(index)
        kept = torch.zeros(len(live), width, dtype=torch.bool, device=target.device)
        for row, number in enumerate(live):
            kept[row, : len(unread[number]) + len(written[row]) - 1] = True
            unread[number] = texts[number].ids[-1:]
        reading.keep(kept)
        changed = list(live)
        yield changed
        for number in changed:
            if halt is not None and texts[number].ended is None and halt(number, texts[number]):
                texts[number].ended = "stop"
        rest = [row for row, number in enumerate(live) if texts[number].ended is None]
        if len(rest) < len(live):
            reading.rows(rest)
            live = [live[row] for row in rest]
    return total


def _prefill(
    target: Target, reading: Reading, texts: Sequence[Text], live: Sequence[int], unread: list[Tensor], total: Totals
) -> None:
    """Read all but the last token of every prompt once, before drafts make several rows of it."""
    parts = [unread[number][:-1] for number in live]
    width = max(map(len, parts))
    if width == 0:
        return
    tokens, exists = _stacked(parts, width, target)
    reading.logits(tokens, exists)
    total.calls, total.rows, total.positions = total.calls + 1, total.rows + len(live), total.positions + tokens.numel()
    for number, part in zip(live, parts, strict=True):
        texts[number].calls, texts[number].rows = texts[number].calls + 1, texts[number].rows + 1
        texts[number].positions += len(part)
        unread[number] = unread[number][-1:]


def _stacked(parts: Sequence[Tensor], width: int, target: Target) -> tuple[Tensor, Tensor]:
    tokens = torch.full((len(parts), width), target.pad_id, device=target.device)
    exists = torch.zeros(len(parts), width, dtype=torch.bool, device=target.device)
    for row, part in enumerate(parts):
        tokens[row, : len(part)], exists[row, : len(part)] = part, True
    return tokens, exists


def _draft(
    drafter: Drafter, texts: Sequence[Text], live: Sequence[int], left: Sequence[int], want: Sequence[int],
    target: Target, total: Totals,
) -> Drafted:  # fmt: skip
    before = drafter.calls
    seed, done, _ = _keys(texts, live, target)
    with torch.inference_mode():
        made = drafter.draft([texts[number].ids for number in live], left, want, target.vocab_size, seed, done)
    total.drafter_calls += drafter.calls - before
    for row, number in enumerate(live):
        text = texts[number]
        calls, rows = drafter.asks(want[row])
        text.drafter_calls, text.drafter_rows = text.drafter_calls + calls, text.drafter_rows + rows
        text.drafter_positions += rows * (len(text.ids) + left[row])
        text.drafted += max(want[row], 0) * made.tokens.shape[1]
    return made


def _call(
    target: Target, reading: Reading, texts: Sequence[Text], live: Sequence[int], unread: Sequence[Tensor],
    drafted: Drafted | None, count: int, total: Totals,
) -> tuple[Tensor, int]:  # fmt: skip
    """The target's logits [R, K, k + 1, V] after the text and every drafted token; the columns of the call."""
    parts: list[Tensor] = []
    for row, number in enumerate(live):
        for draft in range(count):
            more = [] if drafted is None else [drafted.tokens[row, draft, : max(int(drafted.lengths[row]), 0)]]
            parts.append(torch.cat([unread[number], *more]))
    if count > 1:
        reading.rows([row for row in range(len(live)) for _ in range(count)])
    width = max(map(len, parts))
    tokens, exists = _stacked(parts, width, target)
    logits = reading.logits(tokens, exists)
    if bool(logits.isnan().any()):
        raise TrajspecError(f"{target.name}: a logit is NaN; check the weights, the dtype and the attention mask")
    total.calls, total.rows = total.calls + 1, total.rows + len(parts)
    total.positions += tokens.numel()
    k = 0 if drafted is None else drafted.tokens.shape[2]
    last = torch.tensor([len(unread[number]) - 1 for number in live], device=target.device).repeat_interleave(count)
    columns = (last[:, None] + torch.arange(k + 1, device=target.device)).clamp(max=width - 1)
    wide = columns[..., None].expand(-1, -1, logits.shape[-1])
    for row, number in enumerate(live):
        text = texts[number]
        text.calls, text.rows = text.calls + 1, text.rows + count
        text.positions += sum(len(part) for part in parts[row * count : (row + 1) * count])
    return logits.gather(1, wide).unflatten(0, (len(live), count)), width


def _keys(texts: Sequence[Text], live: Sequence[int], target: Target) -> tuple[Tensor, Tensor, Tensor]:
    seed, done, start = zip(
        *((texts[n].seed, len(texts[n].ids) - texts[n].start, texts[n].start) for n in live), strict=True
    )
    return tuple(torch.tensor(part, dtype=torch.int64, device=target.device) for part in (seed, done, start))  # type: ignore[return-value]


def _judge(
    verification: Verification, texts: Sequence[Text], live: Sequence[int], logits: Tensor, drafted: Drafted | None,
    target: Target,
) -> Judged:  # fmt: skip
    seed, done, start = _keys(texts, live, target)
    seen = None
    if verification.processing.repetition_penalty != 1:
        seen = torch.zeros(len(live), logits.shape[-1], dtype=torch.bool, device=target.device)
        for row, number in enumerate(live):
            seen[row, texts[number].ids] = True
    if drafted is None:
        empty = torch.zeros(len(live), logits.shape[1], 0, dtype=torch.int64, device=target.device)
        return judge(verification, logits, empty, torch.zeros_like(done), None if verification.level != "law" else
                     logits.new_zeros(*empty.shape, logits.shape[-1]), seed, done, start, seen)  # fmt: skip
    lengths = drafted.lengths.clamp(min=0)
    return judge(verification, logits, drafted.tokens, lengths, drafted.law, seed, done, start, seen)


def _write(
    texts: Sequence[Text], live: Sequence[int], told: Judged, drafted: Drafted | None, left: Sequence[int],
    eos: Sequence[int], lengths: Lengths | None,
) -> list[list[int]]:  # fmt: skip
    """Append what the round wrote, up to an end; what that was, row by row."""
    out = []
    for row, number in enumerate(live):
        text = texts[number]
        new = told.tokens[row, : int(told.count[row])].tolist()[: left[row]]
        end = next((at for at, token in enumerate(new) if token in eos), None)
        if end is not None:
            new, text.ended = new[: end + 1], "eos"
        elif len(new) == left[row]:
            text.ended = "length"
        if drafted is not None:
            accepted = int(told.count[row]) - 1
            text.accepted.append(min(accepted, len(new)))
            if lengths is not None:
                lengths.saw(number, accepted)
        at = len(text.ids)
        text.path += [[(at + place, token)] for place, token in enumerate(new)]
        text.ids = torch.cat([text.ids, torch.tensor(new, dtype=torch.int64, device=text.ids.device)])
        out.append(new)
    return out


__all__ = ["Pace", "Text", "Totals", "drive"]
