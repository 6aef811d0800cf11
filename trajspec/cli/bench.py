"""`trajspec bench`: how long decoding takes here, beside the loops that people run today."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..ir import TrajspecError

#: What `tiny` is asked without prompts of one's own.
PROMPTS = ("zoe has 13 pens finds 14 loses 12 ?", "sort $53 $23 $85", "find: list of even, plus 3")


def add(commands: Any) -> None:
    """Add the command to an argparse object of sub-commands."""
    bench = commands.add_parser("bench", help="time the published loops and this library side by side")
    bench.add_argument("prompts", nargs="*", metavar="PROMPT", help="texts to continue (default: three for tiny)")
    bench.add_argument("--infill", action="append", default=[], metavar="TEXT", help="a text with masks to fill in")
    bench.add_argument("--model", default="tiny", help="a name, folder or hub id (default: tiny)")
    bench.add_argument("--threshold", type=float, default=0.9)
    bench.add_argument("--gen-length", type=int, default=48)
    bench.add_argument("--block-length", type=int, default=32)
    bench.add_argument("--nodes", type=int, default=8, help="states a call of the tree (default: 8)")
    bench.add_argument("--runs", type=int, default=7, metavar="N", help="timed passes (default: 7)")
    bench.add_argument("--threads", type=int, help="of torch (default: as it is)")
    bench.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    bench.add_argument("--device", default="cpu")
    bench.add_argument("--compile", action="store_true", help="compiled steps as well, which takes minutes at first")
    bench.add_argument("--raw", action="store_true", help="continue PROMPT as it is, without the chat template")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    bench.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Time and print; nothing is written before all is measured."""
    if args.prompts and args.infill:
        raise TrajspecError("give prompts to continue, or --infill TEXT, not both")
    if not args.prompts and not args.infill and args.model != "tiny":
        raise TrajspecError("give prompts, or --infill TEXT: only tiny has prompts of its own here")
    if args.threads is not None and args.threads < 1:
        raise TrajspecError(f"--threads is {args.threads}, expected 1 or more")
    import torch

    from ..benchmark import compare, problems_of
    from ..decoding import as_model

    if args.threads:
        torch.set_num_threads(args.threads)
    model = as_model(args.model, getattr(torch, args.dtype), args.device)
    texts: list[Any] = args.infill or args.prompts or list(PROMPTS)
    if not args.infill and not args.raw and getattr(model.codec, "has_chat", False):
        texts = [[{"role": "user", "content": text}] for text in texts]
    problems = problems_of(model, texts, args.gen_length, bool(args.infill))
    print(
        f"{model.name}, {len(problems)} problems, {args.dtype} on {args.device}, threshold {args.threshold}, "
        f"{args.runs} passes, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    told = compare(
        model, problems, gen_length=args.gen_length, block_length=args.block_length, threshold=args.threshold,
        runs=args.runs, compiles=args.compile, nodes=args.nodes, show=_show,
    )  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(told, indent=1))
    return 0


def _show(line: str) -> None:
    print(line)
    sys.stdout.flush()
