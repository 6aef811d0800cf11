"""A plan's step as straight torch code that a person can read and `torch.compile` takes whole."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.apply import is_name
from ..ir.errors import TrajspecError
from ..ir.kinds import KINDS
from ..ir.nodes import Node, Value, walk
from ..ir.op import OPS, pairs
from ..ir.plan import Plan
from .batch import keep
from .meanings import MEANINGS
from .step import cached_forward, like

_BOUND = ("input", "carried", "const")


@dataclass(frozen=True)
class Lowered:
    """The step of `plan` as a function.

    `function(ask, *inputs, *carried)` gives (after, answers, going, finished, due): the carried values after the step,
    the model's answers in the order of `asked`, and bool [R, 1], [R, 1], [R]. `ask(number, *operands)` answers the
    forward number `number` of the step. Nothing in it reads the device.
    """

    plan: Plan
    source: str
    function: Callable[..., Any]
    asked: tuple[Node, ...]


def lower(plan: Plan) -> Lowered:
    """The step of a base plan as torch code.

    Raises TrajspecError for a speculated plan, whose rounds are made of several steps of its base, and for an op that
    has no torch meaning.
    """
    writer = _Writer(plan)
    source = writer.source()
    space: dict[str, Any] = {"KINDS": KINDS, "keep": keep, "like": like, "differ": _differ, **writer.meanings}
    name = f"<step of {plan.name}>"
    # A traceback, or dynamo's report, shows the line.
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), space)
    return Lowered(plan, source, space["body"], tuple(writer.asked))


def step_source(plan: Plan) -> str:
    """The torch code of a base plan's step, as text. Raises TrajspecError as `lower` does."""
    return _Writer(plan).source()


def _differ(cache: Any, where: Any) -> Any:
    """bool [R]: rows whose block `where` is not the one that the cache was made for."""
    return (cache.where != where).any(-1)


class _Writer:
    def __init__(self, plan: Plan) -> None:
        if plan.base is not None:
            raise TrajspecError(
                f"plan {plan.name}: what is lowered is a base plan's step; give its base {plan.base.name}"
            )
        self.plan = plan
        self.meanings: dict[str, Any] = {}
        self.asked: list[Node] = []
        self.names: dict[Value, str] = {}
        self.wished = {value: name for value, name in reversed(plan.names) if not value.is_const}
        self.taken = {"ask", "keep", "like", "differ", "KINDS", "body", *OPS}
        self.lines: list[str] = []

    def source(self) -> str:
        plan = self.plan
        inputs = [self._name(value, value.node.attributes["name"]) for value in plan.inputs]
        carried = [self._name(value, name) for value, name in zip(plan.carried, plan.carried_names, strict=True)]
        self.lines = [f"def body(ask, {', '.join([*inputs, *carried])}):"]
        if plan.doc:
            self.lines.append(f"    {plan.doc!r}")
        going = self._value(plan.test)
        after = []
        for value, before in zip(plan.step, carried, strict=True):
            name = self._fresh(f"{before}_after")
            self.lines.append(f"    {name} = keep({going}[:, 0], like({self._value(value)}, {before}), {before})")
            after.append(name)
        answers = [self.names[result] for item in self.asked for result in item.results if result.kind.name == "logits"]
        later = dict(zip(plan.carried, after, strict=True))
        finished = self._again([plan.test], later)[0]
        due = "None"
        forward = cached_forward(plan)
        if forward is not None:
            _, cache, where = forward.args
            assert cache is not None and where is not None
            due = "differ({}, {})".format(*self._again([cache, where], later))
        listed = ", ".join(after)
        told = "".join(f"{name}, " for name in answers)
        self.lines.append(f"    return ({listed},), ({told}), {going}, ~{finished}, {due}")
        return "\n".join(self.lines) + "\n"

    def _again(self, values: Sequence[Value], later: Mapping[Value, str]) -> list[str]:
        """The names of `values` computed once more, from the state after the step."""
        before, self.names = self.names, {value: self.names[value] for value in self.plan.inputs} | dict(later)
        found = [self._value(value) for value in values]
        self.names = before
        return found

    def _value(self, value: Value) -> str:
        for item in walk([value]):
            if item.op.name not in _BOUND and item.results[0] not in self.names:
                self._statement(item)
        return self._operand(value)

    def _statement(self, item: Node) -> None:
        declared = [name for name, _ in item.op.results]
        declared += declared[-1:] * (len(item.results) - len(declared))
        wishes = [self.wished.get(result, name) for result, name in zip(item.results, declared, strict=True)]
        if item.op.calls_model:
            call = f"ask({', '.join([str(len(self.asked)), *map(self._operand, item.args)])})"
            self.asked.append(item)
        else:
            call = self._call(item)
        names = [self._name(result, wish) for result, wish in zip(item.results, wishes, strict=True)]
        # Every forward answers with a tuple.
        ends = "," if item.op.calls_model and len(names) == 1 else ""
        self.lines.append(f"    {', '.join(names)}{ends} = {call}")

    def _call(self, item: Node) -> str:
        op = item.op
        meaning = MEANINGS.get(op.name) or op.torch
        if meaning is None:
            raise TrajspecError(
                f"plan {self.plan.name}: op {op.name} has no torch meaning, so its step cannot be compiled; declare it "
                "with op(..., torch=f), or decode with compile=False"
            )
        name = op.name if is_name(op.name) else f"{op.name}_"
        self.meanings[name] = meaning
        parts = []
        for operand, value in pairs(op, item.args):
            text = "None" if value is None else self._operand(value)
            parts.append(f"{operand.name}={text}" if operand.keyword else text)
        if op.wants_kinds:
            kinds = [f"KINDS[{value.kind.name!r}]" for value in item.args if value is not None]
            parts.append(f"kinds=[{', '.join(kinds)}]")
        parts += [f"{key}={value!r}" for key, value in item.attrs]
        return f"{name}({', '.join(parts)})"

    def _operand(self, value: Value | None) -> str:
        if value is None:
            return "None"
        if value.is_const:
            return repr(value.node.attributes["value"])
        return self.names[value]

    def _name(self, value: Value, wish: str) -> str:
        self.names[value] = self._fresh(wish)
        return self.names[value]

    def _fresh(self, wish: str) -> str:
        name = wish if is_name(wish) else "value"
        name = f"{name}_" if name in OPS else name
        candidate, number = name, 2
        while candidate in self.taken:
            candidate, number = f"{name}{number}", number + 1
        self.taken.add(candidate)
        return candidate


__all__ = ["Lowered", "lower", "step_source"]
