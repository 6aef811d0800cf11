"""How the states of a packed call share the keys and values kept of their row: copies, or one reading of them.

`rows` (the reference) gives every state its own copy of the row, with its window written into it: what a state computes
is what a call of its own computes, bit for bit where the kernels allow it. The others read the row once for all states,
which is what counts where reading memory is what costs; they add in another order, so logits are equal up to rounding:

* `isolated`: one attention of all states over the row and all windows, with a mask that keeps the states apart
* `merged`: attention over the row and over the own window, joined by the logarithms of their sums (log-sum-exp)

They need all states to be of one row; a batch of several rows is computed by `rows`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ir.errors import TrajspecError
from .packed import Part

ROWS = "rows"
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]


def isolated(
    query: Tensor, key: Tensor, value: Tensor, kept_key: Tensor, kept_value: Tensor, seen: Tensor, own: Tensor,
    blind: Tensor, scale: float,
) -> Tensor:  # fmt: skip
    """[n, H, W, D] of `query` over the row's kept [1, H, S, D] keys and values and each state's own [n, H, W, D].

    `seen` bool [n, 1, W, S]: kept keys that a query reads; `own` bool [n, 1, W, W]: those of its own window; `blind`
    bool [n, 1, W, 1]: queries that read nothing.
    """
    count, heads, width, depth = query.shape
    flat = [tensor.transpose(0, 1).reshape(1, heads, count * width, depth) for tensor in (query, key, value)]
    apart = torch.eye(count, dtype=torch.bool, device=query.device)[:, None, :, None]
    mine = (own.expand(-1, -1, width, -1)[:, 0, :, None, :] & apart).reshape(1, 1, count * width, count * width)
    theirs = (seen.expand(-1, -1, width, -1) | blind).reshape(1, 1, count * width, -1)
    mask = torch.cat([theirs, mine], -1)
    keys, values = torch.cat([kept_key, flat[1]], 2), torch.cat([kept_value, flat[2]], 2)
    out = F.scaled_dot_product_attention(flat[0], keys, values, attn_mask=mask, scale=scale)
    return out.reshape(heads, count, width, depth).transpose(0, 1)


def merged(
    query: Tensor, key: Tensor, value: Tensor, kept_key: Tensor, kept_value: Tensor, seen: Tensor, own: Tensor,
    blind: Tensor, scale: float,
) -> Tensor:  # fmt: skip
    """The same in two parts, joined by the logarithms of their sums; arguments as in `isolated`."""
    del blind
    count, heads, width, depth = query.shape
    flat = query.transpose(0, 1).reshape(1, heads, count * width, depth)
    shared = (flat @ kept_key.transpose(-1, -2)).float() * scale
    shared = shared.masked_fill(~seen.expand(-1, -1, width, -1).reshape(1, 1, count * width, -1), -torch.inf)
    alone = (query @ key.transpose(-1, -2)).float() * scale
    alone = alone.masked_fill(~own, -torch.inf)
    sums = [part.logsumexp(-1, keepdim=True) for part in (shared, alone)]
    sums[0] = sums[0].reshape(heads, count, width, 1).transpose(0, 1)
    whole = torch.logaddexp(*sums)
    # Where nothing is seen both sums are -inf, and the weights are 0.
    back = whole.transpose(0, 1).reshape(1, heads, count * width, 1)
    first = torch.nan_to_num((shared - back).exp()).to(value.dtype) @ kept_value
    second = torch.nan_to_num((alone - whole).exp()).to(value.dtype) @ value
    return first.reshape(heads, count, width, depth).transpose(0, 1) + second


LAYOUTS: dict[str, Attend | None] = {ROWS: None, "isolated": isolated, "merged": merged}


def attend_shared(
    layout: str, fork: Any, layer: int, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None,
    blind: Tensor | None, scale: float | None,
) -> Tensor:  # fmt: skip
    """Attention of a fork's states without copies of their row; `allowed` bool [n, 1, W or 1, S] over its slots."""
    attend = LAYOUTS[layout]
    assert attend is not None
    kept_key, kept_value = fork.store.keys[layer][:1], fork.store.values[layer][:1]
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value, kept_key, kept_value = (
            part.repeat_interleave(repeats, dim=1) for part in (key, value, kept_key, kept_value)
        )
    count, size = len(query), kept_key.shape[2]
    if allowed is None:
        allowed = torch.ones(count, 1, 1, size, dtype=torch.bool, device=query.device)
    written = torch.zeros(count, size, dtype=torch.bool, device=query.device).scatter(1, fork.slots, True)
    own = allowed.gather(-1, fork.slots[:, None, None, :].expand(-1, -1, allowed.shape[2], -1))
    # The scratch slot takes what pads a window: nobody sees it, but several entries may share it.
    own = own & (fork.slots != fork.store.length)[:, None, None, :]
    none = torch.zeros(count, 1, query.shape[2], 1, dtype=torch.bool, device=query.device)
    return attend(
        query, key, value, kept_key, kept_value, allowed & ~written[:, None, None, :], own,
        none if blind is None else blind, query.shape[-1] ** -0.5 if scale is None else scale,
    )  # fmt: skip


def check_layout(name: str) -> str:
    """`name`, when there is such a layout or it is "auto". Raises TrajspecError with the list of those there are."""
    if name not in (*LAYOUTS, "auto"):
        raise TrajspecError(f"packing is {name!r:.60}, expected one of: {', '.join(LAYOUTS)}, auto")
    return name


def quickest(model: Any, length: int, width: int, states: int, runs: int = 5) -> tuple[str, dict[str, float]]:
    """The layout that makes a packed call of `states` windows on a canvas of `length` quickest here, and the median
    seconds of each; `rows` where another one gains less than a tenth."""
    device = model.device
    store = model.new_store(1, length)
    at = torch.arange(length, device=device)[None]
    keys = torch.cat([torch.ones_like(at), torch.zeros_like(at[:, :1])], 1).bool()
    tokens = torch.zeros_like(at) + (1 if model.mask_id != 1 else 0)
    slots = at[:, -width:].expand(states, -1).contiguous()
    rows = torch.zeros(states, dtype=torch.int64, device=device)
    seconds: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    with torch.inference_mode():
        model.cached(tokens, at, at, store, keys, None)
        for run in range(runs + 1):
            for name in LAYOUTS:
                mine = model.cache.laid_out(name)
                part = Part(tokens[:, -width:].expand(states, -1), slots, slots, keys.expand(states, -1), store, rows)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                mine.packed([part])
                if device.type == "cuda":
                    torch.cuda.synchronize()
                took = time.perf_counter() - began
                if run:  # the first warms up
                    seconds[name].append(took)
    middle = {name: statistics.median(found) for name, found in seconds.items()}
    best = min(middle, key=lambda name: middle[name])
    return (best if middle[best] < 0.9 * middle[ROWS] else ROWS), middle


__all__ = ["LAYOUTS", "ROWS", "attend_shared", "check_layout", "isolated", "merged", "quickest"]
