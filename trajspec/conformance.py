"""Replays recorded trajectories of the published samplers: final canvas, commit steps, calls, scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .conformance_forwards import filled, spare, stores, without
from .exact.tabular import StubModel
from .ir import Canvas, Policy, TrajspecError, canvas
from .ir.interpret import Step, run
from .ir.nodes import Value, walk
from .ir.opset.score import log_prob
from .ir.plan import Plan
from .policies import ALIASES, POLICIES, get_policy

TOLERANCE = 1e-5
TINY_TOLERANCE = 2e-5  # float32 models
# What a file says that is no parameter of ours: it shapes the canvas, or has the value that changes nothing.
_NEUTRAL = {"gen_length", "mask_id", "temperature", "remasking", "alg", "alg_temp", "cache", "dropout", "draw"}
_UNUSED = {
    "fastdllm_threshold": {"steps"}, "fastdllm_factor": {"steps"}, "fastdllm_dream_block": {"steps", "eps"},
    "fastdllm_dream_entropy": {"steps"}, "frechet": {"steps"},
    **{f"dinfer_{rule}": {"maximum_unroll", "expected_tpf"} for rule in ("threshold", "hierarchy", "credit")},
}  # fmt: skip
# Files about a view hold runs of several policies.
_VIEWS = ("fastdllm_prefix", "fastdllm_dual", "fastdllm_dream_block")
# The recorded Dream runs keep the steps that commit nothing; ours pass over them unless told otherwise.
_DREAM = ("dream_maskgit_plus", "dream_topk_margin", "dream_entropy", "fastdllm_dream_entropy")
_ALWAYS = dict.fromkeys(_DREAM, "dream.idle_steps")
# Block-causal references keep a complete block's keys by a forward of its own.
_SDAR = ("sdar_static", "sdar_dynamic")
_SGLANG = ("sglang_low_confidence", "sglang_joint_threshold")
_ALWAYS |= dict.fromkeys(_SDAR, "sdar.store_calls") | dict.fromkeys(_SGLANG, "sglang.extra_kv_round")
# dInfer's runner asks in groups, and records the forwards that found their block complete.
_ALWAYS |= dict.fromkeys(("dinfer_threshold", "dinfer_hierarchy", "dinfer_credit"), "dinfer.unroll")
# What is compared there are bases and speculated runs (conformance_freedave).
FREEDAVE = ("freedave_block", "freedave_full_prefix", "freedave_tiny_llada")
_NEEDED = ("id", "model", "params", "prompt", "final", "commit_step", "nfe")
# Which recorded overwrites happen depends on an unspecified tie order: only the clean rule can be replayed.
_CLEAN_ONLY = {"klass.fallback_overwrite"}


@dataclass
class Replay:
    """What one run did, in the terms of the recorded files."""

    states: list[list[int]]
    masked: list[list[bool]]
    calls: int
    rows: int
    positions: int
    scores: list[dict[str, Any]] = field(default_factory=list)
    stores: int | None = None  # calls that filled the cache of the block-causal view


Backend = Callable[[Plan, Any, Canvas], Replay]


@dataclass
class Report:
    """The outcome of one file: failures are (case, backend, what differs)."""

    file: str
    policy: str
    cases: int = 0
    passed: int = 0
    skipped: bool = False
    calls: dict[str, int] = field(default_factory=dict)  # of all cases, where runs of several kinds are compared
    failures: list[tuple[str, str, str]] = field(default_factory=list)


def score_values(plan: Plan) -> dict[str, Value]:
    """What the plan ranks positions by: the operand of its last `top`, and of its last `bottom`; and the logits."""
    found: dict[str, Value] = {}
    if plan.base is not None:  # a round takes several base steps: their values are no values of the plan
        return found
    for item in walk(plan.step):
        if item.op.calls_model:
            found["logits"] = item.results[0]
        if item.op.name in ("top", "bottom") and item.args[0] is not None:
            found[item.op.name] = item.args[0]
    return found


def interpreter(plan: Plan, model: Any, prompt: Canvas) -> Replay:
    """Run `plan` through the reference interpreter."""
    wanted = score_values(plan)
    scores: list[dict[str, Any]] = []

    def watch(step: Step) -> None:
        scores.append({name: _plain(value, step.values[value]) for name, value in wanted.items()})

    if not isinstance(model, StubModel):
        from .runtime.denoiser import ToNumpy

        model = ToNumpy(model)
    done = run(plan, model, prompt, on_step=watch)
    states = [[int(token) for token in row.tokens] for row in done.path]
    masked = [[bool(hidden) for hidden in row.masked] for row in done.path]
    return Replay(states, masked, done.calls, done.rows, done.positions, scores)


def torch_runtime(plan: Plan, model: Any, prompt: Canvas) -> Replay:
    """Run `plan` through the torch runtime, on one row in float64."""
    from .runtime.replay import replay

    wanted = score_values(plan)
    states, masked, counts, values = replay(plan, model, prompt, list(wanted.values()))
    scores = [{name: _plain(value, table[value]) for name, value in wanted.items()} for table in values]
    beside = counts.kinds.get("prefill", 0) + counts.kinds.get("store", 0)
    return Replay(states, masked, counts.calls, counts.rows, counts.positions, scores, beside)


BACKENDS: dict[str, Backend] = {"interpreter": interpreter, "runtime": torch_runtime}


def _plain(value: Value, data: Any) -> Any:
    return np.exp(data) if value.kind.name == "conf" else np.asarray(data)


def conform(path: str | Path, backends: Sequence[str] = ("interpreter", "runtime")) -> Iterator[Report]:
    """One report a file: all `*.json` of a folder, or one file.

    Raises TrajspecError when there is nothing to replay or a file is not of the format.
    """
    path = Path(path)
    unknown = [name for name in backends if name not in BACKENDS]
    if unknown:
        raise TrajspecError(f"backend {unknown[0]!r} is none of {', '.join(BACKENDS)}")
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise TrajspecError(f"{path}: no recorded trajectories here; expected a folder with *.json files, or one file")
    for file in files:
        yield _file(file, backends)


def _file(file: Path, backends: Sequence[str]) -> Report:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        name, cases = content["policy"], content["cases"]
        if content.get("format") != 1 or not isinstance(cases, list) or not isinstance(name, str):
            raise ValueError("expected format 1, a policy's name and a list of cases")
        for number, case in enumerate(cases):
            lacking = [key for key in _NEEDED if key not in case]
            if lacking:
                raise ValueError(f"case {case.get('id', number)} lacks {', '.join(lacking)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise TrajspecError(f"{file}: not a file of recorded trajectories (format 1): {what}") from None
    report = Report(file.name, name, len(cases))
    if name in FREEDAVE:
        from .conformance_freedave import replay_file

        return replay_file(report, cases, {name: BACKENDS[name] for name in backends}, file.parent)
    if name not in _VIEWS and ALIASES.get(name, name) not in POLICIES:
        report.skipped = True
        return report
    for case in cases:
        wrong = []
        for backend in backends:
            try:
                wrong += [(case["id"], backend, what) for what in _case(name, case, BACKENDS[backend], file.parent)]
            except (TrajspecError, KeyError) as error:
                wrong.append((case["id"], backend, f"cannot be replayed: {error}"))
        report.failures += wrong
        report.passed += not wrong
    return report


def _case(name: str, case: dict[str, Any], backend: Backend, folder: Path) -> list[str]:
    """What differs between the recorded run and ours; nothing when it conforms."""
    full = _policy_name(name, case["params"])
    quirk = case.get("quirk")
    compat = _ALWAYS.get(full, quirk)
    if quirk in _CLEAN_ONLY:
        return _compare(backend(*_setup(full, None, case, folder)), case["clean_rule"], case, "clean rule: ")
    real = "weights" in case["model"]
    # The references leave the mask id in the softmax; on stubs that have no bias against it this is a compat name.
    wrong = _compare(backend(*_setup(full, compat, case, folder, predict_mask=real)), case, case, "")
    if real and not quirk:
        ours = backend(*_setup(full, compat, case, folder))
        wrong += _compare(ours, {key: case[key] for key in ("final", "nfe", "commit_step")}, case, "mask id excluded: ")
    if case.get("clean_rule"):
        wrong += _compare(backend(*_setup(full, None, case, folder)), case["clean_rule"], case, "clean rule: ")
    unneeded = spare(case)
    if unneeded is not None:
        ours = backend(*_setup(full, None, case, folder, predict_mask=quirk == "mask_predicted"))
        wrong += _compare(ours, without(unneeded, case), case, "clean rule: ")
    return wrong


def _policy_name(file: str, params: dict[str, Any]) -> str:
    """The policy of one case: a file about a view says by its parameters which rule ran."""
    if file == "fastdllm_dream_block":
        return "fastdllm_dream_entropy" if params["alg"] == "entropy" else file
    if file in _VIEWS:
        return next((f"fastdllm_{rule}" for rule in ("threshold", "factor") if rule in params), "fastdllm_quota")
    return ALIASES.get(file, file)


def _setup(
    name: str, compat: str | None, case: dict[str, Any], folder: Path, predict_mask: bool = False
) -> tuple[Plan, Any, Canvas]:
    params = case["params"]
    policy: Policy = get_policy(name, compat)
    if predict_mask:
        policy = replace(policy, predict_mask=True)
    settings = {}
    for key, value in params.items():
        if key in policy.settings:
            settings[key] = value
        elif key not in _NEUTRAL | _UNUSED.get(name, set()) and value:
            raise TrajspecError(f"{name} has no parameter {key!r}")
    if "block_steps" in policy.settings:
        settings["block_steps"] = params["steps"] // (params["gen_length"] // params["block_length"])
    model = _model(json.dumps(case["model"]), name.startswith("dream"), folder)
    if params.get("draw") == "argmax" and "temperature" in settings:
        settings["temperature"] = 0
    if name in _SDAR + _SGLANG:
        return policy.bind(**settings).plan("block_causal"), model, _whole_blocks(case, model)
    prompt = canvas(
        case["prompt"], gen_length=params["gen_length"], vocab_size=model.vocab_size, mask_id=params["mask_id"]
    )
    return policy.bind(**settings).plan(params.get("cache") or "full"), model, prompt


def _whole_blocks(case: dict[str, Any], model: Any) -> Canvas:
    """The prompt and masks up to a whole number of blocks, which count from position 0."""
    params, prompt = case["params"], case["prompt"]
    length = -(-(len(prompt) + params["gen_length"]) // params["block_length"]) * params["block_length"]
    hidden = [at >= len(prompt) for at in range(length)]
    tokens = prompt + [params["mask_id"]] * (length - len(prompt))
    return canvas(tokens, masked=hidden, vocab_size=model.vocab_size, mask_id=params["mask_id"])


@lru_cache(maxsize=8)
def _model(spec: str, shift: bool, folder: Path) -> Any:
    told = json.loads(spec)
    if "weights" not in told:
        return StubModel.from_spec(told, shift=shift)
    from .runtime.models import load_model

    return load_model(f"{(folder / told['weights']).parent}")


def _compare(replay: Replay, expected: dict[str, Any], case: dict[str, Any], label: str) -> list[str]:
    wrong = []
    prompt = len(case["prompt"])

    def check(what: str, ours: Any, theirs: Any) -> None:
        if ours != theirs:
            wrong.append(f"{label}{what}: recorded {theirs}, ours {ours}")

    check("final", replay.states[-1], expected["final"])
    check("nfe", replay.calls - (replay.stores or 0), expected["nfe"])
    commits = _commit_steps(replay, prompt)
    after_eos = filled(case)
    check("commit_step", [None if prompt + n in after_eos else step for n, step in enumerate(commits)],
          expected["commit_step"])  # fmt: skip
    filling = stores(case)
    if filling is not None and replay.stores is not None:
        check("calls that fill the cache", replay.stores, filling)
    if "states" in expected:
        check("states", replay.states, expected["states"])
    if "rows" in expected:
        check("rows", replay.rows, expected["rows"])
    if "query_tokens" in expected:
        check("positions", replay.positions, expected["query_tokens"])
    if "steps" in expected and not wrong:
        wrong += [label + what for what in _steps(replay, expected["steps"], case)]
    return wrong


def _commit_steps(replay: Replay, prompt: int) -> list[int | None]:
    last: list[int | None] = [None] * (len(replay.states[0]) - prompt)
    for step, (before, after) in enumerate(zip(replay.states, replay.states[1:], strict=False)):
        for place in range(prompt, len(after)):
            if before[place] != after[place]:
                last[place - prompt] = None if replay.masked[step + 1][place] else step
    return last


def _steps(replay: Replay, expected: list[list[list[Any]]], case: dict[str, Any]) -> Iterator[str]:
    tolerance = TOLERANCE if "vocab" in case["model"] else TINY_TOLERANCE
    opens = [kind for kind, _, _ in case["forwards"]] if "alg" in case["params"] and "forwards" in case else []
    if len(replay.states) - 1 != len(expected):
        yield f"steps: recorded {len(expected)}, ours {len(replay.states) - 1}"
        return
    for step, changes in enumerate(expected):
        before, after = replay.states[step], replay.states[step + 1]
        ours = [(place, after[place]) for place in range(len(after)) if before[place] != after[place]]
        ours = [(place, token) for place, token in ours if place not in filled(case)]
        if ours != [(place, token) for place, token, _ in changes]:
            yield f"step {step}: recorded {changes}, ours {ours}"
            return
        for place, token, score in changes:
            # Masked again: judged by the score that ranks from below. The opening of a block: by its probability.
            found = replay.scores[step]
            again = replay.masked[step + 1][place] and "bottom" in found
            by = found["bottom" if again or "top" not in found else "top"]
            ours_here = float(by[place])
            if opens[step : step + 1] == ["full"]:
                row = replay.scores[step]["logits"][place]
                ours_here = float(np.exp(log_prob(row[None], np.asarray([token]))[0]))
            if not abs(ours_here - score) <= tolerance:
                yield f"step {step}, position {place}: recorded score {score}, ours {ours_here:.6f}"
