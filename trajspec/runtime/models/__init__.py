"""Models by name, folder or hub id."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models.antiberty import load_antiberty
from trajspec.runtime.models.base import Written, Codec, Model
from trajspec.runtime.models.fill_mask import load_fill_mask
from trajspec.runtime.models.loading import find_checkpoint

__all__ = ["KNOWN", "Written", "Codec", "Model", "load_model"]

KNOWN: dict[str, Callable[[torch.dtype, torch.device], Model]] = {"antiberty": load_antiberty}
"""Names that need no path, each with what loads it."""


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
    return load_fill_mask(name, find_checkpoint(name, tuple(KNOWN)), dtype, place)
