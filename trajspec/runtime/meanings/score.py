"""Torch meanings of the ops from logits to tokens and how sure they are.

Everything is computed in at least float32; float64 stays float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...ir.canvas import Canvas
from ...ir.opset.score import FLOOR
from ..kernels.score import score_rows
from .registry import meaning, wide


def token_ids(logits: Tensor) -> Tensor:
    """int32 [V]: the ids of the vocabulary, on the device of `logits` (int32: next to logits they are many)."""
    return torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)


#: On a CPU: the largest entry is looked for in stretches of so many, since finding where it is costs ten times what
#: finding how large it is costs; and so many numbers are worked on at a time, which a core keeps near.
STRETCH, NEAR = 256, 2**18


def first_max(values: Tensor) -> Tensor:
    """int64 [...]: index of the largest entry of the last axis, the lowest among equals; the first NaN if any."""
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        # There `max` gives the lowest of equals, and the first NaN.
        return _by_stretches(values) if values.shape[-1] >= 8 * STRETCH else values.max(dim=-1).indices
    best = (values == values.amax(dim=-1, keepdim=True)) | values.isnan()
    return torch.where(best, token_ids(values), values.shape[-1] - 1).amin(dim=-1).long()


def _by_stretches(values: Tensor) -> Tensor:
    """`values.max(dim=-1).indices`, by the largest of every stretch."""
    whole = values.shape[-1] // STRETCH * STRETCH
    stretches = values[..., :whole].unflatten(-1, (-1, STRETCH))
    best, number = stretches.amax(dim=-1).max(dim=-1)
    at = number[..., None, None].expand(*number.shape, 1, STRETCH)
    place = number * STRETCH + stretches.gather(-2, at)[..., 0, :].max(dim=-1).indices
    if whole == values.shape[-1]:
        return place
    last, behind = values[..., whole:].max(dim=-1)
    later = (last > best) | (last.isnan() & ~best.isnan())
    return torch.where(later, behind + whole, place)


def log_prob(logits: Tensor, token: Tensor) -> Tensor:
    """Log probability of `token`, by log1p and expm1 as in `ir.opset.score.log_prob`."""
    logits = wide(logits)
    top = logits.amax(dim=-1)
    own = logits.gather(-1, token[..., None])[..., 0] - top
    each = torch.exp(logits - top[..., None])
    if torch.compiler.is_compiling():
        each = torch.where(token_ids(logits) == token[..., None], 0.0, each)
    else:
        each.scatter_(-1, token[..., None], 0.0)  # the same values, without another pass
    return own - torch.log1p(torch.expm1(own) + each.sum(dim=-1))


def floored(out: Tensor, logits: Tensor) -> Tensor:
    """`logits` with FLOOR at `out`; float16, which cannot hold FLOOR, becomes float32."""
    logits = logits.float() if logits.dtype == torch.float16 else logits
    return logits.masked_fill(out, FLOOR)


@meaning("score")
def score(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token and its log probability; on a GPU by the kernel, which gives token 0 for NaN."""
    if logits.is_cuda:
        told = score_rows(logits.flatten(0, -2), None)
        return told.token.view(logits.shape[:-1]), told.log_confidence.view(logits.shape[:-1])
    if torch.compiler.is_compiling():
        return _two_passes(logits)
    rows = max(NEAR // logits.shape[-1], 1)
    if logits.is_cpu and logits.numel() > 2 * NEAR and rows < logits.numel() // logits.shape[-1]:
        found = [_scored(part) for part in logits.flatten(0, -2).split(rows)]
        token, conf = (torch.cat(planes).view(logits.shape[:-1]) for planes in zip(*found, strict=True))
        return token, conf
    return _scored(logits)


def _scored(logits: Tensor) -> tuple[Tensor, Tensor]:
    token = first_max(logits)
    return token, log_prob(logits, token)


def _two_passes(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The same, without a look at the token before the sum: what equals the largest is left out, and counted."""
    wide_ones = wide(logits)
    top = wide_ones.amax(dim=-1, keepdim=True)
    best = (wide_ones == top) | wide_ones.isnan()
    token = torch.where(best, token_ids(logits), logits.shape[-1] - 1).amin(dim=-1).long()
    rest = torch.where(best, 0.0, torch.exp(wide_ones - top)).sum(dim=-1)
    # The likeliest token is one of those; the others that equal it have its probability.
    conf = -torch.log1p(rest + (best.sum(dim=-1) - 1))
    return token, torch.where(top[..., 0].isnan(), torch.nan, conf)


@meaning("confidence")
def confidence(logits: Tensor, token: Tensor) -> Tensor:
    """The log probability of a given token."""
    return log_prob(logits, token)


@meaning("softmax")
def softmax(logits: Tensor) -> Tensor:
    """The probabilities of all tokens."""
    logits = wide(logits)
    each = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    return each / each.sum(dim=-1, keepdim=True)


@meaning("argmax")
def argmax(of: Tensor) -> Tensor:
    """The token with the largest entry."""
    return first_max(of)


@meaning("max")
def max_(p: Tensor) -> Tensor:
    """The log of the largest probability."""
    return torch.log(wide(p).amax(dim=-1))


@meaning("margin")
def margin(logits: Tensor) -> Tensor:
    """The largest probability minus the second largest."""
    logits = wide(logits)
    top = logits.amax(dim=-1)
    others = torch.where(token_ids(logits) == first_max(logits)[..., None], -math.inf, logits)
    total = torch.exp(logits - top[..., None]).sum(dim=-1)
    # With one token there is no second one: the gap is infinite whatever the logit.
    gap = others.amax(dim=-1) - top if logits.shape[-1] > 1 else torch.full_like(top, -math.inf)
    return -torch.expm1(gap) / total


@meaning("entropy")
def entropy(logits: Tensor) -> Tensor:
    """The entropy in nats."""
    logits = wide(logits)
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    each = torch.exp(shifted)
    total = each.sum(dim=-1)
    return torch.log(total) - (each * shifted).sum(dim=-1) / total


@meaning("score_and_entropy")
def score_and_entropy(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What score and entropy give; on a GPU from one pass."""
    if logits.is_cuda:
        told = score_rows(logits.flatten(0, -2), None, entropy=True)
        assert told.entropy is not None
        planes = (told.token, told.log_confidence, told.entropy)
        return tuple(plane.view(logits.shape[:-1]) for plane in planes)  # type: ignore[return-value]
    token = first_max(logits)
    return token, log_prob(logits, token), entropy(logits)


@meaning("score_and_margin")
def score_and_margin(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What score and margin give; on a GPU from one pass."""
    if logits.is_cuda:
        told = score_rows(logits.flatten(0, -2), None, margin=True)
        assert told.margin is not None
        planes = (told.token, told.log_confidence, told.margin)
        return tuple(plane.view(logits.shape[:-1]) for plane in planes)  # type: ignore[return-value]
    token = first_max(logits)
    return token, log_prob(logits, token), margin(logits)


@meaning("kl")
def kl(p: Tensor, q: Tensor, *, floor: float) -> Tensor:
    """The Kullback-Leibler divergence of p from q."""
    p, q = wide(p), wide(q)
    return (p * (torch.log(p + floor) - torch.log(q + floor))).sum(dim=-1)


@meaning("suppress")
def suppress(logits: Tensor, *, ids: tuple[int, ...]) -> Tensor:
    """The logits with these ids made impossible."""
    tokens = token_ids(logits)
    out = torch.zeros_like(tokens, dtype=torch.bool)
    for token in ids:
        out = out | (tokens == token)
    return floored(out, logits)


@meaning("top_p")
def top_p(logits: Tensor, *, p: float | None, crossing: bool) -> Tensor:
    """The logits of the likeliest tokens until their sum reaches p."""
    if p is None or p >= 1:
        return logits
    # Radix sorts tell -0.0 from 0.0.
    key = wide(logits).masked_fill(logits == 0, 0.0)
    order = key.sort(dim=-1, descending=True, stable=True).indices
    ranked = softmax(logits).gather(-1, order)
    upto = ranked.cumsum(dim=-1)
    out = ((upto - ranked if crossing else upto) > p) & (token_ids(logits) > 0)
    return floored(torch.zeros_like(out).scatter(-1, order, out), logits)


@meaning("top_k")
def top_k(logits: Tensor, *, k: int | None) -> Tensor:
    """The logits of the k likeliest tokens and of those equal to the k-th."""
    if k is None or k >= logits.shape[-1]:
        return logits
    least = logits.topk(k, dim=-1).values[..., -1:]  # the k-th value is the same in whatever order ties come
    return floored(logits < least, logits)


@meaning("penalise")
def penalise(x: Canvas, logits: Tensor, *, penalty: float) -> Tensor:
    """The logits with those of tokens that the row holds already made less likely."""
    if penalty == 1:
        return logits
    there = ~x.masked & (x.position >= 0)
    counts = torch.zeros(len(there), logits.shape[-1], dtype=torch.int32, device=logits.device)
    seen = counts.scatter_add(1, x.tokens, there.to(torch.int32))[:, None, :] > 0
    logits = wide(logits)
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
