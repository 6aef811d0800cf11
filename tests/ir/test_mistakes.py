"""What a newcomer gets wrong: each mistake stops at its own line, with what came, what was expected, what to write."""

from __future__ import annotations

import cProfile
import importlib.util
import linecache
import sys

import numpy as np
import pytest

import trajspec as ts
from trajspec.ir import TrajspecError

Case = tuple[str, list[str], str]
HEAD = "import math\n\nimport numpy as np\n\nimport trajspec as ts\n\n\n@ts.policy\ndef mine(x, logits):\n"
LOGITS = np.zeros((5, 4))

# (mistake, the policy's lines, the whole message); {source} is "forward" when traced and "an array" on arrays.
BOTH: list[Case] = [
    (
        "a raw logit against a probability",
        ["sure = ts.max(logits) >= 0.9", "return ts.unmask(x, ts.argmax(logits), where=sure)"],
        "PolicyFile.py:10: max: operand 'p' must be probs, got logits from {source}\n"
        "        sure = ts.max(logits) >= 0.9\n"
        "               ^^^^^^^^^^^^^^\n"
        "A raw logit is not a probability. Write: token, conf = ts.score(logits)",
    ),
    (
        "a raw logit against a number",
        ["return ts.unmask(x, ts.argmax(logits), where=logits >= 0.9)"],
        "PolicyFile.py:10: >=: expected counts, scores or confidences, got logits from {source} and the "
        "number 0.9\n"
        "        return ts.unmask(x, ts.argmax(logits), where=logits >= 0.9)\n"
        "                                                     ^^^^^^^^^^^^^\n"
        "A raw logit is not a probability. Write: token, conf = ts.score(logits)",
    ),
    (
        "if mask",
        ["mask = ts.masked(x)", "if mask:", "    x = ts.unmask(x, ts.argmax(logits), where=mask)", "return x"],
        "PolicyFile.py:11: 'if', 'and', 'or' and 'not' need one truth value, got selection from masked\n"
        "        if mask:\n"
        "        ^^^^^^^^\n"
        "A policy is traced once, before any value is known. Combine with & | ~ (a < b < c is (a < b) & (b < "
        "c)), or write: ts.choose(ts.any(a), b, c)",
    ),
    (
        "tokens as a selection",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=token)"],
        "PolicyFile.py:11: unmask: operand 'where' must be selection, got tokens from score\n"
        "        return ts.unmask(x, token, where=token)\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A selection says which positions, tokens what is there. Compare first: where=here & (token == 5)",
    ),
    (
        "a confidence as a selection",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=conf)"],
        "PolicyFile.py:11: unmask: operand 'where' must be selection, got conf from score\n"
        "        return ts.unmask(x, token, where=conf)\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A selection says which positions, conf what is there. Compare first: where=here & (conf >= 0.9)",
    ),
    (
        "swapped arguments",
        ["token, conf = ts.score(logits)", "return ts.unmask(token, x, where=ts.masked(x))"],
        "PolicyFile.py:11: unmask: operand 'x' must be canvas, got tokens from score\n"
        "        return ts.unmask(token, x, where=ts.masked(x))\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "The arguments look swapped. Write: ts.unmask(x, token, where=...)",
    ),
    (
        "swapped arguments of top",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=ts.top(1, conf, where=ts.masked(x)))"],
        "PolicyFile.py:11: top: operand 'by' must be conf or scores, got the number 1\n"
        "        return ts.unmask(x, token, where=ts.top(1, conf, where=ts.masked(x)))\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "The arguments look swapped. Write: ts.top(by, k, where=...)",
    ),
    (
        "not swapped",
        [
            "token, conf = ts.score(logits)",
            "return ts.unmask(x, token, where=ts.choose(conf, ts.masked(x), ts.free(x)))",
        ],
        "PolicyFile.py:11: choose: operand 'when' must be selection or flag, got conf from score\n"
        "        return ts.unmask(x, token, where=ts.choose(conf, ts.masked(x), ts.free(x)))\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A selection says which positions, conf what is there. Compare first: where=here & (conf >= 0.9)",
    ),
    (
        "forgotten where",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token)"],
        "PolicyFile.py:11: unmask: 'where=' is missing, expected selection\n"
        "        return ts.unmask(x, token)\n"
        "               ^^^^^^^^^^^^^^^^^^^\n"
        "It says which positions are meant. Write: ts.unmask(x, token, where=...)",
    ),
    (
        "returning nothing",
        ["token, conf = ts.score(logits)", "ts.unmask(x, token, where=ts.masked(x))"],
        "PolicyFile.py:11: mine: the policy must return x, got nothing\n"
        "        ts.unmask(x, token, where=ts.masked(x))\n"
        "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A policy returns its next state. Write: return x",
    ),
    (
        "returning a token",
        ["token, conf = ts.score(logits)", "return token"],
        "PolicyFile.py:11: mine: returned 'x' must be canvas, got tokens from score\n"
        "        return token\n"
        "        ^^^^^^^^^^^^\n"
        "A policy returns its next state. Write: return x",
    ),
    (
        "returning too much",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=ts.masked(x)), conf"],
        "PolicyFile.py:11: mine: the policy must return x, got 2 values\n"
        "        return ts.unmask(x, token, where=ts.masked(x)), conf\n"
        "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A policy returns its next state. Write: return x",
    ),
    (
        "returning a number",
        ["token, conf = ts.score(logits)", "return 1"],
        "PolicyFile.py:11: mine: returned 'x' must be canvas, got 1\n"
        "        return 1\n"
        "               ^\n"
        "A policy returns its next state. Write: return x",
    ),
    (
        "a confidence in per cent",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=conf >= 90)"],
        "PolicyFile.py:11: >=: expected a number from 0 to 1 beside a confidence, got 90\n"
        "        return ts.unmask(x, token, where=conf >= 90)\n"
        "                                         ^^^^^^^^^^\n"
        "A confidence is a probability and lies between 0 and 1. Write for example: conf >= 0.9",
    ),
    (
        "arithmetic on a confidence",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=conf * 2 > 0.9)"],
        "PolicyFile.py:11: *: expected counts, scores, logits or probs, got conf from score and the number "
        "2\n"
        "        return ts.unmask(x, token, where=conf * 2 > 0.9)\n"
        "                                         ^^^^^^^^\n"
        "A confidence is kept as a logarithm. Write ts.prob(conf) for plain numbers.",
    ),
    (
        "a confidence against scores",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=conf > ts.margin(logits))"],
        "PolicyFile.py:11: >: expected counts, scores or confidences, got conf from score and scores from "
        "margin\n"
        "        return ts.unmask(x, token, where=conf > ts.margin(logits))\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A confidence is kept as a logarithm. Write ts.prob(conf) to compare it with plain scores.",
    ),
    (
        "a setting that is computed",
        ["here = ts.window(x, size=ts.count(ts.masked(x)))", "return ts.unmask(x, ts.argmax(logits), where=here)"],
        "PolicyFile.py:10: window: setting 'size' must be int or None, got count from count\n"
        "        here = ts.window(x, size=ts.count(ts.masked(x)))\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Settings are fixed when the plan is made; they cannot depend on the canvas.",
    ),
    (
        "a setting of the wrong type",
        ["here = ts.window(x, size=2.5)", "return ts.unmask(x, ts.argmax(logits), where=here)"],
        "PolicyFile.py:10: window: setting 'size' must be int or None, got 2.5\n"
        "        here = ts.window(x, size=2.5)\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^\n"
        "Write: ts.window(x, size=...)",
    ),
    (
        "a setting out of range",
        ["here = ts.window(x, size=0)", "return ts.unmask(x, ts.argmax(logits), where=here)"],
        "PolicyFile.py:10: window: size is 0, expected 1 or more positions a block (None: the whole canvas)\n"
        "        here = ts.window(x, size=0)\n"
        "               ^^^^^^^^^^^^^^^^^^^^",
    ),
    (
        "a setting by position",
        ["here = ts.window(x, 32)", "return ts.unmask(x, ts.argmax(logits), where=here)"],
        "PolicyFile.py:10: window: takes 1 value by position, got 2\n"
        "        here = ts.window(x, 32)\n"
        "               ^^^^^^^^^^^^^^^^\n"
        "Settings go by name. Write: ts.window(x, size=...)",
    ),
    (
        "a missing setting",
        ["return ts.unmask(x, ts.argmax(ts.suppress(logits)), where=ts.masked(x))"],
        "PolicyFile.py:10: suppress: setting 'ids=' is missing\n"
        "        return ts.unmask(x, ts.argmax(ts.suppress(logits)), where=ts.masked(x))\n"
        "                                      ^^^^^^^^^^^^^^^^^^^\n"
        "Write: ts.suppress(logits, ids=...)",
    ),
    (
        "a missing operand",
        ["return ts.unmask(x, where=ts.masked(x))"],
        "PolicyFile.py:10: unmask: operand 'token' is missing\n"
        "        return ts.unmask(x, where=ts.masked(x))\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Write: ts.unmask(x, token, where=...)",
    ),
    (
        "no parentheses",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=ts.masked(x) & conf >= 0.9)"],
        "PolicyFile.py:11: &: expected selections or flags, got selection from masked and conf from score\n"
        "        return ts.unmask(x, token, where=ts.masked(x) & conf >= 0.9)\n"
        "                                         ^^^^^^^^^^^^^^^^^^^\n"
        "& and | bind tighter than comparisons in Python. Put them in parentheses: here & (conf >= 0.9)",
    ),
    (
        "no parentheses, the other way round",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=conf >= 0.9 & ts.masked(x))"],
        "PolicyFile.py:11: &: expected selections or flags, got the number 0.9 and selection from masked\n"
        "        return ts.unmask(x, token, where=conf >= 0.9 & ts.masked(x))\n"
        "                                                 ^^^^^^^^^^^^^^^^^^\n"
        "& and | bind tighter than comparisons in Python. Put them in parentheses: here & (conf >= 0.9)",
    ),
    (
        "and",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=ts.masked(x) and conf >= 0.9)"],
        "PolicyFile.py:11: 'if', 'and', 'or' and 'not' need one truth value, got selection from masked\n"
        "        return ts.unmask(x, token, where=ts.masked(x) and conf >= 0.9)\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A policy is traced once, before any value is known. Combine with & | ~ (a < b < c is (a < b) & (b < "
        "c)), or write: ts.choose(ts.any(a), b, c)",
    ),
    (
        "not",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=not ts.masked(x))"],
        "PolicyFile.py:11: 'if', 'and', 'or' and 'not' need one truth value, got selection from masked\n"
        "        return ts.unmask(x, token, where=not ts.masked(x))\n"
        "                                         ^^^^^^^^^^^^^^^^\n"
        "A policy is traced once, before any value is known. Combine with & | ~ (a < b < c is (a < b) & (b < "
        "c)), or write: ts.choose(ts.any(a), b, c)",
    ),
    (
        "a chain",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=0.5 < conf < 0.9)"],
        "PolicyFile.py:11: 'if', 'and', 'or' and 'not' need one truth value, got selection from >\n"
        "        return ts.unmask(x, token, where=0.5 < conf < 0.9)\n"
        "                                         ^^^^^^^^^^^^^^^^\n"
        "A policy is traced once, before any value is known. Combine with & | ~ (a < b < c is (a < b) & (b < "
        "c)), or write: ts.choose(ts.any(a), b, c)",
    ),
    (
        "a loop",
        ["token, conf = ts.score(logits)", "for position in conf:", "    pass", "return x"],
        "PolicyFile.py:11: a conf cannot be unpacked or looped over\n"
        "        for position in conf:\n"
        "        ^^^^^^^^^^^^^^^^^^^^^\n"
        "It is one value (score); a policy handles every position at once and never loops over them.",
    ),
    (
        "unpacking one value",
        ["token, conf = ts.argmax(logits)", "return x"],
        "PolicyFile.py:10: a tokens cannot be unpacked or looped over\n"
        "        token, conf = ts.argmax(logits)\n"
        "        ^^^^^^^^^^^\n"
        "It is one value (argmax); a policy handles every position at once and never loops over them.",
    ),
    (
        "an index",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=conf[0] > 0.5)"],
        "PolicyFile.py:11: a conf cannot be indexed\n"
        "        return ts.unmask(x, token, where=conf[0] > 0.5)\n"
        "                                         ^^^^^^^\n"
        "A policy handles every position at once: choose positions with a selection, as in where=here & sure",
    ),
    (
        "len",
        [
            "token, conf = ts.score(logits)",
            "n = len(ts.masked(x)) // 2",
            "return ts.unmask(x, token, where=ts.top(conf, n, where=ts.masked(x)))",
        ],
        "PolicyFile.py:11: a selection has no len()\n"
        "        n = len(ts.masked(x)) // 2\n"
        "            ^^^^^^^^^^^^^^^^^\n"
        "Write ts.count(selection) for how many positions it holds.",
    ),
    (
        "a fraction of positions",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=ts.top(conf, 1.5, where=ts.masked(x)))"],
        "PolicyFile.py:11: top: 'k' counts positions, expected a whole number, got 1.5\n"
        "        return ts.unmask(x, token, where=ts.top(conf, 1.5, where=ts.masked(x)))\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Write k without a decimal point, or ts.floor(...) of what you compute.",
    ),
    (
        "a score for a count",
        [
            "token, conf = ts.score(logits)",
            "return ts.unmask(x, token, where=ts.top(conf, ts.margin(logits), where=ts.masked(x)))",
        ],
        "PolicyFile.py:11: top: operand 'k' must be count, got scores from margin\n"
        "        return ts.unmask(x, token, where=ts.top(conf, ts.margin(logits), where=ts.masked(x)))\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A count is one number a row. Write ts.mean(scores, where=...) for one.",
    ),
    (
        "a selection for a count",
        [
            "token, conf = ts.score(logits)",
            "return ts.unmask(x, token, where=ts.top(conf, ts.masked(x), where=ts.masked(x)))",
        ],
        "PolicyFile.py:11: top: operand 'k' must be count, got selection from masked\n"
        "        return ts.unmask(x, token, where=ts.top(conf, ts.masked(x), where=ts.masked(x)))\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Write ts.count(selection) for how many positions it holds.",
    ),
    (
        "math",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=math.exp(conf) > 0.5)"],
        "PolicyFile.py:11: a conf is not one number: float(), int(), round() and the functions of 'math' "
        "cannot take it\n"
        "        return ts.unmask(x, token, where=math.exp(conf) > 0.5)\n"
        "                                         ^^^^^^^^^^^^^^\n"
        "Compute with + - * / // %, ts.floor, ts.least, ts.most, ts.prob and the other ops.",
    ),
    (
        "round",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=round(ts.prob(conf)) > 0)"],
        "PolicyFile.py:11: a scores is not one number: float(), int(), round() and the functions of 'math' "
        "cannot take it\n"
        "        return ts.unmask(x, token, where=round(ts.prob(conf)) > 0)\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^\n"
        "Compute with + - * / // %, ts.floor, ts.least, ts.most, ts.prob and the other ops.",
    ),
    (
        "a function of numpy on values",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=np.exp(conf) > 0.5)"],
        "PolicyFile.py:11: np.exp cannot take a conf: a policy is made of ops\n"
        "        return ts.unmask(x, token, where=np.exp(conf) > 0.5)\n"
        "                                         ^^^^^^^^^^^^\n"
        "Compute with operators and ops (dir(trajspec) lists them), or declare your own with @ts.op. In a "
        "debugger, np.asarray(value) gives the array when the policy runs on arrays.",
    ),
    (
        "np.where",
        [
            "token, conf = ts.score(logits)",
            "return ts.unmask(x, np.where(ts.masked(x), token, 0), where=ts.masked(x))",
        ],
        "PolicyFile.py:11: np.where cannot take a selection: a policy is made of ops\n"
        "        return ts.unmask(x, np.where(ts.masked(x), token, 0), where=ts.masked(x))\n"
        "                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Compute with operators and ops (dir(trajspec) lists them), or declare your own with @ts.op. In a "
        "debugger, np.asarray(value) gives the array when the policy runs on arrays.",
    ),
    (
        "a key",
        ["token, conf = ts.score(logits)", "cache = {conf: 1}", "return x"],
        "PolicyFile.py:11: a conf cannot be in a set or a key of a dictionary\n"
        "        cache = {conf: 1}\n"
        "                ^^^^^^^^^\n"
        "== builds an op of the plan, so two values cannot be told apart like that.",
    ),
    (
        "over several lines",
        [
            "token, conf = ts.score(logits)",
            "return ts.unmask(",
            "    x,",
            "    conf,",
            "    where=ts.masked(x),",
            ")",
        ],
        "PolicyFile.py:11: unmask: operand 'token' must be tokens, got conf from score\n"
        "        return ts.unmask(\n"
        "               ^^^^^^^^^^\n"
        "Write: ts.unmask(x, token, where=...)",
    ),
    (
        "not ASCII before it",
        ["token, conf = ts.score(logits)", 'return ts.unmask(x, token, where=ts.masked(x) & ("ä" == "ä") & token)'],
        "PolicyFile.py:11: &: expected selections or flags, got selection from & and tokens from score\n"
        '        return ts.unmask(x, token, where=ts.masked(x) & ("ä" == "ä") & token)\n'
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Compare first, as in: where=here & (token == 5)",
    ),
]
ONE: list[Case] = [
    (
        "traced: a list",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=[True, False])"],
        "PolicyFile.py:11: unmask: a list cannot be part of a plan\n"
        "        return ts.unmask(x, token, where=[True, False])\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Numbers may be written as they are; arrays are declared in the signature: name=ts.history(...) for "
        "what is remembered from step to step, name=ts.given(...) for an input of the task.",
    ),
    (
        "on arrays: a list",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=[True, False])"],
        "PolicyFile.py:11: unmask: operand 'where' must be selection, got a list\n"
        "        return ts.unmask(x, token, where=[True, False])\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Write: ts.unmask(x, token, where=...)",
    ),
    (
        "traced: a canvas for its tokens",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, x, where=ts.masked(x))"],
        "PolicyFile.py:11: unmask: operand 'token' must be tokens, got canvas from the policy's arguments\n"
        "        return ts.unmask(x, x, where=ts.masked(x))\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Write ts.tokens(x) for the ids on the canvas.",
    ),
    (
        "traced: an attribute of a value",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=x.masked)"],
        "PolicyFile.py:11: a canvas has no attribute 'masked'\n"
        "        return ts.unmask(x, token, where=x.masked)\n"
        "                                         ^^^^^^^^\n"
        "Write: ts.masked(x)",
    ),
    (
        "traced: an unknown attribute",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=x.holes)"],
        "PolicyFile.py:11: a canvas has no attribute 'holes'\n"
        "        return ts.unmask(x, token, where=x.holes)\n"
        "                                         ^^^^^^^\n"
        "A value is read with ops: ts.tokens(x), ts.masked(x), ts.step(x)",
    ),
    (
        "traced: an array in a plan",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=np.array([True, False]))"],
        "PolicyFile.py:11: unmask: an array of bool cannot be part of a plan\n"
        "        return ts.unmask(x, token, where=np.array([True, False]))\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Numbers may be written as they are; arrays are declared in the signature: name=ts.history(...) for "
        "what is remembered from step to step, name=ts.given(...) for an input of the task.",
    ),
    (
        "traced: an array beside a value",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=conf >= np.array([0.5, 0.9]))"],
        "PolicyFile.py:11: >=: an array of float64 cannot be part of a plan\n"
        "        return ts.unmask(x, token, where=conf >= np.array([0.5, 0.9]))\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Numbers may be written as they are; arrays are declared in the signature: name=ts.history(...) for "
        "what is remembered from step to step, name=ts.given(...) for an input of the task.",
    ),
    (
        "traced: an array before a value",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=np.array([0.5, 0.9]) <= conf)"],
        "PolicyFile.py:11: <=: an array of float64 cannot be part of a plan\n"
        "        return ts.unmask(x, token, where=np.array([0.5, 0.9]) <= conf)\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Numbers may be written as they are; arrays are declared in the signature: name=ts.history(...) for "
        "what is remembered from step to step, name=ts.given(...) for an input of the task.",
    ),
    (
        "traced: the array of a traced value",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, np.asarray(token), where=ts.masked(x))"],
        "PolicyFile.py:11: a tokens has no array while its policy is traced\n"
        "        return ts.unmask(x, np.asarray(token), where=ts.masked(x))\n"
        "                            ^^^^^^^^^^^^^^^^^\n"
        "To look at arrays, run the policy on some: policy(ts.canvas(...), logits)",
    ),
    (
        "on arrays: an array beside a value",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=conf >= np.array([0.5, 0.9]))"],
        "PolicyFile.py:11: >=: expected counts, scores or confidences, got conf from score and scores from "
        "an array\n"
        "        return ts.unmask(x, token, where=conf >= np.array([0.5, 0.9]))\n"
        "                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "A confidence is kept as a logarithm. Write ts.prob(conf) to compare it with plain scores.",
    ),
    (
        "on arrays: an array of the wrong type",
        ["token, conf = ts.score(logits)", "return ts.unmask(x, token, where=np.array([0.5, 0.9]))"],
        "PolicyFile.py:11: unmask: operand 'where' must be selection, got an array of float64\n"
        "        return ts.unmask(x, token, where=np.array([0.5, 0.9]))\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "Write: ts.unmask(x, token, where=...)",
    ),
]


