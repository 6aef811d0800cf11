"""From logits to tokens and how sure they are, in one pass over the vocabulary.

What a row needs is kept over a running maximum m and its first place: s, the sum of exp(l - m) over all *other* tokens,
so that log confidence = -log1p(s) keeps an order among sure tokens; the second largest logit; and t, the sum of
exp(l - m) (l - m). A new maximum m' = m - d turns s into (s + 1) e^d and t into (t + d (s + 1)) e^d: the old maximum is
another token now. Parts of a row are merged by the same rule.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLOCK = 4096
#: Rows times parts that keep a large device busy; a call with fewer rows splits them.
PROGRAMS = 512


class Scores(NamedTuple):
    """By row, each [R]: `token` int64, the likeliest allowed one, the lowest id of equals; `log_confidence` float32;
    `margin`, the probability of the likeliest less that of the second, and `entropy` in nats, float32; `bad` bool:
    some logit is NaN or +inf; `empty` bool: no token is possible."""

    token: Tensor
    log_confidence: Tensor
    margin: Tensor
    entropy: Tensor
    bad: Tensor
    empty: Tensor


class Parts(NamedTuple):
    """The running values of parts of rows, each [R, P]; `second` -inf where there is none."""

    top: Tensor
    token: Tensor
    others: Tensor
    second: Tensor
    moment: Tensor
    bad: Tensor


def score_rows(logits: Tensor, allowed: Tensor | None = None) -> Scores:
    """The scores of `logits` [R, V] (bfloat16, float16 or float32) over the `allowed` tokens (bool [V] or [R, V]; None:
    all). A logit of -inf excludes its token. On CUDA the Triton kernel, elsewhere torch; nothing reads the device."""
    if logits.is_cuda:
        return finished(merged(kernel_parts(logits, allowed)))
    return finished(torch_parts(logits, allowed))


def torch_parts(logits: Tensor, allowed: Tensor | None = None) -> Parts:
    """What the kernel computes, as one part a row, in float32 (float64 for float64 logits)."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    bad = (wide.isnan() | (wide == torch.inf)).any(-1, keepdim=True)
    if allowed is not None:
        wide = wide.masked_fill(~allowed, -torch.inf)
    wide = wide.masked_fill(wide.isnan(), -torch.inf)
    top = wide.amax(-1, keepdim=True)
    ids = torch.arange(wide.shape[-1], device=wide.device)
    token = torch.where(wide == top, ids, wide.shape[-1] - 1).amin(-1, keepdim=True)
    rest = wide.masked_fill(ids == token, -torch.inf)
    shifted = rest - top
    each = torch.where(rest == -torch.inf, 0.0, shifted.exp())
    moment = torch.where(rest == -torch.inf, 0.0, each * shifted)
    return Parts(
        top, token, each.sum(-1, keepdim=True), rest.amax(-1, keepdim=True), moment.sum(-1, keepdim=True), bad
    )


def merged(parts: Parts) -> Parts:
    """One part a row from several."""
    top = parts.top.amax(-1, keepdim=True)
    best = parts.top == top
    token = torch.where(best, parts.token, torch.iinfo(torch.int64).max).amin(-1, keepdim=True)
    mine = best & (parts.token == token)
    d = torch.where(parts.top == -torch.inf, 0.0, parts.top - top)
    there = torch.where(parts.top == -torch.inf, 0.0, d.exp())
    # The maximum of every part but the winner's is another token.
    others = (there * (parts.others + ~mine)).sum(-1, keepdim=True)
    moment = (there * (parts.moment + d * (parts.others + 1))).sum(-1, keepdim=True)
    second = torch.where(mine, parts.second, parts.top).amax(-1, keepdim=True)
    return Parts(top, token, others, second, moment, parts.bad.any(-1, keepdim=True))


def finished(parts: Parts) -> Scores:
    """The scores from the running values of whole rows."""
    top, token, others, second, moment, bad = (part[:, 0] for part in parts)
    empty = top == -torch.inf
    gap = torch.where(empty, -torch.inf, second - top)
    margin = -torch.expm1(gap) / (1 + others)
    entropy = torch.log1p(others) - moment / (1 + others)
    return Scores(token, -torch.log1p(others), margin, entropy, bad, empty & ~bad)


