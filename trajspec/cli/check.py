"""`trajspec check`: look for a small model on which a decoder leaves the trajectory of its base."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..ir import Plan, Policy, TrajspecError
from .naming import from_file, pairs

_EXIT = {"not refuted": 0, "refuted": 1, "inconclusive": 2}


def add(commands: Any) -> None:
    """Add the command to an argparse object of sub-commands."""
    check = commands.add_parser(
        "check", help="look for a counterexample to a decoder", description=f"{__doc__} Exit code: 0 not refuted, 1 "
        "refuted (the counterexample is printed), 2 inconclusive or wrong usage."
    )  # fmt: skip
    check.add_argument(
        "program", metavar="FILE.py:NAME", help="run(denoise, canvas, seed) -> states, a policy or a plan"
    )
    check.add_argument(
        "--against", metavar="NAME|FILE.py:NAME", help="its base: a policy of the library, or one of the same three "
        "(default: the base of a speculated plan)",
    )  # fmt: skip
    check.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the policy after --against"
    )
    check.add_argument("--rounds", action="store_true", help="the program reports one state a round, not every one")
    check.add_argument(
        "--no-near-ties", action="store_true", help="leave out cases that hang on scores only rounding tells apart"
    )
    check.add_argument("--examples", type=int, default=1000, metavar="N", help="cases to draw (default: 1000)")
    check.add_argument("--seed", type=int, default=0, help="the same seed draws the same cases")
    check.add_argument("--json", action="store_true", help="verdict, examples, drafted, accepted and counterexample")
    check.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search and print; 0 when nothing was found, 1 for a counterexample, 2 when too little was tested."""
    if args.examples < 1:
        raise TrajspecError(f"--examples {args.examples}: expected how many cases to draw, 1 or more")
    settings = pairs(args.set)
    program, base = _found(args.program, "check"), _found(args.against, "--against")
    if isinstance(base, Policy):
        base = base.bind(**settings)
    elif settings:
        raise TrajspecError(f"--set {args.set[0]}: --against {args.against} is no policy and has no parameters")
    from ..exact.check import check_program, rounds_only, whole_path
    from ..exact.plan_check import check
    from ..exact.program import plan_program

    told: dict[str, Any] = {"examples": args.examples, "seed": args.seed, "near_ties": not args.no_near_ties}
    if isinstance(program, Policy) and not isinstance(base, (Policy, Plan)):
        program = program.plan()
    if not isinstance(program, (Policy, Plan)):
        told["paths"] = rounds_only if args.rounds else whole_path
    elif args.rounds:
        raise TrajspecError(f"--rounds is about programs; {args.program} reports every state")
    if base is None and (not isinstance(program, Plan) or program.base is None):
        raise TrajspecError(
            f"{args.program} needs a base: --against NAME, or FILE.py:NAME; a speculated plan has its own"
        )
    if base is None or isinstance(base, (Policy, Plan)):
        verdict = check(program, base, **told)
    else:
        verdict = check_program(plan_program(program) if isinstance(program, Plan) else program, base, **told)
    print(json.dumps(verdict.as_dict(), ensure_ascii=False) if args.json else verdict)
    return _EXIT[verdict.verdict]


def _found(text: str | None, option: str) -> Any:
    """What `text` names: a policy of the library, or a program, policy or plan out of a file."""
    from ..policies import get_policy

    if text is None:
        return None
    found = from_file(text, option, "program, policy or plan", lambda it: isinstance(it, Plan) or callable(it))
    return get_policy(found) if isinstance(found, str) else found
