"""Decoders that were not made by trajspec, as one function from a denoiser and a canvas to the states they pass.

    run(denoise, canvas, seed) -> [state, state, ...]

`canvas` and the states are int64 [L]: token ids from 0, -1 where masked; the first state is the canvas itself, the last
one what the program ends with. `denoise(canvases int [n, L]) -> logits float64 [n, L, V]` over the V ordinary tokens
(there is no mask id at this interface, so nothing can be confused with it). A program may take the keywords `drafter`
(`drafter(state) -> chains of hypothetical states`) and `log` (`exact.search.Log`), and is given them if it names them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.canvas import Canvas
from ..ir.canvas import canvas as make_canvas
from ..ir.errors import TrajspecError
from ..ir.interpret import Run, run
from ..ir.plan import Plan
from ..ir.query import Denoiser, call

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: A canvas as a value: token ids, -1 where masked.
State = tuple[int, ...]
#: run(denoise, canvas int64 [L], seed) -> states int64 [L]; may also take drafter= and log=.
Program = Callable[..., Sequence[Any]]


class Denoise:
    """A numpy denoiser as programs see it, counting what it is asked: `calls`, and `rows` of canvases in them.

    Tokens of a program are numbered 0 to V - 1 without the mask: `ids` are the model's own ids of them.
    """

    def __init__(self, model: Denoiser, length: int) -> None:
        """`model`: any denoiser on numpy arrays (`ir.query.Denoiser`); canvases have `length` positions."""
        self.length, self.vocab_size = length, model.vocab_size - 1
        self.ids: Ints = np.delete(np.arange(model.vocab_size), model.mask_id)
        self.calls, self.rows = 0, 0
        self.mask_id, self._model = model.mask_id, model

    def __call__(self, canvases: Any, context: Any = None) -> Floats:
        """Logits float64 [n, L, V] of int canvases [n, L], -1 where masked.

        `context` int [n, C], -1 to V - 1, is what else the network of a row was shown, such as the canvas that cached
        keys and values were made from; without it the whole canvas is computed anew. An arbitrary model answers
        differently in every context. Raises TrajspecError for another shape and for ids out of range.
        """
        asked = _ints(canvases, (None, self.length), self.vocab_size, "the program asked for canvases")
        positions = np.tile(np.arange(self.length), (len(asked), 1))
        if context is not None:
            known = _ints(context, (len(asked), None), self.vocab_size, "the program asked in a context")
            # Written into the positions, where every model that looks at positions can tell contexts apart.
            positions += self.length * np.array([code(row, self.vocab_size) for row in known.tolist()])[:, None]
        self.calls, self.rows = self.calls + 1, self.rows + len(asked)
        tokens = np.where(asked < 0, self.mask_id, self.ids[asked])
        return call(self._model, tokens, positions, None, self.vocab_size + 1)[..., self.ids]

    @property
    def model(self) -> Denoiser:
        """The same model behind the interface of `ir`, for plans; what it is asked is counted too."""
        return _Counted(self)


class _Counted:
    def __init__(self, owner: Denoise) -> None:
        self._owner, self._model = owner, owner._model
        self.vocab_size, self.mask_id = self._model.vocab_size, self._model.mask_id
        if hasattr(self._model, "stale"):
            self.stale = self._stale

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        self._owner.calls, self._owner.rows = self._owner.calls + 1, self._owner.rows + len(tokens)
        return self._model(tokens, positions, visible)

    def _stale(self, *view: Any) -> Any:
        self._owner.calls, self._owner.rows = self._owner.calls + 1, self._owner.rows + 1
        return self._model.stale(*view)  # type: ignore[attr-defined]


def plan_program(
    plan: Plan,
    *,
    stop: Iterable[int] = (),
    inputs: dict[str, Any] | None = None,
    start: Callable[[Ints], int] | None = None,
) -> Program:
    """A plan, run by `ir.interpret`, as a program. `stop`: tokens that end the row, numbered as programs number them.

    Blocks are counted from the end of the leading known tokens, or from 0 if there are known ones after a mask;
    `start(canvas)` says otherwise. The plan may ask every view and query that its denoiser answers. That of a
    speculated plan takes `log`, to which a whole run is one round.
    """
    stops = tuple(stop)

    def go(denoise: Denoise, canvas: Ints, seed: int) -> Run:
        ids, known = denoise.ids, canvas >= 0
        lead = int(known.sum()) if not known[int(known.sum()) :].any() else 0
        row = make_canvas(
            np.where(known, ids[canvas], denoise.mask_id),
            ~known,
            start=start(canvas) if start else lead,
            vocab_size=denoise.vocab_size + 1,
            mask_id=denoise.mask_id,
            seed=seed,
            stop=[int(ids[token]) for token in stops if token < len(ids)],
        )
        return run(plan, denoise.model, row, inputs)

    def run_plan(denoise: Denoise, canvas: Ints, seed: int) -> list[Ints]:
        return [_state(x, denoise.ids) for x in go(denoise, canvas, seed).path]

    def run_speculated(denoise: Denoise, canvas: Ints, seed: int, log: Any = None) -> list[Ints]:
        done = go(denoise, canvas, seed)
        if log is not None:
            held = done.histories[-1]
            log.round(int(held.drafted[0]), int(held.accepted[0]))
        return [_state(x, denoise.ids) for x in done.path]

    return run_plan if plan.base is None else run_speculated


def _state(x: Canvas, ids: Ints) -> Ints:
    # A token that is no ordinary one (the mask id, under a compat name) has no number here, and shows as masked.
    number = {int(token): place for place, token in enumerate(ids)}
    pairs = zip(x.tokens.tolist(), x.masked.tolist(), strict=True)
    return np.array([-1 if hidden else number.get(token, -1) for token, hidden in pairs])


def run_program(program: Program, denoise: Denoise, canvas: State, seed: int, **wanted: Any) -> list[State]:
    """The states of one run, as values, checked; of `wanted`, what the program has no parameter for is left out.

    Raises TrajspecError when the program returns anything but int states [L] that begin with the canvas.
    """
    takes = accepted(program)
    options = {name: value for name, value in wanted.items() if name in takes or "**" in takes}
    # A copy, so that a program that works in place does not change what it is compared with.
    states = program(denoise, np.array(canvas, np.int64), seed, **options)
    if not isinstance(states, Sequence | np.ndarray) or len(states) == 0:
        raise TrajspecError(f"the program returned {states!r:.80}; expected a list of states, the canvas first")
    what = "the program returned a state"
    path = [tuple(_ints(state, (denoise.length,), denoise.vocab_size, what).tolist()) for state in states]
    if path[0] != tuple(canvas):
        raise TrajspecError(f"the program's first state is {path[0]}; expected the canvas it was given, {canvas}")
    return path


def accepted(program: Program) -> set[str]:
    """The keywords a program takes; "**" stands for any."""
    try:
        parameters = inspect.signature(program).parameters.values()
    except (TypeError, ValueError):  # a builtin or an extension without a signature
        return set()
    return {"**" if item.kind is item.VAR_KEYWORD else item.name for item in parameters}


def code(context: Sequence[int], vocab_size: int) -> int:
    """The number of a context, at least 1: its entries + 1 as digits after a leading 1.

    Raises TrajspecError when it does not fit into a position of 63 bits.
    """
    number = 1
    for token in context:
        number = number * (vocab_size + 1) + token + 1
    if number >= 2**55:
        raise TrajspecError(f"a context of {len(context)} entries is too long; use fewer positions or tokens")
    return number


def uncode(number: int, vocab_size: int) -> list[int]:
    """The context with this number."""
    digits: list[int] = []
    while number > 1:
        number, digit = divmod(number, vocab_size + 1)
        digits.insert(0, digit - 1)
    return digits


def _ints(value: Any, shape: tuple[int | None, ...], vocab_size: int, what: str) -> Ints:
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(want in (None, size) for want, size in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in "iu":
        wanted = ", ".join("n" if size is None else str(size) for size in shape)
        raise TrajspecError(f"{what}, {array.dtype} {list(array.shape)}; expected integers [{wanted}]")
    bad = array[(array < -1) | (array >= vocab_size)]
    if bad.size:
        raise TrajspecError(f"{what} with the token {bad[0]}; expected 0 to {vocab_size - 1}, or -1 for masked")
    return array.astype(np.int64)