def kernel_parts(logits: Tensor, allowed: Tensor | None = None, programs: int = PROGRAMS, block: int = BLOCK) -> Parts:
    """The running values by the Triton kernel, in as many parts a row as make `programs` programs."""
    rows, size = logits.shape
    blocks = math.ceil(size / block)
    width = math.ceil(blocks / max(1, min(blocks, math.ceil(programs / max(rows, 1))))) * block
    count = math.ceil(size / width)

    def empty(dtype: torch.dtype) -> Tensor:
        return torch.empty(rows, count, dtype=dtype, device=logits.device)

    out = Parts(
        empty(torch.float32), empty(torch.int64), empty(torch.float32), empty(torch.float32), empty(torch.float32),
        empty(torch.int8),
    )  # fmt: skip
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    mask = allowed if allowed is not None else logits  # not looked at
    step = 0 if allowed is None or allowed.dim() == 1 else allowed.stride(0)
    if rows:
        kernel()[rows, count](
            logits, mask.view(torch.uint8) if allowed is not None else mask, *out, size, width, logits.stride(0), step,
            HAS_MASK=allowed is not None, BLOCK=block, num_warps=8,
        )  # fmt: skip
    return out._replace(bad=out.bad.bool())


@cache
def kernel() -> Any:
    """The Triton kernel; a program reads one part of one row. Raises ImportError without triton."""
    import triton
    import triton.language as tl

    @triton.jit
    def score_parts(  # type: ignore[no-untyped-def]
        logits, allowed, tops, tokens, others, seconds, moments, bads, size, width, stride, mask_stride,
        HAS_MASK: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row, part = tl.program_id(0), tl.program_id(1)
        none = float("-inf")
        top, second, token = none, none, size
        total, moment, bad = 0.0, 0.0, 0
        for begin in range(part * width, part * width + width, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            inside = at < size
            value = tl.load(logits + row.to(tl.int64) * stride + at, mask=inside, other=none).to(tl.float32)
            wrong = inside & ((value != value) | (value == float("inf")))
            bad = bad | tl.max(wrong.to(tl.int32), axis=0)
            if HAS_MASK:
                keep = tl.load(allowed + row.to(tl.int64) * mask_stride + at, mask=inside, other=0) != 0
                value = tl.where(keep, value, none)
            value = tl.where(value == value, value, none)
            best = tl.max(value, axis=0)
            first = tl.min(tl.where(value == best, at, size), axis=0)
            newer = best > top
            highest = tl.where(newer, best, top)
            chosen = tl.where(newer, first, token)
            # What was there so far, about the new maximum; the old one becomes another token.
            d = tl.where(top == none, 0.0, top - highest)
            scale = tl.where(top == none, 0.0, tl.exp(d))
            before = tl.where(newer & (top != none), total + 1.0, total)
            moment = tl.where(newer, scale * (moment + d * before), moment)
            total = tl.where(newer, scale * before, total)
            second = tl.where(newer, tl.maximum(second, top), second)
            rest = tl.where(at == chosen, none, value)
            shifted = tl.where(rest == none, 0.0, rest - highest)
            each = tl.where(rest == none, 0.0, tl.exp(shifted))
            total += tl.sum(each, axis=0)
            moment += tl.sum(each * shifted, axis=0)
            second = tl.maximum(second, tl.max(rest, axis=0))
            top, token = highest, chosen
        place = row.to(tl.int64) * tl.num_programs(1) + part
        tl.store(tops + place, top)
        tl.store(tokens + place, tl.minimum(token, size - 1).to(tl.int64))
        tl.store(others + place, total)
        tl.store(seconds + place, second)
        tl.store(moments + place, moment)
        tl.store(bads + place, bad)

    return score_parts


__all__ = ["Parts", "Scores", "finished", "kernel", "kernel_parts", "merged", "score_rows", "torch_parts"]
