"""Hostile plan text: an error of ours with a place, or a plan that reads back; nothing else, and nothing runs."""

from __future__ import annotations

import re
import sys
import warnings

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trajspec.ir import Plan, TrajspecError, parse
from trajspec.ir.parse import MAX_CHARS, MAX_DEPTH
from trajspec.passes import speculate
from trajspec.policies import POLICIES

GOOD = [str(POLICIES[name].plan()) for name in ("fastdllm_threshold", "klass", "wino", "dream_entropy", "llada_random")]
GOOD.append(str(POLICIES["llada_low_confidence"](cfg_scale=2.0, logits_eos_inf=True, eos_id=1).plan()))
SHORT = GOOD[0]
SPECULATED = str(speculate(POLICIES["fastdllm_threshold"], "chain"))
GOOD += [SPECULATED, str(speculate(POLICIES["klass"], "chain", carried=False, accept="relaxed", strata=(0.9, 0.7)))]
GOOD.append(str(speculate(POLICIES["fastdllm_threshold"], "chain", view="dual")))
FRAGMENTS = [
    "\0", "\ud800", "\x0c", "\u2028", "\r", "\t", "\\", "'", '"', '"""', "#", ";", ":", ",", "=", "==", ":=", "->",
    "**", "*", "(", ")", "[", "]", "{", "}", "-", "~", "+", "not ", "and ", "lambda: x", "[x for x in y]", "{x: y}",
    "x.masked", "x.__class__.__mro__", "__import__('os').system('true')", "import os\n", "from os import *\n",
    "@staticmethod\n", "(y := x)", "f'{x}'", "def f(): pass\n", "while unfinished(x):\n", "async ", "await x",
    "yield x", "class C: pass\n", "return x", "exec('1')", "eval('1')", "open('x')", "1" * 5000, "1e999", "nan", "1j",
    "b''", "...", "None", "True", "0x" + "f" * 100, "x" * 3000, "a if b else c", "x[0]", "*x", "**x", "where=",
    "size=", "size=-1", "size=2**9", "view=dual", "ids=(1, (2,))", "input('x')", "const(1)", "forward(x, x)",
    "global x\n", "del x\n", "try: pass\n", "1 < x < 2", "x is x", "x in x", "é", "ﬁ", "print(x)", "match x:\n",
    "type X = int\n", "assert x\n", "raise x\n",
]  # fmt: skip


