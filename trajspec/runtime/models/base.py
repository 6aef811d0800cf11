"""What decoding needs of a model: logits for a query, and the way between text and a canvas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from trajspec.ir.errors import TrajspecError
from trajspec.ir.query import Soft
from trajspec.runtime.packed import Part
from trajspec.runtime.store import Store

Denoise = Callable[..., Tensor]
"""(tokens, positions, visible) -> logits, or (tokens, positions, visible, soft) for a model with soft inputs."""


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


class Cache(Protocol):
    """Calls over part of a canvas, on stored keys and values; arguments as in `Model.new_store` and `Model.cached`."""

    def new_store(self, rows: int, length: int) -> Store: ...

    def cached(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, store: Store, keys: Tensor, before: Tensor | None
    ) -> Tensor: ...

    def packed(self, parts: Sequence[Part]) -> list[Tensor]: ...


@dataclass(frozen=True, eq=False)
class Model:
    """A denoiser over torch tensors, with its constants and its text.

    `kind`: "text" continues a prompt, "infill" was trained to fill masks and treats a continuation as masks before its
    closing token. `banned_ids`: never predicted (the mask; for "infill" special tokens and ids without a token too).
    `eos_ids`: empty for "infill". `max_positions`: the longest canvas, frame included; None: no limit. `codec`: None
    for a checkpoint without tokenizer files, which takes and gives token ids only. `network`: the transformers module
    behind `denoise`. `cache`: None where the network cannot work on stored keys. `others`: the further models that a
    plan may ask beside this one, by name. `canvas`: for a model that reads its last prediction
    beside the tokens (op `soften`), how long its open part is; None: it reads tokens alone. `policy`: the one that
    decodes it when none is named.
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
    codec: Codec | None
    denoise: Denoise
    network: nn.Module
    cache: Cache | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    canvas: int | None = None
    policy: str | None = None

    def __call__(
        self, tokens: Tensor, positions: Tensor, visible: Tensor | None = None, soft: Soft | None = None
    ) -> Tensor:
        """Logits [R, W, V] in `dtype`; entry i's logits predict entry i.

        `tokens`, `positions` int64 [R, W] on `device`; `visible` bool [R, W, W] or None, where visible[r, i, j] lets
        query i read key j. Positions count from the row's first real token; padding may have any position below 0 and
        is hidden by `visible` alone. A query that sees nothing gets finite logits. Positions are not compared with
        `max_positions` here, since that would read the device: the encode functions do it before any call.

        `soft`: logits shown beside the tokens, for models that read them. Raises TrajspecError for shapes or kinds
        other than these, and for soft inputs to a model that reads none, or none to one that does.
        """
        self._shape(tokens, positions)
        if (soft is not None) != (self.canvas is not None):
            raise TrajspecError(
                f"{self.name}: it reads its last prediction beside the tokens, which this policy does not show; "
                "decode with policy=diffusion_gemma, or a policy of your own whose query is ts.soften(...)"
                if self.canvas is not None
                else f"{self.name}: it reads tokens alone, and the policy shows it logits as well (ts.soften); "
                "decode with another policy"
            )
        if visible is not None and (visible.dtype != torch.bool or visible.shape != (*tokens.shape, tokens.shape[1])):
            raise TrajspecError(
                f"{self.name}: visible must be bool {[*tokens.shape, tokens.shape[1]]}, "
                f"got {visible.dtype} {list(visible.shape)}"
            )
        return self.denoise(tokens, positions, visible, *(() if soft is None else (soft,)))

    @property
    def supports_cache(self) -> bool:
        return self.cache is not None

    def new_store(self, rows: int, length: int) -> Store:
        """Empty buffers for `rows` canvases of `length` entries. Raises TrajspecError unless `supports_cache`."""
        return self._cache.new_store(rows, length)

    def cached(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        store: Store,
        keys: Tensor,
        before: Tensor | None = None,
    ) -> Tensor:
        """Logits [R, W, V] of a window of each row's canvas, in the midst of what `store` holds of it.

        `tokens`, `positions`, `slots` int64 [R, W]: the window's keys and values are written into its slots, in place,
        before anything is read. `keys` says which slots are read, bool [R, S] or, for each query, [R, W, S], with
        S = `store.length` + 1: those that hold real entries and were written, the window's own included. A query that
        pads the window writes to slot `store.length`, which nothing sees. A refresh is the same call over all slots.

        A family with shifted logits needs the logits of the entry before the window for its first entry: `before`
        [R, V] are logits for that first entry from an earlier call (a refresh gives them at that entry). Without them
        the first entry keeps its own raw logits, which is what Fast-dLLM's block step for Dream does (compat). Other
        families, and a window that starts at position 0, do not look at `before`.

        Raises TrajspecError for shapes or kinds other than these, and where `supports_cache` is False.
        """
        rows, width = self._shape(tokens, positions)
        size = store.length + 1
        if slots.shape != tokens.shape or store.row_count != rows:
            raise TrajspecError(
                f"{self.name}: slots must be {[rows, width]} like tokens and the store must have {rows} rows, "
                f"got {list(slots.shape)} and {store.row_count}"
            )
        if keys.dtype != torch.bool or keys.shape not in ((rows, size), (rows, width, size)):
            raise TrajspecError(
                f"{self.name}: keys must be bool {[rows, size]} or {[rows, width, size]}, "
                f"got {keys.dtype} {list(keys.shape)}"
            )
        if before is not None and before.shape != (rows, self.vocab_size):
            raise TrajspecError(f"{self.name}: before must be {[rows, self.vocab_size]}, got {list(before.shape)}")
        return self._cache.cached(tokens, positions, slots, store, keys, before)

    def packed(self, parts: Sequence[Part]) -> list[Tensor]:
        """Logits [n, W, V] of every part, from one call of the network on all of their rows.

        Parts have rows of different widths: windows of hypothetical states, and whole canvases that refresh a store.
        Raises TrajspecError where `supports_cache` is False.
        """
        return self._cache.packed(parts)

    def encode_prompt(self, text: str, gen_length: int) -> Written:
        """`text` followed by `gen_length` masks. Everything in `text` is data, a written mask token too.

        Raises TrajspecError for a `gen_length` below 1, a canvas above `max_positions`, or text without tokens for it.
        """
        if isinstance(gen_length, bool) or not isinstance(gen_length, int) or gen_length < 1:
            raise TrajspecError(f"{self.name}: gen_length must be a whole number from 1 upward, got {gen_length!r}")
        codec = self._text
        prompt = [*codec.prefix, *codec.encode(text)]
        tokens = [*prompt, *[self.mask_id] * gen_length, *codec.suffix]
        masked = [len(prompt) <= i < len(prompt) + gen_length for i in range(len(tokens))]
        self._check_length(len(tokens), f"prompt {len(prompt)} + gen_length {gen_length} + closing {len(codec.suffix)}")
        return Written(tokens, masked, len(prompt), len(codec.suffix))

    def encode_infill(self, text: str) -> Written:
        """`text` with its written mask tokens to be filled in and everything else kept.

        Raises TrajspecError for a canvas above `max_positions`, or text without tokens for it.
        """
        codec = self._text
        tokens = [*codec.prefix, *codec.encode(text), *codec.suffix]
        self._check_length(len(tokens), f"text {len(tokens) - self._frame} + special tokens {self._frame}")
        return Written(tokens, [token == self.mask_id for token in tokens], 0)

    def content_ids(self, ids: Iterable[int]) -> list[int]:
        """`ids` without special tokens and padding; masks that are still there stay."""
        return self._text.content(ids)

    def decode_text(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens and padding left out."""
        return self._text.decode(ids)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text of a conversation of {"role": ..., "content": ...}, by the tokenizer's own template.

        Raises TrajspecError for an "infill" model, a tokenizer without a template, and messages the template refuses.
        """
        if self.kind != "text":
            raise TrajspecError(f"{self.name}: a model that fills masks has no chat; give the text itself")
        template: Any = self._text
        return template.chat(messages)

    @property
    def _text(self) -> Codec:
        if self.codec is None:
            raise TrajspecError(
                f"{self.name}: the checkpoint has no tokenizer files, so there is no text. Give token ids, "
                "or put tokenizer.json and tokenizer_config.json beside its config.json."
            )
        return self.codec

    @property
    def _cache(self) -> Cache:
        if self.cache is None:
            raise TrajspecError(
                f"{self.name}: {type(self.network).__name__} cannot work on stored keys; use a plan without a cache"
            )
        return self.cache

    def _shape(self, tokens: Tensor, positions: Tensor) -> tuple[int, int]:
        if tokens.dim() != 2 or positions.shape != tokens.shape:
            raise TrajspecError(
                f"{self.name}: tokens and positions must both be [rows, width], "
                f"got {list(tokens.shape)} and {list(positions.shape)}"
            )
        return tokens.shape[0], tokens.shape[1]

    @property
    def _frame(self) -> int:
        return len(self._text.prefix) + len(self._text.suffix)

    def _check_length(self, length: int, parts: str) -> None:
        if self.max_positions is not None and length > self.max_positions:
            raise TrajspecError(
                f"{self.name}: the canvas has {length} tokens ({parts}), the model has {self.max_positions} positions. "
                f"Shorten it by {length - self.max_positions}."
            )
