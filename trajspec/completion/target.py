"""Autoregressive models of transformers with the keys and values of what they have read."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..ir.errors import TrajspecError
from ..runtime.models import FAMILIES
from ..runtime.models.loading import Checkpoint, find_checkpoint, load_tokenizer, quiet
from ..runtime.models.text import CompletionCodec

#: Names that need no path, each with its folder in the package.
KNOWN = {"tiny-ar": "tiny-ar"}


@dataclass(frozen=True, eq=False)
class Target:
    """A causal language model of transformers and its text; `codec` is None where there are no tokenizer files.

    `max_positions`: the longest text, prompt and answer together; None: no limit.
    """

    name: str
    network: Any
    vocab_size: int
    eos_ids: tuple[int, ...]
    pad_id: int
    max_positions: int | None
    codec: CompletionCodec | None

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    def read(self, rows: int) -> Reading:
        """An empty reading of `rows` texts."""
        return Reading(self, rows)


class Reading:
    """What a target has read of a batch of texts: keys and values, which of them count, and how many that are.

    A call appends columns; what was drafted and not accepted is cut off again, or hidden where a neighbour keeps its
    column. Positions count what a row keeps, so a row never depends on what its neighbours keep.
    """

    def __init__(self, target: Target, rows: int) -> None:
        from transformers import DynamicCache

        self.target = target
        # Without a config every layer keeps everything: a window that has forgotten could not go back.
        self.cache = DynamicCache()
        self.kept = torch.zeros(rows, 0, dtype=torch.bool, device=target.device)
        self.counts = torch.zeros(rows, dtype=torch.int64, device=target.device)
        names = inspect.signature(target.network.forward).parameters
        self._cache_name = "past_key_values" if "past_key_values" in names else "cache"
        self._positions = "position_ids" in names

    @torch.inference_mode()
    def logits(self, tokens: Tensor, exists: Tensor) -> Tensor:
        """Logits [R, W, V] of what follows each entry of `tokens` int64 [R, W]; `exists` bool [R, W]: which are meant,
        the first of each row."""
        at = (self.counts[:, None] + exists.cumsum(-1) - 1).clamp(min=0)
        self.kept = torch.cat([self.kept, exists], 1)
        told: dict[str, Any] = {self._cache_name: self.cache, "use_cache": True}
        if not bool(self.kept.all()):
            told["attention_mask"] = self.kept.long()
        if self._positions:
            told["position_ids"] = at
        out = self.target.network(input_ids=tokens, **told)
        self.counts = self.counts + exists.sum(-1)
        return out.logits

    def keep(self, kept: Tensor) -> None:
        """Of the columns of the last call keep those of `kept`, bool [R, W], which are the first of each row."""
        width = kept.shape[1]
        before = self.kept[:, self.kept.shape[1] - width :]
        self.counts = self.counts - (before & ~kept).sum(-1)
        self.kept = torch.cat([self.kept[:, : self.kept.shape[1] - width], before & kept], 1)
        used = self.kept.any(0).nonzero()
        length = int(used[-1]) + 1 if len(used) else 0
        if length < self.kept.shape[1]:
            self.cache.crop(length - self.kept.shape[1])  # so many columns less
            self.kept = self.kept[:, :length]

    def rows(self, index: Sequence[int]) -> None:
        """Go on with the rows `index`, in that order, repeats allowed."""
        where = torch.tensor(list(index), dtype=torch.int64, device=self.kept.device)
        if self.kept.shape[1]:
            self.cache.batch_select_indices(where)
        self.kept, self.counts = self.kept[where], self.counts[where]


def is_target(model: Any) -> bool:
    """Whether `model` is an autoregressive one: a Target, a causal language model, or the name or folder of one."""
    if isinstance(model, Target):
        return True
    if isinstance(model, torch.nn.Module):
        return hasattr(model, "config") and hasattr(model, "generate")
    if not isinstance(model, (str, os.PathLike)):
        return False
    if os.fspath(model) in KNOWN:
        return True
    folder = Path(model).expanduser()
    return (
        folder.is_dir() and (folder / "config.json").is_file() and _causal(find_checkpoint(str(folder), ())) is not None
    )


def _causal(checkpoint: Checkpoint) -> str | None:
    """The causal architecture that a checkpoint names, None when it names none or a masked diffusion model."""
    named = checkpoint.config.get("architectures") or []
    kind = checkpoint.config.get("model_type")
    if any(name in FAMILIES or FAMILIES_BY_TYPE.get(str(kind)) == name for name in named):
        return None
    return next((name for name in named if name.endswith(("ForCausalLM", "LMHeadModel"))), None)


FAMILIES_BY_TYPE = {family.model_type: family.architecture for family in FAMILIES.values()}


def load_target(
    name_or_model: Any, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu", tokenizer: Any = None
) -> Target:
    """An autoregressive model: `tiny-ar`, a folder, a hub id, or a loaded network of transformers in eval mode.

    `tokenizer`: of a loaded network, for text. No code of a checkpoint is run. Raises TrajspecError for what is no
    causal language model of transformers, and for a network in training mode.
    """
    if isinstance(name_or_model, Target):
        return name_or_model
    if isinstance(name_or_model, torch.nn.Module):
        return _target(type(name_or_model).__name__, name_or_model, tokenizer)
    import transformers

    name = os.fspath(name_or_model)
    place = str(Path(__file__).parents[1] / "data" / KNOWN[name]) if name in KNOWN else name
    checkpoint = find_checkpoint(place, tuple(KNOWN))
    architecture = _causal(checkpoint)
    cls = getattr(transformers, architecture or "", None)
    if cls is None:
        raise TrajspecError(
            f"{name}: config.json has architectures {checkpoint.config.get('architectures')}; a target is a causal "
            "language model of transformers (...ForCausalLM). A diffusion model is the drafter: drafter=..."
        )
    revision = {"revision": checkpoint.revision} if checkpoint.on_hub else {}
    try:
        with quiet():
            network = cls.from_pretrained(checkpoint.source, dtype=dtype, weights_only=True, **revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise TrajspecError(f"{name}: the weights cannot be loaded: {error}") from error
    network = network.to(device).eval().requires_grad_(False)
    try:
        found = tokenizer or load_tokenizer(checkpoint)
    except TrajspecError:
        found = None  # without its files it takes and gives token ids
    return _target(name, network, found)


def _target(name: str, network: Any, tokenizer: Any) -> Target:
    config = getattr(network, "config", None)
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int):
        raise TrajspecError(f"{name} is no causal language model: it has no config.vocab_size")
    if network.training:
        raise TrajspecError(f"{name} is in training mode, whose dropout draws from a global generator; call its eval()")
    generation = getattr(network, "generation_config", None)
    ends = getattr(generation, "eos_token_id", None)
    ends = getattr(config, "eos_token_id", None) if ends is None else ends
    eos = () if ends is None else tuple(ends) if isinstance(ends, (list, tuple)) else (ends,)
    pad = getattr(config, "pad_token_id", None)
    pad_id = pad if isinstance(pad, int) and 0 <= pad < size else eos[0] if eos else 0
    codec = None if tokenizer is None else CompletionCodec(name, tokenizer, size, -1)
    return Target(name, network, size, eos, pad_id, getattr(config, "max_position_embeddings", None), codec)
