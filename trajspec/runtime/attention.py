"""The one hook into transformers models: an attention function that builds its own key mask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.packing import ROWS, attend_shared

IMPLEMENTATION = "trajspec"
"""The name under which transformers finds the hook, and the keyword that carries an `AttentionContext` to it."""


@dataclass(frozen=True)
class KeyMask:
    """Which keys a query reads.

    `allowed`: bool [R, 1, Q, K], True where query sees key; a query that sees nothing is given everything here, since
    a softmax over nothing is NaN in some kernels. `blind`: bool [R, 1, Q, 1], True for exactly those queries; their
    output is set to zero afterwards, so it is finite and depends on nothing.
    """

    allowed: Tensor
    blind: Tensor


class KeyStore(Protocol):
    """Keys and values kept between calls: one pair of buffers a layer, written in place."""

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write this call's [R, H, Q, D] keys and values and return all that queries may read, each [R, H, K, D]."""


@dataclass(frozen=True)
class AttentionContext:
    """What one model call hands to every attention layer: a mask for each window width, and stored keys if any."""

    masks: dict[int | None, KeyMask | None]
    store: KeyStore | None = None

    def mask(self, window: int | None) -> KeyMask | None:
        """The mask of a layer whose sliding window is `window` (None: no window). None: everything is seen."""
        if window not in self.masks:
            raise TrajspecError(
                f"a layer has sliding window {window}, but this call built masks for {list(self.masks)}. "
                "Build the context with windows=window_widths(network)."
            )
        return self.masks[window]


@dataclass(frozen=True)
class PackedContext:
    """Several calls in one: their tokens lie behind one another in a single row, and attention takes them apart.

    `parts` are the contexts of the calls and `shapes` their (rows, width). Everything in a network but attention works
    on single tokens, so this is all it takes; a part may read what an earlier part of the same call stored.
    """

    parts: tuple[AttentionContext, ...]
    shapes: tuple[tuple[int, int], ...]


def attention_context(
    positions: Tensor,
    visible: Tensor | None = None,
    *,
    windows: Iterable[int | None] = (None,),
    key_positions: Tensor | None = None,
    store: KeyStore | None = None,
) -> AttentionContext:
    """The context of one call, every mask built once and shared by all layers that need it.

    `positions` int64 [R, Q]; `key_positions` int64 [R, K], by default `positions`; `visible` bool [R, Q, K] or None.
    A layer with window w reads keys at |position - key position| < w: the distance is between positions, not between
    slots, so that entries that share a position with the canvas (shadows, hypothetical tokens) see what it sees.
    """
    masks: dict[int | None, KeyMask | None] = {}
    for window in windows:
        allowed = visible
        if window is not None:
            keys = positions if key_positions is None else key_positions
            near = (positions[:, :, None] - keys[:, None, :]).abs() < window
            allowed = near if visible is None else visible & near
        masks[window] = None if allowed is None else _key_mask(allowed)
    return AttentionContext(masks, store)


def _key_mask(allowed: Tensor) -> KeyMask:
    blind = ~allowed.any(dim=-1, keepdim=True)
    return KeyMask((allowed | blind)[:, None], blind[:, None])


