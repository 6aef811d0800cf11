"""The check of plans: arbitrary small models, rows, noise and drafters, against the base's own path, state by state."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..ir.ahead import forward_of
from ..ir.canvas import Canvas
from ..ir.canvas import canvas as make_canvas
from ..ir.errors import TrajspecError
from ..ir.interpret import run as run_plan
from ..ir.plan import Plan
from ..ir.query import Denoiser
from ..ir.trace import Policy
from .case import Case, Drafts, draw_case, draw_drafts
from .check import PathDifference, check_program, near_tie
from .models import letters, rows_met
from .plans import Says, ahead_only, as_they_are, watched
from .program import State, code, plan_program
from .search import Draw, Log, Skip, Verdict, judge
from .tabular import HashModel, TapeModel

Wrap = Callable[[Denoiser], Denoiser]


@dataclass(frozen=True)
class PlanCase(Case):
    """One input of a plan's check: what a `Case` holds, and what rows of plans have besides.

    `stop`: tokens that end the row; `allowed`: (position, tokens that may be predicted there); `ahead`: drafted states
    that do not extend the canvas at hand are left out, else they are evaluated as well; `keeps`: the model's cached
    keys and values are an arbitrary function of all of the canvas that they come from.
    """

    stop: tuple[int, ...] = ()
    allowed: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ahead: bool = False
    keeps: bool = False

    def smaller(self, difference: Any) -> Iterator[Case]:
        """As of a `Case`; before that without stop tokens, allowed sets and stray states."""
        if self.stop:
            yield replace(self, stop=())
        if self.allowed:
            yield replace(self, allowed=self.allowed[1:])
        if not self.ahead and self.drafts is not None:
            yield replace(self, ahead=True)
        if self.keeps:
            yield replace(self, keeps=False)
        yield from super().smaller(difference)

    def row(self) -> Canvas:
        """The canvas; TrajspecError when nothing is allowed somewhere."""
        state = np.array(self.canvas)
        known, mask_id = state >= 0, self.vocab
        lead = int(known.sum()) if not known[int(known.sum()) :].any() else 0
        return make_canvas(
            np.where(known, state, mask_id), ~known, start=lead, vocab_size=self.vocab + 1, mask_id=mask_id,
            seed=self.seed, stop=[token for token in self.stop if token < self.vocab], allowed=dict(self.allowed),
        )  # fmt: skip

    def denoiser(self) -> Denoiser:
        """The model, built anew."""
        model = self.model.build(self.vocab)
        return Keeps(model, len(self.canvas)) if self.keeps else model

    def says(self, drafts: Drafts | int | None, path: Sequence[State]) -> Says:
        """One of the two drafters, the base's path written out."""
        chains = drafts.along(path).chains if isinstance(drafts, Drafts) else ()
        states = [state for chain in chains for state in chain]
        return ahead_only(states) if self.ahead else as_they_are(states)

    def lines(self) -> list[str]:
        """The model, the row and the drafts, as text."""
        more = [f"stop    {letters(self.stop)}"] if self.stop else []
        more += [f"allowed {letters(tokens)} at {place}" for place, tokens in self.allowed]
        more += ["model   keeps all of the canvas that a cache comes from"] if self.keeps else []
        return [*super().lines(), *more]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        more = {
            "stop": letters(self.stop),
            "allowed": {str(place): letters(tokens) for place, tokens in self.allowed},
            "ahead": self.ahead,
            "keeps": self.keeps,
        }
        return super().as_dict() | more


class Keeps:
    """A model whose answer on a cached view depends on everything in the canvas that the cache was made from."""

    def __init__(self, model: Any, length: int) -> None:
        """Canvases have `length` positions."""
        self.model, self.length = model, length
        self.vocab_size, self.mask_id = model.vocab_size, model.mask_id

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        return self.model(tokens, positions, visible)

    def stale(self, tokens: Any, positions: Any, reference: Any, window: Any) -> Any:
        """Logits [L, V]: of the window's tokens in a context of their own for every reference."""
        shift = self.length * code([-1 if token == self.mask_id else token for token in reference.tolist()],
                                   self.vocab_size - 1)  # fmt: skip
        shown = np.where(window, tokens, reference)
        return self.model(shown[None], positions[None] + shift, None)[0]


