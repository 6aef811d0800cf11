"""AntiBERTy, a masked language model of antibody sequences, from the package that carries its weights."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models.base import Model
from trajspec.runtime.models.fill_mask import assemble
from trajspec.runtime.models.loading import Checkpoint, load_network
from trajspec.runtime.models.text import ResidueCodec

NAME = "antiberty"


def load_antiberty(dtype: torch.dtype, device: torch.device) -> Model:
    """AntiBERTy (Ruffolo, Gray, Sulam 2021; arXiv:2112.07782; MIT): 26M parameters, 25 tokens, 512 positions.

    Its class adds heads to BERT that predict species, chain and graft; without them it is `BertForMaskedLM`.

    Raises TrajspecError when the package is not installed or lacks the files.
    """
    from transformers import BertForMaskedLM, BertTokenizer

    folder = _trained_models()
    # `vocab_file=` and AutoTokenizer both load an empty vocabulary from here without a word.
    tokenizer = BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=False)
    weights = folder / "AntiBERTy_md_smooth"
    checkpoint = Checkpoint(str(weights), json.loads((weights / "config.json").read_text(encoding="utf-8")))
    network = load_network(BertForMaskedLM, checkpoint, dtype, device)
    return assemble(NAME, network, tokenizer, ResidueCodec(NAME, tokenizer), checkpoint)


def _trained_models() -> Path:
    # The package is found, not imported: its own runner does not import under transformers 5.
    spec = importlib.util.find_spec(NAME)
    if spec is None or not spec.submodule_search_locations:
        raise TrajspecError(f'{NAME}: the package is not installed. Run: pip install "trajspec[{NAME}]"')
    folder = Path(spec.submodule_search_locations[0]) / "trained_models"
    for file in (folder / "vocab.txt", folder / "AntiBERTy_md_smooth" / "config.json"):
        if not file.is_file():
            raise TrajspecError(f'{NAME}: {file} is missing. Run: pip install --force-reinstall "trajspec[{NAME}]"')
    return folder
