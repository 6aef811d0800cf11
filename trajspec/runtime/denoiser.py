"""Anything that answers queries with logits, as the runtime wants it: in torch, with what decoding asks of a model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..ir.errors import TrajspecError
from ..ir.query import Soft, real_logits
from .models import Model, load_model
from .packed import Part
from .query import check_logits


class FromNumpy:
    """A numpy denoiser (tabular model, golden stub) that answers tensors with float64 tensors."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.vocab_size: int = model.vocab_size
        self.mask_id: int = model.mask_id
        self.others = {name: FromNumpy(other) for name, other in (getattr(model, "others", None) or {}).items()}

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None, soft: Soft | None = None) -> Tensor:
        shown = None if visible is None else visible.numpy()
        beside = () if soft is None else (Soft(*(plane.numpy() for plane in soft)),)
        return torch.from_numpy(real_logits(self.model(tokens.numpy(), positions.numpy(), shown, *beside)))


class ToNumpy:
    """A torch model as the reference interpreter wants it, cached views included: every call stands for itself."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.vocab_size: int = model.vocab_size
        self.mask_id: int = model.mask_id
        self.others = {name: ToNumpy(other) for name, other in (getattr(model, "others", None) or {}).items()}

    @torch.inference_mode()
    def __call__(self, tokens: Any, positions: Any, visible: Any, soft: Soft | None = None) -> Any:
        shown = None if visible is None else torch.from_numpy(visible)
        beside = () if soft is None else (Soft(*(torch.from_numpy(plane) for plane in soft)),)
        return self.model(torch.from_numpy(tokens), torch.from_numpy(positions), shown, *beside).double().numpy()

    @torch.inference_mode()
    def stale(self, tokens: Any, positions: Any, reference: Any, window: Any) -> Any:
        """Logits [L, V] of the entries of `window` when the others' keys and values are those of `reference`."""
        length = len(tokens)
        store, slots = self.model.new_store(1, length), torch.arange(length)[None]
        real = torch.from_numpy(positions >= 0)[None]
        keys, at = torch.cat([real, torch.zeros_like(real[:, :1])], 1), torch.from_numpy(positions)[None]
        full = self.model.cached(torch.from_numpy(reference)[None], at, slots, store, keys, None)
        inside = torch.from_numpy(window.nonzero()[0])
        new = torch.from_numpy(tokens)[inside][None]
        logits = self.model.cached(new, at[:, inside], inside[None], store, keys, full[:, inside[0]])
        out = torch.full_like(full[0], float("nan"))
        out[inside] = logits[0]
        return out.double().numpy()


