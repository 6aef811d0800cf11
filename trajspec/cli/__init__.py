"""The command line: decode, explain, check, bench, policies, ops, conformance."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..ir import TrajspecError
from . import bench, check, decode, explain, lists
from .naming import find_policy


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did what was asked, 1 when a check or a case failed, 2 on bad usage."""
    args = _parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn  # type: ignore[assignment]
            return args.run(args)
    except TrajspecError as error:
        # Refused options are among these (`OptionError`); any other TypeError is a bug and keeps its traceback.
        print(f"trajspec: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _warn(message: Warning | str, *_: Any) -> None:
    print(f"trajspec: warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trajspec", description=__doc__.split(":")[0] + " of trajspec.")
    parser.add_argument("--version", action="version", version=f"trajspec {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for part in (decode, explain, check, bench, lists):
        part.add(commands)
    return parser


__all__ = ["find_policy", "main"]

if __name__ == "__main__":
    sys.exit(main())
