"""The command line: decode, explain, policies, conformance."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__
from .ir import Plan, Policy, TrajspecError

DEFAULT_MODEL = "tiny"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did what was asked, 1 when a conformance case failed, 2 on bad usage."""
    args = _parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn  # type: ignore[assignment]
            return args.run(args)
    except (TrajspecError, TypeError) as error:
        # TypeError is how an unknown option is refused; anything else of that type is a bug and keeps its traceback.
        if isinstance(error, TypeError) and "has no" not in str(error) and "takes no" not in str(error):
            raise
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
    decode = commands.add_parser("decode", help="decode prompts, or fill in the masks of a text")
    decode.add_argument("prompts", nargs="*", metavar="PROMPT", help="a text to continue; -: one a line from stdin")
    decode.add_argument("--infill", action="append", default=[], metavar="TEXT", help="a text with masks to fill in")
    decode.add_argument("--model", default=DEFAULT_MODEL, help=f"a name, folder or hub id (default: {DEFAULT_MODEL})")
    decode.add_argument("--input", metavar="FILE", help="prompts.jsonl: {id?, prompt | messages | infill} a line")
    decode.add_argument("--output", metavar="FILE", help="where the results of --input go; goes on where it stopped")
    decode.add_argument("--batch-rows", type=int, default=8, metavar="N", help="rows decoded together (--input)")
    decode.add_argument("--gen-length", type=int, help="tokens to write (default: 128)")
    decode.add_argument("--seed", type=int, default=0)
    decode.add_argument("--samples", type=int, default=1, metavar="N", help="samples a prompt")
    decode.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end a row where this is written")
    decode.add_argument("--dtype", choices=["float32", "bfloat16", "float64", "float16"], default="float32")
    decode.add_argument("--device", default="cpu")
    decode.add_argument("--raw", action="store_true", help="continue PROMPT as it is, without the chat template")
    decode.add_argument("--stream", action="store_true", help="print a single text while it is decoded")
    decode.add_argument("--json", action="store_true", help="one JSON object a row")
    _policy_options(decode)
    decode.set_defaults(run=_decode)
    explain = commands.add_parser("explain", help="print the plan of a policy")
    _policy_options(explain)
    explain.set_defaults(run=_explain)
    policies = commands.add_parser("policies", help="list the policies")
    policies.set_defaults(run=_policies)
    conformance = commands.add_parser("conformance", help="replay recorded trajectories")
    conformance.add_argument("path", metavar="DIR", help="a folder of golden files, or one file")
    conformance.add_argument("--backend", choices=["both", "interpreter", "runtime"], default="both")
    conformance.set_defaults(run=_conformance)
    return parser


def _policy_options(parser: argparse.ArgumentParser) -> None:
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


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    names = ("threshold", "factor", "steps", "block_length", "temperature")
    settings = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    for item in args.set:
        name, equals, text = item.partition("=")
        if not equals:
            raise TrajspecError(f"--set {item}: expected NAME=VALUE")
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text  # a word: --set unmask_strategy=max_conf
    return settings


