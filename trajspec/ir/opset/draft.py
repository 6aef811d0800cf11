"""The drafters of the library: which hypothetical states a round evaluates, from the logits already held.

A state is described by the ranks of the positions that it commits: rank 0 is the surest masked position of the open
block. All numbers that are compared are whole ones, logarithms in units of 1/UNIT, so that equal ones stay equal in any
library. `nodes` counts the states of a packed call, the root included: a draft holds one less.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import ahead
from ..ahead import Draft, Held
from ..canvas import Canvas
from ..errors import TrajspecError
from ..op import op
from ..views import next_cache
from .read import block_numbers, whole
from .score import first_max, log_prob

UNIT = 2**20
RANKS = 31  # two bits a rank in one int64
SURE = 800.0  # log odds beyond every float64
BEHIND = 2**31  # a block number behind all blocks
#: How the tree weighs its moves: one position alone, against several at once; the second choice against the first; and
#: how much likelier the surer position is (odds to this power). Measured on antiberty (bench/antiberty_calls.py).
ALONE, SECOND, STEEP = 0.9, 0.15, 2.0
PREFIXES = (2, 4)


def states(nodes: int, size: int | None = None, **_: object) -> None:
    """`nodes` of a packed call: the root, and whatever is drafted beside it."""
    if nodes < 1:
        raise TrajspecError(
            f"nodes is {nodes}, expected how many states a call evaluates, the root included: 1 or more"
        )
    whole(size)


class Ranked(NamedTuple):
    """Masked positions in the order in which they will likely be committed: block by block, the surest first.

    Arrays of K = min(L, RANKS) ranks, and of L columns. `count`: how many ranks there are.
    """

    order: Any  # int64 [..., L] columns by rank
    count: Any  # int64 [..., 1]
    token: Any  # int64 [..., L] the likeliest token of each column
    block: Any  # int64 [..., K] number of the block
    odds: Any  # int64 [..., K] log odds of the likeliest token
    conf: Any  # int64 [..., K] its log probability


def ranked(x: Canvas, held: Held, size: int | None) -> Ranked:
    """The ranks of a canvas, by the held logits; positions whose logits are not known have none."""
    logits = np.where(np.isnan(held.logits), -1e30, held.logits)
    token = first_max(logits)
    with np.errstate(all="ignore"):
        conf = log_prob(logits, token)
        odds = np.clip(conf - np.log(-np.expm1(conf)), -SURE, SURE)
    known = x.masked & ~np.isnan(held.logits).any(axis=-1) & ~np.isnan(conf)
    odds, conf = (in_units(np.where(known, part, 0.0)) for part in (odds, np.maximum(conf, -SURE)))
    number = np.where(known, block_numbers(x, size), BEHIND)
    order = np.argsort(number * BEHIND - odds, axis=-1, kind="stable")
    front = order[..., :RANKS]
    block, odds, conf = (np.take_along_axis(part, front, -1) for part in (number, odds, conf))
    return Ranked(order, known.sum(axis=-1, keepdims=True), token, block, odds, conf)


def in_units(value: Any) -> Any:
    """A logarithm as a whole number."""
    return np.rint(value * UNIT).astype(np.int64)


def second_choice(held: Held, rank: Ranked) -> tuple[np.ndarray, np.ndarray]:
    """The second likeliest token int64 [..., L], and by rank how far behind the first it is, int64 [..., K], <= 0."""
    logits = np.where(np.isnan(held.logits), -1e30, held.logits)
    top = np.take_along_axis(logits, rank.token[..., None], -1)
    others = np.where(np.arange(logits.shape[-1]) == rank.token[..., None], -np.inf, logits)
    token = first_max(others)
    with np.errstate(all="ignore"):
        gap = np.nan_to_num(others.max(axis=-1) - top[..., 0], nan=-SURE)
    gap = in_units(np.clip(gap, -SURE, 0.0))
    return token, np.take_along_axis(gap, rank.order[..., :RANKS], -1)


def drawn(x: Canvas, rank: Ranked, second: Any, code: Any, exists: Any) -> Draft:
    """The states of `code` int64 [..., N], two bits a rank: 0 stays masked, 1 its likeliest token, 2 its second."""
    length, most = x.tokens.shape[-1], rank.odds.shape[-1]
    place = np.empty(rank.order.shape, np.int64)
    np.put_along_axis(place, rank.order, np.broadcast_to(np.arange(length), rank.order.shape), axis=-1)
    shift = 2 * np.minimum(place, most - 1)[..., None, :]
    choice = np.where((place < most)[..., None, :], code[..., None] >> shift & 3, 0)
    token = np.where(choice == 1, rank.token[..., None, :], second[..., None, :])
    tokens = np.where(choice > 0, token, x.tokens[..., None, :])
    return Draft(tokens, x.masked[..., None, :] & (choice == 0), exists)


@op("chain(x: canvas, held: held, *, nodes: int = 8, size: int | None = None) -> draft: draft", check=states)
def chain(x: Canvas, held: Held, *, nodes: int, size: int | None) -> Draft:
    """The surest position first, then the two surest, and so on: one trajectory of single commits."""
    rank = ranked(x, held, size)
    length = x.tokens.shape[-1]
    place = np.empty(rank.order.shape, np.int64)
    np.put_along_axis(place, rank.order, np.broadcast_to(np.arange(length), rank.order.shape), axis=-1)
    exists = np.arange(nodes - 1) < rank.count
    taken = (place[..., None, :] <= np.arange(nodes - 1)[:, None]) & exists[..., None]
    tokens = np.where(taken, rank.token[..., None, :], x.tokens[..., None, :])
    return Draft(tokens, x.masked[..., None, :] & ~taken, exists)


def _shape(
    nodes: int, size: int | None, threshold: float | None, strata: tuple, alternatives: int, branching: int
) -> None:
    states(nodes, size)
    if any(not isinstance(bound, (int, float)) or not 0 < bound <= 1 for bound in strata):
        raise TrajspecError(
            f"strata is {strata}, expected confidences above 0 and up to 1, below the threshold of the base"
        )
    if branching < 1 or alternatives < 0:
        raise TrajspecError(
            f"branching is {branching} and alternatives {alternatives}, expected 1 or more positions to try next and "
            "0 or more second choices"
        )


def floors(threshold: float | None, strata: tuple) -> list[int]:
    """The lower bounds of the strata as log probabilities in units, from the highest down."""
    bounds = sorted({bound for bound in (threshold, *strata) if bound is not None and bound > 0}, reverse=True)
    return [round(math.log(bound) * UNIT) for bound in bounds]


@op(
    "tree(x: canvas, held: held, *, nodes: int = 8, size: int | None = None, threshold: float | None = None, "
    "strata: tuple = (0.7, 0.5, 0.3), alternatives: int = 1, branching: int = 3) -> draft: draft",
    check=_shape,
)
def tree(
    x: Canvas, held: Held, *, nodes: int, size: int | None, threshold: float | None, strata: tuple, alternatives: int,
    branching: int,
) -> Draft:  # fmt: skip
    """The states that the trajectory most likely passes through next (the confidence-stratified tree).

    From a state the base may go on: to one of the `branching` surest positions alone; to the 2 or 4 surest; to all of
    the highest stratum that is left (`threshold` > `strata` are their lower bounds); or as the first, with the second
    choice at the weakest one of the `alternatives` surest. All within a block, the next block after it. The probability
    of a state is the sum over the ways to it, through states that are kept; the `nodes` - 1 likeliest are.
    Source: trajectory-level speculative decoding (arXiv 2608.27514); the weights are ours.
    """
    rank = ranked(x, held, size)
    second, gap = second_choice(held, rank)
    lead = rank.count.shape[:-1]
    code, mass = np.zeros((*lead, 1), np.int64), np.full((*lead, 1), UNIT)
    for _ in range(nodes - 1):
        made, share = _moves(code, rank, gap, floors(threshold, strata), alternatives, branching)
        ways = (mass[..., None] * share // UNIT).reshape(*lead, -1)
        code, mass = _likeliest(made.reshape(*lead, -1), ways, nodes - 1)
    width = nodes - 1
    code, mass = (_padded(part[..., 1:], width) for part in (code, mass))
    return drawn(x, rank, second, np.where(mass > 0, code, 0), mass > 0)


def _moves(
    code: Any, rank: Ranked, gap: Any, bounds: list[int], alternatives: int, branching: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where the base may go from each state, int64 [..., S, M], and how likely, int64 [..., S, M] in units."""
    most = rank.odds.shape[-1]
    bit = np.int64(1) << 2 * np.arange(most)
    free = (code[..., None] >> 2 * np.arange(most) & 3 == 0) & (np.arange(most) < rank.count[..., None])
    place = np.cumsum(free, axis=-1) - 1
    head = np.where(free & (place == 0), rank.block[..., None, :], 0).sum(axis=-1, keepdims=True)
    free = free & (rank.block[..., None, :] == head)
    odds, conf, gap = rank.odds[..., None, None, :], rank.conf[..., None, None, :], gap[..., None, None, :]
    free, place = free[..., None, :], place[..., None, :]

    one = free & (place == np.arange(branching)[:, None])
    level = np.where(one, odds, 0).sum(axis=-1)
    weight = np.where(one.any(axis=-1), np.exp(STEEP * np.minimum(level - level[..., :1], 0) / UNIT), 0.0)
    share = ALONE * weight / np.maximum(weight.sum(axis=-1, keepdims=True), 1.0)

    first = np.where(free & (place == 0), conf, 0).sum(axis=-1, keepdims=True)
    floor = np.full(first.shape, -(2**62))
    for bound in reversed(bounds):
        floor = np.where(first >= bound, bound, floor)
    sizes = np.array(PREFIXES)[:, None]
    several = np.concatenate([free & (place < sizes), free & (conf >= floor)], axis=-2)
    enough = several.sum(axis=-1) >= np.array([*PREFIXES, 2])
    all_of = np.where(enough, (1 - ALONE) * np.exp(np.where(several, conf, 0).sum(axis=-1) / UNIT), 0.0)

    turn = np.arange(1, alternatives + 1)[:, None]
    some, last = free & (place < turn), free & (place == turn - 1)
    sure = np.where(some & ~last, conf, 0).sum(axis=-1) + np.where(last, gap, 0).sum(axis=-1)
    other = np.where(last.any(axis=-1), SECOND * np.exp(sure / UNIT), 0.0)

    added = [np.where(part, bit, 0).sum(axis=-1) for part in (one, several, some, last)]
    made = np.concatenate([added[0], added[1], added[2] + added[3]], axis=-1)
    return code[..., None] + made, np.rint(np.concatenate([share, all_of, other], axis=-1) * UNIT).astype(np.int64)


