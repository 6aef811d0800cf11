"""`trajspec decode --draft`: the same text in fewer calls, what the line of cost and the rows say, and refusals."""

from __future__ import annotations

import json

import pytest

from tests.toys import text_model
from trajspec.cli import main

MINE = '''
import trajspec as ts
from trajspec.ir.drafter import drafter

@drafter
def letters(x, logits, *, nodes=8):
    """The next three positions, with what a model of abcdef writes there."""
    here = [int(place) for place in x.masked.nonzero()[0][:3]]
    return [[{place: int(logits[place].argmax())} for place in here]]

@drafter
def nonsense(x, logits, *, nodes=8):
    """Nothing that ever comes."""
    return [[{int(place): 0} for place in reversed(x.masked.nonzero()[0])]]

number = 3
'''
PLAIN = ["decode", "", "--model", "letters", "--gen-length", "6", "--policy", "quota", "--steps", "6"]


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    """`--model letters` is a model that writes abcdef."""
    load = lambda name, dtype, device: text_model("abcdef")  # noqa: E731
    monkeypatch.setattr("trajspec.runtime.denoiser.load_model", load)


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def printed(capsys, *argv: str) -> str:
    assert main([*PLAIN, *argv]) == 0
    out = capsys.readouterr()
    assert not out.err
    return out.out


@pytest.mark.parametrize(
    "argv", [["--draft", "chain"], ["--draft", "frozen", "--nodes", "5"], ["--draft", "tree", "--nodes", "6"]]
)
def test_the_same_text_in_fewer_calls(argv, capsys):
    alone = json.loads(printed(capsys, "--json"))
    row = json.loads(printed(capsys, *argv, "--json", "--require-exact"))
    assert row["text"] == alone["text"] == "abcdef"
    assert (row["base_steps"], alone["base_steps"], alone["calls"], alone["drafter"]) == (6, 6, 6, "none")
    assert row["calls"] < alone["calls"] and row["accepted"] == row["base_steps"] - row["calls"]
    assert row["drafted"] >= row["accepted"] > 0
    assert row["drafter"] == argv[1] and row["certificate"]["level"] == "BITWISE"
    assert row["drift"]["off_base"] == 0
    assert row["manifest"]["speculation"]["require_exact"] is True


def test_the_line_of_cost(capsys):
    row = json.loads(printed(capsys, "--draft", "chain", "--nodes", "4", "--json"))
    line = printed(capsys, "--draft", "chain", "--nodes", "4").splitlines()[1]
    calls, used, drafted = row["calls"], row["accepted"], row["drafted"]
    assert line.startswith(
        f"[6 tokens in {calls} calls, {6 / calls:.2f} a call (6 base steps, {used} of {drafted} drafted states used); "
    )
    assert ", draft chain 4; " in line
    assert "base steps" not in printed(capsys) and "draft" not in printed(capsys, "--draft", "none")


def test_a_drafter_of_ones_own(mine, capsys):
    row = json.loads(printed(capsys, "--draft", f"{mine}:letters", "--json"))
    assert (row["text"], row["base_steps"], row["drafter"]) == ("abcdef", 6, "letters")
    assert row["calls"] < 6
    row = json.loads(printed(capsys, "--draft", f"{mine}:nonsense", "--json"))
    assert (row["text"], row["calls"], row["accepted"]) == ("abcdef", 6, 0) and row["drafted"] > 0


def test_relaxed_acceptance_is_metered(capsys):
    row = json.loads(
        printed(capsys, "--draft", "chain", "--accept", "relaxed", "--strata", "0,0", "--budget", "9", "--json")
    )
    assert row["certificate"]["plan_level"] == "BOUNDED" or row["certificate"]["level"] != "BITWISE"
    assert row["drift"]["off_base"] > 0
    speculation = row["manifest"]["speculation"]
    assert (speculation["accept"], speculation["strata"], speculation["budget"]) == ("relaxed", [0.0, 0.0], 9.0)


def test_streams_and_files(tmp_path, capsys):
    assert printed(capsys, "--draft", "chain", "--stream").startswith("abcdef\n[6 tokens in ")
    (tmp_path / "in.jsonl").write_text('{"prompt": ""}\n{"prompt": "ab"}\n')
    argv = [
        "decode",
        "--model",
        "letters",
        "--gen-length",
        "4",
        "--policy",
        "quota",
        "--steps",
        "4",
        "--draft",
        "chain",
    ]
    argv += ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    assert main(argv) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["abcd", "cdef"]
    assert all(row["drafter"] == "chain" and row["calls"] < 4 for row in rows)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--nodes", "4"],
            "--nodes 4: nothing is drafted; give --draft auto, tree, chain, frozen, FILE.json or FILE.py:NAME",
        ),
        (["--draft", "none", "--require-exact"], "--require-exact: nothing is drafted"),
        (["--draft", "FILE:number"], "has no drafter 'number'; it has: letters, nonsense"),
        (["--draft", "FILE"], "say which drafter of the file"),
        (["--draft", "nothing"], "there is no drafter 'nothing'; there are: "),
        (["--draft", "absent.json"], "absent.json"),
        (["--draft", "chain", "--strata", "0.9"], "--accept relaxed"),
        (["--draft", "chain", "--accept", "relaxed", "--strata", "2"], "expected confidences from 0 to 1"),
        (["--draft", "chain", "--lookahead", "cheap"], "lookahead=cheap is about cached views"),
        (["--draft", "chain", "--set", "nodes=x"], "nodes"),
    ],
)
def test_what_makes_no_sense_is_refused(argv, message, mine, capsys):
    assert main([*PLAIN, *(word.replace("FILE", str(mine)) for word in argv)]) == 2
    out = capsys.readouterr()
    assert not out.out and out.err.startswith("trajspec: ") and message in out.err
    assert "Traceback" not in out.err
