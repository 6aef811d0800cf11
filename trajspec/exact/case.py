"""Cases of the deterministic check: a small model, a canvas, a seed, drafts; drawn, shrunk, written down, read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.errors import TrajspecError
from .models import (
    Hash,
    Model,
    Row,
    Table,
    Tape,
    letters,
    moved,
    ranks,
    read_key,
    shown,
    simpler_rows,
    table_text,
    unletters,
)
from .program import State
from .search import Draw

UNIFORM = Table()


@dataclass(frozen=True)
class Drafts:
    """A drafter that always proposes the same chains of states, each a path as it might go on from the canvas.

    A check adds the first `follow` states of the base's own path, so that something is accepted: as the last chain, or
    with `jump` as chains of one state each, which stand for several steps at once.
    """

    chains: tuple[tuple[State, ...], ...] = ()
    follow: int = 0
    jump: bool = False

    def __call__(self, state: Any) -> list[list[NDArray[np.int64]]]:
        """The chains, whatever the state; int64 [L] each."""
        return [[np.array(hypothetical) for hypothetical in chain] for chain in self.chains]

    def along(self, path: Sequence[State]) -> Drafts:
        """The same with the base's path written out."""
        own = tuple(path[1 : self.follow + 1])
        more = tuple((state,) for state in own) if self.jump else (own,)
        return Drafts((*self.chains, *more)) if self.follow else self


@dataclass(frozen=True)
class Case:
    """One input of the deterministic check. `drafts` and `others`: drafters, or numbers in the user's own list."""

    canvas: State
    vocab: int
    model: Model = UNIFORM
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
        yield from self._moves(difference.path)
        yield from (replace(self, drafts=fewer) for fewer in fewer_drafts(self.drafts, difference.path))
        yield from (replace(self, others=fewer) for fewer in fewer_drafts(self.others, difference.path))
        for place, (key, row) in enumerate(self.model.rows):
            before, after = self.model.rows[:place], self.model.rows[place + 1 :]
            yield replace(self, model=Table(before + after))
            for simpler in simpler_rows(row):
                yield replace(self, model=Table((*before, (key, simpler), *after)))
        if self.seed:
            yield replace(self, seed=0)

    def _moves(self, path: Sequence[State]) -> Iterator[Case]:
        """A position or a token less; the base's order made left to right; what it writes made a.

        Ties do not move along, so any of these may turn out to be another case altogether.
        """
        length, last = len(self.canvas), path[-1]
        for gone in reversed(range(length if length > 1 else 0)):
            yield self._moved(partial(_without, gone), partial(_left_of, gone))
        if self.vocab > 2 and not any(self.vocab - 1 in state for state in (*path, *self._drafted())):
            yield self._moved(tokens=self.vocab - 1)
        written = [sum(state[place] < 0 for state in path) for place in range(length)]
        order = sorted(range(length), key=lambda place: (written[place], place))
        if order != list(range(length)):
            yield self._moved(lambda state: tuple(state[old] for old in order), order.index)
        for place, token in enumerate(last):
            if token > 0 and self.canvas[place] < 0:
                yield self._moved(partial(_swapped, place, token), row=partial(_swapped_row, place, token))

    def _drafted(self) -> list[State]:
        sides = (side for side in (self.drafts, self.others) if isinstance(side, Drafts))
        return [state for side in sides for chain in side.chains for state in chain]

    def _moved(
        self,
        state: Callable[[State], State] = lambda state: state,
        place: Callable[[int], int | None] = lambda place: place,
        row: Callable[[int, Row], Row] = lambda _, row: row,
        tokens: int | None = None,
    ) -> Case:
        assert isinstance(self.model, Table)
        tokens = tokens or self.vocab
        table = moved(self.model, self.vocab, len(self.canvas), tokens, state, place, row)
        sides = [
            replace(side, chains=tuple(tuple(map(state, chain)) for chain in side.chains))
            if isinstance(side, Drafts)
            else side
            for side in (self.drafts, self.others)
        ]
        canvas = state(self.canvas)
        return replace(self, canvas=canvas, vocab=tokens, model=table, drafts=sides[0], others=sides[1])

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
                lines.append(
                    f"{name}   {chains or 'none'}" + (f", the base's first {drafts.follow}" if drafts.follow else "")
                )
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


def _without(gone: int, state: State) -> State:
    return state[:gone] + state[gone + 1 :]


def _left_of(gone: int, place: int) -> int | None:
    return None if place == gone else place - (place > gone)


def _swapped(place: int, token: int, state: State) -> State:
    other = {0: token, token: 0}.get(state[place], state[place])
    return (*state[:place], other, *state[place + 1 :])


def _swapped_row(place: int, token: int, at: int, row: Row) -> Row:
    if at != place:
        return row
    other: Any = list(row)
    other[0], other[token] = row[token], row[0]
    return tuple(other)


def _drafts_dict(drafts: Drafts | int | None) -> Any:
    if isinstance(drafts, Drafts):
        chains = [[letters(state) for state in chain] for chain in drafts.chains]
        return {"chains": chains, "follow": drafts.follow, "jump": drafts.jump}
    return drafts


def _read_drafts(data: Any) -> Drafts | int | None:
    if isinstance(data, Mapping):
        chains = tuple(tuple(unletters(state) for state in chain) for chain in data["chains"])
        return Drafts(chains, int(data.get("follow", 0)), bool(data.get("jump", False)))
    return data


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
        model = Hash(draw_seed(draw), draw(st.sampled_from(tuple(levels))))
    else:
        # 1 comes first, so that what shrinks becomes uniform.
        weight = st.sampled_from((1, 2, 3, 0, 4, 9, 40))
        model = Tape(tuple(draw(st.lists(weight, max_size=6 * tokens))))
    seed = draw_seed(draw)
    drawn = [draw_drafts(draw, canvas, tokens) for _ in range(drafts)]
    return Case(canvas, tokens, model, seed, *drawn)


def draw_seed(draw: Draw) -> int:
    """A number below 9,801, from two small ones: among larger ones hypothesis prefers those in the user's sources."""
    from hypothesis import strategies as st

    return 99 * draw(st.integers(0, 98)) + draw(st.integers(0, 98))


def draw_drafts(draw: Draw, canvas: State, vocab: int) -> Drafts:
    """Up to two chains of writes on the canvas, and perhaps the beginning of the base's own path."""
    from hypothesis import strategies as st

    free = [place for place, token in enumerate(canvas) if token < 0]
    write = st.tuples(st.sampled_from(free), st.integers(0, vocab - 1))
    chains = []
    for writes in draw(st.lists(st.lists(write, min_size=1, max_size=len(free)), max_size=2)):
        states = [canvas]
        for place, token in writes:
            states.append(tuple(token if at == place else old for at, old in enumerate(states[-1])))
        chains.append(tuple(new for old, new in pairwise(states) if new != old))
    return Drafts(tuple(chains), draw(st.integers(0, len(free))), draw(st.booleans()))
