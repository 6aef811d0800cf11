"""The two ways fill-mask models write: a transformers tokenizer, or one letter a residue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trajspec.ir.errors import TrajspecError


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids that stand for no text: the tokenizer's named special tokens and any it added as special."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | added


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
        offsets = bool(self.tokenizer.is_fast)
        # verbose=False: the length is checked by the model, with a better text.
        read = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=offsets, verbose=False)
        ids = list(read["input_ids"])
        for i, token in enumerate(ids):
            if token == self.tokenizer.unk_token_id:
                start, stop = read["offset_mapping"][i] if offsets else (0, len(text))
                raise TrajspecError(
                    f"{self.name}: text[{start}:{stop}] = {text[start:stop]!r} is not in the vocabulary. "
                    "Remove it or write it another way."
                )
            if token >= self.vocab_size:
                raise TrajspecError(
                    f"{self.name}: the tokenizer wrote id {token}, the model knows ids below {self.vocab_size}. "
                    "The tokenizer does not belong to these weights."
                )
        return ids

    def content(self, ids: Iterable[int]) -> list[int]:
        return [int(token) for token in ids if int(token) not in self._silent]

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(self.content(ids))


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
