"""`trajspec policies`, `ops` and `conformance`: what there is, and whether it does what was recorded."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Add the commands to an argparse object of sub-commands."""
    policies = commands.add_parser("policies", help="list the policies")
    policies.set_defaults(run=_policies)
    ops = commands.add_parser("ops", help="list the ops that policies are written in")
    ops.set_defaults(run=_ops)
    conformance = commands.add_parser("conformance", help="replay recorded trajectories")
    conformance.add_argument("path", metavar="DIR", help="a folder of golden files, or one file")
    conformance.add_argument("--backend", choices=["both", "interpreter", "runtime"], default="both")
    conformance.set_defaults(run=_conformance)


def _policies(args: argparse.Namespace) -> int:
    from ..policies import ALIASES, POLICIES

    for name, policy in POLICIES.items():
        short = sorted(alias for alias, full in ALIASES.items() if full == name)
        print(f"{name}" + (f"  (also: {', '.join(short)})" if short else ""))
        print(f"    {policy.doc}")
        print(f"    {', '.join(f'{key}={value!r}' for key, value in policy.settings.items())}")
    return 0


def _ops(args: argparse.Namespace) -> int:
    from ..ir.op import OPS

    for _, op in sorted(OPS.items()):
        if not op.hidden:  # hidden ones are written as numbers and signs
            print(" ".join(op.signature.split()))
            print(f"    {op.sentence}")
    return 0


def _conformance(args: argparse.Namespace) -> int:
    from ..conformance import conform

    backends = ("interpreter", "runtime") if args.backend == "both" else (args.backend,)
    passed = failed = 0
    for report in conform(args.path, backends):
        if report.skipped:
            print(f"{report.file}: skipped ({report.policy} is not built yet)")
            continue
        passed, failed = passed + report.passed, failed + report.cases - report.passed
        calls = ", ".join(f"{name} {count}" for name, count in report.calls.items())
        print(f"{report.file}: {report.passed} of {report.cases} passed" + (f" (calls: {calls})" if calls else ""))
        for case, backend, what in report.failures:
            print(f"    {case} ({backend}): {what}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
