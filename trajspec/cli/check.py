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
        "--against", required=True, metavar="NAME|FILE.py:NAME", help="its base: a policy of the library, or the same"
    )
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
    program = _program(args.program, "check", {})
    base = _program(args.against, "--against", pairs(args.set))
    from ..exact.check import check_program, rounds_only, whole_path

    paths = rounds_only if args.rounds else whole_path
    verdict = check_program(
        program, base, paths=paths, examples=args.examples, seed=args.seed, near_ties=not args.no_near_ties
    )
    print(json.dumps(verdict.as_dict(), ensure_ascii=False) if args.json else verdict)
    return _EXIT[verdict.verdict]


def _program(text: str, option: str, settings: dict[str, Any]) -> Any:
    """What `text` names, as a program from a denoiser and a canvas to states."""
    from ..exact.program import plan_program
    from ..policies import get_policy

    found = from_file(text, option, "program, policy or plan", callable_or_plan)
    if isinstance(found, str):
        found = get_policy(found)
    if isinstance(found, Policy):
        found = found.bind(**settings).plan()
    elif settings:
        raise TrajspecError(f"--set {next(iter(settings))}: {text} is no policy and has no parameters")
    return plan_program(found) if isinstance(found, Plan) else found


def callable_or_plan(found: Any) -> bool:
    """Whether it can be checked: a plan, a policy or a program."""
    return isinstance(found, Plan) or callable(found)
