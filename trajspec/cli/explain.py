"""`trajspec explain`: the plan of a policy, what each pass makes of it and what that is worth; or a witness."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from ..ir import Plan, Policy, TrajspecError
from .naming import draft_options, drafting, find_policy, policy_options, settings_of

_WIDTH = 100


def add(commands: Any) -> None:
    """Add the command to an argparse object of sub-commands."""
    explain = commands.add_parser("explain", help="print the plan of a policy, or a witness of a condition")
    explain.add_argument("witness", nargs="?", metavar="WITNESS", help="an id that a certificate names, such as C1")
    policy_options(explain)
    draft_options(explain)
    explain.add_argument("--compile", action="store_true", help="show what the passes make of the plan to be compiled")
    explain.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print; options that the policy or the drafter does not have are refused."""
    settings, drafts = settings_of(args), drafting(args)
    if args.witness is not None:
        others = [name for name in ("policy", "compat", "cache", "draft") if getattr(args, name) is not None]
        others += ["compile"] if args.compile else []
        others += [name.replace("_", "-") for name in settings]
        if others:
            raise TrajspecError(f"explain {args.witness} prints a witness; --{others[0]} goes with a policy")
        from ..exact.witnesses import explain

        print(explain(args.witness))
        return 0
    base = _base(args, settings)
    for name in ("require_exact", "packing"):
        if drafts.pop(name, False):
            option = name.replace("_", "-")
            raise TrajspecError(f"--{option} is about a run, and explain runs nothing; use it with decode")
    if not drafts and base.base is None:
        print("\n".join(_changes(base)) if args.compile else str(base), end="")
        return 0
    print("\n".join(_report(base, drafts)))
    return 0


def _base(args: argparse.Namespace, settings: dict[str, Any]) -> Plan:
    """The plan of the policy that the options ask for."""
    from ..options import canonical, choose_policy, settle
    from ..policies import get_policy

    found: Policy | Plan | str | None = find_policy(args.policy) if args.policy else None
    settings = canonical(settings, frozenset(found.settings) if isinstance(found, Policy) else frozenset())
    if found is None or isinstance(found, str):
        found = get_policy(choose_policy(found, settings), args.compat)
    elif args.compat:
        raise TrajspecError(f"--compat {args.compat} goes with the name of a policy of the library")
    if isinstance(found, Policy):
        return settle(found, settings)[0].plan(args.cache or "full")
    if settings or args.cache:
        got = ", ".join([*settings, *(["cache"] if args.cache else [])])
        raise TrajspecError(f"--policy {args.policy} is a plan, which has no parameters; got {got}")
    return found


def _report(base: Plan, drafts: dict[str, Any]) -> Iterator[str]:
    """The plan after each pass, each a whole text that reads back, then the certificate and the cost of the last."""
    from ..exact.certificate import certify
    from ..passes import SPECULATION
    from ..passes.cost import SYMBOLS
    from ..speculation import choose

    plan = base
    yield from _part("base" if drafts else "plan", base)
    if drafts:
        chosen = choose(dict(drafts))
        assert chosen.drafter is not None
        for number, step in enumerate(SPECULATION):
            made = (chosen.drafter, chosen.lookahead, True, dict(chosen.walk)) if number == 0 else ()
            plan = step(plan, *made)
            yield from _part(f"after {step.__name__}: {_sentence(step)}", plan)
    yield from _changes(base)
    certificate = certify(plan)
    yield "# certificate"
    yield from textwrap.wrap(str(certificate), _WIDTH, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield "# cost"
    formulas = certificate.cost
    width = max(map(len, formulas))
    yield from (f"{name:<{width}} = {formula}" for name, formula in formulas.items())
    letters = {str(symbol) for formula in formulas.values() for symbol in formula.free_symbols}
    yield from (f"{name:<{width}} : {meaning}" for name, meaning in SYMBOLS.items() if name in letters)


def _changes(base: Plan) -> Iterator[str]:
    """What each pass does to the base when its steps are compiled, and the plan after the last that did something."""
    from ..passes import optimise

    base = base.base or base
    after, changes = optimise(base)
    yield "# passes: what compiling does to the base"
    yield from map(str, changes)
    yield ""
    yield from _part("compiled: the base after these passes", after)


def _part(title: str, plan: Plan) -> list[str]:
    return [f"# {title}", str(plan)]


def _sentence(function: Any) -> str:
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
