"""The rounds of the runtime under the checker: arbitrary small models as targets, arbitrary drafts, the base a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import trajspec as ts
from trajspec.completion import loop
from trajspec.completion.drafts import Drafted, Drafting
from trajspec.completion.loop import Text, drive
from trajspec.completion.verify import Processing, Verification
from trajspec.policies import POLICIES

BASE = POLICIES["autoregressive"]


class Tabular:
    """A small model as a target: what it says of the first masked position, for every text that was read."""

    name, pad_id, device = "tabular", 0, torch.device("cpu")

    def __init__(self, denoise: Any, canvas: np.ndarray) -> None:
        self.denoise, self.canvas, self.places = denoise, canvas, np.flatnonzero(canvas < 0)
        self.vocab_size = denoise.vocab_size

    def read(self, rows: int) -> Tabular.Reading:
        return Tabular.Reading(self, rows)

    class Reading:
        def __init__(self, target: Tabular, rows: int) -> None:
            self.target, self.texts = target, [[] for _ in range(rows)]
            self.before: list[list[int]] = []

        def logits(self, tokens: torch.Tensor, exists: torch.Tensor) -> torch.Tensor:
            self.before = [list(text) for text in self.texts]
            out = torch.zeros(*tokens.shape, self.target.vocab_size, dtype=torch.float64)
            for row, (ids, there) in enumerate(zip(tokens.tolist(), exists.tolist(), strict=True)):
                for column, token in enumerate(ids):
                    if there[column]:
                        self.texts[row].append(token)
                        out[row, column] = torch.from_numpy(
                            self._say(self.texts[row][1:])
                        )  # the first is a start token
            return out

        def _say(self, written: list[int]) -> np.ndarray:
            target, state = self.target, self.target.canvas.copy()
            state[target.places[: len(written)]] = written[: len(target.places)]
            if len(written) >= len(target.places):
                return np.zeros(target.vocab_size)
            return target.denoise(state[None])[0, target.places[len(written)]]

        def keep(self, kept: torch.Tensor) -> None:
            for row, flags in enumerate(kept.tolist()):
                old = self.before[row]
                self.texts[row] = old + self.texts[row][len(old) :][: sum(flags)]

        def rows(self, index: Any) -> None:
            self.texts = [list(self.texts[row]) for row in index]
            self.before = [list(self.before[row]) for row in index] if self.before else []


class Chains:
    """Drafts out of the arbitrary chains of states that the checker proposes."""

    calls = rows = positions = 0

    def __init__(self, target: Tabular, drafter: Any, drafts: int) -> None:
        self.target, self.drafter, self.drafting = target, drafter, Drafting(drafts=drafts)

    def asks(self, want: int) -> tuple[int, int]:
        return 1, 1

    def draft(self, texts: Any, left: Any, want: Any, vocab_size: int, seed: Any, done: Any) -> Drafted:
        target, written = self.target, texts[0].tolist()[1:]
        state = target.canvas.copy()
        state[target.places[: len(written)]] = written
        found = [chain[-1][target.places[len(written) :]] for chain in self.drafter(state) if len(chain)]
        drafts = [np.where(tokens < 0, 0, tokens) for tokens in found] or [np.zeros(max(want), np.int64)]
        count = self.drafting.drafts
        drafts = (drafts * count)[:count]
        width = max(want)
        tokens = np.zeros((1, count, width), np.int64)
        for number, one in enumerate(drafts):
            tokens[0, number, : len(one[:width])] = one[:width]
        return Drafted(torch.from_numpy(tokens), torch.tensor([min(want[0], width)]), None)


def program(drafts: int = 1, judge: Any = None):
    """What `drive` does with one text, as a decoder for the checker."""

    def run(denoise: Any, canvas: np.ndarray, seed: int, drafter: Any, log: Any) -> list[np.ndarray]:
        target = Tabular(denoise, canvas)
        text = Text(torch.tensor([0]), 1, seed)
        chains = Chains(target, drafter, drafts)
        driver = drive(
            target, chains, [text], gen_length=len(target.places), eos=(),
            verification=Verification("equality", Processing()),
        )  # fmt: skip
        for _ in driver:
            pass
        states = [canvas.copy()]
        for place, token in zip(target.places, text.answer, strict=True):
            states.append(states[-1].copy())
            states[-1][place] = token
        for accepted in text.accepted:
            log.round(len(target.places), accepted)
        return states

    return run


def test_no_counterexample():
    for drafts in (1, 2, 3):
        verdict = ts.check(program(drafts), against=BASE, examples=250, seed=drafts)
        assert not verdict.refuted, str(verdict)
        assert verdict.drafted > verdict.accepted > 20


def test_flaws_of_the_rounds_are_found(monkeypatch):
    """Controls: a token too many kept, a draft taken without a look, the wrong end of the draft read."""
    judge = loop.judge

    def trusting(verification, logits, drafted, lengths, *rest):
        told = judge(verification, logits, drafted, lengths, *rest)
        told.tokens[:, : drafted.shape[2]] = torch.where(
            torch.arange(drafted.shape[2]) < lengths[:, None], drafted[:, 0], told.tokens[:, : drafted.shape[2]]
        )
        return told

    def shifted(verification, logits, *rest):
        return judge(verification, logits.roll(1, 2), *rest)

    def one_more(verification, logits, drafted, lengths, *rest):
        told = judge(verification, logits, drafted, lengths, *rest)
        told.count = (told.count + 1).clamp(max=drafted.shape[2] + 1)
        return told

    for flaw in (trusting, shifted, one_more):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "judge", flaw)
            verdict = ts.check(program(), against=BASE, examples=400, seed=5)
        assert verdict.refuted, flaw.__name__
