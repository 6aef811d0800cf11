"""The packed call of speculation: hypothetical states are evaluated together with the one that the run is in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from .. import ahead
from ..ahead import Draft, Held, Table
from ..canvas import Cache, Canvas
from ..errors import TrajspecError
from ..kinds import DRAFT, HELD, TABLE, Kind
from ..nodes import Node, Value
from ..op import op
from ..query import Query
from .read import block_numbers, open_block
from .write import stopped

LOOKAHEAD = ("none", "exact", "cheap")
ANY = "canvas | cache | probs | logits | scores | tokens | selection | count | flag"


@op("nothing(x: canvas) -> held: held")
def nothing(x: Canvas) -> Held:
    """What is held before the first call: no logits, and meters at zero."""
    return ahead.nothing_held(x, np.full((*x.tokens.shape, x.allowed.shape[-1]), np.nan))


@op("no_draft(x: canvas) -> draft: draft")
def no_draft(x: Canvas) -> Draft:
    """No hypothetical state: the round evaluates the root alone."""
    shape = (*x.tokens.shape[:-1], 0, x.tokens.shape[-1])
    return Draft(np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape[:-1], bool))


def state_of(base: Any, kinds: Sequence[Kind], *rest: Kind) -> None:
    """Refuse operands that are not what the base carries, its task inputs, and then `rest`."""
    wanted = [*(value.kind for value in (*base.starts, *base.inputs[1:])), *rest]
    if list(kinds) != wanted:
        raise TrajspecError(
            f"expected what {base.name} carries, its task inputs, and the rest by name: {', '.join(map(str, wanted))}"
        )


def _table(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind, ...]:
    state_of(attrs["of"], kinds, DRAFT, HELD)
    return (TABLE,)


def _verify(lookahead: str, **_: object) -> None:
    if lookahead not in LOOKAHEAD:
        raise TrajspecError(f"lookahead is {lookahead}, expected {', '.join(LOOKAHEAD)}")


@op(
    f"verify(*state: {ANY}, draft: draft, held: held, of: plan, lookahead: name = 'none', isolate: bool = True, "
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
    asked = [arguments(of, known)]
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
            asked.append(arguments(of, mine))
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


def arguments(of: Any, known: dict[Value, Any]) -> tuple[Any, ...]:
    """What the base's forward would be given in the state `known`."""
    from ..interpret import evaluate

    forward = ahead.forward_of(of)
    table = evaluate([arg for arg in forward.args if arg is not None], known)
    return tuple(None if arg is None else table[arg] for arg in forward.args)


def view_key(of: Any, known: dict[Value, Any], key: str = "view") -> tuple[Any, ...]:
    """What the model's answer in the state `known` is a function of, as something comparable.

    `key=block` leaves out what lies behind the open block, a flaw for views that see it (witness C9).
    """
    forward = ahead.forward_of(of)
    asked = arguments(of, known)
    x: Canvas = known[of.carried[0]]
    if forward.op.name == "forward":
        parts = []
        for query in asked:
            row = np.where(query.masked, x.mask_id, query.tokens)
            if key == "block":
                size = of.block_length
                row = np.where(block_numbers(x, size) <= open_block(x, size), row, -1)
            twins = b""
            if isinstance(query, Query):
                twins = b"" if query.twins is None else query.twins.tobytes()
                row = row if query.absent is None else np.where(query.absent, -2, row)
            parts.append((row.tobytes(), twins))
        return ("full", *parts)
    y, cache, where = asked
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


def _where(of: Any, known: dict[Value, Any], node: Canvas) -> np.ndarray:
    """The block that the base's cached forward would look at in the state `node`."""
    from ..interpret import evaluate

    value = ahead.forward_of(of).args[2]
    assert value is not None
    return evaluate([value], known | {of.carried[0]: node})[value]


def _shown(x: Canvas) -> np.ndarray:
    return ahead.shown(x, x.mask_id)


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
    elif entry is None or not where.any() or not np.array_equal(_shown(_opening(node, where)), _shown(entry)):
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
    counted = model.packed() if hasattr(model, "packed") else nullcontext()
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


def _stack(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, tuple):
        return type(first)(*map(_stack, zip(*values, strict=True)))
    # What is no array (a bound, or None) is the same for all of them.
    return np.stack(values) if isinstance(first, np.ndarray) else first


def _pick(value: Any, number: int) -> Any:
    if isinstance(value, tuple):
        return type(value)(*(part[number] for part in value))
    return value[number]


__all__ = ["ANY", "LOOKAHEAD", "arguments", "no_draft", "nothing", "state_of", "verify", "view_key"]
