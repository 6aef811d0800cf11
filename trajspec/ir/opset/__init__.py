"""The ops of the library, one declaration each; importing this package declares them all."""

from . import (
    along,
    draft,
    model,
    noise,
    pointwise,
    read,
    reduce,
    schedule,
    score,
    select,
    speculate,
    tables,
    view,
    write,
)

__all__ = [
    "along", "draft", "model", "noise", "pointwise", "read", "reduce", "schedule", "score", "select", "speculate",
    "tables", "view", "write",
]  # fmt: skip
