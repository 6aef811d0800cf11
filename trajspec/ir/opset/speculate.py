"""Speculation: evaluate hypothetical states in one packed call, then walk the true trajectory through them.

Its theory in one sentence: a policy's transition is G(state, F(view(state))), and evaluating F early, on views that may
be needed, changes nothing (exactness: theorem A1). The settings of `walk` beyond `accept=base` exist in order to be
named: each drops one condition of that theorem, and `certify` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import ahead, margins
from ..ahead import Draft, Held, Table, Trail
from ..canvas import Cache, Canvas
from ..errors import TrajspecError
from ..kinds import DRAFT, HELD, TABLE, TRAIL, Kind
from ..nodes import Node, Value
from ..op import op
from ..query import Query
from .read import block_numbers
from .write import stopped

LOOKAHEAD = ("none", "exact", "cheap")
ACCEPT = ("base", "relaxed", "subset", "threshold", "tokens", "positions", "consistent")
_ANY = "canvas | cache | probs | logits | scores | tokens | selection | count | flag"


@op("nothing(x: canvas) -> held: held")
def nothing(x: Canvas) -> Held:
    """What is held before the first call: no logits, and meters at zero."""
    return ahead.nothing_held(x, np.full((*x.tokens.shape, x.allowed.shape[-1]), np.nan))


@op("no_draft(x: canvas) -> draft: draft")
def no_draft(x: Canvas) -> Draft:
    """No hypothetical state: the round evaluates the root alone."""
    shape = (*x.tokens.shape[:-1], 0, x.tokens.shape[-1])
    return Draft(np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape[:-1], bool))


def _state_of(base: Any, kinds: Sequence[Kind], *rest: Kind) -> None:
    """Refuse operands that are not what the base carries, its task inputs, and then `rest`."""
    wanted = [*(value.kind for value in (*base.starts, *base.inputs[1:])), *rest]
    if list(kinds) != wanted:
        raise TrajspecError(
            f"expected what {base.name} carries, its task inputs, and the rest by name: {', '.join(map(str, wanted))}"
        )


def _table(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind, ...]:
    _state_of(attrs["of"], kinds, DRAFT, HELD)
    return (TABLE,)


def _verify(lookahead: str, **_: object) -> None:
    if lookahead not in LOOKAHEAD:
        raise TrajspecError(f"lookahead is {lookahead}, expected {', '.join(LOOKAHEAD)}")


@op(
    f"verify(*state: {_ANY}, draft: draft, held: held, of: plan, lookahead: name = 'none', isolate: bool = True, "
    "ended: bool = False) -> table: table",
    infer=_table,
    check=_verify,
    calls_model=True,
)
def verify(
    model: Any, *state: Any, draft: Draft, held: Held, of: Any, lookahead: str, isolate: bool, ended: bool
) -> Table:  # fmt: skip
    """One packed call on the root and on every hypothetical state, each seeing itself alone.

    `state` is what the base plan `of` carries, then its task inputs. With a cached view a state in a later block needs
    the refresh that opens it: `lookahead=exact` puts that refresh into the same call, `none` leaves such states out,
    `cheap` evaluates them under the cache at hand, which is approximate. `isolate=False` lets the root see the first
    hypothetical state, a flaw (witness C2); `ended=True` also looks at states in which the row has ended, which the
    flaws of `walk` about them need (C6, C8c, C8d).
    """
    known = ahead.split(of, state)
    x: Canvas = known[of.carried[0]]
    if x.tokens.ndim != 1:
        raise TrajspecError("verify and walk run on one row in numpy; batches are the runtime's")
    if bool(x.done[0]):
        return Table(0, 0, [], [])
    if bool(held.alone[0]):
        draft = no_draft.numpy(x)
    root = tuple(known[value] for value in of.carried)
    table = Table(1 + int(draft.exists.sum()), 0, [view_key(of, known)], [root], stale=[False])
    asked = [_arguments(of, known)]
    states = [node for node in _states(x, draft) if ended or not _over(of, node)]
    entry = _entry(of, known, states) if lookahead == "exact" else None
    for node in states:
        made = _hypothetical(of, known, root, node, lookahead, entry)
        if made is None:
            continue
        carried, stale = made
        mine = known | dict(zip(of.carried, carried, strict=True))
        key = view_key(of, mine)
        if table.find(key) is None:
            table.keys.append(key)
            table.states.append(carried)
            table.stale.append(stale)
            asked.append(_arguments(of, mine))
    if not isolate and len(asked) > 1:
        seen: Canvas = table.states[1][0]
        leaking = x._replace(tokens=seen.tokens, masked=seen.masked)
        asked[0] = tuple(leaking if arg is x else arg for arg in asked[0])
    answers, bad = _packed(model, ahead.forward_of(of), asked)
    keep = [number for number in range(len(asked)) if number not in bad]

    def kept(part: list[Any]) -> list[Any]:
        return [part[number] for number in keep]

    return Table(table.width, len(asked) - 1, kept(table.keys), kept(table.states), kept(answers), kept(table.stale))


def _states(x: Canvas, draft: Draft) -> list[Canvas]:
    """The hypothetical canvases; TrajspecError for what no canvas of this row can be."""
    length, vocab = x.tokens.shape[-1], x.allowed.shape[-1]
    if draft.tokens.shape[-1:] != (length,) or draft.tokens.shape != draft.masked.shape:
        raise TrajspecError(
            f"the drafter gave states of shape {list(draft.tokens.shape)}, expected [states, {length}]: the canvas has "
            f"{length} positions"
        )
    states = []
    for tokens, masked in zip(draft.tokens[draft.exists], draft.masked[draft.exists], strict=True):
        wrong = ~masked & ((tokens < 0) | (tokens >= vocab))
        if wrong.any():
            at = int(wrong.argmax())
            raise TrajspecError(f"the drafter put token {tokens[at]} at position {at}; expected ids below {vocab}")
        changed = ~x.free & ((tokens != x.tokens) | masked)
        if changed.any():
            raise TrajspecError(
                f"the drafter changed position {int(changed.argmax())}, which was given; a draft may write where the "
                "canvas was masked at the start"
            )
        # As when it is committed, the mask id leaves its position masked: what is shown tells all of the canvas.
        masked = masked | (x.free & (tokens == x.mask_id))
        states.append(x._replace(tokens=np.where(masked, x.mask_id, tokens), masked=masked))
    return states


def _over(of: Any, node: Canvas) -> bool:
    """Whether the base's row has ended in this state, so that nothing is asked about it."""
    full = ahead.ends_full(of) and not node.masked.any()
    return full or (ahead.ends_at_stop(of) and bool(stopped(node)[0]))


