"""Values of a plan as a list of calls, made ready once: what may run eagerly, or be traced into one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ir.errors import TrajspecError
from ..ir.nodes import Node, Value, walk
from .meanings import MEANINGS
from .step import through_numpy


class Program:
    """What `values` depend on, from the values `given`, in torch.

    `values` may be given ones. Forwards are answered by the caller. An op without a torch meaning goes through numpy,
    which reads the device: such a program runs on the CPU and cannot be traced.
    """

    def __init__(self, values: Sequence[Value], given: Sequence[Value]) -> None:
        self.given = tuple(given)
        self.places: dict[Value, int] = {value: place for place, value in enumerate(given)}
        self.literals: list[Any] = []
        self.lines: list[tuple[Any, tuple[int | None, ...], tuple[str, ...], dict[str, Any], tuple[int, ...]]] = []
        needed = set(values)
        wanted: list[Node] = []
        for item in reversed(list(walk(values))):
            # What is given is not computed, nor what only it depends on.
            if any(value in needed and value not in self.places for value in item.results):
                wanted.insert(0, item)
                needed.update(arg for arg in item.args if arg is not None)
        for item in wanted:
            if item.op.name == "const":
                self.places[item.results[0]] = len(given) + len(self.literals)
                self.literals.append(item.attributes["value"])
        size = len(given) + len(self.literals)
        for item in wanted:
            if item.op.name == "const":
                continue
            out = tuple(range(size, size + len(item.results)))
            self.lines.append((*self._line(item), out))
            self.places.update(zip(item.results, out, strict=True))
            size = out[-1] + 1
        self.results = tuple(self.places[value] for value in values)
        self.size = size

    def _line(self, item: Node) -> tuple[Any, tuple[int | None, ...], tuple[str, ...], dict[str, Any]]:
        op = item.op
        operands = tuple(None if arg is None else self.places[arg] for arg in item.args)
        if op.calls_model:
            return item, operands, (), {}
        meaning = MEANINGS.get(op.name) or op.torch
        if meaning is None:
            return (lambda *data: through_numpy(item, data)), operands, (), {}
        extra = dict(item.attributes)
        if op.wants_kinds:
            extra["kinds"] = [value.kind for value in item.args if value is not None]
        return meaning, operands, tuple(operand.name for operand in op.operands if operand.keyword), extra

    def run(self, data: Sequence[Any], call: Callable[[Node, list[Any]], Sequence[Any]] | None = None) -> list[Any]:
        """Every value computed, by its place, from the `given` ones; `call(node, operands)` answers forwards."""
        slots = [*data, *self.literals]
        for function, operands, keyword, extra, out in self.lines:
            values = [None if place is None else slots[place] for place in operands]
            if isinstance(function, Node):
                if call is None:
                    raise TrajspecError(f"{function.op.name} asks the model, and nobody answers here")
                found = call(function, values)
            else:
                front = values[: len(values) - len(keyword)]
                named = dict(zip(keyword, values[len(front) :]))  # noqa: B905 (dynamo)
                found = function(*front, **named, **extra)
            slots.extend(found if len(out) > 1 or isinstance(function, Node) else (found,))
        return slots

    def __call__(
        self, data: Sequence[Any], call: Callable[[Node, list[Any]], Sequence[Any]] | None = None
    ) -> tuple[Any, ...]:
        """The wanted values, in their order."""
        slots = self.run(data, call)
        return tuple([slots[place] for place in self.results])

    def table(self, slots: Sequence[Any]) -> Mapping[Value, Any]:
        """What `run` gave, by value."""
        return {value: slots[place] for value, place in self.places.items()}


__all__ = ["Program"]
