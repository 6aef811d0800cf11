"""Models by name, folder or hub id."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models.antiberty import load_antiberty
from trajspec.runtime.models.base import Codec, Model, Written
from trajspec.runtime.models.diffusion_gemma import ARCHITECTURE, MODEL_TYPE, load_diffusion_gemma
from trajspec.runtime.models.dream import DREAM
from trajspec.runtime.models.family import Family, load_family
from trajspec.runtime.models.fast_dllm_v2 import FAST_DLLM_V2
from trajspec.runtime.models.fill_mask import ARCHITECTURES, load_fill_mask
from trajspec.runtime.models.llada import LLADA
from trajspec.runtime.models.llada2 import LLADA2
from trajspec.runtime.models.loading import Checkpoint, find_checkpoint
from trajspec.runtime.models.sdar import SDAR

__all__ = ["FAMILIES", "KNOWN", "Codec", "Model", "Written", "load_model"]


def load_tiny(dtype: torch.dtype, place: torch.device) -> Model:
    """The text model that comes with the package; `data/tiny/README.md` is its card."""
    folder = Path(__file__).parents[2] / "data" / "tiny"
    return load_family(LLADA, "tiny", find_checkpoint(str(folder), ()), dtype, place)


KNOWN: dict[str, Callable[[torch.dtype, torch.device], Model]] = {"tiny": load_tiny, "antiberty": load_antiberty}
"""Names that need no path, each with what loads it."""

FAMILIES: dict[str, Family] = {family.architecture: family for family in (LLADA, DREAM, SDAR, FAST_DLLM_V2, LLADA2)}
"""Completion models, by the architecture that their config.json names."""


def load_model(
    name_or_path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> Model:
    """The model called `name_or_path`: a name in `KNOWN`, the folder of a checkpoint, or a hub id.

    Names win over folders; write `./antiberty` for a folder of that name. The architecture is read from config.json.
    No code of a checkpoint is ever run and nothing is unpickled beyond tensors.

    Raises TrajspecError when it cannot be found, is of an unsupported architecture, or does not fit its tokenizer.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TrajspecError(f"dtype must be a floating torch dtype such as torch.float32, got {dtype!r}")
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise TrajspecError(f"device {str(device)!r} cannot be used: {error}") from error
    name = os.fspath(name_or_path)
    if name in KNOWN:
        return KNOWN[name](dtype, place)
    checkpoint = find_checkpoint(name, tuple(KNOWN))
    title = architecture_of(checkpoint)
    if title in FAMILIES:
        return load_family(FAMILIES[title], name, checkpoint, dtype, place)
    if title == ARCHITECTURE:
        return load_diffusion_gemma(name, checkpoint, dtype, place)
    return load_fill_mask(title, name, checkpoint, dtype, place)


def architecture_of(checkpoint: Checkpoint) -> str:
    """The supported architecture of a checkpoint, by its config.json: `architectures`, or else `model_type`.

    Raises TrajspecError, with the list of what is supported, when there is none.
    """
    supported = {title: architecture.model_type for title, architecture in ARCHITECTURES.items()}
    supported |= {title: family.model_type for title, family in FAMILIES.items()}
    supported[ARCHITECTURE] = MODEL_TYPE
    named = checkpoint.config.get("architectures") or []
    model_type = checkpoint.config.get("model_type")
    found = [title for title, kind in supported.items() if kind == model_type and (title in named or not named)]
    if not found:
        raise TrajspecError(
            f"{checkpoint.source}: config.json has architectures {named} and model_type {model_type!r}; "
            f"supported are {', '.join(supported)}"
        )
    return found[0]
