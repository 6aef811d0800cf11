"""The static rules of `certify`: what each setting of a speculated plan costs in exactness, with its fix and witness.

All of them are one principle: what is read or copied must be in the key. `rule` numbers them: 1 isolation, 2 the key,
3 epochs, 4 the head's state, 5 halting, 6 shared memories, 7 numerics, 8 ties, 9 acceptance, 12 the loop. They hold for
every model, drafter and row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..ir.errors import TrajspecError
from ..ir.kinds import HELD
from ..ir.nodes import Node, Value
from ..ir.plan import Plan
from .reads import Reads


class Level(IntEnum):
    """How close a plan's output is to its base's; a plan has the largest level of its reasons.

    BITWISE: the same states, for every seed. LAW: the same distribution. BOUNDED: as far apart as the run's own meters
    say. APPROX: nothing is known.
    """

    BITWISE = 0
    LAW = 1
    BOUNDED = 2
    APPROX = 3


@dataclass(frozen=True)
class Reason:
    """Why a plan is not bitwise its base: `op` in `line` of the plan's text, by `rule`.

    `drift`: a bound on the total variation of the outputs, "" when there is none; `fix`: what to write instead;
    `witness`: the id of the smallest case that shows it.
    """

    op: str
    rule: int
    level: Level
    msg: str
    fix: str
    witness: str = ""
    drift: str = ""
    line: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "line": self.line, "op": self.op, "rule": self.rule, "level": self.level.name, "msg": self.msg,
            "drift": self.drift or None, "fix": self.fix, "witness": self.witness or None,
        }  # fmt: skip


#: What the meters of a run say about its distance: theorem E1 with the coupling of equal noise.
DRIFT = "TV <= E[min(1, off_base + stale)]"


def reasons(plan: Plan, stops: bool = True) -> Iterator[Reason]:
    """Every loss of exactness in `plan`, relative to `plan.base`; none at all means bitwise.

    `stops=False`: no row of the run has stop tokens.
    """
    base = plan.base
    if base is None:
        return
    try:
        reads = Reads(base)
        _ = reads.forward
    except TrajspecError as error:
        yield Reason("walk", 1, Level.APPROX, f"its base cannot be speculated: {error}", "speculate a base plan")
        return
    wrong = misshapen(plan, base)
    if wrong:
        yield Reason("walk", 12, Level.APPROX, wrong, "let speculate(...) write the plan")
    items = list(plan.nodes())
    for item in items:
        if item.op.name == "verify" and not _drafts_nothing(item):
            yield from _verify(item.attributes, reads)
        elif item.op.name == "walk":
            told = item.attributes
            table = next((arg.node for arg in item.args if arg is not None and arg.node.op.name == "verify"), None)
            if table is None or not _drafts_nothing(table):
                ended = table is not None and bool(table.attributes.get("ended"))
                yield from _walk(told, reads, stops, ended)
            if told["then"] == "stop" and _spent_at_once(told):
                yield Reason(
                    "walk", 9, Level.APPROX, "ends the row after its first step: then=stop with a budget of 0",
                    "then=exact", "C6",
                )  # fmt: skip


def _verify(told: dict[str, Any], reads: Reads) -> Iterator[Reason]:
    if not told["isolate"]:
        yield Reason(
            "verify", 1, Level.APPROX, "lets the true state see the first drafted one (isolate=False)", "isolate=True",
            "C2",
        )  # fmt: skip
    # Neither the full view nor a block-causal one has a cache that could be stale: theorem F2.
    if told["lookahead"] == "cheap" and reads.view in ("prefix", "dual"):
        yield Reason(
            "verify", 3, Level.BOUNDED,
            f"evaluates states of the next block under the cache of this one (lookahead=cheap, view {reads.view})",
            "lookahead=exact", "C3", DRIFT,
        )  # fmt: skip


def _walk(told: dict[str, Any], reads: Reads, stops: bool, ended: bool) -> Iterator[Reason]:
    yield from _accept(told, reads)
    yield from _head(told, reads)
    if told["key"] == "block" and reads.view == "full":
        yield Reason(
            "walk", 2, Level.APPROX,
            "takes a drafted state for the true one when they agree up to the open block (key=block), and the "
            "full view sees what lies behind it", "key=view", "C9",
        )  # fmt: skip
    if told["halt"] == "end" and not (reads.ends_when_full and (not stops or (reads.ends_show and not ended))):
        why = "at a stop token" if reads.ends_when_full else "by a rule of its own"
        yield Reason(
            "walk", 5, Level.APPROX,
            f"looks for the row's end between rounds only (halt=end), and a row can end {why} in the midst of one",
            "halt=each", "C6",
        )  # fmt: skip
    if told["leave"] and reads.memories:
        yield Reason(
            "walk", 6, Level.APPROX,
            f"lets drafted states write to {_names(reads.memories)}, which the true state goes on with (leave=True)",
            "leave=False", "C7",
        )  # fmt: skip
    if told["ties"] == "high":
        yield Reason(
            "walk", 8, Level.APPROX, "breaks ties the other way round in packed calls (ties=high)", "ties=low", "C5"
        )


_RULES = {
    "relaxed": "accepts drafted tokens by their confidence ({strata}) rather than by the base rule",
    "threshold": "accepts drafted tokens by their confidence ({strata}) rather than by the base rule",
    "subset": "accepts a drafted part of what the base commits, which may commit more than one token a step",
    "tokens": "accepts drafted states by their tokens alone, whatever the order in which the base commits",
    "positions": "accepts drafted states by their positions alone, whatever tokens they hold",
    "consistent": "accepts a drafted state that predicts its own tokens, without the states before it",
}
_WITNESS = {
    "relaxed": "C8b",
    "threshold": "C8b",
    "subset": "C8e",
    "tokens": "C8",
    "positions": "C8d",
    "consistent": "C8c",
}


def _accept(told: dict[str, Any], reads: Reads) -> Iterator[Reason]:
    accept = told["accept"]
    if accept == "base" or _spent_at_once(told) or (accept == "subset" and reads.one_a_step):
        return
    strata = "strata " + ", ".join(f"{value:g}" for value in told["strata"])
    # The meters compare canvases. An accepted state that is the base's next one may end the row otherwise, though, when
    # the base has a rule of its own for that; relaxed and subset never accept that state.
    measured = accept in ("relaxed", "subset") or reads.ends_when_full
    yield Reason(
        "walk", 9, Level.BOUNDED if measured else Level.APPROX, _RULES[accept].format(strata=strata), "accept=base",
        _WITNESS[accept], DRIFT if measured else "",
    )  # fmt: skip


def _head(told: dict[str, Any], reads: Reads) -> Iterator[Reason]:
    key = f"the {reads.view} view"
    if told["head"] == "node":
        if reads.histories:
            missing, witness = _names(reads.histories), "C1"
        elif not reads.key_holds_canvas:
            missing, witness = "the canvas outside of its window", "C1c"
        elif reads.counters:
            missing, witness = f"the counters and noise of the row ({_names(reads.counters)})", "C1"
        else:
            return
        law = not reads.histories and reads.key_holds_canvas and reads.keeps_law_without_step
        loss = "" if not law else "; the law stays, for no drawn token decides what is committed where"
        yield Reason(
            "walk", 4, Level.LAW if law else Level.APPROX,
            f"applies the step at the drafted state (head=node), which reads or copies {missing}: {key} does not tell "
            f"drafted and true state apart there{loss}", "head=true", witness,
        )  # fmt: skip
    if told["adopt"] and not reads.key_holds_canvas:
        yield Reason(
            "walk", 4, Level.APPROX,
            f"goes on with the drafted state's canvas (adopt=True), also where {key} does not look", "adopt=False",
            "C1c",
        )  # fmt: skip


def misshapen(plan: Plan, base: Plan) -> str:
    """What is wrong with the way `plan` walks along `base`, "" when nothing is: then it is what `speculate` writes.

    Every state of the loop must come from a walk, and every walk from the state and the table of that state.
    """
    count = len(base.starts)
    if plan.inputs != base.inputs or plan.starts[:count] != base.starts:
        return f"does not start as {base.name} does"
    forward = Reads(base).forward
    if forward.op.name == "forward_cached" and forward.args[1] not in base.carried:
        return f"cannot draft with {base.name}, whose cache is not carried"
    if len(plan.starts) != count + 1 or plan.starts[count].kind is not HELD:
        return f"carries more than the state of {base.name} and what is held"
    state, held = plan.step[:count], plan.step[count]
    inputs = plan.inputs[1:]
    while state != plan.carried[:count]:
        item = state[0].node
        if item.op.name != "walk" or item.results[:count] != state or held is not item.results[count]:
            return "writes to the state or the meters outside of walk"
        before, table, meters = tuple(item.args[: len(item.args) - 2]), item.args[-2], item.args[-1]
        if before[count:] != inputs or table is None or table.node.op.name != "verify":
            return "walks with a table that verify did not make"
        if table.node.args[: len(before)] != before or any(
            part.attributes["of"] != base for part in (item, table.node)
        ):
            return "walks with the table of another state or another base"
        state, held = before[:count], meters  # type: ignore[assignment]
    return "" if held is plan.carried[count] else "does not carry what is held"


def _drafts_nothing(verify: Node) -> bool:
    draft: Value | None = verify.args[-2]
    return draft is not None and draft.node.op.name == "no_draft"


def _spent_at_once(told: dict[str, Any]) -> bool:
    return told["budget"] is not None and bool(told["budget"] <= 0)


def _names(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def lines_of(text: str, plan: Plan) -> dict[str, int]:
    """The line of the first `verify` and `walk` of `plan` in its text, which begins with that of its base."""
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if line.startswith(f"def {plan.name}(")), 0)
    found: dict[str, int] = {}
    for op in ("verify", "walk"):
        numbers = (number for number, line in enumerate(lines[first:], first + 1) if f" {op}(" in line)
        found[op] = next(numbers, 0)
    return found


__all__ = ["DRIFT", "Level", "Reason", "lines_of", "misshapen", "reasons"]
