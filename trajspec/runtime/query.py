"""Queries as one call of a torch model, without reading anything from its device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..ir.canvas import Canvas
from ..ir.errors import TrajspecError
from ..ir.query import FLOOR, Query, canvas_of, further, nonfinite, pack, soft_of


def ask(
    model: Any, queries: Sequence[Canvas | Query], predict_mask: bool, *, all_real: bool, by: str | None = None
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Logits [R, L, V] for each query, from one call of `model` or of a further one, and where they are no numbers.

    The torch counterpart of `ir.query.ask`. `all_real` says that no row has padding (the host knows; asking the
    positions would be a read, and the width of rows that leave positions out is one). The logits keep the model's type
    (float16 becomes float32, it cannot hold FLOOR). Entries without a twin, and those left out, are NaN. `bad` and
    `empty`, bool [R, L], take the place of an error: an entry that some query computed has a logit that is NaN or
    +inf, or has only -inf.

    Raises TrajspecError when no query knows the canvas, twins come with other queries, or there is no model `by`.
    """
    x = canvas_of(queries)
    shown_mask = x.mask_id
    if by is not None:
        model = further(model, by)
        shown_mask = torch.full_like(x.mask_id, model.mask_id)
    rows, length = x.tokens.shape
    real = x.position >= 0
    flat = [query if isinstance(query, Query) else Query(query.tokens, query.masked, None) for query in queries]
    (tokens, positions), visible, places = pack(torch, front, flat, x.position, real, shown_mask, all_real)
    soft = soft_of(torch, flat, places)
    logits = model(tokens, positions, visible) if soft is None else model(tokens, positions, visible, soft)
    check_logits(logits, tokens, allowed_size=x.allowed.shape[-1])
    if logits.dtype == torch.float16:
        logits = logits.float()
    bad = empty = torch.zeros_like(real)
    out = []
    for row, at in places:
        mine = logits[row : row + rows]
        if at is None:
            mine, computed = mine[:, :length], real
        else:
            columns, exists, first = at
            mine, computed = _spread(mine[:, first : first + columns.shape[-1]], columns, exists, length)
        mine, bad_here, empty_here = finish(x, mine, computed, predict_mask)
        bad, empty = bad | bad_here, empty | empty_here
        out.append(mine)
    return out, bad, empty


def check_logits(logits: Any, tokens: Tensor, allowed_size: int) -> None:
    """TrajspecError unless `logits` are real numbers [rows, entries, vocabulary] for `tokens` [rows, entries]."""
    expected = [*tokens.shape, allowed_size]
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or list(logits.shape) != expected:
        got = f"{logits.dtype} {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise TrajspecError(f"the model answered with {got}; expected floating logits {expected}: [rows, entries, ids]")


def finish(x: Canvas, logits: Tensor, computed: Tensor, predict_mask: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [R, L, V] with what may not be predicted made impossible, and where `computed` ones are no numbers.

    The two planes, bool [R, L]: a logit is NaN or +inf; all logits are -inf.
    """
    allowed = x.allowed
    if predict_mask:
        ids = torch.arange(allowed.shape[-1], device=allowed.device)
        allowed = allowed | (ids == x.mask_id)[:, None, :]
    top = logits.amax(dim=-1)
    bad = computed & (top.isnan() | (top == math.inf))
    empty = computed & (top == -math.inf)
    return logits.masked_fill(~allowed | (logits == -math.inf), FLOOR), bad, empty


def front(mask: Tensor, size: int | None) -> Tensor:
    """The columns of the first `size` entries of each row, set ones first: int64 [R, size].

    None is as many as the longest row has, which is a read of the device; a graph that is traced, and may not read,
    takes them all.
    """
    if size is None:
        size = mask.shape[-1] if torch.compiler.is_compiling() else max(int(mask.sum(-1).max()), 1)
    return mask.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :size]


def _spread(logits: Tensor, columns: Tensor, exists: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Logits [R, S, V] of some entries, or of twins beside them, at their places [R, L, V], and where there are any.

    Every column occurs once, so the scatter has one result in whatever order it runs.
    """
    values: Any = logits.masked_fill(~exists[..., None], math.nan)
    table = logits.new_full((logits.shape[0], length, logits.shape[-1]), math.nan)
    spread = table.scatter(1, columns[..., None].expand_as(values), values)
    there = exists.new_zeros(exists.shape[0], length).scatter(1, columns, exists)
    return spread, there


def no_numbers(rows: Sequence[int], x: Canvas, bad: Tensor, empty: Tensor) -> TrajspecError:
    """The error about the first logits of the canvases `x` that are no numbers; `rows`: their numbers in the batch."""
    number, column = (int(part) for part in (bad | empty).nonzero()[0])
    return nonfinite(rows[number], int(x.position[number, column]), int(x.step[number, 0]), bool(bad[number, column]))
