"""Hypothesis strategies for plans: well-kinded, otherwise arbitrary."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from trajspec.ir import OPS, Plan, TrajspecError
from trajspec.ir.apply import build, check_attribute, const
from trajspec.ir.errors import NOWHERE
from trajspec.ir.kinds import CANVAS, KINDS, LOGITS
from trajspec.ir.nodes import Value
from trajspec.ir.op import Op
from trajspec.ir.plan import carried_value, input_value, unfinished

#: Names that collide with ops, keywords, arguments and each other.
NAMES = [
    "x", "prompt", "logits", "top", "block", "block_", "count", "any", "y", "y2", "y22", "token", "lambda", "None",
    "value", "a b", "", "_", "é", "ﬁ", "def", "step", "unfinished", "history", "kind", "tokens", "match",
]  # fmt: skip
NUMBERS = [0, 1, 2, 5, -1, -3, True, False, 0.0, -0.0, 1.0, 0.5, -2.5, 1e-300, 1e300, 0.1, 2**63 - 1, -(2**63) + 1]
SIZES = [None, 1, 2, 32]
ATTRIBUTES: dict[str, list[Any]] = {
    "size": SIZES, "steps": [None, 1, 7, 256], "temperature": [0.0, -0.0, 1.0, 0.3], "eps": [0.0, -0.0, 1e-3, 0.5],
    "floor": [1e-12, 1, 0.25], "p": [None, 1, 1.0, 0.9], "k": SIZES, "ids": [(), (1,), (1.0,), (True,), (3, -1)],
    "predict_mask": [False, True], "value": NUMBERS,
    "kind": ["count", "flag", "scores", "tokens", "selection", "probs", "logits"],
}  # fmt: skip
HIDDEN = ("const", "input", "carried")


class Pool:
    """Values that can be operands."""

    def __init__(self, random: Random, values: list[Value]) -> None:
        self.random = random
        self.values = values
        self.ops = [op for op in OPS.values() if not op.calls_model and op.name not in HIDDEN]
        self.ops += [op for op in self.ops if op.infix or op.name in ("choose", "top", "any", "count")] * 3

    def grow(self, count: int) -> None:
        """Apply `count` ops, fewer when nothing fits."""
        for _ in range(8 * count):
            count -= bool(self.apply(self.random.choice(self.ops)))
            if count <= 0:
                break

    def apply(self, op: Op) -> list[Value]:
        """The results of `op` on values of the pool, nothing when they cannot be."""
        args: list[Value | None] = []
        for operand in op.operands:
            if operand.optional and self.random.random() < 0.5:
                args.append(None)
                continue
            fit = [value for value in self.values if value.kind in operand.kinds]
            if self.random.random() < 0.2:
                number = const(self.random.choice(NUMBERS))
                fit = [number] if number is not None and number.kind in operand.kinds else fit
            if not fit:
                return []
            # Late values more often: deep expressions.
            args.append(fit[-1 - min(int(self.random.expovariate(0.5)), len(fit) - 1)])
        try:
            attrs = {
                a.name: check_attribute(op, a, self.random.choice(ATTRIBUTES.get(a.name, [a.default])), NOWHERE)
                for a in op.attributes
            }
            if op.check is not None:
                op.check(**attrs)
            made = build(op, args, attrs, NOWHERE)
        except TrajspecError:
            return []
        self.values += made
        return made


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A plan with histories, task inputs, queries and an arbitrary step; the seed chooses, the sizes shrink."""
    random = Random(draw(st.integers(0, 2**32)))
    prompt, x = input_value("prompt", CANVAS), carried_value(0, CANVAS)
    inputs, starts = [prompt], [prompt]
    early = Pool(random, [prompt])
    early.grow(draw(st.integers(0, 8)))
    usable = [value for value in early.values if value.kind.axes]
    if usable:
        starts += random.choices(usable, k=draw(st.integers(0, 3)))
    for name in random.sample(["answer", "position", "x", "y2"], draw(st.integers(0, 2))):
        inputs.append(input_value(name, random.choice([kind for kind in KINDS.values() if kind.axes])))
    carried = [carried_value(n, start.kind) for n, start in enumerate(starts)]
    pool = Pool(random, [*inputs[draw(st.integers(0, 1)) :], *carried])
    pool.grow(draw(st.integers(0, 6)))
    queries = [x]
    for name in random.sample(["hide", "substitute", "twins"], draw(st.integers(0, 2))):
        queries += pool.apply(OPS[name])
    attrs = {attribute.name: attribute.default for attribute in OPS["forward"].attributes}
    logits = build(OPS["forward"], queries, attrs | {"predict_mask": random.random() < 0.3}, NOWHERE)
    assert all(value.kind is LOGITS for value in logits)
    pool.values += logits
    for name in ("score", "softmax", "masked", "uniform"):
        pool.apply(OPS[name])
    pool.grow(draw(st.integers(0, 30)))
    step = []
    for start in starts:
        step.append(random.choice([value for value in pool.values if value.kind is start.kind][-4:]))
    if random.random() < 0.8:
        step[0] = next(iter(pool.apply(OPS["unmask"])), step[0])
    names = [(value, random.choice(NAMES)) for value in random.sample(pool.values, min(len(pool.values), 6))]
    docs = ["", "One sentence.", 'quote"', 'a """ b', "back\\slash", "(" * 99, "two\nlines", "\ud800"]
    return Plan(
        random.choice(["mine", "top", "é"]), tuple(inputs), tuple(starts), unfinished(x), tuple(step),
        tuple(random.choices(NAMES, k=len(starts))), tuple(names), random.choice(docs),
    )  # fmt: skip


@st.composite
def expressions(draw: st.DrawFn) -> Plan:
    """A plan whose carried score becomes one deep expression of operators, `choose` and reductions."""
    random = Random(draw(st.integers(0, 2**32)))
    x, scores = carried_value(0, CANVAS), carried_value(1, KINDS["scores"])
    start = build(OPS["position"], [input_value("prompt", CANVAS)], {}, NOWHERE)[0]
    pool = Pool(random, [x, scores])
    for name in ("masked", "step", "uniform"):
        pool.apply(OPS[name])
    pool.ops = [op for op in pool.ops if op.infix or op.name in ("choose", "any", "count", "top", "least", "mean")]
    for _ in range(draw(st.integers(1, 60))):
        made = pool.apply(random.choice(pool.ops))
        # What was just made is used next, by moving it to the end.
        pool.values += made
    last = next(value for value in reversed(pool.values) if value.kind is scores.kind)
    prompt = input_value("prompt", CANVAS)
    return Plan("mine", (prompt,), (prompt, start), unfinished(x), (x, last), ("x", "a"))
