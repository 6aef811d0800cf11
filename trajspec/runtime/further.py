"""The further models of a plan (`forward(..., by='ar')`): what may be one, and how it joins the model that decodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..ir.errors import TrajspecError
from .denoiser import Bare, as_model
from .models import Model
from .models.causal import Autoregressive


class SameIds:
    """A model under the vocabulary of another one with the same tokenizer, whose sizes are padded differently.

    Ids that `model` lacks are shown to it as its last one, and it never predicts them; its own beyond `vocab_size` are
    left out.
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.mask_id: int = model.mask_id
        self.device, self.dtype, self.name = model.device, model.dtype, model.name
        self.max_positions: int | None = model.max_positions

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        logits = self.model(tokens.clamp(max=self.model.vocab_size - 1), positions, visible)
        missing = max(self.vocab_size - logits.shape[-1], 0)
        return nn.functional.pad(logits[..., : self.vocab_size], (0, missing), value=-math.inf)


def with_further(model: Model | Bare, given: Any, names: Sequence[str], policy: str) -> Model | Bare:
    """`model` with the further models that a plan asks under `names`, from `given` ({name: model}) or its own.

    A further model is what `decode` takes as its model, or a causal language model of transformers. Raises
    TrajspecError when one is missing, is given and not asked, is nothing of the kind, or is on another device.
    """
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise TrajspecError(f"models is {given!r:.80}, expected {{name: model}}, as in {{'ar': network}}")
    given = dict(given or {})
    asks = f"it asks: {', '.join(names)}" if names else "it asks no further model"
    if given.keys() - set(names):
        raise TrajspecError(f"models has {', '.join(sorted(given.keys() - set(names)))} for policy {policy}; {asks}")
    others = {name: _further(name, one, model) for name, one in given.items()} | {
        name: one for name, one in model.others.items() if name not in given
    }
    missing = [name for name in names if name not in others]
    if missing:
        raise TrajspecError(
            f"policy {policy} asks a further model {missing[0]!r}; give models={{{missing[0]!r}: ...}}: a causal "
            "language model of transformers, or what decode takes as a model"
        )
    return replace(model, others=others) if given else model


def _further(name: str, given: Any, first: Model | Bare) -> Any:
    causal = isinstance(given, nn.Module) and hasattr(given, "config")
    loaded: Any = Autoregressive(given) if causal else as_model(given)
    if torch.device(loaded.device) != first.device:
        raise TrajspecError(
            f"models[{name!r}] is on {loaded.device} and {first.name} on {first.device}; bring them to one device"
        )
    return loaded if loaded.vocab_size == first.vocab_size else SameIds(loaded, first.vocab_size)


__all__ = ["SameIds", "with_further"]
