"""The ways models write: a transformers tokenizer of either kind of model, or one letter a residue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trajspec.ir.errors import TrajspecError


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids that stand for no text: the tokenizer's named special tokens and any it added as special."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | added


def _read(name: str, tokenizer: Any, text: str, vocab_size: int, unknown: int | None) -> list[int]:
    """Ids of `text` without a frame. `unknown`: the id that stands for text without a token, None if there is none."""
    offsets = bool(tokenizer.is_fast)
    # verbose=False: the length is checked by the model, with a better text.
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=offsets, verbose=False)
    ids = list(read["input_ids"])
    for i, token in enumerate(ids):
        if token == unknown:
            start, stop = read["offset_mapping"][i] if offsets else (0, len(text))
            raise TrajspecError(
                f"{name}: text[{start}:{stop}] = {text[start:stop]!r} is not in the vocabulary. "
                "Remove it or write it another way."
            )
        if token >= vocab_size:
            raise TrajspecError(
                f"{name}: the tokenizer wrote id {token}, the model knows ids below {vocab_size}. "
                "The tokenizer does not belong to these weights."
            )
    return ids


class TokenizerCodec:
    """Text through a transformers tokenizer; special tokens may be written out in the text, as is usual there."""

    def __init__(self, name: str, tokenizer: Any, vocab_size: int) -> None:
        self.name, self.tokenizer, self.vocab_size = name, tokenizer, vocab_size
        frame = list(tokenizer("", add_special_tokens=True)["input_ids"])
        # Every supported family opens with CLS and closes with SEP; without a CLS all of the frame comes last.
        split = frame.index(tokenizer.cls_token_id) + 1 if tokenizer.cls_token_id in frame else 0
        self.prefix, self.suffix = tuple(frame[:split]), tuple(frame[split:])
        kept = {tokenizer.mask_token_id, tokenizer.unk_token_id}
        self._silent = special_ids(tokenizer) - kept

    def encode(self, text: str) -> list[int]:
        """Ids without the frame. Raises TrajspecError where `text` has no token, naming the piece and its index."""
        return _read(self.name, self.tokenizer, text, self.vocab_size, self.tokenizer.unk_token_id)

    def content(self, ids: Iterable[int]) -> list[int]:
        return [int(token) for token in ids if int(token) not in self._silent]

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(self.content(ids))


class CompletionCodec:
    """Text of a completion model: a prompt opens with the tokenizer's own start token, if any, and nothing closes it.

    Special tokens may be written out in the text, as chat templates do.
    """

    suffix: tuple[int, ...] = ()

    def __init__(self, name: str, tokenizer: Any, vocab_size: int, mask_id: int) -> None:
        self.name, self.tokenizer, self.vocab_size = name, tokenizer, vocab_size
        frame, start = list(tokenizer("", add_special_tokens=True)["input_ids"]), tokenizer.bos_token_id
        self.prefix = tuple(frame[: frame.index(start) + 1]) if start in frame else ()
        ends = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        # Byte-level vocabularies can write anything; they often name their end token as the unknown one.
        self._unknown = None if tokenizer.unk_token_id in ends else tokenizer.unk_token_id
        self._silent = special_ids(tokenizer) - {mask_id, self._unknown}
        self._known = frozenset(tokenizer.get_vocab().values())

    def encode(self, text: str) -> list[int]:
        """Ids without the frame: a start token that opens `text` (chat templates write it) is not given twice.

        Raises TrajspecError where `text` has no token, naming the piece and its index.
        """
        ids = _read(self.name, self.tokenizer, text, self.vocab_size, self._unknown)
        size = len(self.prefix)
        return ids[size:] if size and tuple(ids[:size]) == self.prefix else ids

    def content(self, ids: Iterable[int]) -> list[int]:
        return [int(i) for i in ids if int(i) in self._known and int(i) not in self._silent]

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(self.content(ids), clean_up_tokenization_spaces=False)

    @property
    def has_chat(self) -> bool:
        """Whether the tokenizer knows how a conversation is written."""
        return bool(self.tokenizer.chat_template)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text of a conversation, up to where the model is to answer, by the tokenizer's own template.

        Raises TrajspecError when there is no template or it refuses the messages.
        """
        from jinja2 import TemplateError

        if not self.has_chat:
            raise TrajspecError(
                f"{self.name}: the tokenizer has no chat template. Give the prompt as text, "
                "or set chat_template in tokenizer_config.json."
            )
        if isinstance(messages, str) or not all(isinstance(message, Mapping) for message in messages):
            raise TrajspecError(
                f"{self.name}: messages must be a list of {{'role': ..., 'content': ...}}, got {messages!r:.80}"
            )
        try:
            return self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except (TemplateError, ValueError, TypeError) as error:
            raise TrajspecError(f"{self.name}: the chat template refuses the messages: {error}") from error


class ResidueCodec:
    """Protein sequences, one letter a token; blanks between letters are skipped, a mask is `[MASK]` or `_`."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name = name
        specials = special_ids(tokenizer)
        self._letters = {token: i for token, i in tokenizer.get_vocab().items() if i not in specials}
        self._mask = str(tokenizer.mask_token)
        # One character a position, so that decoded text lines up with the canvas.
        self._written = {i: letter for letter, i in self._letters.items()} | {tokenizer.mask_token_id: "_"}
        self._mask_id = tokenizer.mask_token_id
        self.prefix: tuple[int, ...] = (tokenizer.cls_token_id,)
        self.suffix: tuple[int, ...] = (tokenizer.sep_token_id,)

    def encode(self, text: str) -> list[int]:
        """Ids without the frame. Raises TrajspecError at a character that is no residue, naming it and its index."""
        ids: list[int] = []
        i = 0
        while i < len(text):
            if text[i].isspace():
                i += 1
            elif text[i] == "_" or text.startswith(self._mask, i):
                ids.append(self._mask_id)
                i += 1 if text[i] == "_" else len(self._mask)
            elif text[i] in self._letters:
                ids.append(self._letters[text[i]])
                i += 1
            else:
                hint = f" Write {text[i].upper()!r}." if text[i].upper() in self._letters else ""
                raise TrajspecError(
                    f"{self.name}: text[{i}] = {text[i]!r} is not a residue; residues are "
                    f"{''.join(sorted(self._letters))}, a mask is {self._mask} or _.{hint}"
                )
        return ids

    def content(self, ids: Iterable[int]) -> list[int]:
        return [int(token) for token in ids if int(token) in self._written]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._written[token] for token in self.content(ids))
