"""What cached views mean, for any numpy denoiser: which canvas every position is computed from."""

from __future__ import annotations

from typing import Any

import numpy as np

from .canvas import Cache, Canvas
from .errors import TrajspecError
from .query import FLOOR, call, refuse_nonfinite

VIEWS = ("prefix", "dual", "block_causal")


def ask_cached(
    model: Any, x: Canvas, cache: Cache, where: np.ndarray, view: str, size: int | None, predict_mask: bool
) -> tuple[np.ndarray, Cache]:
    """Logits float64 [..., L, V], NaN where the view computes nothing, and the cache afterwards.

    A denoiser may have a method `stale(tokens, positions, reference, window)` (all [L]; tokens with mask ids, reference
    what the cache was made from, window bool: the positions to compute) that answers as a network does whose keys and
    values outside the window come from a call on `reference`. Without it a cache remembers tokens only.
    """
    lead, length = x.tokens.shape[:-1], x.tokens.shape[-1]
    rows = int(np.prod(lead, dtype=int))

    def flat(array: np.ndarray) -> np.ndarray:
        return array.reshape(rows, *array.shape[len(lead) :])

    x, cache, where = Canvas(*map(flat, x)), Cache(*map(flat, cache)), flat(where)
    logits, tokens, masked = [], cache.tokens.copy(), cache.masked.copy()
    for row in range(rows):
        one, old = Canvas(*(field[row] for field in x)), Cache(*(field[row] for field in cache))
        due = not np.array_equal(old.where, where[row])
        if due:
            tokens[row], masked[row] = one.tokens, one.masked
        if view == "block_causal":
            answer, computed = _block_causal(model, one, where[row], size or length, row)
        else:
            answer, computed = _kept_sides(model, one, old, where[row], view, due)
        logits.append(_allowed(one, answer, computed, predict_mask, row))
    return np.stack(logits).reshape(*lead, length, -1), Cache(
        tokens.reshape(*lead, length), masked.reshape(*lead, length), where.reshape(*lead, length)
    )


def _shown(x: Canvas | Cache, mask_id: np.ndarray) -> np.ndarray:
    return np.where(x.masked, mask_id, x.tokens)


def _kept_sides(
    model: Any, x: Canvas, old: Cache, where: np.ndarray, view: str, due: bool
) -> tuple[np.ndarray, np.ndarray]:
    real, shown, size = x.position >= 0, _shown(x, x.mask_id), x.allowed.shape[-1]
    if due:
        return mixed(model, shown, x.position, shown, real, size), real
    computed = where if view == "dual" else real & (np.cumsum(where) > 0)
    reference = _shown(old, x.mask_id)
    if hasattr(model, "stale"):
        return np.asarray(model.stale(shown, x.position, reference, computed), np.float64), computed
    return mixed(model, shown, x.position, reference, computed, size), computed


def mixed(
    model: Any, tokens: np.ndarray, positions: np.ndarray, reference: np.ndarray, window: np.ndarray, size: int
) -> np.ndarray:
    """Logits [L, V], V = `size`, of a denoiser that remembers tokens only: the window's as they are, the rest from
    `reference`."""
    real = positions >= 0
    visible = None if real.all() else (real[:, None] & real[None, :])[None]
    return call(model, np.where(window, tokens, reference)[None], np.maximum(positions, 0)[None], visible, size)[0]


def _block_causal(model: Any, x: Canvas, where: np.ndarray, size: int, row: int) -> tuple[np.ndarray, np.ndarray]:
    # What is kept of finished blocks is what a forward on their final tokens gives, so nothing needs to be kept here.
    number = x.position // size
    if len(set(number[where].tolist())) > 1:
        raise spanning(row, size, int(x.start[0]))
    seen = (number <= number[where].max(initial=-1)) & (x.position >= 0)
    shown, at, number = _shown(x, x.mask_id)[seen], x.position[seen], number[seen]
    visible = (number[None, :] <= number[:, None])[None]
    spread = np.full((len(x.position), x.allowed.shape[-1]), np.nan)
    spread[seen] = call(model, shown[None], at[None], visible, spread.shape[-1])[0]
    return spread, where


def _allowed(x: Canvas, logits: np.ndarray, computed: np.ndarray, predict_mask: bool, row: int) -> np.ndarray:
    refuse_nonfinite(logits[None], computed[None], x.step, x.position[None], row)
    allowed = x.allowed
    if predict_mask:
        allowed = allowed | (np.arange(allowed.shape[-1]) == x.mask_id)
    logits = np.where(computed[:, None], logits, np.nan)
    return np.where(allowed & ~np.isneginf(logits), logits, FLOOR)


def next_cache(x: Canvas, cache: Cache, where: np.ndarray) -> Cache:
    """The cache [..., L] after a forward on `x`: made anew where the block is another one."""
    due = (cache.where != where).any(axis=-1, keepdims=True)
    return Cache(np.where(due, x.tokens, cache.tokens), np.where(due, x.masked, cache.masked), where)


def spanning(row: int, size: int, start: int) -> TrajspecError:
    """The error about a window that lies in several blocks of the block-causal view."""
    return TrajspecError(
        f"row {row}: view block_causal has blocks of {size} counted from position 0, and the policy's window lies in "
        f"several of them; its blocks count from position {start}. Make the canvas with start=0 (the end of the prompt "
        "then stands in the first open block), or with a start that the block length divides"
    )


__all__ = ["VIEWS", "ask_cached", "next_cache", "spanning"]
