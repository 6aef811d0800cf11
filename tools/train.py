"""Trains the bundled model on one core: masked diffusion or next-token prediction on the same problems.

Masked diffusion follows LLaDA's fine-tuning: the prompt stays, response tokens are hidden, and the response is padded
with end tokens to the end of the canvas. Instead of hiding each token with probability t, exactly k of the R tokens are
hidden with k uniform on 1..R and stratified over the batch: the same expectation, less variance.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event

import torch
import torch.nn.functional as F
from torch import Tensor

from tools import tiny_data, tokenizer
from tools.muon import Muon
from tools.tiny_model import TinyConfig, TinyModel

MIX = "arith=0.6,arith_amounts=0.8,facts=0.4,facts_carry=0.1,sort=1.5,sort_long=0.4,code=0.2"
TAIL_WEIGHT = 0.1  # an end token after the first one is nearly free to predict: it must not outweigh the answer


@dataclass
class State:
    """All of a run but the weights: where it stands in time and in the data of each task."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


class Batches:
    """Batches as a function of the state: tasks drawn by weight, items numbered through, fixed shapes."""

    def __init__(self, mix: dict[str, float], seed: int) -> None:
        self.mix, self.seed, self.tok = mix, seed, tokenizer.build()
        self.ids = {name: self.tok.token_to_id(name) for name in tokenizer.SPECIAL}

    def encode(self, problem: tiny_data.Item) -> tuple[list[int], list[int], list[bool] | None]:
        """Prompt ids from start to answer mark, response ids up to the first end token, and which of these may be
        hidden (None: all, and the end tokens behind them)."""
        prompt, answer = (self.tok.encode(text) for text in (problem.prompt, problem.completion))
        asked = None
        if spans := tiny_data.asked(problem):
            asked = [any(a <= start and end <= b for a, b in spans) for start, end in answer.offsets] + [False]
        return ([self.ids[tokenizer.BOS], *prompt.ids, self.ids[tokenizer.ANSWER]],
                [*answer.ids, self.ids[tokenizer.EOS]], asked)

    def next(self, state: State, rows: int, length: int) -> tuple[Tensor, Tensor, Tensor, list[str]]:
        """tokens int64 [R, T], response bool [R, T], weight float [R, T], task of each row; advances the counts."""
        rng = random.Random(f"{self.seed}/{state.step}")
        tokens = torch.full((rows, length), self.ids[tokenizer.EOS])
        response = torch.zeros(rows, length, dtype=torch.bool)
        weight = torch.zeros(rows, length)
        names = rng.choices(list(self.mix), list(self.mix.values()), k=rows)
        for row, name in enumerate(names):
            prompt, answer, asked = self.encode(tiny_data.item(name, "train", state.counts.get(name, 0)))
            state.counts[name] = state.counts.get(name, 0) + 1
            start, end = len(prompt), len(prompt) + len(answer)
            if end > length:
                raise ValueError(f"{name}: an item of {end} tokens does not fit {length}, give a longer --lengths")
            tokens[row, :end] = torch.tensor(prompt + answer)
            response[row, start:] = True
            weight[row, start:end], weight[row, end:] = 1.0, TAIL_WEIGHT
            if asked is not None:
                response[row, start:] = False
                response[row, start:end] = torch.tensor(asked)
                weight[row] = response[row]
        return tokens, response, weight, names


