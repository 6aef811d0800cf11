"""`trajspec check`: programs, policies and plans out of files against a base; verdicts, exit codes, JSON."""

from __future__ import annotations

import json

import pytest

from trajspec.cli import main
from trajspec.exact.check import replay
from trajspec.exact.program import plan_program
from trajspec.policies import POLICIES

MINE = '''
import numpy as np
import trajspec as ts
from trajspec.passes.speculate import named


def surest(denoise, canvas, seed, left=False):
    """The surest position, one at a time; the leftmost with `left`."""
    states = [canvas.copy()]
    while (states[-1] < 0).any():
        x = states[-1].copy()
        logits = denoise(x[None])[0]
        logits -= logits.max(axis=1, keepdims=True)
        others = np.exp(np.delete(np.sort(logits, axis=1), -1, axis=1)).sum(axis=1)
        sure = np.where(x < 0, -np.log1p(others), -np.inf)
        at = np.flatnonzero(x < 0)[0] if left else sure.argmax()
        x[at] = logits[at].argmax()
        states.append(x)
    return states


def leftmost(denoise, canvas, seed):
    return surest(denoise, canvas, seed, left=True)


def pairs(denoise, canvas, seed):
    """Every second state of the surest, and the last."""
    states = surest(denoise, canvas, seed)
    return [*states[:-1:2], states[-1]]


def timid(denoise, canvas, seed, log=None):
    """The surest, which reports that it never drafted anything."""
    log.round(0, 0)
    return surest(denoise, canvas, seed)


def broken(denoise, canvas, seed):
    raise RuntimeError("no")


@ts.policy
def one(x, logits, *, n=1):
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, n, where=ts.masked(x)))


ahead = ts.speculate(one, "chain")
relaxed = ts.speculate(one, "chain", accept="relaxed", strata=(0.0,))
idle = ts.speculate(one, named("chain")(nodes=1))
number = 3
'''


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def checked(capsys, *argv: str) -> tuple[int, str, str]:
    code = main(["check", *argv])
    out = capsys.readouterr()
    return code, out.out, out.err


VERDICTS = ("not refuted", "refuted", "inconclusive")


@pytest.mark.parametrize(
    ("name", "against", "code"),
    [
        ("surest", "FILE:one", 0), ("leftmost", "FILE:one", 1), ("one", "FILE:surest", 0), ("ahead", "FILE:one", 0),
        ("ahead", None, 0), ("ahead", "FILE:surest", 0), ("relaxed", None, 1),
        ("idle", "FILE:surest", 2), ("timid", "FILE:one", 2), ("broken", "FILE:one", 1),
        ("one", "llada_low_confidence", 0),
    ],
)  # fmt: skip
def test_verdicts_and_exit_codes(name, against, code, mine, capsys):
    argv = [f"{mine}:{name}", "--examples", "60", "--no-near-ties", "--json"]
    argv += [] if against is None else ["--against", against.replace("FILE", str(mine))]
    got, out, err = checked(capsys, *argv)
    verdict = json.loads(out)
    assert (got, verdict["verdict"], err) == (code, VERDICTS[code], "")
    assert {"verdict", "examples", "drafted", "accepted", "counterexample"} <= set(verdict)
    assert (verdict["counterexample"] is not None) == (code == 1)
    assert (verdict["drafted"] is not None) == (name in ("ahead", "relaxed", "idle", "timid"))
    if code == 0:
        assert verdict["examples"] <= 60
    if code == 0 and name == "ahead":
        assert verdict["drafted"] > verdict["accepted"] > 0
    if code == 2:
        assert verdict["drafted"] == 0 and "nothing was drafted" in verdict["reason"]


def test_what_a_person_reads(mine, capsys):
    code, out, _ = checked(capsys, f"{mine}:leftmost", "--against", f"{mine}:one", "--examples", "60")
    assert code == 1 and out.startswith("REFUTED after ")
    assert "\nstate   base" in out and "   <-\n" in out and "\nreplay  {" in out
    code, out, _ = checked(capsys, f"{mine}:ahead", "--examples", "40")
    assert code == 0 and out.startswith("NOT REFUTED after ") and " accepted\n" in out


def test_rounds(mine, capsys):
    argv = [f"{mine}:pairs", "--against", f"{mine}:one", "--examples", "60", "--no-near-ties"]
    assert checked(capsys, *argv)[0] == 1
    assert checked(capsys, *argv, "--rounds")[0] == 0
    argv[0] = f"{mine}:leftmost"
    assert checked(capsys, *argv, "--rounds")[0] == 1


def test_parameters_of_the_base(mine, capsys):
    assert checked(capsys, f"{mine}:one", "--against", f"{mine}:one", "--set", "n=2", "--examples", "40")[0] == 1
    assert checked(capsys, f"{mine}:one", "--against", f"{mine}:one", "--set", "n=1", "--examples", "40")[0] == 0
    code, _, err = checked(capsys, f"{mine}:one", "--against", f"{mine}:one", "--set", "m=1")
    assert code == 2 and "policy one has no parameter 'm'; it has: n" in err


def test_the_same_seed_finds_the_same_case_and_it_can_be_replayed(mine, capsys):
    argv = [f"{mine}:leftmost", "--against", "fastdllm_threshold", "--json", "--seed", "5", "--examples", "60"]
    first, second = (json.loads(checked(capsys, *argv)[1]) for _ in range(2))
    assert first == second and first["seed"] == 5
    base = plan_program(POLICIES["fastdllm_threshold"].plan())
    assert replay(first["counterexample"]["replay"], base, base) is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["FILE:two", "--against", "FILE:one"],
            "FILE has no program, policy or plan 'two'; it has: ahead, broken, idle, ",
        ),
        (["FILE:number", "--against", "FILE:one"], "has no program, policy or plan 'number'"),
        (["FILE", "--against", "FILE:one"], "say which program, policy or plan of the file: FILE:NAME"),
        (["absent.py:one", "--against", "FILE:one"], "check absent.py:one: there is no file absent.py"),
        (["FILE:one", "--against", "absent.py:one"], "--against absent.py:one: there is no file absent.py"),
        (["FILE:one", "--against", "treshold"], "no policy is called 'treshold'. Did you mean threshold?"),
        (["FILE:one", "--against", "FILE:one", "--examples", "0"], "--examples 0: expected how many cases"),
        (["FILE:one", "--against", "FILE:ahead", "--set", "n=2"], "--set n=2: --against FILE:ahead is no policy"),
        (["FILE:one"], "FILE:one needs a base: --against NAME"),
        (["FILE:surest"], "FILE:surest needs a base: --against NAME"),
        (["FILE:ahead", "--rounds"], "--rounds is about programs; FILE:ahead reports every state"),
        (["FILE:one", "--against", "FILE:one", "--set", "n"], "--set n: expected NAME=VALUE"),
    ],
)
def test_wrong_usage(argv, message, mine, capsys):
    code, out, err = checked(capsys, *(word.replace("FILE", str(mine)) for word in argv))
    assert (code, out) == (2, "")
    assert err.startswith("trajspec: ") and message.replace("FILE", str(mine)) in err