def _likeliest(code: Any, mass: Any, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The root, and the `most` likeliest of `code` with equal ones added up."""
    same = code[..., :, None] == code[..., None, :]
    earlier = np.tril(np.ones(same.shape[-2:], bool), -1)
    total = np.where(same, mass[..., None, :], 0).sum(axis=-1)
    total = np.where((same & earlier).any(axis=-1) | (code == 0), 0, total)
    best = np.argsort(-total, axis=-1, kind="stable")[..., :most]
    code, total = (np.take_along_axis(part, best, -1) for part in (code, total))
    root = np.zeros((*code.shape[:-1], 1), np.int64)
    return np.concatenate([root, code], axis=-1), np.concatenate([root + UNIT, total], axis=-1)


def _padded(part: np.ndarray, width: int) -> np.ndarray:
    missing = np.zeros((*part.shape[:-1], max(width - part.shape[-1], 0)), np.int64)
    return np.concatenate([part[..., :width], missing], axis=-1)


_ANY = "canvas | cache | probs | logits | scores | tokens | selection | count | flag"


@op(f"frozen(*state: {_ANY}, held: held, of: plan, nodes: int = 8) -> draft: draft", check=states)
def frozen(*state: Any, held: Held, of: Any, nodes: int) -> Draft:
    """Where the base `of` would go if the model's answer never changed: its own step, again and again.

    Schedules, counters and histories are the base's own. No states where a masked position's logits are not known.
    """
    from ..interpret import evaluate

    known = ahead.split(of, state)
    x: Canvas = known[of.carried[0]]
    forward = ahead.forward_of(of)
    unknown = np.isnan(held.logits).any(axis=-1, keepdims=True)
    there = ~(x.masked & unknown[..., 0]).any(axis=-1)
    logits = np.where(unknown, 0.0, held.logits)
    tokens, masked, exists = [x.tokens], [x.masked], [there & False]
    for _ in range(nodes - 1):
        there = there & ~known[of.carried[0]].done[..., 0]
        answers: tuple[Any, ...] = (logits,) * len(forward.results)
        if forward.op.name == "forward_cached":
            looked = [value for value in forward.args if value is not None]
            made = evaluate(looked, known)
            answers = (logits, next_cache(*(made[value] for value in looked)))
        with np.errstate(all="ignore"):
            values = evaluate(of.step, known | dict(zip(forward.results, answers, strict=True)))
        known = known | dict(zip(of.carried, (values[value] for value in of.step), strict=True))
        now: Canvas = known[of.carried[0]]
        tokens.append(now.tokens)
        masked.append(now.masked)
        # Also where nothing changed: such a state costs nothing, and the walk may pass it (samplers call that a cache).
        exists.append(there)
    kept = np.stack(exists, axis=-1)[..., 1:]
    return Draft(
        np.where(kept[..., None], np.stack(tokens, axis=-2)[..., 1:, :], x.tokens[..., None, :]),
        np.where(kept[..., None], np.stack(masked, axis=-2)[..., 1:, :], x.masked[..., None, :]),
        kept,
    )


def _table(table: tuple, nodes: int, size: int | None) -> None:
    states(nodes, size)
    opened: list[Any] = [entry[0] if isinstance(entry, tuple) and entry else None for entry in table]
    fits = all(type(floor) in (int, float) and 0 <= floor <= 1 for floor in opened)
    if not fits or opened != sorted(opened, reverse=True):
        raise TrajspecError("table must hold a tuple a stratum, each opened by its least confidence, from 1 down to 0")
    for entry in table:
        for code in entry[1:]:
            if type(code) is not int or not 0 < code < 4**RANKS or code & code >> 1 & int("01" * RANKS, 2):
                raise TrajspecError(
                    f"table holds the state {code!r}; expected two bits a rank: 0 masked, 1 likeliest, 2 second token"
                )


@op(
    "ranks(x: canvas, held: held, *, table: tuple, nodes: int = 8, size: int | None = None) -> draft: draft",
    check=_table,
)
def ranks(x: Canvas, held: Held, *, table: tuple, nodes: int, size: int | None) -> Draft:
    """The states that came next most often on other prompts (`trajspec.calibrate`).

    `table`: one tuple a stratum of the surest held confidence, from the highest down: its lower bound, then the states
    to draft, the best first, as numbers with two bits a rank (0: masked; 1, 2: its likeliest, its second token).
    Source: calibrated drafts as in Spiffy (arXiv 2509.18085), on ranks of the held confidences.
    """
    rank = ranked(x, held, size)
    second, _ = second_choice(held, rank)
    surest = rank.conf[..., :1]
    lead = surest.shape[:-1]
    code = np.zeros((*lead, nodes - 1), np.int64)
    for floor, states_ in reversed(strata_of(table, nodes - 1)):
        code = np.where(surest >= floor, np.array(states_, np.int64), code)
    number = np.arange(rank.odds.shape[-1])
    needed = np.where(code[..., None] >> 2 * number & 3 > 0, number + 1, 0).max(axis=-1, initial=0)
    beyond = code >> 2 * len(number) > 0 if len(number) < RANKS else code < 0
    exists = (code > 0) & (needed <= rank.count) & ~beyond
    return drawn(x, rank, second, np.where(exists, code, 0), exists)


def strata_of(table: tuple, width: int) -> list[tuple[int, list[int]]]:
    """The strata of a calibrated table: the lower bound in units, and `width` states, 0 where there is none."""
    found = []
    for floor, *codes in table:
        bound = round(math.log(floor) * UNIT) if floor > 0 else -(2**62)
        found.append((bound, (codes + [0] * width)[:width]))
    return found
