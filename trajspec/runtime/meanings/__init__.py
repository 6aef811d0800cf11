"""What the library's ops mean in torch: the same values as their numpy meanings, on any device.

Values have the row axis in front: counts and flags [R, 1], values a position [R, L], values a token [R, L, V]. No
meaning reads the device from the host, has a shape that depends on data, changes an operand, or relies on an order of
ties that torch leaves open; all may be compiled as one graph and captured. `input`, `carried` and `forward` have no
entry: the first two are bound from outside, the last is `runtime.query.ask`.
"""

from . import ahead, along, canvas, draft, pointwise, positions, schedule, score, tables
from .registry import MEANINGS, meaning

__all__ = [
    "MEANINGS", "ahead", "along", "canvas", "draft", "meaning", "pointwise", "positions", "schedule", "score", "tables",
]  # fmt: skip
