"""How queries become one call of a denoiser, and how its logits come back in canvas coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .canvas import Canvas
from .errors import TrajspecError

FLOOR = -1e30  # the logit of what can never be: finite, so that differences of two such are numbers


class Denoiser(Protocol):
    """Anything that answers queries with logits.

    tokens, positions: int64 [R, W]; visible: bool [R, W, W] (entry i may see entry j) or None for everything; the
    result: float [R, W, V], entry i about position i (a family with shifted logits shifts them back itself). A plan
    with soft inputs (op `soften`) gives them as a fourth argument, a `Soft`.
    """

    vocab_size: int
    mask_id: int

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any: ...


class Soft(NamedTuple):
    """What a model is shown beside tokens: logits [..., L, V] at the positions of `where`, bool [..., L].

    `given` bool [..., 1] says whether there are any yet; a call on packed rows has W entries in place of L.
    """

    logits: Any
    where: Any
    given: Any


class Query(NamedTuple):
    """A question beside the canvas itself. Arrays [..., L].

    `twins` marks where one more mask is asked for, or is None; `size` bounds how many there are in a row. `absent`
    marks positions that are not in the row at all, or is None. `of` is the canvas that the query was made from. `soft`:
    what is shown beside the tokens, or None.
    """

    tokens: Any
    masked: Any
    twins: Any
    size: int | None = None
    absent: Any = None
    of: Canvas | None = None
    soft: Soft | None = None


def canvas_of(queries: Sequence[Canvas | Query]) -> Canvas:
    """The canvas that all `queries` are about. Raises TrajspecError when none of them knows it."""
    x = next((query for query in queries if isinstance(query, Canvas)), None)
    x = x or next((query.of for query in queries if isinstance(query, Query) and query.of is not None), None)
    if x is None:
        raise TrajspecError("forward needs the canvas among its queries, or a query made from it: forward(x, ...)")
    return x


def further(model: Any, name: str) -> Any:
    """The model called `name` that goes with `model`, in its `others`. Raises TrajspecError when there is none."""
    others = getattr(model, "others", None) or {}
    if name not in others:
        has = f"there are: {', '.join(sorted(others))}" if others else "none was given"
        raise TrajspecError(f"the plan asks a further model {name!r}, and {has}; give models={{{name!r}: ...}}")
    return others[name]


def ask(model: Any, queries: Sequence[Canvas | Query], predict_mask: bool, by: str | None = None) -> list[np.ndarray]:
    """Logits float64 [..., L, V] for each query, NaN where it leaves positions out, from one call.

    `by` None asks `model` itself, a name asks that one of its `others`, which is shown its own mask id. Raises
    TrajspecError when a logit is NaN or +inf, or all logits of a position are -inf, naming where.
    """
    x = canvas_of(queries)
    shown_mask = x.mask_id
    if by is not None:
        model = further(model, by)
        shown_mask = np.full_like(x.mask_id, model.mask_id)
    lead, length = x.tokens.shape[:-1], x.tokens.shape[-1]
    flat = [_flatten(query, length) for query in queries]
    positions = x.position.reshape(-1, length)
    real = positions >= 0
    rows, visible, places = pack(np, _front, flat, positions, real, shown_mask.reshape(-1, 1), bool(real.all()))
    soft = soft_of(np, flat, places)
    logits = call(model, rows[0], rows[1], visible, x.allowed.shape[-1], soft)
    allowed = x.allowed.reshape(-1, *x.allowed.shape[-2:])
    if predict_mask:
        ids = np.arange(allowed.shape[-1])
        allowed = allowed | (ids == x.mask_id.reshape(-1, 1))[:, None, :]
    steps = x.step.reshape(-1)
    out = []
    for row, at in places:
        mine = logits[row : row + len(positions)]
        if at is None:
            refuse_nonfinite(mine[:, :length], real, steps, positions)
            mine = mine[:, :length]
            mine = np.where(allowed & ~np.isneginf(mine), mine, FLOOR)
        else:
            columns, exists, first = at
            mine = mine[:, first : first + columns.shape[-1]]
            refuse_nonfinite(mine, exists, steps, np.take_along_axis(positions, columns, -1))
            spread = np.full((len(positions), length, logits.shape[-1]), np.nan)
            np.put_along_axis(spread, columns[..., None], np.where(exists[..., None], mine, np.nan), axis=1)
            mine = np.where(allowed & ~np.isneginf(spread), spread, FLOOR)
        out.append(mine.reshape(*lead, length, -1))
    return out


def call(
    model: Any, tokens: np.ndarray, positions: np.ndarray, visible: Any, vocab_size: int, soft: Soft | None = None
) -> np.ndarray:
    """The logits float64 [R, W, V] of one call; TrajspecError when the answer is of another shape or kind."""
    answer = model(tokens, positions, visible) if soft is None else model(tokens, positions, visible, soft)
    logits, expected = real_logits(answer), (*tokens.shape, vocab_size)
    if logits.shape != expected:
        raise TrajspecError(
            f"the model answered with shape {list(logits.shape)}; expected {list(expected)}: [rows, entries, ids]"
        )
    return logits


def real_logits(answer: Any) -> np.ndarray:
    """A denoiser's answer as float64. Raises TrajspecError when it is no array of real numbers."""
    array = np.asarray(answer)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        got = f"an array of {array.dtype}" if isinstance(answer, np.ndarray) else type(answer).__name__
        raise TrajspecError(
            f"the model answered with {got}; expected real logits [rows, entries, ids], not an output object"
        )
    return array.astype(np.float64)


