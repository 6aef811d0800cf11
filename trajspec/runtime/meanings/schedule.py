"""Torch meanings of the schedules and of the noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...ir.canvas import Canvas
from ...ir.noise import ROLES
from ...ir.opset.schedule import linear_rates
from .. import noise
from .canvas import block_numbers, open_block
from .registry import Number, meaning
from .score import first_max


@meaning("quota")
def quota(x: Canvas, *, steps: int | None, size: int | None) -> Tensor:
    """How many tokens the even schedule commits now."""
    if steps is None:
        return torch.ones_like(x.step)
    length = x.tokens.shape[-1]
    blocks = 1 if size is None else -(-length // size)
    ids = torch.arange(blocks, device=x.tokens.device)
    inside = (block_numbers(x, size)[:, None, :] == ids[:, None]) & x.free[:, None, :]
    masks = inside.sum(dim=-1)  # [R, blocks]
    everything = masks.sum(dim=-1, keepdim=True).clamp(min=1)
    share, rest = steps * masks // everything, steps * masks % everything
    left = steps - share.sum(dim=-1, keepdim=True)
    order = rest.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1, stable=True)
    share = (share + (order < left)).clamp(min=1)
    now = open_block(x, size).clamp(0, blocks - 1)
    here, turns = masks.gather(-1, now), share.gather(-1, now)
    each, more = here // turns, here % turns
    return (each + (x.block_step < more)).clamp(min=1)


_TABLES: dict[tuple[int, float, torch.device], Tensor] = {}


@torch.compiler.assume_constant_result
def rate_table(steps: int, eps: float, device: torch.device) -> Tensor:
    """float32 [steps] on `device`: `ir.opset.schedule.linear_rates`.

    Computed on the host, since compilers may round a division differently. Made once a device and then kept for good:
    a captured step may not copy from the host, and refers to the tensor for as long as it lives.
    """
    key = (steps, eps, device)
    if key not in _TABLES:
        _TABLES[key] = torch.from_numpy(linear_rates(steps, eps).copy()).to(device)
    return _TABLES[key]


@meaning("linear_rate", numbers=True)
def linear_rate(clock: Tensor, *, steps: int, eps: float) -> Tensor:
    """The share of the masks that step number `clock` commits: float32 values, kept as float64."""
    return rate_table(steps, eps, clock.device)[clock.clamp(max=steps - 1)].double()


@meaning("linear_quota", numbers=True)
def linear_quota(masks: Number, clock: Number, *, steps: int, eps: float) -> tuple[Tensor, Tensor]:
    """How many of `masks` the next step that commits anything takes, and the clock after it."""
    device = masks.device if isinstance(masks, Tensor) else clock.device  # type: ignore[union-attr]
    at = torch.arange(steps, device=device)
    masks, clock = (
        value if isinstance(value, Tensor) else torch.full((1, 1), value, device=device) for value in (masks, clock)
    )
    takes = torch.floor(masks.float() * rate_table(steps, eps, device)).long()  # [R, steps]
    busy = ((takes >= 1) & (at >= clock)) | (at == steps - 1)
    chosen = torch.where(busy, at, steps - 1).amin(dim=-1, keepdim=True)
    return takes.expand(busy.shape).gather(-1, chosen), chosen + 1


@meaning("sample")
def sample(x: Canvas, logits: Tensor, *, temperature: float) -> Tensor:
    """A token drawn at each position from softmax(logits / temperature), in float64 as the noise is."""
    if temperature == 0:
        return first_max(logits)
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    noisy = noise.gumbel(x.seed[..., None], ROLES["tok"], x.step[..., None], x.position[..., None], tokens)
    return first_max(logits.double() / temperature + noisy)


@meaning("uniform")
def uniform(x: Canvas) -> Tensor:
    """A number between 0 and 1 at each position."""
    return noise.uniform(x.seed, ROLES["ord"], x.step, x.position)


@meaning("uniform_of")
def uniform_of(x: Canvas, number: Number) -> Tensor:
    """A number between 0 and 1 at each position, the same as long as `number` is."""
    if not isinstance(number, Tensor):
        return noise.uniform(x.seed, ROLES["view"], math.floor(number), x.position)
    whole = torch.floor(number).long() if number.is_floating_point() else number
    return noise.uniform(x.seed, ROLES["view"], whole, x.position)


@meaning("gumbel")
def gumbel(x: Canvas) -> Tensor:
    """Gumbel noise at each position."""
    return noise.gumbel(x.seed, ROLES["ord"], x.step, x.position)


@meaning("token_at")
def token_at(x: Canvas, u: Tensor) -> Tensor:
    """The token that a number from 0 to below 1 stands for."""
    size = x.allowed.shape[-1]
    return (u * size).floor().long().clamp(0, size - 1)
