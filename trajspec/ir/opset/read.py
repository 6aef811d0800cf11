"""Reading the canvas: tokens, masks, the open block and the counters."""

from __future__ import annotations

import numpy as np

from ..canvas import Canvas
from ..errors import TrajspecError
from ..op import op

FAR = 2**40  # beyond every block number


def whole(size: int | None = None, **_: object) -> None:
    """A block has at least one position; None is one block for the whole canvas."""
    if size is not None and size < 1:
        raise TrajspecError(f"size is {size}, expected 1 or more positions a block (None: the whole canvas)")


@op("tokens(x: canvas) -> token: tokens")
def tokens(x: Canvas) -> np.ndarray:
    """The ids on the canvas (the mask id where it is masked)."""
    return x.tokens


@op("masked(x: canvas) -> hidden: selection")
def masked(x: Canvas) -> np.ndarray:
    """The positions that are masked now."""
    return x.masked


@op("free(x: canvas) -> free: selection")
def free(x: Canvas) -> np.ndarray:
    """The positions that were masked at the start: what may be written."""
    return x.free


@op("known(x: canvas) -> known: selection")
def known(x: Canvas) -> np.ndarray:
    """The positions that were given at the start, padding excluded."""
    return ~x.free & (x.position >= 0)


@op("position(x: canvas) -> position: scores")
def position(x: Canvas) -> np.ndarray:
    """The place of each position in its row, 0 at the row's first token."""
    return x.position


@op("step(x: canvas) -> step: count", clocked=True)
def step(x: Canvas) -> np.ndarray:
    """How many base steps were done before this one."""
    return x.step


@op("block_step(x: canvas) -> block_step: count", clocked=True)
def block_step(x: Canvas) -> np.ndarray:
    """How many base steps were done since the open block was entered."""
    return x.block_step


def block_numbers(x: Canvas, size: int | None) -> np.ndarray:
    """int64 [..., L]: which block each position is in; negative in the prompt and on padding."""
    offset = x.position - x.start
    return offset // size if size is not None else np.where(offset >= 0, 0, -1)


def open_block(x: Canvas, size: int | None) -> np.ndarray:
    """int64 [..., 1]: the leftmost block that holds a mask; FAR when none does."""
    return np.where(x.masked, block_numbers(x, size), FAR).min(axis=-1, keepdims=True)


@op("window(x: canvas, *, size: int | None = None) -> here: selection", check=whole)
def window(x: Canvas, *, size: int | None) -> np.ndarray:
    """The masked positions of the leftmost block that has any; blocks are counted from the end of the prompt."""
    return x.masked & (block_numbers(x, size) == open_block(x, size))


@op("block(x: canvas, *, size: int | None = None) -> block: selection", check=whole)
def block(x: Canvas, *, size: int | None) -> np.ndarray:
    """All positions of the leftmost block that has a mask, masked or not."""
    return (block_numbers(x, size) == open_block(x, size)) & (x.position >= 0)


@op("block_of(x: canvas, *, size: int | None = None) -> number: scores", check=whole)
def block_of(x: Canvas, *, size: int | None) -> np.ndarray:
    """The number of the block each position is in, negative in the prompt."""
    return block_numbers(x, size)


@op("unfinished(x: canvas) -> going: flag")
def unfinished(x: Canvas) -> np.ndarray:
    """Whether the row goes on: it has masks left and no stop token with everything before it written."""
    return ~x.done