@dataclass(frozen=True)
class PlanDifference(PathDifference):
    """Two paths of plans; `note` names the near-tie behind it, where packed calls are known to be off."""

    note: str = ""


def compare_plans(
    plan: Plan, against: Plan | None, *, own: bool = False, wrap: Wrap | None = None, near_ties: bool = True
) -> Callable[[PlanCase, Log], PlanDifference | None]:
    """The comparison of `check_plan` on one case; raises `search.Skip` where the base raises TrajspecError."""

    def compare(case: PlanCase, log: Log) -> PlanDifference | None:
        built = case.denoiser()
        model = wrap(built) if wrap else built
        speculated = plan.base is not None
        try:
            row = case.row()
            # The base comes first: a tape's rows are those of the first questions.
            left = run_plan(against or plan.base or plan, model, row).path
        except TrajspecError as error:
            raise Skip("refused by the base") from error
        path = _states(left)
        log.note("several base steps", int(len(left) > 2))
        asked: list[tuple[str, Says | None]] = [("plan", None)]
        if speculated:
            asked = [("plan", case.says(case.drafts, path)), ("plan, other drafts", case.says(case.others, path))]
            asked += [("plan, its own drafter", None)] if own else []
        names = ("base", "plan")
        for number, (name, says) in enumerate(asked):
            if number == 1 and (not isinstance(case.others, Drafts) or case.others in (case.drafts, Drafts())):
                continue
            # Only the first run is counted: rounds of several runs would add up.
            report = log if number == 0 else Log()
            try:
                right = watched(plan, model, row, says, report).path
            except Exception as error:
                line = traceback.extract_tb(error.__traceback__)[-1]
                what = f"the plan raises {error!r} in {line.name}, line {line.lineno}"
                return PlanDifference(what, tuple(path), (), ("base", name), _met(built))
            if against is None and number == 0:
                left, path, names = right, _states(right), ("plan", "plan")
                continue
            what = same_path(left, right)
            if what:
                note = _packed_tie(against or plan.base or plan, model, row, right) if against or plan.base else ""
                found = PlanDifference(
                    what, tuple(path), tuple(_states(right)), (names[0], name), _met(built), note
                )  # fmt: skip
                if not near_ties and near_tie(case, found):
                    raise Skip("a near-tie")
                return found
        return None

    return compare


def same_path(base: Sequence[Canvas], ours: Sequence[Canvas], counters: bool = True) -> str:
    """What differs between two paths, "" for nothing: tokens, masks, step counters, and whether the row has ended."""
    names = ("step", "block_step", "done") if counters else ("done",)
    for place, (left, right) in enumerate(zip(base, ours, strict=False)):
        if not (np.array_equal(left.masked, right.masked) and np.array_equal(_shown(left), _shown(right))):
            return f"state {place} is {letters(_state(right))}, the base has {letters(_state(left))}"
        for name in names:
            mine, theirs = getattr(right, name)[0], getattr(left, name)[0]
            if mine != theirs:
                return f"in state {place} {name} is {mine}, the base has {theirs}"
    if len(base) != len(ours):
        return f"{len(ours)} states, the base has {len(base)}"
    return ""


def _shown(x: Canvas) -> np.ndarray:
    return np.where(x.masked, -1, x.tokens)


def _state(x: Canvas) -> State:
    # The mask id, which a compat name may commit, shows as masked.
    return tuple(-1 if token == x.mask_id[0] else int(token) for token in _shown(x).tolist())


