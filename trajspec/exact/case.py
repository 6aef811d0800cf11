"""Cases of the deterministic check: a small model, a canvas, a seed, drafts; drawn, shrunk, written down, read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.errors import TrajspecError
from .program import State, uncode
from .search import Draw
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


@dataclass(frozen=True)
class Drafts:
    """A drafter that always proposes the same chains of states, each a path as it might go on from the canvas.

    With `follow` a check adds the base's own path as the last chain, so that something is accepted.
    """

    chains: tuple[tuple[State, ...], ...] = ()
    follow: bool = False

    def __call__(self, state: Any) -> list[list[NDArray[np.int64]]]:
        """The chains, whatever the state; int64 [L] each."""
        return [[np.array(hypothetical) for hypothetical in chain] for chain in self.chains]

    def along(self, path: Sequence[State]) -> Drafts:
        """The same with the base's path written out."""
        return Drafts((*self.chains, tuple(path[1:]))) if self.follow else self


@dataclass(frozen=True)
class Case:
    """One input of the deterministic check. `drafts` and `others`: drafters, or numbers in the user's own list."""

    canvas: State
    vocab: int
    model: Model = Table()
    seed: int = 0
    drafts: Drafts | int | None = None
    others: Drafts | int | None = None

    def smaller(self, difference: Any) -> Iterator[Case]:
        """Simpler cases: a table for a model, a position less, fewer rows, smaller weights, fewer drafts, seed 0.

        `difference.rows`: what the model was asked (`rows_met`), `difference.path`: the base's states.
        """
        if not isinstance(self.model, Table):
            rows = dict(difference.rows)
            uneven = {key: row for key, row in rows.items() if len(set(row)) > 1}
            # Uniform rows of other numbers than 0 differ from the rest of the table by rounding only.
            for table in ({key: ranks(row) for key, row in uneven.items()}, uneven, rows):
                yield replace(self, model=Table(tuple(table.items())))
            return
        for place in reversed(range(len(self.canvas))):
            if len(self.canvas) > 1:
                yield self._without(place)
        yield from (replace(self, drafts=fewer) for fewer in fewer_drafts(self.drafts, difference.path))
        yield from (replace(self, others=fewer) for fewer in fewer_drafts(self.others, difference.path))
        for place, (key, row) in enumerate(self.model.rows):
            before, after = self.model.rows[:place], self.model.rows[place + 1 :]
            yield replace(self, model=Table(before + after))
            for simpler in simpler_rows(row):
                yield replace(self, model=Table((*before, (key, simpler), *after)))
        if self.seed:
            yield replace(self, seed=0)

    def _without(self, place: int) -> Case:
        """The case without this position, as far as its rows are about whole canvases."""

        def cut(state: State) -> State:
            return state[:place] + state[place + 1 :]

        out: dict[Key, Row] = {}
        for (pairs, at), row in self.model.rows if isinstance(self.model, Table) else ():
            if [spot for spot, _ in pairs] == list(range(len(self.canvas))) and at != place:
                kept = enumerate(cut(tuple(token for _, token in pairs)))
                out.setdefault((tuple(kept), at - (at > place)), row)
        drafts, others = (
            Drafts(tuple(tuple(map(cut, chain)) for chain in side.chains), side.follow)
            if isinstance(side, Drafts)
            else side
            for side in (self.drafts, self.others)
        )
        table = Table(tuple(out.items()))
        return replace(self, canvas=cut(self.canvas), model=table, drafts=drafts, others=others)

    def lines(self) -> list[str]:
        """The model, the canvas and the drafts, as text."""
        lines = [f"canvas  {letters(self.canvas)}   tokens {letters(range(self.vocab))}   seed {self.seed}"]
        if isinstance(self.model, Table):
            rows = [f"{key}:{shown(row)}" for key, row in table_text(self.model, len(self.canvas), self.vocab).items()]
            rest = "all else uniform" if rows else "uniform"
            lines.append("model   " + "  ".join([*rows, rest]))
        else:
            lines.append(f"model   {self.model}")
        for name, drafts in (("draft", self.drafts), ("other", self.others)):
            if isinstance(drafts, Drafts):
                chains = ", ".join(">".join(map(letters, chain)) for chain in drafts.chains)
                lines.append(f"{name}   {chains or 'none'}" + (", the base's path" if drafts.follow else ""))
            elif drafts is not None:
                lines.append(f"{name}   drafter number {drafts}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `read_case` reads it."""
        model: Any = {"tape": list(self.model.weights)} if isinstance(self.model, Tape) else None
        if isinstance(self.model, Hash):
            model = {"hash": [self.model.seed, self.model.levels]}
        elif isinstance(self.model, Table):
            model = {"rows": {k: list(r) for k, r in table_text(self.model, len(self.canvas), self.vocab).items()}}
        out = {"canvas": letters(self.canvas), "vocab": self.vocab, "seed": self.seed, "model": model}
        return out | {name: _drafts_dict(getattr(self, name)) for name in ("drafts", "others")}


def read_case(data: Mapping[str, Any]) -> Case:
    """The case that `Case.as_dict` wrote. Raises TrajspecError when something is missing or misspelt."""
    try:
        canvas, vocab, spec = unletters(data["canvas"]), int(data["vocab"]), data["model"]
        model: Model
        if "hash" in spec:
            model = Hash(*map(int, spec["hash"]))
        elif "tape" in spec:
            model = Tape(tuple(map(int, spec["tape"])))
        else:
            rows = {read_key(key, len(canvas), vocab): tuple(row) for key, row in spec["rows"].items()}
            model = Table(tuple(rows.items()))
        drafts, others = (_read_drafts(data.get(name)) for name in ("drafts", "others"))
        return Case(canvas, vocab, model, int(data.get("seed", 0)), drafts, others)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TrajspecError(f"no case can be read from {str(dict(data))[:120]}: {error!r}; give the replay text") from (
            error
        )


def _drafts_dict(drafts: Drafts | int | None) -> Any:
    if isinstance(drafts, Drafts):
        return {"chains": [[letters(state) for state in chain] for chain in drafts.chains], "follow": drafts.follow}
    return drafts


def _read_drafts(data: Any) -> Drafts | int | None:
    if isinstance(data, Mapping):
        chains = tuple(tuple(unletters(state) for state in chain) for chain in data["chains"])
        return Drafts(chains, bool(data["follow"]))
    return data


def ranks(row: Row) -> tuple[int, ...]:
    """Small int weights in the same order, equal where the row's numbers are."""
    levels = sorted(set(row))
    return tuple(levels.index(number) + 1 for number in row)


def simpler_rows(row: Row) -> Iterator[Row]:
    """Rows with smaller whole weights: 0 or 1 in a place, or one less."""
    if any(isinstance(number, int) for number in row):
        for place, number in enumerate(row):
            for less in sorted({int(number != 0), int(number) - 1}):
                other = (*row[:place], less, *row[place + 1 :])
                if 0 < less < number and len(set(other)) > 1:
                    yield other


def fewer_drafts(drafts: Drafts | int | None, path: Sequence[State]) -> Iterator[Drafts]:
    """The drafts without the base's path or with it written out, with a chain less, or with a state less."""
    if not isinstance(drafts, Drafts):
        return
    if drafts.follow:
        yield Drafts(drafts.chains)
        yield drafts.along(path)
    for place, chain in enumerate(drafts.chains):
        rest = drafts.chains[:place], drafts.chains[place + 1 :]
        yield replace(drafts, chains=(*rest[0], *rest[1]))
        for at in range(len(chain)):
            yield replace(drafts, chains=(*rest[0], (*chain[:at], *chain[at + 1 :]), *rest[1]))


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
    from .program import code

    seen, _, at = text.rpartition("@")
    if seen.startswith("{"):
        pairs = [(int(item[:-1]), unletters(item[-1])[0]) for item in seen.strip("{}").split()]
        shift = 0
    else:
        canvas, _, context = seen.partition("|")
        shift = length * code(unletters(context.replace(",", "")), vocab) if context else 0
        pairs = [(place + shift, token) for place, token in enumerate(unletters(canvas))]
    return tuple((place, vocab if token < 0 else token) for place, token in pairs), int(at) + shift


def draw_case(
    draw: Draw,
    *,
    lengths: tuple[int, int] = (1, 5),
    vocab: tuple[int, int] = (2, 4),
    levels: Sequence[int] = (1, 2, 4, 50),
    prompts: bool = True,
    drafts: int = 0,
) -> Case:
    """An arbitrary case: any small model, a canvas with a mask at least, a seed, and so many (0 to 2) drafters.

    Half of the models are tapes, which shrink well, the others hashes with few `levels`, which tie. `prompts`: whether
    known tokens may stand in front of the masks.
    """
    from hypothesis import strategies as st

    size, tokens = draw(st.integers(*lengths)), draw(st.integers(*vocab))
    known = min(draw(st.sampled_from((0, 0, 0, 1, 2))), size - 1) if prompts else 0
    canvas = tuple(draw(st.integers(0, tokens - 1)) for _ in range(known)) + (-1,) * (size - known)
    model: Model
    if draw(st.booleans()):
        model = Hash(draw(st.integers(0, 2**16)), draw(st.sampled_from(tuple(levels))))
    else:
        # 1 comes first, so that what shrinks becomes uniform.
        weight = st.sampled_from((1, 2, 3, 0, 4, 9, 40))
        model = Tape(tuple(draw(st.lists(weight, max_size=6 * tokens))))
    seed = draw(st.integers(0, 2**16))
    drawn = [draw_drafts(draw, canvas, tokens) for _ in range(drafts)]
    return Case(canvas, tokens, model, seed, *drawn)


def draw_drafts(draw: Draw, canvas: State, vocab: int) -> Drafts:
    """Up to two chains of writes on the canvas, and perhaps the base's own path."""
    from hypothesis import strategies as st

    free = [place for place, token in enumerate(canvas) if token < 0]
    write = st.tuples(st.sampled_from(free), st.integers(0, vocab - 1))
    chains = []
    for writes in draw(st.lists(st.lists(write, min_size=1, max_size=len(free)), max_size=2)):
        states = [canvas]
        for place, token in writes:
            states.append(tuple(token if at == place else old for at, old in enumerate(states[-1])))
        chains.append(tuple(new for old, new in pairwise(states) if new != old))
    return Drafts(tuple(chains), draw(st.booleans()))