def hide(response: Tensor, whole: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hidden tokens bool [R, T] and the factor R/k float [R, 1] that makes the loss a bound on the likelihood.

    Rows marked in `whole` bool [R] hide all of their response.
    """
    rows = response.shape[0]
    share = (torch.randperm(rows, generator=generator) + torch.rand(1, generator=generator)) / rows
    total = response.sum(1)
    k = (share * total).long().add(1).minimum(total).where(~whole, total)
    noise = torch.rand(response.shape, generator=generator).masked_fill(~response, 2.0)
    order = noise.argsort(1).argsort(1)
    return order < k[:, None], (total / k)[:, None]


def token_losses(model: TinyModel, tokens: Tensor, target: Tensor, causal: bool) -> Tensor:
    """Cross entropy float [R, T] of the target at every entry."""
    logits = model(tokens, causal)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)


def parse_mix(text: str) -> dict[str, float]:
    """"arith=2,sort=1" -> {"arith": 2.0, "sort": 1.0}."""
    mix = {name: float(share) for name, share in (part.split("=") for part in text.split(","))}
    known = tiny_data.TASKS | tiny_data.DRILLS
    if unknown := set(mix) - set(known):
        raise ValueError(f"unknown tasks {sorted(unknown)} in --mix, expected some of {sorted(known)}")
    return mix


def rate(seconds: float, step: int, args: argparse.Namespace) -> float:
    """Share of the full learning rate: warm up by steps, hold, then fall linearly to zero by the clock."""
    left = args.minutes * 60 - seconds
    return max(0.0, min(1.0, (step + 1) / args.warmup, left / (args.decay_minutes * 60)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of checkpoint.pt and log.jsonl")
    parser.add_argument("--objective", choices=("masked", "next"), default="masked")
    parser.add_argument("--mix", type=parse_mix, default=parse_mix(MIX))
    parser.add_argument("--minutes", type=float, default=120, help="length of the whole run, earlier parts included")
    parser.add_argument("--decay-minutes", type=float, default=30)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs=2, default=(56, 96), help="canvas, and a longer one now and then")
    parser.add_argument("--long-every", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.005, help="of the matrices (Muon)")
    parser.add_argument("--adam-lr", type=float, default=0.0015, help="of embedding, head and norms (AdamW)")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--ema", type=float, default=0.998)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs=4, default=(128, 6, 4, 384), help="width, layers, heads, MLP")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--init", type=Path, help="directory of exported weights to start from")
    parser.add_argument("--save-minutes", type=float, default=5)
    parser.add_argument("--steps", type=int, default=10**9, help="stop early, for tests")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    batches = Batches(args.mix, args.seed)
    width, layers, heads, hidden_size = args.sizes
    config = TinyConfig(batches.tok.get_vocab_size(), width, layers, heads, hidden_size)
    model = TinyModel(config)
    if args.init:
        from tools.export import load
        model = load(args.init)
        config = model.config
    matrices = [w for name, w in model.named_parameters() if name.startswith("blocks.") and w.ndim == 2]
    others = [w for name, w in model.named_parameters() if not (name.startswith("blocks.") and w.ndim == 2)]
    optimizers = [Muon(matrices, args.lr), torch.optim.AdamW(others, args.adam_lr, (0.9, 0.98), weight_decay=0.0)]
    average = {name: value.detach().clone() for name, value in model.named_parameters()}
    state, saved = State(), args.out / "checkpoint.pt"
    if args.resume and saved.exists():
        pack = torch.load(saved, weights_only=True)
        model.load_state_dict(pack["model"])
        average = pack["ema"]
        for optimizer, value in zip(optimizers, pack["optimizers"], strict=True):
            optimizer.load_state_dict(value)
        state = State(**pack["state"])
    print(f"{sum(w.numel() for w in model.parameters()):,} parameters, {config}, from step {state.step}", flush=True)

    def save() -> None:
        pack = {"model": model.state_dict(), "ema": average, "optimizers": [o.state_dict() for o in optimizers],
                "state": asdict(state), "config": asdict(config), "objective": args.objective}
        torch.save(pack, saved.with_suffix(".part"))
        saved.with_suffix(".part").replace(saved)

    compiled = torch.compile(token_losses, dynamic=False)
    causal, mask = args.objective == "next", batches.ids[tokenizer.MASK]
    start, before, last_save = time.monotonic(), state.seconds, time.monotonic()
    sums: dict[str, list[float]] = {}
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while state.seconds < args.minutes * 60 and state.step < args.steps and not stop.is_set():
        long = state.step % args.long_every == args.long_every - 1
        length = args.lengths[1] if long else args.lengths[0]
        rows = args.rows * args.lengths[0] // length
        tokens, response, weight, names = batches.next(state, rows, length)
        weight = weight / weight.sum(1, keepdim=True)
        if causal:
            losses = compiled(model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), True)
            per_row = (losses * weight[:, 1:]).sum(1)
        else:
            whole = torch.tensor([name in tiny_data.SHOWN for name in names])
            hidden, factor = hide(response, whole, torch.Generator().manual_seed(args.seed * 10**7 + state.step))
            losses = compiled(model, tokens.masked_fill(hidden, mask), tokens, False)
            per_row = (losses * weight * hidden * factor).sum(1)
        loss = per_row.mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(others, 1.0)
        share = rate(state.seconds, state.step, args)
        for optimizer, full in zip(optimizers, (args.lr, args.adam_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = full * share
            optimizer.step()
            optimizer.zero_grad()
        keep = min(args.ema, state.step / (state.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.values()), list(model.parameters()), 1 - keep)
        state.step += 1
        state.tokens += tokens.numel()
        state.seconds = before + time.monotonic() - start
        for name, value in zip(names, per_row.tolist(), strict=True):
            total = sums.setdefault(name, [0.0, 0])
            total[0], total[1] = total[0] + value, total[1] + 1
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"loss {loss.item()} at step {state.step}: resume from {saved} with a lower --lr")
        if state.step % 50 == 0:
            line = {"step": state.step, "tokens": state.tokens, "minutes": round(state.seconds / 60, 2),
                    "rate": round(share, 3), "norm": round(float(norm), 2),
                    **{name: round(total / count, 4) for name, (total, count) in sorted(sums.items())}}
            sums = {}
            print(json.dumps(line), flush=True)
        if time.monotonic() - last_save > args.save_minutes * 60:
            save()
            last_save = time.monotonic()
    save()


if __name__ == "__main__":
    main()
