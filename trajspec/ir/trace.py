"""The `@policy` decorator: a Python function that becomes a plan, or runs on numpy arrays as it is."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, overload

from . import opset  # noqa: F401  (declares the ops)
from .errors import Place, TrajspecError, fail
from .handles import Eager, Handle, Traced
from .kinds import CANVAS, FLAG, KINDS, LOGITS, Kind
from .nodes import Value, node, walk
from .op import OPS
from .plan import Plan, carried_value, input_value, verify


@dataclass(frozen=True)
class History:
    """What a policy remembers from step to step: declared as the default of an argument, taken and returned."""

    kind: Kind
    start: float


@dataclass(frozen=True)
class Given:
    """An input of the task, one value a row: declared as the default of an argument."""

    kind: Kind


@dataclass(frozen=True)
class Asked:
    """One more question to the model: its logits arrive as an argument."""

    function: Callable[..., Any]


def history(kind: str | Kind, start: float = 0.0) -> Any:
    """Declare a history: `def p(x, logits, seen=ts.history("scores", start=0)): ...; return x, seen`.

    `kind` is one of count, flag, scores, tokens, selection, probs, logits; every entry starts as `start`.
    """
    return History(_kind(kind), start)


def given(kind: str | Kind) -> Any:
    """Declare an input of the task: `def p(x, logits, answer=ts.given("selection"))`; decode takes it by name."""
    return Given(_kind(kind))


def query(function: Callable[..., Any]) -> Any:
    """Declare one more question to the model: `def p(x, logits, blind=ts.query(f))`, with f(x) giving the query.

    Keyword arguments of `function` that the policy has as well get the policy's settings.
    """
    return Asked(function)


def _kind(kind: str | Kind) -> Kind:
    found = KINDS.get(str(kind))
    if found is None or not found.axes:
        usual = ", ".join(name for name, known in KINDS.items() if known.axes)
        raise fail(f"'{kind}' is not a kind of value that can be declared", f"Expected one of: {usual}")
    return found


@dataclass(frozen=True, eq=False)
class Policy:
    """A decoding policy. `policy(threshold=0.7)` sets parameters; `policy(x, logits)` runs it on numpy arrays."""

    function: Callable[..., Any]
    name: str
    doc: str
    arguments: tuple[tuple[str, Any], ...]  # after (x, logits): name and History | Given | Asked
    settings: dict[str, Any] = field(default_factory=dict)
    predict_mask: bool = False

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if not args:
            return self.bind(**settings)
        chosen = self.bind(**settings).settings
        handles = [_hand(arg, kind) for arg, kind in zip(args, self._kinds(len(args)), strict=False)]
        returned, _ = _run(self.function, handles, chosen)
        return returned

    def bind(self, **settings: Any) -> Policy:
        """The same policy with these parameters. Raises TypeError for a name it does not declare."""
        for name in settings:
            if name not in self.settings:
                raise TypeError(f"policy {self.name} has no parameter {name!r}; it has: {', '.join(self.settings)}")
        return replace(self, settings=self.settings | settings)

    def _kinds(self, given: int) -> list[Kind]:
        kinds = [CANVAS, LOGITS]
        for _, declared in self.arguments:
            kinds.append(LOGITS if isinstance(declared, Asked) else declared.kind)
        if given > len(kinds):
            raise fail(f"policy {self.name} takes {len(kinds)} values, got {given}", "Parameters go by name.")
        return kinds

    def plan(self, view: str = "full") -> Plan:
        """The policy as a plan: the model call, the policy's ops and the loop around them.

        Raises TrajspecError at the line of the policy that is wrong.
        """
        names = ["x"]
        prompt = input_value("prompt", CANVAS)
        starts: list[Value] = [prompt]
        inputs: list[Value] = [prompt]
        x = carried_value(0, CANVAS)
        queries: list[Value] = [x]
        slots: list[tuple[str, Any]] = [("logits", 0)]
        for name, declared in self.arguments:
            if isinstance(declared, History):
                start = node(OPS["fill"], (prompt,), {"kind": declared.kind.name, "value": declared.start}, (declared.kind,))
                slots.append(("value", carried_value(len(starts), declared.kind)))
                starts.append(start.results[0])
                names.append(name)
            elif isinstance(declared, Given):
                inputs.append(input_value(name, declared.kind))
                slots.append(("value", inputs[-1]))
            else:
                slots.append(("logits", len(queries)))
                queries.append(self._query(declared, x))
        first = self._forward(queries, view)
        step, locals_ = self._trace(x, slots, first, starts)
        used = {value for item in walk(step) for value in item.args}
        kept = [q for number, q in enumerate(queries) if number == 0 or first[number] in used]
        if len(kept) < len(queries):
            # A query nobody reads is not asked; trace again on the smaller call.
            second = self._forward(kept, view)
            answers = [second[kept.index(q)] if q in kept else first[n] for n, q in enumerate(queries)]
            step, locals_ = self._trace(x, slots, answers, starts)
        plan = Plan(
            self.name, tuple(inputs), tuple(starts), self._test(x), step, tuple(names), tuple(locals_), self.doc
        )  # fmt: skip
        return verify(plan)

    def _test(self, x: Value) -> Value:
        return node(OPS["unfinished"], (x,), {}, (FLAG,)).results[0]

    def _forward(self, queries: list[Value], view: str) -> tuple[Value, ...]:
        attrs = {"view": view, "predict_mask": self.predict_mask}
        return node(OPS["forward"], queries, attrs, [LOGITS] * len(queries)).results

    def _query(self, declared: Asked, x: Value) -> Value:
        wanted = inspect.signature(declared.function).parameters
        settings = {name: value for name, value in self.settings.items() if name in wanted}
        out, _ = _run(declared.function, [Traced(x)], settings)
        if not isinstance(out, Traced) or out.kind not in (KINDS["query"], CANVAS):
            got = f"{out.kind} from {out.origin}" if isinstance(out, Handle) else type(out).__name__
            raise fail(
                f"query {declared.function.__name__} must return a query, got {got}",
                "Write for example: return ts.hide(x, where=ts.known(x))",
                _definition(declared.function),
            )
        return out.value

    def _trace(
        self, x: Value, slots: list[tuple[str, Any]], logits: Any, starts: list[Value]
    ) -> tuple[tuple[Value, ...], list[tuple[Value, str]]]:
        handles = [Traced(x)]
        handles += [Traced(logits[slot] if kind == "logits" else slot) for kind, slot in slots]
        returned, seen = _run(self.function, handles, self.settings)
        values = self._returned(returned, starts, seen.line)
        after = values[0]
        if after.node.op.name != "advance":
            size = _block(walk(values))
            after = node(OPS["advance"], (x, after, None), {"size": size}, (CANVAS,)).results[0]
        step = (after, *values[1:])
        inside = {value for item in walk(step) for value in item.results}
        named = [
            (handle.value, name)
            for name, handle in seen.locals.items()
            if isinstance(handle, Traced) and handle.value in inside and handle.value.node.op.name != "carried"
        ]
        return step, named

    def _returned(self, returned: Any, starts: list[Value], place: Place | None) -> list[Value]:
        histories = [name for name, declared in self.arguments if isinstance(declared, History)]
        expected = ", ".join(["x", *histories])
        remedy = f"A policy returns its next state. Write: return {expected}"
        if returned is None:
            raise fail(f"{self.name}: the policy must return {expected}, got nothing", remedy, place)
        items = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(items) != len(starts):
            raise fail(f"{self.name}: the policy must return {expected}, got {len(items)} values", remedy, place)
        values = []
        for item, start, name in zip(items, starts, ["x", *histories], strict=True):
            if isinstance(item, (bool, int, float)):
                # A history may be set to a number; it takes the history's own shape.
                whole = node(OPS["fill"], (carried_value(0, CANVAS),), {"kind": start.kind.name, "value": item}, (start.kind,))
                values.append(whole.results[0])
                continue
            if not isinstance(item, Traced) or item.kind is not start.kind:
                got = f"{item.kind} from {item.origin}" if isinstance(item, Handle) else type(item).__name__
                raise fail(f"{self.name}: returned '{name}' must be {start.kind}, got {got}", remedy, place)
            values.append(item.value)
        return values

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.name}({inside})"


def _block(nodes: Any) -> int | None:
    sizes = [n.attributes["size"] for n in nodes if n.op.name in ("window", "block", "quota")]
    return max((size for size in sizes if size is not None), default=None)


def _hand(arg: Any, kind: Kind) -> Handle:
    return arg if isinstance(arg, Handle) else Eager(kind, arg)


class _Seen:
    """What was seen when the policy's own frame returned: its variables and its line."""

    def __init__(self) -> None:
        self.locals: dict[str, Any] = {}
        self.line: Place | None = None


