"""One call of a transformers network through the attention hook, with or without stored keys."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trajspec.runtime.attention import (
    IMPLEMENTATION,
    AttentionContext,
    PackedContext,
    attention_context,
    window_widths,
)
from trajspec.runtime.packed import Part
from trajspec.runtime.packing import ROWS
from trajspec.runtime.store import Fork, Store, Window

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# Measured with torch on AVX2 and AVX-512: a product of fewer rows is another routine, which adds in another order.
SHORTEST = 4
# Elementwise functions take two registers of 16 floats at a time on AVX-512, and what is left over by another routine.
LANES = 32


class Forward:
    """The network as a denoiser.

    `first_position`: the row of its position table where position 0 lies. `shifted`: its raw logits at one entry
    predict the next one, as in autoregressive models, and are shifted back here.
    """

    def __init__(self, network: PreTrainedModel, *, first_position: int = 0, shifted: bool = False) -> None:
        self.network, self.first_position, self.shifted = network, first_position, shifted
        self.layout = ROWS
        self.windows = window_widths(network)
        self.multiple = token_multiple(network.config)
        layers = {module.layer_idx for module in network.modules() if hasattr(module, "layer_idx")}
        # The buffers of a layer are found by its number; DistilBERT's layers have none.
        self.supports_cache: bool = layers == set(range(network.config.num_hidden_layers))

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        """Logits [R, W, V] for `tokens` and `positions` int64 [R, W] and `visible` bool [R, W, W] or None."""
        raw = self._logits(tokens, positions, attention_context(positions, visible, windows=self.windows))
        return shift_back(raw, positions) if self.shifted else raw

    def laid_out(self, layout: str) -> Forward:
        """The same network with packed calls laid out another way (`runtime.packing`)."""
        other = copy.copy(self)
        other.layout = layout
        return other

    def new_store(self, rows: int, length: int) -> Store:
        """An empty store for `rows` canvases of `length` entries."""
        config: Any = self.network.config
        heads = config.num_attention_heads
        return Store.empty(
            layers=config.num_hidden_layers,
            rows=rows,
            heads=getattr(config, "num_key_value_heads", None) or heads,
            length=length,
            depth=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=self.network.dtype,
            device=self.network.device,
        )

    def cached(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, store: Store, keys: Tensor, before: Tensor | None
    ) -> Tensor:
        """Logits [R, W, V] of a window; see `Model.cached`."""
        seen = store.hide_scratch(keys if keys.dim() == 3 else keys[:, None, :])
        window = store.at(slots, positions)
        context = attention_context(positions, seen, windows=self.windows, key_positions=store.positions, store=window)
        raw = self._logits(tokens, positions, context)
        if not self.shifted:
            return raw
        return shift_back(raw, positions.masked_fill(slots == store.length, -1), before)

    def packed(self, parts: Sequence[Part]) -> list[Tensor]:
        """Logits [n, W, V] of each part, from one call of the network; see `Model.packed`."""
        contexts, shapes = [], []
        for part in parts:
            window: Window | Fork
            if part.keep:
                store = part.store.part(part.rows)
                window, positions = store.at(part.slots, part.positions), store.positions
            else:
                window = Fork.at(part.store, part.rows, part.slots, part.positions, self.layout)
                positions = window.positions
            keys = part.keys if part.keys.dim() == 3 else part.keys[:, None, :]
            contexts.append(
                attention_context(
                    part.positions, part.store.hide_scratch(keys), windows=self.windows, key_positions=positions,
                    store=window,
                )
            )  # fmt: skip
            shapes.append((part.tokens.shape[0], part.tokens.shape[1]))
        tokens = torch.cat([part.tokens.flatten() for part in parts])[None]
        at = torch.cat([part.positions.flatten() for part in parts])[None]
        raw = self._logits(tokens, at, PackedContext(tuple(contexts), tuple(shapes)))[0]
        out: list[Tensor] = []
        for part, logits, shape in zip(parts, raw.split([rows * width for rows, width in shapes]), shapes, strict=True):
            mine = logits.unflatten(0, shape)
            if self.shifted:
                before = part.before(out) if callable(part.before) else part.before
                mine = shift_back(mine, part.positions.masked_fill(part.slots == part.store.length, -1), before)
            out.append(mine)
        return out

    def _logits(self, tokens: Tensor, positions: Tensor, context: AttentionContext | PackedContext) -> Tensor:
        shape = tokens.shape
        wanted = max(SHORTEST, -(-tokens.numel() // self.multiple) * self.multiple)
        missing = wanted - tokens.numel()
        if missing and tokens.device.type == "cpu":
            if isinstance(context, AttentionContext):
                context = PackedContext((context,), ((shape[0], shape[1]),))
            tokens, positions = (F.pad(part.reshape(1, -1), (0, missing)) for part in (tokens, positions))
        # Padding sits at negative positions, which no position table has; the mask keeps it from mattering.
        rows = positions.clamp(min=0) + self.first_position
        logits = self.network(input_ids=tokens, position_ids=rows, **{IMPLEMENTATION: context}).logits
        return logits if logits.shape[:2] == shape else logits[0, : shape.numel()].unflatten(0, shape)


def token_multiple(config: Any) -> int:
    """The number of tokens, times which every width of the network fills the registers: 1 for all published sizes.

    A call on a CPU is made up to a multiple of it, so that no token is computed by another routine than its neighbours.
    """
    hidden = config.hidden_size
    head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    return LANES // math.gcd(LANES, hidden, head, getattr(config, "intermediate_size", None) or hidden)


def shift_back(raw: Tensor, positions: Tensor, before: Tensor | None = None) -> Tensor:
    """Logits [R, W, V] that predict their own entry, from `raw` ones that predict the entry after it.

    `positions` int64 [R, W], negative on padding. An entry takes the raw logits of the entry before it. Where none
    stands before it (position 0, the first entry of a window, an entry that starts over at a smaller position) it keeps
    its own, as Dream's sampler does at position 0; `before` [R, V] takes the place of that for the first entry of a
    window that starts behind position 0.
    """
    rows, width, vocabulary = raw.shape
    earlier = torch.cat([torch.full_like(positions[:, :1], -1), positions[:, :-1]], dim=1)
    follows = (earlier >= 0) & (earlier < positions)
    places = torch.arange(rows * width, device=raw.device).view(rows, width) - follows.long()
    logits = raw.reshape(rows * width, vocabulary).index_select(0, places.flatten()).view(raw.shape)
    if before is None:
        return logits
    real = positions >= 0
    opens = real & (real.cumsum(dim=1) == 1) & (positions > 0)
    return torch.where(opens[..., None], before[:, None, :].to(logits.dtype), logits)
