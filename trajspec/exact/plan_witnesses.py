"""The witnesses of deterministic speculation as plans: the flaws C1 to C9, each one setting of `speculate`.

Every one is a base policy, the setting that drops a condition, and a case: a small model, a canvas and drafted states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..ir import OPS, history, policy
from ..ir.errors import TrajspecError
from ..ir.plan import Plan
from ..ir.query import Denoiser
from ..ir.trace import Policy
from ..passes.speculate import speculate
from .case import Drafts
from .laws import Weights
from .models import Table, read_key, unletters
from .plan_check import PlanCase, check_plan, compare_plans
from .plans import CHOSEN, PackedNoise
from .search import Counterexample, Log, Verdict
from .witnesses import BUDGET, PASSED, Witness, register

score, top, unmask, window = (OPS[name] for name in ("score", "top", "unmask", "window"))

#: How far the packed calls of witness C4 are off.
EPS = 1e-6


@policy
def surest(x: Any, logits: Any, *, block_length: Any = None) -> Any:
    """Commit the surest token of the block."""
    token, conf = score(logits)
    return unmask(x, token, where=top(conf, 1, where=window(x, size=block_length)))


COUNT = history("count", start=1)


@policy
def adaptive(x: Any, logits: Any, k: Any = COUNT, *, block_length: Any = None) -> Any:
    """Commit the surest token, then the two surest, and so on."""
    token, conf = score(logits)
    return unmask(x, token, where=top(conf, k, where=window(x, size=block_length))), k + 1


@policy
def sure(x: Any, logits: Any, *, block_length: Any = None, threshold: Any = 0.6) -> Any:
    """Commit what is surer than the threshold, and always the surest."""
    token, conf = score(logits)
    here = window(x, size=block_length)
    return unmask(x, token, where=here & (conf >= threshold) | top(conf, 1, where=here))


@dataclass(frozen=True)
class PlanWitness:
    """What a witness about plans is made of: `flawed` leaves the path of `base` on `case`, `sound` never does."""

    base: Plan
    flawed: Plan
    sound: Plan
    case: PlanCase
    wrap: Callable[[Denoiser], Denoiser] | None = None


PLANS: dict[str, PlanWitness] = {}


def plan_case(
    canvas: str, rows: Mapping[str, Weights | tuple[Weights, ...]], *drafted: str, stop: str = ""
) -> PlanCase:
    """A case written down: `plan_case("__", {"__": ((2, 1), (1, 3)), "_a@0": (1, 2)}, "a_")`.

    A key without a position stands for the rows of all positions; weights are of the tokens a, b, ...
    """
    table: dict[Any, Any] = {}
    for key, row in rows.items():
        several = {f"{key}@{place}": one for place, one in enumerate(row)} if "@" not in key else {key: row}
        table.update((read_key(name, len(canvas), 2), one) for name, one in several.items())
    model = Table(tuple((key, row) for key, row in table.items() if len(set(row)) > 1))
    stops = tuple(unletters(stop))
    drafts = Drafts(tuple((unletters(state),) for state in drafted))
    return PlanCase(unletters(canvas), 2, model, drafts=drafts, stop=stops, ahead=True)


def plan_witness(
    name: str, condition: str, sentence: str, *, base: Policy, case: PlanCase, view: str = "full",
    wrap: Callable[[Denoiser], Denoiser] | None = None, fixed: dict[str, Any] | None = None, **flaw: Any,
) -> Witness:  # fmt: skip
    """Register the witness of a flaw of speculated plans, `flaw` being its settings."""
    plan = base.plan(view)
    made = PLANS[name] = PlanWitness(
        plan, speculate(plan, CHOSEN, **flaw), speculate(plan, CHOSEN, **(fixed or {})), case, wrap
    )

    def show() -> str:
        difference = compare_plans(made.flawed, made.base, wrap=wrap)(case, Log())
        if difference is None:
            raise TrajspecError(f"witness {name} does not differ from its base any more; its case has to be found anew")
        return str(Counterexample(case, difference))

    def search(checked: Plan, examples: int, seed: int) -> Verdict:
        return check_plan(checked, made.base, examples=examples, seed=seed, wrap=wrap)

    return register(
        Witness(
            name, condition, sentence, show, lambda seed: search(made.flawed, BUDGET, seed),
            lambda seed: search(made.sound, PASSED, seed),
        )
    )  # fmt: skip


plan_witness(
    "C1",
    "the policy is applied to the true state, with its own memory",
    "The step is applied to the drafted state, whose memory is that of the round's first state.",
    base=adaptive,
    case=plan_case("___", {"___": ((1, 2), (1, 3), (1, 2)), "ab_@2": (1, 2)}, "_b_"),
    head="node",
)
plan_witness(
    "C1c",
    "the key holds everything that is copied from the drafted state",
    "A cached view does not look behind the block, where the drafted state holds a token that is taken over.",
    base=surest.bind(block_length=2),
    view="dual",
    case=plan_case("___", {}, "a_a"),
    adopt=True,
)
plan_witness(
    "C2",
    "states in one call do not see each other",
    "The true state sees what the first drafted one has written.",
    base=surest,
    case=plan_case("__", {"__@0": (1, 2)}, "a_"),
    isolate=False,
)
plan_witness(
    "C3",
    "a state is evaluated under the cache of its own block",
    "A drafted state of the next block is evaluated under the cache of this one, without the refresh between them.",
    base=surest.bind(block_length=1),
    view="dual",
    case=plan_case("__", {"__@0": (1, 2), "b_@1": (1, 2)}, "b_"),
    lookahead="cheap",
)
plan_witness(
    "C4",
    "a packed call gives the logits of a call of its own, or thin decisions are made again",
    "Packed logits are off by a little, and a tie goes the other way.",
    base=surest,
    case=plan_case("__", {}, "a_", "_a"),
    wrap=partial(PackedNoise, eps=EPS),
    fixed={"recheck": EPS},
)
plan_witness(
    "C5",
    "ties are broken in one way everywhere",
    "In packed calls ties go to the last position and token, in single calls to the first.",
    base=surest,
    case=plan_case("__", {}, "a_"),
    ties="high",
)
plan_witness(
    "C6",
    "whether the row has ended is asked at every state",
    "The walk goes on behind the stop token, for the round is not over.",
    base=surest,
    case=plan_case("__", {"__@0": (1, 2)}, "b_", stop="b"),
    halt="end",
    ended=True,
)
plan_witness(
    "C7",
    "a drafted state writes nothing that the true one reads",
    "Evaluating a drafted state counts on the memory of the policy.",
    base=adaptive,
    case=plan_case("__", {"__": ((3, 4), (2, 1))}, "a_"),
    leave=True,
)
plan_witness(
    "C8",
    "a drafted state is accepted when the base goes there, not when its tokens are right",
    "The drafted token is the likeliest one at its position, but the base commits another position first.",
    base=surest,
    case=plan_case("__", {"__@1": (1, 2)}, "a_"),
    accept="tokens",
)
plan_witness(
    "C8b",
    "the base's rule decides, not a threshold on the drafted tokens",
    "The drafted token is surer than 0.6, but the base commits a surer one first.",
    base=surest,
    case=plan_case("__", {"__": ((2, 1), (1, 3))}, "a_"),
    accept="threshold",
    strata=(0.6,),
)
plan_witness(
    "C8c",
    "every state on the way to a drafted one is verified",
    "The drafted token is what the model predicts once it is there; before that it predicts another one.",
    base=surest,
    case=plan_case("_", {"_@0": (1, 2)}, "a"),
    accept="consistent",
    ended=True,
)
plan_witness(
    "C8d",
    "drafted tokens are compared, not only their positions",
    "The base commits at the drafted position, but another token.",
    base=surest,
    case=plan_case("_", {}, "b"),
    accept="positions",
    ended=True,
)
plan_witness(
    "C8e",
    "a drafted state is the base's next one, not a part of it",
    "The base commits two tokens at once, and the drafted state holds one of them.",
    base=sure,
    case=plan_case("__", {"__": ((2, 1), (1, 2))}, "a_"),
    accept="subset",
)
plan_witness(
    "C9",
    "what is drafted behind the block is hidden from the states of the block",
    "The key ends with the open block, and a drafted state with a token behind it answers for the true one.",
    base=surest.bind(block_length=2),
    case=plan_case("____", {"____@0": (1, 2)}, "__a_"),
    key="block",
)
