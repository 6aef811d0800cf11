"""Anything that answers queries with logits, as the runtime wants it: in torch, with what decoding asks of a model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ir.errors import TrajspecError
from .models import Model, load_model


class FromNumpy:
    """A numpy denoiser (tabular model, golden stub) that answers tensors with float64 tensors."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.vocab_size: int = model.vocab_size
        self.mask_id: int = model.mask_id

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        shown = None if visible is None else visible.numpy()
        return torch.as_tensor(self.model(tokens.numpy(), positions.numpy(), shown), dtype=torch.float64)


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
    def device(self) -> torch.device:
        return torch.device(getattr(self.network, "device", "cpu"))

    @property
    def dtype(self) -> torch.dtype:
        return getattr(self.network, "dtype", torch.float64)

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        return self.network(tokens, positions, visible)


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
        found = Bare(model if hasattr(model, "device") else FromNumpy(model), name=type(model).__name__)
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
