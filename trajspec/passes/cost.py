"""What a plan costs, as formulas: calls between their bounds, rows a call, the advance of a chain, break-even.

Formulas are texts that sympy reads, so that a report can print them without sympy; `expression` makes them symbols to
put numbers in. sympy is imported when a formula is asked for, never before.

    N base calls that the base plan takes       d depth of the draft: states on its longest path
    M states of a packed call, root included    n refreshes among them (states that open a block)
    B positions of a block                      L positions of the canvas
    alpha chance that a drafted state is the next one     c2, delta: cost of a packed call of two, and of drafting
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..ir.ahead import forward_of
from ..ir.plan import Plan

#: What every name in a formula stands for.
SYMBOLS = {
    "N": "calls of the base plan",
    "d": "depth of the draft",
    "M": "states of a packed call, the root included",
    "n": "states of a packed call that open a block",
    "B": "positions of a block",
    "L": "positions of the canvas",
    "alpha": "chance that a drafted state is the next one, given that the one before was",
    "c2": "cost of a packed call of two states, in calls of one",
    "delta": "cost of drafting, in calls of one",
}


def cost(plan: Plan) -> dict[str, str]:
    """Formulas of `plan` by name: nfe_lower, nfe_upper, states_per_call, positions_per_call; a chain's advance too.

    What the plan says is put in: the depth of its draft, and the length of its blocks.
    """
    base = plan.base
    if base is None:
        return {"nfe_lower": "N", "nfe_upper": "N", "states_per_call": "1", "positions_per_call": _positions(plan, "1")}
    drafted = _drafted(plan)
    depth = "d" if drafted is None else str(drafted)
    states = "M" if drafted is None else str(drafted + 1)
    walks = [item for item in plan.nodes() if item.op.name == "walk"]
    rechecked = any(item.attributes["recheck"] is not None for item in walks)
    bounds = {
        "nfe_lower": _lower(depth, len(walks) - 1),
        # A root whose decision is too thin for a packed call is evaluated once more, alone.
        "nfe_upper": "2*N" if rechecked else "N",
        "states_per_call": states,
        "positions_per_call": _positions(base, states),
    }
    if any(item.op.name == "chain" for item in plan.nodes()):
        bounds["advance"] = chain_advance(depth)
    return bounds


def chain_advance(depth: int | str = "d") -> str:
    """Base steps a round takes with a chain of `depth` states when each is right with chance alpha: sum of alpha**j."""
    return f"Sum(alpha**j, (j, 0, {depth}))"


def break_even() -> str:
    """The alpha above which drafting one state pays: 1 + alpha > c2 + delta (theorem D4 at d = 1)."""
    return "c2 + delta - 1"


@lru_cache(maxsize=256)
def expression(formula: str) -> Any:
    """The sympy expression of a formula; all names in it are positive, N, d, M, n, B, L and j whole."""
    import sympy

    whole = {name: sympy.Symbol(name, integer=True, positive=True) for name in ("N", "d", "M", "B", "L")}
    whole |= {name: sympy.Symbol(name, integer=True, nonnegative=True) for name in ("n", "j")}
    real = {name: sympy.Symbol(name, positive=True) for name in ("alpha", "c2", "delta")}
    return sympy.sympify(formula, locals=whole | real)


def _lower(depth: str, singles: int) -> str:
    """A round takes depth + 1 base steps at most, and one more for each call that drafts nothing."""
    most = f"({depth} + {1 + singles})" if depth == "d" else str(int(depth) + 1 + singles)
    rounds = f"ceiling(N/{most})"
    return f"{singles + 1}*{rounds} - {singles}" if singles else rounds


def _drafted(plan: Plan) -> int | None:
    """How many states the drafter may give, when its settings say so: they count the root as well."""
    most: set[int] = set()
    for item in plan.nodes():
        if item.results[0].kind.name != "draft" or item.op.name == "no_draft":
            continue
        nodes, meaning = item.attributes.get("nodes"), item.op.numpy
        told = hasattr(meaning, "drafter") or meaning.__module__ == "trajspec.ir.opset.draft"
        if not told or not isinstance(nodes, int):
            return None
        most.add(max(nodes - 1, 0))
    return max(most) if most else None


def _positions(base: Plan, states: str) -> str:
    """Positions of a call: a state in the open block shows its block only, one that opens a block the whole canvas."""
    calls = [item for item in base.nodes() if item.op.calls_model]
    if not calls:
        return "0"
    # A further model is asked in calls of its own, about one canvas or part of it each.
    forward = calls[0] if base.models else forward_of(base)
    view = forward.attributes.get("view", "full")
    if view == "full":
        queries = len(forward.args)
        return "*".join(part for part in (states, str(queries), "L") if part != "1")
    size = base.block_length
    block = "B" if size is None else str(size)
    if view == "prefix":
        # The rest behind the block is computed as well: at most the canvas.
        return f"{states}*L" if states != "1" else "L"
    if view == "block_causal":
        return f"{states}*{block}" if states != "1" else block
    if states == "1":
        return f"(1 - n)*{block} + n*L"
    return f"({states} - n)*{block} + n*L"


__all__ = ["SYMBOLS", "break_even", "chain_advance", "cost", "expression"]
