"""Completion models: what sets a family apart, and how a checkpoint of any of them becomes a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models.base import Model
from trajspec.runtime.models.forward import Forward
from trajspec.runtime.models.loading import Checkpoint, find_file, load_network, load_tokenizer_class
from trajspec.runtime.models.text import CompletionCodec, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")


def _never(config: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True)
class Family:
    """What a checkpoint's own code would say, as values.

    `architecture` and `model_type` are those of its config.json, `network` the class of transformers that computes it
    (or what gives one),
    `translate(source, config)` that class's config from the content of config.json. `renames` maps patterns of its
    weight names to those of the class. `float32_rotary(config)`: whether positions are rotated in float32 whatever the
    dtype. `shifted`: raw logits predict the next entry. `mask_id` and `eos_ids` hold where the checkpoint names none;
    `eos_tokens` end an answer where the vocabulary has them. `tokenizer`: the class of transformers that reads its
    vocabulary where there is no tokenizer.json.
    """

    architecture: str
    model_type: str
    network: str | Callable[[], type]
    translate: Callable[[str, Mapping[str, Any]], PreTrainedConfig]
    mask_id: int
    eos_ids: tuple[int, ...]
    eos_tokens: tuple[str, ...] = ()
    shifted: bool = False
    float32_rotary: Callable[[Mapping[str, Any]], bool] = _never
    renames: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str = "PreTrainedTokenizerFast"


def load_family(family: Family, name: str, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Model:
    """The model of a checkpoint of `family`; without tokenizer files its `codec` is None and it takes token ids only.

    Raises TrajspecError for a config it would compute wrongly, for weights too many or too few, and for special ids
    that do not fit.
    """
    import transformers

    try:
        config = family.translate(checkpoint.source, checkpoint.config)
    except TrajspecError:
        raise
    except Exception as error:  # transformers' config classes raise several kinds for a value of the wrong type
        raise TrajspecError(f"{checkpoint.source}: config.json does not fit {family.architecture}: {error}") from error
    tokenizer = _load_tokenizer(family, checkpoint)
    vocab_size = config.vocab_size
    mask_id = mask_id_of(name, family, checkpoint.config, tokenizer, vocab_size)
    eos_ids = eos_ids_of(family, checkpoint.config, tokenizer, vocab_size)
    pad_id = next(iter(_ids(getattr(tokenizer, "pad_token_id", None), checkpoint.config.get("pad_token_id"))), None)
    if pad_id is None:
        pad_id = eos_ids[0] if eos_ids else 0
    for what, given in (("padding", (pad_id,)), ("eos", eos_ids)):
        if not all(0 <= i < vocab_size for i in given):
            raise TrajspecError(f"{name}: {what} id {list(given)} is outside the vocabulary of {vocab_size}")
    network = load_network(
        getattr(transformers, family.network) if isinstance(family.network, str) else family.network(),
        checkpoint,
        dtype,
        device,
        config=config,
        renames=family.renames,
    )
    if family.float32_rotary(checkpoint.config):
        rotate_in_float32(network)
    forward = Forward(network, shifted=family.shifted)
    return Model(
        name=name,
        kind="text",
        vocab_size=vocab_size,
        mask_id=mask_id,
        pad_id=pad_id,
        eos_ids=eos_ids,
        # Only the mask: published samplers may predict special tokens, and a ban would change their confidences.
        banned_ids=(mask_id,),
        max_positions=config.max_position_embeddings,
        dtype=network.dtype,
        device=network.device,
        codec=None if tokenizer is None else CompletionCodec(name, tokenizer, vocab_size, mask_id),
        denoise=forward,
        network=network,
        cache=forward,
    )


def rotate_in_float32(network: Any) -> None:
    """Make the rotary table come in float32; query and key then rotate in it, and the hook casts them back."""

    def widen(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0].float(), *inputs[1:])

    network.model.rotary_emb.register_forward_pre_hook(widen)


def require(source: str, config: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Raise TrajspecError unless config.json has a value for all of `names`."""
    absent = [name for name in names if config.get(name) is None]
    if absent:
        raise TrajspecError(f"{source}: config.json has no {', '.join(absent)}; the checkpoint's own config.json has")


def refuse(source: str, config: Mapping[str, Any], computed: Mapping[str, Any]) -> None:
    """Raise TrajspecError where config.json asks for something else than what is `computed`; absent is fine."""
    for name, value in computed.items():
        given = config.get(name)
        if given is not None and given != value:
            raise TrajspecError(f"{source}: {name} is {given!r}; only {value!r} is computed here")


def mask_id_of(name: str, family: Family, config: Mapping[str, Any], tokenizer: Any, vocab_size: int) -> int:
    """The mask id: config.json's, else the tokenizer's, else the family's.

    Raises TrajspecError where config.json and tokenizer disagree, where the id is an ordinary token, and where it is
    outside the vocabulary.
    """
    declared, known = config.get("mask_token_id"), getattr(tokenizer, "mask_token_id", None)
    if declared is not None and known is not None and declared != known:
        raise TrajspecError(
            f"{name}: config.json says mask_token_id {declared}, the tokenizer says {known} "
            f"({tokenizer.mask_token}). Correct the one that is wrong."
        )
    found = _ids(declared, known) or (family.mask_id,)
    mask_id = found[0]
    if not 0 <= mask_id < vocab_size:
        says = "" if declared is not None or known is not None else f", which {family.architecture} has by default,"
        raise TrajspecError(
            f"{name}: mask id {mask_id}{says} is outside the vocabulary of {vocab_size}. "
            "Set mask_token_id in config.json."
        )
    if tokenizer is not None and mask_id < len(tokenizer) and mask_id not in special_ids(tokenizer):
        raise TrajspecError(
            f"{name}: mask id {mask_id} is the ordinary token {tokenizer.convert_ids_to_tokens(mask_id)!r} of the "
            "tokenizer. Set mask_token_id in config.json to the mask's own id, or add that token as a special one."
        )
    return mask_id


def eos_ids_of(family: Family, config: Mapping[str, Any], tokenizer: Any, vocab_size: int) -> tuple[int, ...]:
    """Every id that ends an answer: config.json's, the tokenizer's, the family's tokens; else the family's ids."""
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    named = [vocabulary[token] for token in family.eos_tokens if token in vocabulary]
    found = _ids(config.get("eos_token_id"), getattr(tokenizer, "eos_token_id", None), named)
    return found or tuple(i for i in family.eos_ids if i < vocab_size)


def _ids(*given: Any) -> tuple[int, ...]:
    """Ids given as numbers, lists or None, each once, in order."""
    flat = [i for item in given if item is not None for i in (item if isinstance(item, (list, tuple)) else [item])]
    return tuple(dict.fromkeys(flat))


def _load_tokenizer(family: Family, checkpoint: Checkpoint) -> Any:
    found = [file for file in TOKENIZER_FILES if find_file(checkpoint, file) is not None]
    if not found:
        return None
    # By class, not by AutoTokenizer: the class that config.json names is the checkpoint's own code.
    title = "PreTrainedTokenizerFast" if "tokenizer.json" in found else family.tokenizer
    return load_tokenizer_class(title, checkpoint)
