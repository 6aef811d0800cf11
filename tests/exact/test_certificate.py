"""Certificates: their level for every setting and base, and what they say."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.policies.rules import ALONE
from trajspec.exact.certificate import Level, certify, row_certificate, row_drift
from trajspec.ir.parse import parse
from trajspec.passes import speculate
from trajspec.passes.cost import expression
from trajspec.policies import POLICIES

from .speculated import RELAXED, based, planned

BITWISE, LAW, BOUNDED, APPROX = Level.BITWISE, Level.LAW, Level.BOUNDED, Level.APPROX

#: The level of every setting by (base, view), in the order of BASES_AND_VIEWS.
BASES_AND_VIEWS = [
    ("one", "full"), ("quota", "full"), ("warm", "full"), ("order", "full"), ("threshold", "full"), ("klass", "full"),
    ("adaptive", "full"), ("counting", "full"), ("drawn", "full"), ("timed", "full"), ("editing", "full"),
    ("one", "dual"), ("one", "prefix"), ("one", "block_causal"), ("threshold", "dual"), ("klass", "block_causal"),
]  # fmt: skip
LEVELS: list[tuple[dict[str, Any], str]] = [
    # B bitwise, L in law, M bounded by meters, A approximate
    ({}, "BBBBBBBBBBBBBBBB"),
    ({"recheck": 0.1}, "BBBBBBBBBBBBBBBB"),
    ({"isolate": False}, "AAAAAAAAAAAAAAAA"),
    ({"ties": "high"}, "AAAAAAAAAAAAAAAA"),
    ({"key": "block"}, "AAAAAAAAAAABBBBB"),
    ({"head": "node"}, "BAAABAABLABAAAAA"),
    ({"adopt": True}, "BBBBBBBBBBBAAAAA"),
    ({"leave": True}, "BBBBBAABBBBAABAA"),
    ({"halt": "end"}, "BBBBBBBBBABBBBBB"),
    ({"ended": True}, "BBBBBBBBBBBBBBBB"),
    ({"ended": True, "halt": "end"}, "AAAAAAAAAAAAAAAA"),
    (RELAXED | {"accept": "threshold"}, "MMMMMMMMMAMMMMMM"),
    ({"accept": "subset"}, "BMBBMMMBBBMBBBMM"),
    (RELAXED, "MMMMMMMMMMMMMMMM"),
    (RELAXED | {"budget": 0.5}, "MMMMMMMMMMMMMMMM"),
    (RELAXED | {"budget": 0.0}, "BBBBBBBBBBBBBBBB"),
    ({"budget": 1.0, "then": "stop"}, "BBBBBBBBBBBBBBBB"),
    ({"budget": 0.0, "then": "stop"}, "AAAAAAAAAAAAAAAA"),
    ({"accept": "tokens"}, "MMMMMMMMMAMMMMMM"),
    ({"accept": "positions"}, "MMMMMMMMMAMMMMMM"),
    ({"accept": "consistent"}, "MMMMMMMMMAMMMMMM"),
]
LETTER = {"B": BITWISE, "L": LAW, "M": BOUNDED, "A": APPROX}


@pytest.mark.parametrize(("settings", "levels"), LEVELS, ids=[str(settings) for settings, _ in LEVELS])
def test_level_of_every_setting(settings, levels):
    got = {}
    for (base, view), letter in zip(BASES_AND_VIEWS, levels, strict=True):
        level = certify(planned(base, view, **settings)).level
        if level is not LETTER[letter]:
            got[base, view] = level.name
    assert got == {}


@pytest.mark.parametrize(
    ("view", "lookahead", "level"),
    [
        ("dual", "none", BITWISE), ("dual", "exact", BITWISE), ("dual", "cheap", BOUNDED), ("prefix", "cheap", BOUNDED),
        ("prefix", "exact", BITWISE), ("block_causal", "cheap", BITWISE),
    ],
)  # fmt: skip
def test_level_of_lookahead(view, lookahead, level):
    certificate = certify(planned("one", view, lookahead=lookahead))
    assert certificate.level is level
    assert ("F1.epoch" in [item.id for item in certificate.assumes]) == (lookahead == "exact")


@pytest.mark.parametrize("name", sorted(ALONE))
def test_the_published_policies_are_lossless_when_speculated(name):
    assert certify(POLICIES[name].plan()).level is BITWISE
    certificate = certify(speculate(POLICIES[name], "chain"))
    assert certificate.level is BITWISE and certificate.reasons == ()


def test_a_base_plan_is_itself():
    certificate = certify(based("warm"))
    assert certificate.level is BITWISE and certificate.reasons == () and certificate.assumes == ()
    assert str(certificate) == "lossless (bitwise): llada_low_confidence itself runs, nothing is drafted"
    assert certificate.noise == "(seed, role, step, position, token)" and certify(based("one")).noise == ""


def test_the_paragraph():
    text = str(certify(planned("one", "dual", recheck=0.25)))
    assert text.startswith(
        "lossless (bitwise) relative to llada_low_confidence because every committed token is written by the base's "
        "own step on the model's answer for the true state; assumes: "
    )
    assert "packed logits are off by 0.25 at most [declared]" in text and "\n" not in text
    plan = planned("one", **RELAXED)
    certificate = certify(plan)
    line = certificate.reasons[0].line
    assert line is not None and "walk(" in str(plan).split("\n")[line - 1]
    assert str(certificate) == (
        f"approximate relative to llada_low_confidence: line {line} accepts drafted tokens by their confidence (strata "
        "0.6) rather than by the base rule; bound: TV <= E[min(1, off_base + stale)]; fix: accept=base; smallest "
        "witness: trajspec explain C8b"
    )
    assert str(certify(planned("drawn", head="node"))).startswith("lossless in distribution (not bitwise)")
    assert "this run: 3 commits off the base, 0 under a stale view, first at step 17, sum of TV <= 3" in str(
        certificate.with_run({"off_base": 3, "stale": 0, "first": 17, "sum_tv": 3.0})
    )
    assert "for this run" in str(certificate.with_run({"off_base": 0, "stale": 0}))


def test_json():
    plan = planned("one", "dual", lookahead="cheap", accept="tokens", isolate=False)
    made = (
        certify(plan).with_run({"off_base": np.array([2]), "stale": 1, "first": 4, "sum_tv": 3.0, "calls": 7}).as_dict()
    )
    assert json.loads(json.dumps(made)) == made
    assert made["schema"] == 1 and made["level"] == "APPROX"
    assert set(made) == {
        "schema", "level", "plan_level", "relative_to", "reasons", "assumes", "cost", "runtime", "text"
    }  # fmt: skip
    assert [reason["witness"] for reason in made["reasons"]] == ["C2", "C3", "C8"]
    for reason in made["reasons"]:
        assert set(reason) == {"line", "op", "rule", "level", "msg", "drift", "fix", "witness"}
        assert f" {reason['op']}(" in str(plan).split("\n")[reason["line"] - 1]
    assert made["runtime"] == {
        "calls": 7, "drafted": 0, "accepted": 0, "off_base": 2, "stale": 1, "first_divergence": 4, "sum_tv": 3.0
    }  # fmt: skip
    assert {item["status"] for item in made["assumes"]} <= {"proved", "declared", "checked", "measured"}
    assert made["relative_to"]["base"] == "sha256:" + hashlib.sha256(str(plan.base).encode()).hexdigest()


def test_meters_do_not_help_where_they_see_nothing():
    clean = {"off_base": 0, "stale": 0, "sum_tv": 0.0}
    assert certify(planned("one", isolate=False)).with_run(clean).level is APPROX
    assert certify(planned("one", ties="high", **RELAXED)).with_run(clean).level is APPROX
    assert certify(planned("drawn", head="node", **RELAXED)).with_run(clean).level is LAW
    assert row_drift(planned("one", isolate=False), clean)["off_base"] is None


def test_rows():
    assert row_certificate(based("one"))["level"] == "BITWISE"
    assert row_drift(based("one")) == {"off_base": 0, "stale": 0, "first_divergence": None, "sum_tv": 0.0}
    meters = {"drafted": 9, "accepted": 4, "off_base": 1, "stale": 0, "first": 3, "sum_tv": 1.0}
    made = row_certificate(planned("one", **RELAXED), meters)
    assert made["level"] == "BOUNDED" and made["runtime"]["first_divergence"] == 3
    assert row_drift(planned("one", **RELAXED), meters) == {
        "off_base": 1, "stale": 0, "first_divergence": 3, "sum_tv": 1.0
    }  # fmt: skip
    exact = row_certificate(planned("one"), meters | {"off_base": 0, "first": -1, "sum_tv": 0.0})
    assert exact["level"] == "BITWISE" and exact["runtime"]["accepted"] == 4


def test_promising_that_no_row_stops_is_said():
    # Only a window that is not the open block makes an end invisible.
    text = str(planned("one", "dual", halt="end")).replace("where=block(x, size=2)", "where=block_of(x, size=2) == 0")
    plan = parse(text)
    assert certify(plan).level is APPROX and certify(plan).reasons[0].witness == "C6"
    free = certify(plan, stops=False)
    assert free.level is BITWISE and "C6.stops" in [item.id for item in free.assumes]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("        x, held, trail = walk(", "        y, held, trail = walk(", "outside of walk"),
        ("held = nothing(prompt)\n", "held = nothing(prompt)\n    n = 1\n", "carries more"),
        ("    x = prompt\n    held", "    x = remask(prompt, where=free(prompt))\n    held", "does not start as"),
        ("table = verify(x,", "z = remask(x, where=masked(x))\n        table = verify(z,", "table of another state"),
    ],
)
def test_a_plan_that_does_more_than_walk_is_not_certified(old, new, says):
    text = str(planned("one"))
    assert text.count(old) == 1
    text = text.replace(old, new)
    if "y, held" in new:
        text = text.replace("    return x\n\n", "@").replace(
            "    return x\n", "        x = remask(y, where=free(y))\n    return x\n"
        )
        text = text.replace("@", "    return x\n\n")
    if "n = 1" in new:
        text = text.replace("        x, held, trail", "        n = n + 1\n        x, held, trail")
    certificate = certify(parse(text))
    assert certificate.level is APPROX and says in certificate.reasons[0].msg


def test_the_plan_before_carry_is_judged_as_well():
    assert certify(planned("one", carried=False)).level is BITWISE
    assert certify(planned("one", carried=False, adopt=True, isolate=False)).level is APPROX
    assert certify(planned("one", carried=False)).cost["nfe_upper"] == expression("N")


def test_nothing_is_imported_that_is_not_needed():
    code = (
        "import sys\n"
        "from trajspec.exact.certificate import row_certificate, certify\n"
        "from trajspec.passes import speculate\n"
        "from trajspec.policies import POLICIES\n"
        "p = POLICIES['fastdllm_threshold'].plan()\n"
        "row_certificate(p); row_certificate(speculate(p, 'chain'), {'off_base': 0, 'stale': 0})\n"
        "assert not {'sympy', 'torch', 'hypothesis'} & set(sys.modules), sorted(sys.modules)\n"
        "certify(speculate(p, 'chain')).cost\n"
        "assert 'sympy' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
