"""One step of a plan on tensors: a pure function of the carried values, without host reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..ir.apply import call_meaning
from ..ir.canvas import Cache, Canvas
from ..ir.errors import TrajspecError
from ..ir.nodes import Node, Value, walk
from ..ir.plan import Plan
from .batch import differs, keep, map_leaves
from .meanings import MEANINGS
from .query import ask
from .views import Kept, next_cache


@dataclass
class Outcome:
    """What one step gave. Tensors stay on the device; reading them is up to the loop.

    carried: as before the step, finished rows unchanged; done, changed, due: bool [R], due where a cached view has to
    look at the whole canvas next; bad, empty: bool [R, L], where logits were NaN or +inf, or all -inf; rows, positions:
    of the model call; values: everything computed; further: (rows, positions) of every call of a further model.
    """

    carried: tuple[Any, ...]
    done: Tensor
    changed: Tensor
    due: Tensor
    bad: Tensor
    empty: Tensor
    rows: int
    positions: int
    values: dict[Value, Any] = field(repr=False)
    further: tuple[tuple[int, int], ...] = ()


class Recorder:
    """Wraps a denoiser and notes the size of its call."""

    def __init__(self, model: Any) -> None:
        self.vocab_size, self.mask_id = model.vocab_size, model.mask_id
        self.model, self.rows, self.positions = model, 0, 0
        self.others = {name: Recorder(other) for name, other in (getattr(model, "others", None) or {}).items()}

    def __call__(self, tokens: Tensor, *rest: Any) -> Tensor:
        self._note(tokens)
        return self.model(tokens, *rest)

    def cached(self, tokens: Tensor, *rest: Any) -> Tensor:
        self._note(tokens)
        return self.model.cached(tokens, *rest)

    def _note(self, tokens: Tensor) -> None:
        self.rows += tokens.shape[0]
        self.positions += tokens.shape[0] * tokens.shape[1]


def evaluate(values: Sequence[Value], known: Mapping[Value, Any], call: Any = None) -> dict[Value, Any]:
    """Everything that `values` depend on, computed by the ops' torch meanings from the `known` values.

    `call(node, operands)` answers forwards. Raises TrajspecError for an op without a meaning here.
    """
    table = dict(known)
    for item in walk(values):
        if item.results[0] in table:
            continue
        data = [None if arg is None else table[arg] for arg in item.args]
        if item.op.calls_model:
            out = call(item, data)
            out = tuple(out) if len(item.results) > 1 else out[0]
        else:
            out = _meaning(item, data)
        outs = out if len(item.results) > 1 else (out,)
        table.update(zip(item.results, outs, strict=True))
    return table


def _meaning(item: Node, data: Sequence[Any]) -> Any:
    op = item.op
    known = MEANINGS.get(op.name) or op.torch
    if known is not None:
        return call_meaning(op, known, data, item.attributes, item.args)
    return through_numpy(item, data)


def through_numpy(item: Node, data: Sequence[Any]) -> Any:
    """The numpy meaning of an op on tensors of the CPU. Raises TrajspecError for tensors on another device."""
    # A user's op without a torch meaning: right, but it reads the device and cannot be compiled.
    device = next((leaf.device for value in data for leaf in _leaves(value)), torch.device("cpu"))
    if device.type != "cpu":
        raise TrajspecError(
            f"op {item.op.name} has no torch meaning and the model is on {device}; declare it with op(..., torch=f), "
            "or decode on the CPU"
        )
    arrays = [map_leaves(lambda leaf: leaf.numpy(), value) if _leaves(value) else value for value in data]
    out = call_meaning(item.op, item.op.numpy, arrays, item.attributes, item.args)
    outs = out if len(item.results) > 1 else (out,)
    made = tuple(map_leaves(lambda leaf: torch.as_tensor(leaf), value) for value in outs)
    return made if len(made) > 1 else made[0]


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, tuple):
        return list(value)
    return [value] if isinstance(value, Tensor) else []


def start(plan: Plan, bound: Mapping[Value, Any]) -> tuple[Any, ...]:
    """The carried values before the first step, from the plan's inputs as tensors."""
    table = evaluate(plan.starts, bound)
    # A tensor each: a graph tells one that is held twice from two that are equal.
    return tuple(map_leaves(torch.clone, table[value]) for value in plan.starts)


