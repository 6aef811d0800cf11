"""How thin the decisions of a base's step are: whether logits that are a little off could change what it commits.

Every value of a step is followed with a doubt: how far a number may be off, or whether a token, a selection or a canvas
may be another one, when the logits of the step's model call are off by `eps` at most. What an op does to doubts is its
entry in `JUDGES`; the results of an op without one are in full doubt as soon as one of its operands is.
Source: interval arithmetic on the head of a policy (exactness: theorem A4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import noise
from .ahead import forward_of
from .kinds import CANVAS, CONF, FLAG, LOGITS, SELECTION, TOKENS, Kind
from .nodes import Node, Value, walk
from .opset.pointwise import align, logs
from .plan import Plan

#: What rounding adds to a bound.
SLACK = 1e-12
_DISCRETE = (TOKENS, SELECTION, FLAG, CANVAS)
#: judge(node, operand values, operand doubts) -> the doubt of each result; values and doubts are numpy arrays.
Judge = Callable[[Node, Sequence[Any], Sequence[Any]], Sequence[Any]]
JUDGES: dict[str, Judge] = {}


def thin(base: Plan, values: Mapping[Value, Any], eps: float) -> bool:
    """Whether the step of `base` could end elsewhere if its logits were off by up to `eps`.

    `values`: all that the step computed (`interpret.evaluate`), numpy, one row. Conservative: a history that takes
    over a number made from logits is in doubt, and so is whatever an op without a judge makes of doubtful operands.
    """
    doubts = doubts_of(base, values, eps)
    return any(value in doubts and bool(np.any(doubts[value])) for value in base.step)


def doubts_of(base: Plan, values: Mapping[Value, Any], eps: float) -> dict[Value, Any]:
    """The doubt of every value that depends on the logits: float arrays for numbers, bool ones for the rest."""
    forward, doubts = forward_of(base), {}
    for item in walk(base.step):
        if item is forward:
            for value in item.results:
                if value.kind is LOGITS:
                    doubts[value] = np.full(values[value].shape, eps)
            continue
        given = [_none(arg) if arg is None or arg not in doubts else doubts[arg] for arg in item.args]
        if not any(np.any(doubt) for doubt in given):
            continue
        judge = JUDGES.get(item.op.name)
        data = [None if arg is None else values[arg] for arg in item.args]
        if judge is None:
            made: Sequence[Any] = [_full(value.kind) for value in item.results]
        else:
            with np.errstate(all="ignore"):
                made = judge(item, data, given)
        for value, doubt in zip(item.results, made, strict=True):
            numbers = value.kind not in _DISCRETE
            doubts[value] = np.where(np.isnan(doubt), np.inf, doubt) if numbers else np.asarray(doubt, bool)
    return doubts


def _none(value: Value | None) -> Any:
    return np.asarray(False if value is not None and value.kind in _DISCRETE else 0.0)


def _full(kind: Kind) -> Any:
    return np.asarray([True if kind in _DISCRETE else np.inf])


def judge(*names: str) -> Callable[[Judge], Judge]:
    """Say what ops do to doubts. One judge for each op."""

    def keep(function: Judge) -> Judge:
        for name in names:
            JUDGES[name] = function
        return function

    return keep


def unsure_max(values: Any, off: Any) -> Any:
    """bool [...]: whether another entry of the last axis could be the largest one."""
    off = np.broadcast_to(off, values.shape)
    first = values.argmax(axis=-1)[..., None]
    low = np.take_along_axis(values - off, first, -1)[..., 0]
    others = np.where(np.arange(values.shape[-1]) == first, -np.inf, values + off).max(axis=-1)
    return (others >= low - SLACK) | np.isnan(values).any(axis=-1)


@judge("score")
def _score(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return unsure_max(data[0], off[0]), 2 * _largest(off[0], data[0])


@judge("argmax")
def _argmax(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [unsure_max(data[0], off[0])]


@judge("confidence")
def _confidence(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [np.where(off[1], np.inf, 2 * _largest(off[0], data[0]))]


@judge("sample")
def _sample(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    x, logits = data
    temperature = item.attributes["temperature"]
    if temperature == 0:
        return [unsure_max(logits, off[1])]
    seed, step, tokens = x.seed[..., None], x.step[..., None], np.arange(logits.shape[-1])
    drawn = noise.gumbel(seed, noise.ROLES["tok"], step, x.position[..., None], tokens)
    return [unsure_max(logits / temperature + drawn, off[1] / temperature)]


@judge("softmax")
def _softmax(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [np.broadcast_to(np.expm1(2 * _largest(off[0], data[0]))[..., None], data[0].shape)]


@judge("max")
def _max(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    share = _largest(off[0], data[0]) / data[0].max(axis=-1)
    return [np.where(share < 1, -np.log1p(-share), np.inf)]


@judge("margin")
def _margin(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [2 * np.expm1(2 * _largest(off[0], data[0]))]


@judge("entropy")
def _entropy(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    # dH = -sum p (log p + H) dl, and the mean of |log p + H| is 2 H at most.
    return [2 * np.log(data[0].shape[-1]) * _largest(off[0], data[0])]


@judge("suppress")
def _suppress(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    out = np.array(np.broadcast_to(off[0], data[0].shape))
    out[..., list(item.attributes["ids"])] = 0.0
    return [out]


@judge("top_k")
def _top_k(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    k, logits = item.attributes["k"], data[0]
    if k is None or k >= logits.shape[-1]:
        return [off[0]]
    order = np.sort(logits, axis=-1)
    close = order[..., -k] - order[..., -k - 1] <= 2 * _largest(off[0], logits) + SLACK
    return [np.where(close[..., None], np.inf, off[0])]


@judge("top_p")
def _top_p(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    p, logits = item.attributes["p"], data[0]
    if p is None or p >= 1:
        return [off[0]]
    largest = _largest(off[0], logits)
    order = -np.sort(-logits, axis=-1)
    each = np.exp(order - order[..., :1])
    ranked = each / each.sum(axis=-1, keepdims=True)
    before = np.cumsum(ranked, axis=-1) - ranked
    near = np.abs(before - p).min(axis=-1) <= np.expm1(2 * largest) * 2 + SLACK
    # The last one that is kept, and the first one that is not, must not change places.
    count = np.maximum((before <= p).sum(axis=-1), 1)
    gaps = np.concatenate([order[..., :-1] - order[..., 1:], np.full((*order.shape[:-1], 1), np.inf)], axis=-1)
    gap = np.take_along_axis(gaps, count[..., None] - 1, -1)[..., 0]
    return [np.where((near | (gap <= 2 * largest + SLACK))[..., None], np.inf, off[0])]


def _largest(off: Any, like: Any) -> Any:
    return np.broadcast_to(off, like.shape).max(axis=-1)


@judge("top", "bottom")
def _top(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    by, k, where = data
    if np.any(off[1]) or np.any(off[2]):
        return [np.ones(where.shape, bool)]
    possible, certain = _above(by if item.op.name == "top" else -by, off[0], where)
    return [where & ~((possible < k) | (certain >= k))]


@judge("rank")
def _rank(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    by, where = data
    possible, certain = _above(by, off[0], where)
    return [np.where(np.any(off[1]) | (where & (possible != certain)), np.inf, 0.0)]


def _above(by: Any, off: Any, where: Any) -> tuple[Any, Any]:
    """int64 [L]: how many positions of `where` may rank before each one, and how many surely do."""
    by, off, where = np.broadcast_arrays(np.where(np.isnan(by), -np.inf, by), off, where)
    place = np.arange(by.shape[-1])
    exact = (off[:, None] + off[None, :]) == 0
    before = (by[None, :] > by[:, None]) | ((by[None, :] == by[:, None]) & (place[None, :] < place[:, None]))
    high, low = by + off + SLACK, by - off - SLACK
    possible = np.where(exact, before, high[None, :] >= low[:, None])
    certain = np.where(exact, before, low[None, :] > high[:, None])
    others = where[None, :] & (place[None, :] != place[:, None])
    return (possible & others).sum(axis=-1), (certain & others).sum(axis=-1)


@judge("first")
def _first(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [np.ones(data[1].shape, bool)]


@judge("demote")
def _demote(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [np.where(off[1], np.inf, np.where(data[1], 0.0, off[0]))]


@judge("unmask")
def _unmask(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    x, _, where = data
    return [np.any(off[0]) | ((off[2] | (off[1] & where)) & x.masked).any(axis=-1, keepdims=True)]


@judge("edit")
def _edit(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    x, _, where = data
    return [np.any(off[0]) | ((off[2] | (off[1] & where)) & x.free).any(axis=-1, keepdims=True)]


@judge("remask")
def _remask(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [np.any(off[0]) | (off[1] & data[0].free).any(axis=-1, keepdims=True)]


@judge("advance")
def _advance(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [np.any(off[0]) | np.any(off[1]) | np.any(off[2])]


@judge("count")
def _count(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [off[0].sum(axis=-1, keepdims=True).astype(np.float64)]


@judge("any")
def _any(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    sure = (data[0] & ~off[0]).any(axis=-1, keepdims=True)
    return [~sure & off[0].any(axis=-1, keepdims=True)]


@judge("all")
def _all(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    fails = (data[1] & ~off[1] & ~data[0] & ~off[0]).any(axis=-1, keepdims=True)
    return [~fails & (off[0] | off[1]).any(axis=-1, keepdims=True)]


@judge("total", "mean")
def _total(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    of, where = np.broadcast_arrays(*data)
    summed = np.where(where, np.broadcast_to(off[0], of.shape), 0.0).sum(axis=-1, keepdims=True)
    return [np.where(np.any(off[1]), np.inf, summed + SLACK)]


@judge("neg", "invert")
def _same(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [off[0]]


@judge("prob", "exp")
def _prob(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [np.exp(data[0]) * np.expm1(off[0])]


@judge("floor")
def _floor(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    same = np.floor(data[0] - off[0] - SLACK) == np.floor(data[0] + off[0] + SLACK)
    return [np.where(same, 0.0, np.inf)]


@judge("least", "most")
def _pair(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    return [np.maximum(off[0], off[1])]


@judge("add", "sub", "mul", "div")
def _arithmetic(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    a, b, left, right = _aligned(item, data, off)
    if item.op.name in ("add", "sub"):
        return [left + right]
    if item.op.name == "mul":
        return [np.abs(a) * right + np.abs(b) * left + left * right]
    least = np.abs(b) - right
    return [np.where((least > 0) | (left + right == 0), (left + np.abs(a / b) * right) / least, np.inf)]


@judge("ge", "gt", "le", "lt", "eq", "ne")
def _comparison(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    kinds = [arg.kind for arg in item.args if arg is not None]
    if TOKENS in kinds:
        return [(np.asarray(off[0]) != 0) | (np.asarray(off[1]) != 0)]
    a, b, left, right = _aligned(item, data, off)
    if CONF in kinds:
        # A doubtful number that becomes a logarithm is not followed.
        left, right = (part if kind is CONF else np.where(part > 0, np.inf, part)
                       for part, kind in zip((left, right), kinds, strict=True))  # fmt: skip
        a, b = logs((a, b), kinds)
    bound = left + right
    return [(bound > 0) & ~(np.abs(a - b) > bound + SLACK)]


@judge("and_", "or_", "xor")
def _logic(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    (a, b), (left, right) = data, off
    if item.op.name == "and_":
        return [(left & (b | right)) | (right & (a | left))]
    if item.op.name == "or_":
        return [(left & (~b | right)) | (right & (~a | left))]
    return [left | right]


@judge("choose")
def _choose(item: Node, data: Sequence[Any], off: Sequence[Any]) -> Sequence[Any]:
    kinds = [arg.kind for arg in item.args if arg is not None]
    wide = any(kind.axes == "LV" for kind in kinds)
    when, doubt = (part[..., None] if wide and part.ndim else part for part in (data[0], np.asarray(off[0])))
    a, b = align(data[1:], kinds[1:])
    left, right = (np.asarray(part) for part in off[1:])
    if wide:
        left, right = (part[..., None] if kind.axes == "1" and part.ndim else part
                       for part, kind in zip((left, right), kinds[1:], strict=True))  # fmt: skip
    numbers = item.results[0].kind not in _DISCRETE
    if numbers:
        either = np.maximum(left, right) + np.where(a == b, 0.0, np.abs(a - b))
    else:
        either = (a != b) | left.astype(bool) | right.astype(bool)
    return [np.where(doubt, either, np.where(when, left, right))]


def _aligned(item: Node, data: Sequence[Any], off: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    kinds = [arg.kind for arg in item.args if arg is not None]
    wide = any(kind.axes == "LV" for kind in kinds)
    left, right = (part[..., None] if wide and kind.axes == "1" and np.ndim(part) else part
                   for part, kind in zip(off, kinds, strict=True))  # fmt: skip
    a, b = align(data, kinds)
    return a, b, left, right


__all__ = ["JUDGES", "doubts_of", "judge", "thin", "unsure_max"]
