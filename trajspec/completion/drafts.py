"""How a diffusion model drafts what an autoregressive target may write next.

A draft is tokens and, for rejection, the law they were drawn with. That law has to be the one of a token given all that
the draft used so far (theorem G2): so it is for positions drawn apart from one call, from the left one by one, and
apart given a hint. Tokens revealed in any other order, with the probabilities they had when they were revealed, are
compared only (`equality`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ir.errors import TrajspecError
from ..ir.noise import ROLES
from ..runtime import noise
from ..runtime.meanings.score import first_max
from ..runtime.query import FLOOR
from .verify import Processing

#: What the text needs to name a form by, and whether its tokens have a law that rejection may use.
FORMS: dict[str, bool] = {
    "mean_field": True,
    "left_to_right": True,
    "two_phase": True,
    "denoise": False,
    "search": False,
}
#: How many drafts of one round are told apart in the noise's key.
MOST_DRAFTS = 64


@dataclass(frozen=True)
class Drafting:
    """How to draft: a form of FORMS, `length` tokens ("adaptive": as many as went well lately), `drafts` of them.

    mean_field: all positions from one call, each drawn by itself (SpecDiff in one step). left_to_right: one call a
    token. two_phase: half of the positions see a hint of the other half, and the other way round. denoise:
    `steps` calls, the surest positions first, as diffusion models write. search: the path through the likeliest tokens
    of one call that reads best from left to right, by counts of the text so far (DiffuSpec, arXiv 2510.02358).

    block_length: of drafters that see whole blocks and nothing behind them, counted from the start of the text (SDAR,
    Fast-dLLM v2, LLaDA2); None: the drafter sees the whole canvas.
    """

    form: str = "mean_field"
    length: int | str = 8
    drafts: int = 1
    steps: int = 4
    block_length: int | None = None

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise TrajspecError(f"draft is {self.form!r}, expected one of: {', '.join(FORMS)}")
        for name, least in (("length", 1), ("drafts", 1), ("steps", 1)):
            value = getattr(self, name)
            if name == "length" and value == "adaptive":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                also = " or 'adaptive'" if name == "length" else ""
                raise TrajspecError(f"{name} is {value!r}, expected a whole number from {least} up{also}")
        block = self.block_length
        if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
            raise TrajspecError(f"block_length is {block!r}, expected a whole number from 1 up, or None")
        if self.drafts > MOST_DRAFTS:
            raise TrajspecError(f"drafts is {self.drafts}, expected at most {MOST_DRAFTS} a round")
        if self.drafts > 1 and self.form != "mean_field":
            raise TrajspecError(
                f"drafts={self.drafts}: several drafts of a round are drawn apart from one call (mean_field), and the "
                f"form is {self.form}"
            )


@dataclass
class Drafted:
    """`tokens` int64 [R, K, k] of which `lengths` [R] are meant, `law` [R, K, k, V] their log probabilities or None."""

    tokens: Tensor
    lengths: Tensor
    law: Tensor | None


class Drafter:
    """A diffusion model that drafts; counts what it is asked, by row."""

    def __init__(
        self, model: Any, drafting: Drafting, processing: Processing, ids: Tensor | None, by_law: bool
    ) -> None:
        """`ids` int64 [V of the model]: the target's id of each of its ids, -1 for none; None: they are the same."""
        self.model, self.drafting, self.processing, self.ids, self.by_law = model, drafting, processing, ids, by_law
        self.calls = self.rows = self.positions = 0

    def asks(self, want: int) -> tuple[int, int]:
        """Calls and sequences in them for a draft of `want` tokens of one text."""
        if want < 1:
            return 0, 0
        steps = {"left_to_right": want, "two_phase": 2, "denoise": min(self.drafting.steps, want)}
        calls = steps.get(self.drafting.form, 1)
        return calls, calls + (self.drafting.form == "two_phase")

    def draft(
        self, texts: Sequence[Tensor], left: Sequence[int], want: Sequence[int], vocab_size: int, seed: Tensor,
        done: Tensor,
    ) -> Drafted:  # fmt: skip
        """Drafts of `want` tokens, at most, after each of `texts` (the target's ids); `left`: how many the row has
        left to write, which is what the model is shown as masks."""
        k = max(max(want), 1)
        lengths = torch.tensor([min(one, k) for one in want], device=seed.device)
        canvas, masked, position = self._canvas(texts, left, k, vocab_size)
        first = torch.tensor([len(text) for text in texts], device=seed.device)
        columns = first[:, None] + torch.arange(k, device=seed.device)
        draw = self._draw(seed, done, first, vocab_size)
        # What a row gets must not depend on how much its neighbours want.
        told = (lengths,) if self.drafting.form in ("two_phase", "denoise", "search") else ()
        tokens, law = getattr(self, f"_{self.drafting.form}")(canvas, masked, position, columns, draw, *told)
        return Drafted(tokens, lengths, law if self.by_law else None)

    def _canvas(
        self, texts: Sequence[Tensor], masks: Sequence[int], k: int, vocab_size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (the model's ids), which are masks, and positions (negative on padding), each [R, L], with room for k
        columns behind every text."""
        length = max(len(text) + max(count, k) for text, count in zip(texts, masks, strict=True))
        device, rows = texts[0].device, len(texts)
        canvas = torch.full((rows, length), self.model.mask_id, device=device)
        masked = torch.zeros(rows, length, dtype=torch.bool, device=device)
        position = torch.arange(length, device=device).repeat(rows, 1)
        back = self._back(vocab_size)
        for row, (text, count) in enumerate(zip(texts, masks, strict=True)):
            canvas[row, : len(text)] = back[text]
            masked[row, len(text) : len(text) + count] = True
            position[row, len(text) + count :] = -1
        return canvas, masked, position

    def _ask(self, canvas: Tensor, position: Tensor, columns: Tensor) -> Tensor:
        """The model's logits at `columns` [R, k], float64 [R, k, V], what it may not write impossible."""
        real = position >= 0
        visible = None if bool(real.all()) else real[:, None, :] & real[:, :, None]
        if self.drafting.block_length is not None:
            number = position // self.drafting.block_length
            inside = number[:, None, :] <= number[:, :, None]
            visible = inside if visible is None else inside & visible
        self.calls, self.rows = self.calls + 1, self.rows + len(canvas)
        self.positions += canvas.numel()
        logits = self.model(canvas, position.clamp(min=0), visible)
        logits = logits.gather(1, columns[..., None].expand(-1, -1, logits.shape[-1])).double()
        return logits.index_fill(-1, torch.tensor(list(self.model.banned_ids), device=logits.device), FLOOR)

    def _draw(self, seed: Tensor, done: Tensor, first: Tensor, vocab_size: int) -> Callable[..., tuple[Tensor, Tensor]]:
        """Tokens drawn from logits of `columns`, in the target's ids, and the log probabilities of all tokens there.

        What is compared only is drawn with the noise that the target will draw with, since the same noise makes the
        same token of laws that are alike (theorem B3); what is judged by its law has noise of its own.
        """

        def draw(logits: Tensor, columns: Tensor, number: int = 0, role: str = "draft") -> tuple[Tensor, Tensor]:
            law = self.processing(self._ours(logits, vocab_size)).double()
            # A cut leaves FLOOR, whose probability is 0.
            law = law.masked_fill(law <= FLOOR, -torch.inf).log_softmax(-1)
            if self.processing.temperature == 0:
                return first_max(law), law
            ids = torch.arange(law.shape[-1], device=law.device)
            # A round never begins where another one began, so the key is new.
            step = (done * MOST_DRAFTS + number)[:, None, None]
            if not self.by_law and role == "draft" and number == 0:
                role, step = "tok", (done[:, None] + columns - first[:, None])[..., None]
            noisy = noise.gumbel(seed[:, None, None], ROLES[role], step, columns[..., None], ids)
            return first_max(law + noisy), law

        return draw

    def _ours(self, logits: Tensor, vocab_size: int) -> Tensor:
        """Logits in the target's ids; those that the drafter lacks are impossible, which renormalises the others."""
        if self.ids is None and logits.shape[-1] == vocab_size:
            return logits
        out = logits.new_full((*logits.shape[:-1], vocab_size), FLOOR)
        ids = torch.arange(logits.shape[-1], device=logits.device) if self.ids is None else self.ids
        there = ((ids >= 0) & (ids < vocab_size)).nonzero()[:, 0]
        return out.index_copy(-1, ids[there], logits.index_select(-1, there))

    def _back(self, vocab_size: int) -> Tensor:
        """int64 [vocab_size]: the model's id of each of the target's ids; its first for those that it lacks."""
        ids = torch.arange(self.model.vocab_size) if self.ids is None else self.ids.cpu()
        back = torch.zeros(vocab_size, dtype=torch.int64)
        there = ((ids >= 0) & (ids < vocab_size)).nonzero()[:, 0]
        return back.index_copy(0, ids[there], there).to(self.model.device)

    def _theirs(self, tokens: Tensor) -> Tensor:
        """Tokens that were drafted, in the model's ids."""
        return tokens if self.ids is None else self._back(int(self.ids.max()) + 1)[tokens]

    def _mean_field(self, canvas: Any, masked: Any, position: Any, columns: Tensor, draw: Any) -> Any:
        logits = self._ask(self._masks(canvas, masked), position, columns)
        made = [draw(logits, columns, number) for number in range(self.drafting.drafts)]
        return torch.stack([token for token, _ in made], 1), torch.stack([law for _, law in made], 1)

    def _left_to_right(self, canvas: Tensor, masked: Tensor, position: Tensor, columns: Tensor, draw: Any) -> Any:
        tokens, laws = [], []
        canvas, masked = canvas.clone(), masked.clone()
        for at in range(columns.shape[1]):
            one = columns[:, at : at + 1]
            token, law = draw(self._ask(self._masks(canvas, masked), position, one), one)
            canvas.scatter_(1, one, self._theirs(token))
            masked.scatter_(1, one, False)
            tokens.append(token)
            laws.append(law)
        return torch.cat(tokens, 1)[:, None], torch.cat(laws, 1)[:, None]

    def _two_phase(
        self, canvas: Tensor, masked: Tensor, position: Tensor, columns: Tensor, draw: Any, lengths: Tensor
    ) -> Any:
        logits = self._ask(self._masks(canvas, masked), position, columns)
        # The hint has noise of its own: what is drawn in the end may know it, and must not be it.
        hint, _ = draw(logits, columns, role="ord")
        place = torch.arange(columns.shape[1], device=columns.device)
        odd, wanted = place % 2 == 1, place < lengths[:, None]
        parts = []
        for shown in (odd & wanted, ~odd & wanted):
            seen, hidden = canvas.clone(), masked.clone()
            seen.scatter_(1, columns, torch.where(shown, self._theirs(hint), self.model.mask_id))
            hidden.scatter_(1, columns, masked.gather(1, columns) & ~shown)
            parts.append(self._masks(seen, hidden))
        both = self._ask(torch.cat(parts), position.repeat(2, 1), columns.repeat(2, 1)).unflatten(0, (2, -1))
        token, law = draw(torch.where(odd[:, None], both[1], both[0]), columns)
        return token[:, None], law[:, None]

    def _denoise(
        self, canvas: Tensor, masked: Tensor, position: Tensor, columns: Tensor, draw: Any, lengths: Tensor
    ) -> Any:
        canvas, masked = canvas.clone(), masked.clone()
        wanted = torch.arange(columns.shape[1], device=columns.device) < lengths[:, None]
        tokens = torch.zeros_like(columns)
        for number in range(min(self.drafting.steps, columns.shape[1])):
            hidden = masked.gather(1, columns) & wanted
            token, law = draw(self._ask(self._masks(canvas, masked), position, columns), columns, number)
            sure = law.gather(-1, token[..., None])[..., 0].masked_fill(~hidden, -torch.inf)
            # An even share of what the row wants, in as many steps as it has tokens for.
            goal = lengths - (lengths * (number + 1)) // lengths.clamp(min=1, max=self.drafting.steps)
            rank = sure.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
            chosen = hidden & (rank < (hidden.sum(-1) - goal)[:, None])
            tokens = torch.where(chosen, token, tokens)
            canvas.scatter_(1, columns, torch.where(chosen, self._theirs(token), canvas.gather(1, columns)))
            masked.scatter_(1, columns, masked.gather(1, columns) & ~chosen)
        return tokens[:, None], None

    def _search(
        self, canvas: Tensor, masked: Tensor, position: Tensor, columns: Tensor, draw: Any, lengths: Tensor
    ) -> Any:
        from .search import best_paths

        logits = self._ask(self._masks(canvas, masked), position, columns)
        _, law = draw(logits, columns)
        texts = [row[: int(first)].tolist() for row, first in zip(canvas, columns[:, 0], strict=True)]
        if self.ids is not None:
            texts = [self.ids[torch.tensor(text, dtype=torch.int64)].tolist() for text in texts]
        rows = [row[: int(count)] for row, count in zip(law.exp().cpu(), lengths, strict=True)]
        tokens = torch.zeros_like(columns)
        for number, path in enumerate(best_paths(rows, texts)):
            tokens[number, : len(path)] = torch.tensor(path, dtype=torch.int64)
        return tokens[:, None], None

    def _masks(self, canvas: Tensor, masked: Tensor) -> Tensor:
        return torch.where(masked, self.model.mask_id, canvas)


class Lengths:
    """How long the next draft of each row is: always the same, or twice what was accepted lately, plus two."""

    def __init__(self, drafting: Drafting, rows: int, most: int = 32) -> None:
        self.fixed = drafting.length if isinstance(drafting.length, int) else None
        self.most, self.lately = most, [4.0] * rows

    def of(self, row: int) -> int:
        """How many tokens to draft for `row`."""
        return self.fixed or min(self.most, 2 + round(2 * self.lately[row]))

    def saw(self, row: int, accepted: int) -> None:
        """So many drafted tokens of `row` were accepted."""
        self.lately[row] += (accepted - self.lately[row]) / 2


def same_tokens(target: Any, model: Any) -> Tensor | None:
    """The target's id of each id of the drafter, -1 for none: None when the two vocabularies are one.

    Raises TrajspecError when the vocabularies share too little to draft, naming the first tokens that differ.
    """
    if target.codec is None or model.codec is None:
        if target.vocab_size == model.vocab_size:
            return None  # token ids in, token ids out: that they mean the same is the caller's word
        raise TrajspecError(
            f"{target.name} has {target.vocab_size} ids and {model.name} {model.vocab_size}, and without both "
            "tokenizers nothing says which are the same; load them with their tokenizer files"
        )
    mine, theirs = (codec.tokenizer.get_vocab() for codec in (target.codec, model.codec))
    if mine == theirs or all(mine.get(token) == number for token, number in theirs.items()):
        return None
    ids = torch.full((model.vocab_size,), -1)
    for token, number in theirs.items():
        if token in mine and number < model.vocab_size:
            ids[number] = mine[token]
    special = set(model.codec.tokenizer.all_special_tokens)
    lacking = sorted((number, token) for token, number in theirs.items() if token not in mine and token not in special)
    if 2 * len(lacking) > len(theirs):
        shown = ", ".join(f"{token!r} ({number})" for number, token in lacking[:3])
        raise TrajspecError(
            f"the tokenizers of {target.name} and {model.name} do not agree: {len(lacking)} of {len(theirs)} tokens of "
            f"the drafter are none of the target's, {shown} first; draft with a model of the target's tokenizer"
        )
    text = "The quick brown fox, 42 times."
    if [mine.get(t) for t in model.codec.tokenizer.tokenize(text)] != target.codec.tokenizer.convert_tokens_to_ids(
        target.codec.tokenizer.tokenize(text)
    ):
        raise TrajspecError(
            f"the tokenizers of {target.name} and {model.name} cut {text!r} differently; draft with a model of the "
            "target's tokenizer"
        )
    return ids.to(model.device)


__all__ = ["FORMS", "MOST_DRAFTS", "Drafted", "Drafter", "Drafting", "Lengths", "same_tokens"]
