"""Looking for values on which the two sides of a rule differ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ir import Canvas, canvas
from ..ir.errors import TrajspecError
from ..ir.interpret import evaluate
from ..ir.kinds import KINDS
from ..ir.nodes import Value
from ..passes.rules import Rule, variable

_LENGTH = 7
_CLOSE = 1e-9


def check_rule(rule: Rule, examples: int = 60, seed: int = 0) -> str | None:
    """A text about the first values on which the sides of `rule` differ by their numpy meanings, None without one.

    Canvases have prompts, masks, blocks and padding of all kinds; half of the numbers tie. A rule that is `exact` must
    give the same numbers, NaN for NaN; one that holds up to ties equal ones up to rounding, and the same tokens and
    sets where nothing ties. Every setting is tried. `seed` repeats a search.
    """
    chance = np.random.Generator(np.random.Philox(seed))
    for choice in itertools.product(*rule.settings.values()):
        told = dict(zip(rule.settings, choice, strict=True))
        left, right, _ = rule.sides(**told)
        for number in range(examples):
            tied = number % 2 == 0
            given = _operands(rule.kinds, chance, tied)
            with np.errstate(all="ignore"):
                values = evaluate([left, right], {variable(n, k): given[n] for n, k in rule.kinds.items()})
            wrong = _differ(values[left], values[right], rule.exact, tied, left)
            if wrong:
                shown = ", ".join(f"{name}={_shown(value)}" for name, value in {**told, **given}.items())
                return f"rule {rule.name}, example {number} of seed {seed}: {wrong}, with {shown}"
    return None


def _differ(left: Any, right: Any, exact: bool, tied: bool, value: Value) -> str | None:
    if isinstance(left, Canvas):
        for name, one, other in zip(left._fields, left, right, strict=True):
            if not np.array_equal(np.asarray(one), np.asarray(other)):
                return f"{name} is {_shown(one)} on the left, {_shown(other)} on the right"
        return None
    left, right = np.broadcast_arrays(left, right)
    whole = left.dtype.kind in "bi" and right.dtype.kind in "bi"
    if exact or whole:
        same = bool(np.array_equal(left, right, equal_nan=not whole)) or (whole and not exact and tied)
    else:
        same = bool(np.allclose(left, right, rtol=_CLOSE, atol=_CLOSE, equal_nan=True))
    return None if same else f"{value.kind} {_shown(left)} on the left, {_shown(right)} on the right"


def _operands(kinds: Mapping[str, str], chance: np.random.Generator, tied: bool) -> dict[str, Any]:
    vocab = int(chance.integers(2, 6))
    x = _canvas(chance, vocab)
    return {name: x if kind == "canvas" else _array(kind, chance, tied, vocab) for name, kind in kinds.items()}


def _canvas(chance: np.random.Generator, vocab: int) -> Canvas:
    prompt = int(chance.integers(0, _LENGTH))
    tokens = [int(token) for token in chance.integers(0, vocab, _LENGTH)]
    masked = [place >= prompt and bool(chance.integers(0, 2)) for place in range(_LENGTH)]
    row = canvas(
        tokens, masked, start=prompt, vocab_size=vocab, mask_id=vocab - 1, seed=int(chance.integers(0, 99)), stop=[0]
    )
    step = int(chance.integers(0, 3))
    return row._replace(step=row.step + step, block_step=row.block_step + min(step, 1))


def _array(kind: str, chance: np.random.Generator, tied: bool, vocab: int) -> np.ndarray:
    axes = KINDS[kind].axes
    if axes not in ("1", "L", "LV"):
        raise TrajspecError(f"no values of kind {kind} can be drawn to check a rule; use numbers, sets and canvases")
    shape = {"1": (1,), "L": (_LENGTH,), "LV": (_LENGTH, vocab)}[axes]
    if kind in ("selection", "flag"):
        return chance.integers(0, 2, shape).astype(bool)
    if kind == "tokens":
        return chance.integers(0, vocab, shape)
    # Distinct numbers are apart by more than rounding; sure tokens, and tokens that can hardly be, occur as well.
    numbers = chance.integers(-2, 3, shape).astype(np.float64) if tied else chance.permutation(
        np.linspace(-4, 4, int(np.prod(shape)))
    ).reshape(shape)  # fmt: skip
    if kind == "logits":
        # Among ties also numbers that differ by less than what becomes of them.
        return numbers * chance.choice([1.0, 1.0, 20.0]) + (1e-17 * chance.integers(0, 3, shape) if tied else 0.0)
    if kind == "probs":
        each = np.exp(numbers)
        return each / each.sum(-1, keepdims=True)
    return -np.abs(numbers) - 0.25 if kind == "conf" else numbers


def _shown(value: Any) -> str:
    if isinstance(value, Canvas):
        return f"canvas(tokens={value.tokens.tolist()}, masked={np.flatnonzero(value.masked).tolist()})"
    return repr(np.asarray(value).tolist() if not isinstance(value, (int, float, bool, str, type(None))) else value)
