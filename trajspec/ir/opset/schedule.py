"""How many tokens a step commits: the published schedules as functions of the canvas and its counters."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..canvas import Canvas
from ..errors import TrajspecError
from ..op import op
from .read import block_numbers, open_block, whole


def _steps(steps: int | None, size: int | None = None, eps: float = 1e-3, **_: object) -> None:
    if steps is not None and steps < 1:
        raise TrajspecError(f"steps is {steps}, expected 1 or more")
    if not 0 <= eps < 1:
        raise TrajspecError(f"eps is {eps}, expected a time from 0 to below 1")
    whole(size)


@op("quota(x: canvas, *, steps: int | None = None, size: int | None = None) -> n: count", clocked=True, check=_steps)
def quota(x: Canvas, *, steps: int | None, size: int | None) -> np.ndarray:
    """How many tokens the even schedule commits now, so that `steps` steps fill the canvas (None: one a step).

    Steps go to blocks in proportion to their masks (largest remainder first, ties to the earlier block, at least one
    each); inside a block the first steps take the left-over tokens. Source: LLaDA `get_num_transfer_tokens`.
    """
    if steps is None:
        return np.ones_like(x.step)
    length = x.tokens.shape[-1]
    blocks = 1 if size is None else -(-length // size)
    numbers = block_numbers(x, size)
    masks = ((numbers[..., None, :] == np.arange(blocks)[:, None]) & x.free[..., None, :]).sum(axis=-1)  # [..., blocks]
    everything = np.maximum(masks.sum(axis=-1, keepdims=True), 1)
    share, rest = np.divmod(steps * masks, everything)
    left = steps - share.sum(axis=-1, keepdims=True)
    order = np.argsort(np.argsort(-rest, axis=-1, kind="stable"), axis=-1, kind="stable")
    share = np.maximum(share + (order < left), 1)
    now = np.clip(open_block(x, size), 0, blocks - 1)
    here, turns = (np.take_along_axis(values, now, axis=-1) for values in (masks, share))
    each, more = np.divmod(here, turns)
    return np.maximum(each + (x.block_step < more), 1)


@lru_cache(maxsize=64)
def linear_rates(steps: int, eps: float) -> np.ndarray:
    """float32 [steps]: the share of the masks that step i commits, 1 - t[i+1] / t[i] on the grid linspace(1, eps).

    float32 as in the reference, which truncates the product; the last step takes everything.
    """
    grid = np.linspace(1, eps, steps + 1, dtype=np.float64).astype(np.float32)
    rates = 1 - grid[1:] / grid[:-1]
    rates[-1] = 1
    return rates


@op("linear_rate(clock: count, *, steps: int, eps: float = 1e-3) -> rate: count", check=_steps)
def linear_rate(clock: np.ndarray, *, steps: int, eps: float) -> np.ndarray:
    """The share of the masks that step number `clock` of the linear schedule commits; 1 from the last step on.

    Source: Dream `generation_utils`, timesteps linspace(1, eps, steps + 1).
    """
    return linear_rates(steps, eps)[np.minimum(clock, steps - 1)]


@op(
    "linear_quota(masks: count, clock: count, *, steps: int, eps: float = 1e-3) -> n: count, clock: count",
    check=_steps,
)
def linear_quota(masks: np.ndarray, clock: np.ndarray, *, steps: int, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """How many of `masks` the next step of the linear schedule that commits anything takes, and the clock after it.

    Steps that would commit nothing are passed over: at temperature 0 the canvas would not change in them.
    """
    at = np.arange(steps)
    takes = np.floor(masks[..., None].astype(np.float32) * linear_rates(steps, eps)).astype(np.int64)
    busy = ((takes >= 1) & (at >= clock[..., None])) | (at == steps - 1)
    chosen = busy.argmax(axis=-1)
    return np.take_along_axis(takes, chosen[..., None], axis=-1)[..., 0], chosen + 1
