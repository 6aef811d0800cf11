"""Applying an op: bind the arguments, check their kinds, then add a node or compute on arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .canvas import Canvas
from .errors import Place, TrajspecError, fail
from .handles import Eager, Handle, Traced
from .kinds import CANVAS, COUNT, FLAG, KINDS, Kind, article
from .nodes import Value, node
from .op import OPS, Attribute, Op

Bound = tuple[list[Any], dict[str, Any]]


def apply(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What calling an op does. One result comes bare, several as a tuple.

    Raises TypeError for an unknown keyword, TrajspecError at the user's line for everything else.
    """
    given, attrs = bind(op, args, kwargs)
    if any(isinstance(value, Traced) for value in given):
        values = [None if arg is None else _as_value(op, arg) for arg in given]
        made = build(op, values, attrs)
        handles: list[Handle] = [Traced(value) for value in made]
    else:
        handles = _compute(op, given, attrs)
    return handles[0] if len(handles) == 1 else tuple(handles)


def bind(op: Op, args: Sequence[Any], kwargs: dict[str, Any], place: Place | None = None) -> Bound:
    """Operands in the order of the signature (None where left out) and attributes with their defaults."""
    kwargs = dict(kwargs)
    positional = [operand for operand in op.operands if not operand.keyword]
    many = bool(positional) and positional[-1].many
    if len(args) > len(positional) and not many:
        raise fail(
            f"{op.name}: takes {len(positional)} value{'s' * (len(positional) != 1)} by position, got {len(args)}",
            f"Settings go by name: {usage(op)}",
            place,
        )
    given: list[Any] = list(args)
    attrs: dict[str, Any] = {}
    for operand in positional[len(args) :]:
        if operand.name in kwargs:
            given.append(kwargs.pop(operand.name))
        elif not operand.many:
            raise fail(f"{op.name}: operand '{operand.name}' is missing", f"Write: {usage(op)}", place)
    for operand in op.operands:
        if operand.keyword:
            value = kwargs.pop(operand.name, None)
            if value is None and not operand.optional:
                raise fail(
                    f"{op.name}: '{operand.name}=' is missing, expected {article(operand.kinds)}",
                    f"It says which positions are meant. Write: {usage(op)}",
                    place,
                )
            given.append(value)
    for attribute in op.attributes:
        if attribute.name in kwargs:
            attrs[attribute.name] = check_attribute(op, attribute, kwargs.pop(attribute.name), place)
        elif attribute.required:
            raise fail(f"{op.name}: setting '{attribute.name}=' is missing", f"Write: {usage(op)}", place)
        else:
            attrs[attribute.name] = attribute.default
    if kwargs:
        raise TypeError(f"{op.name}() has no keyword {', '.join(map(repr, kwargs))}; write: {usage(op)}")
    if op.check is not None:
        try:
            op.check(**attrs)
        except TrajspecError as error:
            raise fail(f"{op.name}: {error}", "", place) from None
    return given, attrs


def check_attribute(op: Op, attribute: Attribute, value: Any, place: Place | None = None) -> Any:
    """`value` as an attribute of `op`, or TrajspecError."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list):
        value = tuple(value)
    if "name" in attribute.types and isinstance(value, Kind):
        value = value.name
    kind = type(value).__name__ if value is not None else "None"
    allowed = set(attribute.types) | ({"int", "float"} if "number" in attribute.types else set())
    if "float" in allowed and "int" not in allowed and kind == "int":
        value, kind = float(value), "float"
    if "name" in allowed and kind == "str":
        kind = "name"
    if kind == "tuple" and not all(type(item) in (int, float, str, bool) for item in value):
        kind = "tuple of mixed things"
    if isinstance(value, Handle):
        kind = f"{value.kind} from {value.origin}"
    if isinstance(value, float) and not np.isfinite(value):
        kind = f"the number {value}"
    if isinstance(value, int) and abs(value) >= 2**63:
        kind = "a number beyond 64 bits"
    if kind not in allowed:
        expected = " or ".join(kind for kind in attribute.types)
        raise fail(
            f"{op.name}: setting '{attribute.name}' must be {expected}, got {kind}",
            "Settings are fixed when the plan is made; they cannot depend on the canvas.",
            place,
        )
    return value


def build(op: Op, values: Sequence[Value | None], attrs: dict[str, Any], place: Place | None = None) -> list[Value]:
    """The results of `op` on plan values, after checking kinds. Errors point at `place`, or at the user's line."""
    kinds = check_kinds(op, values, attrs, place)
    return list(node(op, values, attrs, kinds).results)