def _arguments(of: Any, known: dict[Value, Any]) -> tuple[Any, ...]:
    from ..interpret import evaluate

    forward = ahead.forward_of(of)
    table = evaluate([arg for arg in forward.args if arg is not None], known)
    return tuple(None if arg is None else table[arg] for arg in forward.args)


def view_key(of: Any, known: dict[Value, Any], key: str = "view") -> tuple[Any, ...]:
    """What the model's answer in the state `known` is a function of, as something comparable.

    `key=block` leaves out what lies behind the open block, a flaw for views that see it (witness C9).
    """
    forward = ahead.forward_of(of)
    arguments = _arguments(of, known)
    x: Canvas = known[of.carried[0]]
    if forward.op.name == "forward":
        parts = []
        for query in arguments:
            row = np.where(query.masked, x.mask_id, query.tokens)
            if key == "block":
                size = of.block_length
                row = np.where(block_numbers(x, size) <= _open(x, size), row, -1)
            twins = query.twins.tobytes() if isinstance(query, Query) and query.twins is not None else b""
            parts.append((row.tobytes(), twins))
        return ("full", *parts)
    y, cache, where = arguments
    view, row = forward.attributes["view"], ahead.shown(y, y.mask_id)
    if view == "block_causal":
        size = forward.attributes["size"] or row.shape[-1]
        seen = y.position // size <= (y.position // size)[where].max(initial=-1)
        return ("block_causal", where.tobytes(), np.where(seen, row, -1).tobytes())
    if not np.array_equal(cache.where, where):
        return ("refresh", where.tobytes(), row.tobytes())
    inside = where if view == "dual" else np.cumsum(where) > 0
    return (
        view, where.tobytes(), np.where(inside, row, -1).tobytes(), ahead.shown(cache, y.mask_id).tobytes()
    )  # fmt: skip


def _open(x: Canvas, size: int | None) -> np.ndarray:
    return np.where(x.masked, block_numbers(x, size), 2**40).min(axis=-1, keepdims=True)


def _where(of: Any, known: dict[Value, Any], node: Canvas) -> np.ndarray:
    """The block that the base's cached forward would look at in the state `node`."""
    from ..interpret import evaluate

    value = ahead.forward_of(of).args[2]
    assert value is not None
    return evaluate([value], known | {of.carried[0]: node})[value]


def _opening(node: Canvas, where: np.ndarray) -> Canvas:
    """The state in which the base would open the block `where`: it, and all behind it, as it was at the start."""
    opened = node.free & (np.cumsum(where) > 0)
    return node._replace(tokens=np.where(opened, node.mask_id, node.tokens), masked=node.masked | opened)


def _entry(of: Any, known: dict[Value, Any], states: Sequence[Canvas]) -> Canvas | None:
    """The first hypothetical state that opens a later block: a round makes room for one refresh ahead."""
    if ahead.forward_of(of).op.name == "forward":
        return None
    here = _where(of, known, known[of.carried[0]])
    for node in states:
        where = _where(of, known, node)
        if (
            not np.array_equal(where, here)
            and where.any()
            and np.array_equal(_opening(node, where).masked, node.masked)
        ):
            return node
    return None