def _states(path: Sequence[Canvas]) -> list[State]:
    return [_state(x) for x in path]


def _met(model: Any) -> Any:
    inner = getattr(model, "model", model)
    return rows_met(inner) if isinstance(inner, (TapeModel, HashModel)) else {}


def _packed_tie(base: Plan, model: Any, row: Canvas, ours: Sequence[Canvas]) -> str:
    """A line about the near-tie of two tokens at the first difference, when packed calls are off by `model.eps`."""
    eps = getattr(model, "eps", None)
    if eps is None or not _asks_once(base):
        return ""
    value, steps = forward_of(base).results[0], []
    run_plan(base, model, row, on_step=lambda step: steps.append((step.after, step.values[value])))
    for (after, logits), other in zip(steps, ours[1:], strict=False):
        places = np.flatnonzero(_shown(after) != _shown(other))
        gaps = {int(at): float(-np.diff(np.sort(logits[at])[-2:][::-1])[0]) for at in places}
        thin = [at for at, gap in gaps.items() if gap <= 2 * eps]
        if thin:
            return (
                f"note    a near-tie: the two likeliest tokens of position {thin[0]} are {gaps[thin[0]]:.4g} apart, "
                f"and packed calls are off by up to {eps:g}"
            )
        if len(places):
            return ""
    return ""


def check_plan(
    plan: Plan,
    against: Plan | None,
    *,
    examples: int = 1000,
    seed: int = 0,
    lengths: tuple[int, int] = (1, 5),
    vocab: tuple[int, int] = (2, 4),
    own: bool = False,
    wrap: Wrap | None = None,
    near_ties: bool = True,
) -> Verdict:
    """Look for a model, row, noise and drafter on which `plan` leaves the path of `against`.

    A speculated plan is run with two arbitrary drafters in place of its own; with `own`, also with its own. against
    None: the two drafters are compared with each other (theorem A6). `wrap`: what happens to the model's calls, such
    as `plans.PackedNoise`. Not passed when nothing was drafted or accepted.
    """
    base = plan.base or plan
    kept = forward_of(base).op.name == "forward_cached" if _asks_once(base) else False
    count = 0 if plan.base is None else 2

    def draw_one(draw: Draw) -> PlanCase:
        return draw_plan_case(draw, drafts=count, keeps=kept, lengths=lengths, vocab=vocab)

    compare = compare_plans(plan, against, own=own, wrap=wrap, near_ties=near_ties)
    return judge(draw_one, compare, examples=examples, seed=seed, remark=_remark)


def _remark(case: PlanCase, difference: PlanDifference) -> str:
    if difference.note:
        return difference.note
    return near_tie(case, difference) if difference.ours and not case.keeps else ""


def _asks_once(base: Plan) -> bool:
    try:
        forward_of(base)
    except TrajspecError:
        return False
    return True


def draw_plan_case(
    draw: Draw, *, drafts: int = 2, keeps: bool = False, lengths: tuple[int, int] = (1, 5),
    vocab: tuple[int, int] = (2, 4),
) -> PlanCase:  # fmt: skip
    """An arbitrary case for plans: also rows to fill in, stop tokens and allowed sets."""
    from hypothesis import strategies as st

    plain = draw_case(draw, lengths=lengths, vocab=vocab)
    canvas, tokens = plain.canvas, plain.vocab
    token = st.integers(0, tokens - 1)
    stop: tuple[int, ...] = ()
    allowed: tuple[tuple[int, tuple[int, ...]], ...] = ()
    shape = draw(st.sampled_from(("prompt", "prompt", "stop", "fill", "allowed")))
    if shape == "stop":
        stop = tuple(sorted(draw(st.sets(token, min_size=1, max_size=2))))
    elif shape == "fill":
        canvas = tuple(draw(token) if draw(st.booleans()) else old for old in canvas)
        if -1 not in canvas:
            canvas = (-1, *canvas[1:])
    elif shape == "allowed":
        place = draw(st.sampled_from([at for at, old in enumerate(canvas) if old < 0]))
        allowed = ((place, tuple(sorted(draw(st.sets(token, min_size=1, max_size=tokens))))),)
    drawn: list[Drafts | None] = [_drafts(draw, canvas, tokens) for _ in range(drafts)]
    first, second = (drawn + [None, None])[:2]
    return PlanCase(
        canvas, tokens, plain.model, plain.seed, first, second, stop=stop, allowed=allowed,
        ahead=draw(st.booleans()), keeps=keeps and draw(st.booleans()),
    )  # fmt: skip


