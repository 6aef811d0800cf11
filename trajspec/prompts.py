"""Prompts as people give them: texts, token ids, conversations, one or many; and a seed for each."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from .ir import TrajspecError

Prompt = str | Sequence[int]


def items_of(prompts: Any, attention: Any) -> list[Prompt]:
    """The prompts one by one; a single one may come bare. Padding that `attention` names is left out."""
    prompts, attention = _plain(prompts), _plain(attention)
    if isinstance(prompts, str):
        prompts = [prompts]
    if not isinstance(prompts, Sequence):
        raise TrajspecError(f"prompts is {type(prompts).__name__}; expected text, token ids, or a list of either")
    if len(prompts) == 0:
        raise TrajspecError("there are no prompts; give at least one (an empty text is one: [''])")
    if all(isinstance(item, Mapping) for item in prompts):
        prompts = [prompts]  # one conversation
    if all(isinstance(item, Integral) for item in prompts):
        prompts = [prompts]
        bare = isinstance(attention, Sequence) and not (attention and isinstance(attention[0], Sequence))
        attention = [attention] if bare else attention
    items: list[Prompt] = []
    for number, item in enumerate(map(_plain, prompts)):
        if isinstance(item, Sequence) and not isinstance(item, str) and all(isinstance(t, Integral) for t in item):
            item = [operator.index(token) for token in item]
        elif not isinstance(item, str) and not _is_chat(item):
            raise TrajspecError(
                f"prompt {number} is {type(item).__name__}; expected text, a list of token ids, or a conversation: a "
                "list of {'role': ..., 'content': ...}"
            )
        items.append(item)
    return items if attention is None else _without_padding(items, attention)


def _is_chat(item: Any) -> bool:
    return isinstance(item, Sequence) and len(item) > 0 and all(isinstance(part, Mapping) for part in item)


def spoken(model: Any, item: Any) -> Prompt:
    """A conversation as the text the model's own template makes of it; anything else as it is."""
    if not _is_chat(item) or isinstance(item, str):
        return item
    if model.codec is None:
        raise TrajspecError(f"{model.name} has no text, so no chat template; give token ids")
    for number, message in enumerate(item):
        wrong = [name for name in ("role", "content") if not isinstance(message.get(name), str)]
        if wrong:  # a template would write nothing for it, without a word
            raise TrajspecError(
                f"message {number} is {dict(message)!r:.80}: its {wrong[0]} is {message.get(wrong[0])!r:.40}, expected "
                "a text; a conversation is a list of {'role': ..., 'content': ...}"
            )
    if model.kind == "text" and not hasattr(model.codec, "chat"):
        raise TrajspecError(f"{model.name} has no chat template; give the prompt as text")
    return model.chat(item)


def _without_padding(items: list[Prompt], attention: Sequence[Any]) -> list[Prompt]:
    if not isinstance(attention, Sequence) or isinstance(attention, (str, bytes)):
        raise TrajspecError(f"attention_mask is {attention!r:.80}, expected a list of 0 and 1 for each prompt")
    if len(attention) != len(items):
        raise TrajspecError(f"attention_mask has {len(attention)} rows for {len(items)} prompts; give one a prompt")
    kept: list[Prompt] = []
    for number, (item, real) in enumerate(zip(items, map(_plain, attention), strict=True)):
        if isinstance(item, str) or _is_chat(item) or not isinstance(real, Sequence) or len(real) != len(item):
            raise TrajspecError(f"attention_mask of prompt {number} needs a 0 or 1 for each of its token ids")
        kept.append([token for token, keep in zip(item, real, strict=True) if keep])
    return kept


def _plain(data: Any) -> Any:
    return data.tolist() if hasattr(data, "tolist") else data


def seeds_of(seed: int | None, seeds: Sequence[int] | None, count: int) -> list[int]:
    if seeds is None:
        return [_seed(0 if seed is None else seed)] * count
    if seed is not None:
        raise TrajspecError(f"seed={seed!r} and seeds={seeds!r} are both given; give one of them")
    listed = hasattr(seeds, "__len__") and not isinstance(seeds, (str, bytes, Mapping))
    if not listed or len(seeds) != count:
        got = repr(seeds) if not listed else f"{len(seeds)} seeds"
        raise TrajspecError(f"seeds: {got} for {count} prompts; a seed belongs to its row: give one each")
    return [_seed(seed) for seed in seeds]


def _seed(given: Any) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise TrajspecError(f"seed is {given!r}, expected a whole number of up to 64 bits") from None
