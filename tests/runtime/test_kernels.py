"""The score kernel: beside a float64 oracle under Triton's interpreter, and compiled for sm_90 without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trajspec.runtime.kernels import score
from trajspec.runtime.meanings import MEANINGS

pytest.importorskip("triton")
CHECKS = Path(__file__).parent / "kernel_checks.py"


def checked(*args, interpret=True):
    """What kernel_checks.py tells, run with Triton's interpreter or without: it is chosen when Triton is imported."""
    env = os.environ | {"TRITON_INTERPRET": "1" if interpret else "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(CHECKS), *args], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_the_kernel_is_the_oracle():
    told = checked("compare")
    assert told["wrong"] == [] and all(0 < error < 2e-6 for error in told["errors"]), told


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("first = tl.min(tl.where(value == best, at, size), axis=0)",
         "first = tl.max(tl.where(value == best, at, -1), axis=0)", "ties"),
        ("newer = best > top", "newer = best >= top", "ties"),
        ("before = tl.where(newer & (top != none), total + 1.0, total)", "before = total", "plain"),
        ("moment = tl.where(newer, scale * (moment + d * before), moment)",
         "moment = tl.where(newer, scale * moment, moment)", "plain"),
        ("value = tl.where(keep, value, none)", "value = tl.where(keep, value, value)", "allowed by row"),
        ("second = tl.where(newer, tl.maximum(second, top), second)", "second = second", "plain"),
        ("others = (there * (parts.others + ~mine))", "others = (there * parts.others)", "plain"),
        ("bad = bad | tl.max(wrong.to(tl.int32), axis=0)", "bad = bad", "no numbers"),
    ],
)  # fmt: skip
def test_a_flaw_is_found(tmp_path, right, wrong, found):
    text = Path(score.__file__).read_text(encoding="utf-8")
    assert text.count(right) == 1, right
    copy = tmp_path / "score.py"
    copy.write_text(text.replace(right, wrong), encoding="utf-8")
    assert found in checked("compare", str(copy))["wrong"]


def test_it_compiles_for_sm_90_without_spills():
    told = checked("compile", interpret=False)
    if not told:
        pytest.skip("no ptxas here")
    assert set(told) == {"bf16", "bf16, mask", "fp32", "fp32, mask"}
    assert all(one["spilled_bytes"] == 0 and one["registers"] <= 255 for one in told.values()), told


def test_elsewhere_it_is_torch_and_agrees_with_the_op():
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(2))
    scores = score.score_rows(logits)
    token, conf = MEANINGS["score"](logits)
    assert torch.equal(scores.token, token)
    assert torch.allclose(scores.log_confidence, conf, atol=1e-6)
    assert torch.allclose(scores.margin, MEANINGS["margin"](logits), atol=1e-6)
    assert torch.allclose(scores.entropy, MEANINGS["entropy"](logits), atol=1e-5)
