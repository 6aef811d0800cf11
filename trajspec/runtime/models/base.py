"""What decoding needs of a model: logits for a query, and the way between text and a canvas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from trajspec.ir.errors import TrajspecError

Denoise = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Written:
    """A text as token ids, before it becomes a canvas.

    `tokens` are its ids; `masked` says which of them are to be filled in, a plane of its own: a token equal to the mask
    id is data where `masked` is False. `prompt_length` counts the entries before the generated part, 0 for infilling;
    `suffix_length` counts those after it (a closing [SEP] behind a continuation), which belong to no answer.
    """

    tokens: list[int]
    masked: list[bool]
    prompt_length: int
    suffix_length: int = 0

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.masked):
            raise TrajspecError(f"a canvas needs one mask flag a token, got {len(self.tokens)} and {len(self.masked)}")

    def __len__(self) -> int:
        return len(self.tokens)


class Codec(Protocol):
    """A model's writing: text to ids and back. `prefix` and `suffix` are the ids that frame every input."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """The ids of `text` without the frame. Raises TrajspecError for text the vocabulary cannot write."""

    def content(self, ids: Iterable[int]) -> list[int]:
        """`ids` without the tokens that stand for no text (frame, padding); masks stay."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `content(ids)`."""


@dataclass(frozen=True, eq=False)
class Model:
    """A denoiser over torch tensors, with its constants and its text.

    `kind`: "text" continues a prompt, "infill" was trained to fill masks and treats a continuation as masks before its
    closing token. `banned_ids`: never predicted (the mask, the special tokens, ids without a token). `eos_ids`: empty
    for "infill". `max_positions`: the longest canvas, frame included; None: no limit. `network`: the transformers
    module behind `denoise`.
    """

    name: str
    kind: Literal["text", "infill"]
    vocab_size: int
    mask_id: int
    pad_id: int
    eos_ids: tuple[int, ...]
    banned_ids: tuple[int, ...]
    max_positions: int | None
    dtype: torch.dtype
    device: torch.device
    codec: Codec
    denoise: Denoise
    network: nn.Module

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None = None) -> Tensor:
        """Logits [R, W, V] in `dtype`; entry i's logits predict entry i.

        `tokens`, `positions` int64 [R, W] on `device`; `visible` bool [R, W, W] or None, where visible[r, i, j] lets
        query i read key j. Positions count from the row's first real token; padding may have any position below 0 and
        is hidden by `visible` alone. A query that sees nothing gets finite logits. Positions are not compared with
        `max_positions` here, since that would read the device: the encode functions do it before any call.

        Raises TrajspecError for shapes or kinds other than these.
        """
        if tokens.dim() != 2 or positions.shape != tokens.shape:
            raise TrajspecError(
                f"{self.name}: tokens and positions must both be [rows, width], "
                f"got {list(tokens.shape)} and {list(positions.shape)}"
            )
        if visible is not None and (visible.dtype != torch.bool or visible.shape != (*tokens.shape, tokens.shape[1])):
            raise TrajspecError(
                f"{self.name}: visible must be bool {[*tokens.shape, tokens.shape[1]]}, "
                f"got {visible.dtype} {list(visible.shape)}"
            )
        return self.denoise(tokens, positions, visible)

    def encode_prompt(self, text: str, gen_length: int) -> Written:
        """`text` followed by `gen_length` masks. Everything in `text` is data, a written mask token too.

        Raises TrajspecError for a `gen_length` below 1, a canvas above `max_positions`, or text without tokens for it.
        """
        if isinstance(gen_length, bool) or not isinstance(gen_length, int) or gen_length < 1:
            raise TrajspecError(f"{self.name}: gen_length must be a whole number from 1 upward, got {gen_length!r}")
        codec = self.codec
        prompt = [*codec.prefix, *codec.encode(text)]
        tokens = [*prompt, *[self.mask_id] * gen_length, *codec.suffix]
        masked = [len(prompt) <= i < len(prompt) + gen_length for i in range(len(tokens))]
        self._check_length(len(tokens), f"prompt {len(prompt)} + gen_length {gen_length} + closing {len(codec.suffix)}")
        return Written(tokens, masked, len(prompt), len(codec.suffix))

    def encode_infill(self, text: str) -> Written:
        """`text` with its written mask tokens to be filled in and everything else kept.

        Raises TrajspecError for a canvas above `max_positions`, or text without tokens for it.
        """
        codec = self.codec
        tokens = [*codec.prefix, *codec.encode(text), *codec.suffix]
        self._check_length(len(tokens), f"text {len(tokens) - self._frame} + special tokens {self._frame}")
        return Written(tokens, [token == self.mask_id for token in tokens], 0)

    def content_ids(self, ids: Iterable[int]) -> list[int]:
        """`ids` without special tokens and padding; masks that are still there stay."""
        return self.codec.content(ids)

    def decode_text(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens and padding left out."""
        return self.codec.decode(ids)

    @property
    def _frame(self) -> int:
        return len(self.codec.prefix) + len(self.codec.suffix)

    def _check_length(self, length: int, parts: str) -> None:
        if self.max_positions is not None and length > self.max_positions:
            raise TrajspecError(
                f"{self.name}: the canvas has {length} tokens ({parts}), the model has {self.max_positions} positions. "
                f"Shorten it by {length - self.max_positions}."
            )
