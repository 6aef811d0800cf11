"""Replays FreeDave's recorded runs: our base is theirs step by step, and our speculation ends where both end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trajspec as ts

from .conformance import Backend, Report, _commit_steps, _model
from .ir import Canvas, Policy, TrajspecError, canvas
from .ir.plan import Plan
from .passes import speculate
from .passes.speculate import named

_KNOWN = {
    "gen_length", "block_length", "tokens_per_step", "draft_steps", "order", "temperature", "mask_id", "cache",
}  # fmt: skip


@ts.policy
def freedave_base(x: Any, logits: Any, *, tokens_per_step: int = 1, block_length: int = 32) -> Any:
    """Commit the surest tokens of the block, the same number each step (FreeDave's stepwise decoder)."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, tokens_per_step, where=ts.window(x, size=block_length)))


@ts.policy
def freedave_left(x: Any, logits: Any, *, tokens_per_step: int = 1, block_length: int = 32) -> Any:
    """Commit the first tokens of the block, the same number each step (FreeDave, alg_temp -1)."""
    token = ts.argmax(logits)
    return ts.unmask(x, token, where=ts.first(tokens_per_step, where=ts.window(x, size=block_length)))


def setup(case: dict[str, Any], folder: Path) -> tuple[Plan, Any, Canvas]:
    """The plan of a case's base, its model and its canvas."""
    params = case["params"]
    if params["temperature"] or params["order"] not in ("confidence", "left_to_right") or set(params) - _KNOWN:
        raise TrajspecError(f"freedave has no base for {params}; expected temperature 0 and a known order")
    policy: Policy = freedave_left if params["order"] == "left_to_right" else freedave_base
    policy = policy.bind(tokens_per_step=params["tokens_per_step"], block_length=params["block_length"])
    model = _model(json.dumps(case["model"]), False, folder)
    length = len(case["final"]) - len(case["prompt"])
    # Block-causal blocks count from position 0, the others from the end of the prompt.
    start = 0 if params["cache"] == "block_causal" else None
    prompt = canvas(
        case["prompt"], gen_length=length, start=start, vocab_size=model.vocab_size, mask_id=params["mask_id"]
    )
    return policy.plan(params["cache"]), model, prompt


def replay_case(case: dict[str, Any], backend: Backend, folder: Path) -> tuple[list[str], tuple[int, int, int]]:
    """What differs from the recorded run, and the calls: the recorded base's, FreeDave's, ours.

    Our base must commit what theirs does, step by step, in as many calls. Our speculation, with a chain of as many
    drafts, must go through the same states; its number of calls is its own.
    """
    plan, model, prompt = setup(case, folder)
    base = backend(plan, model, prompt)
    chain = named("chain")(nodes=case["params"]["draft_steps"] + 1)
    ours = backend(speculate(plan, chain), model, prompt)
    theirs, wrong = case["base"], []
    for what, mine, told in (
        ("base: commit_step", _commit_steps(base, len(case["prompt"])), theirs["commit_step"]),
        ("final_equal", base.states[-1] == case["final"], theirs["final_equal"]),
        ("speculated: states", ours.states, base.states),
        ("speculated: final", ours.states[-1], case["final"] if theirs["final_equal"] else base.states[-1]),
    ):
        if mine != told:
            wrong.append(f"{what}: recorded {told}, ours {mine}")
    if case["params"]["cache"] != "block_causal" and base.calls != theirs["nfe"]:
        wrong.append(f"base: nfe: recorded {theirs['nfe']}, ours {base.calls}")
    if ours.calls > base.calls:
        wrong.append(f"speculated: {ours.calls} calls, more than the {base.calls} of the base")
    return wrong, (theirs["nfe"], case["nfe"], ours.calls)


def replay_file(
    report: Report, cases: Sequence[dict[str, Any]], backends: Mapping[str, Backend], folder: Path
) -> Report:
    """`report` with the outcome of all cases, and the calls of the base, of FreeDave and of ours over all of them."""
    report.calls = dict.fromkeys(("base", "FreeDave", "ours"), 0)
    for case in cases:
        wrong, calls = [], (0, 0, 0)
        for name, backend in backends.items():
            try:
                found, calls = replay_case(case, backend, folder)
                wrong += [(case["id"], name, what) for what in found]
            except (TrajspecError, KeyError) as error:
                wrong.append((case["id"], name, f"cannot be replayed: {error}"))
        for name, count in zip(report.calls, calls, strict=True):
            report.calls[name] += count
        report.failures += wrong
        report.passed += not wrong
    return report
