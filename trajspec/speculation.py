"""The options that turn a plan into a speculated one: what decode takes beside a policy and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .ir import Plan, TrajspecError
from .ir.drafter import Drafter
from .methods import METHODS, method
from .passes import speculate
from .passes.speculate import named

OPTIONS = ("draft", "nodes", "lookahead", "accept", "strata", "budget", "then", "recheck", "require_exact", "packing")
DEFAULT_NODES = 8
_KEPT = 256
_MADE: dict[Any, Plan] = {}


@dataclass(frozen=True)
class Speculation:
    """How a job drafts: nothing, or by `drafter` with `nodes` states a packed call, the root included.

    `walk` holds the settings of the op `walk`; `strict`: compare with the base's own run, token by token; `auto`: a
    planner chooses, round by round, how many of the `nodes` states are used; `packing`: how the states of a call share
    the keys and values of their row (`runtime.packing`).
    """

    drafter: Drafter | None = None
    nodes: int = 1
    lookahead: str | None = None
    walk: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    auto: bool = False
    packing: str = "rows"

    @property
    def name(self) -> str:
        return "none" if self.drafter is None else self.drafter.name

    def apply(self, base: Plan) -> Plan:
        """The plan that runs: `base`, or what `speculate` makes of it."""
        if self.drafter is None:
            return base
        settings = (tuple(self.drafter.settings.items()), self.lookahead, tuple(self.walk.items()))
        # Plans are equal by structure, and their texts have names of their own.
        key = (base, base.text, self.drafter.op, repr(settings))
        found = _MADE.get(key)
        if found is None:
            if len(_MADE) >= _KEPT:
                _MADE.clear()
            found = _MADE[key] = speculate(base, self.drafter, lookahead=self.lookahead, **self.walk)
        return found

    def fits(self, base: Plan) -> bool:
        """Whether `base` can be speculated at all."""
        try:
            self.apply(base)
        except TrajspecError:
            return False
        return True

    def at(self, nodes: int) -> Speculation:
        """The same with another number of states a call."""
        assert self.drafter is not None
        return replace(self, drafter=self.drafter(nodes=nodes), nodes=nodes)

    def as_dict(self) -> dict[str, Any]:
        """What it takes to say the same again."""
        if self.drafter is None:
            return {"draft": "none"}
        draft = "auto" if self.auto else repr(self.drafter)
        settings = {"draft": draft, "nodes": self.nodes, "lookahead": self.lookahead, **self.walk}
        return settings | {"require_exact": self.strict, "packing": self.packing}


def choose(
    options: dict[str, Any], declared: frozenset[str] = frozenset(), cached: bool = False
) -> Speculation:
    """The speculation that `options` ask for; its options (`OPTIONS`) are taken out of them.

    `cached`: the view is a cached one. Names in `declared` are parameters of the policy and stay. draft: None or
    "none"; "auto", the tree with a planner; the name of a drafter, or of a published method (`methods`); a `Drafter`;
    the path of a calibrated one (FILE.json); True is "tree".
    Raises TrajspecError for values that make no sense, and for settings without a drafter.
    """
    given = {name: options.pop(name) for name in OPTIONS if name in options and name not in declared}
    draft = given.pop("draft", None)
    auto = draft == "auto" if isinstance(draft, str) else False
    draft = "tree" if auto else draft
    known = method(draft) if isinstance(draft, str) else None
    if known is not None:
        draft = known.drafter
        given.setdefault("lookahead", known.lookahead if cached else None)
    drafter = _drafter(draft)
    given = {name: value for name, value in given.items() if value is not None}
    if drafter is None:
        idle = sorted(name for name, value in given.items() if value is not False)
        if idle:
            raise TrajspecError(
                f"{idle[0]}={given[idle[0]]!r} is about speculation, and nothing is drafted; give draft='tree'"
            )
        return Speculation()
    nodes = given.pop("nodes", None)
    if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
        raise TrajspecError(
            f"nodes is {nodes!r}, expected how many states a packed call evaluates, the root included: 1 up"
        )
    strict = given.pop("require_exact", False)
    if not isinstance(strict, bool):
        raise TrajspecError(f"require_exact is {strict!r}, expected True or False")
    lookahead = given.pop("lookahead", None)
    packing = given.pop("packing", "rows")
    if "strata" in given:
        strata = given["strata"]
        if isinstance(strata, (int, float)) and not isinstance(strata, bool):
            strata = (strata,)
        if isinstance(strata, (str, bool)) or not hasattr(strata, "__iter__"):
            raise TrajspecError(f"strata is {strata!r}, expected a confidence or a list of them, as in (0.9, 0.5)")
        given["strata"] = tuple(strata)
    for name in ("budget", "recheck"):
        if name in given:
            given[name] = _number(name, given[name])
    own = drafter.settings.get("nodes")
    if nodes is None:
        nodes = own if own is not None else DEFAULT_NODES
    if drafter.op.attribute("nodes") is not None:
        drafter = drafter(nodes=nodes)
    return Speculation(drafter, nodes, lookahead, given, strict, auto, packing)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TrajspecError(f"{name} is {value!r}, expected a number")
    return float(value)


def _drafter(given: Any) -> Drafter | None:
    if given is None or given is False or given == "none":
        return None
    if given is True:
        return named("tree")
    if isinstance(given, Drafter):
        return given
    if isinstance(given, (str, Path)):
        if str(given).endswith(".json"):
            from .calibration import load_drafter

            return load_drafter(given)
        try:
            return named(str(given))
        except TrajspecError as error:
            known = ", ".join(METHODS)
            raise TrajspecError(f"{error}; auto, which chooses; and published methods: {known}") from None
    raise TrajspecError(
        f"draft is {type(given).__name__}; expected 'none', the name of a drafter, a Drafter, or a calibrated FILE.json"
    )
