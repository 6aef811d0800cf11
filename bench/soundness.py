"""Certificates against what happens: random plans, models and drafters, beside the paths of their bases.

    python -m bench.soundness --count 20000 --seed 0
    python -m bench.soundness --laws

A plan that `certify` calls bitwise may never differ from its base, and neither may a run whose own meters say that it
did not. Plans are speculated from the policies of the library with arbitrary parameters, on every view that takes them,
with arbitrary settings of `verify` and `walk`, flaws included. Exit code 1 when a certificate was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from trajspec.exact import completion_witnesses  # noqa: F401  (registers its own)
from trajspec.exact.case import Drafts
from trajspec.exact.certificate import Certificate, Level, certify
from trajspec.exact.models import Hash, Table, Tape, letters
from trajspec.exact.plan_check import PlanCase, same_path
from trajspec.exact.plan_witnesses import adaptive, sure, surest
from trajspec.exact.plans import CHOSEN, Says, watched
from trajspec.exact.search import Log
from trajspec.exact.witnesses import WITNESSES
from trajspec.ir.canvas import Canvas
from trajspec.ir.errors import TrajspecError
from trajspec.ir.interpret import run
from trajspec.ir.plan import Plan
from trajspec.passes import speculate
from trajspec.policies import POLICIES

VIEWS = ("full", "full", "prefix", "dual", "block_causal")
BASES = {**POLICIES, "surest": surest, "adaptive": adaptive, "sure": sure}
COLD = (0.0, 0.0, 0.7, 3.0)
PARAMETERS: dict[str, Sequence[Any]] = {
    "block_length": (None, 1, 2, 3), "steps": (None, 2, 3, 5), "block_steps": (1, 2), "temperature": COLD,
    "cfg_scale": (0.0, 1.5), "threshold": (0.0, 0.3, 0.6, 0.9), "factor": (0.3, 1.0, 3.0),
    "threshold_back": (0.2, 0.5, 0.9), "eps": (1e-3, 0.1), "top_p": (None, 0.4, 0.9), "top_k": (None, 1, 2),
    "alg_temp": (0.0, 0.1), "conf_threshold": (0.2, 0.6), "kl_threshold": (0.01, 10.0), "kl_history_length": (1, 2),
    "unmask_strategy": ("all", "max_conf", "min_kl", "random"),
}  # fmt: skip
#: One setting each that drops a condition, or that may: what the certificate says of it depends on the base.
FLAWS: tuple[dict[str, Any], ...] = (
    {"accept": "relaxed", "strata": (0.6, 0.3)}, {"accept": "threshold", "strata": (0.4,)}, {"accept": "subset"},
    {"accept": "tokens"}, {"accept": "positions"}, {"accept": "consistent"}, {"head": "node"}, {"key": "block"},
    {"halt": "end"}, {"halt": "end", "ended": True}, {"ties": "high"}, {"adopt": True}, {"leave": True},
    {"isolate": False}, {"lookahead": "cheap"},
)  # fmt: skip
HARMLESS: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {"carried": False}, {"lookahead": "none"}, {"lookahead": "exact"}, {"recheck": 1e-3}, {"ended": True},
)  # fmt: skip
ALONGSIDE: tuple[dict[str, Any], ...] = ({}, {}, {}, {"budget": 0.0}, {"budget": 1.0}, {"budget": 1.0, "then": "stop"})
#: The drafters of the library that run beside those a check chooses.
OWN = ("chain", "tree", "frozen")


@dataclass
class Tally:
    """What a run of the fuzz saw. `wrong`: descriptions of certificates that do not hold; none is what is wanted."""

    triples: int = 0
    levels: Counter[str] = field(default_factory=Counter)
    differed: Counter[str] = field(default_factory=Counter)
    flaws: Counter[str] = field(default_factory=Counter)
    flaws_differed: Counter[str] = field(default_factory=Counter)
    coverage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def counted(counter: Counter[str]) -> str:
            return ", ".join(f"{what} {n}" for what, n in sorted(counter.items())) or "none"

        bitwise = self.levels["BITWISE"]
        return "\n".join(
            [
                f"{self.triples} triples (plan, model, drafter), {bitwise} with a plan called bitwise",
                f"levels: {counted(self.levels)}",
                f"differed from the base: {counted(self.differed)}",
                "flaws, plans not called bitwise that differed of all: "
                + ", ".join(f"{name} {self.flaws_differed[name]}/{n}" for name, n in sorted(self.flaws.items())),
                f"coverage: {counted(self.coverage)}",
                f"left out: {counted(self.skipped)}",
                f"wrong certificates: {len(self.wrong)}",
                *self.wrong[:5],
            ]
        )


def fuzz(count: int, seed: int = 0, progress: Callable[[Tally], None] | None = None) -> Tally:
    """Compare `count` triples; the same seed gives the same ones."""
    chance, tally = random.Random(seed), Tally()
    pool = [found for found in (_base(chance, tally) for _ in range(max(20, min(400, count // 20)))) if found]
    while tally.triples < count:
        base = chance.choice(pool)
        case = random_case(chance, base)
        model = case.denoiser()
        try:
            path = run(base, model, case.row()).path
        except TrajspecError:
            tally.skipped["refused by the base"] += 1
            continue
        # One run of the base serves several plans and drafters.
        for _ in range(4):
            settings, name = random_settings(chance), chance.choice((*OWN, "", "", "", ""))
            try:
                plan, certificate = _plan(base, tuple(sorted(settings.items())), name)
            except TrajspecError:
                tally.skipped["settings that the base does not take"] += 1
                continue
            says = None if name else drafter(chance.getrandbits(32), path, case.vocab)
            _compare(tally, case, model, path, plan, certificate, says, settings)
            if progress and tally.triples % 500 == 0:
                progress(tally)
    return tally


def _compare(
    tally: Tally, case: PlanCase, model: Any, path: list[Canvas], plan: Plan, certificate: Certificate,
    says: Says | None, settings: dict[str, Any],
) -> None:  # fmt: skip
    log = Log()
    tally.triples += 1
    level = certificate.plan_level
    try:
        result = watched(plan, model, case.row(), says, log)
        # With head=node the counters are the drafted state's, which nothing may read; what is committed is compared.
        what = same_path(path, result.path, counters=settings.get("head") != "node")
        if level is Level.BOUNDED:
            level = certificate.with_run(result.histories[-1]).level
    except Exception as error:
        what = f"raises {error!r}"
    tally.levels[certificate.plan_level.name] += 1
    tally.coverage.update({name: 1 for name in log.coverage})
    for name, seen in (("drafted", log.drafted), ("accepted", log.accepted), ("several rounds", log.rounds > 1)):
        tally.coverage[name] += bool(seen)
    if certificate.plan_level is not Level.BITWISE:
        for name in _named(settings):
            tally.flaws[name] += 1
            tally.flaws_differed[name] += bool(what)
    elif level is Level.BITWISE and case.stop:
        tally.coverage["bitwise with stop tokens"] += 1
    if what:
        tally.differed[certificate.plan_level.name] += 1
        if level is Level.BITWISE:
            lines = [f"{plan.name} {settings}: {what}", *case.lines(), ">".join(letters(_state(x)) for x in path)]
            tally.wrong.append("\n".join([*lines, str(plan)]))


def _state(x: Canvas) -> list[int]:
    return np.where(x.masked, -1, x.tokens).tolist()


def _named(settings: dict[str, Any]) -> Iterator[str]:
    for flaw in FLAWS:
        if flaw.items() <= settings.items():
            yield ",".join(f"{name}={value}" for name, value in flaw.items() if name != "strata")


def _base(chance: random.Random, tally: Tally) -> Plan | None:
    name = chance.choice(list(BASES))
    policy = BASES[name]
    settings = {key: chance.choice(PARAMETERS[key]) for key in policy.settings if key in PARAMETERS}
    if name.startswith("dream"):
        settings["steps"] = settings.get("steps") or 6  # the linear schedule has no "one a step"
    view = chance.choice(VIEWS)
    try:
        base = policy.bind(**settings).plan(view)
        speculate(base, CHOSEN)
    except TrajspecError:
        tally.skipped[f"bases that view {view} or speculation does not take"] += 1
        return None
    return base


@lru_cache(maxsize=20000)
def _plan(base: Plan, settings: tuple[tuple[str, Any], ...], name: str) -> tuple[Plan, Certificate]:
    plan = speculate(base, name or CHOSEN, **dict(settings))
    return plan, certify(plan)


def random_settings(chance: random.Random) -> dict[str, Any]:
    """Settings of `speculate`: sound in two of five, else with one flaw or two."""
    settings = dict(chance.choice(HARMLESS))
    if chance.random() < 0.6:
        for _ in range(chance.choice((1, 1, 2))):
            settings |= chance.choice(FLAWS)
        settings |= chance.choice(ALONGSIDE)
    return settings


def random_case(chance: random.Random, base: Plan) -> PlanCase:
    """Any small model, and a row to continue or to fill in."""
    length, vocab = chance.choice((1, 2, 3, 3, 4, 4, 5, 6)), chance.choice((2, 2, 3, 4))
    known = min(chance.choice((0, 0, 0, 1, 2)), length - 1)
    canvas = [chance.randrange(vocab) for _ in range(known)] + [-1] * (length - known)
    model: Hash | Table | Tape = Hash(chance.getrandbits(16), chance.choice((1, 2, 4, 50)))
    if chance.random() < 0.3:
        model = Tape(tuple(chance.choice((1, 2, 3, 0, 4, 9, 40)) for _ in range(6 * vocab)))
    shape, stop, allowed = chance.choice(("prompt", "stop", "fill", "allowed")), (), ()
    if shape == "stop":
        stop = tuple(sorted({chance.randrange(vocab) for _ in range(2)}))
    elif shape == "fill":
        canvas = [-1 if chance.random() < 0.6 else chance.randrange(vocab) for _ in canvas]
        canvas[0] = canvas[0] if -1 in canvas else -1
    elif shape == "allowed":
        place = chance.choice([at for at, token in enumerate(canvas) if token < 0])
        allowed = ((place, tuple(sorted({chance.randrange(vocab) for _ in range(2)}))),)
    cached = any(item.op.name == "forward_cached" for item in base.nodes())
    return PlanCase(
        tuple(canvas), vocab, model, chance.getrandbits(32), Drafts(), None, stop=stop, allowed=allowed,
        keeps=cached and chance.random() < 0.5,
    )  # fmt: skip


def drafter(seed: int, path: Sequence[Canvas], vocab: int) -> Says:
    """States of the base's path, of chains of writes, and stray ones: other ones in every round, the same every run."""
    own = [np.array(_state(x)) for x in path]
    mix = random.Random(seed).choice(((1, 0, 0), (3, 1, 0), (3, 2, 1), (0, 1, 1), (1, 2, 0)))

    def says(x: Canvas, held: Any) -> list[Any]:
        chance = random.Random(f"{seed} {x.tokens.tobytes()!r} {int(x.step[0])}")
        now, states = np.array(_state(x)), []
        for _ in range(chance.randint(0, 5)):
            kind = chance.choices("pcs", mix)[0]
            if kind == "p":
                state = chance.choice(own).copy()
            elif kind == "c":
                state = now.copy()
                for place in chance.sample(range(len(state)), chance.randint(1, len(state))):
                    if x.masked[place]:
                        state[place] = chance.randrange(vocab)
            else:
                state = np.array([chance.randrange(-1, vocab) for _ in now])
            states.append(np.where(x.free, state, x.tokens).tolist())
        return states

    return says


