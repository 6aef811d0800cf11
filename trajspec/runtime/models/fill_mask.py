"""Fill-mask checkpoints (BERT, ModernBERT and their kin) as models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models.base import Codec, Model
from trajspec.runtime.models.forward import Forward
from trajspec.runtime.models.loading import Checkpoint, load_network, load_tokenizer
from trajspec.runtime.models.text import TokenizerCodec, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def _from_zero(config: Any) -> int:
    return 0


def _after_padding(config: Any) -> int:
    """RoBERTa keeps the position rows up to the padding id for padding, so its first token sits one behind it."""
    return config.pad_token_id + 1


@dataclass(frozen=True)
class Architecture:
    """A fill-mask class of transformers: the model_type it reads, and the row of its position table where 0 lies."""

    model_type: str
    first_position: Callable[[Any], int] = _from_zero


ARCHITECTURES: dict[str, Architecture] = {
    "BertForMaskedLM": Architecture("bert"),
    "ModernBertForMaskedLM": Architecture("modernbert"),
    "DistilBertForMaskedLM": Architecture("distilbert"),
    "RobertaForMaskedLM": Architecture("roberta", _after_padding),
}


def check_variant(checkpoint: Checkpoint) -> None:
    """Raise TrajspecError for a variant of a supported class that it would load without a word and compute wrongly."""
    config = checkpoint.config
    if config.get("is_decoder"):
        raise TrajspecError(f"{checkpoint.source}: is_decoder is true; a fill-mask model must see both sides")
    embedding = config.get("position_embedding_type", "absolute")
    if embedding != "absolute":
        raise TrajspecError(
            f"{checkpoint.source}: position_embedding_type is {embedding!r}; only 'absolute' is computed here"
        )


def load_fill_mask(title: str, name: str, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Model:
    """The model of a fill-mask checkpoint of class `title` with its own tokenizer.

    Raises TrajspecError for a variant not computed here, incomplete weights, or a mask id that does not fit.
    """
    import transformers

    check_variant(checkpoint)
    # The tokenizer first: it costs little and fails soonest.
    tokenizer = load_tokenizer(checkpoint)
    network = load_network(getattr(transformers, title), checkpoint, dtype, device)
    codec = TokenizerCodec(name, tokenizer, network.config.vocab_size)
    first = ARCHITECTURES[title].first_position(network.config)
    return assemble(name, network, tokenizer, codec, checkpoint, first_position=first)


def assemble(
    name: str,
    network: PreTrainedModel,
    tokenizer: Any,
    codec: Codec,
    checkpoint: Checkpoint,
    *,
    first_position: int = 0,
) -> Model:
    """A model from its loaded parts; `first_position` is the row of the position table where position 0 lies.

    Raises TrajspecError when the mask id does not fit or there is no padding token.
    """
    vocab_size = network.config.vocab_size
    check_mask_id(name, tokenizer, checkpoint.config.get("mask_token_id"), vocab_size)
    if tokenizer.pad_token_id is None:
        raise TrajspecError(f"{name}: the tokenizer has no padding token; set pad_token in tokenizer_config.json")
    # Vocabularies are often padded to a round size: an id that the tokenizer lacks has no text.
    speaking = set(tokenizer.get_vocab().values()) - special_ids(tokenizer) - {tokenizer.mask_token_id}
    forward = Forward(network, first_position=first_position)
    return Model(
        name=name,
        kind="infill",
        vocab_size=vocab_size,
        mask_id=tokenizer.mask_token_id,
        pad_id=tokenizer.pad_token_id,
        eos_ids=(),
        banned_ids=tuple(i for i in range(vocab_size) if i not in speaking),
        max_positions=network.config.max_position_embeddings - first_position,
        dtype=network.dtype,
        device=network.device,
        codec=codec,
        denoise=forward,
        network=network,
        cache=forward if forward.supports_cache else None,
    )


def check_mask_id(name: str, tokenizer: Any, declared: int | None, vocab_size: int) -> None:
    """Raise TrajspecError unless the tokenizer's mask id exists, is the `declared` one and is below `vocab_size`.

    `declared`: what config.json says, None when it says nothing.
    """
    mask_id = tokenizer.mask_token_id
    if mask_id is None:
        raise TrajspecError(f"{name}: the tokenizer has no mask token; set mask_token in tokenizer_config.json")
    if declared is not None and declared != mask_id:
        raise TrajspecError(
            f"{name}: config.json says mask_token_id {declared}, the tokenizer says {mask_id} "
            f"({tokenizer.mask_token}). Correct the one that is wrong."
        )
    if not 0 <= mask_id < vocab_size:
        raise TrajspecError(
            f"{name}: mask id {mask_id} ({tokenizer.mask_token}) is outside the vocabulary of {vocab_size}. "
            "The tokenizer does not belong to these weights."
        )
