"""Plan text as a syntax tree: bounded in size and depth before Python's own parser sees it, with places for errors."""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from typing import Any

from .errors import Place, TrajspecError, fail, located

MAX_CHARS = 64 * 1024
MAX_DEPTH = 60
_SHOWN = 80  # names that an error lists
_WORDS = {
    "JoinedStr": "f-string", "NamedExpr": "':='", "Lambda": "lambda", "ListComp": "comprehension",
    "GeneratorExp": "comprehension", "SetComp": "comprehension", "DictComp": "comprehension", "IfExp": "'if'",
    "Attribute": "attribute access with '.'", "Subscript": "indexing", "Starred": "'*' before a value",
    "Constant": "string or other literal", "BoolOp": "'and' or 'or'", "UnaryOp": "'not' or unary '+'",
    "Compare": "chained or other comparison", "BinOp": "such operator", "AugAssign": "assignment with an operator",
    "AnnAssign": "annotated assignment", "FunctionDef": "function in a function", "Expr": "bare expression",
}  # fmt: skip


class Source:
    """A plan text and the name of its file: its functions, and errors that point into it."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.text = text if isinstance(text, str) else ""
        self.lines = re.split(r"\r\n|\r|\n", self.text)

    def error(self, at: ast.AST | _At | None, message: str, remedy: str = "") -> TrajspecError:
        return fail(message, remedy, self.place(at))

    def place(self, at: ast.AST | _At | None) -> Place:
        line = getattr(at, "lineno", 1) or 1
        source = self.lines[line - 1][:300] if line <= len(self.lines) else ""
        end = getattr(at, "end_col_offset", None) if getattr(at, "end_lineno", line) == line else None
        return located(self.file, line, source, getattr(at, "col_offset", 0), end)

    def functions(self) -> list[ast.FunctionDef]:
        """The functions of the text, one at least, each with plain arguments. Nothing is executed."""
        if not self.text.strip():
            raise self.error(None, "the text is empty", "A plan reads: def name(prompt: canvas): ...")
        if len(self.text) > MAX_CHARS:
            raise self.error(None, f"the text has {len(self.text)} characters, at most {MAX_CHARS} are read")
        deep = _too_deep(self.text)
        if deep is not None:
            raise self.error(_At(deep), f"brackets are nested deeper than {MAX_DEPTH}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text)
        except SyntaxError as error:
            at = _At(error.lineno or 1, max((error.offset or 1) - 1, 0))
            raise self.error(at, f"not Python: {str(error.msg)[:200]}") from None
        except (RecursionError, MemoryError, ValueError, OverflowError) as error:
            raise self.error(None, f"not readable: {type(error).__name__}") from None
        functions = []
        for part in tree.body:
            if not isinstance(part, ast.FunctionDef):
                raise self.error(part, "a plan is one function: def name(prompt: canvas)")
            a = part.args
            extra = a.posonlyargs or a.vararg or a.kwonlyargs or a.kwarg or a.defaults or part.decorator_list
            if extra or part.returns is not None or getattr(part, "type_params", None):
                raise self.error(part, "a plan's function takes plain arguments with kinds and nothing more")
            functions.append(part)
        if not functions:
            raise self.error(None, "a plan is one function: def name(prompt: canvas)")
        return functions


class _At:
    """A place for errors that have no syntax tree."""

    def __init__(self, line: int, column: int = 0) -> None:
        self.lineno, self.col_offset, self.end_col_offset, self.end_lineno = line, column, column + 1, line


def _too_deep(text: str) -> int | None:
    """The line at which brackets or signs are nested deeper than MAX_DEPTH."""
    # Python's own parser is recursive; counting brackets and unary signs first keeps it out of trouble.
    depth, line, signs, at = 0, 1, 0, 0
    while at < len(text):
        char = text[at]
        if char in "'\"#":
            end = _skip(text, at)
            line += text.count("\n", at, end)
            at, signs = end, 0
            continue
        at += 1
        line += char == "\n"
        depth += (char in "([{") - (char in ")]}")
        signs = signs + 1 if char in "-~+" else signs if char in " \t" else 0
        if depth > MAX_DEPTH or signs > MAX_DEPTH:
            return line
    return None


def _skip(text: str, at: int) -> int:
    """Where the string or comment that begins at `at` is over."""
    if text[at] == "#":
        end = text.find("\n", at)
        return len(text) if end < 0 else end
    quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
    at += len(quote)
    while at < len(text) and not text.startswith(quote, at):
        if text[at] == "\n" and len(quote) == 1:
            return at
        at += 2 if text[at] == "\\" else 1
    return min(at + len(quote), len(text))


def what(item: ast.AST) -> str:
    """The thing as a message calls it."""
    name = type(item).__name__
    return _WORDS.get(name, f"'{name.lower()}'")


def listed(name: str, names: dict[str, Any]) -> str:
    """`names` as a message lists them, with the one that `name` may have meant."""
    close = difflib.get_close_matches(name[:60], [known for known in names if len(known) <= 60], n=1)
    shown = ", ".join(sorted(known[:60] for known in names)[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
    return f"{shown} (did you mean {close[0]}?)" if close else shown
