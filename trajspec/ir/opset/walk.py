"""The walk of speculation: the base's own step, along its own trajectory, through the states that were evaluated.

Its theory in one sentence: a policy's transition is G(state, F(view(state))), and evaluating F early, on views that may
be needed, changes nothing (exactness: theorem A1). The settings of `walk` beyond `accept=base` exist in order to be
named: each drops one condition of that theorem, and `certify` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import ahead, margins
from ..ahead import Held, Table, Trail
from ..canvas import Canvas
from ..errors import TrajspecError
from ..kinds import HELD, TABLE, TRAIL, Kind
from ..nodes import Value
from ..op import op
from ..views import next_cache
from .verify import ANY, arguments, state_of, view_key

ACCEPT = ("base", "relaxed", "subset", "threshold", "tokens", "positions", "consistent")


def _walk(
    accept: str, head: str, key: str, halt: str, ties: str, strata: tuple, budget: float | None, then: str,
    recheck: float | None, **_: object,
) -> None:  # fmt: skip
    for name, value, known in (
        ("accept", accept, ACCEPT), ("head", head, ("true", "node")), ("key", key, ("view", "block")),
        ("halt", halt, ("each", "end")), ("ties", ties, ("low", "high")), ("then", then, ("exact", "stop")),
    ):  # fmt: skip
        if value not in known:
            raise TrajspecError(f"{name} is {value}, expected {', '.join(known)}")
    if accept in ("relaxed", "threshold") and not strata:
        raise TrajspecError(f"accept={accept} needs strata: the confidence a drafted token must have, one a stratum")
    if any(not isinstance(value, (int, float)) or not 0 <= value <= 1 for value in strata):
        raise TrajspecError(f"strata is {strata}, expected confidences from 0 to 1")
    if budget is not None and budget < 0:
        raise TrajspecError(f"budget is {budget}, expected a total variation from 0 up")
    if recheck is not None and not recheck > 0:
        raise TrajspecError(f"recheck is {recheck}, expected a bound above 0 on how far packed logits may be off")


def _results(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind, ...]:
    state_of(attrs["of"], kinds, TABLE, HELD)
    return (*(start.kind for start in attrs["of"].starts), HELD, TRAIL)


@op(
    f"walk(*state: {ANY}, table: table, held: held, of: plan, accept: name = 'base', strata: tuple = (), "
    "budget: float | None = None, then: name = 'exact', recheck: float | None = None, head: name = 'true', "
    "key: name = 'view', halt: name = 'each', ties: name = 'low', adopt: bool = False, leave: bool = False) "
    "-> x: canvas, held: held, trail: trail",
    infer=_results,
    check=_walk,
)
def walk(
    *state: Any, table: Table, held: Held, of: Any, accept: str, strata: tuple, budget: float | None, then: str,
    recheck: float | None, head: str, key: str, halt: str, ties: str, adopt: bool, leave: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Apply the base's step along its own trajectory for as long as the table holds the view of the current state.

    Gives what the base carries, what is held, and the states on the way. `accept=relaxed` also goes to a hypothetical
    state all of whose new tokens are sure enough (`strata`: what the surest, the second, ... must have; the last counts
    for the rest), `subset` to one that commits a part of what the base would: both count how often they left the base,
    and past `budget` (summed total variation) they go on exactly, or with `then=stop` the row ends. `recheck=eps` stops
    before a step whose decisions are thinner than packed logits may be off (`ir.margins`), and the next round evaluates
    the root alone, by the base's own call. The other settings are flaws,
    for witnesses and for the checker: accept=threshold (C8b: as relaxed, and for states that commit no more than the
    base would), tokens (C8), positions (C8d), consistent (C8c), head=node (C1), adopt
    (C1c), key=block (C9), halt=end (C6), leave (C7), ties=high (C5).
    """
    known = ahead.split(of, state)
    inputs = {value: known[value] for value in of.inputs[1:]}
    carried = tuple(known[value] for value in of.carried)
    trail: list[tuple[Any, ...]] = []
    if not table.keys:
        return (*carried, held, Trail(()))
    if leave:
        carried = _left_behind(of, inputs, carried, table)
    step, alone = _stepper(of, inputs, ties), False
    while len(trail) < table.width and _goes_on(carried[0], halt, bool(trail)):
        at = _find(of, inputs, carried, table, key)
        if at is None:
            break
        source = carried
        if at and head == "node":
            source = table.states[at]
        elif at and adopt:
            seen: Canvas = table.states[at][0]
            source = (carried[0]._replace(tokens=seen.tokens, masked=seen.masked), *carried[1:])
        exact, values = step(source, table.answers[at], packed=table.drafted > 0, stale=table.stale[at])
        if recheck is not None and table.drafted and margins.thin(of, values, recheck):
            alone = True
            break
        after = exact
        if accept != "base" and not _spent(held, budget):
            after = _accepted(of, carried, exact, table, at, accept, strata)
        held = _metered(held, carried[0], exact[0], after[0], table, at)
        if then == "stop" and _spent(held, budget):
            after = (after[0]._replace(done=np.asarray([True])), *after[1:])
        trail.append(after)
        carried = after
    held = held._replace(drafted=held.drafted + table.drafted, alone=np.asarray([alone]))
    return (*carried, held, Trail(tuple(trail)))


def _goes_on(x: Canvas, halt: str, inside: bool) -> bool:
    return bool(x.masked.any()) if halt == "end" and inside else not bool(x.done[0])


def _spent(held: Held, budget: float | None) -> bool:
    return budget is not None and bool(held.sum_tv[0] >= budget)


