"""What a plan's output equals, under which conditions, and why: a certificate, made from the plan's text alone.

certify(speculate(fastdllm_threshold, "chain"))
lossless (bitwise) relative to fastdllm_threshold because every committed token is written by the base's own step on
the model's answer for the true state; assumes: ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

from ..ir.ahead import Held
from ..ir.errors import TrajspecError
from ..ir.plan import Plan
from ..passes.cost import cost, expression
from .reads import Reads
from .rules import Level, Reason, lines_of, misshapen, reasons


class Numerics(Enum):
    """What is known of the logits of a packed call beside those of a call of its own.

    ASSUMED: taken to be equal, and said so. MEASURED: they were compared on this machine and were equal, bit for bit.
    UNKNOWN: nothing; then `recheck` helps, and only where no cache keeps what a packed call computed.
    """

    ASSUMED = "assumed"
    MEASURED = "measured"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Assumption:
    """A condition of the certificate. `status`: proved, declared, checked (in the run) or measured."""

    id: str
    text: str
    status: str

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {"id": self.id, "text": self.text, "status": self.status}


@dataclass(frozen=True)
class Certificate:
    """How close the output of a plan is to that of its base.

    `plan_level` is what holds for every model, drafter and row; `run` holds the meters of one run, and `level` is what
    holds for that run. `digest`: sha256 of the base's text; `noise`: the key of the noise that the base draws, "".
    """

    plan: Plan = field(repr=False)
    plan_level: Level
    base: str
    digest: str
    noise: str
    numerics: Numerics
    reasons: tuple[Reason, ...] = ()
    assumes: tuple[Assumption, ...] = ()
    run: Mapping[str, Any] | None = None

    @property
    def level(self) -> Level:
        """BITWISE for a run of a metered plan that never left its base (theorem E3), else the plan's level."""
        if self.run is None or self.plan_level is not Level.BOUNDED or self.run["off_base"] or self.run["stale"]:
            return self.plan_level
        return max((reason.level for reason in self.reasons if not reason.drift), default=Level.BITWISE)

    @cached_property
    def cost(self) -> dict[str, Any]:
        """The formulas of the plan's cost as sympy expressions."""
        return {name: expression(formula) for name, formula in cost(self.plan).items()}

    def with_run(self, meters: Any) -> Certificate:
        """The certificate of one run: `meters` is the row's `Held` at its end, or a mapping with its numbers.

        A run in which no commit was off the base, and none was decided under a stale view, is the base's own run.
        """
        if isinstance(meters, Held):
            meters = {name: getattr(meters, name) for name in _METERS}
        got = dict(meters)
        run = {name: _number(got[name]) for name in _METERS if name in got}
        run = {name: run.get(name, -1 if name == "first" else 0) for name in _METERS}
        extra = {name: _number(got[name]) for name in ("calls", "rows") if name in got}
        return replace(self, run=extra | run)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: schema 1."""
        out: dict[str, Any] = {
            "schema": 1,
            "level": self.level.name,
            "relative_to": {
                "base": f"sha256:{self.digest}", "policy": self.base, "noise": self.noise or None,
                "numerics": self.numerics.value,
            },
            "reasons": [reason.as_dict() for reason in self.reasons],
            "assumes": [assumption.as_dict() for assumption in self.assumes],
            "cost": cost(self.plan),
            "text": str(self),
        }  # fmt: skip
        if self.run is not None:
            out["plan_level"] = self.plan_level.name
            first = self.run["first"]
            out["runtime"] = {
                **{name: self.run[name] for name in ("calls", "rows") if name in self.run},
                **{name: self.run[name] for name in ("drafted", "accepted", "off_base", "stale")},
                "first_divergence": None if first < 0 else first,
                "sum_tv": self.run["sum_tv"],
            }
        return out

    def __str__(self) -> str:
        if self.plan.base is None:
            return f"lossless (bitwise): {self.base} itself runs, nothing is drafted"
        level, parts = self.level, []
        if level is Level.BITWISE and self.plan_level is not Level.BITWISE:
            parts.append(
                f"lossless (bitwise) for this run relative to {self.base}: 0 commits off the base and 0 under a stale "
                f"view; the plan itself is {_WORDS[self.plan_level]}"
            )
        elif level is Level.BITWISE:
            parts.append(
                f"lossless (bitwise) relative to {self.base} because every committed token is written by the base's "
                "own step on the model's answer for the true state"
            )
        else:
            parts.append(f"{_WORDS[level]} relative to {self.base}")
        parts[0] += "".join(f"{', and' if number else ':'} {_where(reason)}{reason.msg}"
                            for number, reason in enumerate(self._shown))  # fmt: skip
        parts += self._bound()
        if self._shown:
            parts.append("fix: " + ", ".join(dict.fromkeys(reason.fix for reason in self._shown)))
            seen = dict.fromkeys(reason.witness for reason in self._shown if reason.witness)
            parts += [f"smallest witness: trajspec explain {', '.join(seen)}"] if seen else []
        if level <= Level.LAW and self.assumes:
            parts.append("assumes: " + ", ".join(f"{item.text} [{item.status}]" for item in self.assumes))
        return "; ".join(parts)

    @property
    def _shown(self) -> tuple[Reason, ...]:
        return self.reasons if self.plan_level is not Level.BITWISE else ()

    def _bound(self) -> list[str]:
        if self.plan_level is not Level.BOUNDED:
            return []
        said = ["bound: " + ", ".join(dict.fromkeys(reason.drift for reason in self.reasons if reason.drift))]
        if self.run is not None and self.level is Level.BOUNDED:
            run = self.run
            said.append(
                f"this run: {run['off_base']} commits off the base, {run['stale']} under a stale view, first at step "
                f"{run['first']}, sum of TV <= {run['sum_tv']:g}"
            )
        return said


def _where(reason: Reason) -> str:
    return "" if reason.line is None else f"line {reason.line} "


_METERS = ("drafted", "accepted", "off_base", "stale", "first", "sum_tv")
_WORDS = {
    Level.BITWISE: "lossless (bitwise)",
    Level.LAW: "lossless in distribution (not bitwise)",
    Level.BOUNDED: "approximate",
    Level.APPROX: "approximate",
}


def certify(plan: Plan, *, numerics: Numerics | str = Numerics.ASSUMED, stops: bool = True) -> Certificate:
    """The certificate of `plan` relative to its base; a base plan is bitwise itself.

    Static: no model is asked. `numerics`: what is known of packed calls; `stops=False` promises that no row has stop
    tokens. Raises TrajspecError for another value of numerics.
    Source: the rules of the static checker (exactness: section 4, theorems A1 to A6, B1, B2, E1, E3).
    """
    try:
        numerics = Numerics(numerics)
    except ValueError:
        known = ", ".join(item.value for item in Numerics)
        raise TrajspecError(f"numerics is {numerics!r}, expected {known}") from None
    # Plans are equal by structure; the names in their text, which the digest is about, may still differ.
    return _certify(plan, numerics, stops, _spelling(plan), _spelling(plan.base))


def _spelling(plan: Plan | None) -> tuple[Any, ...]:
    return () if plan is None else (plan.carried_names, plan.names, plan.doc)


@lru_cache(maxsize=256)
def _certify(plan: Plan, numerics: Numerics, stops: bool, *_: Any) -> Certificate:
    base = plan.base or plan
    digest = hashlib.sha256(str(base).encode()).hexdigest()
    if plan.base is None:
        return Certificate(plan, Level.BITWISE, base.name, digest, _noise(base), numerics)
    rechecks = [item.attributes["recheck"] for item in plan.nodes() if item.op.name == "walk"]
    bound = None if None in rechecks else max(rechecks)
    found = list(dict.fromkeys(reasons(plan, stops)))
    if numerics is Numerics.UNKNOWN:
        found += _unknown(base, bound)
    lines = lines_of(str(plan), plan)
    placed = tuple(replace(reason, line=lines.get(reason.op) or None) for reason in found)
    level = max((reason.level for reason in placed), default=Level.BITWISE)
    assumed = tuple(_assumptions(plan, base, numerics, bound, stops, placed))
    return Certificate(plan, level, base.name, digest, _noise(base), numerics, placed, assumed)


def _unknown(base: Plan, bound: float | None) -> list[Reason]:
    """What is lost when nothing is known of packed calls; `bound`: of the recheck, None without one."""
    if bound is None:
        msg = "takes logits from packed calls, and nothing is known of how far they are off"
    elif any(item.op.name == "forward_cached" for item in base.nodes()):
        msg = "keeps keys and values of packed calls, which a call of its own then goes on with"
    else:
        return []
    return [
        Reason("verify", 7, Level.APPROX, msg, "the full view and recheck=EPS, or measure packed calls first", "C4")
    ]


def _noise(base: Plan) -> str:
    names = {item.op.name for item in base.nodes()}
    drawn = any(item.op.name == "sample" and item.attributes["temperature"] > 0 for item in base.nodes())
    if not drawn and not names & {"uniform", "gumbel"}:
        return "(seed, role, number, position)" if "uniform_of" in names else ""
    return "(seed, role, step, position, token)" if drawn else "(seed, role, step, position)"


def _assumptions(
    plan: Plan, base: Plan, numerics: Numerics, bound: float | None, stops: bool, found: tuple[Reason, ...]
) -> list[Assumption]:
    out = [Assumption("A1.view", "the model answers the same to the same view", "declared")]
    status = "measured" if numerics is Numerics.MEASURED else "declared"
    if bound is not None:
        out.append(Assumption("A4.eps", f"packed logits are off by {bound:g} at most", "declared"))
        out.append(Assumption("A4.margin", "thinner decisions are made again in a call of their own", "checked"))
        if numerics is not Numerics.UNKNOWN and any(item.op.name == "forward_cached" for item in base.nodes()):
            out.append(Assumption("A4.kept", "keys and values of a packed call are those of a call of its own", status))
    elif numerics is not Numerics.UNKNOWN:
        out.append(Assumption("A4.packed", "a packed call gives the logits of a call of its own", status))
    out.append(Assumption("A2.key", "the key of a drafted state holds all that the model is shown", "proved"))
    out.append(Assumption("A5.ties", "ties go to the lowest token and position", "proved"))
    if misshapen(plan, base):
        return out
    reads = Reads(base)
    if reads.noise:
        out.append(Assumption("B1.noise", f"noise is a function of {_noise(base)} of the true state", "proved"))
    if reads.view in ("prefix", "dual") and any(item.attributes.get("lookahead") == "exact" for item in plan.nodes()):
        text = "a drafted state behind a refresh sees the keys and values of that refresh, in the same call"
        out.append(Assumption("F1.epoch", text, "proved"))
    if not stops and any(item.attributes.get("halt") == "end" for item in plan.nodes()):
        out.append(Assumption("C6.stops", "no row has stop tokens", "declared"))
    if reads.own_ops:
        out.append(Assumption("C7.pure", f"{', '.join(reads.own_ops)} only read what they are given", "declared"))
    if any(reason.level is Level.LAW for reason in found):
        out.append(Assumption("K2.blind", "the drafter does not look at the noise", "declared"))
    return out


def _number(value: Any) -> int | float:
    """A meter as a plain number, from a number, an array of one, or a tensor of one."""
    return value.item() if hasattr(value, "item") else value


def row_certificate(
    plan: Plan, meters: Any = None, *, stops: bool = True, numerics: Numerics = Numerics.ASSUMED
) -> dict[str, Any]:
    """The certificate of a finished row, as its result reports it; `meters` as in `Certificate.with_run`."""
    certificate = certify(plan, stops=stops, numerics=numerics)
    return (certificate if plan.base is None or not meters else certificate.with_run(meters)).as_dict()


def row_drift(plan: Plan, meters: Any = None) -> dict[str, Any]:
    """How far a finished row left its base, by its own meters: commits, step of the first, summed TV (E1, Df1, Df2).

    `off_base` and `stale` are None where they cannot be known: the plan drops a condition that no meter sees.
    """
    if plan.base is None or not meters:
        return {"off_base": 0, "stale": 0, "first_divergence": None, "sum_tv": 0.0}
    run = certify(plan).with_run(meters)
    assert run.run is not None
    if run.plan_level is Level.APPROX:
        return {"off_base": None, "stale": None, "first_divergence": None, "sum_tv": None}
    first = run.run["first"]
    return {
        "off_base": run.run["off_base"], "stale": run.run["stale"],
        "first_divergence": None if first < 0 else first, "sum_tv": run.run["sum_tv"],
    }  # fmt: skip


__all__ = ["Assumption", "Certificate", "Level", "Numerics", "Reason", "certify", "row_certificate", "row_drift"]
