"""The passes that make a plan cheaper, as one list, and what each of them did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..ir.errors import TrajspecError
from ..ir.nodes import walk
from ..ir.plan import Plan, verify
from .cleanup import drop_histories, fold_constants, share_queries
from .equations import FUSE, SIMPLIFY, SPECIALISE
from .rules import Rule, rewrite

#: Ops that look at every logit or probability of a position: each is a pass over the vocabulary.
_WHOLE = ("logits", "probs")


@dataclass(frozen=True)
class Change:
    """What a pass did to a plan: the rules it used, once a use, and the plan before and after it.

    `nodes` and `scans` count ops of a step, and those among them that go over the whole vocabulary: (before, after).
    """

    name: str
    sentence: str
    before: Plan
    after: Plan
    used: tuple[str, ...]

    @property
    def nodes(self) -> tuple[int, int]:
        return _size(self.before), _size(self.after)

    @property
    def scans(self) -> tuple[int, int]:
        return scans(self.before), scans(self.after)

    def __str__(self) -> str:
        if self.before == self.after:
            return f"{self.name}: nothing"
        (nodes, fewer), (passes, less) = self.nodes, self.scans
        by = f" by {', '.join(dict.fromkeys(self.used))}" if self.used else ""
        return f"{self.name}{by}: {nodes} -> {fewer} ops, {passes} -> {less} passes over the vocabulary"


@dataclass(frozen=True)
class Pass:
    """A named function from plan to plan."""

    name: str
    function: Callable[[Plan], Plan] | None
    rules: tuple[Rule, ...]
    sentence: str

    def __call__(self, plan: Plan, exact: bool = True) -> Change:
        """The plan after this pass, verified. With `exact` rules that hold up to ties only are left out."""
        used: list[str] = []
        if self.function is not None:
            after = self.function(plan)
        else:
            after, used = rewrite(plan, [one for one in self.rules if one.exact or not exact])
        return Change(self.name, self.sentence, plan, verify(after), tuple(used))


def _passes() -> tuple[Pass, ...]:
    def by_function(function: Callable[[Plan], Plan]) -> Pass:
        return Pass(function.__name__, function, (), (function.__doc__ or "").split("\n")[0])

    return (
        by_function(fold_constants),
        Pass("specialise", None, SPECIALISE, "Leave out what a setting makes needless: noise at temperature 0, cuts."),
        Pass("simplify", None, SIMPLIFY, "Pointwise algebra."),
        Pass("fuse_scores", None, FUSE, "Make one pass over the vocabulary of those that read the same logits."),
        by_function(share_queries),
        by_function(drop_histories),
    )


#: The passes in their order. Equal values are one value and what nothing reads is no part of a plan: common
#: subexpressions and dead code need no pass.
PASSES = _passes()


def optimise(plan: Plan, rules: Iterable[Rule] = (), exact: bool = True) -> tuple[Plan, tuple[Change, ...]]:
    """`plan` made cheaper, and what each pass did. It commits what `plan` commits, in the same steps.

    `rules` of your own are a pass before the others. `exact=False` also uses rules that hold up to ties: where two
    tokens or positions come as close as rounding, the other one may be chosen. Raises TrajspecError for a speculated
    plan, whose base is what is optimised, and for rules that go round in circles.
    """
    if plan.base is not None:
        raise TrajspecError(f"plan {plan.name} is speculated: optimise its base {plan.base.name}, then speculate that")
    own = tuple(rules)
    changes = []
    for one in (*((Pass("rules", None, own, "Rules of the caller."),) if own else ()), *PASSES):
        changes.append(one(plan, exact))
        plan = changes[-1].after
    return plan, tuple(changes)


def scans(plan: Plan) -> int:
    """How many ops of a step go over all logits or probabilities of a position."""
    return sum(
        any(arg is not None and arg.kind.name in _WHOLE for arg in item.args)
        for item in walk(plan.step)
        if not item.op.calls_model
    )


def _size(plan: Plan) -> int:
    return sum(item.op.name not in ("input", "carried", "const") for item in walk(plan.step))
