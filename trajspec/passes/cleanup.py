"""Passes that are not equations: constants computed, queries asked once, histories that nothing reads left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir.apply import call_numpy, const
from ..ir.errors import TrajspecError
from ..ir.kinds import COUNT, FLAG
from ..ir.nodes import Node, Value, node, walk
from ..ir.plan import Plan, carried_value, verify
from .rules import rebuilt, substituted


def fold_constants(plan: Plan) -> Plan:
    """Compute what is made of numbers alone.

       here & (conf >= 0.4 + 0.5)
    => here & (conf >= 0.9)
    """
    swap: dict[Value, Value] = {}
    for item in walk((*plan.starts, *plan.step)):
        results = rebuilt(item, swap)
        swap.update(zip(item.results, results, strict=True))
        number = _number(results[0].node)
        if number is not None:
            swap[item.results[0]] = number
    return substituted(plan, swap)


def _number(item: Node) -> Value | None:
    """The number that a node gives whatever the row, None when there is none."""
    if not item.args or len(item.results) != 1 or item.results[0].kind not in (COUNT, FLAG):
        return None
    if not all(arg is not None and arg.is_const for arg in item.args):
        return None
    data = [np.asarray([arg.node.attributes["value"]]) for arg in item.args if arg is not None]
    try:
        with np.errstate(all="ignore"):
            out = call_numpy(item.op, data, item.attributes, item.args)
    except (TrajspecError, ArithmeticError):
        return None
    return const(np.asarray(out).reshape(-1)[0]) if np.size(out) == 1 else None


def share_queries(plan: Plan) -> Plan:
    """Ask every question once, and none that nobody reads.

       logits, again, unread = forward(x, x, hide(x, where=known(x)))
    => logits = forward(x)
    """
    nodes = list(walk(plan.step))
    read = {value for item in nodes for value in item.args} | set(plan.step)
    swap: dict[Value, Value] = {}
    for item in nodes:
        results = rebuilt(item, swap)
        swap.update(zip(item.results, results, strict=True))
        if item.op.name != "forward":
            continue
        asked: dict[Value, list[Value]] = {}
        for query, old in zip(results[0].node.args, item.results, strict=True):
            assert query is not None
            if old in read:
                asked.setdefault(query, []).append(old)
        if asked and len(asked) < len(item.results) and _knows_the_canvas(asked):
            made = node(item.op, asked, item.attributes, [item.results[0].kind] * len(asked))
            for one, olds in zip(made.results, asked.values(), strict=True):
                swap.update(dict.fromkeys(olds, one))
    return substituted(plan, swap)


def _knows_the_canvas(asked: dict[Value, list[Value]]) -> bool:
    # Every query of the op set is made from a canvas; one of a user's own may not say which.
    return all(any(item.op.name == "carried" for item in walk([query])) for query in asked)


def drop_histories(plan: Plan) -> Plan:
    """Leave out what is carried from step to step and never has a say in the canvas.

       x, seen = unmask(x, token, where=best), softmax(logits)
    => x = unmask(x, token, where=best)
    """
    carried = plan.carried
    needed = {0}
    while True:
        used = {value for item in walk([plan.step[number] for number in needed]) for value in item.results}
        more = needed | {number for number, value in enumerate(carried) if value in used}
        if more == needed:
            break
        needed = more
    if len(needed) == len(carried):
        return plan
    kept = sorted(needed)
    swap: dict[Value, Value] = {
        carried[number]: carried_value(place, carried[number].kind) for place, number in enumerate(kept)
    }
    for item in walk([plan.test, *(plan.step[number] for number in kept)]):
        if item.results[0] not in swap:
            swap.update(zip(item.results, rebuilt(item, swap), strict=True))
    step = tuple(swap[plan.step[number]] for number in kept)
    inside = {value for item in walk(step) for value in item.results}
    names = tuple((swap.get(value, value), name) for value, name in plan.names)
    return verify(
        replace(
            plan,
            starts=tuple(plan.starts[number] for number in kept),
            test=swap[plan.test],
            step=step,
            carried_names=tuple(plan.carried_names[number] for number in kept),
            names=tuple((value, name) for value, name in dict(names).items() if value in inside),
        )
    )