def _hypothetical(
    of: Any, known: dict[Value, Any], root: tuple[Any, ...], node: Canvas, lookahead: str, entry: Canvas | None
) -> tuple[tuple[Any, ...], bool] | None:
    """The carried values of a hypothetical state, and whether it is looked at under a stale cache; None: left out.

    What the drafter does not say (histories, counters) is the root's: it is no part of the view.
    """
    forward = ahead.forward_of(of)
    if forward.op.name == "forward":
        return (node, *root[1:]), False
    if forward.args[1] not in of.carried:
        raise TrajspecError(f"plan {of.name}: its cache must be a carried value to be speculated")
    place = of.carried.index(forward.args[1])
    x: Canvas = root[0]
    where, here = _where(of, known, node), _where(of, known, x)
    # The cache after the root's own forward, which makes it anew when the root opens its block.
    held = root[place] if np.array_equal(root[place].where, here) else Cache(x.tokens, x.masked, here)
    stale = False
    if np.array_equal(where, here):
        cache = held
    elif lookahead == "cheap":
        # A block-causal view keeps nothing that could be out of date.
        cache, stale = held._replace(where=where), forward.attributes["view"] != "block_causal"
    elif entry is None or not where.any() or not np.array_equal(_row(_opening(node, where)), _row(entry)):
        return None
    elif np.array_equal(node.masked, entry.masked):
        cache = root[place]  # this is the refresh itself
    else:
        cache = Cache(entry.tokens, entry.masked, where)
    return (node, *root[1:place], cache, *root[place + 1 :]), stale


class _Quarantine:
    """Answers one packed call; numbers that are no numbers are kept out of the table, the root's are an error."""

    def __init__(self, model: Any, states: int) -> None:
        self.model, self.states, self.row = model, states, 0
        self.vocab_size, self.mask_id = model.vocab_size, model.mask_id
        self.bad: set[int] = set()
        if hasattr(model, "stale"):
            self.stale = self._stale

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        return self._clean(self.model(tokens, positions, visible))

    def _stale(self, tokens: Any, positions: Any, reference: Any, window: Any) -> Any:
        return self._clean(np.asarray(self.model.stale(tokens, positions, reference, window))[None], window)[0]

    def _clean(self, answer: Any, window: Any = None) -> Any:
        logits = np.array(answer, np.float64)
        for number, one in enumerate(logits):
            node = (self.row + number) % self.states
            seen = one if window is None else one[window]
            if node and (np.isnan(seen).any() or np.isposinf(seen).any() or np.isneginf(seen).all(-1).any()):
                self.bad.add(node)
                logits[number] = 0.0
        self.row += len(logits)
        return logits


def _packed(model: Any, forward: Node, asked: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], set[int]]:
    """The results of `forward` for each of the operands, from one call; and the states without finite logits."""
    stacked = [_stack([args[place] for args in asked]) for place in range(len(asked[0]))]
    counted = model.packed() if hasattr(model, "packed") else _Once()
    with counted:
        clean = _Quarantine(model, len(asked))
        if forward.op.name == "forward":
            out = forward.op.numpy(clean, *stacked, **forward.attributes)
        else:
            out = forward.op.numpy(clean, *stacked[:2], where=stacked[2], **forward.attributes)
    outs = out if len(forward.results) > 1 else (out,)
    answers = []
    for number in range(len(asked)):
        answers.append(tuple(_pick(part, number) for part in outs))
    return answers, clean.bad


class _Once:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _stack(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, tuple):
        parts = [
            part[0] if not isinstance(part[0], np.ndarray) else np.stack(part) for part in zip(*values, strict=True)
        ]
        return type(first)(*parts)
    return np.stack(values)


def _pick(value: Any, number: int) -> Any:
    if isinstance(value, tuple):
        return type(value)(*(part[number] for part in value))
    return value[number]


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
    _state_of(attrs["of"], kinds, TABLE, HELD)
    return (*(start.kind for start in attrs["of"].starts), HELD, TRAIL)


@op(
    f"walk(*state: {_ANY}, table: table, held: held, of: plan, accept: name = 'base', strata: tuple = (), "
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
            arguments = _arguments(of, known)
            outs: tuple[Any, ...] = (logits[0], arguments[1] if stale else _next_cache(*arguments))
        else:
            outs = tuple(logits)
        known.update(zip(forward.results, outs, strict=True))
        table = evaluate(of.step, known)
        return tuple(table[value] for value in of.step), table

    return step


def _next_cache(x: Canvas, cache: Cache, where: np.ndarray) -> Cache:
    if np.array_equal(cache.where, where):
        return cache
    return Cache(x.tokens, x.masked, where)


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
    known = ~np.isnan(logits).any(axis=-1, keepdims=True) & (logits > -1e29).any(axis=-1, keepdims=True)
    return held._replace(
        logits=np.where(known, logits, held.logits),
        accepted=held.accepted + (at > 0),
        off_base=held.off_base + off,
        stale=held.stale + stale,
        first=first,
        sum_tv=held.sum_tv + float(off or stale),
    )


__all__ = ["ACCEPT", "LOOKAHEAD", "no_draft", "nothing", "verify", "view_key", "walk"]
