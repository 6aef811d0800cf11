"""What a policy declares beside the canvas and the logits: histories, task inputs and queries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import fail
from .kinds import CONF, FLAG, KINDS, SELECTION, TOKENS, Kind


@dataclass(frozen=True)
class History:
    """What a policy remembers from step to step: declared as the default of an argument, taken and returned."""

    kind: Kind
    start: int | float | bool


@dataclass(frozen=True)
class Given:
    """An input of the task, one value a row: declared as the default of an argument."""

    kind: Kind


@dataclass(frozen=True)
class Asked:
    """One more question to the model, or one to a further model: its logits arrive as an argument."""

    function: Callable[..., Any]
    model: str | None = None


def history(kind: str | Kind, start: float = 0) -> Any:
    """Declare a history: `def p(x, logits, seen=ts.history("scores", start=0)): ...; return x, seen`.

    `kind` is one of count, flag, scores, tokens, selection, probs, logits; every entry starts as `start`.
    Raises TrajspecError for another kind and for a start that is no finite number of that kind.
    """
    return History(_kind(kind), entry(_kind(kind), start))


def given(kind: str | Kind) -> Any:
    """Declare an input of the task: `def p(x, logits, answer=ts.given("selection"))`; decode takes it by name."""
    return Given(_kind(kind))


def query(function: Callable[..., Any], *, model: str | None = None) -> Any:
    """Declare one more question to the model: `def p(x, logits, blind=ts.query(f))`, with f(x) giving the query.

    As the default of `logits` itself it says what the model is shown in place of the canvas. Arguments of `function`
    that the policy has as well get the policy's settings, histories and task inputs.

    `model="ar"` asks a further model of that name, which `decode(models={"ar": ...})` brings, in a call of its own
    after the first one's: `function` may then also take `logits`, and so ask about what the first model said.

    Raises TrajspecError for a name that is none.
    """
    if model is not None and not (isinstance(model, str) and model.isidentifier()):
        raise fail(f"a further model has a name, got {model!r:.60}", "Write for example: ts.query(f, model='ar')")
    return Asked(function, model)


def entry(kind: Kind, value: Any) -> int | float | bool:
    """`value` as every entry of a value of `kind`: a truth value, a token id, or a finite number."""
    number = value.item() if isinstance(value, (np.generic, np.ndarray)) and np.size(value) == 1 else value
    if kind in (SELECTION, FLAG):
        if isinstance(number, (bool, int, float)) and number in (0, 1):
            return bool(number)
        raise fail(f"a {kind} starts as True or False, got {value!r}")
    if kind is TOKENS:
        if type(number) is int and 0 <= number < 2**63:
            return number
        raise fail(f"tokens start as a token id, expected an int from 0, got {value!r}")
    if type(number) not in (int, float) or not math.isfinite(number) or abs(number) >= 2**63:
        raise fail(f"a history of {kind} starts as a finite number, got {value!r}")
    return number


def _kind(kind: str | Kind) -> Kind:
    found = KINDS.get(str(kind))
    if found is None or not found.axes or found is CONF:
        usual = ", ".join(name for name, known in KINDS.items() if known.axes and known is not CONF)
        kept = " A confidence is kept as plain numbers: ts.prob(conf), declared as scores." if found is CONF else ""
        raise fail(f"'{kind}' is not a kind of value that can be declared", f"Expected one of: {usual}.{kept}")
    return found