def _run(function: Callable[..., Any], args: list[Any], settings: dict[str, Any]) -> tuple[Any, _Seen]:
    seen = _Seen()
    code: CodeType = function.__code__
    before = sys.getprofile()

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" and frame.f_code is code:
            from .errors import linecache

            seen.locals = dict(frame.f_locals)
            file, line = frame.f_code.co_filename, frame.f_lineno
            seen.line = Place(file, line, linecache.getline(file, line).rstrip("\n"))

    sys.setprofile(watch)
    try:
        return function(*args, **settings), seen
    finally:
        sys.setprofile(before)


def _definition(function: Callable[..., Any]) -> Place:
    from .errors import linecache

    code = function.__code__
    return Place(code.co_filename, code.co_firstlineno, linecache.getline(code.co_filename, code.co_firstlineno).rstrip())


@overload
def policy(function: Callable[..., Any], /) -> Policy: ...
@overload
def policy(*, name: str | None = None, predict_mask: bool = False) -> Callable[[Callable[..., Any]], Policy]: ...
def policy(function: Callable[..., Any] | None = None, /, *, name: str | None = None, predict_mask: bool = False) -> Any:
    """Make a policy of a function `(x, logits, ..., *, parameters) -> x`.

    x is the canvas, logits the model's answer about it. Further positional arguments declare themselves by their
    default: `ts.query(f)`, `ts.history(kind, start)` (also returned, in order), `ts.given(kind)`. Keyword-only
    arguments are parameters and need defaults. `predict_mask=True` lets the model vote for the mask id, which only
    reference quirks want. Raises TrajspecError when the signature does not read like that.
    """
    if function is None:
        return lambda function: _declare(function, name, predict_mask)
    return _declare(function, name, predict_mask)


def _declare(function: Callable[..., Any], name: str | None, predict_mask: bool) -> Policy:
    shape = "def my_policy(x, logits, *, threshold=0.9): ..."
    place = _definition(function)
    settings: dict[str, Any] = {}
    positional: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise fail(f"parameter '{parameter.name}' needs a default", f"Write: {shape}", place)
            settings[parameter.name] = parameter.default
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional.append(parameter)
        else:
            raise fail(f"argument '{parameter.name}' cannot be starred", f"Write: {shape}", place)
    if len(positional) < 2:
        raise fail("a policy takes the canvas and the logits first", f"Write: {shape}", place)
    arguments = []
    for parameter in positional[2:]:
        if not isinstance(parameter.default, (History, Given, Asked)):
            raise fail(
                f"argument '{parameter.name}' must say what it is",
                "Write name=ts.query(f), name=ts.history(kind, start) or name=ts.given(kind); "
                "parameters come after a *.",
                place,
            )
        arguments.append((parameter.name, parameter.default))
    doc = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return Policy(function, name or function.__name__, doc, tuple(arguments), settings, predict_mask)


__all__ = ["Policy", "TrajspecError", "given", "history", "policy", "query"]
