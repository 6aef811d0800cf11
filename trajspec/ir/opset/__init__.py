"""The ops of the library, one declaration each; importing this package declares them all."""

from . import draft, model, noise, pointwise, read, reduce, schedule, score, select, speculate, view, write

__all__ = [
    "draft", "model", "noise", "pointwise", "read", "reduce", "schedule", "score", "select", "speculate", "view",
    "write",
]  # fmt: skip
