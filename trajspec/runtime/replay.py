"""One row through the torch runtime with every state and chosen values kept: what conformance compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.canvas import Canvas
from ..ir.nodes import Value
from ..ir.plan import Plan
from .denoiser import Bare, FromNumpy
from .loop import Cost, StepEvent, run
from .models import Model

Table = dict[Value, Any]


def replay(
    plan: Plan, model: Any, prompt: Canvas, wanted: Sequence[Value]
) -> tuple[list[list[int]], list[list[bool]], Cost, list[Table]]:
    """States and masks after every step, the cost, and the `wanted` values of every step as numpy arrays."""
    states, masks = [prompt.tokens.tolist()], [prompt.masked.tolist()]
    values: list[Table] = []

    def watch(event: StepEvent) -> None:
        states.append(event.after.tokens[0].tolist())
        masks.append(event.after.masked[0].tolist())
        values.append({value: event.values[value][0].numpy() for value in wanted})

    torch_model = model if isinstance(model, Model) else Bare(FromNumpy(model))
    _, cost = run(plan, torch_model, [prompt], on_step=watch, keep_path=False)
    return states, masks, cost, values
