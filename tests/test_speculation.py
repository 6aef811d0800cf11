"""decode with draft=: the rows that decoding without it gives, from fewer calls, with a certificate that says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trajspec as ts
from tests.runtime.test_ahead import Steady

ASKED = [
    [{"role": "user", "content": text}]
    for text in ("zoe has 13 pens finds 14 loses 12 ?", "sort $53 $23 $85", "find: list of even, plus 3")
]
HARD = {"gen_length": 48, "threshold": 0.9999, "cache": "dual"}


@pytest.fixture(scope="module")
def tiny():
    return ts.load_model("tiny")


@pytest.fixture(scope="module")
def alone(tiny):
    return ts.decode(tiny, ASKED, **HARD)


@pytest.mark.parametrize("draft", ["chain", "tree", "frozen"])
@pytest.mark.parametrize("lookahead", ["exact", "none"])
def test_the_same_rows_in_fewer_calls(tiny, alone, draft, lookahead):
    ours = ts.decode(tiny, ASKED, draft=draft, lookahead=lookahead, require_exact=True, **HARD)
    for mine, theirs in zip(ours, alone, strict=True):
        assert (mine.text, mine.path, mine.finish_reason) == (theirs.text, theirs.path, theirs.finish_reason)
        assert mine.base_steps == theirs.base_steps == len(mine.path)
        assert mine.calls <= theirs.calls and mine.rows > theirs.rows
        assert mine.drafted >= mine.accepted > 0
        assert mine.certificate["level"] == "BITWISE"
        assert mine.drift == {"off_base": 0, "stale": 0, "first_divergence": None, "sum_tv": 0.0}
        assert (mine.drafter, mine.nodes) == (draft, 8)
        assert json.loads(json.dumps(mine.as_dict()))["manifest"]["speculation"]["nodes"] == 8
    assert sum(row.calls for row in ours) < 0.75 * sum(row.calls for row in alone)
    single = [ts.decode(tiny, [prompt], draft=draft, lookahead=lookahead, **HARD)[0] for prompt in ASKED]
    assert [row.calls for row in single] == [row.calls for row in ours]


@pytest.mark.parametrize("cache", ["full", "prefix", "dual"])
def test_sampling_keeps_its_seed(tiny, cache):
    options = {"temperature": 4.0, "seed": 5, "gen_length": 24, "num_return_sequences": 2, "cache": cache}
    base = ts.decode(tiny, ASKED[0], **options)
    ours = ts.decode(tiny, ASKED[0], draft="tree", **options)
    assert [row.path for row in ours] == [row.path for row in base]
    assert base[0].text != base[1].text
    assert sum(row.calls for row in ours) <= sum(row.calls for row in base)


def test_stop_strings_inside_a_round(tiny):
    options = {"gen_length": 48, "stop": ["= 27"], "cache": "dual", "threshold": 0.9999}
    base, ours = ts.decode(tiny, ASKED[0], **options)[0], ts.decode(tiny, ASKED[0], draft="tree", **options)[0]
    assert base.finish_reason == ours.finish_reason == "stop"
    assert (ours.text, ours.path, ours.base_steps) == (base.text, base.path, base.base_steps)
    assert ours.accepted <= ours.base_steps


def test_a_stream_says_what_decode_says(tiny, alone):
    pieces = ts.stream(tiny, ASKED[0], draft="tree", **HARD)
    parts = []
    while True:
        try:
            parts.append(next(pieces).text)
        except StopIteration as end:
            assert "".join(parts) == end.value[0].text == alone[0].text
            return


def test_infilling_a_plan_and_a_bare_denoiser():
    model = Steady(4)
    row = [0, 5, 5, 1, 5, 5, 5, 2]
    base = ts.infill(model, [row], threshold=0.99)
    ours = ts.infill(model, [row], threshold=0.99, draft="chain", nodes=4)
    assert ours[0].path == base[0].path and ours[0].calls < base[0].calls
    plan = ts.speculate(ts.policies.get_policy("fastdllm_threshold").bind(threshold=0.99, block_length=None), "chain")
    again = ts.infill(model, [row], policy=plan)
    assert again[0].path == base[0].path and again[0].certificate["level"] == "BITWISE"
    assert ts.infill(model, [row], policy=str(plan))[0].calls == again[0].calls


def test_approximate_modes_say_so(tiny, alone):
    ours = ts.decode(tiny, ASKED, draft="tree", accept="relaxed", strata=(0.9, 0.5), **HARD)
    assert sum(row.calls for row in ours) < sum(row.calls for row in alone)
    row = max(ours, key=lambda row: row.drift["off_base"])
    assert row.drift["off_base"] > 0 and row.drift["first_divergence"] is not None
    assert row.drift["sum_tv"] == row.drift["off_base"]
    assert row.certificate["level"] != "BITWISE" and "C8b" in json.dumps(row.certificate)
    with pytest.raises(ts.TrajspecError, match="require_exact: row"):
        ts.decode(tiny, ASKED, draft="tree", accept="relaxed", strata=(0.9, 0.5), require_exact=True, **HARD)
    kept = ts.decode(tiny, ASKED, draft="tree", accept="relaxed", strata=(0.9, 0.5), budget=0.0, **HARD)
    assert [row.path for row in kept] == [row.path for row in alone]


class Shaky(Steady):
    """A model whose packed calls are off by a little; two tokens nearly tie."""

    def __call__(self, tokens, positions, visible):
        logits = np.zeros((*tokens.shape, self.vocab_size))
        logits[..., 1], logits[..., 2] = 5.000, 4.999
        if len(tokens) > 1:
            logits[..., 2] += 0.01
        return logits


def test_require_exact_ends_the_base_at_the_stop_string_too(tiny, alone):
    stop = alone[0].text[:3]
    row = ts.decode(tiny, ASKED[:1], draft="tree", stop=[stop], require_exact=True, **HARD)[0]
    assert row.finish_reason == "stop" and row.text == "" and row.calls < alone[0].calls
    report = ts.compare_calls(tiny, ASKED[:1], draft="tree", stop=[stop], **HARD)
    assert 0 < report.states < alone[0].base_steps


def test_require_exact_names_a_near_tie():
    with pytest.raises(
        ts.TrajspecError, match=r"row 0, base step 1, position 1.*token 1.*token 2.*0.001 apart: a near-tie"
    ):
        ts.infill(Shaky(0), [[5] * 6], policy="llada_low_confidence", draft="chain", require_exact=True)
    report = ts.compare_calls(Shaky(0), [[5] * 6], infill=True, policy="llada_low_confidence", draft="chain")
    assert report.changed_steps == 1 and report.equal == 1 and abs(report.largest - 0.01) < 1e-9


def test_recheck_makes_thin_decisions_alone():
    """As many calls more as there are thin decisions, and the base's own path."""
    options = {"policy": "llada_low_confidence"}
    base = ts.infill(Shaky(0), [[5] * 6], **options)[0]
    mended = ts.infill(Shaky(0), [[5] * 6], draft="chain", recheck=0.01, **options)[0]
    assert mended.path == base.path and mended.calls > base.calls
    assert mended.certificate["level"] == "BITWISE"
    # Decisions that are not thin are made in the packed call.
    steady = ts.infill(Steady(4), [[5] * 7], draft="chain", recheck=1e-9, **options)[0]
    assert steady.calls < ts.infill(Steady(4), [[5] * 7], **options)[0].calls


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nodes": 4}, "nodes=4 is about speculation, and nothing is drafted"),
        ({"draft": "treee"}, "there is no drafter 'treee'; there are:"),
        ({"draft": 3}, "draft is int; expected"),
        ({"draft": "tree", "nodes": 0}, "nodes is 0, expected"),
        ({"draft": "tree", "lookahead": "exact"}, "the full view needs none"),
        ({"draft": "tree", "lookahead": "far", "cache": "dual"}, "lookahead is far, expected none, exact, cheap"),
        ({"draft": "tree", "accept": "relaxed"}, "needs strata"),
        ({"draft": "tree", "accept": "relaxed", "strata": True}, "strata is True, expected"),
        ({"draft": "tree", "accept": "relaxed", "strata": "0.9"}, "strata is '0.9', expected"),
        ({"draft": "tree", "accept": "tokens"}, "a flaw that exists for the checker"),
        ({"draft": "tree", "budget": "much"}, "budget is 'much', expected a number"),
        ({"draft": "tree", "require_exact": 1}, "require_exact is 1, expected True or False"),
        ({"draft": "nowhere.json"}, "nowhere.json"),
    ],
)
def test_what_cannot_be_meant_is_refused(tiny, options, says):
    with pytest.raises(ts.TrajspecError, match=says):
        ts.decode(tiny, ASKED, gen_length=8, **options)
