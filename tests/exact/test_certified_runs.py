"""Certificates beside what happens: the smallest case of each condition, and random ones where none is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trajspec.exact.certificate import Level, Numerics, certify
from trajspec.ir.canvas import canvas
from trajspec.ir.errors import TrajspecError
from trajspec.ir.interpret import run

from .speculated import PROPOSED, RELAXED, based, compared, planned, replayed, states, written

BITWISE, BOUNDED, APPROX = Level.BITWISE, Level.BOUNDED, Level.APPROX

WITNESSES: list[tuple[str, str, str, int | None, dict[str, Any], str, dict[str, Any], list[str]]] = [
    ("C1", "adaptive", "full", None, {"head": "node"}, "___",
     {"___@0": (1, 2), "___@1": (1, 3), "___@2": (1, 2), "ab_@2": (1, 2)}, ["_b_"]),
    ("C1", "quota", "full", None, {"head": "node"}, "____", {}, ["aa__"]),
    ("C1c", "one", "dual", 2, {"head": "node"}, "____", {}, ["a_b_"]),
    ("C1c", "one", "dual", 2, {"adopt": True}, "____", {}, ["a_b_"]),
    ("C1c", "one", "block_causal", 2, {"adopt": True}, "____", {}, ["a_b_"]),
    ("C1c", "one", "prefix", 2, {"adopt": True}, "____", {}, ["bba_"]),
    ("C2", "one", "full", None, {"isolate": False}, "__", {"__@0": (1, 2)}, ["a_"]),
    ("C3", "one", "dual", 1, {"lookahead": "cheap"}, "__", {"__@0": (1, 2), "b_@1": (1, 2)}, ["b_"]),
    ("C5", "one", "full", None, {"ties": "high"}, "__", {}, ["a_"]),
    ("C6", "timed", "full", None, {"halt": "end"}, "__", {}, ["a_"]),
    ("C6", "one", "full", None, {"budget": 0.0, "then": "stop"}, "__", {}, ["a_"]),
    ("C8b", "one", "full", None, RELAXED | {"accept": "threshold"}, "__", {"__@0": (2, 1), "__@1": (1, 3)}, ["a_"]),
    ("C7", "adaptive", "full", None, {"leave": True}, "__", {"__@0": (3, 4), "__@1": (2, 1)}, ["a_"]),
    ("C8", "one", "full", None, {"accept": "tokens"}, "__", {"__@1": (1, 2)}, ["a_"]),
    ("C8b", "one", "full", None, RELAXED, "___", {"___@0": (2, 1), "___@1": (1, 3)}, ["ab_"]),
    ("C8c", "one", "full", None, {"accept": "consistent"}, "__", {"__@0": (1, 2)}, ["a_"]),
    ("C8d", "one", "full", None, {"accept": "positions"}, "__", {}, ["b_"]),
    ("C8e", "threshold", "full", None, {"accept": "subset"}, "___", {"___@0": (2, 1), "___@1": (1, 2)}, ["a__"]),
    ("C9", "one", "full", 2, {"key": "block"}, "____", {"____@0": (1, 2)}, ["__a_"]),
]  # fmt: skip


@pytest.mark.parametrize("witness", WITNESSES, ids=[f"{item[0]}-{item[1]}-{item[2]}" for item in WITNESSES])
def test_where_the_smallest_case_differs_the_plan_is_not_bitwise(witness):
    name, base, view, block_length, settings, text, rows, drafts = witness
    plan = planned(base, view, block_length, **settings)
    want, got = replayed(based(base, view, block_length), plan, text, rows, drafts)
    assert states(want) != states(got)
    certificate = certify(plan)
    assert certificate.level is not BITWISE and name in [reason.witness for reason in certificate.reasons]
    # The same case without the setting: this is what it does.
    sound = planned(base, view, block_length)
    want, got = replayed(based(base, view, block_length), sound, text, rows, drafts)
    assert states(want) == states(got) and certify(sound).level is BITWISE
    # The run itself knows where it can: what is metered is refuted by its own meters.
    assert certificate.level is APPROX or certificate.with_run(replayed(
        based(base, view, block_length), plan, text, rows, drafts)[1].histories[-1]).level is BOUNDED  # fmt: skip


def test_a_stop_token_inside_a_round():
    settings = {"halt": "end", "ended": True}
    case = ("__", {"__@0": (1, 2)}, ["b_"], 0, (1,))
    want, got = replayed(based("one"), planned("one", **settings), *case)
    assert states(want) == [[-1, -1], [1, -1]] and states(got) == [[-1, -1], [1, -1], [1, 0]]
    certificate = certify(planned("one", **settings))
    assert certificate.level is APPROX and certificate.reasons[0].witness == "C6"
    # Where no row has a stop token, or states in which one has ended are not in the table, it is no loss.
    assert certify(planned("one", **settings), stops=False).level is BITWISE
    want, got = replayed(based("one"), planned("one", halt="end"), *case)
    assert states(want) == states(got) and certify(planned("one", halt="end")).level is BITWISE


@pytest.mark.parametrize("base", ["warm", "order", "drawn"])
def test_noise_of_the_drafted_state_is_other_noise(base):
    plan = planned(base, head="node")
    differ = []
    for seed in range(12):
        want, _ = replayed(based(base), plan, "____", {}, [])
        want, got = replayed(based(base), plan, "____", {}, ["a___", "b___", "_a__", "_b__", "ab__", "ba__"], seed)
        differ.append(states(want) != states(got))
    assert any(differ) and certify(plan).level is not BITWISE


def test_a_packed_call_that_is_off_is_what_unknown_numerics_are_about():
    class Off:
        vocab_size, mask_id = 3, 2

        def __call__(self, tokens: Any, positions: Any, visible: Any) -> np.ndarray:
            return np.zeros((*tokens.shape, 3)) + (len(tokens) > 1) * np.array([0.0, 1e-6, 0.0])

    x = canvas([], gen_length=2, vocab_size=3, mask_id=2)
    PROPOSED["states"] = written("a_")
    assert states(run(based("one"), Off(), x)) != states(run(planned("one"), Off(), x))
    assert certify(planned("one"), numerics=Numerics.UNKNOWN).level is APPROX
    assert certify(planned("one", recheck=1e-5), numerics="unknown").level is BITWISE
    assert states(run(based("one"), Off(), x)) == states(run(planned("one", recheck=1e-5), Off(), x))
    # A cached view goes on with what a packed call left behind.
    assert certify(planned("one", "dual", recheck=1e-5), numerics="unknown").level is APPROX
    assert "A4.kept" in [item.id for item in certify(planned("one", "dual", recheck=1e-5)).assumes]
    assert [item.status for item in certify(planned("one"), numerics="measured").assumes if item.id == "A4.packed"] == [
        "measured"
    ]
    with pytest.raises(TrajspecError, match="numerics is 'fine'"):
        certify(planned("one"), numerics="fine")


HARMLESS: list[tuple[str, str, dict[str, Any]]] = [
    ("one", "full", {"head": "node"}), ("one", "full", {"adopt": True}), ("editing", "full", {"head": "node"}),
    ("threshold", "full", {"head": "node", "adopt": True, "leave": True}), ("klass", "full", {"adopt": True}),
    ("counting", "full", {"leave": True, "head": "node"}), ("warm", "full", {"accept": "subset"}),
    ("one", "dual", {"key": "block", "accept": "subset"}), ("one", "block_causal", {"leave": True, "halt": "end"}),
    ("one", "block_causal", {"lookahead": "cheap"}), ("threshold", "dual", {"ended": True}),
    ("one", "prefix", {"halt": "end"}),
    ("adaptive", "full", {"accept": "relaxed", "strata": (0.3,), "budget": 0.0}), ("order", "full", {"halt": "end"}),
    ("klass", "dual", {}), ("warm", "prefix", {}), ("editing", "block_causal", {}),
]  # fmt: skip


@pytest.mark.parametrize(("base", "view", "settings"), HARMLESS)
def test_what_is_certified_is_not_refuted(base, view, settings):
    assert certify(planned(base, view, **settings)).level is BITWISE
    accepted = 0
    for seed in range(10):
        same, got = compared(base, view, settings, seed)
        assert same
        accepted += int(got.histories[-1].accepted[0])
    assert accepted


@pytest.mark.parametrize(
    ("base", "view", "settings"),
    [("one", "full", RELAXED | {"strata": (0.3,)}), ("threshold", "dual", {"lookahead": "cheap"})],
)
def test_a_run_that_never_left_its_base_is_certified(base, view, settings):
    certificate, seen = certify(planned(base, view, **settings)), set()
    for seed in range(24):
        same, got = compared(base, view, settings, seed)
        level = certificate.with_run(got.histories[-1]).level
        assert same or level is BOUNDED
        seen.add(level)
    assert seen == {BITWISE, BOUNDED}
