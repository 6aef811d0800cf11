"""Certificates: their level for every setting and base, beside what really happens on the smallest cases."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

import trajspec as ts
from trajspec.exact.certificate import Level, Numerics, certify, row_certificate, row_drift
from trajspec.exact.models import Table, read_key, unletters
from trajspec.exact.tabular import HashModel
from trajspec.ir.ahead import Draft
from trajspec.ir.canvas import Canvas, canvas
from trajspec.ir.drafter import Drafter
from trajspec.ir.errors import TrajspecError
from trajspec.ir.interpret import Run, run
from trajspec.ir.op import op
from trajspec.ir.parse import parse
from trajspec.ir.plan import Plan
from trajspec.passes import speculate
from trajspec.passes.cost import expression
from trajspec.policies import POLICIES

BITWISE, LAW, BOUNDED, APPROX = Level.BITWISE, Level.LAW, Level.BOUNDED, Level.APPROX
RELAXED = {"accept": "relaxed", "strata": (0.6,)}

#: What the drafters below propose; set by `drafting`.
PROPOSED: dict[str, Any] = {}


@op("proposed(x: canvas, held: held) -> draft: draft")
def proposed(x: Canvas, held: Any) -> Draft:
    """The states of PROPOSED, whatever the canvas is."""
    states = PROPOSED["states"](x)
    tokens = np.array([state[0] for state in states], np.int64).reshape(len(states), x.tokens.shape[-1])
    return Draft(
        tokens, np.array([state[1] for state in states], bool).reshape(tokens.shape), np.ones(len(states), bool)
    )


PROPOSE = Drafter(proposed)


def written(*states: str) -> Any:
    """A drafter of states written as `a_b`."""

    def draft(x: Canvas) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = [np.array(unletters(state)) for state in states]
        return [(np.where(row < 0, x.mask_id, row), row < 0) for row in rows]

    return draft


def adversary(seed: int, path: list[Canvas]) -> Any:
    """A drafter of states of the base's own path, some of them altered: written over, or with mask ids."""
    chance = random.Random(seed)

    def draft(x: Canvas) -> list[tuple[np.ndarray, np.ndarray]]:
        states = []
        for _ in range(chance.randint(0, 4)):
            state = chance.choice(path)
            tokens, masked = state.tokens.copy(), state.masked.copy()
            for place in np.flatnonzero(x.free):
                if chance.random() < 0.15:
                    tokens[place], masked[place] = chance.randrange(x.allowed.shape[-1]), chance.random() < 0.2
            states.append((tokens, masked))
        return states

    return draft


@ts.policy
def adaptive(x, logits, k=ts.history("count", start=1), *, block_length=None):
    """One token first, then two, and so on."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, k, where=ts.window(x, size=block_length))), k + 1


@ts.policy
def counting(x, logits, k=ts.history("count", start=1), *, block_length=None):
    """Counts, and never looks at the count."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, 1, where=ts.window(x, size=block_length))), k + 1


@ts.policy
def drawn(x, logits, *, block_length=None):
    """Draws the leftmost token."""
    token = ts.sample(x, logits, temperature=1.0)
    return ts.unmask(x, token, where=ts.first(1, where=ts.window(x, size=block_length)))


@ts.policy
def timed(x, logits, *, steps=1):
    """One token a step, and so many steps."""
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))
    return ts.advance(x, y, done=ts.step(x) + 1 >= steps)


@ts.policy
def editing(x, logits, *, block_length=None):
    """One token a step, and what is sure is written again."""
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=ts.top(conf, 1, where=ts.window(x, size=block_length)))
    return ts.edit(y, token, where=ts.free(x) & ~ts.masked(x) & (conf > 0.6))


BASES: dict[str, Any] = {
    "one": POLICIES["llada_low_confidence"],  # one token a step, no counter, no history
    "quota": POLICIES["llada_low_confidence"](steps=3),
    "warm": POLICIES["llada_low_confidence"](temperature=1.0),
    "order": POLICIES["llada_random"],
    "threshold": POLICIES["fastdllm_threshold"](threshold=0.6),
    "klass": POLICIES["klass"],
    "adaptive": adaptive,
    "counting": counting,
    "drawn": drawn,
    "timed": timed,
    "editing": editing,
}


