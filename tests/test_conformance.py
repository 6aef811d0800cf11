"""Recorded trajectories replay on both backends, and every altered number is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajspec.cli import main
from trajspec.conformance import BACKENDS, conform, interpreter
from trajspec.ir import TrajspecError

GOLDENS = Path(__file__).parent / "goldens"
FILES = sorted(path.name for path in GOLDENS.glob("*.json"))
COUNTS = {
    "dream_entropy": 9, "dream_maskgit_plus": 9, "dream_topk_margin": 9, "fastdllm_dream_block": 12,
    "fastdllm_dual": 14, "fastdllm_factor": 14, "fastdllm_prefix": 14, "fastdllm_quota": 9,
    "fastdllm_threshold": 14, "freedave_block": 9, "freedave_full_prefix": 9, "freedave_tiny_llada": 12,
    "eb_sampler": 12, "frechet": 9, "dinfer_threshold": 9, "dinfer_hierarchy": 9, "dinfer_credit": 9, "prophet": 9,
    "dpad_all_kept": 8, "sdar_static": 8, "sdar_dynamic": 8, "sglang_low_confidence": 9, "sglang_joint_threshold": 9,
    "klass": 14, "llada_flags": 9, "llada_low_confidence": 14, "wino": 12,
}  # fmt: skip


def test_the_files_are_there():
    assert {Path(name).stem for name in FILES} == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_recorded_runs_replay_on_both_backends(name):
    (report,) = conform(GOLDENS / f"{name}.json")
    assert report.failures == []
    assert (report.passed, report.cases, report.skipped) == (COUNTS[name], COUNTS[name], False)


def altered(folder: Path, name: str, change: Any, keep: int = 1) -> Path:
    """A copy of a golden file with its first cases only, the first of them changed by change(case)."""
    content = json.loads((GOLDENS / f"{name}.json").read_text())
    content["cases"] = content["cases"][:keep]
    change(content["cases"][0])
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def nothing(case: dict) -> None:
    """No change."""


def final(case: dict) -> None:
    case["final"][-1] ^= 1


def prompt_in_final(case: dict) -> None:
    case["final"][0] ^= 1


def nfe(case: dict) -> None:
    case["nfe"] += 1


def commit_step(case: dict) -> None:
    case["commit_step"][0] += 1


def score(case: dict) -> None:
    case["steps"][1][0][2] += 3e-5


def small_score(case: dict) -> None:
    case["steps"][1][0][2] += 3e-6


def step_order(case: dict) -> None:
    case["steps"][0], case["steps"][1] = case["steps"][1], case["steps"][0]


def states(case: dict) -> None:
    case["states"][1] = case["states"][0]


def threshold(case: dict) -> None:
    case["params"]["threshold"] = 0.01


CHANGES = [
    ("llada_low_confidence", nothing, []),
    ("llada_low_confidence", small_score, []),
    ("llada_low_confidence", final, ["final: recorded "]),
    ("llada_low_confidence", prompt_in_final, ["final: recorded "]),
    ("llada_low_confidence", nfe, ["nfe: recorded 9, ours 8"]),
    ("llada_low_confidence", commit_step, ["commit_step: recorded "]),
    ("llada_low_confidence", score, ["step 1, position 8: recorded score"]),
    ("llada_low_confidence", step_order, ["step 0: recorded "]),
    ("dream_entropy", score, ["recorded score"]),
    ("wino", states, ["states: recorded "]),
    ("fastdllm_threshold", threshold, ["nfe: ", "commit_step: "]),
]


@pytest.mark.parametrize(("name", "change", "found"), CHANGES, ids=[f"{a}-{b.__name__}" for a, b, _ in CHANGES])
def test_exactly_what_was_altered_is_reported(tmp_path, name, change, found):
    (report,) = conform(altered(tmp_path, name, change))
    for backend in BACKENDS:
        told = [what for _, by, what in report.failures if by == backend]
        # Another rule may change more than its steps.
        assert len(told) == len(found) or change is threshold
        for text in found:
            assert any(text in what for what in told), told
    assert report.passed == (not found)


def test_one_wrong_backend_is_named(tmp_path, monkeypatch):
    def lazy(plan, model, prompt):
        done = interpreter(plan, model, prompt)
        done.calls += 1
        return done

    monkeypatch.setitem(BACKENDS, "runtime", lazy)
    (report,) = conform(altered(tmp_path, "llada_low_confidence", nothing))
    assert [(backend, what) for _, backend, what in report.failures] == [("runtime", "nfe: recorded 8, ours 9")]


def test_the_clean_rule_of_a_quirk_is_replayed_as_well(tmp_path):
    content = json.loads((GOLDENS / "fastdllm_factor.json").read_text())
    content["cases"] = [case for case in content["cases"] if case.get("clean_rule")][:1]
    content["cases"][0]["clean_rule"]["nfe"] += 1
    path = tmp_path / "fastdllm_factor.json"
    path.write_text(json.dumps(content))
    (report,) = conform(path, ["interpreter"])
    assert [what.split(":")[:2] for _, _, what in report.failures] == [["clean rule", " nfe"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a file of recorded trajectories"),
        ("[]", "not a file of recorded trajectories"),
        ("{}", "lacks 'policy'"),
        ('{"policy": "wino", "cases": [], "format": 2}', "format 1"),
        ('{"policy": "wino", "cases": {}, "format": 1}', "list of cases"),
        ('{"policy": "wino", "cases": [{"id": "a"}], "format": 1}', "case a lacks model, params"),
        ('{"policy": "wino", "cases": [3], "format": 1}', "not a file of recorded trajectories"),
    ],
)
def test_malformed_files_are_named(tmp_path, text, message):
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(TrajspecError, match=f"odd.json: .*{message}"):
        list(conform(path))


def test_a_case_that_cannot_run_fails_alone(tmp_path):
    def more(case):
        case["params"]["patience"] = 3

    (report,) = conform(altered(tmp_path, "llada_low_confidence", more, keep=2), ["interpreter"])
    assert report.passed == 1
    assert "no parameter 'patience'" in report.failures[0][2]

    def unknown_stub(case):
        case["model"]["kind"] = "tree"

    (report,) = conform(altered(tmp_path, "llada_low_confidence", unknown_stub, keep=2), ["interpreter"])
    assert [case for case, _, _ in report.failures] == ["llada_low_confidence-a00"]


def test_nothing_to_replay(tmp_path):
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent.json"):
        with pytest.raises(TrajspecError, match="no recorded trajectories here"):
            list(conform(path))
    with pytest.raises(TrajspecError, match="backend 'gpu'"):
        list(conform(GOLDENS, ["gpu"]))


def test_the_command_counts_and_fails(tmp_path, capsys):
    altered(tmp_path, "llada_low_confidence", nfe, keep=2)
    altered(tmp_path, "klass", nothing)
    (tmp_path / "freedave.json").write_text('{"policy": "freedave", "cases": [], "format": 1}')
    assert main(["conformance", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "freedave.json: skipped (freedave is not built yet)",
        "klass.json: 1 of 1 passed",
        "llada_low_confidence.json: 1 of 2 passed",
        "    llada_low_confidence-a00 (interpreter): nfe: recorded 9, ours 8",
        "    llada_low_confidence-a00 (runtime): nfe: recorded 9, ours 8",
        "2 passed, 1 failed",
    ]
    altered(tmp_path, "llada_low_confidence", nothing)
    assert main(["conformance", str(tmp_path), "--backend", "interpreter"]) == 0
    assert capsys.readouterr().out.endswith("2 passed, 0 failed\n")


def test_the_command_refuses_what_is_no_recording(tmp_path, capsys):
    assert main(["conformance", str(tmp_path)]) == 2
    assert "no recorded trajectories here" in capsys.readouterr().err
    (tmp_path / "odd.json").write_text("{")
    assert main(["conformance", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("trajspec: ")