def _stepper(of: Any, inputs: dict[Value, Any], ties: str) -> Callable[..., Any]:
    from ..interpret import evaluate

    forward = ahead.forward_of(of)

    def step(
        carried: tuple[Any, ...], answer: tuple[Any, ...], packed: bool, stale: bool = False
    ) -> tuple[tuple[Any, ...], dict[Value, Any]]:
        known = inputs | dict(zip(of.carried, carried, strict=True))
        logits = [part for part in answer if isinstance(part, np.ndarray)]
        if packed and ties == "high":
            length, vocab = logits[0].shape
            logits = [one + 1e-9 * np.arange(1, length + 1)[:, None] * np.arange(1, vocab + 1) for one in logits]
        if forward.op.name == "forward_cached":
            # The cache is the true state's own: what a hypothetical state would have kept is no part of its logits.
            # A stale look is not a refresh: the cache stays that of the block before.
            asked = arguments(of, known)
            outs: tuple[Any, ...] = (logits[0], asked[1] if stale else next_cache(*asked))
        else:
            outs = tuple(logits)
        known.update(zip(forward.results, outs, strict=True))
        table = evaluate(of.step, known)
        return tuple(table[value] for value in of.step), table

    return step


def _find(of: Any, inputs: dict[Value, Any], carried: tuple[Any, ...], table: Table, key: str) -> int | None:
    """The entry of the table that answers for the state `carried`."""

    def named(state: tuple[Any, ...]) -> tuple[Any, ...]:
        return view_key(of, inputs | dict(zip(of.carried, state, strict=True)), key)

    if key == "block":
        # A state with something behind the block comes first: it is the one that a sound key would refuse.
        order = sorted(range(len(table.keys)), key=lambda at: at == 0)
        return next((at for at in order if named(table.states[at]) == named(carried)), None)
    at = table.find(named(carried))
    if at is None and any(table.stale):
        # lookahead=cheap: the state's canvas, looked at under the cache of an earlier block.
        x: Canvas = carried[0]
        row = ahead.shown(x, x.mask_id)
        same = (np.array_equal(row, ahead.shown(state[0], x.mask_id)) for state in table.states)
        at = next((number for number, equal in enumerate(same) if equal and table.stale[number]), None)
    return at


def _left_behind(of: Any, inputs: dict[Value, Any], carried: tuple[Any, ...], table: Table) -> tuple[Any, ...]:
    """What a shared memory holds after every hypothetical state has written to it (flaw C7)."""
    step = _stepper(of, inputs, "low")
    for at in range(1, len(table.keys)):
        carried = (carried[0], *step(table.states[at], table.answers[at], packed=True)[0][1:])
    return carried


def _accepted(
    of: Any, before: tuple[Any, ...], after: tuple[Any, ...], table: Table, at: int, accept: str, strata: tuple
) -> tuple[Any, ...]:
    """The state to go to: the base's next one, or the hypothetical one with most new tokens that `accept` allows."""
    from .score import first_max, log_prob
    from .write import advance

    x: Canvas = before[0]
    target: Canvas = after[0]
    logits = _logits(table, at)
    token = first_max(logits)
    conf = np.exp(log_prob(logits, token))
    writes = x.masked & ~target.masked
    if accept == "subset" and any(np.array_equal(_row(target), _row(state[0])) for state in table.states[1:]):
        return after
    best, most = None, int(writes.sum()) if accept == "relaxed" else 0
    for number, state in enumerate(table.states[1:], start=1):
        node: Canvas = state[0]
        new = x.masked & ~node.masked
        if int(new.sum()) <= most or (~x.masked & (node.masked | (node.tokens != x.tokens))).any():
            continue
        if accept in ("relaxed", "threshold"):
            sure = -np.sort(-conf[new])
            wanted = [strata[min(rank, len(strata) - 1)] for rank in range(len(sure))]
            allowed = bool((token[new] == node.tokens[new]).all() and (sure >= wanted).all())
        elif accept == "subset":
            allowed = bool((writes | ~new).all() and (node.tokens[new] == target.tokens[new]).all())
        elif accept == "tokens":
            allowed = bool((token[new] == node.tokens[new]).all())
        elif accept == "positions":
            allowed = np.array_equal(new, writes)
        else:
            allowed = bool((first_max(_logits(table, number))[new] == node.tokens[new]).all())
        if allowed:
            best, most = node, int(new.sum())
    if best is None:
        return after
    size = next((item.attributes["size"] for item in of.nodes() if item.op.name == "advance"), None)
    jumped = x._replace(tokens=best.tokens, masked=best.masked)
    return (advance.numpy(x, jumped, size=size, done=None), *after[1:])


def _row(x: Canvas) -> np.ndarray:
    return ahead.shown(x, x.mask_id)


def _logits(table: Table, at: int) -> np.ndarray:
    return table.answers[at][0]


def _metered(held: Held, x: Canvas, exact: Canvas, after: Canvas, table: Table, at: int) -> Held:
    logits = _logits(table, at)
    off = not (np.array_equal(exact.tokens, after.tokens) and np.array_equal(exact.masked, after.masked))
    stale = bool(table.stale[at])
    first = np.where((held.first < 0) & (off or stale), x.step, held.first)
    known = ahead.told(logits)
    return held._replace(
        logits=np.where(known, logits, held.logits),
        accepted=held.accepted + (at > 0),
        off_base=held.off_base + off,
        stale=held.stale + stale,
        first=first,
        sum_tv=held.sum_tv + float(off or stale),
    )


__all__ = ["ACCEPT", "walk"]
