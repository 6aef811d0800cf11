"""What a plan is: values, ops, text, verification and the reference meaning; numpy only."""

from . import opset  # noqa: F401  (declares the ops)
from .canvas import Canvas, canvas
from .declare import given, history, query
from .decorate import policy
from .errors import TrajspecError
from .interpret import run
from .op import OPS, op
from .parse import parse
from .plan import Plan, verify
from .trace import Policy

__all__ = [
    "OPS", "Canvas", "Plan", "Policy", "TrajspecError", "canvas", "given", "history", "op", "parse", "policy",
    "query", "run", "verify",
]  # fmt: skip