def start():
    return ts.canvas([0, 1], gen_length=3, vocab_size=4, mask_id=3)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that imports a policy of these lines from a file of its own and gives its policy `mine`."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def made(lines, head=HEAD):
        file = tmp_path / "PolicyFile.py"
        file.write_text(head + "".join(f"    {line}\n" for line in lines), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("PolicyFile", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.mine

    return made


def message(action) -> str:
    with pytest.raises(TrajspecError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize(("lines", "expected"), [case[1:] for case in BOTH], ids=[case[0] for case in BOTH])
def test_mistakes(load, lines, expected):
    mine = load(lines)
    assert message(mine.plan) == expected.replace("{source}", "forward")
    assert message(lambda: mine(start(), LOGITS)) == expected.replace("{source}", "an array")


@pytest.mark.parametrize(("name", "lines", "expected"), ONE, ids=[case[0] for case in ONE])
def test_mistakes_of_one_way(load, name, lines, expected):
    mine = load(lines)
    assert message(mine.plan if name.startswith("traced") else lambda: mine(start(), LOGITS)) == expected


def test_the_right_policy_raises_nothing(load):
    lines = ["token, conf = ts.score(logits)", "here = ts.masked(x)"]
    lines.append("return ts.unmask(x, token, where=here & (conf >= 0.9) | ts.top(conf, 1, where=here))")
    mine = load(lines)
    assert str(mine.plan()).startswith("def mine(prompt: canvas):")
    assert mine(start(), LOGITS).masked.tolist() == [False, False, False, True, True]


def test_the_message_shows_the_file_as_it_is_now(load):
    for line in ("return logits", "return x, logits"):
        assert f"        {line}\n" in message(load([line]).plan)


def test_names_that_nothing_has(load):
    mine = load(["return ts.unmsk(x, ts.argmax(logits), where=ts.masked(x))"])
    with pytest.raises(AttributeError, match=r"no attribute 'unmsk'; did you mean unmask\?"):
        mine.plan()
    mine = load(["return ts.unmask(x, ts.argmax(logits), were=ts.masked(x))"])
    with pytest.raises(TypeError) as caught:
        mine.plan()
    assert str(caught.value) == "unmask() has no keyword 'were'; did you mean where=? It takes: x, token, where"
    with pytest.raises(TypeError) as caught:
        ts.policies.fastdllm_threshold(treshold=0.5)
    assert str(caught.value).startswith("policy fastdllm_threshold has no parameter 'treshold'; it has: threshold, ")
    with pytest.raises(TypeError, match="it has: none"):
        mine(start(), LOGITS, threshold=0.5)
    assert "'token' is given twice" in message(load(["return ts.unmask(x, logits, token=logits, where=x)"]).plan)


def test_histories_must_come_back(load):
    head = HEAD.replace("x, logits", 'x, logits, seen=ts.history("scores", start=0), n=ts.history("count", start=1)')
    lines = ["y = ts.unmask(x, ts.argmax(logits), where=ts.masked(x))"]
    for last, problem in [
        ("return y", "the policy must return x, seen, n, got 1 value"),
        ("return y, ts.position(x), ts.position(x)", "returned 'n' must be count, got scores from position"),
        ("return y, ts.argmax(logits), 0", "returned 'seen' must be scores, got tokens from argmax"),
        ("return y, 'a', 0", "returned 'seen' must be scores, got a str"),
    ]:
        expected = f"PolicyFile.py:11: mine: {problem}"
        mine = load([*lines, last], head)
        for shown in (message(mine.plan), message(lambda mine=mine: mine(start(), LOGITS))):
            assert shown.startswith(f"{expected}\n        {last}\n        {'^' * len(last)}\n")
            assert shown.endswith("A policy returns its next state. Write: return x, seen, n")
    mine = load([*lines, "return y, 0.5, ts.count(ts.masked(y))"], head)
    assert "fill(x, kind=scores, value=0.5)" in str(mine.plan())
    assert mine(start(), LOGITS)[1] == 0.5
    for last in ("return y, float('nan'), 0", "return y, 2**70, 0"):
        assert "starts as a finite number" in message(load([*lines, last], head).plan)


def test_a_query_must_give_a_query(load):
    head = "import trajspec as ts\n\n\ndef ask(x):\n    return {}\n\n\n"
    head += "@ts.policy\ndef mine(x, logits, other=ts.query(ask)):\n"
    for answer, got in [("ts.masked(x)", "selection from masked"), ("None", "nothing")]:
        assert message(load(["return x"], head.format(answer)).plan) == (
            f"PolicyFile.py:4: query ask must return a query, got {got}\n"
            "        def ask(x):\n"
            "Write for example: return ts.hide(x, where=ts.known(x))"
        )


@pytest.mark.parametrize(
    ("signature", "problem"),
    [
        ("x", "a policy takes the canvas and the logits first"),
        ("x, logits, *, threshold", "parameter 'threshold' needs a default"),
        ("x, logits, threshold=0.9", "argument 'threshold' must say what it is"),
        ("x, logits, *rest", "argument 'rest' cannot be starred"),
        ("x, logits, **rest", "argument 'rest' cannot be starred"),
        ("x, logits, prompt=ts.given('tokens')", "'prompt' is the canvas that a plan starts from"),
    ],
)
def test_declarations(load, signature, problem):
    shown = message(lambda: load(["return x"], HEAD.replace("x, logits", signature)))
    assert shown.startswith(f"PolicyFile.py:9: {problem}\n        def mine({signature}):\n")
    assert len(shown.split("\n")) == 3


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: ts.history("conf"), "'conf' is not a kind of value that can be declared"),
        (lambda: ts.history("canvas"), "'canvas' is not a kind of value that can be declared"),
        (lambda: ts.given("numbers"), "'numbers' is not a kind of value that can be declared"),
        (lambda: ts.history("count", start=float("inf")), "starts as a finite number, got inf"),
        (lambda: ts.history("selection", start=2), "starts as True or False, got 2"),
        (lambda: ts.history("tokens", start=0.5), "expected an int from 0, got 0.5"),
        (lambda: ts.policy(name="two words")(lambda x, logits: x), "a policy's name must be a name in Python"),
        (lambda: ts.policy(lambda x, logits: x), "a policy's name must be a name in Python, got '<lambda>'"),
        (lambda: ts.policy(print), "a policy is a plain function"),
    ],
)  # fmt: skip
def test_declarations_in_values(call, problem):
    shown = message(call)
    assert problem in shown and shown.startswith("test_mistakes.py:")


