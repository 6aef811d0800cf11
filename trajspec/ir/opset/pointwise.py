"""Pointwise arithmetic, comparisons and logic: what the Python operators mean on values of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import TrajspecError
from ..kinds import CONF, COUNT, FLAG, LOGITS, PROBS, SCORES, SELECTION, TOKENS, Kind
from ..op import Op, op

_COUNT_FIRST = {(COUNT, COUNT): COUNT, (COUNT, SCORES): SCORES, (COUNT, LOGITS): LOGITS, (COUNT, PROBS): PROBS}
_NUMBERS = {**_COUNT_FIRST, **{(b, a): out for (a, b), out in _COUNT_FIRST.items()}} | {
    (SCORES, SCORES): SCORES,
    (LOGITS, LOGITS): LOGITS,
    (PROBS, PROBS): PROBS,
}


@op("const(*, value: int | float | bool) -> number: count", hidden=True, infer=lambda kinds, attrs: _const(attrs))
def _literal(*, value: float) -> np.ndarray:
    """A number written in the policy."""
    return np.asarray([value])


def _const(attrs: dict[str, Any]) -> tuple[Kind]:
    return (FLAG,) if isinstance(attrs["value"], bool) else (COUNT,)


# What came is added where the values are known.
_COMPUTES = "expected counts, scores, logits or probs"
_COMPARES = "expected counts, scores or confidences"


def _arithmetic(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind]:
    pair = tuple(kinds)
    if len(pair) == 1:
        pair = (pair[0], COUNT)
    if pair in _NUMBERS:
        return (_NUMBERS[pair],)
    if CONF in pair:
        raise TrajspecError(f"{_COMPUTES}\nA confidence is kept as a logarithm. Write ts.prob(conf) for plain numbers.")
    if SELECTION in pair or FLAG in pair:
        raise TrajspecError(
            f"{_COMPUTES}\n"
            "Write ts.count(selection) for its size, or ts.choose(selection, 1, 0) for one number a position."
        )
    raise TrajspecError(
        f"{_COMPUTES}\nArithmetic takes counts, scores, logits and probs: two of one kind, or one of them with a count."
    )


def _comparison(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind]:
    pair = set(kinds)
    if pair == {COUNT}:
        return (FLAG,)
    if pair <= {SCORES, COUNT} or pair <= {CONF, COUNT}:
        return (SELECTION,)
    if LOGITS in pair:
        raise TrajspecError(f"{_COMPARES}\nA raw logit is not a probability. Write: token, conf = ts.score(logits)")
    if PROBS in pair:
        raise TrajspecError(
            f"{_COMPARES}\nThere is one probability a token. Write ts.max(probs) for the largest of a position."
        )
    if SELECTION in pair:
        raise TrajspecError(
            f"{_COMPARES}\n"
            "& and | bind tighter than comparisons in Python. Put them in parentheses: here & (conf >= 0.9)"
        )
    if CONF in pair:
        raise TrajspecError(
            f"{_COMPARES}\nA confidence is kept as a logarithm. Write ts.prob(conf) to compare it with plain scores."
        )
    raise TrajspecError(f"{_COMPARES}\nBoth sides must be numbers of one kind.")


def _equality(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind]:
    if set(kinds) <= {TOKENS, COUNT} and TOKENS in kinds:
        return (SELECTION,)
    return _comparison(kinds, attrs)


def _logic(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind]:
    if set(kinds) <= {SELECTION, FLAG}:
        return (SELECTION if SELECTION in kinds else FLAG,)
    wrong = next(kind for kind in kinds if kind not in (SELECTION, FLAG))
    raise TrajspecError(
        "expected selections or flags\n"
        + (
            "& and | bind tighter than comparisons in Python. Put them in parentheses: here & (conf >= 0.9)"
            if wrong in (CONF, SCORES, COUNT)
            else "Compare first, as in: where=here & (token == 5)"
        )
    )


def align(arrays: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    """Counts next to values a token get one more axis, so that they broadcast over the vocabulary."""
    wide = any(kind.axes == "LV" for kind in kinds)
    return [array[..., None] if wide and kind.axes == "1" else array for array, kind in zip(arrays, kinds, strict=True)]


def logs(arrays: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    """Numbers compared with a confidence become logarithms: that is how confidences are kept."""
    if CONF not in kinds:
        return list(arrays)
    return [array if kind is CONF else _log(array) for array, kind in zip(arrays, kinds, strict=True)]


def _log(number: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number > 0, np.log(np.where(number > 0, number, 1.0)), -np.inf)


_ANY = "canvas | query | logits | probs | conf | scores | tokens | selection | count | flag"


def _binary(name: str, infix: str, infer: Callable[..., tuple[Kind]], sentence: str, compute: Callable) -> Op:
    def meaning(a: Any, b: Any, *, kinds: Sequence[Kind]) -> Any:
        a, b = logs(align((a, b), kinds), kinds)
        with np.errstate(all="ignore"):
            return compute(a, b)

    meaning.__doc__ = sentence
    return op(f"{name}(a: {_ANY}, b: {_ANY}) -> out: scores", infer=infer, infix=infix, wants_kinds=True)(meaning)


ADD = _binary("add", "+", _arithmetic, "Sum.", np.add)
SUB = _binary("sub", "-", _arithmetic, "Difference.", np.subtract)
MUL = _binary("mul", "*", _arithmetic, "Product.", np.multiply)
DIV = _binary("div", "/", _arithmetic, "Quotient as a real number.", np.true_divide)
FLOORDIV = _binary("floordiv", "//", _arithmetic, "Quotient rounded down.", np.floor_divide)
MOD = _binary("mod", "%", _arithmetic, "Remainder with the divisor's sign.", np.mod)
GE = _binary("ge", ">=", _comparison, "Where a is at least b.", np.greater_equal)
GT = _binary("gt", ">", _comparison, "Where a is more than b.", np.greater)
LE = _binary("le", "<=", _comparison, "Where a is at most b.", np.less_equal)
LT = _binary("lt", "<", _comparison, "Where a is less than b.", np.less)
EQ = _binary("eq", "==", _equality, "Where a equals b.", np.equal)
NE = _binary("ne", "!=", _equality, "Where a differs from b.", np.not_equal)
AND = _binary("and_", "&", _logic, "Both.", np.logical_and)
OR = _binary("or_", "|", _logic, "At least one.", np.logical_or)
XOR = _binary("xor", "^", _logic, "Exactly one.", np.logical_xor)


@op(f"neg(a: {_ANY}) -> out: scores", infer=_arithmetic, infix="-", hidden=True)
def neg(a: np.ndarray) -> np.ndarray:
    """The opposite number."""
    return np.negative(a)


@op(f"invert(a: {_ANY}) -> out: selection", infer=_logic, infix="~", hidden=True)
def invert(a: np.ndarray) -> np.ndarray:
    """The positions not in the selection, or the opposite flag."""
    return np.logical_not(a)


def _pair(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind]:
    return (_NUMBERS.get((kinds[0], kinds[1]), SCORES),)


@op("least(a: count | scores, b: count | scores) -> out: scores", infer=_pair)
def least(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The smaller of two numbers, position by position."""
    return np.minimum(a, b)


