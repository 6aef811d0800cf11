"""Drafters: values that say which hypothetical states a round evaluates; a user writes one as a plain function."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .ahead import Draft, Held, trajectories
from .apply import check_attribute, is_name
from .canvas import Canvas
from .errors import OptionError, TrajspecError, fail
from .kinds import DRAFT
from .nodes import Value, node
from .op import OPS, Op, op
from .plan import Plan
from .watch import definition


@dataclass(frozen=True)
class Drafter:
    """A drafting op with its settings. `drafter(nodes=4)` is the same one with other settings."""

    op: Op
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, **settings: Any) -> Drafter:
        """Raises TypeError for a setting it does not have, TrajspecError for a value it cannot have."""
        for name, value in settings.items():
            attribute = self.op.attribute(name)
            if attribute is None or attribute.types == ("plan",):
                has = ", ".join(item.name for item in self.op.attributes if item.types != ("plan",)) or "none"
                raise OptionError(f"drafter {self.name} has no setting {name!r}; it has: {has}")
            settings[name] = check_attribute(self.op, attribute, value)
        return Drafter(self.op, self.settings | settings)

    @property
    def name(self) -> str:
        return self.op.name

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"

    def value(self, state: Sequence[Value], held: Value, base: Plan) -> Value:
        """The draft as a value of a plan that carries `state` and `held` and walks along `base`.

        What is not set and the base knows is the base's: the length of its blocks, and its threshold.
        """
        attrs: dict[str, Any] = {}
        for attribute in self.op.attributes:
            if attribute.types == ("plan",):
                attrs[attribute.name] = base
            elif attribute.name in self.settings:
                attrs[attribute.name] = self.settings[attribute.name]
            elif attribute.name == "size":
                attrs["size"] = base.block_length
            elif attribute.name == "threshold" and threshold_of(base) is not None:
                attrs["threshold"] = threshold_of(base)
            elif attribute.required:
                raise TrajspecError(f"drafter {self.name} needs {attribute.name}=; write {self.name}(...) with it")
            else:
                attrs[attribute.name] = attribute.default
        if self.op.check is not None:
            self.op.check(**attrs)
        front = state if any(operand.many for operand in self.op.operands) else state[:1]
        return node(self.op, (*front, held), attrs, (DRAFT,)).results[0]


def threshold_of(base: Plan) -> float | None:
    """The confidence that a base plan compares with, when it compares with one number."""
    found = {
        arg.node.attributes["value"]
        for item in base.nodes()
        if item.op.infix in (">=", ">") and item.args[0] is not None and item.args[0].kind.name == "conf"
        for arg in item.args[1:]
        if arg is not None and arg.is_const
    }
    return float(found.pop()) if len(found) == 1 else None


def drafter(function: Callable[..., Any]) -> Drafter:
    """Make a drafter of a function `(x, logits, *, nodes=8, ...) -> trajectories`.

    x is the canvas of one row and logits float [L, V] the last known ones (NaN where none are), in numpy. A trajectory
    is a sequence of updates {position: token}: what may be committed next, and after that, in canvas coordinates.
    Their states are evaluated in the next call, with the canvas itself `nodes` of them at most, the first that differ
    (without a setting `nodes`: all). Keyword arguments are settings and need defaults. Raises TrajspecError when the
    signature does not read like that or the name is taken.
    """
    shape = "def mine(x, logits, *, nodes=8): return [[{position: token}, ...], ...]"
    place = definition(function)
    parameters = list(inspect.signature(function).parameters.values())
    words = [item for item in parameters if item.kind is item.KEYWORD_ONLY]
    front = [item for item in parameters if item.kind is not item.KEYWORD_ONLY]
    if len(front) != 2 or any(item.kind is not item.POSITIONAL_OR_KEYWORD for item in front):
        raise fail("a drafter takes the canvas and the logits, and settings by name", f"Write: {shape}", place)
    if any(item.default is item.empty for item in words):
        raise fail("a drafter's settings need defaults", f"Write: {shape}", place)
    name = function.__name__
    if not is_name(name):
        raise fail(f"a drafter's name must be a name in Python, got {name!r}", f"Write: {shape}", place)
    known = OPS.get(name)
    if known is not None and getattr(known.numpy, "drafter", None) is None:
        raise fail(f"{name!r} is an op already", "Give the drafter another name.", place)
    listed = ", ".join(f"{item.name}: {_types(item.default)} = {item.default!r}" for item in words)

    def meaning(x: Canvas, held: Held, **settings: Any) -> Draft:
        return per_row(lambda row, logits: _ask(function, row, logits, settings), x, held.logits)

    meaning.__doc__ = inspect.cleandoc(function.__doc__ or f"The drafter {name}.")
    meaning.__module__ = function.__module__
    meaning.drafter = function  # type: ignore[attr-defined]
    signature = f"{name}(x: canvas, held: held{', *, ' if listed else ''}{listed}) -> draft: draft"
    return Drafter(op(signature, replace=True)(meaning))


def _types(value: Any) -> str:
    return "None | int" if value is None else type(value).__name__


def _ask(function: Callable[..., Any], row: Canvas, logits: np.ndarray, settings: dict[str, Any]) -> Draft:
    # Copies, so that a drafter that writes into its arguments cannot edit the canvas.
    mine = Canvas(*(np.array(part) for part in row))
    try:
        paths = function(mine, np.array(logits), **settings)
        draft = trajectories(row, list(paths or ()))
    except TrajspecError as error:
        raise TrajspecError(f"drafter {function.__name__}: {error}") from None
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise TrajspecError(
            f"drafter {function.__name__}: {type(error).__name__}: {error} ({where.filename}, line {where.lineno}); "
            "expected trajectories: lists of updates {position: token}"
        ) from error
    most = settings.get("nodes")
    return draft if most is None else Draft(*(part[: max(most - 1, 0)] for part in draft))


def per_row(function: Callable[[Canvas, np.ndarray], Draft], x: Canvas, logits: np.ndarray) -> Draft:
    """`function` on every row of a numpy canvas, without its padding; the drafts side by side."""
    if x.tokens.ndim == 1:
        return function(x, logits)
    drafts, reals = [], []
    for number in range(len(x.tokens)):
        row = Canvas(*(part[number] for part in x))
        real = row.position >= 0
        inside = {name: getattr(row, name)[real] for name in ("tokens", "masked", "free", "position")}
        if row.allowed.shape[0] > 1:
            inside["allowed"] = row.allowed[real]
        drafts.append(function(row._replace(**inside), logits[number][real]))
        reals.append(real)
    width = max(draft.exists.shape[-1] for draft in drafts)
    tokens = np.repeat(x.tokens[:, None], width, 1)
    masked = np.repeat(x.masked[:, None], width, 1)
    exists = np.zeros((len(drafts), width), bool)
    for number, (draft, real) in enumerate(zip(drafts, reals, strict=True)):
        count = draft.exists.shape[-1]
        if draft.tokens.shape[-1] != int(real.sum()):
            raise TrajspecError(f"the drafter gave states of {draft.tokens.shape[-1]} positions, not {int(real.sum())}")
        rows, columns = np.arange(count)[:, None], np.flatnonzero(real)
        tokens[number, rows, columns], masked[number, rows, columns] = draft.tokens, draft.masked
        exists[number, :count] = draft.exists
    return Draft(tokens, masked, exists)
