"""Files of prompts: what every line becomes, and that no kill, error or interrupt loses or changes a line."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trajspec as ts
from tests.toys import LETTERS, MASK, text_model
from trajspec import jobs
from trajspec.cli import main
from trajspec.exact.tabular import FixedModel
from trajspec.jobs import read_line, run_file

OPTIONS = {"gen_length": 4, "block_length": 2, "threshold": 0.5}
SHORT = {"gen_length": 2, "threshold": 0.5, "stop": []}


def changed(model, change):
    """`model` with `change(logits, tokens)` made in place in every call."""
    plain = model.denoise

    def denoise(tokens, positions, visible):
        logits = plain(tokens, positions, visible)
        change(logits, tokens)
        return logits

    return dataclasses.replace(model, denoise=denoise)


def poisoned(model, letter="z"):
    """A model whose logits are no numbers for rows that hold `letter`."""

    def change(logits, tokens):
        logits[(tokens == LETTERS.index(letter)).any(-1)] = float("nan")

    return changed(model, change)


def failing(model, after, error):
    """A model that raises `error` at its call number `after` (from 0)."""
    calls = [0]

    def change(logits, tokens):
        calls[0] += 1
        if calls[0] > after:
            raise error

    return changed(model, change)


def write(path: Path, *lines) -> Path:
    """A file of these lines: objects as JSON, texts as they are."""
    texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def go(source, target, model=None, options=None, **more):
    """run_file with what it reports: (lines, broken, report)."""
    report = io.StringIO()
    model = text_model("abcdefgh") if model is None else model
    counts = run_file(source, target, model, OPTIONS if options is None else options, report=report, **more)
    return (*counts, report.getvalue())


@pytest.fixture
def many(tmp_path):
    """Eleven lines of all sorts, three of them broken."""
    return write(
        tmp_path / "in.jsonl",
        {"id": "first", "prompt": "ab"}, {"prompt": [0, 1, 2]}, {"infill": "a_c_"}, "{broken", {"prompt": "abcdef"},
        {"id": "last but some", "prompt": ""}, {"prompt": "a", "infill": "_"}, {"prompt": [0]},
        {"infill": [0, MASK, MASK]}, {"prompt": [99]}, {"prompt": "abc"},
    )  # fmt: skip


def test_every_line_has_its_result_in_order(many, tmp_path):
    out = tmp_path / "out.jsonl"
    lines, broken, report = go(many, out)
    assert (lines, broken) == (11, 3)
    rows = read(out)
    assert [row["id"] for row in rows] == ["first", 2, 3, 4, 5, "last but some", 7, 8, 9, 10, 11]
    texts = ["cdef", "defg", "abcd", None, "gh..", "abcd", None, "bcde", "abc", None, "defg"]
    assert [row.get("text") for row in rows] == texts
    assert [number for number, row in enumerate(rows, 1) if "error" in row] == [4, 7, 10]
    assert set(rows[3]) == {"id", "input", "error"}
    told = report.splitlines()
    assert [line.split(":")[0] for line in told] == ["line 4", "line 7", "line 10"]
    assert "not JSON" in told[0] and "expected one of prompt, messages, infill, got prompt, infill" in told[1]
    assert "token 99" in told[2]
    # Everything a row says but what depends on time or on its neighbours.
    row = ts.decode(text_model("abcdefgh"), "ab", **OPTIONS)[0].as_dict()
    expected = {name: value for name, value in row.items() if name not in ("seconds", "compile_seconds", "positions")}
    del expected["manifest"]["batch_rows"]
    mine = {name: value for name, value in rows[0].items() if name not in ("id", "input")}
    assert mine == expected


def test_groups_do_not_change_the_file(many, tmp_path):
    files = []
    for size in (1, 2, 3, 5, 11, 50):
        go(many, tmp_path / f"{size}.jsonl", batch_rows=size)
        files.append((tmp_path / f"{size}.jsonl").read_bytes())
    assert len(set(files)) == 1 and files[0].count(b"\n") == 11


def test_a_field_of_the_batch_would_show(many, tmp_path, monkeypatch):
    # The control of the test above: with the padding counted, the groups show.
    monkeypatch.setattr(jobs, "_VOLATILE", ("seconds", "compile_seconds"))
    for size in (1, 11):
        go(many, tmp_path / f"{size}.jsonl", batch_rows=size)
    assert (tmp_path / "1.jsonl").read_bytes() != (tmp_path / "11.jsonl").read_bytes()


def test_going_on_after_any_number_of_lines_gives_the_same_file(many, tmp_path):
    go(many, tmp_path / "whole.jsonl", batch_rows=4)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    for count in range(12):
        out = tmp_path / "part.jsonl"
        out.write_bytes(b"".join(line + b"\n" for line in whole.split(b"\n")[:count]))
        lines, broken, report = go(many, out, batch_rows=4)
        assert out.read_bytes() == whole
        assert (lines, broken) == (11, 3)
        assert len(report.splitlines()) == sum(number > count for number in (4, 7, 10))


def test_a_kill_at_any_byte_of_a_line(tmp_path, monkeypatch):
    source = write(tmp_path / "in.jsonl", {"prompt": "a"}, {"id": "zwölf \u2028", "prompt": "ab"})
    out, short = tmp_path / "out.jsonl", tmp_path / "short.jsonl"
    go(source, out, options=SHORT, batch_rows=1)
    whole = out.read_bytes()
    start = whole.find(b"\n") + 1
    for size in range(start, len(whole), 211):
        out.write_bytes(whole[:size])
        go(source, out, options=SHORT, batch_rows=1)
        assert out.read_bytes() == whole
    # Every single byte, with lines of which most is left out.
    made = {row["id"]: {"id": row["id"], "input": row["input"], "text": row["text"]} for row in read(out)}
    monkeypatch.setattr(jobs, "_decode_group", lambda group, *_: iter([made[line.id] for line in group]))
    go(source, short, options=SHORT, batch_rows=1)
    whole = short.read_bytes()
    start = whole.find(b"\n") + 1
    assert len(whole) - start > 60
    for size in range(start, len(whole)):
        short.write_bytes(whole[:size])
        go(source, short, options=SHORT, batch_rows=1)
        assert short.read_bytes() == whole
    # The control: a half line that is left in place shows.
    monkeypatch.setattr(jobs, "_open", lambda path, size: path.open("ab", buffering=0))
    short.write_bytes(whole[:-9])
    go(source, short, options=SHORT, batch_rows=1)
    assert short.read_bytes() != whole


# Runs are started and killed in a process of their own, which has loaded the library once and has no threads.
KILLER = """
import dataclasses, os, random, signal, sys, time
from pathlib import Path
from tests.toys import text_model
from trajspec.jobs import run_file

