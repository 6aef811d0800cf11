"""FreeDave's recorded runs: what is altered in a file is reported, and a run that is not its base's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajspec.cli import main
from trajspec.conformance import BACKENDS, conform, interpreter

GOLDENS = Path(__file__).parent / "goldens"


def altered(folder: Path, change: Any) -> Path:
    content = json.loads((GOLDENS / "freedave_full_prefix.json").read_text())
    content["cases"] = content["cases"][:1]
    change(content["cases"][0])
    path = folder / "freedave_full_prefix.json"
    path.write_text(json.dumps(content))
    return path


def final(case: dict) -> None:
    case["final"][-1] ^= 1


def commit_step(case: dict) -> None:
    case["base"]["commit_step"][0] += 1


def nfe(case: dict) -> None:
    case["base"]["nfe"] += 1


def order(case: dict) -> None:
    case["params"]["order"] = "random"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (final, "speculated: final: recorded"),
        (commit_step, "base: commit_step: recorded"),
        (nfe, "base: nfe: recorded 9, ours 8"),
        (order, "cannot be replayed"),
    ],
)
def test_what_was_altered_is_reported(tmp_path, change, text):
    (report,) = conform(altered(tmp_path, change))
    for backend in BACKENDS:
        assert any(by == backend and text in what for _, by, what in report.failures), report.failures
    assert report.passed == 0


def test_a_speculated_run_that_leaves_its_base_is_reported(tmp_path, monkeypatch):
    def astray(plan, model, prompt):
        done = interpreter(plan, model, prompt)
        if plan.base is not None:
            done.states[1], done.states[2] = done.states[2], done.states[1]
            done.calls += 100
        return done

    monkeypatch.setitem(BACKENDS, "runtime", astray)
    (report,) = conform(altered(tmp_path, lambda case: None))
    assert [(by, what.split(":")[0]) for _, by, what in report.failures] == [("runtime", "speculated")] * 2


def test_the_command_shows_the_calls(capsys):
    assert main(["conformance", str(GOLDENS / "freedave_full_prefix.json"), "--backend", "interpreter"]) == 0
    assert "freedave_full_prefix.json: 9 of 9 passed (calls: base 160, FreeDave 88, ours " in capsys.readouterr().out