def survives(text: str) -> Plan | None:
    """The plan when `text` is one; the error must be ours, with file and line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plan = parse(text, "hostile.txt")
    except TrajspecError as error:
        assert re.match(r"hostile\.txt:\d+: \S", str(error)), str(error)
        shown = str(error).split("\n")
        if len(shown) > 1 and shown[1].startswith("        "):
            assert re.fullmatch(r" {8} *\^+", shown[2]), str(error)
        assert len(str(error)) < 10_000
        return None
    normal = str(plan)
    assert parse(normal) == plan and str(parse(normal)) == normal
    return plan


@st.composite
def edited(draw: st.DrawFn) -> str:
    """A good text after a few edits of characters, tokens or lines."""
    text = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(1, 4))):
        pattern = draw(st.sampled_from([r".|\n", r"\w+|\s+|[^\w\s]", r"[^\n]*\n"]))
        parts = re.findall(pattern, text) or [""]
        one, other = draw(st.integers(0, len(parts) - 1)), draw(st.integers(0, len(parts) - 1))
        kind = draw(st.sampled_from(["delete", "insert", "duplicate", "swap", "replace", "copy"]))
        if kind == "delete":
            del parts[one]
        elif kind == "insert":
            parts.insert(one, draw(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3))))
        elif kind == "duplicate":
            parts.insert(one, parts[one])
        elif kind == "swap":
            parts[one], parts[other] = parts[other], parts[one]
        elif kind == "replace":
            parts[one] = draw(st.sampled_from(FRAGMENTS))
        else:
            parts[one] = parts[other]
        text = "".join(parts)
    return text


@given(text=edited())
@example(text=SHORT.replace("x = prompt", "x = prompt\n    x = x"))
@settings(max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
def test_edits_of_good_texts(text):
    survives(text)


@given(text=st.text(max_size=200))
@settings(max_examples=200, deadline=2000)
def test_arbitrary_texts(text):
    survives(text)


def test_the_good_texts_are_good():
    assert all(survives(text) is not None for text in GOOD)


def body(line: str) -> str:
    return f"def p(prompt: canvas):\n    x = prompt\n    while unfinished(x):\n        {line}\n    return x\n"


MANY = "".join(f"a{n} = masked(x)\n        " for n in range(2500))
LONG = {
    "parentheses": body("x = " + "(" * 5000 + "x" + ")" * 5000),
    "open parentheses": body("x = " + "(" * 5000),
    "brackets": body("x = " + "[" * 100 + "x" + "]" * 100),
    "minus signs": body("x = " + "-" * 30000 + "x"),
    "spaced signs": body("x = " + "- ~ " * 10000 + "x"),
    "minus signs over lines": body("x = (" + "-\\\n" * 10000 + "x)"),
    "not": body("x = " + "not " * 10000 + "x"),
    "calls": body("x = " + "neg(" * 50 + "x" + ")" * 50),
    "sum": body("x = " + "x + " * 15000 + "x"),
    "comparison": body("x = " + "x < " * 15000 + "x"),
    "logic": body("x = " + "x & " * 15000 + "x"),
    "or": body("x = " + "x or " * 10000 + "x"),
    "power": body("x = " + "2 ** " * 10000 + "2"),
    "attributes": body("x = x" + ".a" * 20000),
    "calls of calls": body("x = x" + "()" * 20000),
    "indices": body("x = x" + "[0]" * 15000),
    "conditions": body("x = " + "x if x else " * 4000 + "x"),
    "lambdas": body("x = " + "lambda: " * 7000 + "x"),
    "awaits": body("x = " + "await " * 8000 + "x"),
    "targets": body("x = " * 15000 + "x"),
    "names": body(", ".join(f"a{n}" for n in range(7000)) + " = x"),
    "statements": body(MANY + "x = remask(x, where=a2)"),
    "unknown after many names": body(MANY + "x = b2"),
    "arguments": "def p(" + ", ".join(f"a{n}: canvas" for n in range(4000)) + "):\n    pass\n",
    "long name": body("x = " + "y" * 60000),
    "long op": body("x = " + "y" * 60000 + "(x)"),
    "long number": body("x = " + "1" * 60000),
    "long hexadecimal": body("x = x + 0x" + "f" * 60000),
    "long float": body("x = x + 1e" + "9" * 60000),
    "long string": body("x = '" + "y" * 60000 + "'"),
    "long tuple": body("x = suppress(x, ids=(" + "1, " * 20000 + "))"),
    "deep tuple": body("x = suppress(forward(x), ids=" + "(1, " * 50 + ")" * 50 + ")"),
    "escaped quotes": body('x = "' + '\\"' * 30000),
    "escaped triple quotes": body('x = """' + '\\"""' * 15000),
    "many quotes": body("x = " + "'\"" * 30000),
    "indents": "".join(" " * n + "if x:\n" for n in range(300)),
    "loops": "def p(prompt: canvas):\n" + "".join(" " * (n + 4) + "while x:\n" for n in range(200)),
    "f-strings": body("x = " + "f'{" * 40 + "x" + "}'" * 40),
    "too long": SHORT + "#" * MAX_CHARS,
    "blank": "\n" * 60000,
    "nulls": "\0" * 60000,
    "surrogates": "\ud800" * 60000,
    "empty": "",
    "long plan name": SPECULATED.replace("fastdllm", "f" * 9000),
    "long plan name nobody uses": SHORT.replace("fastdllm", "f" * 30000),
    "many plans": "".join(SHORT.replace("fastdllm", f"f{n}") for n in range(110)),
    "a plan many times": SHORT * 110,
    "plans of plans": "".join(
        SPECULATED[SPECULATED.index("def fastdllm_threshold_chain") :]
        .replace("def fastdllm_threshold_chain", f"def f{n}")
        .replace("of=fastdllm_threshold", f"of=f{n - 1}")
        for n in range(100)
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_long_and_deep_texts(name):
    @given(st.just(LONG[name]))
    @settings(max_examples=1, deadline=2000, database=None)
    def once(text):
        assert (survives(text) is not None) == (name == "statements")

    once()


def test_depth_is_bounded_and_what_is_allowed_reads_back():
    deep = body("x = remask(x, where=" + "~" * MAX_DEPTH + "masked(x))")
    assert survives(deep.replace("~", "", 2)) is not None
    with pytest.raises(TrajspecError, match="nested deeper than 60"):
        parse(deep.replace("~", "~~"))
    with pytest.raises(TrajspecError, match="nested deeper than 60"):
        parse(body("x = remask(x, where=masked(x)" + " & masked(x)" * 70 + ")"))


def test_brackets_in_strings_and_comments_do_not_count():
    text = SHORT.replace('"""Commit', '"""' + "(" * 99 + "Commit").replace("return x", "return x  # " + "[" * 99)
    assert survives(text) is not None


_watched: list[tuple[str, str]] | None = None


def _audit(event: str, args: tuple) -> None:
    kinds = {"exec", "import", "open", "os", "subprocess", "socket", "ctypes"}
    # Python itself looks for a file called "<unknown>" when it words a SyntaxError.
    if _watched is not None and event.split(".")[0] in kinds and args[:1] != ("<unknown>",):
        _watched.append((event, str(args)[:80]))


def watched(action) -> list[tuple[str, str]]:
    """The audit events of execution, imports and files during `action()`."""
    global _watched
    _watched = []
    try:
        action()
    finally:
        events, _watched = _watched, None
    return events


sys.addaudithook(_audit)


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_nothing_is_executed(fragment):
    lines = [fragment, f"x = {fragment}", f"x = remask(x, where={fragment})", f"y = window(x, size={fragment})\nx = x"]
    texts = [fragment, fragment + SHORT, SHORT.replace("prompt: canvas", f"prompt: {fragment}"), *map(body, lines)]
    for text in texts:
        survives(text)
    assert watched(lambda: [survives(text) for text in texts]) == []


def test_the_watch_sees_execution():
    assert [event for event, _ in watched(lambda: exec("1"))] == ["exec"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "window(x", "windo(x",
            "p.txt:6: unknown op 'windo'\n"
            "        here = windo(x, size=32)\n"
            "               ^^^^^\n"
            "Known ops: ",
        ),
        (
            "conf >= 0.9", "cond >= 0.9",
            "p.txt:7: unknown name 'cond'\n"
            "        y = unmask(x, token, where=here & (cond >= 0.9) | top(conf, 1, where=here))\n"
            "                                           ^^^^\n"
            "Known here: conf, here, logits, prompt, token, x (did you mean conf?)",
        ),
        (
            "top(conf, 1, where", "top(conf, 1, were",
            "p.txt:7: top: unknown keyword 'were'\n"
            "        y = unmask(x, token, where=here & (conf >= 0.9) | top(conf, 1, were=here))\n"
            "                                                                       ^^^^^^^^^\n"
            "It takes: by, k, where",
        ),
        (
            "conf >= 0.9", "logits >= 0.9",
            "p.txt:7: >=: expected counts, scores or confidences, got logits from forward and the number 0.9\n"
            "        y = unmask(x, token, where=here & (logits >= 0.9) | top(conf, 1, where=here))\n"
            "                                           ^^^^^^^^^^^^^\n"
            "A raw logit is not a probability. Write: token, conf = ts.score(logits)",
        ),
        (
            "size=32)\n        y", "size=2.5)\n        y",
            "p.txt:6: window: setting 'size' must be int or None, got 2.5\n"
            "        here = window(x, size=2.5)\n"
            "                              ^^^\n"
            "Write: ts.window(x, size=...)",
        ),
        (
            "unfinished(x)", "any(masked(x))",
            "p.txt:3: the loop must go on while unfinished(x)\n"
            "        while any(masked(x)):\n"
            "              ^^^^^^^^^^^^^^",
        ),
        (
            "token, conf = score(logits)", "conf = score(logits)",
            "p.txt:5: 2 values for 1 names\n"
            "        conf = score(logits)\n"
            "        ^^^^^^^^^^^^^^^^^^^^",
        ),
        (
            "return x", "return here",
            "p.txt:9: a plan returns its canvas: return x\n"
            "        return here\n"
            "        ^^^^^^^^^^^",
        ),
        (
            "here & (conf >= 0.9)", "lambda: here",
            "p.txt:7: a plan has no lambda\n"
            "        y = unmask(x, token, where=lambda: here | top(conf, 1, where=here))\n"
            "                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
            "It has calls of ops, names, numbers, the operators + - * / // % & | ^ ~ and single comparisons.",
        ),
        (
            "here & (conf >= 0.9)", "(here & ",
            "p.txt:7: not Python: invalid syntax\n"
            "        y = unmask(x, token, where=(here &  | top(conf, 1, where=here))\n"
            "                                            ^",
        ),
    ],
)  # fmt: skip
def test_messages(old, new, message):
    text = (
        "def p(prompt: canvas):\n    x = prompt\n    while unfinished(x):\n        logits = forward(x)\n"
        "        token, conf = score(logits)\n        here = window(x, size=32)\n"
        "        y = unmask(x, token, where=here & (conf >= 0.9) | top(conf, 1, where=here))\n"
        "        x = advance(x, y, size=32)\n    return x\n"
    )
    assert parse(text) is not None and text.count(old) == 1
    with pytest.raises(TrajspecError) as caught:
        parse(text.replace(old, new), "folder/p.txt")
    shown = str(caught.value)
    assert shown.startswith(message) if message.endswith(": ") else shown == message
    if message.endswith("Known ops: "):
        assert "window" in shown and "did you mean window?" in shown


SECOND = SPECULATED.index("def fastdllm_threshold_chain")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SPECULATED.replace("held=held, of=fastdllm_threshold)", "held=held, of=fastdllm_treshold)", 1),
            "p.txt:20: verify: unknown plan 'fastdllm_treshold'\n"
            "        table = verify(x, draft=draft, held=held, of=fastdllm_treshold)\n"
            "                                                     ^^^^^^^^^^^^^^^^^\n"
            "Defined above: fastdllm_threshold (did you mean fastdllm_threshold?)",
        ),
        (
            SPECULATED.replace("held=held, of=fastdllm_threshold)", "held=held, of='fastdllm_threshold')", 1),
            "p.txt:20: verify: setting 'of' must be the name of a plan defined above, got string or other literal\n"
            "        table = verify(x, draft=draft, held=held, of='fastdllm_threshold')\n"
            "                                                     ^^^^^^^^^^^^^^^^^^^^\n"
            "Defined above: fastdllm_threshold",
        ),
        (
            SPECULATED[SECOND:],
            "p.txt:7: verify: unknown plan 'fastdllm_threshold'\n"
            "        table = verify(x, draft=draft, held=held, of=fastdllm_threshold)\n"
            "                                                     ^^^^^^^^^^^^^^^^^^\n"
            "None is defined above: write its def before this one.",
        ),
        (
            SPECULATED[SECOND:].replace("of=fastdllm_threshold", "of=fastdllm_threshold_chain"),
            "p.txt:7: verify: unknown plan 'fastdllm_threshold_chain'\n",  # a plan cannot be its own base
        ),
        (
            SPECULATED[SECOND:] + SPECULATED[:SECOND],
            "p.txt:7: verify: unknown plan 'fastdllm_threshold'\n",  # above, not below
        ),
        (
            SPECULATED.replace("held=held, of=fastdllm_threshold)", "held=held)", 1),
            "p.txt:20: verify: setting 'of=' is missing\n",
        ),
        (
            SHORT + SPECULATED,
            "p.txt:12: plan 'fastdllm_threshold' is defined twice\n"
            "        def fastdllm_threshold(prompt: canvas):\n"
            "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
            "Give one another name.",
        ),
        (
            SPECULATED.replace("fastdllm_threshold_chain", "fastdllm_threshold"),
            "p.txt:14: plan 'fastdllm_threshold' is defined twice\n",
        ),
        (
            SHORT.replace("fastdllm", "other") + SPECULATED,
            "p.txt:1: plan 'other_threshold' is defined and not used: the text is the plan 'fastdllm_threshold_chain', "
            "the last one\n"
            "        def other_threshold(prompt: canvas):\n"
            "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
            "Name it (of=other_threshold), or leave it out.",
        ),
        (SPECULATED + "x = 1\n", "p.txt:23: a plan is one function: def name(prompt: canvas)\n"),
        (
            SPECULATED.replace("conf >= 0.9", "cond >= 0.9"),  # an error in the plan above has its own line
            "p.txt:9: unknown name 'cond'\n",
        ),
        (
            SPECULATED.replace("draft=draft", "draft=fastdllm_threshold"),  # a plan is no value
            "p.txt:20: unknown name 'fastdllm_threshold'\n",
        ),
        (
            SPECULATED.replace("walk(x, table", "walk(table, table"),
            "p.txt:21: walk: ",
        ),
        (
            SPECULATED.replace("walk(x, table", "walk(table"),
            "p.txt:21: walk: expected what fastdllm_threshold carries, its task inputs, and the rest by name: canvas",
        ),
    ],
)  # fmt: skip
def test_messages_about_plans_above(text, message):
    assert parse(SPECULATED) is not None
    with pytest.raises(TrajspecError) as caught:
        parse(text, "folder/p.txt")
    assert str(caught.value).startswith(message)


def test_columns_count_characters_not_bytes():
    with pytest.raises(TrajspecError) as caught:
        parse(body("x, é = x, ö"), "p.txt")
    assert str(caught.value).split("\n")[1:3] == ["        x, é = x, ö", "                  ^"]


def test_what_is_not_text_is_refused():
    for thing in (None, 5, b"def p(prompt: canvas):"):
        with pytest.raises(TrajspecError, match="the text is empty"):
            parse(thing)
