"""Reading a checkpoint through transformers: its config, its weights, its tokenizer; no remote code, no unpickling."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.attention import IMPLEMENTATION, register
from trajspec.runtime.models.text import special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Checkpoint:
    """A place with a config.json: a folder (`revision` None), or a hub id pinned to one commit."""

    source: str
    config: dict[str, Any]
    revision: str | None = None

    @property
    def on_hub(self) -> bool:
        return self.revision is not None


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing of transformers below an error is shown inside; its logging level and progress bars come back after."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging

    level, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        if not hub_bars:
            disable_progress_bars()


def find_checkpoint(name_or_path: str | os.PathLike[str], known: tuple[str, ...]) -> Checkpoint:
    """The checkpoint at a folder or hub id, its config.json read. `known`: names an error may offer instead.

    Raises TrajspecError when there is none, or when the hub is asked and neither it nor its cache answers.
    """
    name = os.fspath(name_or_path)
    folder = Path(name).expanduser()
    revision = None
    if folder.is_dir():
        source, file = str(folder), folder / "config.json"
        if not file.is_file():
            raise TrajspecError(f"{name}: the folder has no config.json. Give the folder that save_pretrained wrote.")
    elif folder.exists() or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise TrajspecError(f"{name}: no such folder. Known names: {', '.join(known)}; or give a folder or a hub id.")
    else:
        source, file, revision = _find_on_hub(name, known)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrajspecError(f"{name}: config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise TrajspecError(f"{name}: config.json must hold an object, got {type(config).__name__}")
    return Checkpoint(source, config, revision)


def _find_on_hub(name: str, known: tuple[str, ...]) -> tuple[str, Path, str]:
    # cached_file is what every from_pretrained asks first; the commit it found pins all that follows to one state.
    from transformers.utils import cached_file
    from transformers.utils.hub import extract_commit_hash

    try:
        with quiet():
            file = str(cached_file(name, "config.json"))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TrajspecError(
            f"{name}: not a known name ({', '.join(known)}), not a folder, and not found as a hub id: {reason} "
            "Offline, give the folder of a downloaded checkpoint."
        ) from error
    return name, Path(file), extract_commit_hash(file, None) or "main"


def find_file(checkpoint: Checkpoint, name: str) -> str | None:
    """Where the checkpoint's file `name` lies, fetched from the hub if need be; None when it has none."""
    from transformers.utils import cached_file

    place = {"revision": checkpoint.revision} if checkpoint.on_hub else {}
    try:
        with quiet():
            return cached_file(checkpoint.source, name, _raise_exceptions_for_missing_entries=False, **place)
    except (OSError, ValueError) as error:
        raise TrajspecError(f"{checkpoint.source}: {name} cannot be fetched: {error}") from error


def load_network(
    cls: type[PreTrainedModel],
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    *,
    config: PreTrainedConfig | None = None,
    renames: Mapping[str, str] | None = None,
    attention: str = IMPLEMENTATION,
) -> PreTrainedModel:
    """`cls` with the checkpoint's weights and the attention hook, or transformers' own `attention`, frozen, in
    evaluation mode.

    Safetensors where there are any, else `torch.load(weights_only=True)`; from the hub safetensors only, because asking
    it for a pickle makes transformers ask a public service for a conversion. `config` stands in for a config.json that
    transformers cannot read, `renames` maps patterns of weight names to those of `cls`; then the class is not the
    checkpoint's own, and a weight it has no place for is an error.

    Raises TrajspecError when weights are absent, need unpickling, have another shape, or leave parts uninitialised.
    """
    register()
    place: dict[str, Any] = {"revision": checkpoint.revision, "use_safetensors": True} if checkpoint.on_hub else {}
    if config is not None:
        place["config"] = config
    if renames:
        place["key_mapping"] = dict(renames)
    # Typed loosely: with output_loading_info transformers returns a pair, which its annotation does not say.
    load: Callable[..., Any] = cls.from_pretrained
    try:
        with quiet():
            network, info = load(
                checkpoint.source,
                dtype=dtype,
                attn_implementation=attention,
                weights_only=True,
                output_loading_info=True,
                **place,
            )
    except UnpicklingError as error:
        # torch's own text recommends to switch the protection off.
        raise TrajspecError(
            f"{checkpoint.source}: the weights cannot be loaded: the file holds more than tensors, and reading that "
            "would run its code. Save the checkpoint as safetensors."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        hint = " Download a checkpoint without safetensors and give its folder." if checkpoint.on_hub else ""
        raise TrajspecError(f"{checkpoint.source}: the weights cannot be loaded: {error}{hint}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise TrajspecError(
            f"{checkpoint.source}: {len(missing)} weights of {cls.__name__} are not in the checkpoint: "
            f"{', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}. It was saved from another class."
        )
    unexpected = sorted(info["unexpected_keys"]) if config is not None else []
    if unexpected:
        raise TrajspecError(
            f"{checkpoint.source}: {cls.__name__} has no place for {len(unexpected)} weights of the checkpoint: "
            f"{', '.join(unexpected[:4])}{', ...' if len(unexpected) > 4 else ''}. The variant is not computed here."
        )
    return network.to(device).eval().requires_grad_(False)


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's own tokenizer. Raises TrajspecError when its files are absent or ask for remote code."""
    return load_tokenizer_class("AutoTokenizer", checkpoint, trust_remote_code=False)


def load_tokenizer_class(title: str, checkpoint: Checkpoint, **options: Any) -> Any:
    """The checkpoint's tokenizer, read by the class `title` of transformers. Raises TrajspecError when it cannot be."""
    import transformers

    place = {"revision": checkpoint.revision} if checkpoint.on_hub else {}
    try:
        with quiet():
            tokenizer = getattr(transformers, title).from_pretrained(checkpoint.source, **options, **place)
    except Exception as error:  # transformers raises many kinds here, down to a bare Exception from the parser
        raise TrajspecError(f"{checkpoint.source}: the tokenizer cannot be loaded: {error}") from error
    # Without vocabulary files some tokenizer classes load as their special tokens alone and read all text as unknown.
    if set(tokenizer.get_vocab().values()) <= special_ids(tokenizer):
        raise TrajspecError(
            f"{checkpoint.source}: the tokenizer has no tokens besides {len(tokenizer)} special ones. "
            "Put its files (tokenizer.json, or vocab.txt with tokenizer_config.json) into the folder."
        )
    return tokenizer
