"""Small models for tests of decoding: one with text, one that counts its calls, one that answers in a given dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from trajspec.policies import POLICIES
from trajspec.runtime.models import Model

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,"
PAD, MASK, EOS = len(LETTERS), len(LETTERS) + 1, len(LETTERS) + 2


def further(policy: str, model: Any) -> dict[str, Any]:
    """The option of decode that brings `model` as every further model that the policy of this name asks."""
    names = POLICIES[policy].plan().models
    return {"models": dict.fromkeys(names, model)} if names else {}


class Letters:
    """One token a letter; pad and EOS are silent, a mask is written `_`."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        return [MASK if letter == "_" else LETTERS.index(letter) for letter in text]

    def content(self, ids: Iterable[int]) -> list[int]:
        return [token for token in ids if token < PAD or token == MASK]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join("_" if token == MASK else LETTERS[token] for token in self.content(ids))


def text_model(answer: str, *, sure: Mapping[int, float] | None = None, start: int = 0) -> Model:
    """A model that wants to write `answer` from position `start` on ($ is EOS, . after its end).

    `sure` gives the logit of single positions of the answer (default 5): the surer, the sooner it is written.
    """
    ids = [EOS if letter == "$" else LETTERS.index(letter) for letter in answer]

    def denoise(tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, EOS + 1)
        for row in range(tokens.shape[0]):
            for entry, position in enumerate(positions[row].tolist()):
                place = position - start
                token = ids[place] if 0 <= place < len(ids) else LETTERS.index(".")
                logits[row, entry, token] = (sure or {}).get(place, 5.0)
        return logits

    return Model(
        name="letters", kind="text", vocab_size=EOS + 1, mask_id=MASK, pad_id=PAD, eos_ids=(EOS,),
        banned_ids=(PAD, MASK), max_positions=64, dtype=torch.float32, device=torch.device("cpu"), codec=Letters(),
        denoise=denoise, network=nn.Module(),
    )  # fmt: skip


class Counting:
    """A numpy denoiser that notes what it was asked."""

    def __init__(self, model: Any, **attributes: Any) -> None:
        self.model, self.vocab_size, self.mask_id = model, model.vocab_size, model.mask_id
        self.asked: list[np.ndarray] = []
        self.__dict__.update(attributes)

    @property
    def calls(self) -> int:
        return len(self.asked)

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        self.asked.append(np.array(tokens))
        return self.model(tokens, positions, visible)


class Shelf:
    """An arbitrary function of the canvas whose answers are rows off a small shelf, so positions tie bit for bit.

    Rows with the same logits in another order would tie only in real arithmetic: their sums differ in the last bit,
    and which of them is larger depends on the order in which a library adds. The rows here are not of that kind.
    """

    def __init__(self, chooser: Any, rows: int, seed: int) -> None:
        self.chooser, self.vocab_size, self.mask_id = chooser, chooser.vocab_size, chooser.mask_id
        self.rows = np.random.Generator(np.random.Philox(seed)).normal(0, 3, (rows, self.vocab_size))
        self.seed = seed
        self.others = chooser.others

    def tie_tokens(self) -> None:
        """Let the likeliest tokens of every other row tie: for argmax only, since a drawn one of them ties as above."""
        for row in self.rows[::2]:
            row[self.seed % self.vocab_size] = row[(self.seed // 7) % self.vocab_size] = row.max()

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        said = self.chooser(tokens, positions, visible)
        at = (said * 1e3).astype(np.int64) @ np.arange(1, self.vocab_size + 1)
        return self.rows[at % len(self.rows)]


class InTorch:
    """A numpy denoiser that answers in a torch dtype."""

    device = torch.device("cpu")

    def __init__(self, model: Any, dtype: torch.dtype = torch.float32) -> None:
        self.model, self.dtype, self.vocab_size, self.mask_id = model, dtype, model.vocab_size, model.mask_id
        self.others = {name: InTorch(other, dtype) for name, other in getattr(model, "others", {}).items()}

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        shown = None if visible is None else visible.numpy()
        return torch.from_numpy(self.model(tokens.numpy(), positions.numpy(), shown)).to(self.dtype)


class Edited:
    """A denoiser whose logits are changed by edit(logits, tokens, positions, visible) in every call."""

    def __init__(self, model: Any, edit: Callable[..., None]) -> None:
        self.model, self.edit, self.vocab_size, self.mask_id = model, edit, model.vocab_size, model.mask_id

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        logits = np.array(self.model(tokens, positions, visible))
        self.edit(logits, tokens, positions, visible)
        return logits


def logits_for(probabilities: Sequence[float], token: int = 3, vocab_size: int = 8) -> list[dict[int, float]]:
    """Rows for FixedModel with which `token` has these probabilities among the ids other than the last, the mask."""
    return [{token: float(np.log(p * (vocab_size - 2) / (1 - p)))} for p in probabilities]
