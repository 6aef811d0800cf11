"""DiffusionGemma (Google 2026): an encoder reads finished text, a decoder draws the open canvas from noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trajspec.ir.errors import TrajspecError
from trajspec.ir.query import Soft
from trajspec.runtime.models.base import Model
from trajspec.runtime.models.loading import Checkpoint, find_file, load_network, load_tokenizer
from trajspec.runtime.models.text import CompletionCodec
from trajspec.runtime.query import front

ARCHITECTURE, MODEL_TYPE = "DiffusionGemmaForBlockDiffusion", "diffusion_gemma"


class Forward:
    """Calls of transformers' `DiffusionGemmaForBlockDiffusion`, as its own `generate` makes them.

    The encoder is causal and reads the text before the canvas; as that stays the same while a canvas is drawn, what
    it kept is used again as long as a call shows the same text. (The positions that a call counts include the text.)
    """

    shifted = False

    def __init__(self, network: Any) -> None:
        self.network = network
        self._text: Tensor | None = None
        self._kept: tuple[Any, Tensor] | None = None

    def __call__(self, tokens: Tensor, positions: Tensor, visible: Tensor | None, soft: Soft) -> Tensor:
        """Logits float32 [R, W, V]: about the entries of `soft.where`, and 0 about finished text.

        Raises TrajspecError when a row has no text before its canvas, or a canvas of another length than the model's.
        """
        exists = torch.ones_like(soft.where) if visible is None else visible.diagonal(dim1=1, dim2=2)
        inside = soft.where & exists
        length = self.network.config.canvas_length
        sizes, texts = inside.sum(-1).tolist(), (exists & ~inside).sum(-1).tolist()
        if any(size != length for size in sizes) or not all(texts):
            raise TrajspecError(
                f"canvases of {sorted(set(sizes))} tokens after {min(texts)} tokens of text or more; the model reads "
                f"canvases of {length} tokens after a text of at least one: give block_length={length}, a gen_length "
                "that is a multiple of it, and a prompt"
            )
        cache, mask = self._encode(tokens, exists & ~inside, max(texts))
        columns = front(inside, length)
        wide = columns[..., None].expand(-1, -1, soft.logits.shape[-1])
        embedded = self.network.model.decoder.embed_tokens.weight.dtype
        drawn = tokens.gather(1, columns)
        masks = self.network.model.decoder.create_diffusion_decoder_attention_mask(
            config=self.network.config,
            inputs_embeds=drawn[..., None],
            cache=cache,
            decoder_attention_mask=torch.nn.functional.pad(mask, (0, length), value=True),
        )
        # A canvas that is new has no predictions: what stands there is of another one, and may be no number.
        said = torch.where(soft.given[..., None], soft.logits.gather(1, wide), 0.0).to(embedded)
        logits = self.network(
            decoder_input_ids=drawn,
            self_conditioning_logits=said,
            self_conditioning_mask=soft.given[:, 0],
            decoder_attention_mask=masks,
            decoder_position_ids=positions.gather(1, columns),
            cache=cache,
        ).logits
        return logits.new_zeros(*tokens.shape, logits.shape[-1]).scatter(1, wide, logits)

    def _encode(self, tokens: Tensor, inside: Tensor, width: int) -> tuple[Any, Tensor]:
        """What the encoder keeps of the entries `inside`, and which of its columns are text, bool [R, width].

        Rows are padded on the left: its windows count columns, and then columns are as far apart as positions.
        """
        from transformers import DynamicCache

        columns = (~inside).to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, -width:]
        mask = inside.gather(1, columns)
        text = tokens.gather(1, columns).masked_fill(~mask, -1)
        if self._kept is None or self._text is None or not torch.equal(text, self._text):
            encoder = self.network.model.encoder
            cache = DynamicCache(config=self.network.config.get_text_config(decoder=True))
            at = (mask.cumsum(-1) - 1).clamp(min=0)
            shaped = torch.empty((*text.shape, 0), dtype=self.network.dtype, device=text.device)
            masks = encoder.create_masks_for_generate(
                config=self.network.config, inputs_embeds=shaped, attention_mask=mask, cache=cache, position_ids=at
            )
            encoder(input_ids=text.clamp(min=0), attention_mask=masks, cache=cache, position_ids=at)
            self._text, self._kept = text, (cache, mask)
        return self._kept


def load_diffusion_gemma(name: str, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Model:
    """A DiffusionGemma checkpoint; images are not read. Without tokenizer files it takes token ids only.

    Raises TrajspecError for weights too many or too few.
    """
    from transformers import DiffusionGemmaForBlockDiffusion

    # Text and canvas differ in what they attend to, which transformers' own masks say.
    network: Any = load_network(DiffusionGemmaForBlockDiffusion, checkpoint, dtype, device, attention="sdpa")
    text = network.config.text_config
    tokenizer = load_tokenizer(checkpoint) if find_file(checkpoint, "tokenizer.json") is not None else None
    pad_id = text.pad_token_id or 0
    return Model(
        name=name,
        kind="text",
        vocab_size=text.vocab_size,
        # It has no mask: the id stands in for what is not written yet, and is never shown to the network.
        mask_id=pad_id,
        pad_id=pad_id,
        eos_ids=_eos_ids(checkpoint, text.eos_token_id),
        banned_ids=(),
        max_positions=text.max_position_embeddings,
        dtype=network.dtype,
        device=network.device,
        codec=None if tokenizer is None else CompletionCodec(name, tokenizer, text.vocab_size, pad_id),
        denoise=Forward(network),
        network=network,
        canvas=network.config.canvas_length,
        policy="diffusion_gemma",
    )


def _eos_ids(checkpoint: Checkpoint, declared: Any) -> tuple[int, ...]:
    """What ends an answer: generation_config.json's ids, where turns of a conversation end too, or the config's."""
    file = find_file(checkpoint, "generation_config.json")
    found = json.loads(Path(file).read_text(encoding="utf-8")).get("eos_token_id") if file else None
    given = declared if found is None else found
    return () if given is None else tuple(given) if isinstance(given, (list, tuple)) else (given,)
