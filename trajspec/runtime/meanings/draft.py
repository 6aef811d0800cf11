"""Torch meanings of the drafters: the same states as their numpy meanings, without reading the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...ir import ahead
from ...ir.ahead import Draft, Held
from ...ir.canvas import Canvas
from ...ir.opset.draft import ALONE, BEHIND, PREFIXES, RANKS, SECOND, STEEP, SURE, UNIT, Ranked, floors, strata_of
from ...ir.plan import Plan
from .canvas import block_numbers
from .registry import meaning, wide
from .score import first_max, log_prob, token_ids


def in_units(value: Tensor) -> Tensor:
    """A logarithm as a whole number."""
    return (value.double() * UNIT).round().long()


def ranked(x: Canvas, held: Held, size: int | None) -> Ranked:
    """The ranks of a canvas, as in `ir.opset.draft.ranked`."""
    unknown = held.logits.isnan()
    logits = torch.where(unknown, -1e30, wide(held.logits))
    token = first_max(logits)
    conf = log_prob(logits, token)
    odds = (conf - torch.log(-torch.expm1(conf))).clamp(-SURE, SURE)
    known = x.masked & ~unknown.any(dim=-1) & ~conf.isnan()
    odds, conf = (in_units(torch.where(known, part, 0.0)) for part in (odds, conf.clamp(min=-SURE)))
    number = torch.where(known, block_numbers(x, size), BEHIND)
    order = (number * BEHIND - odds).sort(dim=-1, stable=True).indices
    front = order[:, :RANKS]
    block, odds, conf = (part.gather(-1, front) for part in (number, odds, conf))
    return Ranked(order, known.sum(dim=-1, keepdim=True), token, block, odds, conf)


def second_choice(held: Held, rank: Ranked) -> tuple[Tensor, Tensor]:
    """The second likeliest token [R, L], and how far behind it is by rank [R, K]."""
    logits = torch.where(held.logits.isnan(), -1e30, wide(held.logits))
    top = logits.gather(-1, rank.token[..., None])
    others = torch.where(token_ids(logits) == rank.token[..., None], -torch.inf, logits)
    gap = (others.amax(dim=-1) - top[..., 0]).nan_to_num(nan=-SURE).clamp(-SURE, 0.0)
    return first_max(others), in_units(gap).gather(-1, rank.order[:, :RANKS])


def places(rank: Ranked) -> Tensor:
    """int64 [R, L]: the rank of each column."""
    numbers = torch.arange(rank.order.shape[-1], device=rank.order.device).expand_as(rank.order)
    return torch.zeros_like(rank.order).scatter(-1, rank.order, numbers)


def drawn(x: Canvas, rank: Ranked, second: Tensor, code: Tensor, exists: Tensor) -> Draft:
    """The states of `code` int64 [R, N]."""
    most, place = rank.odds.shape[-1], places(rank)
    shift = 2 * place.clamp(max=most - 1)[:, None, :]
    choice = torch.where((place < most)[:, None, :], code[..., None] >> shift & 3, 0)
    token = torch.where(choice == 1, rank.token[:, None, :], second[:, None, :])
    tokens = torch.where(choice > 0, token, x.tokens[:, None, :])
    return Draft(tokens, x.masked[:, None, :] & (choice == 0), exists)


@meaning("chain")
def chain(x: Canvas, held: Held, *, nodes: int, size: int | None) -> Draft:
    """One trajectory of single commits."""
    rank = ranked(x, held, size)
    numbers = torch.arange(nodes - 1, device=x.tokens.device)
    exists = numbers < rank.count
    taken = (places(rank)[:, None, :] <= numbers[:, None]) & exists[..., None]
    return Draft(
        torch.where(taken, rank.token[:, None, :], x.tokens[:, None, :]), x.masked[:, None, :] & ~taken, exists
    )


@meaning("tree")
def tree(
    x: Canvas, held: Held, *, nodes: int, size: int | None, threshold: float | None, strata: tuple, alternatives: int,
    branching: int,
) -> Draft:  # fmt: skip
    """The states that the trajectory most likely passes through next."""
    rank = ranked(x, held, size)
    second, gap = second_choice(held, rank)
    rows, width = len(x.tokens), nodes - 1
    code = torch.zeros(rows, 1, dtype=torch.int64, device=x.tokens.device)
    mass = code + UNIT
    for _ in range(width):
        made, share = _moves(code, rank, gap, floors(threshold, strata), alternatives, branching)
        ways = (mass[..., None] * share // UNIT).flatten(1)
        code, mass = _likeliest(made.flatten(1), ways, width)
    missing = width - (code.shape[1] - 1)
    code, mass = (torch.nn.functional.pad(part[:, 1:], (0, missing)) for part in (code, mass))
    return drawn(x, rank, second, torch.where(mass > 0, code, 0), mass > 0)


def _moves(
    code: Tensor, rank: Ranked, gap: Tensor, bounds: list[int], alternatives: int, branching: int
) -> tuple[Tensor, Tensor]:
    """Where the base may go from each state [R, S, M], and how likely."""
    most, device = rank.odds.shape[-1], code.device
    number = torch.arange(most, device=device)
    bit = torch.ones_like(number) << 2 * number
    free = ((code[..., None] >> 2 * number & 3) == 0) & (number < rank.count[..., None])
    place = free.cumsum(dim=-1) - 1
    block = rank.block[:, None, :]
    head = torch.where(free & (place == 0), block, 0).sum(dim=-1, keepdim=True)
    free = free & (block == head)
    odds, conf, gap = (part[:, None, None, :] for part in (rank.odds, rank.conf, gap))
    free, place = free[..., None, :], place[..., None, :]

    one = free & (place == torch.arange(branching, device=device)[:, None])
    level = torch.where(one, odds, 0).sum(dim=-1)
    above = (level - level[..., :1]).clamp(max=0).double()
    weight = torch.where(one.any(dim=-1), torch.exp(STEEP * above / UNIT), 0.0)
    share = ALONE * weight / weight.sum(dim=-1, keepdim=True).clamp(min=1.0)

    first = torch.where(free & (place == 0), conf, 0).sum(dim=-1, keepdim=True)
    floor = torch.full_like(first, -(2**62))
    for bound in reversed(bounds):
        floor = torch.where(first >= bound, bound, floor)
    parts = [free & (place < size) for size in PREFIXES] + [free & (conf >= floor)]
    several = torch.cat(parts, dim=-2)
    sums = several.sum(dim=-1)
    enough = torch.stack([sums[..., at] >= least for at, least in enumerate((*PREFIXES, 2))], dim=-1)
    total = torch.where(several, conf, 0).sum(dim=-1).double()
    all_of = torch.where(enough, (1 - ALONE) * torch.exp(total / UNIT), 0.0)

    turn = torch.arange(1, alternatives + 1, device=device)[:, None]
    some, last = free & (place < turn), free & (place == turn - 1)
    sure = torch.where(some & ~last, conf, 0).sum(dim=-1) + torch.where(last, gap, 0).sum(dim=-1)
    other = torch.where(last.any(dim=-1), SECOND * torch.exp(sure.double() / UNIT), 0.0)

    added = [torch.where(part, bit, 0).sum(dim=-1) for part in (one, several, some, last)]
    made = torch.cat([added[0], added[1], added[2] + added[3]], dim=-1)
    return code[..., None] + made, (torch.cat([share, all_of, other], dim=-1) * UNIT).round().long()


def _likeliest(code: Tensor, mass: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The root, and the `most` likeliest of `code` with equal ones added up."""
    same = code[:, :, None] == code[:, None, :]
    total = torch.where(same, mass[:, None, :], 0).sum(dim=-1)
    again = same.tril(-1).any(dim=-1) | (code == 0)
    total = torch.where(again, 0, total)
    best = total.sort(dim=-1, descending=True, stable=True).indices[:, :most]
    root = torch.zeros_like(code[:, :1])
    return torch.cat([root, code.gather(-1, best)], -1), torch.cat([root + UNIT, total.gather(-1, best)], -1)


