"""A plan as text: a subset of Python that `parse` reads back to the same plan."""

from __future__ import annotations

from collections.abc import Sequence

from .apply import is_name
from .nodes import Node, Value, exact_key, walk
from .op import OPS, pairs
from .plan import Plan

_INLINE = 60  # characters; keeps what is read back well within the depth that `parse` allows
# Python's own binding strength, comparisons weakest.
_LEVEL = {"==": 0, "!=": 0, "<": 0, "<=": 0, ">": 0, ">=": 0, "|": 1, "^": 2, "&": 3, "+": 5, "-": 5, "*": 6, "/": 6}
_LEVEL |= {"//": 6, "%": 6}
_UNARY, _ATOM = 7, 9
_NAMED = ("logits", "canvas", "probs", "query", "draft", "table")  # kinds of values that read best with a name


def to_text(plan: Plan) -> str:
    """The text of `plan`, after that of the plans it names; names are the policy's own where tracing saw them."""
    return "\n\n".join(_Printer(part).text() for part in (*plan.bases, plan))


def expression(value: Value) -> str:
    """A single value as text, inputs by their names: what a rule says. One of several results is `op(...).name`."""
    printer = object.__new__(_Printer)
    printer.names = {
        item.results[0]: item.attributes["name"] for item in walk([value]) if item.op.name == "input"
    }
    for item in walk([value]):
        if len(item.results) > 1:
            call = printer._call(item)[0]
            printer.names |= {r: f"{call}.{n}" for r, n in zip(item.results, _declared(item), strict=True)}
    return printer._expr(value)[0]