def test_what_is_not_called_in_time():
    async def later(x, logits):
        return x

    def many(x, logits):
        yield x

    for function in (later, many):
        assert "a policy is a plain function" in message(lambda function=function: ts.policy(function))


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((LOGITS, LOGITS), "argument 'x' must be a canvas, got ndarray"),
        ((start(), LOGITS[:2]), "argument 'logits' must have the shape [5, 4], got [2, 4]"),
        ((start(), LOGITS > 0), "argument 'logits' must be logits, got an array of bool"),
        ((start(),), "mine: expected the values x, logits, got 1"),
        ((start(), LOGITS, LOGITS), "mine: expected the values x, logits, got 3"),
    ],
)
def test_arguments_on_arrays(load, args, problem):
    shown = message(lambda: load(["return x"])(*args))
    assert problem in shown and shown.startswith("test_mistakes.py:")


def test_a_policy_without_source():
    space = {}
    exec("import trajspec as ts\n@ts.policy\ndef mine(x, logits):\n    return ts.max(logits)\n", space)
    assert message(space["mine"].plan) == (
        "<string>:4: max: operand 'p' must be probs, got logits from forward\n"
        "A raw logit is not a probability. Write: token, conf = ts.score(logits)"
    )
    assert linecache.getline("<string>", 4) == ""


def test_profilers_are_left_alone(load):
    mine = load(["here = ts.masked(x)", "return ts.unmask(x, ts.argmax(logits), where=here)"])
    assert sys.getprofile() is None
    plain = mine.plan()
    assert sys.getprofile() is None
    with pytest.raises(TrajspecError):
        load(["return logits"]).plan()
    assert sys.getprofile() is None
    events = []

    def watch(frame, event, arg):
        events.append(event)

    sys.setprofile(watch)
    try:
        assert mine.plan() == plain
        assert sys.getprofile() is watch
    finally:
        sys.setprofile(None)
    assert "call" in events
    with cProfile.Profile():
        assert mine.plan() == plain


def test_a_policy_may_call_another(load):
    inner = ts.policies.fastdllm_threshold

    @ts.policy
    def outer(x, logits):
        y = inner(x, logits, threshold=0.5)
        return ts.remask(y, where=ts.free(x) & ~ts.masked(x))

    text = str(outer.plan())
    assert "conf >= 0.5" in text and "remask(y, where=free(x) & ~masked(x))" in text
    assert sys.getprofile() is None
