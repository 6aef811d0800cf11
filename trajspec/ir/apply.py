"""Applying an op: bind the arguments, check their kinds, then add a node or compute on arrays."""

from __future__ import annotations

import difflib
import keyword
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from .canvas import Canvas
from .errors import OptionError, Place, TrajspecError, fail
from .explain import check_literals, described, usage, wrong_kind
from .handles import Absent, Eager, Handle, Traced
from .kinds import CANVAS, CONF, COUNT, FLAG, SCORES, SELECTION, TOKENS, Kind, article
from .nodes import Value, node
from .op import OPS, Attribute, Op, pairs

MAX_ENTRIES = 1000
MAX_NESTING = 3
Bound = tuple[list[Any], dict[str, Any]]


def apply(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What calling an op does. One result comes bare, several as a tuple.

    Raises TypeError for an unknown keyword, TrajspecError at the user's line for everything else.
    """
    given, attrs = bind(op, args, kwargs)
    for value in given:
        if isinstance(value, Absent):
            raise value.error()
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
    _refuse_unknown(op, kwargs)
    positional = [operand for operand in op.operands if not operand.keyword]
    many = bool(positional) and positional[-1].many
    if len(args) > len(positional) and not many:
        raise fail(
            f"{op.name}: takes {len(positional)} value{'s' * (len(positional) != 1)} by position, got {len(args)}",
            f"Settings go by name. Write: {usage(op, full=True)}",
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
        raise fail(f"{op.name}: {', '.join(map(repr, kwargs))} is given twice", f"Write: {usage(op)}", place)
    if op.check is not None:
        try:
            op.check(**attrs)
        except TrajspecError as error:
            raise fail(f"{op.name}: {error}", "", place) from None
    return given, attrs


def _refuse_unknown(op: Op, kwargs: dict[str, Any]) -> None:
    known = [operand.name for operand in op.operands] + [attribute.name for attribute in op.attributes]
    for name in kwargs:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}=? " if close else ""
            raise OptionError(f"{op.name}() has no keyword {name!r}; {hint}It takes: {', '.join(known)}")


def is_name(text: str) -> bool:
    """Whether `text` can stand for something in plan text and comes back the same."""
    return text.isidentifier() and not keyword.iskeyword(text) and unicodedata.normalize("NFKC", text) == text


def check_attribute(op: Op, attribute: Attribute, value: Any, place: Place | None = None) -> Any:
    """`value` as an attribute of `op`, or TrajspecError."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        value = _plain(value)
    if "name" in attribute.types and isinstance(value, Kind):
        value = value.name
    kind = type(value).__name__ if value is not None else "None"
    kind = "plan" if kind == "Plan" else kind
    allowed = set(attribute.types) | ({"int", "float"} if "number" in attribute.types else set())
    if "float" in allowed and "int" not in allowed and kind == "int":
        value, kind = float(value), "float"
    if "name" in allowed and "str" not in allowed and kind == "str":
        kind = "name" if is_name(value) else f"{value[:60]!r}, which is no name"
    if isinstance(value, tuple):
        flat = _flat(value)
        strange = [item for item in flat if type(item) not in (int, float, str, bool) or _endless(item)]
        kind = "a tuple of more than finite numbers and strings" if strange else kind
        kind = f"a tuple of {len(flat)} entries (at most {MAX_ENTRIES})" if len(flat) > MAX_ENTRIES else kind
    if isinstance(value, Handle):
        kind = described(value)
    elif _endless(value):
        kind = "a number that is not finite or beyond 64 bits"
    if kind not in allowed:
        expected = " or ".join(attribute.types)
        remedy = f"Write: {usage(op, full=True)}"
        if isinstance(value, Handle):
            remedy = "Settings are fixed when the plan is made; they cannot depend on the canvas."
        got = f"{value!r}" if kind in ("int", "float", "bool", "None") else kind
        raise fail(f"{op.name}: setting '{attribute.name}' must be {expected}, got {got}", remedy, place)
    return value


def _plain(value: Any, depth: int = MAX_NESTING) -> Any:
    """Lists as tuples and numpy numbers as Python's, down to a depth."""
    if isinstance(value, (list, tuple)) and depth:
        return tuple(_plain(item, depth - 1) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _flat(value: Any, depth: int = MAX_NESTING) -> list[Any]:
    """What a tuple and the tuples in it hold; one nested too deep stays, and is no number."""
    if not isinstance(value, tuple) or not depth:
        return [value]
    return [entry for item in value for entry in _flat(item, depth - 1)] if value else []


def _endless(value: Any) -> bool:
    if isinstance(value, float):
        return not np.isfinite(value)
    return isinstance(value, int) and abs(value) >= 2**63


def build(op: Op, values: Sequence[Value | None], attrs: dict[str, Any], place: Place | None = None) -> list[Value]:
    """The results of `op` on plan values, after checking kinds. Errors point at `place`, or at the user's line."""
    kinds = check_kinds(op, values, attrs, place)
    if op.infix == "-" and len(values) == 1 and values[0] is not None and values[0].is_const:
        # -(5) and -5 read the same, so they are the same.
        return [const(-values[0].node.attributes["value"])]  # type: ignore[list-item]
    return list(node(op, values, attrs, kinds).results)


def check_kinds(op: Op, values: Sequence[Any], attrs: dict[str, Any], place: Place | None = None) -> tuple[Kind, ...]:
    """Kinds of the results of `op` for operands of these kinds, or TrajspecError at the user's line."""
    for position, (operand, value) in enumerate(pairs(op, values)):
        if value is None:
            if operand.optional:
                continue
            raise fail(f"{op.name}: operand '{operand.name}' is missing", f"Write: {usage(op)}", place)
        if value.kind not in operand.kinds:
            raise wrong_kind(op, position, values, place)
    if op.infer is None:
        check_literals(op, values, place)
        return tuple(kind for _, kind in op.results)
    kinds = [value.kind for value in values if value is not None]
    try:
        inferred = tuple(op.infer(kinds, attrs))
    except TrajspecError as error:
        message, _, remedy = str(error).partition("\n")
        if message.startswith("expected"):
            message += f", got {' and '.join(described(value) for value in values if value is not None)}"
        raise fail(f"{op.infix or op.name}: {message}", remedy, place) from None
    check_literals(op, values, place)
    return inferred


def const(number: Any) -> Value | None:
    """A literal as a plan value, or None when it is not a finite 64-bit number."""
    if isinstance(number, np.generic):
        number = number.item()
    if type(number) is bool:
        return node(OPS["const"], (), {"value": number}, (FLAG,)).results[0]
    if type(number) in (int, float) and not _endless(number):
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
        f"{op.infix or op.name}: {_thing(given)} cannot be part of a plan",
        "Numbers may be written as they are; arrays are declared in the signature: name=ts.history(...) for what is "
        "remembered from step to step, name=ts.given(...) for an input of the task.",
    )


def _thing(given: Any) -> str:
    return f"an array of {given.dtype}" if isinstance(given, np.ndarray) else f"a {type(given).__name__}"


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
            suits = "b" if kind in (SELECTION, FLAG) else "iu" if kind is TOKENS else "fiu" if kind.axes else ""
            if given.dtype.kind in suits:
                return Eager(kind, given)
    return None


def _compute(op: Op, given: Sequence[Any], attrs: dict[str, Any]) -> list[Handle]:
    eager: list[Eager | None] = []
    beside = [value.kind for value in given if isinstance(value, Eager)]
    for operand, value in pairs(op, given):
        if value is None:
            eager.append(None)
            continue
        # A bare array beside a value is of its kind if it can be; confidences would have to be logarithms already.
        near = tuple(kind for kind in (*beside, SCORES, TOKENS, SELECTION) if kind is not CONF) if op.infix else ()
        concrete = as_eager(value, near or operand.kinds)
        if concrete is None:
            what = f"operand '{operand.name}' must be {article(operand.kinds)}, got {_thing(value)}"
            raise fail(f"{op.infix or op.name}: {what}", f"Write: {usage(op)}")
        eager.append(concrete)
    kinds = check_kinds(op, eager, attrs)
    out = call_numpy(op, [None if value is None else value.data for value in eager], attrs, eager)
    outs = out if len(kinds) > 1 else (out,)
    return [Eager(kind, data, op.infix or op.name) for kind, data in zip(kinds, outs, strict=True)]


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
