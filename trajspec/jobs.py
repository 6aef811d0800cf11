"""Decoding a file of prompts: results in the order of the lines, safe to kill at any moment and start again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from .ir import TrajspecError

# What differs between two runs of the same row, or with the machine: not part of the file.
_VOLATILE = ("seconds", "compile_seconds")
_SETTINGS = ("model", "dtype", "policy", "settings", "cache", "plan_sha256", "gen_length", "stop")


@dataclass(frozen=True)
class Line:
    """One line of the input: its id, and what to decode, or why it cannot be read."""

    number: int
    id: Any
    kind: str = ""  # prompt, messages or infill
    value: Any = None
    error: str = ""


def read_line(number: int, text: str) -> Line:
    """What line `number` (from 1) says; a Line with `error` for one that is broken."""
    try:
        content = json.loads(text)
    except ValueError as error:
        return Line(number, number, error=f"not JSON: {error}")
    if not isinstance(content, dict):
        return Line(number, number, error=f"expected an object with prompt, messages or infill, got {text[:60]}")
    name = content.get("id", number)
    kinds = [kind for kind in ("prompt", "messages", "infill") if kind in content]
    if not isinstance(name, (str, int)) or isinstance(name, bool):
        return Line(number, number, error=f"id must be a string or a whole number, got {name!r}")
    if len(kinds) != 1:
        got = ", ".join(content) or "nothing"
        return Line(number, name, error=f"expected one of prompt, messages, infill, got {got}")
    value = content[kinds[0]]
    if kinds[0] == "messages" and not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        return Line(number, name, error="messages must be a list of {role, content}")
    if kinds[0] != "messages" and not isinstance(value, (str, list)):
        return Line(number, name, error=f"{kinds[0]} must be text or a list of token ids, got {type(value).__name__}")
    return Line(number, name, kinds[0], value)


def read_input(path: Path) -> list[Line]:
    """All lines of a file that are not blank; a repeated id is a broken line.

    Raises TrajspecError when the file cannot be read.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TrajspecError(f"--input {path}: cannot be read as UTF-8 text: {error}") from None
    lines = [read_line(number, text) for number, text in enumerate(texts, 1) if text.strip()]
    seen: set[Any] = set()
    for place, line in enumerate(lines):
        if line.id in seen:
            lines[place] = Line(line.number, line.id, error=f"id {line.id!r} was used before")
        seen.add(line.id)
    return lines


def resume(path: Path) -> list[dict[str, Any]]:
    """The complete lines of an output file; a half-written last line is cut off.

    Raises TrajspecError when the file is something else than output of this command.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    try:
        done = [json.loads(line) for line in whole.decode("utf-8").splitlines()]
        if not all(isinstance(item, dict) and "id" in item for item in done):
            raise ValueError("a line has no id")
    except ValueError as error:
        raise TrajspecError(f"--output {path}: not output of an earlier run ({error}); name another file") from None
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return done


def run_file(
    source: str | Path,
    target: str | Path,
    model: Any,
    options: dict[str, Any],
    *,
    batch_rows: int = 8,
    report: TextIO | None = None,
) -> tuple[int, int]:
    """Decode every line of `source` into `target`; (lines written, broken lines) counts both old and new ones.

    Input lines are `{id?, prompt | messages | infill}`; each output line carries the id, by default the line's number,
    and the row's fields, or `error`. Lines are decoded in fixed groups of `batch_rows` and written in order as soon as
    they are done, so a run that was killed and started again gives the same file as an undisturbed one.

    Raises TrajspecError when a file cannot be used, or the output was made with other settings.
    """
    report = sys.stderr if report is None else report
    lines, out = read_input(Path(source)), Path(target)
    done = resume(out)
    expected = [line.id for line in lines[: len(done)]]
    if [item["id"] for item in done] != expected:
        raise TrajspecError(f"--output {out}: holds results of another input; name another file")
    broken = sum("error" in item for item in done)
    with out.open("a", encoding="utf-8") as file, _progress(len(lines), len(done)) as tick:
        for first in range(0, len(lines), batch_rows):
            group = lines[first : first + batch_rows]
            if first + len(group) <= len(done):
                continue
            for offset, content in enumerate(_decode_group(group, model, options)):
                if first + offset < len(done):
                    continue
                _same_settings(out, done, content)
                if "error" in content:
                    broken += 1
                    print(f"line {group[offset].number}: {content['error']}", file=report)
                file.write(json.dumps(content, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
                tick()
    return len(lines), broken


def _decode_group(group: list[Line], model: Any, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from .decoding import decode
    from .prepare import prepare

    answers: dict[int, dict[str, Any]] = {}
    good: dict[bool, list[tuple[int, Any]]] = {False: [], True: []}
    for place, line in enumerate(group):
        if line.error:
            answers[place] = {"id": line.id, "error": line.error}
            continue
        infill = line.kind == "infill"
        try:
            prepare(model, [line.value], options | {"infill": infill})
            good[infill].append((place, line.value))
        except TrajspecError as error:
            answers[place] = {"id": line.id, "error": str(error)}
    for infill, items in good.items():
        for places in _attempts(items):
            try:
                result = decode(model, [value for _, value in places], infill=infill, keep_path=False, **options)
            except TrajspecError as error:
                if len(places) > 1:
                    continue  # tried again one by one: the others are fine
                answers[places[0][0]] = {"id": group[places[0][0]].id, "error": str(error)}
                continue
            for (place, _), row in zip(places, result, strict=True):
                content = {name: value for name, value in row.as_dict().items() if name not in _VOLATILE}
                answers.setdefault(place, {"id": group[place].id} | content)
            if len(places) == len(items):
                break
    yield from (answers[place] for place in range(len(group)))


def _attempts(items: list[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    """All at once, then each alone."""
    if items:
        yield items
    if len(items) > 1:
        yield from ([item] for item in items)


def _same_settings(path: Path, done: list[dict[str, Any]], new: dict[str, Any]) -> None:
    """Refuse to go on with a file whose rows were decoded in another way than the `new` one."""
    before = next((item["manifest"] for item in done if "manifest" in item), None)
    now = new.get("manifest")
    if before is None or now is None:
        return
    changed = [name for name in _SETTINGS if json.loads(json.dumps(now.get(name))) != before.get(name)]
    if changed:
        raise TrajspecError(
            f"--output {path}: was made with another {', '.join(changed)} ({changed[0]}: {before.get(changed[0])!r}, "
            f"now {now.get(changed[0])!r}); name another file"
        )


class _progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self.bar: Any = None

    def __enter__(self) -> Callable[[], None]:
        if not sys.stderr.isatty():
            return lambda: None
        from tqdm import tqdm

        self.bar = tqdm(total=self.total, initial=self.done, unit="row")
        return lambda: self.bar.update(1)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
