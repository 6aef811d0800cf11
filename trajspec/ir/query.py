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
    result: float [R, W, V], entry i about position i (a family with shifted logits shifts them back itself).
    """

    vocab_size: int
    mask_id: int

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any: ...


class Query(NamedTuple):
    """A question beside the canvas itself. Arrays [..., L].

    `twins` marks where one more mask is asked for, or is None; `size` bounds how many there are in a row.
    """

    tokens: Any
    masked: Any
    twins: Any
    size: int | None = None


def ask(model: Denoiser, queries: Sequence[Canvas | Query], predict_mask: bool) -> list[np.ndarray]:
    """Logits float64 [..., L, V] for each query, from one call of `model`.

    Raises TrajspecError when a logit is NaN or +inf, or all logits of a position are -inf, naming where.
    """
    x = next((query for query in queries if isinstance(query, Canvas)), None)
    if x is None:
        raise TrajspecError("forward needs the canvas among its queries: forward(x, ...)")
    lead, length = x.tokens.shape[:-1], x.tokens.shape[-1]
    flat = [_flatten(query, length) for query in queries]
    positions = x.position.reshape(-1, length)
    real = positions >= 0
    rows, visible, places = pack(np, _front, flat, positions, real, x.mask_id.reshape(-1, 1), bool(real.all()))
    logits = call(model, rows[0], rows[1], visible, x.allowed.shape[-1])
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
            twins, exists = at
            refuse_nonfinite(mine[:, length:], exists, steps, np.take_along_axis(positions, twins, -1))
            spread = np.full((len(positions), length, logits.shape[-1]), np.nan)
            np.put_along_axis(spread, twins[..., None], np.where(exists[..., None], mine[:, length:], np.nan), axis=1)
            mine = np.where(allowed & ~np.isneginf(spread), spread, FLOOR)
        out.append(mine.reshape(*lead, length, -1))
    return out


def call(model: Denoiser, tokens: np.ndarray, positions: np.ndarray, visible: Any, vocab_size: int) -> np.ndarray:
    """The logits float64 [R, W, V] of one call; TrajspecError when the answer is of another shape or kind."""
    logits, expected = real_logits(model(tokens, positions, visible)), (*tokens.shape, vocab_size)
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
    twins, size = (query.twins, query.size) if isinstance(query, Query) else (None, None)
    twins = None if twins is None else twins.reshape(-1, length)
    return Query(query.tokens.reshape(-1, length), query.masked.reshape(-1, length), twins, size)


def _front(mask: np.ndarray, size: int) -> np.ndarray:
    return np.argsort(~mask, axis=-1, kind="stable")[..., :size]


Places = list[tuple[int, Any]]


def pack(
    xp: Any, front: Any, queries: Sequence[Query], positions: Any, real: Any, mask_id: Any, all_real: bool
) -> tuple[tuple[Any, Any], Any, Places]:
    """Rows of one call for `queries` (arrays [R, L]), with numpy or torch as `xp`.

    `front(mask, size)` gives the columns of the first `size` entries of a mask, set ones first. Returns ((tokens,
    positions) int64 [Q*R, W], visible bool [Q*R, W, W] or None, places). A place is (first row, None) for a query of
    whole rows, (0, (columns, exists)) for twins: they take the columns from L on of the canvas' own rows, `columns`
    [R, S] says beside which entry each stands and `exists` which of them are meant.
    """
    beside = [query for query in queries if query.twins is not None]
    own = [query for query in queries if query.twins is None]
    tokens = [xp.where(query.masked, mask_id, query.tokens) for query in own]
    at = xp.where(real, positions, 0 * positions)
    if not beside:
        rows = xp.concatenate(tokens)
        visible = None if all_real else xp.concatenate([real[:, None, :] & real[:, :, None]] * len(own))
        starts: Places = [(number * len(positions), None) for number in range(len(own))]
        return (rows, xp.concatenate([at] * len(own))), visible, starts
    if len(beside) > 1 or len(own) > 1:
        raise TrajspecError("twins go with the canvas alone: one twins(...) query and no other beside it")
    length = positions.shape[-1]
    wanted = beside[0].twins & real
    columns = front(wanted, min(beside[0].size or length, length))
    exists = xp.take_along_axis(wanted, columns, -1) if xp is np else wanted.gather(-1, columns)
    twin_at = xp.take_along_axis(at, columns, -1) if xp is np else at.gather(-1, columns)
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
    return (rows, where), visible, [(0, None) if query.twins is None else (0, (columns, exists)) for query in queries]


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
