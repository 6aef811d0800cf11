"""Compiled steps: a plan's lowered step and the network in one graph, for one shape of a batch after the other."""

from __future__ import annotations

import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..ir.canvas import Canvas
from ..ir.errors import TrajspecError
from ..ir.nodes import Value
from ..ir.plan import Plan
from .ahead import Move, Round, Speculator
from .batch import differs
from .capture import Captured, Kind
from .lower import lower
from .query import ask, no_numbers
from .states import Proposed
from .step import Outcome, Recorder, take
from .verify import Opened
from .views import Kept, next_cache

#: A canvas is made this much longer at most, so that few lengths have to be compiled.
LENGTHS = 32
#: Views whose calls have a fixed width; the window of the prefix view runs eagerly.
FIXED = ("full", "dual", "block_causal")

def length_of(longest: int) -> int:
    """The length to which canvases of up to `longest` entries are padded: few lengths are compiled."""
    return -(-longest // LENGTHS) * LENGTHS


@dataclass
class Compiler:
    """Gives the compiled steps of a plan on one model; settings as in `compiled`."""

    model: Any
    backend: str = "inductor"
    capture: Kind = "none"
    announce: Callable[[str], None] | None = None

    padded = staticmethod(length_of)

    def __call__(self, plan: Plan) -> Any:
        """The steps of a base plan, or the rounds of a speculated one. Raises TrajspecError as `compiled` does."""
        return compiled(plan, self.model, backend=self.backend, capture=self.capture, announce=self.announce)

    @property
    def seconds(self) -> float:
        """How long all that was compiled for the model took so far."""
        return sum(steps.graphs.seconds for steps in _made.get(getattr(self.model, "network", None), {}).values())


_made: weakref.WeakKeyDictionary[Any, dict[tuple[Plan, str, Kind, str], Any]] = weakref.WeakKeyDictionary()


def compiled(
    plan: Plan,
    model: Any,
    *,
    backend: str = "inductor",
    capture: Kind = "none",
    announce: Callable[[str], None] | None = None,
) -> Compiled | CompiledRounds:
    """The compiled steps of `plan` on `model`, the ones made before if there are any.

    `backend` is torch.compile's, or none: the same functions, not compiled. `capture`: how the steps of a base plan are
    replayed (`runtime.capture`); `announce` is told before something is compiled. Raises TrajspecError for an op that
    has no torch meaning, and a model that is no torch module.
    """
    network = getattr(model, "network", None)
    if not isinstance(network, torch.nn.Module):
        raise TrajspecError(
            f"compile=True needs a network in torch, and {getattr(model, 'name', type(model).__name__)} is a bare "
            "denoiser; decode with compile=False"
        )
    known = _made.setdefault(network, {})
    key = (plan, backend, capture, getattr(getattr(model, "cache", None), "layout", "rows"))
    if key not in known:
        known[key] = Compiled(plan, backend, capture) if plan.base is None else CompiledRounds(plan, backend)
    found: Compiled | CompiledRounds = known[key]
    found.graphs.announce = announce
    return found


class Graphs:
    """Functions compiled for one shape each; `seconds` is the time that compiling took, `announce` is told before."""

    def __init__(self, name: str, backend: str) -> None:
        self.name, self.backend = name, backend
        self.announce: Callable[[str], None] | None = None
        self.seconds = 0.0
        self._functions: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __len__(self) -> int:
        return len(self._functions)

    def call(self, key: tuple[Any, ...], make: Callable[[], Callable[..., Any]], what: str, *args: Any) -> Any:
        """`make()` compiled for `key` on `args`; tensors of more than one row may have any number of rows above it.

        Raises TrajspecError when it cannot be one graph.
        """
        function = self._functions.get(key)
        if function is not None:
            return function(*args)
        for leaf in _leaves(args):
            if leaf.dim() and leaf.shape[0] > 1:
                torch._dynamo.maybe_mark_dynamic(leaf, 0)
        plain = make()
        if self.backend == "none":
            return self._functions.setdefault(key, plain)(*args)
        # Dynamo keeps what it compiled with the code object; one of its own for each shape keeps them apart.
        own = types.FunctionType(plain.__code__.replace(), plain.__globals__, self.name, None, plain.__closure__)
        function = torch.compile(own, fullgraph=True, backend=self.backend, dynamic=False)
        with self._timed(what):
            out = function(*args)
        self._functions[key] = function
        return out

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        if self.announce is not None:
            self.announce(f"compiling {self.name} ({what})")
        began = time.perf_counter()
        try:
            yield
        except torch._dynamo.exc.TorchDynamoException as error:
            told = str(error).strip().splitlines()
            raise TrajspecError(
                f"plan {self.name} cannot be compiled as one graph: {told[0] if told else error!r}. Decode with "
                "compile=False"
            ) from error
        finally:
            self.seconds += time.perf_counter() - began


class Compiled:
    """The steps of one base plan."""

    def __init__(self, plan: Plan, backend: str = "inductor", capture: Kind = "none") -> None:
        self.plan, self.lowered = plan, lower(plan)
        self.graphs = Graphs(plan.name, backend)
        self.capture: Kind = capture
        # Of one batch: what it keeps is part of what is captured.
        self._captured: tuple[Any, dict[tuple[Any, ...], Captured]] = (None, {})

    def take(
        self,
        plan: Plan,
        model: Any,
        bound: Mapping[Value, Any],
        carried: Sequence[Any],
        all_real: bool,
        kept: Kept | None = None,
        rows: Tensor | None = None,
        refresh: bool = True,
    ) -> Outcome:
        """As `step.take` for the plan that was compiled; of what was computed it tells the model's answers only.

        Raises TrajspecError when the step or the network cannot be one graph.
        """
        if kept is not None and kept.view not in FIXED and not refresh:
            return take(plan, model, bound, carried, all_real, kept, rows, refresh)
        x: Canvas = carried[0]
        _ready(kept, model, x)
        inputs = tuple(bound[value] for value in self.plan.inputs)
        key = (refresh, all_real, *_shape(x, kept, rows))
        what = f"the step on {'the whole canvas' if refresh else 'a block'}, {x.tokens.shape[1]} positions"
        out = self._call(
            key, lambda: self._function(refresh, all_real), what, model, kept, rows, inputs, tuple(carried)
        )
        after, answers, status, planes, (asked, positions), further = out
        results = [result for node in self.lowered.asked for result in node.results if result.kind.name == "logits"]
        values = dict(zip(results, answers, strict=True))
        bad, empty = planes
        return Outcome(after, status[0], status[1], status[2], bad, empty, asked, positions, values, further)

    def _call(
        self, key: tuple[Any, ...], make: Callable[[], Any], what: str, model: Any, kept: Kept | None, *args: Any
    ) -> Any:
        out = self.graphs.call(key, make, what, model, kept, *args) if self.capture == "none" else None
        if out is not None:
            return out
        batch, made = self._captured
        if batch is None or batch() is not kept:
            made = {}
            self._captured = ((lambda: None) if kept is None else weakref.ref(kept), made)
        key = (*key, None if args[0] is None else len(args[0]), len(args[-1][0].tokens))
        if key not in made:
            state = (lambda: ()) if kept is None else kept.tensors

            def run(*mine: Any) -> Any:
                return self.graphs.call(key, make, what, model, kept, *mine)

            made[key] = Captured(run, args, kind=self.capture, state=state)
        after, *rest = made[key](*args)
        # The next replay writes over it.
        return pytree.tree_map(torch.clone, after), *rest

    def _function(self, refresh: bool, all_real: bool) -> Callable[..., Any]:
        lowered = self.lowered

        def step(model: Any, kept: Any, rows: Any, inputs: Any, carried: Any) -> Any:
            planes: list[tuple[Tensor, Tensor]] = []
            recorder = Recorder(model)

            def answer(number: int, *data: Any) -> tuple[Any, ...]:
                item = lowered.asked[number]
                predict_mask = item.attributes["predict_mask"]
                if item.op.name == "forward":
                    logits, bad, empty = ask(
                        recorder, data, predict_mask, all_real=all_real, by=item.attributes["by"]
                    )
                    planes.append((bad, empty))
                    return tuple(logits)
                kept.model = recorder
                look = kept.refresh if refresh else kept.window
                one, bad, empty = look(rows, data[0], data[2], predict_mask)
                planes.append((bad, empty))
                return one, next_cache(*data)

            after, answers, going, finished, due = lowered.function(answer, *inputs, *carried)
            bad = empty = torch.zeros_like(carried[0].masked)
            for wrong, none in planes:
                bad, empty = bad | wrong, empty | none
            changed = differs(carried[0], after[0]).any(-1)
            due = torch.zeros_like(changed) if due is None else due
            status = torch.stack([finished[:, 0], changed, due])
            further = tuple((one.rows, one.positions) for one in recorder.others.values() if one.rows)
            return after, answers, status, (bad & going, empty & going), (recorder.rows, recorder.positions), further

        return step


class CompiledRounds:
    """The rounds of one speculated plan: two graphs a round, one that says which states there are, and one with the
    packed call and the walk, for every way in which states share a call."""

    def __init__(self, plan: Plan, backend: str = "inductor") -> None:
        self.plan = plan
        self.graphs = Graphs(plan.name, backend)

    def round(
        self,
        spec: Speculator,
        known: Mapping[Value, Any],
        carried: Sequence[Any],
        group: Sequence[int],
        rows: Tensor | None,
        all_real: bool,
    ) -> Round:
        """As `Speculator.round`; of what was computed in a move it tells the model's answers only."""
        verifier, kept = spec.verifier, spec.verifier.kept
        told = spec.walk.attributes
        if (kept is not None and kept.view != "dual") or told["recheck"] is not None:
            return spec.round(known, carried, group, rows, all_real)
        x: Canvas = carried[0]
        _ready(kept, verifier.model, x)
        state = (*carried, *(known[value] for value in self.plan.inputs))
        shape = (all_real, *_shape(x, kept, rows))
        what = f"{x.tokens.shape[1]} positions"
        rest, fields, flags = self.graphs.call(
            ("propose", *shape), lambda: _proposing(spec), f"drafts, {what}", kept, state
        )
        proposed = Proposed(*fields)
        layout = verifier.layout(flags.tolist(), group, proposed.tokens)
        ahead = kept.ahead() if kept is not None and "open" in layout.kinds else None
        kinds = tuple((kind, min(len(numbers), 2)) for kind, numbers in layout.kinds.items())
        listed = ", ".join(f"{'several' if count > 1 else 'one'} {kind}" for kind, count in kinds)
        out = self.graphs.call(
            ("answer", kinds, tuple(layout.sources), *shape), lambda: _answering(spec, all_real),
            f"a round of {listed}; {what}", kept, rows, state, rest, fields, layout.kinds, layout.sources,
            layout.entry,
        )  # fmt: skip
        steps, final, through, planes, sizes, opened = out
        read = torch.stack([(planes[0] | planes[1]).any(-1), through]).tolist()
        if any(read[0]):
            raise no_numbers(group, x, *planes)
        if opened is not None and any(read[1]):
            verifier.enter(Opened(opened[0], ahead, *opened[1:]), through, rows)
        before: tuple[Any, ...] = tuple(rest[: len(spec.base.carried)])
        moves = []
        for went, after, held, answers in steps:
            moves.append(Move(went, before, after, held, answers))
            before = after
        return Round.packed(moves, final, layout, sizes)


def _proposing(spec: Speculator) -> Callable[..., Any]:
    def propose(kept: Any, state: Any) -> Any:
        spec.verifier.kept = kept
        operands, rest = spec.operands(state)
        proposed = spec.verifier.propose(operands)
        return rest, proposed.fields(), proposed.flags()

    return propose


def _answering(spec: Speculator, all_real: bool) -> Callable[..., Any]:
    def answer(
        kept: Any, rows: Any, state: Any, rest: Any, fields: Any, kinds: Any, sources: Any, entry: Any
    ) -> Any:
        spec.verifier.kept = kept
        proposed = Proposed(*fields)
        table = spec.verifier.answer(proposed, kinds, sources, entry, rows, all_real)
        moves, after, through = spec.moves(rest, table, unrolled=True)
        opened = None
        if table.opened is not None:
            one = table.opened
            opened = (one.rows, one.canvas, one.where, one.before)
        steps = [(move.went, move.after, move.held, move.answers) for move in moves]
        return steps, spec.final(state, after), through, (table.bad, table.empty), table.sizes, opened

    return answer


def _ready(kept: Kept | None, model: Any, x: Canvas) -> None:
    """What a batch holds has to be there from its first call on: a graph is made for what it holds."""
    if kept is not None and kept.before is None and kept.view != "block_causal":
        size = (kept.store.row_count, x.allowed.shape[-1])
        kept.before = torch.zeros(size, dtype=model.dtype, device=x.tokens.device)


def _shape(x: Canvas, kept: Kept | None, rows: Tensor | None) -> tuple[Any, ...]:
    """What a graph is made for: one row, or any number above it; a length; a vocabulary."""
    count, length = x.tokens.shape
    batch = count if kept is None else kept.store.row_count
    return rows is None, min(count, 2), min(batch, 2), length, tuple(x.allowed.shape[1:]), x.stop.shape[1]


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Kept):
        return _leaves([value.store, value.spare, value.before])
    if hasattr(value, "keys") and hasattr(value, "values") and hasattr(value, "row_count"):
        return _leaves([value.keys, value.values, value._positions])
    if isinstance(value, Mapping):
        value = list(value.values())
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, (tuple, list)) else []


__all__ = ["FIXED", "LENGTHS", "Compiled", "CompiledRounds", "compiled", "length_of"]