@dataclass(frozen=True)
class TokenStore:
    """What is kept of rows whose denoiser has no layers: token ids and positions, int64 [R, S].

    With `index` int64 [n] it stands for those rows of the tensors, as in `store.Store.part`.
    """

    tokens: Tensor
    positions: Tensor
    index: Tensor | None = None

    @property
    def row_count(self) -> int:
        return len(self.tokens if self.index is None else self.index)

    def part(self, index: Tensor) -> TokenStore:
        """The rows `index` of these same tensors."""
        return TokenStore(self.tokens, self.positions, index if self.index is None else self.index[index])

    @property
    def length(self) -> int:
        """How many slots are for entries; also the number of the scratch slot."""
        return self.tokens.shape[1] - 1

    def put(self, index: Tensor, other: TokenStore) -> None:
        """Write the rows of `other` over the rows `index` in place, as in `store.Store.put`."""
        rows = other.index
        self.tokens[index] = other.tokens if rows is None else other.tokens[rows]
        self.positions[index] = other.positions if rows is None else other.positions[rows]

    def fork(self, index: Tensor) -> TokenStore:
        """Copies of the rows `index`, repeats allowed."""
        rows = index if self.index is None else self.index[index]
        return TokenStore(self.tokens.index_select(0, rows), self.positions.index_select(0, rows))

    def update(self, slots: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Write [n, W] tokens and positions into the slots; the whole rows, each [n, S]."""
        if self.index is None:
            return self.tokens.scatter_(1, slots, tokens), self.positions.scatter_(1, slots, positions)
        at = (self.index[:, None], slots)
        self.tokens[at], self.positions[at] = tokens, positions
        return self.tokens.index_select(0, self.index), self.positions.index_select(0, self.index)


@dataclass(frozen=True)
class Bare:
    """A denoiser without text, under the attributes that decoding asks of a model."""

    network: Any
    name: str = "denoiser"
    kind: str = "text"
    pad_id: int = 0
    eos_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()
    codec: Any = None
    others: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def vocab_size(self) -> int:
        return self.network.vocab_size

    @property
    def mask_id(self) -> int:
        return self.network.mask_id

    @property
    def max_positions(self) -> int | None:
        inner = self.network.model if isinstance(self.network, FromNumpy) else self.network
        return getattr(inner, "max_positions", None)

    @property
    def reads_soft(self) -> bool:
        """Whether the denoiser takes logits beside tokens, as a fourth argument."""
        inner = self.network.model if isinstance(self.network, FromNumpy) else self.network
        try:
            inspect.signature(inner).bind(None, None, None, None)
        except TypeError:
            return False
        return True

    @property
    def device(self) -> torch.device:
        return torch.device(getattr(self.network, "device", "cpu"))

    @property
    def dtype(self) -> torch.dtype:
        return getattr(self.network, "dtype", torch.float64)

    @property
    def supports_cache(self) -> bool:
        return True

    def new_store(self, rows: int, length: int) -> TokenStore:
        """A store that remembers token ids: all that a denoiser without layers can keep."""
        tokens = torch.full((rows, length + 1), self.mask_id, device=self.device)
        return TokenStore(tokens, torch.zeros_like(tokens))

    def cached(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, store: TokenStore, keys: Tensor, before: Tensor | None
    ) -> Tensor:
        """Logits [R, W, V] of a window in the midst of the remembered tokens; see `Model.cached`."""
        held, at = store.update(slots, tokens, positions)
        size = held.shape[1]
        if keys.dim() == 2:
            visible = keys[:, None, :].expand(-1, size, -1)
        else:
            visible = keys.new_zeros(len(tokens), size, size)
            visible = visible.scatter(1, slots[..., None].expand_as(keys), keys)
        visible = visible & (torch.arange(size, device=keys.device) < size - 1)
        logits = self.network(held, at, visible)
        check_logits(logits, held, self.vocab_size)
        return logits.gather(1, slots[..., None].expand(-1, -1, logits.shape[-1]))

    def packed(self, parts: Sequence[Part]) -> list[Tensor]:
        """Logits [n, W, V] of every part; see `Model.packed`. A denoiser without layers is asked part by part."""
        out: list[Tensor] = []
        for part in parts:
            store = part.store.part(part.rows) if part.keep else part.store.fork(part.rows)
            before = part.before(out) if callable(part.before) else part.before
            out.append(self.cached(part.tokens, part.positions, part.slots, store, part.keys, before))
        return out

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None, *soft: Soft) -> Tensor:
        return self.network(tokens, positions, visible, *soft)


def as_model(model: Any, dtype: torch.dtype | None = None, device: str | torch.device | None = None) -> Model | Bare:
    """`model` as something with a vocabulary, a device and maybe text; `dtype` and `device` are for loading a name.

    A denoiser that says which `device` it is on takes tensors, every other one numpy arrays. Raises TrajspecError when
    `model` is nothing of the kind, or is loaded already and elsewhere than asked.
    """
    if isinstance(model, (str, os.PathLike)):
        return load_model(model, dtype=dtype or torch.float32, device=device or "cpu")
    found: Model | Bare
    if isinstance(model, (Model, Bare)):
        found = model
    elif callable(model) and hasattr(model, "vocab_size") and hasattr(model, "mask_id"):
        inner = model if hasattr(model, "device") else FromNumpy(model)
        found = Bare(inner, name=type(model).__name__, others=getattr(inner, "others", None) or {})
    else:
        raise TrajspecError(
            f"model is {type(model).__name__}; expected a name or path, a loaded model, or a callable with vocab_size "
            "and mask_id that takes (tokens, positions, visible)"
        )
    if dtype is not None and dtype != found.dtype:
        raise TrajspecError(f"dtype={dtype}, but {found.name} is {found.dtype}; dtype= is for loading by name")
    if device is not None and torch.device(device) != found.device:
        raise TrajspecError(f"device={device}, but {found.name} is on {found.device}; device= is for loading by name")
    return found
