"""What speculation works with: hypothetical states, what is kept between rounds, and the table of one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .canvas import Cache, Canvas
from .errors import TrajspecError
from .nodes import Node, Value, walk
from .plan import Plan
from .query import FLOOR


class Draft(NamedTuple):
    """Hypothetical states of a row: M canvases that may lie ahead on its trajectory. Arrays are numpy or torch.

    A draft can be anything: it only chooses which views are evaluated early, never what is committed.
    """

    tokens: Any  # int64 [..., M, L]
    masked: Any  # bool [..., M, L]
    exists: Any  # bool [..., M] which of the M are meant


class Held(NamedTuple):
    """What a run keeps over the loop's back edge, besides the state of its base.

    `logits` are the last ones known at every position, NaN where none are: hints for drafting, never an input of the
    policy. `drafted` .. `stale` count, int64 [..., 1]: hypothetical states evaluated, base steps taken from them,
    commits that the base would not have made, commits decided under a stale view. `first` is the step of the first of
    the last two, -1 for none; `sum_tv` float64 [..., 1] bounds the total variation they added (exactness: theorem E1).
    """

    logits: Any
    alone: Any  # bool [..., 1] the next round evaluates the root alone: its decision was too thin for a packed call
    drafted: Any
    accepted: Any
    off_base: Any
    stale: Any
    first: Any
    sum_tv: Any


class Trail(NamedTuple):
    """The states a round went through: tuples of the base's carried values, the first one after the root."""

    states: tuple[tuple[Any, ...], ...]


@dataclass
class Table:
    """Views that were evaluated in one packed call. Entry 0 is the root's; `stale`: evaluated under an older cache.

    `width` is how many states were asked for, equal ones and impossible ones included: a walk takes no more steps;
    `drafted` how many hypothetical ones were in the call.
    """

    width: int
    drafted: int
    keys: list[tuple[Any, ...]]
    states: list[tuple[Any, ...]]
    answers: list[tuple[Any, ...]] = field(default_factory=list)
    stale: list[bool] = field(default_factory=list)

    def find(self, key: tuple[Any, ...]) -> int | None:
        """The entry of that view, None when it was not evaluated."""
        return self.keys.index(key) if key in self.keys else None


def nothing_held(x: Canvas, logits: Any) -> Held:
    """`Held` before the first call; `logits` is all NaN. Works on numpy arrays and on tensors."""
    # An array each: a graph tells one that is held twice from two that are equal.
    drafted, accepted, off_base, stale = (0 * x.step for _ in range(4))
    return Held(logits, x.done & False, drafted, accepted, off_base, stale, 0 * x.step - 1, 0.0 * x.step)


@lru_cache(maxsize=256)
def forward_of(base: Plan) -> Node:
    """The one model call of a base plan.

    Raises TrajspecError when the plan has none, or is the result of speculation itself.
    """
    calls = [item for item in walk(base.step) if item.op.calls_model]
    if base.base is None and base.models:
        raise TrajspecError(
            f"plan {base.name} cannot be speculated: its step asks a further model ({', '.join(base.models)}), and "
            "what is evaluated ahead is a call of one model; decode it with draft='none'"
        )
    if len(calls) != 1 or calls[0].op.name not in ("forward", "forward_cached"):
        got = ", ".join(item.op.name for item in calls) or "none"
        raise TrajspecError(
            f"plan {base.name} cannot be speculated: it needs one forward in its step, got {got}; "
            "speculate takes a base plan, not the result of speculation"
        )
    return calls[0]


def ends_full(base: Plan) -> bool:
    """Whether a row of `base` has ended when nothing is masked: such a state is never looked at."""
    closing = base.step[0].node
    return closing.op.name == "advance" and closing.args[2] is None


def ends_at_stop(base: Plan) -> bool:
    """Whether a row of `base` has ended at a stop token with nothing masked before it."""
    return base.step[0].node.op.name == "advance"


def split(base: Plan, values: Sequence[Any]) -> dict[Value, Any]:
    """The operands of verify and walk as values of the base plan: what it carries, then its task inputs."""
    names = [*base.carried, *base.inputs[1:]]
    if len(values) != len(names):
        raise TrajspecError(
            f"plan {base.name} carries {len(base.carried)} values and has {len(base.inputs) - 1} task inputs, "
            f"got {len(values)} operands"
        )
    return dict(zip(names, values, strict=True))


def told(logits: np.ndarray) -> np.ndarray:
    """bool [..., L, 1]: the positions that a call computed and where some token may stand; `logits` [..., L, V]."""
    return ~np.isnan(logits).any(axis=-1, keepdims=True) & (logits > FLOOR / 10).any(axis=-1, keepdims=True)


def shown(x: Canvas | Cache, mask_id: Any) -> np.ndarray:
    """int64 [..., L]: the ids that a model is shown (numpy)."""
    return np.where(x.masked, mask_id, x.tokens)


def trajectories(x: Any, paths: Sequence[Sequence[Any]]) -> Draft:
    """The draft that holds every state of some trajectories from the numpy row `x`.

    A trajectory is a sequence of updates {position: token}: a multi-token update with explicit positions, in order.
    Equal states are merged. Raises TrajspecError for positions and tokens that do not exist.
    """
    row: Canvas = getattr(x, "data", x)
    length, vocab = row.tokens.shape[-1], row.allowed.shape[-1]
    seen: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
    for path in paths:
        tokens, masked = row.tokens.copy(), row.masked.copy()
        for update in path:
            for position, token in dict(update).items():
                if not 0 <= position < length or not 0 <= token < vocab:
                    raise TrajspecError(
                        f"a drafted update writes token {token} at position {position}; expected tokens below {vocab} "
                        f"and positions below {length}"
                    )
                tokens[position], masked[position] = token, False
            seen.setdefault(tokens.tobytes() + masked.tobytes(), (tokens.copy(), masked.copy()))
    states = list(seen.values())
    return Draft(
        np.array([tokens for tokens, _ in states], np.int64).reshape(-1, length),
        np.array([masked for _, masked in states], bool).reshape(-1, length),
        np.ones(len(states), bool),
    )
