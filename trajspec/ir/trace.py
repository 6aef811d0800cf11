"""A policy: a Python function that becomes a plan, or runs on numpy arrays as it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from . import opset  # noqa: F401  (declares the ops)
from .canvas import Canvas
from .declare import Asked, Given, History, entry
from .errors import OptionError, Place, fail
from .explain import described
from .handles import Absent, Eager, Handle, Traced
from .kinds import CACHE, CANVAS, KINDS, LOGITS, Kind
from .nodes import Value, node, walk
from .op import OPS
from .plan import Plan, carried_value, input_value, unfinished, verify
from .watch import definition, run_watched


@dataclass(frozen=True, eq=False)
class Policy:
    """A decoding policy. `policy(threshold=0.7)` sets parameters; `policy(x, logits)` runs it on numpy arrays."""

    function: Callable[..., Any]
    name: str
    doc: str
    arguments: tuple[tuple[str, Any], ...]  # after (x, logits): name and History | Given | Asked
    settings: dict[str, Any] = field(default_factory=dict)
    predict_mask: bool = False
    window: Callable[..., Any] | None = None
    shows: Asked | None = None  # what the model is shown in place of the canvas

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Without values the policy with other parameters; with (canvas, logits, ...) what it returns for them.

        Arrays have the axes of `ir.kinds` with rows in front or without: logits float [..., L, V]. A history left out
        is at its start, the logits of a query may be left out when the policy does not read them.
        """
        chosen = self.bind(**settings)
        return chosen._run_on(args) if args else chosen

    def bind(self, **settings: Any) -> Policy:
        """The same policy with these parameters. Raises TypeError for a name it does not declare."""
        for name in settings:
            if name not in self.settings:
                has = ", ".join(self.settings) or "none"
                raise OptionError(f"policy {self.name} has no parameter {name!r}; it has: {has}")
        return replace(self, settings=self.settings | settings)

    def _run_on(self, args: tuple[Any, ...]) -> Any:
        names = ["x", "logits", *(name for name, _ in self.arguments)]
        if not 2 <= len(args) <= len(names):
            shown = ", ".join(names)
            raise fail(f"{self.name}: expected the values {shown}, got {len(args)}", "Parameters go by name.")
        x = _hand(args[0], CANVAS, "x", None)
        handles: list[Handle] = [x, _hand(args[1], LOGITS, "logits", x)]
        for number, (name, declared) in enumerate(self.arguments, start=2):
            if number < len(args):
                kind = LOGITS if isinstance(declared, Asked) else declared.kind
                handles.append(_hand(args[number], kind, name, x))
            elif isinstance(declared, History):
                handles.append(OPS["fill"](x, kind=declared.kind, value=declared.start))
            else:
                handles.append(Absent(name))
        returned, seen = run_watched(self.function, handles, self.settings)
        items = self._items(returned, seen.line or definition(self.function))
        for (name, kind), item in zip(self._state(), items, strict=True):
            if not isinstance(item, Handle) or item.kind is not kind:
                self._as_entry(name, kind, item, seen.line or definition(self.function))
        return returned

    def plan(self, view: str = "full") -> Plan:
        """The policy as a plan: the model call, the policy's ops and the loop around them.

        `view` says what the model call looks at: full, or a cached view (`ir.views.VIEWS`), which takes its block from
        the policy's `window`. Raises TrajspecError at the line of the policy that is wrong, and for a cached view of a
        policy without a window or with other queries than the canvas.
        """
        names = ["x"]
        prompt = input_value("prompt", CANVAS)
        starts: list[Value] = [prompt]
        inputs: list[Value] = [prompt]
        x = carried_value(0, CANVAS)
        told_of = self._told()
        queries: list[Value] = [x if self.shows is None else self._query(self.shows, x, told_of)]
        slots: list[tuple[str, Any]] = [("logits", 0)]
        for name, declared in self.arguments:
            if isinstance(declared, History):
                told = {"kind": declared.kind.name, "value": declared.start}
                start = node(OPS["fill"], (prompt,), told, (declared.kind,))
                slots.append(("value", carried_value(len(starts), declared.kind)))
                starts.append(start.results[0])
                names.append(name)
            elif isinstance(declared, Given):
                inputs.append(input_value(name, declared.kind))
                slots.append(("value", inputs[-1]))
            elif declared.model is not None:
                slots.append(("further", declared))
            else:
                slots.append(("logits", len(queries)))
                queries.append(self._query(declared, x, told_of))
        first = self._forward(queries)
        answers = self._answers(x, slots, first)
        step, locals_ = self._trace(x, answers)
        used = {*step, *(value for item in walk(step) for value in item.args)}
        kept = [q for number, q in enumerate(queries) if number == 0 or first[number] in used]
        read = {number for number, answer in enumerate(answers) if answer in used}
        if len(kept) < len(queries) or any(kind == "further" and n not in read for n, (kind, _) in enumerate(slots)):
            # A query nobody reads is not asked; trace again on the smaller calls.
            second = self._forward(kept)
            main = [second[kept.index(q)] if q in kept else first[n] for n, q in enumerate(queries)]
            step, locals_ = self._trace(x, self._answers(x, slots, main, read, answers))
        if view != "full":
            if kept != [x]:
                raise fail(f"{self.name}: view {view} takes one query, the canvas", "Use view=full.", self._place())
            attrs = self._cached(view, step)
            index = len(starts)
            starts.append(node(OPS["empty"], (prompt,), {}, (CACHE,)).results[0])
            names.append("cache")
            args = (x, carried_value(index, CACHE), self._block(x, slots, attrs["size"]))
            logits, cache = node(OPS["forward_cached"], args, attrs, (LOGITS, CACHE)).results
            step, locals_ = self._trace(x, self._answers(x, slots, [logits] * len(queries), read, answers))
            step = (*step, cache)
        plan = Plan(
            self.name, tuple(inputs), tuple(starts), unfinished(x), step, tuple(names), tuple(locals_), self.doc
        )  # fmt: skip
        return verify(plan)

    def _told(self) -> dict[str, Traced]:
        """The histories and task inputs by name: what queries may be made from, beside the canvas."""
        histories = [name for name, declared in self.arguments if isinstance(declared, History)]
        return {
            name: Traced(
                carried_value(1 + histories.index(name), declared.kind)
                if isinstance(declared, History)
                else input_value(name, declared.kind)
            )
            for name, declared in self.arguments
            if isinstance(declared, (History, Given))
        }

    def _forward(self, queries: list[Value], by: str | None = None) -> tuple[Value, ...]:
        told = {"predict_mask": self.predict_mask, "by": by}
        return node(OPS["forward"], queries, told, [LOGITS] * len(queries)).results

    def _answers(
        self, x: Value, slots: list[tuple[str, Any]], main: Sequence[Value], read: Any = None, before: Any = None
    ) -> list[Value]:
        """What stands for each argument after the canvas: `main` are the answers of the model that decodes.

        Further models are asked about these; of their queries only those whose slot is in `read` (None: all), the
        others have the value that they have in `before`.
        """
        names = ["logits", *(name for name, _ in self.arguments)]
        out = [main[slot] if kind == "logits" else slot for kind, slot in slots]
        known = {
            name: Traced(value)
            for name, value, (kind, _) in zip(names, out, slots, strict=True) if kind != "further"
        }  # fmt: skip
        further = [number for number, (kind, _) in enumerate(slots) if kind == "further"]
        asked = [number for number in further if read is None or number in read]
        for model in dict.fromkeys(slots[number][1].model for number in asked):
            mine = [number for number in asked if slots[number][1].model == model]
            made = self._forward([self._query(slots[number][1], x, known) for number in mine], model)
            for number, answer in zip(mine, made, strict=True):
                out[number] = answer
        for number in set(further) - set(asked):
            out[number] = before[number]
        return out

    def _cached(self, view: str, step: tuple[Value, ...]) -> dict[str, Any]:
        """The attributes of the cached forward: its block is as long as the largest the policy looks at."""
        sizes = _sizes(walk(step))
        if not sizes:
            raise fail(
                f"{self.name}: view {view} takes its block from the policy's window, and this policy has none",
                "Write here = ts.window(x, size=block_length), or decode with the full view.",
                self._place(),
            )
        size = max((size for size in sizes if size is not None), default=None)
        attrs = {"view": view, "size": size, "predict_mask": self.predict_mask}
        check = OPS["forward_cached"].check
        if check is not None:
            check(**attrs)
        return attrs

    def _block(self, x: Value, slots: list[tuple[str, Any]], size: int | None) -> Value:
        if self.window is None:
            return node(OPS["block"], (x,), {"size": size}, (KINDS["selection"],)).results[0]
        wanted = inspect.signature(self.window).parameters
        known: dict[str, Any] = dict(self.settings)
        for (name, _), (kind, slot) in zip(self.arguments, slots[1:], strict=True):
            if kind == "value":
                known[name] = Traced(slot)
        mine = {name: value for name, value in known.items() if name in wanted}
        out, _ = run_watched(self.window, [Traced(x)], mine)
        if not isinstance(out, Traced) or out.kind is not KINDS["selection"]:
            raise fail("a policy's window must return a selection", "", definition(self.window))
        return out.value

    def _place(self) -> Place:
        return definition(self.function)

    def _query(self, declared: Asked, x: Value, known: Mapping[str, Any] = {}) -> Value:
        wanted = inspect.signature(declared.function).parameters
        settings = {name: value for name, value in {**self.settings, **known}.items() if name in wanted}
        out, _ = run_watched(declared.function, [Traced(x)], settings)
        if not isinstance(out, Traced) or out.kind not in (KINDS["query"], CANVAS):
            got = described(out) if isinstance(out, Handle) else "nothing" if out is None else type(out).__name__
            raise fail(
                f"query {declared.function.__name__} must return a query, got {got}",
                "Write for example: return ts.hide(x, where=ts.known(x))",
                definition(declared.function),
            )
        return out.value

    def _trace(self, x: Value, answers: Sequence[Value]) -> tuple[tuple[Value, ...], list[tuple[Value, str]]]:
        handles = [Traced(x), *map(Traced, answers)]
        returned, seen = run_watched(self.function, handles, self.settings)
        values = self._returned(returned, seen.line or definition(self.function))
        after = values[0]
        if after.node.op.name != "advance":
            size = max((size for size in _sizes(walk(values)) if size is not None), default=None)
            after = node(OPS["advance"], (x, after, None), {"size": size}, (CANVAS,)).results[0]
        step = (after, *values[1:])
        inside = {value for item in walk(step) for value in item.results}
        named = [
            (handle.value, name)
            for name, handle in seen.locals.items()
            if isinstance(handle, Traced) and handle.value in inside and handle.value.node.op.name != "carried"
        ]
        return step, named

    def _state(self) -> list[tuple[str, Kind]]:
        """Name and kind of everything the policy returns."""
        return [("x", CANVAS), *((name, told.kind) for name, told in self.arguments if isinstance(told, History))]

    def _remedy(self) -> str:
        return f"A policy returns its next state. Write: return {', '.join(name for name, _ in self._state())}"

    def _items(self, returned: Any, place: Place) -> list[Any]:
        expected = ", ".join(name for name, _ in self._state())
        if returned is None:
            raise fail(f"{self.name}: the policy must return {expected}, got nothing", self._remedy(), place)
        items = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(items) != len(self._state()):
            got = f"{len(items)} value{'s' * (len(items) != 1)}"
            raise fail(f"{self.name}: the policy must return {expected}, got {got}", self._remedy(), place)
        return items

    def _as_entry(self, name: str, kind: Kind, item: Any, place: Place) -> int | float | bool:
        """A number returned for a history, which takes the history's own shape."""
        if kind is CANVAS or not isinstance(item, (bool, int, float, np.generic)):
            number = isinstance(item, (bool, int, float, np.generic))
            got = described(item) if isinstance(item, Handle) else f"{item!r}" if number else f"a {type(item).__name__}"
            raise fail(f"{self.name}: returned '{name}' must be {kind}, got {got}", self._remedy(), place)
        return entry(kind, item)

    def _returned(self, returned: Any, place: Place) -> list[Value]:
        values = []
        for (name, kind), item in zip(self._state(), self._items(returned, place), strict=True):
            if isinstance(item, Traced) and item.kind is kind:
                values.append(item.value)
            else:
                attrs = {"kind": kind.name, "value": self._as_entry(name, kind, item, place)}
                values.append(node(OPS["fill"], (carried_value(0, CANVAS),), attrs, (kind,)).results[0])
        return values

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.name}({inside})"


