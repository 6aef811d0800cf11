"""An autoregressive model writes; a diffusion model drafts for it (SpecDiff, arXiv 2408.05636).

The rounds are those of the policy `autoregressive`, speculated with a chain of states that share one row.
"""

from .drafts import Drafting
from .target import Target, load_target
from .verify import Verification

__all__ = ["Drafting", "Target", "Verification", "load_target"]
