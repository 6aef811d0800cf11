"""How long decoding takes here: the loops that people run today and this library, side by side in one run."""

from .compare import Problem, compare, problems_of

__all__ = ["Problem", "compare", "problems_of"]