def _sizes(nodes: Any) -> list[int | None]:
    """The block lengths that a policy's ops look at."""
    return [n.attributes["size"] for n in nodes if n.op.name in ("window", "block", "block_of", "quota")]


def _hand(arg: Any, kind: Kind, name: str, x: Handle | None) -> Handle:
    """`arg` as the argument `name` of a policy, its shape checked against the canvas."""
    if isinstance(arg, Handle):
        if arg.kind is not kind:
            raise fail(f"argument '{name}' must be {kind}, got {described(arg)}", "Write: policy(x, logits)")
        return arg
    if kind is CANVAS:
        if not isinstance(arg, Canvas):
            remedy = "Write: ts.canvas(tokens, gen_length=..., vocab_size=..., mask_id=...)"
            raise fail(f"argument '{name}' must be a canvas, got {type(arg).__name__}", remedy)
        return Eager(CANVAS, arg)
    data = np.asarray(arg)
    types = {"selection": "b", "flag": "b", "tokens": "iu"}.get(kind.name, "fiu")
    if data.dtype.kind not in types:
        raise fail(f"argument '{name}' must be {kind}, got an array of {data.dtype}")
    if isinstance(x, Eager):
        tokens, allowed = x.data.tokens, x.data.allowed
        tail = {"1": (1,), "L": tokens.shape[-1:], "LV": (tokens.shape[-1], allowed.shape[-1])}[kind.axes]
        if data.shape != tokens.shape[:-1] + tail:
            expected = list(tokens.shape[:-1] + tail)
            raise fail(f"argument '{name}' must have the shape {expected}, got {list(data.shape)}", kind.sentence)
    return Eager(kind, data)