@op("most(a: count | scores, b: count | scores) -> out: scores", infer=_pair)
def most(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The larger of two numbers, position by position."""
    return np.maximum(a, b)


@op("floor(a: count | scores) -> out: scores", infer=lambda kinds, attrs: tuple(kinds))
def floor(a: np.ndarray) -> np.ndarray:
    """The number rounded down to a whole one."""
    return np.floor(a)


@op("exp(a: count | scores) -> out: scores", infer=lambda kinds, attrs: tuple(kinds))
def exp(a: np.ndarray) -> np.ndarray:
    """e to the power of the number."""
    with np.errstate(over="ignore"):
        return np.exp(np.asarray(a, np.float64))


@op("prob(conf: conf) -> p: scores")
def prob(conf: np.ndarray) -> np.ndarray:
    """The confidence as a plain number from 0 to 1."""
    return np.exp(conf)


def _choose(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind]:
    when, a, b = kinds
    if a is b and not (when is SELECTION and a in (COUNT, FLAG)):
        return (a,)
    if (when is SELECTION and {a, b} <= {COUNT, SCORES}) or {a, b} == {COUNT, SCORES}:
        return (SCORES,)
    if {a, b} == {COUNT, TOKENS}:
        return (TOKENS,)
    if {a, b} <= {FLAG, SELECTION}:
        return (SELECTION,)
    raise TrajspecError("expected a selection or flag and two values of one kind\nWrite: ts.choose(when, a, b)")


@op(
    "choose(when: selection | flag, a: conf | scores | tokens | selection | count | flag | logits | probs, "
    "b: conf | scores | tokens | selection | count | flag | logits | probs) -> out: scores",
    infer=_choose,
    wants_kinds=True,
)
def choose(when: np.ndarray, a: np.ndarray, b: np.ndarray, *, kinds: Sequence[Kind]) -> np.ndarray:
    """`a` where `when` holds, else `b`; a flag chooses for the whole row."""
    wide = any(kind.axes == "LV" for kind in kinds)
    return np.where(when[..., None] if wide else when, *align((a, b), kinds[1:]))