@meaning("frozen")
def frozen(*state: Any, held: Held, of: Plan, nodes: int) -> Draft:
    """Where the base would go if the model's answer never changed."""
    from ..step import evaluate, like
    from ..views import next_cache

    known = ahead.split(of, state)
    x: Canvas = known[of.carried[0]]
    forward = ahead.forward_of(of)
    unknown = held.logits.isnan()
    there = ~(x.masked & unknown.any(dim=-1)).any(dim=-1)
    logits = torch.where(unknown.any(dim=-1, keepdim=True), 0.0, held.logits)
    tokens, masked, exists = [x.tokens], [x.masked], [there & False]
    for _ in range(nodes - 1):
        there = there & ~known[of.carried[0]].done[:, 0]
        answers: tuple[Any, ...] = (logits,) * len(forward.results)
        if forward.op.name == "forward_cached":
            looked = [value for value in forward.args if value is not None]
            made = evaluate(looked, known)
            answers = (logits, next_cache(*(made[value] for value in looked)))
        values = evaluate(of.step, known | dict(zip(forward.results, answers, strict=True)))
        known = known | {old: like(values[new], known[old]) for old, new in zip(of.carried, of.step, strict=True)}
        now: Canvas = known[of.carried[0]]
        tokens.append(now.tokens)
        masked.append(now.masked)
        exists.append(there)
    kept = torch.stack(exists, dim=-1)[:, 1:]
    return Draft(
        torch.where(kept[..., None], torch.stack(tokens, dim=-2)[:, 1:], x.tokens[:, None, :]),
        torch.where(kept[..., None], torch.stack(masked, dim=-2)[:, 1:], x.masked[:, None, :]),
        kept,
    )


@meaning("ranks")
def ranks(x: Canvas, held: Held, *, table: tuple, nodes: int, size: int | None) -> Draft:
    """The states that came next most often on other prompts."""
    rank = ranked(x, held, size)
    second, _ = second_choice(held, rank)
    surest = rank.conf[:, :1]
    code = torch.zeros(len(surest), nodes - 1, dtype=torch.int64, device=surest.device)
    for floor, states in reversed(strata_of(table, nodes - 1)):
        # From numbers, not from a tensor of them: nothing is copied to the device.
        columns = [torch.where(surest >= floor, state, code[:, at : at + 1]) for at, state in enumerate(states)]
        code = torch.cat(columns, dim=-1) if columns else code
    number = torch.arange(rank.odds.shape[-1], device=code.device)
    most = len(number)
    needed = torch.where((code[..., None] >> 2 * number & 3) > 0, number + 1, 0).amax(dim=-1)
    beyond = (code >> 2 * most > 0) if most < RANKS else code < 0
    exists = (code > 0) & (needed <= rank.count) & ~beyond
    return drawn(x, rank, second, torch.where(exists, code, 0), exists)
