"""Witnesses for drafts of an autoregressive target: what each condition of speculative sampling is for."""

from __future__ import annotations

from functools import partial

from .completions import autoregressive, completion
from .law_check import table_case
from .laws import Weights
from .witnesses import law_witness

_EVEN: dict[str, Weights] = {"_@0": (1, 1)}
_TILTED: dict[str, Weights] = {"_@0": (2, 1)}

law_witness(
    "G1",
    "a drafted token has its law given all that was known when it was drawn, and nothing that was drawn later",
    "Tokens are revealed from the right and judged from the left by the probabilities they were revealed with: that "
    "the left one was accepted says something about the right one.",
    base=autoregressive,
    flawed=partial(completion, form="right_to_left"),
    sound=partial(completion, form="left_to_right"),
    case=table_case(
        "__", {"__@0": (1, 1), "a_@1": (1, 1), "b_@1": (1, 1)}, {"__@1": (1, 1), "_a@0": (2, 1), "_b@0": (1, 1)}
    ),
)
law_witness(
    "G2",
    "a draft that is the likeliest token has probability 1",
    "The likeliest token is drafted and judged as if it had been drawn.",
    base=autoregressive,
    flawed=partial(completion, greedy=True),
    sound=partial(completion, greedy=True, equality=True),
    case=table_case("_", _EVEN, _EVEN),
)
law_witness(
    "G3",
    "what takes the place of a refused draft is drawn from (p - q)+",
    "It is drawn from the target's own law.",
    base=autoregressive,
    flawed=partial(completion, from_target=True),
    sound=completion,
    case=table_case("_", _EVEN, _TILTED),
)
law_witness(
    "G4",
    "the draft is drawn at the temperature of the law it is judged by",
    "It is drawn at half the temperature.",
    base=autoregressive,
    flawed=partial(completion, hotter=True),
    sound=completion,
    case=table_case("_", _EVEN, _TILTED),
)
law_witness(
    "G5",
    "a draft that was chosen among several is not judged by the law of a single one",
    "Of two drafts the one that the drafter finds likelier is judged as if it had been the only one.",
    base=autoregressive,
    flawed=partial(completion, best=True, drafts=2),
    sound=partial(completion, drafts=2),
    case=table_case("_", _EVEN, _TILTED),
)
law_witness(
    "G6",
    "the token of the rest has a number of its own",
    "It is drawn with the number that refused the draft.",
    base=autoregressive,
    flawed=partial(completion, coin_again=True),
    sound=completion,
    case=table_case("_", {"_@0": (1, 1, 1)}, {"_@0": (1, 0, 0)}, 3),
)
law_witness(
    "G7",
    "after a refused draft the target is asked again",
    "The tokens behind it are judged by what the target said after the refused one.",
    base=autoregressive,
    flawed=partial(completion, stale=True),
    sound=completion,
    case=table_case("__", {"__@0": (1, 1), "a_@1": (1, 1), "b_@1": (1, 0)}, {"__@0": (1, 0), "__@1": (1, 1)}),
)
law_witness(
    "G8",
    "ratio and rest have the same processed law of the target",
    "The ratio has the raw law, the rest the one at half the temperature.",
    base=partial(autoregressive, processed=True),
    flawed=partial(completion, processed=True, raw_ratio=True),
    sound=partial(completion, processed=True),
    case=table_case("_", _TILTED, _EVEN),
)
law_witness(
    "G9",
    "the law of a second draft that is another one than the first leaves the first out",
    "It is judged by the law that still holds the first.",
    base=autoregressive,
    flawed=partial(completion, distinct=True, not_renormalised=True),
    sound=partial(completion, distinct=True),
    case=table_case("_", {"_@0": (1, 1, 0)}, {"_@0": (0, 1, 2)}, 3),
)
law_witness(
    "G10",
    "after a refused draft the next one is judged against the rest",
    "It is judged against the whole law once more.",
    base=autoregressive,
    flawed=partial(completion, drafts=2, length=1, not_updated=True),
    sound=partial(completion, drafts=2, length=1),
    case=table_case("_", _EVEN, {"_@0": (1, 0)}),
)
law_witness(
    "G11",
    "the token of the rest is drawn with other noise than the draft",
    "The draft's own number draws it again.",
    base=autoregressive,
    flawed=partial(completion, draft_again=True),
    sound=completion,
    case=table_case("_", {"_@0": (0, 1, 1)}, {"_@0": (2, 1, 1)}, 3),
)
law_witness(
    "G12",
    "the token that the draft was compared with is what is written",
    "When it differs from the draft, another one is drawn.",
    base=autoregressive,
    flawed=partial(completion, equality=True, redrawn=True),
    sound=partial(completion, equality=True),
    case=table_case("_", _EVEN, {"_@0": (1, 0)}),
)
law_witness(
    "G13",
    "ratio and rest have the same law of the draft",
    "The ratio has the law it was drawn from, the rest takes away the drafted token alone.",
    base=autoregressive,
    flawed=partial(completion, one_hot_rest=True),
    sound=completion,
    case=table_case("_", {"_@0": (0, 1, 1)}, {"_@0": (1, 0, 1)}, 3),
)
