"""Running a user's function while noting its variables and the line of its return."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .errors import Place, place_of, source_line


class Seen:
    """What was seen when the policy's own frame returned: its variables and its line."""

    def __init__(self) -> None:
        self.locals: dict[str, Any] = {}
        self.line: Place | None = None


def run_watched(function: Callable[..., Any], args: list[Any], settings: dict[str, Any]) -> tuple[Any, Seen]:
    seen = Seen()
    if sys.getprofile() is not None:
        # Somebody measures (or this policy is called by another): names and the line of `return` are a convenience.
        return function(*args, **settings), seen
    code: CodeType = function.__code__

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" and frame.f_code is code:
            seen.locals, seen.line = dict(frame.f_locals), place_of(frame)

    sys.setprofile(watch)
    try:
        return function(*args, **settings), seen
    finally:
        sys.setprofile(None)


def definition(function: Callable[..., Any]) -> Place:
    code = function.__code__
    line = code.co_firstlineno
    while source_line(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return Place(code.co_filename, line, source_line(code.co_filename, line))