source, out = Path(sys.argv[1]), Path(sys.argv[2])
model = text_model("abcdefgh")
def slow(tokens, positions, visible, plain=model.denoise):
    time.sleep(0.004)
    return plain(tokens, positions, visible)
model = dataclasses.replace(model, denoise=slow)
whole, generator = Path(sys.argv[3]).read_bytes(), random.Random(5)
import trajspec
trajspec.decode(model, "", gen_length=2, threshold=0.5)  # what is loaded at the first use is loaded here

def attempt(goal):
    pid = os.fork()
    if not pid:
        run_file(source, out, model, {"gen_length": 4, "block_length": 2, "threshold": 0.5}, batch_rows=3)
        os._exit(0)
    while goal is not None and (not out.exists() or out.stat().st_size < goal):
        time.sleep(0.002)
    if goal is not None:
        time.sleep(generator.random() * 0.01)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert whole.startswith(out.read_bytes())  # what is there is a beginning of the whole, at every moment
    return os.WIFSIGNALED(status), os.waitstatus_to_exitcode(status)

killed = sum(attempt(goal)[0] for goal in sorted(generator.sample(range(1, len(whole) * 3 // 4), 6)))
print(killed, attempt(None)[1])
"""


def test_killed_again_and_again(tmp_path):
    lines = [{"prompt": LETTERS[: number % 5]} for number in range(30)]
    lines[17] = "broken"
    source, out, whole = write(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl", tmp_path / "undisturbed.jsonl"
    go(source, whole, batch_rows=3)
    argv = [sys.executable, "-c", KILLER, str(source), str(out), str(whole)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, cwd=Path(__file__).parents[1], env=alone, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    killed, code = map(int, done.stdout.split())
    assert code == 0 and killed >= 4
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
@pytest.mark.parametrize("after", [0, 3, 5, 9])
def test_an_exception_in_the_middle_loses_nothing(many, tmp_path, error, after):
    go(many, tmp_path / "whole.jsonl", batch_rows=2)
    whole, out = (tmp_path / "whole.jsonl").read_bytes(), tmp_path / "out.jsonl"
    with pytest.raises(type(error)):
        go(many, out, failing(text_model("abcdefgh"), after, error), batch_rows=2)
    assert whole.startswith(out.read_bytes())
    assert out.read_bytes() != whole
    assert (out.stat().st_size > 0) == (after > 0)
    go(many, out, batch_rows=2)
    assert out.read_bytes() == whole


def test_one_bad_row_does_not_spoil_its_batch(tmp_path):
    source = write(tmp_path / "in.jsonl", *[{"prompt": text} for text in ("a", "az", "abc", "z", "ab")])
    out, fine = tmp_path / "out.jsonl", tmp_path / "fine.jsonl"
    lines, broken, report = go(source, out, poisoned(text_model("abcdefgh")), batch_rows=4)
    assert (lines, broken) == (5, 2)
    rows = read(out)
    assert [row.get("text") for row in rows] == ["bcde", None, "defg", None, "cdef"]
    assert "NaN" in rows[1]["error"] and "row 0" in rows[1]["error"]
    assert report.splitlines()[0].startswith("line 2: ")
    go(source, fine, batch_rows=4)
    good = [line for number, line in enumerate(out.read_bytes().split(b"\n")) if number not in (1, 3)]
    assert good == [line for number, line in enumerate(fine.read_bytes().split(b"\n")) if number not in (1, 3)]


def test_rows_too_long_are_error_lines(tmp_path):
    source = write(tmp_path / "in.jsonl", {"prompt": "a" * 60}, {"prompt": "a" * 61}, {"infill": "_" * 65})
    lines, broken, report = go(source, tmp_path / "out.jsonl")
    assert (lines, broken) == (3, 2)
    rows = read(tmp_path / "out.jsonl")
    assert "error" not in rows[0] and "Shorten it by 1" in rows[1]["error"] and "64" in rows[2]["error"]
    assert "line 2: " in report


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[1]", "expected an object with prompt, messages or infill, got [1]"),
        ("5", "expected an object"),
        ("{}", "got nothing"),
        ('{"id": 3, "text": "a"}', "got id, text"),
        ('{"id": null, "prompt": "a"}', "id must be a string or a whole number, got None"),
        ('{"id": true, "prompt": "a"}', "id must be"),
        ('{"id": 1.5, "prompt": "a"}', "id must be"),
        ('{"prompt": 5}', "prompt must be text or a list of token ids, got int"),
        ('{"infill": null}', "infill must be text or a list of token ids, got NoneType"),
        ('{"messages": "a"}', "messages must be a list"),
        ('{"messages": []}', "messages must be a list"),
        ('{"messages": [["a"]]}', "messages must be a list"),
        ('{"prompt": "\\ud800"}', "surrogates not allowed"),
        ("[" * 100000, "not JSON"),
    ],
)
def test_broken_lines(text, message, tmp_path):
    line = read_line(7, text.encode())
    assert message in line.error and (line.number, line.kind) == (7, "")
    source = write(tmp_path / "in.jsonl", {"id": "good", "prompt": "a"}, text or " x", {"id": "too", "prompt": "ab"})
    lines, broken, report = go(source, tmp_path / "out.jsonl")
    assert (lines, broken) == (3, 1)
    assert report.startswith("line 2: ")
    assert [row.get("text") for row in read(tmp_path / "out.jsonl")] == ["bcde", None, "cdef"]


def test_a_line_that_is_not_utf8_is_broken_and_the_rest_is_done(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "\xff"}\n{"prompt": "ab"}')
    lines, broken, report = go(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (lines, broken) == (3, 1) and "line 2: not JSON: 'utf-8'" in report
    assert [row.get("text") for row in read(tmp_path / "out.jsonl")] == ["bcde", None, "cdef"]


def test_blank_lines_count_as_lines_and_repeated_ids_are_broken(tmp_path):
    texts = [
        "",
        {"prompt": "a"},
        "  ",
        {"id": "x", "prompt": "a"},
        {"id": "x", "prompt": "ab"},
        {"id": 2, "prompt": ""},
    ]
    source = write(tmp_path / "in.jsonl", *texts, "broken", {"id": 7, "prompt": ""}, "")
    lines, broken, report = go(source, tmp_path / "out.jsonl")
    assert (lines, broken) == (6, 3)
    assert [row["id"] for row in read(tmp_path / "out.jsonl")] == [2, "x", "x", 2, 7, 7]
    assert "line 5: id 'x' was used before, in line 4" in report
    assert "line 6: id 2 was used before, in line 2" in report
    assert "text" in read(tmp_path / "out.jsonl")[-1]  # the broken line's number stands for no id
    before = (tmp_path / "out.jsonl").read_bytes()
    assert go(source, tmp_path / "out.jsonl") == (6, 3, "")
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_an_empty_file(tmp_path):
    for text in ("", "\n\n"):
        (tmp_path / "in.jsonl").write_text(text)
        assert go(tmp_path / "in.jsonl", tmp_path / "out.jsonl") == (0, 0, "")
        assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_line_separators_inside_texts(tmp_path):
    # Characters that str.splitlines takes for the end of a line.
    source = write(tmp_path / "in.jsonl", {"id": "a\u2028b\x85c", "prompt": "a"}, {"prompt": "b"})
    go(source, tmp_path / "out.jsonl")
    before = (tmp_path / "out.jsonl").read_bytes()
    assert go(source, tmp_path / "out.jsonl") == (2, 0, "")
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_files_that_cannot_be_used(tmp_path):
    source = write(tmp_path / "in.jsonl", {"prompt": "a"})
    for name in (tmp_path / "absent", tmp_path):
        with pytest.raises(ts.TrajspecError, match="--input .*cannot be read"):
            go(name, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(ts.TrajspecError, match="--output .*cannot be read"):
        go(source, tmp_path)
    with pytest.raises(ts.TrajspecError, match="--output .*cannot be written: No such file"):
        go(source, tmp_path / "absent" / "out.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_told(tmp_path, monkeypatch):
    source = write(tmp_path / "in.jsonl", {"prompt": "a"})
    monkeypatch.setattr(jobs, "_open", lambda path, size: Path("/dev/full").open("ab", buffering=0))  # noqa: SIM115
    with pytest.raises(ts.TrajspecError, match="No space left.* the same call goes on"):
        go(source, tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a text that somebody needs", "ends in b'a text"),
        (b"a text that somebody needs\n", "not output of an earlier run"),
        (b"\xff\xfe\n", "not output of an earlier run"),
        (b'{"a": 1}\n', "has no id"),
        (b"[1]\n", "has no id"),
        (b"\n", "not output of an earlier run"),
        (b'{"id": 1}', "ends in"),
        (b'{"id": 1, "text": "b"}\n', "has no id"),
    ],
)
def test_another_file_is_refused_and_left_alone(content, message, tmp_path):
    source, out = write(tmp_path / "in.jsonl", {"prompt": "a"}, {"prompt": "ab"}), tmp_path / "out.jsonl"
    out.write_bytes(content)
    with pytest.raises(ts.TrajspecError, match=f"--output .*{message}.*name another file"):
        go(source, out)
    assert out.read_bytes() == content


def test_the_input_itself_is_no_output(tmp_path):
    for end in ("\n", ""):
        source = tmp_path / "in.jsonl"
        source.write_text('{"id": 1, "prompt": "a"}' + end)
        before = source.read_bytes()
        with pytest.raises(ts.TrajspecError, match="name another file"):
            go(source, source)
        assert source.read_bytes() == before


@pytest.mark.parametrize("cut", [0, 9])
def test_results_of_another_input_are_refused(tmp_path, cut):
    source, out = write(tmp_path / "in.jsonl", {"prompt": "a"}, "broken"), tmp_path / "out.jsonl"
    go(source, out)
    whole = out.read_bytes()
    before = whole[: len(whole) - cut]
    out.write_bytes(before)
    others = [
        ({"prompt": "b"}, "broken"), ({"id": 5, "prompt": "a"}, "broken"), ({"prompt": "a"}, {"prompt": "mended"}),
        ({"infill": "a"}, "broken"), ("", {"prompt": "a"}), ({"prompt": "a"},), (),
    ]  # fmt: skip
    for lines in others:
        write(source, *lines)
        with pytest.raises(ts.TrajspecError, match="--output .*(results|ends in).*name another file"):
            go(source, out)
        assert out.read_bytes() == before
    # More lines at the end are fine.
    write(source, {"prompt": "a"}, "broken", {"prompt": "ab"})
    go(source, out)
    assert out.read_bytes().startswith(whole)
    assert read(out)[2]["text"] == "cdef"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"threshold": 0.6}, "settings"),
        ({"policy": "quota", "steps": 4, "threshold": None}, "policy"),
        ({"gen_length": 6}, "gen_length"),
        ({"seed": 1}, "seed"),
        ({"stop": ["b"]}, "stop"),
        ({"cache": "prefix"}, "cache"),
        ({"eos_id": [3]}, "eos_ids"),
        ({"allowed": {1: "ab"}}, "allowed"),
    ],
)
def test_other_settings_are_refused(tmp_path, options, names):
    source, out = write(tmp_path / "in.jsonl", {"prompt": "a"}, "broken", {"prompt": "b"}), tmp_path / "out.jsonl"
    model = dataclasses.replace(text_model("abcdefgh"), cache=object())
    go(source, out, model)
    whole = out.read_bytes()
    for size in (len(whole), len(whole) - 5, whole.find(b"\n") + 1):
        out.write_bytes(whole[:size])
        with pytest.raises(ts.TrajspecError, match=f"was made with another .*{names}.* now .*name another file"):
            go(source, out, model, OPTIONS | options)
        assert out.read_bytes() == whole[:size]
    go(source, out, model, {"max_new_tokens": 4, "block_size": 2, "confidence_threshold": 0.5, "seed": 0})
    assert out.read_bytes() == whole


def test_another_model_is_refused(tmp_path):
    source, out = write(tmp_path / "in.jsonl", {"infill": "a_"}), tmp_path / "out.jsonl"
    go(source, out)
    with pytest.raises(ts.TrajspecError, match="another model .*'letters', now 'digits'"):
        go(source, out, dataclasses.replace(text_model("abc"), name="digits"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "treshold"}, "Did you mean"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"gen_length": 65}, "Shorten it by 1"),
        ({"stop": [""]}, "not empty"),
        ({"num_return_sequences": 2}, "num_return_sequences: a line of a file is one prompt with one answer"),
        ({"seeds": [1, 2]}, "seeds: a line"),
        ({"infill": True}, "infill: a line"),
        ({"cache": "prefix"}, "cannot work on kept keys"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(tmp_path, options, message):
    source = write(tmp_path / "in.jsonl", {"prompt": "a"})
    with pytest.raises(ts.TrajspecError, match=message):
        go(source, tmp_path / "out.jsonl", options=OPTIONS | options)
    with pytest.raises(TypeError, match="has no option 'colour'"):
        go(source, tmp_path / "out.jsonl", options={"colour": 3})
    for size in (0, -1, True, 2.0):
        with pytest.raises(ts.TrajspecError, match="batch_rows is"):
            go(source, tmp_path / "out.jsonl", batch_rows=size)
    assert not (tmp_path / "out.jsonl").exists()


def test_length_and_stop_strings_are_for_continuations(tmp_path):
    source = write(tmp_path / "in.jsonl", {"prompt": "a"}, {"infill": "a_c_"})
    assert go(source, tmp_path / "out.jsonl", options=OPTIONS | {"stop": ["d"]})[:2] == (2, 0)
    assert [row["text"] for row in read(tmp_path / "out.jsonl")] == ["bc", "abcd"]


def test_a_cached_run_is_resumed_too(tmp_path):
    source = write(tmp_path / "ids.jsonl", *[{"prompt": [3] * size} for size in (1, 3, 2, 5, 0)], {"infill": [3, 7, 7]})
    model = FixedModel([(3, 2.0), (4, 1.0), (2, 3.0), (1, 2.5), (5, 0.5), (6, 0.1)] * 2)
    for view in ("prefix", "dual"):
        whole, part = tmp_path / f"{view}.jsonl", tmp_path / f"{view}2.jsonl"
        go(source, whole, model, OPTIONS | {"cache": view}, batch_rows=4)
        assert {row["cache"] for row in read(whole)} == {view}
        part.write_bytes(whole.read_bytes()[:-30])
        go(source, part, model, OPTIONS | {"cache": view}, batch_rows=1)
        assert part.read_bytes() == whole.read_bytes()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_only(tmp_path):
    source = write(tmp_path / "in.jsonl", {"prompt": "a"}, {"prompt": "ab"})
    terminal = Terminal()
    run_file(source, tmp_path / "out.jsonl", text_model("abcd"), OPTIONS, report=terminal)
    assert "2/2" in terminal.getvalue()
    assert go(source, tmp_path / "other.jsonl", text_model("abcd"))[2] == ""


# The command line


@pytest.fixture
def letters(monkeypatch):
    """`--model letters` is a model that writes abcdefgh; the fixture says which one to load."""
    loaded = [text_model("abcdefgh")]
    monkeypatch.setattr("trajspec.runtime.denoiser.load_model", lambda name, dtype, device: loaded[-1])
    return loaded


def command(source, target, *more):
    argv = ["decode", "--model", "letters", "--input", str(source), "--output", str(target), *more]
    return main([*argv, "--gen-length", "4", "--block-length", "2", "--threshold", "0.5"])


def test_the_command_writes_the_file(many, tmp_path, letters, capsys):
    out = tmp_path / "out.jsonl"
    assert command(many, out, "--batch-rows", "3") == 1
    told = capsys.readouterr()
    assert not told.out
    assert told.err.endswith(f"8 rows in {out}, 3 broken\n") and "line 4: not JSON" in told.err
    go(many, tmp_path / "same.jsonl")
    assert out.read_bytes() == (tmp_path / "same.jsonl").read_bytes()
    good = write(tmp_path / "good.jsonl", {"prompt": "a"}, {"prompt": "ab"})
    assert command(good, tmp_path / "good.out") == 0
    assert capsys.readouterr().err == f"2 rows in {tmp_path / 'good.out'}, 0 broken\n"
    assert command(good, out) == 2
    assert "holds 11 results for an input of 2 lines; name another file" in capsys.readouterr().err


def test_a_warning_comes_once(tmp_path, letters, capsys):
    source = write(tmp_path / "in.jsonl", *[{"prompt": "a" * number} for number in range(9)])
    assert command(source, tmp_path / "out.jsonl", "--steps", "4", "--batch-rows", "2") == 0
    assert capsys.readouterr().err.count("steps=4 is not used") == 1


def test_an_interrupt_is_told_and_the_command_goes_on(many, tmp_path, letters, capsys):
    out = tmp_path / "out.jsonl"
    letters.append(failing(text_model("abcdefgh"), 5, KeyboardInterrupt()))
    assert command(many, out, "--batch-rows", "2") == 130
    assert f"the same command goes on where {out} ends" in capsys.readouterr().err
    assert 0 < len(read(out)) < 11
    letters.pop()
    assert command(many, out, "--batch-rows", "2") == 1
    go(many, tmp_path / "same.jsonl")
    assert out.read_bytes() == (tmp_path / "same.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--input", "x"], "--input FILE and --output FILE go together"),
        (["--output", "x", "a"], "--input FILE and --output FILE go together"),
        (["--input", "x", "--output", "y", "a"], "one of the three"),
        (["--input", "x", "--output", "y", "--infill", "a"], "one of the three"),
        (["--input", "x", "--output", "y", "--samples", "2"], "without --samples"),
        (["--input", "x", "--output", "y", "--json"], "without --samples, --stream and --json"),
        (["--input", "x", "--output", "y", "--stream"], "without --samples, --stream and --json"),
        (["--input", "absent", "--output", "y"], "--input absent: cannot be read"),
        (["--input", os.devnull, "--output", "y", "--batch-rows", "0"], "batch_rows is 0"),
    ],
)
def test_bad_usage_is_told_in_a_line(argv, message, letters, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["decode", "--model", "letters", *argv]) == 2
    err = capsys.readouterr().err
    assert message in err and err.startswith("trajspec: ") and "Traceback" not in err
    assert not any(tmp_path.iterdir())


def test_groups_stay_the_same_after_a_restart(tmp_path):
    # Rounding lets the rows of a batch see how many they are; here they do so openly.
    model = text_model("abcdefgh")
    calls = []

    def change(logits, tokens):
        calls.append(len(tokens))
        logits[..., len(tokens)] = 9.0

    model = changed(model, change)
    source = write(tmp_path / "in.jsonl", *[{"prompt": LETTERS[number : number + 3]} for number in range(5)])
    go(source, tmp_path / "whole.jsonl", model, batch_rows=3)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    assert [row["text"] for row in read(tmp_path / "whole.jsonl")] == ["dddd"] * 3 + ["cccc"] * 2
    for size in (len(whole) // 3, len(whole) // 2, len(whole) - 9):
        (tmp_path / "part.jsonl").write_bytes(whole[:size])
        calls.clear()
        go(source, tmp_path / "part.jsonl", model, batch_rows=3)
        assert (tmp_path / "part.jsonl").read_bytes() == whole
        assert calls and set(calls) <= {3, 2}


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no device without an end")
def test_an_output_without_an_end_is_refused_unread(tmp_path):
    source = write(tmp_path / "in.jsonl", {"prompt": "a"})
    with pytest.raises(ts.TrajspecError, match="is no ordinary file; name another file"):
        go(source, "/dev/zero")
