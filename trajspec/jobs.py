"""Decoding a file of prompts: results in the order of the lines, safe to kill at any moment and start again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from .ir import TrajspecError

# What differs with the machine's speed or with the rows that were decoded beside this one: not part of the file.
_VOLATILE = ("seconds", "compile_seconds", "positions")
_VOLATILE_SETTINGS = ("batch_rows",)
# A line of the file is one prompt with one answer, so these have no meaning for it.
_NOT_HERE = ("infill", "seeds", "num_return_sequences", "attention_mask", "on_step", "keep_path")


@dataclass(frozen=True)
class Line:
    """One line of the input: its id, and what to decode, or why it cannot be read."""

    number: int
    id: Any
    kind: str = ""  # prompt, messages or infill
    value: Any = None
    error: str = ""
    digest: str = ""  # of the line's text: tells whether a result belongs to it

    @property
    def infill(self) -> bool:
        return self.kind == "infill"


def read_line(number: int, data: bytes) -> Line:
    """What line `number` (from 1) says; a Line with `error` for one that is broken."""
    digest = hashlib.sha256(data.strip()).hexdigest()[:16]

    def broken(error: str, name: Any = number) -> Line:
        return Line(number, name, error=error, digest=digest)

    try:
        content = json.loads(data.decode("utf-8"))
        json.dumps(content, ensure_ascii=False).encode("utf-8")  # half a surrogate pair can be read, but not written
    except (ValueError, RecursionError) as error:
        return broken(f"not JSON: {error}")
    if not isinstance(content, dict):
        return broken(f"expected an object with prompt, messages or infill, got {data.decode('utf-8')[:60]}")
    name = content.get("id", number)
    kinds = [kind for kind in ("prompt", "messages", "infill") if kind in content]
    if not isinstance(name, (str, int)) or isinstance(name, bool):
        return broken(f"id must be a string or a whole number, got {name!r}")
    if len(kinds) != 1:
        return broken(f"expected one of prompt, messages, infill, got {', '.join(content) or 'nothing'}", name)
    (kind,) = kinds
    value = content[kind]
    if kind == "messages":
        if not (isinstance(value, list) and value and all(isinstance(item, dict) for item in value)):
            return broken("messages must be a list of {role, content} with at least one of them", name)
    elif not isinstance(value, (str, list)):
        return broken(f"{kind} must be text or a list of token ids, got {type(value).__name__}", name)
    return Line(number, name, kind, value, digest=digest)


def read_input(path: Path) -> list[Line]:
    """All lines of a file that are not blank; a repeated id is a broken line.

    Raises TrajspecError when the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TrajspecError(f"--input {path}: cannot be read: {error.strerror or error}") from None
    # Not splitlines: JSON text may hold characters that it takes for the end of a line.
    pieces = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = [read_line(number, piece) for number, piece in enumerate(pieces, 1) if piece.strip()]
    seen: dict[Any, int] = {}
    for place, line in enumerate(lines):
        if line.error and line.id == line.number:
            continue  # its own id may be unreadable; the number stands for none
        if line.id in seen:
            repeated = f"id {line.id!r} was used before, in line {seen[line.id]}"
            lines[place] = Line(line.number, line.id, error=repeated, digest=line.digest)
        else:
            seen[line.id] = line.number
    return lines


def read_output(path: Path, lines: list[Line]) -> tuple[list[dict[str, Any]], int]:
    """The complete lines of an output file, and their size in bytes: what follows is half a line of a killed run.

    Raises TrajspecError when anything in the file is not what decoding `lines` writes. Changes nothing.
    """

    def other(what: str) -> TrajspecError:
        return TrajspecError(f"--output {path}: {what}; name another file")

    if path.exists() and not (path.is_file() or path.is_dir()):
        raise other("is no ordinary file")  # a device may have no end to read to
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise other(f"cannot be read: {error.strerror or error}") from None
    size = data.rfind(b"\n") + 1
    try:
        done = [json.loads(line.decode("utf-8")) for line in data[:size].split(b"\n")[:-1]]
    except (ValueError, RecursionError) as error:
        raise other(f"not output of an earlier run ({error})") from None
    if len(done) > len(lines):
        raise other(f"holds {len(done)} results for an input of {len(lines)} lines")
    for item, line in zip(done, lines, strict=False):
        if not isinstance(item, dict) or "id" not in item or "input" not in item:
            raise other("not output of an earlier run (a line has no id)")
        if (item["id"], item["input"]) != (line.id, line.digest):
            raise other(f"holds results of another input: {item['id']!r} is not what line {line.number} says now")
    rest = data[size:]
    begins = _begin(lines[len(done)]) if len(done) < len(lines) else b""
    if rest[: len(begins)] != begins[: len(rest)] or (rest and not begins):
        raise other(f"ends in {rest[:40]!r}, which is no part of a result")
    return done, size


