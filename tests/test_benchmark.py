"""The side-by-side benchmark: what it compares is the same rule, what it counts is right, and bad input is refused."""

from __future__ import annotations

import json

import pytest

import trajspec as ts
from trajspec.benchmark import compare, problems_of
from trajspec.benchmark.loops import fast_dllm, vanilla
from trajspec.cli import main
from trajspec.ir import TrajspecError

CHAT = [[{"role": "user", "content": text}] for text in ("sort $53 $23 $85", "zoe has 13 pens finds 14 loses 12 ?")]


@pytest.fixture(scope="module")
def model():
    return ts.load_model("tiny")


def test_methods_side_by_side(model):
    lines: list[str] = []
    problems = problems_of(model, CHAT, 32, infill=False)
    told = compare(model, problems, gen_length=32, threshold=0.99, runs=3, show=lines.append)
    named = {one["method"]: one for one in told}
    assert list(named) == [
        "LLaDA, one a call", "Fast-dLLM none", "Fast-dLLM prefix", "Fast-dLLM dual", "trajspec dual", "tree, 8 nodes",
        "auto",
    ]  # fmt: skip
    assert len(lines) == 1 + len(told) and named["Fast-dLLM dual"]["ratio"] == 1
    assert named["LLaDA, one a call"]["calls"] == 64
    assert named["LLaDA, one a call"]["positions"] == 32 * sum(len(problem.tokens) for problem in problems)
    base, tree = named["trajspec dual"], named["tree, 8 nodes"]
    assert tree["calls"] <= base["calls"] <= named["Fast-dLLM dual"]["calls"] and tree["rows"] > tree["calls"]
    assert base["same"] == tree["same"] == named["auto"]["same"] == 2
    rows = ts.decode(model, CHAT, gen_length=32, policy="threshold", threshold=0.99, cache="dual", block_length=32)
    assert base["calls"] == sum(row.calls for row in rows) and base["tokens"] == sum(row.answer_tokens for row in rows)


def test_published_loops_are_the_policies(model):
    """Their canvases are those of this library's policies, where a row goes on to its end."""
    (problem,) = problems_of(model, CHAT[1:], 32, infill=False)
    told = {"gen_length": 32, "ignore_eos": True, "block_length": 16}
    ours = ts.decode(model, [problem.prompt], policy="llada_low_confidence", steps=32, **told)[0]
    done = vanilla(model, problem.tokens, problem.start, 16)
    assert done.x[0, problem.start :].tolist() == ours.token_ids and done.calls == ours.calls
    for view, cache in (("none", "full"), ("prefix", "prefix"), ("dual", "dual")):
        ours = ts.decode(model, [problem.prompt], policy="threshold", threshold=0.99, cache=cache, **told)[0]
        done = fast_dllm(model, problem.tokens, problem.start, 16, 0.99, view)
        assert done.x[0, problem.start :].tolist() == ours.token_ids and done.calls == ours.calls, view


def test_infilling(tmp_path, capsys):
    out = tmp_path / "told.json"
    argv = ["bench", "--model", "antiberty", "--infill", "EVQLVESGG____PGGSLRLSCAAS", "--runs", "3", "--json", str(out)]
    assert main(argv) == 0
    told = json.loads(out.read_text())
    assert [one["method"] for one in told][:3] == ["LLaDA, one a call", "Fast-dLLM none", "trajspec full"]
    assert told[0]["calls"] == told[0]["tokens"] == 4 and all(one["same"] in (0, 1) for one in told)
    assert "Fast-dLLM none = 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--runs", "2"], "runs is 2"),
        (["--model", "antiberty"], "give prompts"),
        (["hello", "--infill", "a_b"], "not both"),
        (["--threads", "0"], "--threads is 0"),
        (["--threshold", "2"], "threshold"),
        (["--gen-length", "0"], "gen_length"),
    ],
)
def test_bad_options_are_refused(argv, message, capsys):
    assert main(["bench", *argv]) == 2
    assert message in capsys.readouterr().err


def test_nothing_to_compare_is_refused(model):
    with pytest.raises(TrajspecError, match="give problems"):
        compare(model, [])
