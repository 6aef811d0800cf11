"""Changing the canvas: commit, edit, mask again, and close a step."""

from __future__ import annotations

import numpy as np

from ..canvas import Canvas
from ..op import op
from .read import block_numbers, open_block, whole


@op("unmask(x: canvas, token: tokens, *, where: selection) -> y: canvas")
def unmask(x: Canvas, token: np.ndarray, *, where: np.ndarray) -> Canvas:
    """Commit `token` at the masked positions of `where`; a committed mask id leaves the position masked."""
    where = where & x.masked
    return x._replace(tokens=np.where(where, token, x.tokens), masked=x.masked & ~(where & (token != x.mask_id)))


@op("edit(x: canvas, token: tokens, *, where: selection) -> y: canvas")
def edit(x: Canvas, token: np.ndarray, *, where: np.ndarray) -> Canvas:
    """Write `token` at the positions of `where` that are not part of the prompt, masked or not."""
    where = where & x.free
    gone = where & (token != x.mask_id)
    return x._replace(tokens=np.where(where, token, x.tokens), masked=(x.masked & ~where) | (where & ~gone))


@op("remask(x: canvas, *, where: selection) -> y: canvas")
def remask(x: Canvas, *, where: np.ndarray) -> Canvas:
    """Mask the positions of `where` again; the prompt stays."""
    where = where & x.free
    return x._replace(tokens=np.where(where, x.mask_id, x.tokens), masked=x.masked | where)


def stopped(x: Canvas) -> np.ndarray:
    """bool [..., 1]: a stop token stands in the free part with no mask before it."""
    is_stop = (x.tokens[..., None] == x.stop[..., None, :]).any(axis=-1) & ~x.masked & x.free
    clear = np.cumsum(x.masked, axis=-1) == 0
    return (is_stop & clear).any(axis=-1, keepdims=True)


@op("advance(x: canvas, y: canvas, *, size: int | None = None, done: flag | None) -> x: canvas", check=whole)
def advance(x: Canvas, y: Canvas, *, size: int | None, done: np.ndarray | None) -> Canvas:
    """Close a step that led from `x` to `y`: count it; the row ends when it has no masks or has reached a stop token.

    The step within the block starts again when the open block changes. `done`, when given, replaces "no masks left".
    """
    same = open_block(x, size) == open_block(y, size)
    ended = ~y.masked.any(axis=-1, keepdims=True) if done is None else done
    return y._replace(
        step=x.step + 1,
        block_step=np.where(same, x.block_step + 1, 0),
        done=x.done | ended | stopped(y),
    )


__all__ = ["advance", "block_numbers", "edit", "remask", "stopped", "unmask"]
