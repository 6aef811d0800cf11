"""Golden texts: compared as they are, written anew with one flag."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# One thread a process: equality bit for bit is promised for one, and small models gain nothing from more.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write golden texts instead of comparing them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` must be what `golden/name.txt` beside the test says."""

    def compare(name: str, text: str) -> None:
        file = Path(request.path).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--refresh-golden"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"{file.name} is missing; write it with --refresh-golden and read it"
        assert text == file.read_text(encoding="utf-8")

    return compare
