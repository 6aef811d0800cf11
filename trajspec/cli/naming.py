"""What words on the command line stand for: names out of files, parameters of policies, and options about drafts."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ..ir import Plan, Policy, TrajspecError
from ..ir.drafter import Drafter

TARGET_OPTIONS = ("draft_length", "drafts", "draft_steps", "draft_block_length", "verify")
_LONG = ("threshold", "factor", "steps", "block_length", "temperature")  # parameters with an option of their own


def policy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a policy and its parameters."""
    parser.add_argument("--policy", metavar="NAME|FILE.py:NAME", help="default: what the other options imply")
    parser.add_argument("--compat", metavar="NAME", help="a recorded quirk of the reference")
    parser.add_argument(
        "--cache", choices=["full", "prefix", "dual", "block_causal"], help="what a call looks at (default: full)"
    )
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--factor", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--block-length", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any other parameter of the policy"
    )


def draft_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about speculation."""
    drafts = parser.add_argument_group("speculation: the policy's own result, in fewer calls")
    drafts.add_argument(
        "--draft", metavar="none|auto|frozen|chain|tree|FILE.json|FILE.py:NAME",
        help="states to look at ahead of time; auto: the tree, as far as it pays on this machine",
    )
    drafts.add_argument("--nodes", type=int, metavar="N", help="states a call, the present one included (default: 8)")
    drafts.add_argument(
        "--lookahead",
        choices=["none", "exact", "cheap"],
        help="drafts in the next block of a cache; cheap approximates",
    )
    drafts.add_argument("--accept", choices=["base", "relaxed", "subset"], help="all but base approximate")
    drafts.add_argument("--strata", metavar="P,P,...", help="how sure the surest, the second, ... new token must be")
    drafts.add_argument("--budget", type=float, metavar="X", help="go on exactly when this far off the base")
    drafts.add_argument("--recheck", type=float, metavar="EPS", help="decide again what packed logits may have changed")
    drafts.add_argument(
        "--packing", choices=["rows", "isolated", "merged", "auto"],
        help="how states share kept keys and values; all but rows are equal up to rounding",
    )  # fmt: skip
    drafts.add_argument("--require-exact", action="store_true", help="run the base too; stop at the first difference")


def _length(text: str) -> int | str:
    return text if text == "adaptive" else int(text)


def target_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about a diffusion model that drafts for an autoregressive one."""
    drafts = parser.add_argument_group("an autoregressive target: its own text, or its law, in fewer of its calls")
    drafts.add_argument(
        "--drafter", metavar="MODEL", help="a diffusion model that drafts; --draft is then mean_field (default), "
        "left_to_right, two_phase, denoise, search, auto or none",
    )  # fmt: skip
    drafts.add_argument("--draft-length", type=_length, metavar="N|adaptive", help="tokens a draft (default: 8)")
    drafts.add_argument("--drafts", type=int, metavar="N", help="drafts a round (default: 1)")
    drafts.add_argument("--draft-steps", type=int, metavar="N", help="calls of --draft denoise (default: 4)")
    drafts.add_argument("--draft-block-length", type=int, metavar="N", help="of drafters that see whole blocks")
    drafts.add_argument("--verify", choices=["equality", "rejection"], help="default: equality, the target's own text")


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The parameters of the policy that were given. Raises TrajspecError when one of --set is no NAME=VALUE."""
    return {name: getattr(args, name) for name in _LONG if getattr(args, name) is not None} | pairs(args.set)


def pairs(given: list[str]) -> dict[str, Any]:
    """What `--set NAME=VALUE` says, once or more: numbers, truth values, None and words."""
    settings: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals:
            raise TrajspecError(f"--set {item}: expected NAME=VALUE")
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text  # a word: --set unmask_strategy=max_conf
    return settings


def drafting(args: argparse.Namespace) -> dict[str, Any]:
    """The options about speculation, by the names that `decode` has for them.

    Raises TrajspecError for what would have no effect.
    """
    names = ("nodes", "lookahead", "accept", "strata", "budget", "recheck", "packing")
    told = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.require_exact:
        told["require_exact"] = True
    if args.draft is None or args.draft == "none":
        if told:
            name, value = next(iter(told.items()))
            shown = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise TrajspecError(
                f"{shown}: nothing is drafted; give --draft auto, tree, chain, frozen, FILE.json or FILE.py:NAME"
            )
        return {}
    accept = args.accept or "base"
    if args.strata is not None and accept != "relaxed":
        raise TrajspecError(f"--strata {args.strata} is what --accept relaxed asks of new tokens; --accept is {accept}")
    if args.budget is not None and accept == "base":
        raise TrajspecError(
            f"--budget {args.budget:g} limits --accept relaxed or subset; --accept base never leaves the base"
        )
    if args.strata is not None:
        told["strata"] = _numbers("--strata", args.strata)
    return {"draft": find_drafter(args.draft), **told}


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise TrajspecError(f"{option} {text}: expected numbers with commas between them, like 0.9,0.7") from None


def find_policy(text: str) -> Policy | Plan | str:
    """What `--policy` names: a policy of the library by name, or NAME (a policy or plan) out of FILE.py.

    Raises TrajspecError when the file or the name in it does not exist, or is neither a policy nor a plan.
    """
    return from_file(text, "--policy", "policy", lambda found: isinstance(found, (Policy, Plan)))


def find_drafter(text: str) -> Drafter | str:
    """What `--draft` names: a drafter of the library, a calibrated one in FILE.json, or NAME out of FILE.py."""
    return from_file(text, "--draft", "drafter", lambda found: isinstance(found, Drafter))


def from_file(text: str, option: str, what: str, fits: Callable[[Any], bool]) -> Any:
    """NAME out of FILE.py, which is run; `text` itself when it does not name a file like that.

    Raises TrajspecError, which begins with `option`, when there is no such file, it does not run, or it has no such
    name that `fits`.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        if text.endswith(".py"):
            raise TrajspecError(f"{option} {text}: say which {what} of the file: {text}:NAME")
        return text
    path = Path(file)
    if not path.is_file():
        raise TrajspecError(f"{option} {text}: there is no file {file}")
    try:
        module = _module(path, path.stat().st_mtime_ns)
    except TrajspecError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = error.lineno if isinstance(error, SyntaxError) else where.lineno
        raise TrajspecError(f"{option} {text}: {file}, line {line}: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if found is None or not fits(found):
        there = sorted(key for key, value in vars(module).items() if fits(value) and _is_own(module, key, value))
        raise TrajspecError(f"{option} {text}: {file} has no {what} {name!r}; it has: {', '.join(there) or 'none'}")
    return found


@lru_cache
def _module(path: Path, _changed: int) -> ModuleType:
    """The file as a module; run once for a command that names it twice, because its ops can be declared once only."""
    # A name of its own: a file called like a module must not be taken for it.
    spec = importlib.util.spec_from_file_location(f"trajspec_policy_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _is_own(module: ModuleType, name: str, value: Any) -> bool:
    """Whether an error lists it: what the file made, not the functions and classes it imports."""
    plain = isinstance(value, (FunctionType, type)) or not hasattr(value, "__module__")
    return not name.startswith("_") and (not plain or getattr(value, "__module__", "") == module.__name__)
