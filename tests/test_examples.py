"""Every example runs as it is and shows what it says it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

# What each must print; a new example needs a line here.
SHOWS = {
    "add_a_policy.py": ["#### 27", "same path: True", "not refuted after 200 cases"],
    "add_an_op.py": ["front = beside(masked(x))", "8 calls", "committed at"],
    "antibody_at_half_the_calls.py": ["the policy alone: 19 calls", "10 calls, 68 rows", "47% fewer calls"],
    "break_and_check.py": ["NOT REFUTED after 300", "state 1 is a_, the base has _a", "trajspec explain C8b"],
    "draft_for_a_target.py": [
        "26 tokens: 27 calls alone, 2 with drafts, [10, 16] accepted",
        "lossless (bitwise) relative to tiny-ar alone",
        "lossless in distribution (not bitwise)",
        "trajspec explain G1",
    ],
    "edit_a_plan.py": ["while unfinished(x):", "10 calls", "2 calls", "unknown op 'widow'", "did you mean window?"],
    "fill_in_an_antibody.py": ["llada_low_confidence", "27 calls, 1.00 residues a call", "dream_entropy", "9 calls"],
    "speculate_a_policy.py": [
        "def calm_tree(",
        "tree: 11 base steps in 7 calls",
        "lossless (bitwise) relative to calm",
    ],
    "write_a_policy.py": ["outside_in(threshold=0.9)", "outside_in(threshold=0.5)", "calls  threshold"],
}


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWS)


@pytest.mark.parametrize("name", sorted(SHOWS))
def test_example(name):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for text in SHOWS[name]:
        assert text in done.stdout
