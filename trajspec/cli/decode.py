"""`trajspec decode`: prompts or texts with masks become text, with what it cost."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

from ..ir import TrajspecError
from .naming import TARGET_OPTIONS, draft_options, drafting, find_policy, policy_options, settings_of, target_options

DEFAULT_MODEL = "tiny"


def add(commands: Any) -> None:
    """Add the command to an argparse object of sub-commands."""
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
    decode.add_argument("--compile", action="store_true", help="compile the steps first: for long runs")
    decode.add_argument("--raw", action="store_true", help="continue PROMPT as it is, without the chat template")
    decode.add_argument("--stream", action="store_true", help="print a single text while it is decoded")
    decode.add_argument("--json", action="store_true", help="one JSON object a row")
    policy_options(decode)
    draft_options(decode)
    target_options(decode)
    decode.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode and print; 1 when lines of --input were broken."""
    prompts = [line.rstrip("\n") for prompt in args.prompts for line in (sys.stdin if prompt == "-" else [prompt])]
    options = _options(args)
    if [bool(prompts), bool(args.infill), bool(args.input)].count(True) != 1:
        raise TrajspecError("give prompts to continue, --infill TEXT, or --input FILE, one of the three")
    if bool(args.input) != bool(args.output):
        raise TrajspecError("--input FILE and --output FILE go together")
    _fits_together(args, len(prompts or args.infill) * args.samples)
    import torch

    from ..completion.target import is_target
    from ..decoding import as_model, decode, stream

    model: Any
    if args.drafter or is_target(args.model):
        if args.infill or args.compile or args.policy or args.cache or args.compat:
            raise TrajspecError(
                "an autoregressive target continues prompts, by itself or with --drafter; without --infill, --policy, "
                "--cache, --compat and --compile"
            )
        from ..completion import load_target

        model = load_target(args.model, dtype=getattr(torch, args.dtype), device=args.device)
        if args.drafter:
            options["drafter"] = as_model(args.drafter, getattr(torch, args.dtype), args.device)
    else:
        model = as_model(args.model, getattr(torch, args.dtype), args.device)
    if args.input:
        return _file(args, model, options)
    if args.infill:
        options["infill"] = True
    options |= {"num_return_sequences": args.samples, "keep_path": False}
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


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """What `decode` in Python takes for these options."""
    options: dict[str, Any] = dict(settings_of(args), seed=args.seed, stop=args.stop)
    if args.policy:
        options["policy"] = find_policy(args.policy)
    for name in ("cache", "compat", "gen_length"):
        given = getattr(args, name)
        if given is not None:
            options[name] = given
    if args.compile:
        options["compile"] = True
        logging.basicConfig(format="trajspec: %(message)s")
        logging.getLogger("trajspec").setLevel(logging.INFO)
    drafts = {name: getattr(args, name) for name in TARGET_OPTIONS if getattr(args, name) is not None}
    if args.drafter:
        names = ("nodes", "lookahead", "accept", "strata", "budget", "recheck", "packing", "require_exact")
        idle = [name for name in names if getattr(args, name)]
        if idle:
            raise TrajspecError(
                f"--{idle[0].replace('_', '-')} is for a diffusion model that speculates by itself; with --drafter "
                "there are --draft-length, --drafts, --draft-steps and --verify"
            )
        return options | drafts | ({"draft": args.draft} if args.draft else {})
    if drafts:
        name = next(iter(drafts)).replace("_", "-")
        raise TrajspecError(f"--{name} is about drafts for an autoregressive model; give --drafter tiny, say")
    return options | drafting(args)


def _file(args: argparse.Namespace, model: Any, options: dict[str, Any]) -> int:
    from ..jobs import run_file

    try:
        lines, broken = run_file(args.input, args.output, model, options, batch_rows=args.batch_rows)
    except KeyboardInterrupt:
        print(f"trajspec: stopped; the same command goes on where {args.output} ends", file=sys.stderr)
        return 130
    print(f"{lines - broken} rows in {args.output}, {broken} broken", file=sys.stderr)
    return 1 if broken else 0


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
    drafts, draft = "", ""
    if row.drafter != "none":
        drafts = f" ({row.base_steps} base steps, {row.accepted} of {row.drafted} drafted states used)"
        draft = f", draft {row.drafter} {row.nodes}"
    if row.drafter_calls:
        drafts = f" ({row.accepted} of {row.drafted} drafted tokens, from {row.drafter_calls} calls of the drafter)"
    compiling = f" and {row.compile_seconds:.1f} s to compile" if row.compile_seconds else ""
    print(
        f"[{row.answer_tokens} tokens in {row.calls} calls, {row.tokens_per_call:.2f} a call{drafts}; "
        f"{row.rows} rows, {row.positions} positions; {row.finish_reason}; {row.policy}{view}{draft}; "
        f"{row.seconds:.2f} s{compiling}]"
    )