def take(
    plan: Plan,
    model: Any,
    bound: Mapping[Value, Any],
    carried: Sequence[Any],
    all_real: bool,
    kept: Kept | None = None,
    rows: Tensor | None = None,
    refresh: bool = True,
) -> Outcome:
    """One step from `carried`. `all_real`: no row is padded. A step on a finished row is the identity on that row.

    For a plan with a cached view: `kept` holds the batch's keys and values, `rows` says which of its rows these are
    (None: all), and `refresh` whether they look at the whole canvas or at their block; the rows must be alike in that.
    """
    known = dict(bound) | dict(zip(plan.carried, carried, strict=True))
    going = evaluate([plan.test], known)[plan.test]  # [R, 1]
    x: Canvas = carried[0]
    recorder = Recorder(model)
    planes: list[tuple[Tensor, Tensor]] = []

    def call(item: Node, data: Sequence[Any]) -> list[Any]:
        predict_mask = item.attributes["predict_mask"]
        if item.op.name == "forward":
            logits, bad, empty = ask(recorder, data, predict_mask, all_real=all_real, by=item.attributes["by"])
            planes.append((bad, empty))
            return logits
        assert kept is not None
        kept.model = recorder
        look = kept.refresh if refresh else kept.window
        one, bad, empty = look(rows, data[0], data[2], predict_mask)
        planes.append((bad, empty))
        return [one, next_cache(*data)]

    table = evaluate(plan.step, known, call)
    after = tuple(
        keep(going[:, 0], like(table[value], old), old)
        for old, value in zip(carried, plan.step, strict=True)
    )
    y: Canvas = after[0]
    bad = empty = torch.zeros_like(x.masked)
    for wrong, none in planes:
        bad, empty = bad | wrong, empty | none
    changed = differs(x, y).any(-1)
    later = dict(bound) | dict(zip(plan.carried, after, strict=True))
    finished = ~evaluate([plan.test], later)[plan.test]
    return Outcome(
        after, finished[:, 0], changed, due(plan, later), bad & going, empty & going, recorder.rows,
        recorder.positions, table, tuple((one.rows, one.positions) for one in recorder.others.values() if one.rows),
    )  # fmt: skip


def cached_forward(plan: Plan) -> Node | None:
    """The plan's forward on a cached view, if it has one."""
    return next((item for item in walk(plan.step) if item.op.name == "forward_cached"), None)


def due(plan: Plan, known: Mapping[Value, Any]) -> Tensor:
    """bool [R]: the rows whose block, in the state `known`, is not the one their cache was made for."""
    forward = cached_forward(plan)
    if forward is None:
        return torch.zeros_like(known[plan.carried[0]].done[:, 0])
    cache, where = block_of(plan, known, forward)
    return (cache.where != where).any(-1)


def block_of(plan: Plan, known: Mapping[Value, Any], forward: Node) -> tuple[Cache, Tensor]:
    """The cache in the state `known`, and the block that `forward` would look at, bool [R, L]."""
    _, cache, where = forward.args
    assert cache is not None and where is not None
    table = evaluate([cache, where], known)
    return table[cache], table[where]


def like(value: Any, old: Any) -> Any:
    """A number that a plan gives for a carried tensor, in the tensor's shape."""
    if isinstance(old, Tensor) and not isinstance(value, Tensor):
        # A whole history may become a real one; it must not be cut to whole numbers.
        real = isinstance(value, float) and not old.is_floating_point()
        return torch.full_like(old, value, dtype=torch.float64 if real else None)
    return value