def _flatten(query: Canvas | Query, length: int) -> Query:
    def flat(plane: Any) -> Any:
        return None if plane is None else plane.reshape(-1, length)

    asked = query if isinstance(query, Query) else Query(query.tokens, query.masked, None)
    soft = asked.soft
    if soft is not None:
        logits = soft.logits.reshape(-1, length, soft.logits.shape[-1])
        soft = Soft(logits, flat(soft.where), np.reshape(soft.given, (-1, 1)))
    return asked._replace(
        tokens=flat(asked.tokens), masked=flat(asked.masked), twins=flat(asked.twins), absent=flat(asked.absent),
        soft=soft,
    )  # fmt: skip


def _front(mask: np.ndarray, size: int | None) -> np.ndarray:
    size = max(int(mask.sum(axis=-1).max()), 1) if size is None else size
    return np.argsort(~mask, axis=-1, kind="stable")[..., :size]


Places = list[tuple[int, Any]]


def pack(
    xp: Any, front: Any, queries: Sequence[Query], positions: Any, real: Any, mask_id: Any, all_real: bool
) -> tuple[tuple[Any, Any], Any, Places]:
    """Rows of one call for `queries` (arrays [R, L]), with numpy or torch as `xp`.

    `front(mask, size)` gives the columns of the first `size` entries of a mask, set ones first; None: as many as the
    longest row has, or more. Returns ((tokens, positions) int64 [Q*R, W], visible bool [Q*R, W, W] or None, places).
    A place is (first row, None) for a query of whole rows. Twins and rows that leave positions out have (first row,
    (columns, exists, first column)): from that column of the packed row on stand the entries of the canvas' `columns`
    [R, S] (twins: beside them), of which `exists` says which are meant.
    """
    beside = [query for query in queries if query.twins is not None]
    own = [query for query in queries if query.twins is None]
    tokens = [xp.where(query.masked, mask_id, query.tokens) for query in own]
    at = xp.where(real, positions, 0 * positions)
    if not beside:
        if any(query.absent is not None for query in own):
            return _thinned(xp, front, own, xp.concatenate(tokens), xp.concatenate([at] * len(own)), real)
        rows = xp.concatenate(tokens)
        visible = None if all_real else xp.concatenate([real[:, None, :] & real[:, :, None]] * len(own))
        starts: Places = [(number * len(positions), None) for number in range(len(own))]
        return (rows, xp.concatenate([at] * len(own))), visible, starts
    if len(beside) > 1 or len(own) != 1 or own[0].absent is not None:
        raise TrajspecError("twins go with the canvas alone: one twins(...) query and no other beside it")
    length = positions.shape[-1]
    wanted = beside[0].twins & real
    columns = front(wanted, min(beside[0].size or length, length))
    exists, twin_at = take(xp, wanted, columns), take(xp, at, columns)
    rows = xp.concatenate([tokens[0], 0 * twin_at + mask_id], -1)
    where = xp.concatenate([at, twin_at], -1)
    there = xp.concatenate([real, exists], -1)
    is_twin = xp.concatenate([real & False, exists | True], -1)
    same = where[:, :, None] == where[:, None, :]
    sees = xp.where(
        is_twin[:, :, None],
        is_twin[:, None, :] | ~same,  # a twin sees all twins, and the canvas but for the token it stands beside
        ~is_twin[:, None, :],  # the canvas sees the canvas
    )
    visible = sees & there[:, :, None] & there[:, None, :]
    beside_it = (0, (columns, exists, length))
    return (rows, where), visible, [(0, None) if query.twins is None else beside_it for query in queries]