def window_widths(network: nn.Module) -> tuple[int | None, ...]:
    """The distinct sliding windows of a transformers network's attention layers; (None,) where none has one."""
    widths: set[Any] = {module.sliding_window for module in network.modules() if hasattr(module, "sliding_window")}
    return tuple(sorted(widths | {None}, key=lambda width: (width is not None, width or 0)))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: query [R, H, Q, D], key and value [R, Hkv, K, D] -> ([R, Q, H, D], None).

    The visibility comes from the `AttentionContext` in `kwargs`, never from `attention_mask` (transformers builds none
    for a function registered here only) nor from the layer's causal flag. Dropout is not applied.
    """
    context = kwargs.get(IMPLEMENTATION)
    if isinstance(context, PackedContext):
        return _packed(context, module, query, key, value, scaling, sliding_window), None
    if not isinstance(context, AttentionContext):
        raise TrajspecError(
            f"{type(module).__name__} was called without an AttentionContext, got {type(context).__name__}. "
            "Call the Model from load_model, not its network."
        )
    return _attend(context, module, query, key, value, scaling, sliding_window), None


def _packed(
    context: PackedContext,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    outs, begin = [], 0
    for part, (rows, width) in zip(context.parts, context.shapes, strict=True):
        end = begin + rows * width
        mine = [
            # [1, H, rows * width, D] -> [rows, H, width, D]
            tensor[0, :, begin:end].unflatten(1, (rows, width)).transpose(0, 1)
            for tensor in (query, key, value)
        ]
        out = _attend(part, module, mine[0], mine[1], mine[2], scaling, sliding_window)
        outs.append(out.flatten(0, 1)[None])
        begin = end
    if begin < query.shape[2]:  # entries that only make a call long enough
        outs.append(outs[0].new_zeros(1, query.shape[2] - begin, *outs[0].shape[2:]))
    return torch.cat(outs, dim=1)


def _attend(
    context: AttentionContext,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    # A rotation done in float32 leaves query and key wider than value.
    query, key = query.to(value.dtype), key.to(value.dtype)
    mask = context.mask(sliding_window)
    layer: Any = getattr(module, "layer_idx", None)
    layout = getattr(context.store, "layout", ROWS)
    if layout != ROWS:
        allowed, blind = (None, None) if mask is None else (mask.allowed, mask.blind)
        out = attend_shared(layout, context.store, layer, query, key, value, allowed, blind, scaling)
        out = out if blind is None else out.masked_fill(blind, 0.0)
        return out.transpose(1, 2).contiguous()
    if context.store is not None:
        key, value = context.store.update(layer, key, value)
    repeats = query.shape[1] != key.shape[1]
    if query.device.type == "cpu":
        out = _same_order(query, key, value, None if mask is None else mask.allowed, scaling, repeats)
    else:
        seen = None if mask is None else mask.allowed
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling, enable_gqa=repeats)
    if mask is not None:
        out = out.masked_fill(mask.blind, 0.0)
    return out.transpose(1, 2).contiguous()


# Measured with torch on AVX2: the CPU kernel adds in one order for any number of queries that is a multiple of 8.
QUERIES = 8


def key_count(size: int) -> int:
    """The least number of keys from `size` up that the CPU kernel adds in the order in which it adds any larger one.

    Measured with torch on AVX2. Keys are taken 512 at a time; up to 192 in one go, where a multiple of 16 fills the
    registers; from there to 384 in two halves, whose border moves with the number; then at fixed borders.
    """
    whole, rest = size // 512 * 512, size % 512
    return whole + (-(-rest // 16) * 16 if rest <= 192 else 384 if rest <= 384 else 512)


def _same_order(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scaling: float | None, repeats: bool
) -> Tensor:
    """Attention [R, H, Q, D] whose additions do not depend on what is hidden behind a row's keys, nor on other queries.

    So a row that is padded on the right has the logits of its single run bit for bit. `allowed` bool [R, 1, Q or 1, K].
    """
    width, size = query.shape[2], key.shape[2]
    more_keys, more = key_count(size) - size, -width % QUERIES
    if more_keys and allowed is None:
        allowed = torch.ones(1, 1, 1, size, dtype=torch.bool)
    if more_keys:
        key, value = (F.pad(part, (0, 0, 0, more_keys)) for part in (key, value))
    if more:
        query = F.pad(query, (0, 0, 0, more))
    if allowed is not None:
        allowed = F.pad(allowed.expand(-1, -1, width, -1), (0, more_keys))
        # Queries that are made up see what is there: a softmax over nothing is NaN.
        allowed = F.pad(allowed, (0, 0, 0, more), value=True)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=scaling, enable_gqa=repeats)
    return out[:, :, :width]


def register() -> None:
    """Make the hook known to transformers; harmless when repeated. Loading a model does it, importing does not."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, attention)
