"""Rules: equations between two values of a plan, written with the ops themselves, and how they are applied."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ir.apply import build
from ..ir.errors import NOWHERE, TrajspecError
from ..ir.handles import Traced
from ..ir.kinds import KINDS
from ..ir.nodes import Node, Value, exact_key, node, walk
from ..ir.plan import Plan, input_value, verify
from ..ir.text import expression

#: How often a pass may go over a plan; rules that still find something then make work for each other.
ROUNDS = 20


@dataclass(frozen=True, eq=False)
class Rule:
    """`left = right`: wherever `left` stands in a plan, `right` may stand.

    `function` takes a value for each of `kinds`, by name, and the settings as keywords; it gives (left, right), or
    (left, right, beside), and then the rule is used only in plans that hold `beside` already. `exact`: both sides are
    the same numbers, bit for bit; otherwise they are equal up to rounding, and a decision may differ where two tokens
    or positions tie. `settings`: for each keyword of the function the values that it is tried with when the rule is
    checked; in a plan it stands for the values that occur there under that name.
    """

    name: str
    function: Callable[..., Any]
    kinds: Mapping[str, str]
    exact: bool
    settings: Mapping[str, tuple[Any, ...]]
    doc: str

    def sides(self, **settings: Any) -> tuple[Value, Value, Value | None]:
        """Both sides as values, and what has to stand beside (None: nothing), for these settings.

        Raises TrajspecError where the function does not give values, or two of different kinds.
        """
        handles = [Traced(variable(name, kind)) for name, kind in self.kinds.items()]
        out = self.function(*handles, **settings)
        if not isinstance(out, tuple) or len(out) not in (2, 3) or not all(isinstance(one, Traced) for one in out):
            raise TrajspecError(
                f"rule {self.name}: it must return (left, right) or (left, right, beside), all of them values"
            )
        left, right = out[0].value, out[1].value
        if left.kind is not right.kind:
            raise TrajspecError(
                f"rule {self.name}: left is {left.kind}, right is {right.kind}; an equation has one kind"
            )
        if left.node.op.name == "input":
            raise TrajspecError(f"rule {self.name}: its left side matches everything; write an op there")
        unbound = _variables(right) - _variables(left)
        if unbound:
            raise TrajspecError(f"rule {self.name}: {', '.join(sorted(unbound))} is on its right side only")
        return left, right, out[2].value if len(out) == 3 else None

    def instances(self, found: Mapping[str, Sequence[Any]]) -> Iterator[tuple[Value, Value, Value | None]]:
        """The sides for every choice of settings among those `found`, by name; choices that an op refuses are out."""
        for chosen in itertools.product(*(found.get(name, ()) for name in self.settings)):
            try:
                yield self.sides(**dict(zip(self.settings, chosen, strict=True)))
            except TrajspecError:
                if not self.settings:
                    raise

    def __str__(self) -> str:
        left, right, _ = self.sides(**{name: values[0] for name, values in self.settings.items()})
        return f"{expression(left)} = {expression(right)}  ({'exact' if self.exact else 'up to ties'})"


def rule(*, exact: bool, **kinds: str) -> Callable[[Callable[..., Any]], Rule]:
    """Make a rule of a function from values to (left, right): `@ts.rule(exact=True, l="logits")`.

    The keywords name the kind of each argument. Keyword-only arguments of the function are settings of ops, their
    defaults tuples of the values to check the rule with. Raises TrajspecError when the two do not go together.
    """

    def make(function: Callable[..., Any]) -> Rule:
        parameters = inspect.signature(function).parameters.values()
        values = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        settings = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
        wrong = [name for name in kinds if kinds[name] not in KINDS]
        if values != list(kinds) or wrong:
            raise TrajspecError(
                f"rule {function.__name__} takes the values {values} and is told the kinds {dict(kinds)}; give each "
                f"of its arguments, in order, one of: {', '.join(KINDS)}"
            )
        if not all(isinstance(given, tuple) and given for given in settings.values()):
            raise TrajspecError(f"rule {function.__name__}: a setting's default is a tuple of values to check it with")
        made = Rule(function.__name__, function, dict(kinds), exact, settings, inspect.getdoc(function) or "")
        for choice in itertools.product(*settings.values()):
            made.sides(**dict(zip(settings, choice, strict=True)))
        return made

    return make


def variable(name: str, kind: str) -> Value:
    """The value that stands for anything of its kind in a rule."""
    return input_value(name, KINDS[kind])


def rewrite(plan: Plan, rules: Iterable[Rule]) -> tuple[Plan, list[str]]:
    """`plan` with `rules` applied until none finds anything, and the names of those that did, once a use.

    Raises TrajspecError when they go round in circles.
    """
    rules = tuple(rules)
    used: list[str] = []
    for _ in range(ROUNDS):
        after, names = _once(plan, rules)
        if not names:
            return plan, used
        plan, used = after, used + names
    raise TrajspecError(
        f"plan {plan.name}: after {ROUNDS} rounds the rules {', '.join(sorted(set(used)))} still find something; one "
        "undoes what another does"
    )


def _once(plan: Plan, rules: Sequence[Rule]) -> tuple[Plan, list[str]]:
    nodes = list(walk((*plan.starts, *plan.step)))
    found: dict[str, dict[Any, Any]] = {}
    for item in nodes:
        for name, given in item.attrs:
            found.setdefault(name, {}).setdefault(exact_key(given), given)
    options = {name: tuple(values.values()) for name, values in found.items()}
    equations = [(one.name, *sides) for one in rules for sides in one.instances(options)]
    swap: dict[Value, Value] = {}
    used: list[str] = []
    held = {value for item in nodes for value in item.results}
    for item in nodes:
        results = rebuilt(item, swap)
        for old, new in zip(item.results, results, strict=True):
            for name, left, right, beside in equations:
                bound: dict[Value, Value] = {}
                if not match(left, new, bound) or (beside is not None and instantiate(beside, bound) not in held):
                    continue
                made = instantiate(right, bound)
                if made is not new:
                    used.append(name)
                    new = made
            swap[old] = new
    return substituted(plan, swap), used


def match(pattern: Value, value: Value, bound: dict[Value, Value]) -> bool:
    """Whether `value` is `pattern` with something put for its variables, which `bound` then holds."""
    mine, other = pattern.node, value.node
    if mine.op.name == "input":
        return pattern.kind is value.kind and bound.setdefault(pattern, value) is value
    if mine.op is not other.op or pattern.index != value.index or len(mine.args) != len(other.args):
        return False
    keys = [[(name, exact_key(given)) for name, given in one.attrs] for one in (mine, other)]
    if keys[0] != keys[1]:
        return False
    for part, arg in zip(mine.args, other.args, strict=True):
        if (part is None) != (arg is None) or (part is not None and arg is not None and not match(part, arg, bound)):
            return False
    return True


def instantiate(pattern: Value, bound: Mapping[Value, Value]) -> Value:
    """`pattern` with `bound` put for its variables. Raises TrajspecError where that gives values of other kinds."""
    if pattern in bound:
        return bound[pattern]
    args = [None if arg is None else instantiate(arg, bound) for arg in pattern.node.args]
    if pattern.node.op.name == "const":
        return pattern
    return build(pattern.node.op, args, pattern.node.attributes, NOWHERE)[pattern.index]


def rebuilt(item: Node, swap: Mapping[Value, Value]) -> tuple[Value, ...]:
    """The results of `item` on operands exchanged by `swap`."""
    args = [None if arg is None else swap.get(arg, arg) for arg in item.args]
    if all(new is old for new, old in zip(args, item.args, strict=True)):
        return item.results
    return node(item.op, args, item.attributes, [value.kind for value in item.results]).results


def substituted(plan: Plan, swap: Mapping[Value, Value]) -> Plan:
    """`plan` with its values exchanged; names stay with what they named."""
    names = tuple((swap.get(value, value), name) for value, name in plan.names)
    kept = {value for item in walk(swap.get(value, value) for value in plan.step) for value in item.results}
    return verify(
        replace(
            plan,
            starts=tuple(swap.get(value, value) for value in plan.starts),
            step=tuple(swap.get(value, value) for value in plan.step),
            names=tuple((value, name) for value, name in dict(names).items() if value in kept and not value.is_const),
        )
    )


def _variables(value: Value) -> set[str]:
    return {item.attributes["name"] for item in walk([value]) if item.op.name == "input"}
