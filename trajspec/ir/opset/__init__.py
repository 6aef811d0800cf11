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
    tables,
    verify,
    view,
    walk,
    write,
)

__all__ = [
    "along", "draft", "model", "noise", "pointwise", "read", "reduce", "schedule", "score", "select", "tables",
    "verify", "view", "walk", "write",
]  # fmt: skip
