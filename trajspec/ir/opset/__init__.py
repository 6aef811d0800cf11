"""The ops of the library, one declaration each; importing this package declares them all."""

from . import model, noise, pointwise, read, reduce, schedule, score, select, view, write

__all__ = ["model", "noise", "pointwise", "read", "reduce", "schedule", "score", "select", "view", "write"]
