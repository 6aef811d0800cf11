"""Reading plan text: `ast` only, nothing is executed, size and depth are bounded, every error names its place."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from .apply import bind, build, check_attribute, const
from .errors import TrajspecError
from .kinds import CANVAS, KINDS
from .nodes import Value
from .op import OPS, Op
from .plan import Plan, carried_value, input_value, unfinished, verify
from .source import MAX_CHARS, MAX_DEPTH, Source, listed, what

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod"}
_BINARY |= {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor"}
_COMPARE = {ast.GtE: "ge", ast.Gt: "gt", ast.LtE: "le", ast.Lt: "lt", ast.Eq: "eq", ast.NotEq: "ne"}


def parse(text: str, file: str = "<plan>") -> Plan:
    """The plan that `text` says: its last function. Those before it are plans that it names (`of=name`).

    Raises TrajspecError with file, line and a caret for everything else.
    """
    source = Source(text, file)
    functions = source.functions()
    plans: dict[str, Plan] = {}
    named: set[str] = set()
    for function in functions:
        if function.name in plans:
            raise source.error(function, f"plan '{function.name[:60]}' is defined twice", "Give one another name.")
        reader = _Reader(source, plans)
        plans[function.name] = reader.plan(function)
        named |= reader.named
    for function in functions[:-1]:
        if function.name not in named:
            last = functions[-1].name[:60]
            message = (
                f"plan '{function.name[:60]}' is defined and not used: the text is the plan '{last}', the last one"
            )
            raise source.error(function, message, f"Name it (of={function.name[:60]}), or leave it out.")
    return plans[functions[-1].name]


class _Reader:
    """Reads one function; `above` are the plans defined before it, which it may name, and `named` those it does."""

    def __init__(self, source: Source, above: dict[str, Plan]) -> None:
        self.error, self.place, self.above = source.error, source.place, above
        self.names: dict[Value, str] = {}
        self.named: set[str] = set()

    def plan(self, function: ast.FunctionDef) -> Plan:
        env: dict[str, Value] = {}
        inputs = []
        for arg in function.args.args:
            kind = KINDS.get(arg.annotation.id) if isinstance(arg.annotation, ast.Name) else None
            if kind is None:
                raise self.error(arg, f"argument '{arg.arg}' needs a kind", f"Kinds are: {', '.join(KINDS)}")
            env[arg.arg] = input_value(arg.arg, kind)
            inputs.append(env[arg.arg])
        if len(env) != len(function.args.args) or not inputs:
            raise self.error(function, "a plan takes a canvas first and no argument twice: def name(prompt: canvas)")
        body = list(function.body)
        doc = ""
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            if not isinstance(body[0].value.value, str):
                raise self.error(body[0], "only a sentence in quotes may stand here by itself")
            doc, body = body[0].value.value, body[1:]
        loops = [index for index, statement in enumerate(body) if isinstance(statement, ast.While)]
        if len(loops) != 1 or loops[0] != len(body) - 2 or not isinstance(body[-1], ast.Return):
            at = body[loops[1]] if len(loops) > 1 else function
            raise self.error(
                at, "a plan is assignments, one 'while unfinished(x):' loop, then 'return x'", "Nothing else fits."
            )
        for statement in body[: loops[0]]:
            self._assign(statement, env)
        loop: ast.While = body[loops[0]]  # type: ignore[assignment]
        return self._loop(function, inputs, env, loop, body[-1], doc)

    def _loop(
        self,
        function: ast.FunctionDef,
        inputs: list[Value],
        env: dict[str, Value],
        loop: ast.While,
        last: ast.Return,
        doc: str,
    ) -> Plan:
        rebound = {name for statement in loop.body for name in self._targets(statement)}
        carried = [name for name in env if name in rebound]
        if loop.orelse or not carried:
            raise self.error(loop, "the loop must give a new value to something assigned before it, and has no else")
        starts = tuple(env[name] for name in carried)
        for value in starts:
            self.names.pop(value, None)  # a start has the name of what is carried; in the loop it may have another
        inner = dict(env)
        inner.update((name, carried_value(index, env[name].kind)) for index, name in enumerate(carried))
        test = self._value(loop.test, inner)
        if env[carried[0]].kind is not CANVAS:
            raise self.error(loop, f"the canvas comes first: assign it before '{carried[0]}'")
        if test is not unfinished(inner[carried[0]]):
            raise self.error(loop.test, f"the loop must go on while unfinished({carried[0]})")
        for statement in loop.body:
            self._assign(statement, inner)
        if not isinstance(last.value, ast.Name) or last.value.id != carried[0]:
            raise self.error(last, f"a plan returns its canvas: return {carried[0]}")
        for name in carried:
            if inner[name].kind is not env[name].kind:
                message = f"'{name}' starts as {env[name].kind} and becomes {inner[name].kind} in the loop"
                raise self.error(loop, message, "What a loop carries keeps its kind.")
        plan = Plan(
            function.name, tuple(inputs), starts, test, tuple(inner[name] for name in carried), tuple(carried),
            tuple(self.names.items()), doc,
        )  # fmt: skip
        try:
            return verify(plan)
        except TrajspecError as error:
            raise self.error(function, str(error)) from None

    def _targets(self, statement: ast.stmt) -> list[str]:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise self.error(statement, f"only assignments 'name = value' belong here, got {what(statement)}")
        target = statement.targets[0]
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        for part in parts:
            if not isinstance(part, ast.Name):
                raise self.error(part, "assign to plain names: token, conf = score(logits)")
        return [part.id for part in parts]  # type: ignore[attr-defined]

    def _assign(self, statement: ast.stmt, env: dict[str, Value]) -> None:
        names = self._targets(statement)
        right = statement.value  # type: ignore[attr-defined]
        if isinstance(right, ast.Tuple):
            values = [self._value(part, env) for part in right.elts]
        elif isinstance(right, ast.Call):
            values = self._call(right, env, 0)
        else:
            values = [self._value(right, env)]
        if len(values) != len(names):
            raise self.error(statement, f"{len(values)} values for {len(names)} names")
        if len(set(names)) != len(names):
            raise self.error(statement, "a name is assigned twice at once")
        for name, value in zip(names, values, strict=True):
            env[name] = value
            if not value.is_const and value.node.op.name not in ("input", "carried"):
                self.names.setdefault(value, name)  # the first name: `a = b` renames nothing

    def _value(self, item: ast.expr, env: dict[str, Value], depth: int = 0) -> Value:
        if depth > MAX_DEPTH:
            raise self.error(item, f"expressions are nested deeper than {MAX_DEPTH}")
        if isinstance(item, ast.Name):
            if item.id not in env:
                raise self.error(item, f"unknown name '{item.id[:60]}'", f"Known here: {listed(item.id, env)}")
            return env[item.id]
        if isinstance(item, ast.Constant) and type(item.value) in (int, float, bool):
            made = const(item.value)
            if made is None:
                raise self.error(item, "numbers must be finite and fit into 64 bits")
            return made
        if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub):
            if isinstance(item.operand, ast.Constant) and type(item.operand.value) in (int, float):
                made = const(-item.operand.value)  # type: ignore[operator]
                if made is None:
                    raise self.error(item, "numbers must be finite and fit into 64 bits")
                return made
            return self._apply(item, OPS["neg"], [self._value(item.operand, env, depth + 1)])
        if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Invert):
            return self._apply(item, OPS["invert"], [self._value(item.operand, env, depth + 1)])
        if isinstance(item, ast.BinOp) and type(item.op) in _BINARY:
            sides = [self._value(side, env, depth + 1) for side in (item.left, item.right)]
            return self._apply(item, OPS[_BINARY[type(item.op)]], sides)
        if isinstance(item, ast.Compare) and len(item.ops) == 1 and type(item.ops[0]) in _COMPARE:
            sides = [self._value(side, env, depth + 1) for side in (item.left, item.comparators[0])]
            return self._apply(item, OPS[_COMPARE[type(item.ops[0])]], sides)
        if isinstance(item, ast.Call):
            values = self._call(item, env, depth)
            if len(values) != 1:
                name = item.func.id  # type: ignore[attr-defined]
                raise self.error(item, f"{name} gives {len(values)} values; assign them to names")
            return values[0]
        remedy = "It has calls of ops, names, numbers, the operators + - * / // % & | ^ ~ and single comparisons."
        raise self.error(item, f"a plan has no {what(item)}", remedy)

    def _apply(self, item: ast.AST, op: Op, values: Sequence[Value]) -> Value:
        return build(op, values, {}, self.place(item))[0]

    def _call(self, item: ast.Call, env: dict[str, Value], depth: int) -> list[Value]:
        if depth > MAX_DEPTH:
            raise self.error(item, f"expressions are nested deeper than {MAX_DEPTH}")
        if not isinstance(item.func, ast.Name):
            raise self.error(item.func, "only ops can be called, by their names", "Write: token, conf = score(logits)")
        op, name = OPS.get(item.func.id), item.func.id
        if op is None or (op.infix or op.hidden):
            public = {known: None for known, made in OPS.items() if not made.infix and not made.hidden}
            raise self.error(item.func, f"unknown op '{name[:60]}'", f"Known ops: {listed(name, public)}")
        args = [self._value(arg, env, depth + 1) for arg in item.args]
        operands = [operand.name for operand in op.operands]
        kwargs: dict[str, Any] = {}
        for word in item.keywords:
            attribute = op.attribute(word.arg) if word.arg else None
            if word.arg in kwargs or word.arg is None:
                raise self.error(item, f"{op.name}: a keyword is given twice, or by **")
            if word.arg in operands:
                kwargs[word.arg] = self._value(word.value, env, depth + 1)
            elif attribute is not None:
                kwargs[word.arg] = self._attribute(op, attribute, word.value)
            else:
                names = [*operands, *(a.name for a in op.attributes)]
                raise self.error(word, f"{op.name}: unknown keyword '{word.arg}'", f"It takes: {', '.join(names)}")
        values, attrs = bind(op, args, kwargs, self.place(item))
        return build(op, values, attrs, self.place(item))

    def _attribute(self, op: Op, attribute: Any, item: ast.expr) -> Any:
        if attribute.types == ("plan",):
            return self._plan_named(op, attribute, item)
        if isinstance(item, ast.Name) and "name" in attribute.types:
            return item.id
        try:
            if sum(1 for _ in ast.walk(item)) > 4096:
                raise ValueError
            value = ast.literal_eval(item)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError):
            raise self.error(item, f"{op.name}: setting '{attribute.name}' must be written out") from None
        return check_attribute(op, attribute, value, self.place(item))

    def _plan_named(self, op: Op, attribute: Any, item: ast.expr) -> Plan:
        known = listed(item.id, self.above) if isinstance(item, ast.Name) else ", ".join(self.above)
        remedy = f"Defined above: {known}" if self.above else "None is defined above: write its def before this one."
        if not isinstance(item, ast.Name):
            message = f"{op.name}: setting '{attribute.name}' must be the name of a plan defined above"
            raise self.error(item, f"{message}, got {what(item)}", remedy)
        if item.id not in self.above:
            raise self.error(item, f"{op.name}: unknown plan '{item.id[:60]}'", remedy)
        self.named.add(item.id)
        return self.above[item.id]


__all__ = ["MAX_CHARS", "MAX_DEPTH", "parse"]