def find_policy(text: str) -> Policy | Plan | str:
    """What `--policy` names: a policy of the library by name, or NAME (a policy or plan) out of FILE.py.

    Raises TrajspecError when the file or the name in it does not exist, or is neither a policy nor a plan.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        if text.endswith(".py"):
            raise TrajspecError(f"--policy {text}: say which policy of the file: {text}:NAME")
        return text
    path = Path(file)
    if not path.is_file():
        raise TrajspecError(f"--policy {text}: there is no file {file}")
    # A name of its own: a file called like a module must not be taken for it.
    spec = importlib.util.spec_from_file_location(f"trajspec_policy_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except TrajspecError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = error.lineno if isinstance(error, SyntaxError) else where.lineno
        raise TrajspecError(f"--policy {text}: {file}, line {line}: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not isinstance(found, (Policy, Plan)):
        there = sorted(key for key, value in vars(module).items() if isinstance(value, (Policy, Plan)))
        raise TrajspecError(f"--policy {text}: {file} has no policy {name!r}; it has: {', '.join(there) or 'none'}")
    return found


def _decode(args: argparse.Namespace) -> int:
    settings = _settings(args)
    policy = find_policy(args.policy) if args.policy else None
    prompts = [line.rstrip("\n") for prompt in args.prompts for line in (sys.stdin if prompt == "-" else [prompt])]
    if [bool(prompts), bool(args.infill), bool(args.input)].count(True) != 1:
        raise TrajspecError("give prompts to continue, --infill TEXT, or --input FILE, one of the three")
    if bool(args.input) != bool(args.output):
        raise TrajspecError("--input FILE and --output FILE go together")
    _fits_together(args, len(prompts or args.infill) * args.samples)
    import torch

    from .decoding import as_model, decode, stream

    model = as_model(args.model, getattr(torch, args.dtype), args.device)
    options: dict[str, Any] = dict(settings, seed=args.seed, stop=args.stop)
    if args.cache:
        options["cache"] = args.cache
    if policy is not None:
        options["policy"] = policy
    if args.compat:
        options["compat"] = args.compat
    if args.gen_length is not None:
        options["gen_length"] = args.gen_length
    if args.input:
        from .jobs import run_file

        try:
            lines, broken = run_file(args.input, args.output, model, options, batch_rows=args.batch_rows)
        except KeyboardInterrupt:
            print(f"trajspec: stopped; the same command goes on where {args.output} ends", file=sys.stderr)
            return 130
        print(f"{lines - broken} rows in {args.output}, {broken} broken", file=sys.stderr)
        return 1 if broken else 0
    options |= {"num_return_sequences": args.samples, "keep_path": False, "infill": bool(args.infill)}
    texts: list[Any] = prompts or args.infill
    if prompts and not args.raw and getattr(model.codec, "has_chat", False):
        # What a person types to a model with a chat template is a message.
        texts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    if args.stream:
        _show_cost(_streamed(stream(model, texts, **options)))
        return 0
    for number, row in enumerate(decode(model, texts, **options)):
        if not row.calls:
            print("trajspec: nothing was masked: write masks to fill in, or give --gen-length", file=sys.stderr)
        if args.json:
            print(json.dumps({"row": number} | row.as_dict(), ensure_ascii=False))
            continue
        print(row.text)
        _show_cost(row)
    return 0


def _fits_together(args: argparse.Namespace, rows: int) -> None:
    """Refuse options that would have no effect."""
    if args.input and (args.samples != 1 or args.stream or args.json):
        raise TrajspecError("--input writes one line a prompt to --output: without --samples, --stream and --json")
    if args.stream and (rows != 1 or args.json):
        raise TrajspecError(f"--stream shows a single text, without --json; got {rows} rows{' --json' * args.json}")


def _streamed(pieces: Any) -> Any:
    """Print pieces as they come; the only row."""
    while True:
        try:
            print(next(pieces).text, end="", flush=True)
        except StopIteration as end:
            print()
            return end.value[0]


def _show_cost(row: Any) -> None:
    view = "" if row.cache == "full" else f", cache {row.cache}"
    print(
        f"[{row.answer_tokens} tokens in {row.calls} calls, {row.tokens_per_call:.2f} a call; "
        f"{row.rows} rows, {row.positions} positions; {row.finish_reason}; {row.policy}{view}; "
        f"{row.seconds:.2f} s]"
    )


def _explain(args: argparse.Namespace) -> int:
    from .options import canonical, choose_policy, settle
    from .policies import get_policy

    found: Policy | Plan | str | None = find_policy(args.policy) if args.policy else None
    settings = canonical(_settings(args), frozenset(found.settings) if isinstance(found, Policy) else frozenset())
    if found is None or isinstance(found, str):
        found = get_policy(choose_policy(found, settings), args.compat)
    elif args.compat:
        raise TrajspecError(f"--compat {args.compat} goes with the name of a policy of the library")
    if isinstance(found, Policy):
        found = settle(found, settings)[0].plan(args.cache or "full")
    elif settings or args.cache:
        got = ", ".join([*settings, *(["cache"] if args.cache else [])])
        raise TrajspecError(f"--policy {args.policy} is a plan, which has no parameters; got {got}")
    print(found, end="")
    return 0


def _policies(args: argparse.Namespace) -> int:
    from .policies import ALIASES, POLICIES

    for name, policy in POLICIES.items():
        short = sorted(alias for alias, full in ALIASES.items() if full == name)
        print(f"{name}" + (f"  (also: {', '.join(short)})" if short else ""))
        print(f"    {policy.doc}")
        print(f"    {', '.join(f'{key}={value!r}' for key, value in policy.settings.items())}")
    return 0


def _conformance(args: argparse.Namespace) -> int:
    from .conformance import conform

    backends = ("interpreter", "runtime") if args.backend == "both" else (args.backend,)
    passed = failed = 0
    for report in conform(args.path, backends):
        if report.skipped:
            print(f"{report.file}: skipped ({report.policy} is not built yet)")
            continue
        passed, failed = passed + report.passed, failed + report.cases - report.passed
        print(f"{report.file}: {report.passed} of {report.cases} passed")
        for case, backend, what in report.failures:
            print(f"    {case} ({backend}): {what}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