def check_kinds(
    op: Op, values: Sequence[Any], attrs: dict[str, Any], place: Place | None = None
) -> tuple[Kind, ...]:
    """Kinds of the results of `op` for operands of these kinds, or TrajspecError at the user's line."""
    for position, (operand, value) in enumerate(pairs(op, values)):
        if value is None:
            if operand.optional:
                continue
            raise fail(f"{op.name}: operand '{operand.name}' is missing", f"Write: {usage(op)}", place)
        if value.kind not in operand.kinds:
            raise _wrong_kind(op, position, values, place)
    if op.infer is None:
        return tuple(kind for _, kind in op.results)
    kinds = [value.kind for value in values if value is not None]
    try:
        return tuple(op.infer(kinds, attrs))
    except TrajspecError as error:
        message, _, remedy = str(error).partition("\n")
        raise fail(f"{op.infix or op.name}: {message}", remedy, place) from None


def pairs(op: Op, values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Each operand's declaration beside what was given for it."""
    positional = [operand for operand in op.operands if not operand.keyword]
    keyword = [operand for operand in op.operands if operand.keyword]
    front = list(values[: len(values) - len(keyword)]) if keyword else list(values)
    declared = list(positional)
    if positional and positional[-1].many:
        declared = positional[:-1] + [positional[-1]] * max(0, len(front) - len(positional) + 1)
    return list(zip(declared + keyword, front + list(values[len(front) :]), strict=True))


def _origin(value: Any) -> str:
    return value.origin if isinstance(value, Handle) else Traced(value).origin


def _wrong_kind(op: Op, position: int, values: Sequence[Any], place: Place | None) -> TrajspecError:
    operand, value = pairs(op, values)[position]
    message = (
        f"{op.infix or op.name}: operand '{operand.name}' must be {article(operand.kinds)}, "
        f"got {value.kind} from {_origin(value)}"
    )
    return fail(message, _remedy(op, operand.kinds, value, values), place)


def _remedy(op: Op, expected: tuple[Kind, ...], value: Any, values: Sequence[Any]) -> str:
    names = {kind.name for kind in expected}
    got = value.kind.name
    present = [item for item in values if item is not None]
    declared = [operand for operand, item in pairs(op, values) if item is not None]
    if len(present) <= 4 and not op.infix:
        for order in itertools.permutations(present):
            if all(item.kind in operand.kinds for item, operand in zip(order, declared, strict=True)):
                return f"The arguments look swapped. Write: {usage(op)}"
    if got == "logits" and names & {"probs", "conf", "scores"}:
        return "A raw logit is not a probability. Write: token, conf = ts.score(logits)"
    if got in ("tokens", "conf", "scores") and "selection" in names:
        compare = "token == 5" if got == "tokens" else f"{got} >= 0.9"
        return f"A selection says which positions; {got} say what is there. Compare first, as in: where=here & ({compare})"
    if got == "canvas" and "tokens" in names:
        return "Write ts.tokens(x) for the ids on the canvas."
    if got == "canvas" and "selection" in names:
        return "Write ts.masked(x) for its masked positions."
    if got == "conf" and names & {"scores", "count"}:
        return "A confidence is kept as a logarithm. Write ts.prob(conf) for plain numbers."
    if got == "selection" and "count" in names:
        return "Write ts.count(selection) for how many positions it holds."
    return f"Write: {usage(op)}"


def usage(op: Op) -> str:
    """How a call of `op` is written."""
    if op.infix:
        return f"a {op.infix} b" if len(op.operands) == 2 else f"{op.infix}a"
    parts = [("*" if o.many else "") + o.name for o in op.operands if not o.keyword]
    parts += [f"{o.name}=..." for o in op.operands if o.keyword and not o.optional]
    parts += [f"{a.name}=..." for a in op.attributes if a.required]
    return f"{op.name}({', '.join(parts)})"


def const(number: Any) -> Value | None:
    """A literal as a plan value, or None when it is not a finite 64-bit number."""
    if isinstance(number, np.generic):
        number = number.item()
    if type(number) is bool:
        return node(OPS["const"], (), {"value": number}, (FLAG,)).results[0]
    if type(number) is int and abs(number) < 2**63 or type(number) is float and np.isfinite(number):
        return node(OPS["const"], (), {"value": number}, (COUNT,)).results[0]
    return None


def _as_value(op: Op, given: Any) -> Value:
    if isinstance(given, Traced):
        return given.value
    if isinstance(given, (bool, int, float, np.generic)):
        made = const(given)
        if made is not None:
            return made
        raise fail(f"{op.infix or op.name}: the number {given} is not a finite 64-bit number")
    raise fail(
        f"{op.infix or op.name}: a {type(given).__name__} cannot be part of a plan",
        "Numbers may be written as they are; arrays are declared in the signature: name=ts.history(...) for what is "
        "remembered from step to step, name=ts.given(...) for an input of the task.",
    )


def as_eager(given: Any, kinds: tuple[Kind, ...]) -> Eager | None:
    """`given` as a concrete value of one of `kinds`; None when it fits none of them."""
    if isinstance(given, Eager):
        return given
    if isinstance(given, Canvas):
        return Eager(CANVAS, given)
    if isinstance(given, (bool, np.bool_)):
        return Eager(FLAG, np.asarray([given]), "a literal")
    if isinstance(given, (int, float, np.integer, np.floating)):
        return Eager(COUNT, np.asarray([given]), "a literal")
    if isinstance(given, np.ndarray):
        # A bare array is what the op expects; its type must be able to be that.
        for kind in kinds:
            boolean = kind in (KINDS["selection"], FLAG)
            whole = kind is KINDS["tokens"]
            if given.dtype == bool and boolean or whole and given.dtype.kind in "iu":
                return Eager(kind, given)
            if kind.axes in ("L", "LV", "1") and not boolean and not whole and given.dtype.kind in "fiu":
                return Eager(kind, given)
    return None


def _compute(op: Op, given: Sequence[Any], attrs: dict[str, Any]) -> list[Handle]:
    eager: list[Eager | None] = []
    for operand, value in pairs(op, given):
        if value is None:
            eager.append(None)
            continue
        concrete = as_eager(value, operand.kinds)
        if concrete is None:
            got = f"{type(value).__name__}" + (f" of {value.dtype}" if isinstance(value, np.ndarray) else "")
            raise fail(
                f"{op.infix or op.name}: operand '{operand.name}' must be {article(operand.kinds)}, got {got}",
                f"Write: {usage(op)}",
            )
        eager.append(concrete)
    kinds = check_kinds(op, eager, attrs)
    out = call_numpy(op, [None if value is None else value.data for value in eager], attrs, eager)
    outs = out if len(kinds) > 1 else (out,)
    return [Eager(kind, data, op.name) for kind, data in zip(kinds, outs, strict=True)]


def call_numpy(op: Op, data: Sequence[Any], attrs: dict[str, Any], typed: Sequence[Any]) -> Any:
    """The numpy meaning of `op` on arrays; `typed` carry the kinds, for ops that want them."""
    return call_meaning(op, op.numpy, data, attrs, typed)


def call_meaning(op: Op, meaning: Any, data: Sequence[Any], attrs: dict[str, Any], typed: Sequence[Any]) -> Any:
    """`meaning` of `op` on arrays or tensors: operands by position, keyword operands and attributes by name."""
    keyword = [operand.name for operand in op.operands if operand.keyword]
    front = data[: len(data) - len(keyword)] if keyword else data
    extra = dict(zip(keyword, data[len(front) :], strict=True))
    if op.wants_kinds:
        extra["kinds"] = [value.kind for value in typed if value is not None]
    return meaning(*front, **extra, **attrs)
