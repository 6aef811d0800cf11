"""Exact answers on unseen problems: one token per call, and all tokens above a threshold, within blocks of 32."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tools import export, tiny_data, tokenizer
from tools.tiny_model import TinyModel

BLOCK = 32


@dataclass(frozen=True)
class Decoded:
    """Response ids int64 [R, G] and the number of calls int64 [R] each row took."""

    tokens: Tensor
    calls: Tensor


@torch.no_grad()
def decode(model: TinyModel, prompts: Tensor, length: int, mask: int, eos: int, threshold: float) -> Decoded:
    """Fills `length` masked tokens after prompts int64 [R, P], block by block, the most confident first.

    A call commits every token of the block with a probability of at least `threshold`, and always the best one; a
    threshold above 1 commits one token per call. A row stops when all before its first end token is filled.
    """
    rows, start = prompts.shape
    tokens = torch.cat((prompts, torch.full((rows, length), mask)), 1)
    calls, live = torch.zeros(rows, dtype=torch.long), torch.arange(rows)
    for begin in range(start, start + length, BLOCK):
        end = min(begin + BLOCK, start + length)
        while True:
            answer = tokens[live, start:]
            ended = ((answer == eos) & ((answer == mask).cumsum(1) == 0)).any(1)
            live = live[~ended]
            busy = live[(tokens[live, begin:end] == mask).any(1)]
            if not len(busy):
                break
            logits = model(tokens[busy])[:, begin:end].float()
            logits[..., mask] = float("-inf")
            confidence, choice = logits.softmax(-1).max(-1)
            confidence = confidence.masked_fill(tokens[busy, begin:end] != mask, -1.0)
            commit = confidence >= threshold
            commit[torch.arange(len(busy)), confidence.argmax(1)] = True
            tokens[busy, begin:end] = torch.where(commit, choice, tokens[busy, begin:end])
            calls[busy] += 1
    return Decoded(tokens[:, start:], calls)


@torch.no_grad()
def decode_causal(model: TinyModel, prompts: Tensor, length: int, eos: int) -> Decoded:
    """Greedy next-token decoding of prompts int64 [R, P], for the other objective."""
    tokens, calls = prompts, torch.zeros(len(prompts), dtype=torch.long)
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(length):
        best = model(tokens, causal=True)[:, -1].argmax(-1).masked_fill(done, eos)
        tokens, calls, done = torch.cat((tokens, best[:, None]), 1), calls + ~done, done | (best == eos)
    return Decoded(tokens[:, prompts.shape[1]:], calls)


def interval(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    share, spread = right / total, z * z / total
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return centre - half, centre + half


def by_length(encoded: Iterable[list[int]]) -> dict[int, list[int]]:
    """Indices of prompts of one length: a batch then needs no padding."""
    groups: dict[int, list[int]] = {}
    for index, ids in enumerate(encoded):
        groups.setdefault(len(ids), []).append(index)
    return groups


@dataclass
class Score:
    """How a task went: right answers, problems, calls and answer tokens (end token included), and some failures."""

    right: int
    total: int
    calls: int
    tokens: int
    wrong: list[tuple[str, str]]


def score(model: TinyModel, task: str, count: int, length: int, threshold: float, causal: bool = False,
          rows: int = 128, first: int = 0) -> Score:
    """Decodes test problems `first` to `first + count - 1` of a task."""
    tok = tokenizer.build()
    names = (tokenizer.BOS, tokenizer.ANSWER, tokenizer.EOS, tokenizer.MASK)
    bos, answer, eos, mask = (tok.token_to_id(name) for name in names)
    problems = [tiny_data.item(task, "test", first + index) for index in range(count)]
    encoded = [[bos, *tok.encode(problem.prompt).ids, answer] for problem in problems]
    result = Score(0, count, 0, 0, [])
    for group in by_length(encoded).values():
        for at in range(0, len(group), rows):
            part = group[at:at + rows]
            prompts = torch.tensor([encoded[index] for index in part])
            out = (decode_causal(model, prompts, length, eos) if causal
                   else decode(model, prompts, length, mask, eos, threshold))
            result.calls += int(out.calls.sum())
            for index, ids in zip(part, out.tokens.tolist(), strict=True):
                ids = ids[:ids.index(eos)] if eos in ids else ids
                result.tokens += len(ids) + 1
                text = tok.decode(ids)
                if tiny_data.is_correct(problems[index], text):
                    result.right += 1
                else:
                    result.wrong.append((problems[index].prompt, text))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="directory of an exported model, or a checkpoint.pt")
    parser.add_argument("--tasks", nargs="+", default=sorted(tiny_data.TASKS), choices=sorted(tiny_data.TASKS))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--length", type=int, default=64, help="masked tokens after the prompt")
    parser.add_argument("--thresholds", type=float, nargs="+", default=(2.0, 0.9), help="above 1: one token per call")
    parser.add_argument("--objective", choices=("masked", "next"), default="masked")
    parser.add_argument("--raw", action="store_true", help="of a checkpoint, the latest weights, not their average")
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong answers of a task")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = export.load(args.model) if args.model.is_dir() else export.from_checkpoint(args.model, args.raw)
    print("| task | decoding | exact | 95% interval | calls per problem | tokens per call |\n|---|---|---|---|---|---|")
    for task in args.tasks:
        for threshold in args.thresholds:
            s = score(model, task, args.count, args.length, threshold, args.objective == "next")
            low, high = interval(s.right, s.total)
            how = "one token per call" if threshold > 1 else f"threshold {threshold}"
            print(f"| {task} | {how} | {s.right}/{s.total} = {s.right / s.total:.1%} | {low:.1%} to {high:.1%} | "
                  f"{s.calls / s.total:.1f} | {s.tokens / s.calls:.2f} |", flush=True)
            for prompt, text in s.wrong[:args.wrong]:
                print(f"    {prompt!r} -> {text!r}")


if __name__ == "__main__":
    main()
