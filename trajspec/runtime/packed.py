"""What one packed call of a model is made of: rows of several kinds and widths, each on its own kept keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Before = Tensor | Callable[[Sequence[Tensor]], Tensor] | None


@dataclass(frozen=True)
class Part:
    """Rows of one width in a packed call; `tokens`, `positions`, `slots`, `keys` as in `Model.cached`, int64 [n, W].

    `rows` int64 [n] says which row of `store` each works on. With `keep` it is written in place (no row twice), else
    the rows see their own keys and values in copies that are gone with the call, so several may share a row of the
    store. Parts are worked off in order, layer by layer: a part reads what earlier ones kept. `before` as in
    `Model.cached`, or a function of the logits of the earlier parts that gives it.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    keys: Tensor
    store: Any
    rows: Tensor
    keep: bool = False
    before: Before = None
