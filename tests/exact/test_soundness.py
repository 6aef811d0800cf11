"""Certificates beside random plans, models and drafters; `python -m bench.soundness` is the long run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from bench import soundness
from bench.soundness import Tally, fuzz
from trajspec.exact.certificate import Certificate, Level

COUNT = 1000


@cache
def tally() -> Tally:
    return fuzz(COUNT, seed=20)


def test_what_is_called_bitwise_never_differs() -> None:
    seen = tally()
    assert seen.triples >= COUNT
    assert not seen.wrong, seen.wrong[0]
    assert seen.differed["BITWISE"] == 0


def test_it_was_worth_something() -> None:
    seen = tally()
    assert seen.levels["BITWISE"] > 300 and seen.differed["APPROX"] > 20 and seen.differed["BOUNDED"] > 5
    for event in (
        "accepted", "several rounds", "several steps in a round", "a refresh crossed", "eos inside a round",
        "bitwise with stop tokens",
    ):  # fmt: skip
        assert seen.coverage[event] > 0, event


def test_a_wrong_certificate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fuzz over certificates that call everything bitwise."""
    honest = soundness.certify

    def careless(plan: Any) -> Certificate:
        return replace(honest(plan), plan_level=Level.BITWISE, reasons=())

    monkeypatch.setattr(soundness, "certify", careless)
    soundness._plan.cache_clear()
    try:
        seen = fuzz(200, seed=3)
    finally:
        soundness._plan.cache_clear()
    assert seen.wrong and "the base has" in seen.wrong[0]