def laws(seed: int) -> int:
    """Every flaw of the stochastic and cached samplers must be found, and none in the sound version; 1 otherwise."""
    wrong = 0
    for name, witness in WITNESSES.items():
        if witness.sound is None:
            continue
        found, sound = witness.found(seed), witness.sound(seed)
        wrong += (found.verdict != "refuted") + (sound.verdict != "not refuted")
        print(
            f"{name:6} flaw {found.verdict} after {found.examples} examples; sound version {sound.verdict} after "
            f"{sound.examples}",
            flush=True,
        )
    return 1 if wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 when a certificate was wrong."""
    parser = argparse.ArgumentParser(prog="bench.soundness", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=20000, help="triples to compare (default: 20000)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same triples")
    parser.add_argument("--laws", action="store_true", help="compare exact laws of the stochastic samplers instead")
    told = parser.parse_args(argv)
    begin = time.perf_counter()
    if told.laws:
        return laws(told.seed)

    def progress(tally: Tally) -> None:
        seconds = time.perf_counter() - begin
        print(f"{tally.triples} triples in {seconds:.0f} s, {len(tally.wrong)} wrong", file=sys.stderr, flush=True)
        if tally.wrong:
            print(tally.wrong[-1], file=sys.stderr, flush=True)

    tally = fuzz(told.count, told.seed, progress)
    print(f"seed {told.seed}: {tally}\n{time.perf_counter() - begin:.0f} s")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
