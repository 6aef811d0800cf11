"""Cached views: one forward that looks at the open block only, in the midst of what was kept of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..canvas import Cache, Canvas
from ..errors import TrajspecError
from ..op import op
from ..views import VIEWS, ask_cached


@op("empty(x: canvas) -> cache: cache")
def empty(x: Canvas) -> Cache:
    """A cache that holds nothing yet: the first forward refreshes it."""
    return Cache(x.tokens, x.masked, np.zeros_like(x.masked))


def _view(view: str, size: int | None = None, **_: object) -> None:
    if view not in VIEWS:
        raise TrajspecError(f"view is {view}, expected {', '.join(VIEWS)} (without a cache: forward)")
    if size is not None and size < 1:
        raise TrajspecError(f"size is {size}, expected 1 or more positions a block")
    if view == "block_causal" and size is None:
        raise TrajspecError("view block_causal needs size, the length of its blocks: give the policy a block_length")


@op(
    "forward_cached(x: canvas, cache: cache, *, where: selection, view: name, size: int | None = None, "
    "predict_mask: bool = False) -> logits: logits, cache: cache",
    check=_view,
    calls_model=True,
)
def forward_cached(
    model: Any, x: Canvas, cache: Cache, *, where: np.ndarray, view: str, size: int | None, predict_mask: bool
) -> tuple[np.ndarray, Cache]:
    """One call on the block `where` with the rest as it was kept; on the whole canvas when the block is a new one.

    prefix keeps what is left of the block and computes the rest; dual keeps both sides; block_causal computes blocks of
    `size` that see nothing to their right, so that what is kept is exact. A row whose block is not the cache's is
    refreshed by this forward and gets the refresh's logits. Positions that are not computed have NaN logits.
    Source: Fast-dLLM (prefix, dual); block diffusion models (block_causal).
    """
    return ask_cached(model, x, cache, where, view, size, predict_mask)
