"""`trajspec explain` of a speculated policy: every stage reads back, then certificate and cost; and of witnesses."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from trajspec.cli import main
from trajspec.exact.certificate import certify
from trajspec.exact.witnesses import WITNESSES
from trajspec.ir import Plan, parse
from trajspec.passes import SPECULATION, speculate
from trajspec.passes.speculate import named
from trajspec.policies import POLICIES

MINE = '''
import trajspec as ts

@ts.policy
def two(x, logits, *, n=2):
    """The two surest."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, n, where=ts.masked(x)))

ahead = ts.speculate(two, "chain")
'''


def printed(capsys, *argv: str) -> str:
    """What the command prints; it must do what was asked, without a word on stderr."""
    assert main(["explain", *argv]) == 0
    out = capsys.readouterr()
    assert not out.err
    return out.out


def parts(text: str) -> dict[str, str]:
    """The text by its headings, their first words."""
    found = re.split(r"^# (.*)\n", text, flags=re.M)
    assert found[0] == ""
    return {title.split(":")[0]: body.strip("\n") + "\n" for title, body in zip(found[1::2], found[2::2], strict=True)}


@pytest.mark.parametrize(
    ("argv", "plan"),
    [
        (["--draft", "chain"], speculate(POLICIES["fastdllm_threshold"], named("chain")(nodes=8))),
        (
            ["--policy", "klass", "--draft", "chain", "--nodes", "3"],
            speculate(POLICIES["klass"], named("chain")(nodes=3)),
        ),
        (
            ["--cache", "dual", "--threshold", "0.8", "--draft", "chain", "--lookahead", "none"],
            speculate(
                POLICIES["fastdllm_threshold"](threshold=0.8), named("chain")(nodes=8), view="dual", lookahead="none"
            ),
        ),
        (
            ["--draft", "chain", "--accept", "relaxed", "--strata", "0.9,0.7", "--budget", "2"],
            speculate(
                POLICIES["fastdllm_threshold"], named("chain")(nodes=8), accept="relaxed", strata=(0.9, 0.7), budget=2
            ),
        ),
        (
            ["--draft", "chain", "--recheck", "0.25"],
            speculate(POLICIES["fastdllm_threshold"], named("chain")(nodes=8), recheck=0.25),
        ),
    ],
)  # fmt: skip
def test_every_stage_reads_back_and_the_last_is_the_plan(argv, plan, capsys):
    found = parts(printed(capsys, *argv))
    stages = [f"after {step.__name__}" for step in SPECULATION]
    assert list(found) == ["base", *stages, "passes", "compiled", "certificate", "cost"]
    stages = [parse(text) for text in list(found.values())[: 1 + len(SPECULATION)]]
    assert [str(stage) for stage in stages] == list(found.values())[: 1 + len(SPECULATION)]
    assert stages[0] == plan.base and stages[-1] == plan
    assert [len(list(walks(stage))) for stage in stages] == [0, 2, 1]
    assert " ".join(found["certificate"].split()) == str(certify(plan))
    formulas = dict(re.findall(r"^(\w+) += (.*)$", found["cost"], re.M))
    assert formulas == {name: str(formula) for name, formula in certify(plan).cost.items()}


def walks(plan: Plan):
    return (node for node in plan.nodes() if node.op.name == "walk")


@pytest.mark.parametrize("draft", ["chain", "tree", "frozen"])
def test_drafters_of_the_library(draft, capsys):
    found = parts(printed(capsys, "--draft", draft, "--nodes", "4"))
    last = parse(found["after carry"])
    assert last.name == f"fastdllm_threshold_{draft}" and last.base == POLICIES["fastdllm_threshold"].plan()
    assert found["certificate"].startswith("lossless (bitwise) relative to fastdllm_threshold")
    assert "N = calls of the base plan" in re.sub(" +: ", " = ", re.sub(" +", " ", found["cost"]))


def test_what_is_approximate_is_said_with_the_line(capsys):
    found = parts(printed(capsys, "--draft", "chain", "--accept", "relaxed", "--strata", "0.5"))
    assert found["certificate"].startswith("approximate relative to fastdllm_threshold")
    line = int(re.search(r"\bline (\d+)", found["certificate"]).group(1))
    assert "accept=relaxed" in found["after carry"].split("\n")[line - 1]


def test_a_speculated_plan_of_ones_own(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    found = parts(printed(capsys, "--policy", f"{tmp_path}/mine.py:ahead"))
    assert list(found) == ["plan", "passes", "compiled", "certificate", "cost"]
    assert parse(found["plan"]).base.name == "two"
    assert main(["explain", "--policy", f"{tmp_path}/mine.py:ahead", "--draft", "chain"]) == 2
    assert "cannot be speculated" in capsys.readouterr().err


@pytest.mark.parametrize("name", WITNESSES)
def test_witnesses_are_replayed(name, capsys):
    text = printed(capsys, name)
    witness = WITNESSES[name]
    assert text.startswith(f"{name}: {witness.condition}\n{witness.sentence}\n")
    assert text.rstrip("\n").endswith(witness.replay().rstrip("\n"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["Q99"], "no witness is called 'Q99'; there are: "),
        (["K1", "--policy", "klass"], "explain K1 prints a witness; --policy goes with a policy"),
        (["K1", "--block-length", "8"], "--block-length goes with a policy"),
        (["K1", "--draft", "chain"], "--draft goes with a policy"),
        (["--draft", "chains"], "chains"),
        (["--draft", "mine.py"], "--draft mine.py: say which drafter of the file: mine.py:NAME"),
        (["--draft", "mine.py:x"], "--draft mine.py:x: there is no file mine.py"),
        (
            ["--nodes", "4"],
            "--nodes 4: nothing is drafted; give --draft auto, tree, chain, frozen, FILE.json or FILE.py:NAME",
        ),
        (["--draft", "none", "--nodes", "4"], "--nodes 4: nothing is drafted"),
        (["--draft", "chain", "--nodes", "0"], "nodes is 0"),
        (["--lookahead", "exact"], "--lookahead exact: nothing is drafted"),
        (["--recheck", "0.5"], "--recheck 0.5: nothing is drafted"),
        (["--require-exact"], "--require-exact: nothing is drafted"),
        (["--draft", "chain", "--require-exact"], "--require-exact is about a run"),
        (["--draft", "chain", "--lookahead", "exact"], "lookahead=exact is about cached views"),
        (["--draft", "chain", "--strata", "0.9"], "--strata 0.9 is what --accept relaxed asks of new tokens"),
        (["--draft", "chain", "--accept", "subset", "--strata", "0.9"], "--accept is subset"),
        (["--draft", "chain", "--accept", "relaxed", "--strata", "0.9;0.7"], "--strata 0.9;0.7: expected numbers"),
        (["--draft", "chain", "--accept", "relaxed"], "accept=relaxed needs strata"),
        (["--draft", "chain", "--budget", "1"], "--budget 1 limits --accept relaxed or subset"),
        (["--draft", "chain", "--recheck", "0"], "recheck is 0.0"),
        (["--draft", "chain", "--set", "colour=3"], "has no option 'colour'"),
    ],
)
def test_what_makes_no_sense_is_refused(argv, message, capsys):
    assert main(["explain", *argv]) == 2
    out = capsys.readouterr()
    assert not out.out and out.err.startswith("trajspec: ") and message in out.err


def test_explaining_needs_no_torch():
    code = (
        "import sys; from trajspec.cli import main; assert main(['explain', '--draft', 'chain']) == 0; "
        "assert main(['explain', 'K1']) == 0; sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300).returncode == 0


def test_what_the_passes_do(capsys):
    found = parts(printed(capsys, "--compile"))
    assert list(found) == ["passes", "compiled"]
    assert (
        "fuse_scores by confidence_of_likeliest, likeliest_scored: 10 -> 9 ops, 2 -> 1 passes over the vocabulary"
        in found["passes"]
    )
    compiled = parse(found["compiled"])
    assert "token, conf = score(logits)" in found["compiled"] and compiled != POLICIES["fastdllm_threshold"].plan()