def _drafts(draw: Draw, canvas: State, vocab: int) -> Drafts:
    """Chains of writes and the base's path, and now and then states that have nothing to do with either."""
    from hypothesis import strategies as st

    drafts = draw_drafts(draw, canvas, vocab)
    if not draw(st.integers(0, 2)):
        entry = st.integers(-1, vocab - 1)
        stray = tuple(draw(entry) if old < 0 else old for old in canvas)
        drafts = replace(drafts, chains=(*drafts.chains, (stray,)))
    return drafts


def check(
    checked: Plan | Policy | Callable[..., Any],
    against: Plan | Policy | None = None,
    *,
    examples: int = 1000,
    seed: int = 0,
    lengths: tuple[int, int] = (1, 5),
    vocab: tuple[int, int] = (2, 4),
    own: bool = True,
    **options: Any,
) -> Verdict:
    """Look for a small model, row, noise and drafter on which `checked` does not go the way of `against`.

    checked: a plan made by `speculate`, which is run with arbitrary drafters in place of its own, and (`own`) with its
    own; or a plain policy or plan; or a function `run(denoise, canvas, seed) -> states` (`exact.program`). against:
    its base, a policy or a plan; None for a speculated plan's own base. Paths are compared state by state. examples,
    seed: how many cases are drawn, and which; lengths, vocab: the smallest and largest canvas and number of tokens.

        print(check(speculate(mine, "tree"), against=mine))

    The verdict is "refuted" with the smallest counterexample found, "not refuted", or "inconclusive" when nothing was
    drafted or accepted. Raises TrajspecError when there is no base to compare with.
    """
    if isinstance(checked, Policy):
        checked = checked.plan()
    if against is None and isinstance(checked, Plan):
        against = checked.base
    if isinstance(against, Policy):
        against = against.plan(_view(checked))
    if not isinstance(against, Plan):
        raise TrajspecError(f"check needs the base, a policy or a plan: against={against!r}; give against=")
    sizes: dict[str, Any] = {"examples": examples, "seed": seed, "lengths": lengths, "vocab": vocab}
    if isinstance(checked, Plan):
        return check_plan(checked, against, own=own, **sizes, **options)
    return check_program(checked, plan_program(against), **sizes, **options)


def _view(checked: Any) -> str:
    base = (checked.base or checked) if isinstance(checked, Plan) else None
    return str(forward_of(base).attributes.get("view", "full")) if base is not None and _asks_once(base) else "full"


def read_plan_case(data: Mapping[str, Any]) -> PlanCase:
    """The case that `PlanCase.as_dict` wrote. Raises TrajspecError when something is missing or misspelt."""
    from .case import read_case
    from .models import unletters

    plain = read_case(data)
    allowed = {int(place): unletters(tokens) for place, tokens in dict(data.get("allowed", {})).items()}
    return PlanCase(
        plain.canvas, plain.vocab, plain.model, plain.seed, plain.drafts, plain.others,
        stop=unletters(data.get("stop", "")), allowed=tuple(allowed.items()), ahead=bool(data.get("ahead", False)),
        keeps=bool(data.get("keeps", False)),
    )  # fmt: skip


__all__ = ["PlanCase", "check", "check_plan", "compare_plans", "draw_plan_case", "read_plan_case", "same_path"]
