"""A plan: the whole decoding program, as values that start a run and a loop whose step is pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from .errors import NOWHERE, TrajspecError
from .kinds import CANVAS, FLAG, Kind
from .nodes import Node, Value, exact_key, node, walk
from .op import OPS, op


def _kind(kinds: Any, attrs: dict[str, Any]) -> tuple[Kind]:
    from .kinds import KINDS

    if attrs["kind"] not in KINDS:
        raise TrajspecError(f"kind is {attrs['kind']}, expected one of {', '.join(KINDS)}")
    return (KINDS[attrs["kind"]],)


MAX_NAME = 200  # characters in a plan's name


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


@lru_cache(maxsize=256)
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

    @cached_property
    def text(self) -> str:
        """The plan as text, made once."""
        return str(self)

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
    def base(self) -> Plan | None:
        """The plan whose trajectory a speculated plan walks along; None for a plan that is its own base."""
        return next((n.attributes["of"] for n in self.nodes() if n.op.name == "walk"), None)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the further models that a step asks, in the order of their calls."""
        named = (n.attributes["by"] for n in (self.base or self).nodes() if n.op.name == "forward")
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @property
    def bases(self) -> tuple[Plan, ...]:
        """The plans that ops of this one name by `of=`, in the order of their use; their text stands above its own."""
        named = (
            value
            for item in walk((*self.starts, self.test, *self.step))
            for _, value in item.attrs
            if isinstance(value, Plan)
        )
        return tuple(dict.fromkeys(named))

    @property
    def clocked(self) -> bool:
        """Whether a step that changes no token may still lead on: counters, noise or history are read."""
        return len(self.starts) > 1 or any(n.op.clocked for n in self.nodes())


def verify(plan: Plan) -> Plan:
    """`plan` itself when it is well formed, else TrajspecError that says what is wrong with which value."""
    from .apply import is_name

    def wrong(what: str) -> TrajspecError:
        return TrajspecError(f"plan {plan.name[:MAX_NAME]}: {what}")

    if not is_name(plan.name) or len(plan.name) > MAX_NAME:
        raise wrong(f"its name {plan.name[:MAX_NAME]!r} is not a name in Python of at most {MAX_NAME} characters")
    if not plan.inputs or plan.inputs[0].kind is not CANVAS:
        raise wrong("the first input must be a canvas")
    for value in plan.inputs:
        if value.node.op.name != "input":
            raise wrong(f"an input must be a plan's argument, got a value of {value.node.op.name}")
    names = [value.node.attributes["name"] for value in plan.inputs]
    if len(set(names)) != len(names) or not all(is_name(name) for name in names):
        raise wrong(f"inputs need different names that Python allows, got {', '.join(map(repr, names))}")
    if not plan.starts or plan.starts[0].kind is not CANVAS:
        raise wrong("the first carried value must be a canvas")
    if plan.test is not unfinished(plan.carried[0]):
        raise wrong("the loop must go on while unfinished(x), x being the canvas it carries")
    if len(plan.carried_names) != len(plan.starts):
        raise wrong(f"the loop carries {len(plan.starts)} values and has {len(plan.carried_names)} names for them")
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
            _check_node(item, wrong)
    if any(n.op.calls_model for n in walk((*plan.starts, plan.test))):
        raise wrong("the model may be called in the step only")
    calls = [n.attributes.get("by") for n in walk(plan.step) if n.op.calls_model and n.op.name != "verify"]
    if len(set(calls)) < len(calls):
        raise wrong("a step may call the model once: give all queries to one forward")
    names = [plan.name]
    for base in plan.bases:
        if base.bases:
            raise wrong(f"its base {base.name[:MAX_NAME]} has a base itself; expected a plan that asks the model alone")
        verify(base)
        names.append(base.name)
    if len(set(names)) != len(names):
        raise wrong(f"it and the plans that it names need different names, got {', '.join(names)}")
    return plan


def unfinished(x: Value) -> Value:
    """The test of every loop: the row `x` goes on."""
    return node(OPS["unfinished"], (x,), {}, (FLAG,)).results[0]


def _check_node(item: Node, wrong: Callable[[str], TrajspecError]) -> None:
    from .apply import check_attribute, check_kinds

    name = item.op.name
    declared = {attribute.name: attribute for attribute in item.op.attributes}
    if set(declared) != set(item.attributes):
        raise wrong(f"{name} has settings {sorted(item.attributes)}, expected {sorted(declared)}")
    positional = [operand for operand in item.op.operands if not operand.keyword]
    least = len(item.op.operands) - any(operand.many for operand in positional)
    if len(item.args) < least or (len(item.args) > least and not any(operand.many for operand in positional)):
        raise wrong(f"{name} has {len(item.args)} operands, expected {least}")
    try:
        clean = {key: check_attribute(item.op, declared[key], value, NOWHERE) for key, value in item.attrs}
        if item.op.check is not None:
            item.op.check(**item.attributes)
        kinds = check_kinds(item.op, item.args, item.attributes, NOWHERE)
    except TrajspecError as error:
        raise wrong(str(error)) from None
    for key, value in item.attrs:
        if exact_key(clean[key]) != exact_key(value):
            raise wrong(f"{name}: setting '{key}' is {value!r}, expected {clean[key]!r}")
    if kinds != tuple(result.kind for result in item.results):
        given = ", ".join(result.kind.name for result in item.results)
        raise wrong(f"{name} gives {', '.join(map(str, kinds))}, the plan says {given}")
    if item.op.infix == "-" and len(item.args) == 1 and item.args[0] is not None and item.args[0].is_const:
        raise wrong("a negated number must be a negative number")
