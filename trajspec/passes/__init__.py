"""Plan to plan: what makes a policy's plan cheaper without changing what it commits."""

from .speculate import PASSES, carry, speculate

__all__ = ["PASSES", "carry", "speculate"]
