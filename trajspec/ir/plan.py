"""A plan: the whole decoding program, as values that start a run and a loop whose step is pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .errors import TrajspecError
from .kinds import CANVAS, FLAG, Kind
from .nodes import Node, Value, node, walk
from .op import OPS, op


def _kind(kinds: Any, attrs: dict[str, Any]) -> tuple[Kind]:
    from .kinds import KINDS

    return (KINDS[attrs["kind"]],)


@op("input(*, name: str, kind: name) -> value: canvas", infer=_kind, hidden=True)
def _input() -> None:
    """An argument of the plan."""
    raise AssertionError("inputs are bound by the interpreter")


@op("carried(*, index: int, kind: name) -> value: canvas", infer=_kind, hidden=True)
def _carried() -> None:
    """A value the loop carries from step to step, as it is before the step."""
    raise AssertionError("carried values are bound by the interpreter")


def input_value(name: str, kind: Kind) -> Value:
    """The plan argument called `name`."""
    return node(OPS["input"], (), {"name": name, "kind": kind.name}, (kind,)).results[0]


def carried_value(index: int, kind: Kind) -> Value:
    """The loop's carried value number `index`, before the step."""
    return node(OPS["carried"], (), {"index": index, "kind": kind.name}, (kind,)).results[0]


@dataclass(frozen=True)
class Plan:
    """def name(inputs): carried = starts; while test: carried = step; return carried[0].

    Compared by structure; `names`, `doc` and `carried_names` only shape the text.
    """

    name: str
    inputs: tuple[Value, ...]  # the first is the canvas with the prompt
    starts: tuple[Value, ...]  # the first is the canvas
    test: Value
    step: tuple[Value, ...]
    carried_names: tuple[str, ...] = field(default=("x",), compare=False)
    names: tuple[tuple[Value, str], ...] = field(default=(), compare=False, repr=False)
    doc: str = field(default="", compare=False)

    def __str__(self) -> str:
        from .text import to_text

        return to_text(self)

    def __reduce__(self) -> Any:
        from .parse import parse

        return parse, (str(self),)

    @property
    def carried(self) -> tuple[Value, ...]:
        """The carried values before the step."""
        return tuple(carried_value(index, start.kind) for index, start in enumerate(self.starts))

    def nodes(self) -> Iterator[Node]:
        """Every node of the loop: its test and its step."""
        return walk((self.test, *self.step))

    @property
    def block_length(self) -> int | None:
        """The largest block the step looks at, None when it looks at the whole canvas."""
        sizes = [n.attributes["size"] for n in self.nodes() if n.op.name in ("window", "block", "quota")]
        return max((size for size in sizes if size is not None), default=None)

    @property
    def clocked(self) -> bool:
        """Whether a step that changes no token may still lead on: counters, noise or history are read."""
        return len(self.starts) > 1 or any(n.op.clocked for n in self.nodes())


def verify(plan: Plan) -> Plan:
    """`plan` itself when it is well formed, else TrajspecError that says what is wrong with which value."""
    from .apply import check_kinds

    def wrong(what: str) -> TrajspecError:
        return TrajspecError(f"plan {plan.name}: {what}")

    if not plan.inputs or plan.inputs[0].kind is not CANVAS:
        raise wrong("the first input must be a canvas")
    if not plan.starts or plan.starts[0].kind is not CANVAS:
        raise wrong("the first carried value must be a canvas")
    if plan.test.kind is not FLAG:
        raise wrong(f"the loop's test must be a flag, got {plan.test.kind}; write: while unfinished(x)")
    if len(plan.step) != len(plan.starts):
        raise wrong(f"the loop carries {len(plan.starts)} values, the step gives {len(plan.step)}")
    for number, (start, after) in enumerate(zip(plan.starts, plan.step, strict=True)):
        if start.kind is not after.kind:
            raise wrong(f"carried value {number} starts as {start.kind} and becomes {after.kind} in the step")
    inputs, carried = set(plan.inputs), set(plan.carried)
    for part, values in (("start", plan.starts), ("loop", (plan.test, *plan.step))):
        for item in walk(values):
            name = item.op.name
            if OPS.get(name) is not item.op:
                raise wrong(f"op {name!r} is not declared (any more)")
            if name == "input" and item.results[0] not in inputs:
                raise wrong(f"input {item.attributes['name']!r} is used but not declared")
            if name == "carried" and (part == "start" or item.results[0] not in carried):
                raise wrong("a value of the loop is used outside of it")
            kinds = check_kinds(item.op, item.args, item.attributes)
            if kinds != tuple(result.kind for result in item.results):
                raise wrong(f"{name} gives {[str(k) for k in kinds]}, the plan says otherwise")
    if any(n.op.calls_model for n in walk((*plan.starts, plan.test))):
        raise wrong("the model may be called in the step only")
    if len([n for n in walk(plan.step) if n.op.calls_model]) > 1:
        raise wrong("a step may call the model once: give all queries to one forward")
    return plan
