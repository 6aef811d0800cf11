"""Drafts inside transformers' own `generate`: `model.generate(..., custom_generate=drafted_by("tiny"))`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ir.errors import TrajspecError
from ..ir.noise import row_seed
from ..runtime.denoiser import as_model
from .drafts import Drafter, Drafting, same_tokens
from .loop import Text, drive
from .target import load_target
from .verify import Processing, Verification

#: What `generate` may be told here, beside lengths and ends; anything else would change the law without a word.
_KNOWN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}

#: Settings that have to be as they are by default.
_ONLY = {"num_beams": 1, "num_return_sequences": 1, "no_repeat_ngram_size": 0, "min_p": None}


def drafted_by(
    drafter: Any, *, draft: str = "mean_field", draft_length: int | str = 8, drafts: int = 1, draft_steps: int = 4,
    verify: str = "equality", seed: int = 0, tokenizer: Any = None,
) -> Callable[..., Any]:  # fmt: skip
    """A `custom_generate` for transformers' `generate`: the model's own text, drafted by a diffusion model.

    drafter: a diffusion model, by name or loaded; tokenizer: the target's, so that vocabularies are compared (without
    it equal sizes have to do). The rest as in `trajspec.decode`; greedy, or with do_sample=True drawn, temperature,
    top_k, top_p and repetition_penalty as generate has them. `seed`: of the first row; a text repeats with it.

    The callable returns the sequences, int64 [rows, prompt + answer], padded on the right. It raises TrajspecError for
    settings of generate that it does not compute (beams, several sequences, other processors).
    """
    drafting = Drafting(draft, draft_length, drafts, draft_steps)
    model: Any = as_model(drafter)

    def generate(
        target: Any, input_ids: Tensor, logits_processor: Any = None, stopping_criteria: Any = None,
        generation_config: Any = None, **given: Any,
    ) -> Tensor:  # fmt: skip
        config = generation_config
        told = {name: getattr(config, name, None) for name in _KNOWN}
        settings: dict[str, Any] = {
            name: value for name, value in told.items() if value is not None and value != _KNOWN[name]
        }
        if not getattr(config, "do_sample", False):
            settings = {name: value for name, value in settings.items() if name == "repetition_penalty"}
        else:
            settings.setdefault("temperature", 1.0)
        for name, usual in _ONLY.items():
            value = getattr(config, name, None)
            if value not in (None, usual):
                raise TrajspecError(f"generate with drafts does not compute {name}={value}; leave it at {usual}")
        known = load_target(target, tokenizer=tokenizer)
        verification = Verification(verify, Processing(**settings))
        ids = same_tokens(known, model)
        one = Drafter(model, drafting, verification.processing, ids, verification.level == "law")
        mask = given.get("attention_mask")
        rows = [row if mask is None else row[mask[number].bool()] for number, row in enumerate(input_ids)]
        texts = [Text(row, len(row), row_seed(seed, number)) for number, row in enumerate(rows)]
        ends = getattr(config, "eos_token_id", None)
        eos = [] if ends is None else [int(token) for token in torch.as_tensor(ends).reshape(-1)]
        length = getattr(config, "max_new_tokens", None)
        if length is None:
            length = max(int(getattr(config, "max_length", 20)) - input_ids.shape[1], 0)
        for _ in drive(known, one, texts, gen_length=int(length), eos=eos, verification=verification):
            pass
        longest = max(len(text.answer) for text in texts)
        pad = getattr(config, "pad_token_id", None)
        fill = known.pad_id if pad is None else int(torch.as_tensor(pad))
        out = input_ids.new_full((len(texts), input_ids.shape[1] + longest), fill)
        out[:, : input_ids.shape[1]] = input_ids
        for number, text in enumerate(texts):
            out[number, input_ids.shape[1] : input_ids.shape[1] + len(text.answer)] = text.ids[text.start :]
        return out

    return generate


__all__ = ["drafted_by"]
