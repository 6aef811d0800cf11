"""Small models as values: tapes, hashes and tables, with the text their rows are written and read as."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .program import State, code, uncode
from .tabular import HashModel, TapeModel

#: What an entry of a model is asked: the (position, token) pairs it sees, sorted, and its own position.
Key = tuple[tuple[tuple[int, int], ...], int]
#: The answer: int weights of the ordinary tokens, or float logits.
Row = tuple[int, ...] | tuple[float, ...]
#: Any position a context is written into (`program.Denoise`) lies below.
FAR = 2**62


@dataclass(frozen=True)
class Tape:
    """A model whose weights are read off a tape, in the order of the first queries (`tabular.TapeModel`)."""

    weights: tuple[int, ...] = ()

    def build(self, vocab: int) -> TapeModel:
        return TapeModel(self.weights, vocab + 1, FAR)


@dataclass(frozen=True)
class Hash:
    """A model with one of `levels` logits everywhere, by a hash of what is seen (`tabular.HashModel`)."""

    seed: int
    levels: int

    def build(self, vocab: int) -> HashModel:
        return HashModel(self.seed, vocab + 1, self.levels)


@dataclass(frozen=True)
class Table:
    """A model written down: the rows that are not uniform."""

    rows: tuple[tuple[Key, Row], ...] = ()

    def build(self, vocab: int) -> TapeModel:
        model = TapeModel((), vocab + 1, FAR)
        for key, row in self.rows:
            model.memo[key] = np.append(logits_of(row), -np.inf)
        return model


Model = Tape | Hash | Table


def logits_of(row: Row) -> NDArray[np.float64]:
    """Int weights as their logs, floats as they are."""
    if not any(isinstance(number, int) for number in row):
        return np.array(row, np.float64)
    with np.errstate(divide="ignore"):
        return np.log(np.array(row, np.float64))


def rows_met(model: TapeModel | HashModel) -> dict[Key, Row]:
    """The rows a built model was asked for and that are not all 0, without the mask's column."""
    out: dict[Key, Row] = {}
    for key, logits in (model.memo if isinstance(model, TapeModel) else model._memo).items():
        row = logits[:-1]
        if not row.any():
            continue
        weights = np.exp(row)
        whole = isinstance(model, TapeModel) and np.allclose(weights, np.round(weights), rtol=1e-9)
        out[key] = tuple(int(w) for w in np.round(weights)) if whole else tuple(row.tolist())
    return out


def ranks(row: Row) -> tuple[int, ...]:
    """Small int weights in the same order, equal where the row's numbers are."""
    levels = sorted(set(row))
    return tuple(levels.index(number) + 1 for number in row)


def simpler_rows(row: Row) -> Iterator[Row]:
    """Whole weights instead of logits; rows with smaller whole weights: 1 in a place, or one less."""
    if not any(isinstance(number, int) for number in row):
        yield ranks(row)
    else:
        yield from _smaller_weights(row)


def _smaller_weights(row: Row) -> Iterator[Row]:
    if any(isinstance(number, int) for number in row):
        for place, number in enumerate(row):
            for less in sorted({int(number != 0), int(number) - 1}):
                other = (*row[:place], less, *row[place + 1 :])
                if 0 < less < number and len(set(other)) > 1:
                    yield other


def letters(state: Iterable[int]) -> str:
    """A state as text: `_` where masked, a for token 0, b for 1, and so on."""
    return "".join("_" if token < 0 else chr(97 + token) for token in state)


def unletters(text: str) -> State:
    """The state that `letters` wrote."""
    return tuple(-1 if letter == "_" else ord(letter) - 97 for letter in text)


def shown(row: Row) -> str:
    """A row of a table as text."""
    return "(" + ",".join(f"{number:.4g}" for number in row) + ")"


def table_text(table: Table, length: int, vocab: int) -> dict[str, Row]:
    """The rows of a table by the text of their keys (`key_text`)."""
    return {key_text(key, length, vocab): row for key, row in table.rows}


def key_text(key: Key, length: int, vocab: int) -> str:
    """`a_@1`: position 1 of the canvas a_; `a_|__@1`: the same in the context __; `{0a 0b 1_}@1`: any other entries."""
    pairs, position = key
    state = [-1 if token == vocab else token for _, token in pairs]
    number, first = divmod(pairs[0][0], length) if pairs else (0, 0)
    if first == 0 and [place for place, _ in pairs] == list(range(number * length, number * length + length)):
        where = ""
        if number:
            context = letters(uncode(number, vocab))
            where = "|" + ",".join(context[at : at + length] for at in range(0, len(context), length))
        return f"{letters(state)}{where}@{position % length}"
    seen = " ".join(f"{place}{letters([token])}" for (place, _), token in zip(pairs, state, strict=True))
    return f"{{{seen}}}@{position}"


def read_key(text: str, length: int, vocab: int) -> Key:
    """The key that `key_text` wrote."""
    seen, _, at = text.rpartition("@")
    if seen.startswith("{"):
        pairs = [(int(item[:-1]), unletters(item[-1])[0]) for item in seen.strip("{}").split()]
        shift = 0
    else:
        canvas, _, context = seen.partition("|")
        shift = length * code(unletters(context.replace(",", "")), vocab) if context else 0
        pairs = [(place + shift, token) for place, token in enumerate(unletters(canvas))]
    return tuple((place, vocab if token < 0 else token) for place, token in pairs), int(at) + shift


def moved(
    table: Table,
    vocab: int,
    length: int,
    tokens: int,
    state: Callable[[State], State],
    place: Callable[[int], int | None],
    row: Callable[[int, Row], Row],
) -> Table:
    """The table after a change of all states and positions.

    `state(old)` is the new state, `place(old)` the new position or None when it goes, `row(old place, row)` the new
    row. Where several rows become one, the first stays; rows that are not about whole canvases, or need more than
    `tokens` tokens, are left out.
    """
    out: dict[Key, Row] = {}
    for (pairs, at), weights in table.rows:
        number, first = divmod(pairs[0][0], length) if pairs else (0, 1)
        spots = list(range(number * length, number * length + length))
        where = place(at % length)
        if first or [spot for spot, _ in pairs] != spots or where is None:
            continue
        new = state(tuple(-1 if token == vocab else token for _, token in pairs))
        shift = 0
        if number:
            flat = uncode(number, vocab)
            chunks = [state(tuple(flat[spot : spot + length])) for spot in range(0, len(flat), length)]
            if len(flat) == length * length:  # one canvas for each position
                by_place = sorted((to, chunk) for old, chunk in enumerate(chunks) if (to := place(old)) is not None)
                chunks = [chunk for _, chunk in by_place]
            context = [token for chunk in chunks for token in chunk]
            new_seen = (*new, *context)
            shift = len(new) * code(context, tokens)
        else:
            new_seen = new
        answer = row(at % length, weights)[:tokens]
        if max(new_seen) < tokens and any(logits_of(answer) > -np.inf):
            key = tuple((spot + shift, tokens if token < 0 else token) for spot, token in enumerate(new)), where + shift
            out.setdefault(key, answer)
    return Table(tuple(out.items()))