class _Printer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.names: dict[Value, str] = {}
        self.taken = set(OPS)
        self.wished = {value: name for value, name in reversed(plan.names) if not value.is_const}
        self.uses: dict[Value, int] = {}
        for item in walk((*plan.starts, plan.test, *plan.step)):
            for arg in item.args:
                if arg is not None:
                    self.uses[arg] = self.uses.get(arg, 0) + 1
        for value in (plan.test, *plan.step):
            self.uses[value] = self.uses.get(value, 0) + 1

    def text(self) -> str:
        plan = self.plan
        for value in plan.inputs:
            # An input's name belongs to the plan. Ops are called and names are not, so the two may coincide.
            self.names[value] = value.node.attributes["name"]
            self.taken.add(self.names[value])
        arguments = ", ".join(f"{self.names[value]}: {value.kind}" for value in plan.inputs)
        lines = [f"def {plan.name}({arguments}):"]
        if plan.doc:
            lines.append(f"    {_doc(plan.doc)}")
        carried = [self._fresh(name) for name in plan.carried_names]
        for item in walk(plan.starts):
            if item.op.name in ("input", "const", "carried"):
                continue
            if len(item.results) > 1 or item.results[0] not in plan.starts:
                lines += self._statement(item, "    ")
        lines += [f"    {name} = {self._expr(start)[0]}" for name, start in zip(carried, plan.starts, strict=True)]
        self.names.update(zip(plan.carried, carried, strict=True))
        lines.append(f"    while {self._expr(plan.test)[0]}:")
        body: list[str] = []
        last = _gives_all(plan.step)
        for item in walk(plan.step):
            if item.op.name in ("input", "const", "carried") or item.results[0] in self.names:
                continue
            if item is last:
                body += self._statement(item, "        ", carried)
            elif not self._stays_inline(item):
                body += self._statement(item, "        ")
        # What stays as it is is written as well (n = n): being assigned in the loop is what makes it carried.
        after = [self._expr(value)[0] for value in plan.step]
        if after != carried or not body:
            body.append(f"        {', '.join(carried)} = {', '.join(after)}")
        lines += body
        lines.append(f"    return {carried[0]}")
        return "\n".join(lines) + "\n"

    def _fresh(self, wish: str) -> str:
        """`wish`, or something like it that nobody has: `block_` for an op's name, `y2`, `y3` for a taken one."""
        name = wish if is_name(wish) else "value"
        if name in OPS:
            name += "_"
        candidate, number = name, 2
        while candidate in self.taken:
            candidate, number = f"{name}{number}", number + 1
        self.taken.add(candidate)
        return candidate

    def _stays_inline(self, item: Node) -> bool:
        """A value used once reads best where it is used, unless it got a name, is long, or is one of several."""
        if len(item.results) > 1:
            return False
        value = item.results[0]
        if value in self.plan.step and self.uses[value] == 1:
            return True
        if value in self.wished or (value.kind.name in _NAMED and not item.op.infix):
            return False
        return self.uses.get(value, 0) == 1 and len(self._expr(value)[0]) <= _INLINE

    def _statement(self, item: Node, indent: str, carried: Sequence[str] = ()) -> list[str]:
        """`item` as an assignment; its first results get the names `carried`."""
        call = self._call(item)[0]
        names = list(carried)
        for result, declared in list(zip(item.results, _declared(item), strict=True))[len(names) :]:
            # A name that nobody chose comes from the op's declaration.
            names.append(self._fresh(self.wished.get(result, declared)))
        self.names.update(zip(item.results, names, strict=True))
        return [f"{indent}{', '.join(names)} = {call}"]

    def _expr(self, value: Value) -> tuple[str, int]:
        if value in self.names:
            return self.names[value], _ATOM
        return self._call(value.node)

    def _call(self, item: Node) -> tuple[str, int]:
        name = item.op.name
        if name == "const":
            number = item.attributes["value"]
            return repr(number), _UNARY if repr(number).startswith("-") else _ATOM
        if item.op.infix and len(item.args) == 2:
            return self._infix(item)
        if item.op.infix:
            inner, level = self._expr(item.args[0])  # type: ignore[arg-type]
            return f"{item.op.infix}{f'({inner})' if level < _UNARY else inner}", _UNARY
        parts = []
        for operand, value in pairs(item.op, item.args):
            if value is not None:
                text = self._expr(value)[0]
                parts.append(f"{operand.name}={text}" if operand.keyword else text)
        for attribute in item.op.attributes:
            given = item.attributes[attribute.name]
            if isinstance(given, Plan):
                parts.append(f"{attribute.name}={given.name}")
            elif attribute.required or exact_key(given) != exact_key(attribute.default):
                bare = "name" in attribute.types and isinstance(given, str)
                parts.append(f"{attribute.name}={given if bare else repr(given)}")
        return f"{name}({', '.join(parts)})", _ATOM

    def _infix(self, item: Node) -> tuple[str, int]:
        level = _LEVEL[item.op.infix]
        left, left_level = self._expr(item.args[0])  # type: ignore[arg-type]
        right, right_level = self._expr(item.args[1])  # type: ignore[arg-type]
        # Comparisons do not chain, everything else groups to the left.
        if left_level < level or (level == 0 and left_level == 0):
            left = f"({left})"
        if right_level <= level:
            right = f"({right})"
        return f"{left} {item.op.infix} {right}", level


def _gives_all(step: Sequence[Value]) -> Node | None:
    """The node whose first results are the whole next state, when there is one: it is assigned as it stands."""
    item = step[0].node
    several = len(item.results) > 1 and item.op.name not in ("input", "carried")
    return item if several and item.results[: len(step)] == tuple(step) else None


def _declared(item: Node) -> list[str]:
    """The names that the op's declaration gives to the results; those of a base's state are the base's own."""
    names = [name for name, _ in item.op.results]
    bases = [value for _, value in item.attrs if isinstance(value, Plan)]
    if bases and len(item.results) > len(names):
        names = [*bases[0].carried_names, *names[1:]]
    return [names[min(index, len(names) - 1)] for index in range(len(item.results))]


def _doc(text: str) -> str:
    plain = text.isprintable() and '"""' not in text and "\\" not in text and not text.endswith('"')
    return f'"""{text}"""' if plain else repr(text)
