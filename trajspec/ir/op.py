"""How an op is declared: one line of signature, one sentence, one numpy meaning."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import TrajspecError
from .kinds import KINDS, Kind

_ATTR_TYPES = ("int", "float", "str", "bool", "None", "tuple", "name", "number")
_REQUIRED = object()


@dataclass(frozen=True)
class Operand:
    """A value an op takes. `keyword`: given by name (`where=`); `optional`: may be None; `many`: any number."""

    name: str
    kinds: tuple[Kind, ...]
    keyword: bool = False
    optional: bool = False
    many: bool = False


@dataclass(frozen=True)
class Attribute:
    """A setting of an op, known when the plan is made."""

    name: str
    types: tuple[str, ...]
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED


@dataclass(frozen=True, eq=False)
class Op:
    """A declared op. Calling it in a policy adds a node to the plan, or computes at once on numpy arrays."""

    name: str
    signature: str
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]
    results: tuple[tuple[str, Kind], ...]
    sentence: str
    numpy: Callable[..., Any]
    infer: Callable[..., Sequence[Kind]] | None = None
    infix: str = ""
    clocked: bool = False
    check: Callable[..., None] | None = None
    torch: Callable[..., Any] | None = None
    wants_kinds: bool = False
    calls_model: bool = False
    hidden: bool = False
    _by_name: dict[str, Attribute] = field(default_factory=dict, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from .apply import apply

        return apply(self, args, kwargs)

    def attribute(self, name: str) -> Attribute | None:
        return self._by_name.get(name)

    def __repr__(self) -> str:
        return f"<op {self.signature}>"


OPS: dict[str, Op] = {}


def op(
    signature: str,
    *,
    infer: Callable[..., Sequence[Kind]] | None = None,
    infix: str = "",
    clocked: bool = False,
    check: Callable[..., None] | None = None,
    torch: Callable[..., Any] | None = None,
    wants_kinds: bool = False,
    calls_model: bool = False,
    hidden: bool = False,
    replace: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op; the decorated function is its numpy meaning and its docstring its sentence.

    `signature` reads like Python, with kinds as annotations: `"top(by: scores | conf, k: count, *, where: selection)
    -> best: selection"`. A parameter annotated with a kind is a value; one annotated with int, float, str, bool, None,
    tuple or name is an attribute. Arrays come with the axes of their kind last (`ir.kinds`), rows in front.

    `infer(kinds, attrs)` gives the kinds of the results where the signature cannot; `check(**attrs)` raises
    TrajspecError on bad attributes; `torch` is the meaning on tensors, for ops declared outside the library (the
    library's own are in `runtime.meanings`); without it a plan with this op runs through numpy on the CPU; `clocked`
    says that it reads counters or noise, so that a step that changes no token may still lead on; `replace` allows a
    second declaration under the same name.
    """
    name, operands, attributes, results = _read_signature(signature)

    def declare(function: Callable[..., Any]) -> Op:
        if name in OPS and not replace:
            raise TrajspecError(f"op {name!r} is declared already; choose another name or pass replace=True")
        sentence = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        if not sentence and not hidden:
            raise TrajspecError(f"op {name!r} needs a docstring of one sentence that says what it computes")
        made = Op(
            name, signature, operands, attributes, results, sentence, function, infer, infix, clocked, check, torch,
            wants_kinds, calls_model, hidden, {attribute.name: attribute for attribute in attributes},
        )  # fmt: skip
        OPS[name] = made
        return made

    return declare


def _read_signature(text: str) -> tuple[str, tuple[Operand, ...], tuple[Attribute, ...], tuple[tuple[str, Kind], ...]]:
    def bad(why: str) -> TrajspecError:
        return TrajspecError(
            f"op signature {text!r}: {why}; write for example "
            "'top(by: scores | conf, k: count, *, where: selection) -> best: selection'"
        )

    left, arrow, right = text.partition("->")
    try:
        function = ast.parse(f"def {left}: pass").body[0]
    except SyntaxError as error:
        raise bad("it does not parse") from error
    if not arrow or not isinstance(function, ast.FunctionDef):
        raise bad("it has no '-> name: kind'")
    operands: list[Operand] = []
    attributes: list[Attribute] = []

    def add(arg: ast.arg, default: ast.expr | None, keyword: bool, many: bool = False) -> None:
        names = [part.strip() for part in ast.unparse(arg.annotation).split("|")] if arg.annotation else []
        kinds = tuple(KINDS[name] for name in names if name in KINDS)
        if kinds and all(name in KINDS or name == "None" for name in names):
            operands.append(Operand(arg.arg, kinds, keyword, "None" in names, many))
        elif names and all(name in _ATTR_TYPES for name in names):
            value = _REQUIRED if default is None else ast.literal_eval(default)
            attributes.append(Attribute(arg.arg, tuple(names), value))
        else:
            raise bad(f"parameter {arg.arg!r} must be one of the kinds {', '.join(KINDS)} or {', '.join(_ATTR_TYPES)}")

    for arg in function.args.args:
        add(arg, None, keyword=False)
    if function.args.vararg:
        add(function.args.vararg, None, keyword=False, many=True)
    for arg, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        add(arg, default, keyword=True)
    results = []
    for part in right.split(","):
        result, _, kind = (piece.strip() for piece in part.partition(":"))
        if not result.isidentifier() or kind not in KINDS:
            raise bad(f"result {part.strip()!r} must be 'name: kind' with a kind of {', '.join(KINDS)}")
        results.append((result, KINDS[kind]))
    return function.name, tuple(operands), tuple(attributes), tuple(results)
