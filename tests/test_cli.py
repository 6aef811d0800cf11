"""The command line: what it prints, its exit codes, and that errors come without a traceback."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
import warnings

import pytest

import trajspec.decoding
from tests.toys import text_model
from trajspec.cli import find_policy, main
from trajspec.ir import Policy, TrajspecError, parse
from trajspec.ir.errors import OptionError
from trajspec.passes.speculate import named
from trajspec.policies import POLICIES

needs_antiberty = pytest.mark.skipif(not importlib.util.find_spec("antiberty"), reason="antiberty is not installed")

MINE = '''
import trajspec as ts

SIZE = 2

@ts.policy
def two(x, logits, *, n=2):
    """The two surest."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, n, where=ts.masked(x)))

plan = two.plan()
'''


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "json.py"  # named like a module on purpose
    path.write_text(MINE)
    return path


@pytest.fixture
def letters(monkeypatch):
    """`--model letters` is a model that writes abcdef; what it was asked to load is noted."""
    asked = []

    def load(name, dtype, device):
        asked.append((name, dtype, device))
        return text_model("abcdef")

    monkeypatch.setattr("trajspec.runtime.denoiser.load_model", lambda name, dtype, device: load(name, dtype, device))
    return asked


def told(capsys) -> tuple[list[str], str]:
    """The lines printed and the errors, which hold no traceback."""
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return out.out.splitlines(), out.err


def test_decode_prints_text_and_cost(letters, capsys):
    assert main(["decode", "", "ab", "--model", "letters", "--gen-length", "4", "--steps", "2"]) == 0
    lines, err = told(capsys)
    assert lines[0] == "abcd"
    assert lines[1].startswith("[4 tokens in 2 calls, 2.00 a call; 2 rows, ")
    assert "length; llada_low_confidence;" in lines[1]
    assert lines[2] == "cdef"
    assert not err
    assert letters[0][0] == "letters"


def test_decode_json(letters, capsys):
    argv = ["decode", "", "--model", "letters", "--gen-length", "3", "--threshold", "0.5", "--json", "--samples", "2"]
    assert main(argv) == 0
    rows = [json.loads(line) for line in told(capsys)[0]]
    assert [row["row"] for row in rows] == [0, 1]
    assert [row["text"] for row in rows] == ["abc", "abc"]
    assert rows[0]["manifest"]["settings"]["threshold"] == 0.5
    assert rows[0]["manifest"]["seed"] != rows[1]["manifest"]["seed"]


def test_decode_options_reach_the_job(letters, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nab\n"))
    argv = ["decode", "-", "--model", "letters", "--gen-length", "4", "--stop", "d", "--seed", "3", "--json"]
    assert main([*argv, "--policy", "klass", "--set", "unmask_strategy=max_conf", "--set", "kl_threshold=0.5"]) == 0
    rows = [json.loads(line) for line in told(capsys)[0]]
    assert [row["text"] for row in rows] == ["bc", "c"]
    assert {row["finish_reason"] for row in rows} == {"stop"}
    manifest = rows[0]["manifest"]
    assert (manifest["prompt"], manifest["seed"], manifest["stop"]) == ("a", 3, ["d"])
    assert manifest["settings"]["unmask_strategy"] == "max_conf"
    assert manifest["settings"]["kl_threshold"] == 0.5


def test_decode_infills(letters, capsys):
    assert main(["decode", "--infill", "a_c_", "--infill", "__", "--model", "letters", "--policy", "quota"]) == 0
    lines, _ = told(capsys)
    assert lines[::2] == ["abcd", "ab"]


def test_decode_with_a_policy_of_ones_own(letters, mine, capsys):
    for name, calls in (("two", 2), ("plan", 2)):
        argv = ["decode", "", "--model", "letters", "--gen-length", "4", "--policy", f"{mine}:{name}", "--json"]
        assert main(argv) == 0
        (row,) = [json.loads(line) for line in told(capsys)[0]]
        assert (row["text"], row["calls"], row["policy"]) == ("abcd", calls, "two")
    assert main([*argv[:-2], f"{mine}:two", "--set", "n=4", "--json"]) == 0
    assert json.loads(told(capsys)[0][0])["calls"] == 1
    assert json.__name__ == "json" and json.loads("1") == 1
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--policy", "absent.py:two"], "there is no file absent.py"),
        (["--policy", "FILE"], "say which policy of the file"),
        (["--policy", "FILE:three"], "has no policy 'three'; it has: plan, two"),
        (["--policy", "FILE:SIZE"], "has no policy 'SIZE'"),
        (["--policy", "FILE:two", "--set", "m=3"], "policy two has no option 'm'; it has: n"),
        (["--policy", "FILE:plan", "--set", "n=3"], "a plan takes no options, got 'n'"),
        (["--policy", "treshold"], "Did you mean threshold?"),
        (["--policy", "klass", "--factor", "2"], "policy klass has no option 'factor'"),
        (["--set", "threshold"], "--set threshold: expected NAME=VALUE"),
        (["--compat", "nothing"], "has no compat name 'nothing'"),
        (["--infill", "a_"], "one of the three"),
        (["--gen-length", "99"], "Shorten it by 35"),
        (["--steps", "1", "--block-length", "1"], "steps=1 cannot fill 4 blocks"),
        (["--device", "cpu", "--temperature", "-1"], "temperature is -1.0"),
    ],
)
def test_bad_usage_is_told_in_a_line(argv, message, letters, mine, capsys):
    argv = [word.replace("FILE", str(mine)) for word in argv]
    assert main(["decode", "", "--model", "letters", "--gen-length", "4", *argv]) == 2
    lines, err = told(capsys)
    assert not lines
    assert err.startswith("trajspec: ")
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:\n", "line 1: SyntaxError"),
        ("x = 1\nimport absent_module\n", "line 2: ModuleNotFoundError: No module named 'absent_module'"),
        ("import trajspec as ts\n@ts.policy\ndef p(x):\n    return x\n", "takes the canvas and the logits first"),
    ],
)
def test_a_policy_file_that_does_not_run(text, message, tmp_path, capsys):
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert main(["explain", "--policy", f"{path}:p"]) == 2
    assert message in told(capsys)[1]


def test_an_unknown_model_is_told(capsys, tmp_path):
    assert main(["decode", "a", "--model", str(tmp_path / "absent")]) == 2
    assert told(capsys)[1].startswith("trajspec: ")


def test_unused_steps_are_a_warning_line(letters, capsys):
    before = warnings.showwarning
    argv = ["decode", "", "--model", "letters", "--gen-length", "4", "--threshold", "0.5", "--steps", "4"]
    assert main(argv) == 0
    lines, err = told(capsys)
    assert lines[0] == "abcd"
    assert err == "trajspec: warning: policy fastdllm_threshold has no schedule: steps=4 is not used\n"
    assert warnings.showwarning is before


@pytest.mark.parametrize(
    "message", ["unsupported operand", "object of type 'int' has no len()", "f() takes no arguments"]
)
def test_a_bug_keeps_its_traceback(message, letters, monkeypatch):
    def broken(*args, **options):
        raise TypeError(message)

    monkeypatch.setattr(trajspec.decoding, "decode", broken)
    with pytest.raises(TypeError, match=re.escape(message)):
        main(["decode", "a", "--model", "letters"])


def test_refused_options_are_told_apart_from_bugs(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(MINE.replace("where=ts.top", "were=ts.top").replace("plan = two.plan()", "two"))
    assert main(["explain", "--policy", f"{path}:two"]) == 2
    assert "unmask() has no keyword 'were'; did you mean where=?" in told(capsys)[1]
    for refused in (lambda: POLICIES["klass"](colour=3), lambda: named("chain")(colour=3)):
        with pytest.raises(TypeError, match="colour") as caught:
            refused()
        assert isinstance(caught.value, OptionError) and isinstance(caught.value, TrajspecError)


@pytest.mark.parametrize("argv", [[], ["decide"], ["decode", "--samples", "two"], ["conformance"]])
def test_what_argparse_refuses_exits_with_2(argv, capsys):
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2
    assert "usage: trajspec" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*POLICIES, "low_confidence", "ENTROPY", "topk-margin"])
def test_explain_prints_a_plan_that_reads_back(name, capsys):
    assert main(["explain", "--policy", name]) == 0
    text = capsys.readouterr().out
    assert str(parse(text)) == text


def test_explain_takes_parameters_and_files(mine, capsys):
    assert main(["explain", "--threshold", "0.7", "--set", "block_size=8"]) == 0
    out = capsys.readouterr().out
    assert "def fastdllm_threshold(" in out and "0.7" in out and "size=8" in out
    assert main(["explain", "--policy", f"{mine}:two", "--set", "n=3"]) == 0
    assert "top(conf, 3" in capsys.readouterr().out
    assert main(["explain", "--policy", f"{mine}:plan"]) == 0
    assert main(["explain", "--policy", f"{mine}:plan", "--steps", "3"]) == 2
    assert main(["explain", "--policy", f"{mine}:two", "--compat", "x"]) == 2
    assert main(["explain", "--policy", "llada_low_confidence", "--compat", "llada.idle_steps"]) == 0
    assert "predict_mask=True" in capsys.readouterr().out


def test_policies_lists_all(capsys):
    assert main(["policies"]) == 0
    out = capsys.readouterr().out
    for name, policy in POLICIES.items():
        assert f"\n{name}" in f"\n{out}"
        assert policy.doc in out
        assert all(f"{key}={value!r}" in out for key, value in policy.settings.items())
    assert "(also: " in out


def test_find_policy():
    assert find_policy("klass") == "klass"
    with pytest.raises(TrajspecError):
        find_policy("x.py")
    assert not isinstance(find_policy("C:klass"), Policy)


def command(*argv: str) -> subprocess.CompletedProcess:
    """The command line in a process of its own."""
    return subprocess.run([sys.executable, "-m", "trajspec", *argv], capture_output=True, text=True, timeout=300)


def test_explaining_needs_no_torch():
    code = (
        "import sys; from trajspec.cli import main; assert main(['policies']) == main(['explain']) == 0; "
        "assert 'numpy' in sys.modules; sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300).returncode == 0


def test_the_command_as_a_process():
    done = command("explain", "--policy", "absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("trajspec: no policy is called 'absent'")
    assert "Traceback" not in done.stderr


@needs_antiberty
def test_antiberty_fills_in_a_sequence():
    done = command("decode", "--model", "antiberty", "--infill", "EVQLVESGGG_VQ", "--json", "--policy", "quota")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert len(row["text"]) == 13
    assert row["text"][:10] + row["text"][11:] == "EVQLVESGGGVQ"
    assert "_" not in row["text"]
    assert (row["calls"], row["answer_tokens"], row["prompt_tokens"]) == (1, 1, 12)
    assert row["manifest"]["model"] == "antiberty"


def test_the_default_model_takes_a_prompt_as_a_message():
    done = command("decode", "sort $53 $23 $85", "--gen-length", "32", "--stream")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == " up $23 $53 $85 down $85 $53 $23"
    raw = command("decode", "--raw", "sort $53 $23 $85", "--gen-length", "8", "--json")
    assert raw.returncode == 0 and json.loads(raw.stdout)["manifest"]["prompt"] == "sort $53 $23 $85"
