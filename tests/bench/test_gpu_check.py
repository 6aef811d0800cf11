"""The GPU check on small shapes on the CPU: every part ends, what is wrong is said, and failed parts are reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import gpu_check
from bench.gpu_parts import PARTS, Setting, adversarial, equal, off
from trajspec.runtime.kernels.score import score_rows

SMALL = Setting("cpu", small=True)


@pytest.mark.parametrize("name", PARTS)
def test_every_part_ends_on_the_cpu(name):
    rows = list(PARTS[name][0](SMALL))
    assert len({what for what, *_ in rows}) == len(rows) >= 2
    assert not [what for what, _, _, ok in rows if ok is False]
    for _, value, unit, _ in rows:
        assert isinstance(value, (int, float, str, bool)) and isinstance(unit, str)
        json.dumps(value)
    controls = [what for what, *_ in rows if "(control)" in what]
    assert controls or name not in ("kernel", "graphs")


def test_a_spoilt_score_is_wrong():
    logits = adversarial(50, torch.float32, "cpu")
    told = score_rows(logits, None, None, True, True)
    assert off(told, logits) is None
    assert "tokens" in (off(told._replace(token=told.token + 1), logits) or "")
    for name in ("log_confidence", "margin", "entropy"):
        spoilt = told._replace(**{name: getattr(told, name) * 1.01 + 1e-4})
        assert f"{name} is off" in (off(spoilt, logits) or "")
    assert equal([logits], [logits.clone()]) and not equal([logits], [logits * 1.0000002]) and not equal([logits], [])


def test_the_command(tmp_path):
    out = tmp_path / "told.json"
    command = [
        sys.executable,
        "bench/gpu_check.py",
        "--device",
        "cpu",
        "--small",
        "--parts",
        "kernel",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert told["ok"] and told["parts"][0]["part"] == "kernel" and "ok" in done.stdout
    missing = subprocess.run(command[:3] + ["cuda"], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert torch.cuda.is_available() or "no CUDA device" in missing.stderr


def test_a_part_that_fails_is_reported(tmp_path, monkeypatch):
    told = {"part": "kernel", "rows": [{"ok": True}, {"ok": None}], "error": None}
    assert gpu_check.good([told])
    assert not gpu_check.good([told, told | {"error": "stopped after 3 s"}])
    assert not gpu_check.good([told | {"rows": [{"ok": False}]}])

    class Args:
        device, small = "cpu", True

    monkeypatch.setattr(gpu_check, "__file__", str(tmp_path / "gone.py"))
    assert "ended with 2" in gpu_check.run_part("kernel", Args(), 60.0)["error"]
    (tmp_path / "slow.py").write_text(
        'import time\nprint(\'{"what": "first", "value": 1}\', flush=True)\ntime.sleep(60)'
    )
    monkeypatch.setattr(gpu_check, "__file__", str(tmp_path / "slow.py"))
    found = gpu_check.run_part("kernel", Args(), 3.0)
    assert found["error"] == "stopped after 3 s" and found["rows"][0]["what"] == "first"