@cache
def based(base: str, view: str = "full", block_length: int | None = 2) -> Plan:
    policy = BASES[base]
    if base == "timed":
        return policy.plan(view)
    return policy(block_length=block_length).plan(view)


def planned(base: str, view: str = "full", block_length: int | None = 2, **settings: Any) -> Plan:
    return speculate(based(base, view, block_length), PROPOSE, **settings)


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


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_published_policies_are_lossless_when_speculated(name):
    assert certify(POLICIES[name].plan()).level is BITWISE
    certificate = certify(speculate(POLICIES[name], "chain"))
    assert certificate.level is BITWISE and certificate.reasons == ()


# -- beside what happens --

#: id, base, view, block length, settings, canvas, rows of the model that are not uniform, drafted states.
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
    ("C7", "adaptive", "full", None, {"leave": True}, "__", {"__@0": (3, 4), "__@1": (2, 1)}, ["a_"]),
    ("C8", "one", "full", None, {"accept": "tokens"}, "__", {"__@1": (1, 2)}, ["a_"]),
    ("C8b", "one", "full", None, RELAXED, "___", {"___@0": (2, 1), "___@1": (1, 3)}, ["ab_"]),
    ("C8c", "one", "full", None, {"accept": "consistent"}, "__", {"__@0": (1, 2)}, ["a_"]),
    ("C8d", "one", "full", None, {"accept": "positions"}, "__", {}, ["b_"]),
    ("C8e", "threshold", "full", None, {"accept": "subset"}, "___", {"___@0": (2, 1), "___@1": (1, 2)}, ["a__"]),
    ("C9", "one", "full", 2, {"key": "block"}, "____", {"____@0": (1, 2)}, ["__a_"]),
]  # fmt: skip


def states(result: Run) -> list[list[int]]:
    """The path, -1 where masked."""
    return [np.where(state.masked, -1, state.tokens).tolist() for state in result.path]


def replayed(
    base: Plan, plan: Plan, text: str, rows: dict[str, Any], drafts: list[str], seed: int = 0
) -> tuple[Any, Any]:
    state = unletters(text)
    table = Table(tuple((read_key(key, len(state), 2), row) for key, row in rows.items()))
    x = canvas([2] * len(state), [token < 0 for token in state], vocab_size=3, mask_id=2, seed=seed)
    PROPOSED["states"] = written(*drafts)
    return run(base, table.build(2), x), run(plan, table.build(2), x)


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
    ("one", "block_causal", {"lookahead": "cheap"}), ("one", "prefix", {"halt": "end"}),
    ("adaptive", "full", {"accept": "relaxed", "strata": (0.3,), "budget": 0.0}), ("order", "full", {"halt": "end"}),
    ("klass", "dual", {}), ("warm", "prefix", {}), ("editing", "block_causal", {}),
]  # fmt: skip


def compared(base: str, view: str, settings: dict[str, Any], seed: int) -> tuple[bool, Run]:
    """Whether base and speculated plan go through the same states on a random model, canvas and drafter."""
    chance = random.Random(seed)
    vocab, prompt = chance.choice((3, 4)), 0 if view == "block_causal" else chance.choice((0, 0, 1))
    x = canvas(
        [0] * prompt, gen_length=chance.randint(2, 5), vocab_size=vocab, mask_id=vocab - 1, seed=seed,
        stop=chance.choice(((), (1,))),
    )  # fmt: skip
    model = HashModel(seed, vocab, chance.choice((1, 2, 4, 50)))
    want = run(based(base, view), model, x)
    PROPOSED["states"] = adversary(seed, want.path)
    got = run(planned(base, view, **settings), model, x)
    return states(want) == states(got), got


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


# -- what a certificate says --


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
