"""Numpy denoisers behind the torch interface, so that the runtime runs tabular models as well."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class FromNumpy:
    """A numpy denoiser (tabular model, golden stub) that answers tensors with float64 tensors."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.vocab_size: int = model.vocab_size
        self.mask_id: int = model.mask_id

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        shown = None if visible is None else visible.numpy()
        return torch.as_tensor(self.model(tokens.numpy(), positions.numpy(), shown), dtype=torch.float64)