def _begin(line: Line) -> bytes:
    """How the result of `line` begins, whatever it is."""
    return json.dumps({"id": line.id, "input": line.digest}, ensure_ascii=False)[:-1].encode("utf-8") + b", "


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
    a digest of the input line, and the row's fields, or `error`. Options are those of `decode`; gen_length and stop
    are for lines that are continued. Lines are decoded in fixed groups of `batch_rows` and written in order as soon as
    they are done; nothing in them depends on the group or on time. So a run that was killed and started again gives
    the same file as an undisturbed one. `report` (stderr) gets the errors, and a bar when it is a terminal.

    Raises TrajspecError when a file cannot be used, or the output was made with other settings, and what decode raises
    for wrong options, before anything is written.
    """
    report = sys.stderr if report is None else report
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise TrajspecError(f"batch_rows is {batch_rows!r}, expected a whole number from 1 up")
    model, options = _once(model, options)
    lines, out = read_input(Path(source)), Path(target)
    told = {infill: _settings(model, options, infill) for infill in sorted({line.infill for line in lines})}
    done, size = read_output(out, lines)
    for item, line in zip(done, lines, strict=False):
        _same_settings(out, item, told[line.infill])
    broken = sum("error" in item for item in done)
    with _open(out, size) as file, _Progress(len(lines), len(done), report) as tick:
        for first in range(len(done) // batch_rows * batch_rows, len(lines), batch_rows):
            group = lines[first : first + batch_rows]
            for place, content in enumerate(_decode_group(group, model, options), first):
                if place < len(done):
                    continue
                if "error" in content:
                    broken += 1
                    print(f"line {lines[place].number}: {content['error']}", file=report)
                _append(file, out, content)
                tick()
    return len(lines), broken


def _once(model: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model, loaded, and the options under the library's own names."""
    import torch

    from .completion import load_target
    from .options import canonical
    from .runtime.denoiser import as_model
    from .targets import asks_target

    given = canonical(options, frozenset(getattr(options.get("policy"), "settings", None) or ()))
    wrong = [name for name in given if name in _NOT_HERE]
    if wrong:
        raise TrajspecError(f"{', '.join(wrong)}: a line of a file is one prompt with one answer, and says its kind")
    where = (given.pop("dtype", None), given.pop("device", None))
    if "target" in given:
        # Said the other way round, so that both models are loaded once.
        model, given["drafter"] = given.pop("target"), as_model(model, *where)
    if not asks_target(model, given):
        return as_model(model, *where), given
    if given.get("drafter") is not None:
        given["drafter"] = as_model(given["drafter"], *where)
    return load_target(model, dtype=where[0] or torch.float32, device=where[1] or "cpu"), given


def _options(options: dict[str, Any], infill: bool) -> dict[str, Any]:
    """The options that a line takes: filling in a text has neither a length nor stop strings."""
    if not infill:
        return options
    return {name: value for name, value in options.items() if name not in ("gen_length", "stop")} | {"infill": True}


def _open(path: Path, size: int) -> BinaryIO:
    """`path` to write behind its first `size` bytes."""
    try:
        file = path.open("ab", buffering=0)  # no buffer: what could not be written is not tried again at the close
        file.truncate(size)
    except OSError as error:
        raise TrajspecError(f"--output {path}: cannot be written: {error.strerror or error}") from error
    return file


