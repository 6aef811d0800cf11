"""The one exception class of the library, and how a message points at the user's own line."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__))


class TrajspecError(ValueError):
    """Something asked of trajspec cannot be done; the text says what came, what was expected and what to write."""


class OptionError(TrajspecError, TypeError):
    """An option, parameter or keyword that nobody declares. A TypeError as well, like Python's own refusals."""


@dataclass(frozen=True)
class Place:
    """A spot in somebody's source: what an error message points at. Columns count from 0; None: unknown."""

    file: str
    line: int
    source: str = ""
    column: int | None = None
    end: int | None = None

    def show(self, message: str, remedy: str = "") -> str:
        """`message` in front of the source line with carets below it, `remedy` as the last line."""
        text = f"{os.path.basename(self.file)}:{self.line}: {message}"
        stripped = self.source.strip()
        if stripped:
            text += f"\n        {stripped}"
            if self.column is not None:
                lead = len(self.source) - len(self.source.lstrip())
                start = min(max(self.column - lead, 0), len(stripped))
                stop = max(start + 1, min(len(stripped), (self.end or 0) - lead))
                text += f"\n        {' ' * start}{'^' * (stop - start)}"
        return f"{text}\n{remedy}" if remedy else text


#: For errors about plans that nobody wrote down: their message names no line.
NOWHERE = Place("", 0)


def user_place() -> Place | None:
    """The innermost call that does not come from `trajspec/ir`, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_HERE + os.sep):
        frame = frame.f_back
    return place_of(frame) if frame is not None else None


def place_of(frame: FrameType) -> Place:
    """The expression that `frame` is evaluating right now."""
    file = frame.f_code.co_filename
    line, column, end = frame.f_lineno, None, None
    for index, (first, last, begin, stop) in enumerate(frame.f_code.co_positions()):
        if index == frame.f_lasti // 2:
            if first is not None:
                # What spans several lines is marked to the end of its first.
                line, column, end = first, begin, stop if first == last else None
            break
    return located(file, line, source_line(file, line), column, end)


def located(file: str, line: int, source: str, column: int | None, end: int | None) -> Place:
    """A place from columns as Python counts them, in bytes of UTF-8; `end` None is the end of the line."""
    if column is None:
        return Place(file, line, source)
    data = source.encode("utf-8", "surrogatepass")
    start, stop = (len(data[:count].decode("utf-8", "ignore")) for count in (column, len(data) if end is None else end))
    return Place(file, line, source, start, stop)


def source_line(file: str, line: int) -> str:
    """Line number `line` of `file` as it is now, "" when there is no such file (a notebook's cells are known)."""
    linecache.checkcache(file)
    return linecache.getline(file, line).rstrip("\n")


def fail(message: str, remedy: str = "", place: Place | None = None) -> TrajspecError:
    """An error that names the user's line (looked up here when `place` is not given): `raise fail(...)`."""
    place = place or user_place()
    if place is None or place is NOWHERE:
        return TrajspecError(f"{message}\n{remedy}" if remedy else message)
    return TrajspecError(place.show(message, remedy))
