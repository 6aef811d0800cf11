"""Speculation as two passes: draft and verify around a base plan, then carry the last logits over the loop's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..ir.ahead import forward_of
from ..ir.drafter import Drafter
from ..ir.errors import OptionError, TrajspecError
from ..ir.kinds import DRAFT, HELD, TABLE, TRAIL
from ..ir.nodes import Value, node
from ..ir.op import OPS
from ..ir.plan import Plan, carried_value, unfinished, verify
from ..ir.trace import Policy


def speculate(
    base: Policy | Plan,
    drafter: Drafter | str = "tree",
    *,
    view: str = "full",
    lookahead: str | None = None,
    carried: bool = True,
    isolate: bool = True,
    ended: bool = False,
    **walk: Any,
) -> Plan:
    """The plan that visits the states of `base` and ends where it ends, in fewer calls of the model.

    base: a policy, or its plan; view: of the model calls, when `base` is a policy. drafter: a `Drafter`, or the name of
    one of the library ("chain", "tree", "frozen", ...). lookahead: what becomes of hypothetical states in the next
    block of a cached view: "exact" (what opens the block, a refresh or a store pass, goes into the same call; the
    default), "none" (left out), "cheap" (evaluated under the cache at hand: approximate). Further settings are those of
    the op `walk`: accept="base" (exact), "relaxed" with strata=(...), "subset"; budget=, then=; recheck=.
    carried=False leaves out the pass `carry`.

    Raises TrajspecError when the base cannot be speculated (it is speculated already, or its step asks the model
    nothing) and for settings that make no sense.
    Source: trajectory-level speculative decoding (arXiv 2608.27514); exactness by evaluating a pure function early.
    """
    plan = base.plan(view) if isinstance(base, Policy) else base
    if isinstance(drafter, str):
        drafter = named(drafter)
    plan = draft_and_verify(plan, drafter, lookahead, isolate, walk, ended)
    return carry(plan) if carried else plan


def named(name: str) -> Drafter:
    """The drafter of the library, or of the user, called `name`; TrajspecError when there is none."""
    found = OPS.get(name)
    drafters = sorted(op.name for op in OPS.values() if op.results[0][1] is DRAFT and op.name != "no_draft")
    if found is None or name not in drafters:
        raise TrajspecError(f"there is no drafter {name!r}; there are: {', '.join(drafters)}")
    return Drafter(found)


def draft_and_verify(
    base: Plan, drafter: Drafter, lookahead: str | None = None, isolate: bool = True,
    walk: dict[str, Any] | None = None, ended: bool = False,
) -> Plan:  # fmt: skip
    """One base step in a call of its own, then drafting from its logits, and all that is drafted in a second call.

       logits = forward(x); x = step(x, logits)
    => table = verify(x); y, held = walk(x, table); draft = chain(y, held); x, held = walk(y, verify(y, draft))
    """
    forward = forward_of(base)
    if any(item.op.name == "soften" for item in base.nodes()):
        raise TrajspecError(
            f"plan {base.name} shows the model logits beside tokens (soften): what it will be shown next is not known "
            "before it has answered, so there is nothing to draft; decode it without draft="
        )
    view = forward.attributes.get("view", "full")
    if lookahead is None:
        lookahead = "none" if view == "full" else "exact"
    if view == "full" and lookahead != "none":
        raise TrajspecError(
            f"lookahead={lookahead} is about cached views; the full view needs none, its drafts cross blocks"
        )
    inputs, prompt = base.inputs[1:], base.inputs[0]
    count = len(base.starts)
    starts = (*base.starts, node(OPS["nothing"], (prompt,), {}, (HELD,)).results[0])
    state = tuple(carried_value(number, start.kind) for number, start in enumerate(starts))
    told = _settings("verify", {"lookahead": lookahead, "isolate": isolate, "ended": ended, "of": base})
    told_walk = _settings("walk", {**(walk or {}), "of": base})
    none = node(OPS["no_draft"], (state[0],), {}, (DRAFT,)).results[0]

    def round_(now: tuple[Value, ...], draft: Value) -> tuple[Value, ...]:
        table = node(OPS["verify"], (*now[:count], *inputs, draft, now[count]), told, (TABLE,)).results[0]
        kinds = (*(value.kind for value in now), TRAIL)
        return node(OPS["walk"], (*now[:count], *inputs, table, now[count]), told_walk, kinds).results[:-1]

    first = round_(state, none)
    step = round_(first, drafter.value(first[:count], first[count], base))
    names = (*base.carried_names, "held")
    doc = f"{base.name}, speculated with {drafter.name}"
    named_values = tuple((value, name) for value, name in zip(step, names, strict=True))
    return verify(
        Plan(f"{base.name}_{drafter.name}", base.inputs, starts, unfinished(state[0]), step, names, named_values, doc)
    )


def carry(plan: Plan) -> Plan:
    """Let the last logits of a round be the hints of the next one, and leave out the call that made them.

        y, held = walk(x, verify(x, no_draft(x)), held); x, held = walk(y, verify(y, chain(y, held)), held)
     => x, held = walk(x, verify(x, chain(x, held)), held)

    The root's view is always in the table, so a round still takes one base step at least, and now one call at most.
    """
    if plan.base is None:
        raise TrajspecError(f"plan {plan.name} is not speculated: there is nothing to carry")
    walks = [item for item in plan.nodes() if item.op.name == "walk"]
    if len(walks) < 2:
        return plan
    first, last = walks[0], walks[-1]
    swap: dict[Value, Value] = dict(zip(first.results[:-1], plan.carried, strict=True))
    for item in plan.nodes():
        if any(value in swap for value in item.args if value is not None) and item is not first:
            made = node(item.op, [swap.get(value, value) if value else None for value in item.args], item.attributes,
                        [value.kind for value in item.results])  # fmt: skip
            swap.update(zip(item.results, made.results, strict=True))
    step = tuple(swap.get(value, value) for value in last.results[:-1])
    names = tuple(zip(step, plan.carried_names, strict=True))
    return verify(replace(plan, step=step, names=names))


#: The passes of speculation, in order; `explain` shows the plan after each.
SPECULATION: tuple[Callable[..., Plan], ...] = (draft_and_verify, carry)


def _settings(op: str, given: dict[str, Any]) -> dict[str, Any]:
    """All attributes of `op`, the given ones checked; TypeError for one it does not have."""
    from ..ir.apply import check_attribute

    declared = OPS[op].attributes
    known = {attribute.name for attribute in declared}
    for name in given:
        if name not in known:
            raise OptionError(f"speculate has no setting {name!r}; walk has: {', '.join(sorted(known - {'of'}))}")
    told = {
        attribute.name: check_attribute(OPS[op], attribute, given.get(attribute.name, attribute.default))
        for attribute in declared
    }
    check = OPS[op].check
    if check is not None:
        check(**told)
    return told
