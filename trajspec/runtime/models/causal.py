"""Autoregressive language models of transformers as denoisers: what they say of an entry comes from those before it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models.forward import shift_back


class Autoregressive:
    """A causal language model, as a policy's further model: `decode(models={"ar": network})`.

    An entry's logits are those of the token at its place, given the entries at earlier positions; the first entry of a
    row has nothing before it and keeps its own raw logits. Every call computes whole rows. There is no mask token:
    `mask_id` is the id that stands where the canvas is masked, and only what lies behind a mask sees it.
    """

    def __init__(self, network: nn.Module) -> None:
        """`network`: a ...ForCausalLM of transformers in eval mode.

        Raises TrajspecError for another module, and for one in training mode, whose dropout would draw from a global
        generator.
        """
        config: Any = getattr(network, "config", None)
        if not isinstance(getattr(config, "vocab_size", None), int):
            raise TrajspecError(f"{type(network).__name__} is no causal language model: it has no config.vocab_size")
        if network.training:
            raise TrajspecError(f"{type(network).__name__} is in training mode; call its eval() first")
        weight = next(network.parameters())
        self.network, self.name = network, type(network).__name__
        self.vocab_size: int = config.vocab_size
        self.mask_id = 0
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self.device, self.dtype = weight.device, weight.dtype
        self._takes_positions = "position_ids" in inspect.signature(network.forward).parameters

    @torch.inference_mode()
    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        """Logits [R, W, V] for `tokens` and `positions` int64 [R, W] and `visible` bool [R, W, W] or None."""
        sees = positions[:, None, :] <= positions[:, :, None]
        if visible is not None:
            sees = sees & visible
        # An entry always sees itself: one that sees nothing would be the softmax of nothing.
        sees = sees | torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
        mask = torch.zeros(sees.shape, dtype=self.dtype, device=sees.device)
        mask = mask.masked_fill(~sees, torch.finfo(self.dtype).min)[:, None]
        told = {"position_ids": positions} if self._takes_positions else {}
        raw = self.network(input_ids=tokens, attention_mask=mask, use_cache=False, **told).logits
        return shift_back(raw, positions)
