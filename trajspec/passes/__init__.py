"""Plan to plan: what makes a policy's plan cheaper without changing what it commits."""

from .pipeline import PASSES, Change, Pass, optimise
from .rules import Rule, rule
from .speculate import SPECULATION, carry, speculate

__all__ = ["PASSES", "SPECULATION", "Change", "Pass", "Rule", "carry", "optimise", "rule", "speculate"]
