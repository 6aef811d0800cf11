"""docs/policies.md is what its command writes from the code, and says of every policy what there is to say."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tools import policies_page
from trajspec.policies import ALIASES, POLICIES
from trajspec.policies.compat import COMPAT


def test_the_page_is_what_the_code_gives():
    assert policies_page.PAGE.read_text(encoding="utf-8") == policies_page.page(), "run: python -m tools.policies_page"


def test_it_says_all_of_every_policy():
    page = policies_page.page()
    for policy in POLICIES.values():
        section = page.split(f"### {policy.name}\n")[1].split("\n### ")[0]
        assert policy.doc in section and "* deterministic: " in section and "* speculated: " in section
        assert all(f"`{name}={value!r}`" in section for name, value in policy.settings.items())
        assert all(f'compat="{quirk}"' in section for name, quirk in COMPAT if name == policy.name)
        assert all(f"`{alias}`" in section for alias, name in ALIASES.items() if name == policy.name)
    assert set(policies_page.FAULTS) <= set(POLICIES)


def test_the_check_finds_an_old_page(monkeypatch, tmp_path):
    old = tmp_path / "policies.md"
    old.write_text(policies_page.page().replace("BITWISE", "APPROX", 1), encoding="utf-8")
    monkeypatch.setattr(policies_page, "PAGE", old)
    monkeypatch.setattr(sys, "argv", ["policies_page", "--check"])
    with pytest.raises(SystemExit, match="is not what the code gives"):
        policies_page.main()
    policy = replace(POLICIES["klass"], doc="Another sentence.")
    assert "Another sentence." in policies_page.entry(policy)


def test_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "tools.policies_page", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