def _append(file: BinaryIO, path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    rest = text.encode("utf-8", errors="replace") + b"\n"
    try:
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError as error:
        raise TrajspecError(
            f"--output {path}: cannot be written: {error.strerror or error}; the lines in it stay, and the same call "
            "goes on behind them"
        ) from error


def _settings(model: Any, options: dict[str, Any], infill: bool) -> dict[str, Any]:
    """What the manifest of every line of a kind says, in the form it has in a file. Raises what decode raises."""
    from .prepare import prepare
    from .report import plain
    from .targets import asks_target, prepare_target, settings_of

    given = _options(options, infill)
    if asks_target(model, options):
        # A line to fill in is a broken one here, and its settings are nobody's.
        target = prepare_target(model, [[0]], _options(options, False))
        known = settings_of(target, target.texts[0], None)
        changing = ("prompt", *_VOLATILE_SETTINGS)
        return json.loads(json.dumps({name: value for name, value in known.items() if name not in changing}))
    allowed = given.get("allowed")
    # Any canvas will do, the shortest; which positions there are to restrict is known line by line.
    open_ended = not infill and (model.kind == "text" or given.get("gen_length") is not None)
    job = prepare(model, [[] if open_ended else [model.mask_id]], {k: v for k, v in given.items() if k != "allowed"})
    told = {
        "model": model.name, "dtype": str(model.dtype).removeprefix("torch."), "policy": job.policy,
        "settings": plain(job.settings), "plan_sha256": hashlib.sha256(str(job.plan).encode()).hexdigest(),
        "cache": job.view, "gen_length": job.gen_length, "seed": job.rows[0].seed, "stop": list(job.stop),
        "eos_ids": list(job.eos), "inputs": plain(job.rows[0].inputs), "infill": job.infill,
        "allowed": None if allowed is None else {str(place): plain(ids) for place, ids in allowed.items()},
    }  # fmt: skip
    return json.loads(json.dumps(told))


def _decode_group(group: list[Line], model: Any, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the output says of each line of the group, in order."""
    from .decoding import decode
    from .prepare import prepare
    from .targets import asks_target, prepare_target

    ready: Any = prepare_target if asks_target(model, options) else prepare
    answers: dict[int, dict[str, Any]] = {}

    def answer(place: int, content: dict[str, Any]) -> None:
        answers[place] = {"id": group[place].id, "input": group[place].digest} | content

    good: dict[bool, list[tuple[int, Any]]] = {False: [], True: []}
    for place, line in enumerate(group):
        try:
            if line.error:
                raise TrajspecError(line.error)
            ready(model, [line.value], _options(options, line.infill))
            good[line.infill].append((place, line.value))
        except TrajspecError as error:
            answer(place, {"error": str(error)})
    for infill, items in good.items():
        for tried in _attempts(items):
            try:
                result = decode(model, [value for _, value in tried], keep_path=False, **_options(options, infill))
            except TrajspecError as error:
                if len(tried) == 1:
                    answer(tried[0][0], {"error": str(error)})
                continue  # of several: tried again one by one, the others are fine
            for (place, _), row in zip(tried, result, strict=True):
                content = {name: value for name, value in row.as_dict().items() if name not in _VOLATILE}
                manifest = content["manifest"]
                content["manifest"] = {k: v for k, v in manifest.items() if k not in _VOLATILE_SETTINGS}
                answer(place, content)
            if len(tried) == len(items):
                break
    yield from (answers[place] for place in range(len(group)))


def _attempts(items: list[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    """All at once, then each alone."""
    if items:
        yield items
    if len(items) > 1:
        yield from ([item] for item in items)


def _same_settings(path: Path, item: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with a file when one of its rows was decoded in another way than the next ones will be."""
    before = item.get("manifest")
    if before is None:
        return  # an error, which no setting made
    changed = [name for name in now if now[name] != before.get(name)]
    if changed:
        raise TrajspecError(
            f"--output {path}: was made with another {', '.join(changed)} ({changed[0]}: {before.get(changed[0])!r}, "
            f"now {now[changed[0]]!r}); name another file"
        )


class _Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int, done: int, report: TextIO) -> None:
        self.total, self.done, self.report = total, done, report
        self.bar: Any = None

    def __enter__(self) -> Callable[[], None]:
        if not self.report.isatty():
            return lambda: None
        from tqdm import tqdm

        self.bar = tqdm(total=self.total, initial=self.done, unit="row", file=self.report)
        return lambda: self.bar.update(1)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
