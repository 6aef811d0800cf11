"""Torch meanings of the ops that read the canvas, change it, or make queries and histories of it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...ir.canvas import Cache, Canvas
from ...ir.kinds import KINDS
from ...ir.opset.model import absent, softened
from ...ir.opset.read import FAR
from ...ir.query import Query
from .registry import Number, meaning

for _name in ("tokens", "masked", "free", "position", "step", "block_step"):
    meaning(_name)(lambda x, name=_name: getattr(x, name))


@meaning("known")
def known(x: Canvas) -> Tensor:
    """The positions that were given at the start."""
    return ~x.free & (x.position >= 0)


def block_numbers(x: Canvas, size: int | None) -> Tensor:
    """int64 [R, L]: which block each position is in; negative in the prompt and on padding."""
    offset = x.position - x.start
    return offset // size if size is not None else torch.where(offset >= 0, 0, -1)


def open_block(x: Canvas, size: int | None) -> Tensor:
    """int64 [R, 1]: the leftmost block that holds a mask; FAR when none does."""
    return torch.where(x.masked, block_numbers(x, size), FAR).amin(dim=-1, keepdim=True)


@meaning("window")
def window(x: Canvas, *, size: int | None) -> Tensor:
    """The masked positions of the open block."""
    return x.masked & (block_numbers(x, size) == open_block(x, size))


@meaning("block")
def block(x: Canvas, *, size: int | None) -> Tensor:
    """All positions of the open block."""
    return (block_numbers(x, size) == open_block(x, size)) & (x.position >= 0)


@meaning("block_of")
def block_of(x: Canvas, *, size: int | None) -> Tensor:
    """The number of the block each position is in."""
    return block_numbers(x, size)


@meaning("unfinished")
def unfinished(x: Canvas) -> Tensor:
    """Whether the row goes on."""
    return ~x.done


@meaning("unmask")
def unmask(x: Canvas, token: Tensor, *, where: Tensor) -> Canvas:
    """Commit `token` at the masked positions of `where`."""
    where = where & x.masked
    return x._replace(tokens=torch.where(where, token, x.tokens), masked=x.masked & ~(where & (token != x.mask_id)))


@meaning("edit")
def edit(x: Canvas, token: Tensor, *, where: Tensor) -> Canvas:
    """Write `token` at the free positions of `where`."""
    where = where & x.free
    gone = where & (token != x.mask_id)
    return x._replace(tokens=torch.where(where, token, x.tokens), masked=(x.masked & ~where) | (where & ~gone))


@meaning("remask")
def remask(x: Canvas, *, where: Tensor) -> Canvas:
    """Mask the free positions of `where` again."""
    where = where & x.free
    return x._replace(tokens=torch.where(where, x.mask_id, x.tokens), masked=x.masked | where)


def stopped(x: Canvas) -> Tensor:
    """bool [R, 1]: a stop token stands in the free part with no mask before it."""
    is_stop = (x.tokens[..., None] == x.stop[..., None, :]).any(dim=-1) & ~x.masked & x.free
    clear = x.masked.cumsum(dim=-1) == 0
    return (is_stop & clear).any(dim=-1, keepdim=True)


@meaning("advance")
def advance(x: Canvas, y: Canvas, *, size: int | None, done: Tensor | bool | None) -> Canvas:
    """Close a step that led from `x` to `y`."""
    same = open_block(x, size) == open_block(y, size)
    ended = ~y.masked.any(dim=-1, keepdim=True) if done is None else done
    return y._replace(
        step=x.step + 1,
        block_step=torch.where(same, x.block_step + 1, 0),
        done=x.done | ended | stopped(y),
    )


@meaning("hide")
def hide(x: Canvas, *, where: Tensor) -> Query:
    """The canvas with the positions of `where` masked as well."""
    return Query(x.tokens, x.masked | where, None, of=x)


@meaning("substitute")
def substitute(x: Canvas, token: Tensor, *, where: Tensor) -> Query:
    """The canvas with `token` at the positions of `where`."""
    return Query(torch.where(where, token, x.tokens), x.masked & ~where, None, of=x)


@meaning("twins")
def twins(x: Canvas, *, where: Tensor, size: int | None) -> Query:
    """One more mask at each position of `where`."""
    return Query(x.tokens, x.masked, where, size, of=x)


@meaning("without")
def without(x: Canvas | Query, *, where: Tensor) -> Query:
    """The row without the positions of `where`."""
    return absent(x, where)


@meaning("soften")
def soften(x: Canvas | Query, logits: Tensor, *, where: Tensor, given: Number) -> Query:
    """The query with `logits` shown beside its tokens."""
    if not isinstance(given, Tensor):
        given = where.new_full((len(where), 1), bool(given))
    return softened(x, logits, where, given)


@meaning("fill")
def fill(x: Canvas, *, kind: str, value: float) -> Tensor:
    """A history that holds `value` everywhere: bool, int64 (tokens and counts that start whole), else float64.

    Values a token are many, and the canvas does not know the type of the logits they will meet: they are float32 when
    that holds `value` exactly (next to float64 logits torch promotes them), else float64.
    """
    (rows, length), vocab = x.tokens.shape, x.allowed.shape[-1]
    axes = KINDS[kind].axes
    shape = {"1": (rows, 1), "L": (rows, length), "LV": (rows, length, vocab)}[axes]
    if kind in ("selection", "flag"):
        value, dtype = bool(value), torch.bool
    elif kind in ("tokens", "count") and not isinstance(value, float):
        value, dtype = int(value), torch.int64
    else:
        value, dtype = float(value), torch.float32 if axes == "LV" and _fits_float32(value) else torch.float64
    return torch.full(shape, value, dtype=dtype, device=x.tokens.device)


@torch.compiler.assume_constant_result
def _fits_float32(value: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(value)) == value


@meaning("empty")
def empty(x: Canvas) -> Cache:
    """A cache that holds nothing yet."""
    return Cache(x.tokens, x.masked, torch.zeros_like(x.masked))
