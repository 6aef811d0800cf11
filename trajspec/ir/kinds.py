"""The kinds of values a plan computes with, and the shape of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A domain of values.

    `axes` is the shape of one row: "" for records, "1" for one number a row (kept as an axis of length 1, so that
    everything broadcasts), "L" for one value a position, "LV" for one value a position and token. A batch puts its
    row axis in front.
    """

    name: str
    axes: str
    sentence: str

    def __str__(self) -> str:
        return self.name


CANVAS = Kind("canvas", "", "the token ids of a row, which of them are masked, and its counters")
QUERY = Kind("query", "", "what a policy asks the model for: tokens, positions and who sees whom")
CACHE = Kind("cache", "", "the canvas that keys and values were kept of, and the block they were kept for")
LOGITS = Kind("logits", "LV", "raw scores of the model, one a position and token")
PROBS = Kind("probs", "LV", "probabilities, one a position and token")
CONF = Kind("conf", "L", "the probability of one token a position, kept as its logarithm")
SCORES = Kind("scores", "L", "one real number a position")
TOKENS = Kind("tokens", "L", "one token id a position")
SELECTION = Kind("selection", "L", "a set of positions, one truth value a position")
COUNT = Kind("count", "1", "one number a row")
FLAG = Kind("flag", "1", "one truth value a row")

DRAFT = Kind("draft", "", "hypothetical states of a row: what may come next on its trajectory")
HELD = Kind("held", "", "what a run keeps between rounds: the last logits of every position, and its meters")
TABLE = Kind("table", "", "the views evaluated in one round, with the logits of each")
TRAIL = Kind("trail", "", "the states that one round went through, in order")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        CANVAS, QUERY, CACHE, LOGITS, PROBS, CONF, SCORES, TOKENS, SELECTION, COUNT, FLAG, DRAFT, HELD, TABLE, TRAIL
    )
}  # fmt: skip


def article(kinds: tuple[Kind, ...]) -> str:
    """The names of `kinds` as a message says them."""
    return " or ".join(kind.name for kind in kinds)
