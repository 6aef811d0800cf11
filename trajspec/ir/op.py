"""How an op is declared: one line of signature, one sentence, one numpy meaning."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import TrajspecError
from .kinds import KINDS, Kind

_ATTR_TYPES = ("int", "float", "str", "bool", "None", "tuple", "name", "number", "plan")
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
    whole: tuple[str, ...] = ()
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
    whole: tuple[str, ...] = (),
    replace: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op; the decorated function is its numpy meaning and its docstring its sentence.

    `signature` reads like Python, with kinds as annotations: `"top(by: scores | conf, k: count, *, where: selection)
    -> best: selection"`. A parameter annotated with a kind is a value; one annotated with int, float, str, bool, None,
    tuple or name is an attribute. Arrays come with the axes of their kind last (`ir.kinds`), rows in front.

    `infer(kinds, attrs)` gives the kinds of the results where the signature cannot; `check(**attrs)` raises
    TrajspecError on bad attributes; `torch` is the meaning on tensors, for ops declared outside the library (the
    library's own are in `runtime.meanings`); without it a plan with this op runs through numpy on the CPU; `clocked`
    says that it reads counters or noise, so that a step that changes no token may still lead on; `whole` names operands
    that count something, for which a written number must be an int; `replace` allows a second declaration under the
    same name.

    Raises TrajspecError for a signature that cannot be read, a name that is taken, a missing docstring, and a function
    that does not take what the signature says.
    """
    name, operands, attributes, results = _read_signature(signature)

    def declare(function: Callable[..., Any]) -> Op:
        if name in OPS and not replace:
            raise TrajspecError(f"op {name!r} is declared already; choose another name or pass replace=True")
        sentence = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        if not sentence and not hidden:
            raise TrajspecError(f"op {name!r} needs a docstring of one sentence that says what it computes")
        if not hidden:
            _check_function(function, signature, operands, attributes, wants_kinds, calls_model)
        made = Op(
            name, signature, operands, attributes, results, sentence, function, infer, infix, clocked, check, torch,
            wants_kinds, calls_model, hidden, whole, {attribute.name: attribute for attribute in attributes},
        )  # fmt: skip
        object.__setattr__(made, "__doc__", f"{signature}\n\n{inspect.cleandoc(function.__doc__ or '')}")
        OPS[name] = made
        return made

    return declare


def pairs(op: Op, values: Sequence[Any]) -> list[tuple[Operand, Any]]:
    """Each operand's declaration beside what was given for it."""
    positional = [operand for operand in op.operands if not operand.keyword]
    keyword = [operand for operand in op.operands if operand.keyword]
    count = len(values) - len(keyword)
    if positional and positional[-1].many:
        positional = positional[:-1] + [positional[-1]] * max(0, count - len(positional) + 1)
    return list(zip(positional + keyword, values, strict=True))


def _check_function(
    function: Callable[..., Any],
    signature: str,
    operands: tuple[Operand, ...],
    attributes: tuple[Attribute, ...],
    wants_kinds: bool,
    calls_model: bool,
) -> None:
    front = [operand.name for operand in operands if not operand.keyword]
    named = [operand.name for operand in operands if operand.keyword] + [attribute.name for attribute in attributes]
    named += ["kinds"] * wants_kinds
    try:
        inspect.signature(function).bind(*["model"] * calls_model, *front, **dict.fromkeys(named))
    except TypeError as error:
        raise TrajspecError(
            f"op {signature!r}: its function cannot be called like that: {error}; write: "
            f"def {function.__name__}({', '.join([*front, '*', *named] if named else front)})"
        ) from None


def _read_signature(text: str) -> tuple[str, tuple[Operand, ...], tuple[Attribute, ...], tuple[tuple[str, Kind], ...]]:
    def bad(why: str) -> TrajspecError:
        return TrajspecError(
            f"op signature {text!r}: {why}; write for example "
            "'top(by: scores | conf, k: count, *, where: selection) -> best: selection'"
        )

    left, arrow, right = text.partition("->")
    if not arrow:
        raise bad("it has no '-> name: kind'")
    try:
        body = ast.parse(f"def {left}: pass").body
    except (SyntaxError, ValueError):
        raise bad("the part before '->' does not read like a Python function") from None
    function = body[0]
    if len(body) != 1 or not isinstance(function, ast.FunctionDef):
        raise bad("it is more than one signature")
    if function.args.defaults or function.args.posonlyargs or function.args.kwarg:
        raise bad("it has a default before the *, a / or a **")
    seen: set[str] = set()
    operands: list[Operand] = []
    attributes: list[Attribute] = []

    def add(arg: ast.arg, default: ast.expr | None, keyword: bool, many: bool = False) -> None:
        names = [part.strip() for part in ast.unparse(arg.annotation).split("|")] if arg.annotation else []
        kinds = tuple(KINDS[name] for name in names if name in KINDS)
        if arg.arg in seen:
            raise bad(f"parameter {arg.arg!r} occurs twice")
        seen.add(arg.arg)
        if kinds and all(name in KINDS or name == "None" for name in names):
            if "None" in names and not keyword:
                raise bad(f"value {arg.arg!r} may be None only after a *, so that it goes by name")
            if default is not None and ast.unparse(default) != "None":
                raise bad(f"value {arg.arg!r} cannot have a default; write '| None' and no default")
            operands.append(Operand(arg.arg, kinds, keyword, "None" in names, many))
        elif names and all(name in _ATTR_TYPES for name in names):
            if not keyword:
                raise bad(f"setting {arg.arg!r} must stand after a *, so that it goes by name")
            attributes.append(Attribute(arg.arg, tuple(names), _default(arg.arg, names, default, bad)))
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


def _default(name: str, types: list[str], default: ast.expr | None, bad: Callable[[str], TrajspecError]) -> Any:
    if default is None:
        return _REQUIRED
    try:
        value = ast.literal_eval(default)
    except ValueError:
        raise bad(f"the default of setting {name!r} must be written out") from None
    kind = "None" if value is None else type(value).__name__
    if kind == "int" and "float" in types and "int" not in types:
        return float(value)
    allowed = {*types, *(("int", "float") if "number" in types else ()), *(("str",) if "name" in types else ())}
    if kind not in allowed:
        raise bad(f"the default of setting {name!r} must be {' or '.join(types)}, got {kind}")
    return value
