"""What an error says about a wrong argument: what came, what was expected, and what to write."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .errors import Place, TrajspecError, fail
from .handles import Eager, Handle, Traced
from .kinds import CONF, COUNT, Kind, article
from .op import Op, pairs

_COMPARISONS = (">=", ">", "<=", "<", "==", "!=")
_CONVERSIONS = {
    ("canvas", "tokens"): "Write ts.tokens(x) for the ids on the canvas.",
    ("canvas", "selection"): "Write ts.masked(x) for its masked positions.",
    ("conf", "scores"): "A confidence is kept as a logarithm. Write ts.prob(conf) for plain numbers.",
    ("conf", "count"): "A count is one number a row. Write ts.mean(ts.prob(conf), where=...) for one.",
    ("scores", "count"): "A count is one number a row. Write ts.mean(scores, where=...) for one.",
    ("selection", "count"): "Write ts.count(selection) for how many positions it holds.",
    ("selection", "flag"): "Write ts.any(selection) for whether it holds a position.",
}


def usage(op: Op, full: bool = False) -> str:
    """How a call of `op` is written, with all its settings when `full`."""
    if op.infix:
        return f"a {op.infix} b" if len(op.operands) == 2 else f"{op.infix}a"
    parts = [("*" if o.many else "") + o.name for o in op.operands if not o.keyword]
    parts += [f"{o.name}=..." for o in op.operands if o.keyword and (full or not o.optional)]
    parts += [f"{a.name}=..." for a in op.attributes if full or a.required]
    return f"ts.{op.name}({', '.join(parts)})"


def wrong_kind(op: Op, position: int, values: Sequence[Any], place: Place | None) -> TrajspecError:
    """The error about operand number `position` of `op`."""
    operand, value = pairs(op, values)[position]
    message = f"{op.name}: operand '{operand.name}' must be {article(operand.kinds)}, got {described(value)}"
    return fail(message, _remedy(op, operand.kinds, value, values), place)


def described(value: Any) -> str:
    """A value as a message says it: its kind and the op it comes from, or the number."""
    number = literal(value)
    if number is not None:
        return f"the number {number!r}" if not isinstance(number, bool) else f"the flag {number}"
    handle = value if isinstance(value, Handle) else Traced(value)
    return f"{handle.kind} from {handle.origin}"


def literal(value: Any) -> int | float | bool | None:
    """The number that was written for an operand, None when it was computed."""
    if isinstance(value, Eager):
        return value.data.reshape(-1)[0].item() if value.source == "a literal" else None
    value = value.value if isinstance(value, Traced) else value
    return value.node.attributes["value"] if value is not None and value.is_const else None


def check_literals(op: Op, values: Sequence[Any], place: Place | None) -> None:
    """Refuse written numbers that cannot be meant: 2.5 positions, a confidence of 90."""
    for operand, value in pairs(op, values):
        number = literal(value) if operand.name in op.whole else None
        if isinstance(number, float):
            raise fail(
                f"{op.name}: '{operand.name}' counts positions, expected a whole number, got {number!r}",
                f"Write {operand.name} without a decimal point, or ts.floor(...) of what you compute.",
                place,
            )
    kinds = {value.kind for value in values if value is not None}
    if op.infix in _COMPARISONS and kinds == {CONF, COUNT}:
        for value in values:
            number = literal(value)
            if number is not None and not 0 <= number <= 1:
                raise fail(
                    f"{op.infix}: expected a number from 0 to 1 beside a confidence, got {number!r}",
                    "A confidence is a probability and lies between 0 and 1. Write for example: conf >= 0.9",
                    place,
                )


def _remedy(op: Op, expected: tuple[Kind, ...], value: Any, values: Sequence[Any]) -> str:
    names = [kind.name for kind in expected]
    got = value.kind.name
    if _swapped(op, values):
        return f"The arguments look swapped. Write: {usage(op)}"
    if got == "logits" and {"probs", "conf", "scores"} & set(names):
        return "A raw logit is not a probability. Write: token, conf = ts.score(logits)"
    if got in ("tokens", "conf", "scores") and "selection" in names:
        compare = "token == 5" if got == "tokens" else f"{got} >= 0.9"
        return f"A selection says which positions, {got} what is there. Compare first: where=here & ({compare})"
    for name in names:
        if (got, name) in _CONVERSIONS:
            return _CONVERSIONS[got, name]
    return f"Write: {usage(op)}"


def _swapped(op: Op, values: Sequence[Any]) -> bool:
    """Whether another order of the arguments fits, and each that would move does not fit where it is."""
    given = [(operand, item) for operand, item in pairs(op, values) if item is not None]
    if not 2 <= len(given) <= 4 or op.infix:
        return False
    fits = [[item.kind in operand.kinds for _, item in given] for operand, _ in given]
    return any(
        all(fits[place][item] and (place == item or not fits[item][item]) for place, item in enumerate(order))
        for order in itertools.permutations(range(len(given)))
    )
