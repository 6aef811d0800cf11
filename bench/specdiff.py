"""Drafting for an autoregressive target: this library beside transformers' own ways, in one run.

    python bench/specdiff.py [--count 30] [--runs 7] [--threads 1] [--assistant FOLDER] [--json FILE]

The target is `tiny-ar`, greedy, on unseen problems of all tasks, one at a time. Plain `generate`; assisted generation
with an autoregressive assistant (`--assistant`: a folder of one with the target's tokenizer, say of `tools.train
--objective next` at the sizes of `tiny`); prompt lookup; ours with `tiny` as the drafter. Calls, sequences and query
tokens are the target's, `drafter` the calls and query tokens of the assistant or drafter; every method runs once in
each of `--runs` passes, a figure is the median with the quartiles, the ratio the median of the pairs. `same`: texts
that are plain generate's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/ is no part of the package

import trajspec as ts
from tools import tiny_data
from trajspec.completion import load_target

LENGTH = 48


class Calls:
    """What a network is asked: calls, sequences, query tokens."""

    def __init__(self, network: Any) -> None:
        self.calls = self.rows = self.positions = 0
        network.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.calls, self.rows, self.positions = self.calls + 1, self.rows + len(ids), self.positions + ids.numel()

    def take(self) -> tuple[int, int, int]:
        """What was asked since the last time."""
        out = (self.calls, self.rows, self.positions)
        self.calls = self.rows = self.positions = 0
        return out


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--count", type=int, default=30, help="problems (default: 30)")
    reader.add_argument("--runs", type=int, default=7, help="passes over them (default: 7)")
    reader.add_argument("--threads", type=int, default=1)
    reader.add_argument("--assistant", help="folder of an autoregressive assistant")
    reader.add_argument("--json", type=Path)
    args = reader.parse_args()
    torch.set_num_threads(args.threads)
    target, tiny = load_target("tiny-ar"), ts.load_model("tiny")
    tasks = sorted(tiny_data.TASKS)
    texts = [tiny_data.item(tasks[n % len(tasks)], "test", n // len(tasks)).prompt for n in range(args.count)]
    chats = [[{"role": "user", "content": text}] for text in texts]
    assert target.codec is not None
    ids = [torch.tensor([[*target.codec.prefix, *target.codec.encode(target.codec.chat(chat))]]) for chat in chats]
    counted = Calls(target.network)
    beside: dict[str, Calls] = {"tiny": Calls(tiny.network)}
    told = {"max_new_tokens": LENGTH, "do_sample": False, "pad_token_id": 0}

    def generate(prompt: Any, number: int, **more: Any) -> list[int]:
        del prompt
        out = target.network.generate(ids[number], **told, **more)[0, ids[number].shape[1] :].tolist()
        return out

    def ours(prompt: Any, number: int, **more: Any) -> list[int]:
        row = ts.decode(target, [prompt], gen_length=LENGTH, keep_path=False, **more)[0]
        return row.token_ids[: row.answer_tokens_with_eos]

    methods: dict[str, tuple[Callable[..., list[int]], dict[str, Any], str]] = {
        "generate": (generate, {}, ""),
        "prompt lookup": (generate, {"prompt_lookup_num_tokens": 8}, ""),
    }
    if args.assistant:
        assistant = load_target(args.assistant).network
        beside["assistant"] = Calls(assistant)

        def assisted(prompt: Any, number: int, tokens: int, least: float = 0.0) -> list[int]:
            # How long its drafts are is read from the assistant's own configuration.
            own = assistant.generation_config
            own.num_assistant_tokens, own.num_assistant_tokens_schedule = tokens, "constant"
            own.assistant_confidence_threshold = least
            return generate(prompt, number, assistant_model=assistant)

        # transformers' own defaults: 20 tokens, fewer where the assistant is unsure.
        methods["assisted, default"] = (assisted, {"tokens": 20, "least": 0.4}, "assistant")
        for tokens in (8, 16, 32, 47):
            methods[f"assisted, {tokens}"] = (assisted, {"tokens": tokens}, "assistant")
    methods |= {
        "trajspec, no drafts": (ours, {}, ""),
        "  mean field, 8": (ours, {"drafter": tiny}, "tiny"),
        "  mean field, 16": (ours, {"drafter": tiny, "draft_length": 16}, "tiny"),
        "  mean field, 32": (ours, {"drafter": tiny, "draft_length": 32}, "tiny"),
        "  mean field, adaptive": (ours, {"drafter": tiny, "draft_length": "adaptive"}, "tiny"),
        "  denoise in 2, 16": (
            ours, {"drafter": tiny, "draft": "denoise", "draft_steps": 2, "draft_length": 16}, "tiny"
        ),
        "  denoise in 4, 47": (
            ours, {"drafter": tiny, "draft": "denoise", "draft_steps": 4, "draft_length": 47}, "tiny"
        ),
        "  auto": (ours, {"drafter": tiny, "draft": "auto", "draft_length": "adaptive"}, "tiny"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    costs: dict[str, Any] = {}
    answers: dict[str, list[list[int]]] = {}
    for run in range(args.runs + 1):
        for name, (method, options, second) in methods.items():
            counted.take()
            for one in beside.values():
                one.take()
            began = time.perf_counter()
            answers[name] = [method(chat, number, **options) for number, chat in enumerate(chats)]
            took = time.perf_counter() - began
            costs[name] = (*counted.take(), beside[second].take() if second else (0, 0, 0))
            if run:  # the first warms up
                seconds[name].append(took)
    print(
        f"tiny-ar (3.7M), greedy, {args.count} unseen problems, at most {LENGTH} tokens, float32, torch "
        f"{torch.__version__}, threads {args.threads}, {args.runs} passes; ratio: plain generate = 1"
    )
    head = "calls   rows positions tok/call drafter positions  ms/token       quartiles  ratio same"
    print(f"{'':24} {head}")
    out = []
    for name in methods:
        tokens = sum(map(len, answers[name]))
        low, middle, high = statistics.quantiles([1e3 * took / tokens for took in seconds[name]], n=4)
        ratio = statistics.median(a / b for a, b in zip(seconds["generate"], seconds[name], strict=True))
        same = sum(a == b for a, b in zip(answers["generate"], answers[name], strict=True))
        calls, rows, positions, more = costs[name]
        print(
            f"{name:24} {calls:>5} {rows:>6} {positions:>9} {tokens / calls:>8.2f} {more[0]:>7} {more[2]:>9} "
            f"{middle:>9.2f} {f'{low:.2f} - {high:.2f}':>15} {ratio:>6.2f} {same} of {len(chats)}"
        )
        out.append(
            {"method": name.strip(), "calls": calls, "rows": rows, "positions": positions, "tokens": tokens,
             "drafter": list(more), "ms_per_token": middle, "quartiles": [low, high], "ratio": ratio, "same": same}
        )  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