def _thinned(
    xp: Any, front: Any, queries: Sequence[Query], tokens: Any, positions: Any, real: Any
) -> tuple[tuple[Any, Any], Any, Places]:
    """Rows [Q*R, L] without what they leave out: as wide as the longest that remains, so that cost is what is shown."""
    there = xp.concatenate([real if query.absent is None else real & ~query.absent for query in queries])
    columns = front(there, None)
    exists = take(xp, there, columns)
    at = take(xp, positions, columns)
    at = xp.where(exists, at, 0 * at)
    places: Places = []
    for number in range(len(queries)):
        rows = slice(number * len(real), (number + 1) * len(real))
        places.append((rows.start, (columns[rows], exists[rows], 0)))
    return (take(xp, tokens, columns), at), exists[:, None, :] & exists[:, :, None], places


def soft_of(xp: Any, queries: Sequence[Query], places: Places) -> Soft | None:
    """The soft inputs of `queries` (arrays [R, L]) as the rows of their call have them; None when there are none.

    Raises TrajspecError when only some queries have them, since the rows of a call are alike.
    """
    softs = [query.soft for query in queries]
    if not any(softs):
        return None
    parts = []
    for soft, (_, at) in zip(softs, places, strict=True):
        if soft is None:
            raise TrajspecError("soft inputs go with every query of a call, or with none: ts.soften(...) each of them")
        if at is not None:
            columns, exists, _ = at
            wide = columns[..., None] if xp is np else columns[..., None].expand(-1, -1, soft.logits.shape[-1])
            logits = xp.take_along_axis(soft.logits, wide, 1) if xp is np else soft.logits.gather(1, wide)
            soft = Soft(logits, take(xp, soft.where, columns) & exists, soft.given)
        parts.append(soft)
    return Soft(*(xp.concatenate(plane) for plane in zip(*parts, strict=True)))


def take(xp: Any, values: Any, columns: Any) -> Any:
    """The entries of `columns` [R, W] of an array [R, L], in numpy or torch."""
    return xp.take_along_axis(values, columns, -1) if xp is np else values.gather(-1, columns)


def refuse_nonfinite(
    logits: np.ndarray, computed: np.ndarray, steps: np.ndarray, positions: np.ndarray, first_row: int = 0
) -> None:
    """Raise the error about logits [R, L, V] that are no numbers, if there are any where `computed`."""
    bad = computed & (np.isnan(logits) | np.isposinf(logits)).any(axis=-1)
    empty = computed & np.isneginf(logits).all(axis=-1)
    if (bad | empty).any():
        row, column = np.argwhere(bad | empty)[0]
        raise nonfinite(first_row + int(row), int(positions[row, column]), int(steps[row]), bool(bad[row, column]))


def nonfinite(row: int, position: int, step: int, bad: bool) -> TrajspecError:
    """The error about logits that are no numbers."""
    what = "a logit is NaN or +inf" if bad else "all logits are -inf"
    return TrajspecError(
        f"row {row}, position {position}, step {step}: {what}; expected finite numbers (single -inf entries are fine). "
        "Nothing was committed in this step; check the weights, the dtype and the attention mask"
    )
