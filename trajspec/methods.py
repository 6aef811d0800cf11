"""The published methods that guess ahead, each as one drafter: they differ in what is looked at early."""

from __future__ import annotations

from dataclasses import dataclass

from .ir.drafter import Drafter
from .ir.errors import TrajspecError
from .passes.speculate import named


@dataclass(frozen=True)
class Method:
    """A published method: what it drafts, how it looks into the next block, and where it differs from its paper.

    What a method drafts never changes what is committed, so each is exact for every policy and view under the
    conditions that `certify` lists, also where the published code is not.
    """

    name: str
    source: str
    drafter: Drafter
    lookahead: str
    what: str


SSD = Method(
    "ssd",
    "Self-speculative decoding (arXiv 2510.04147)",
    named("chain")(nodes=5),
    "none",
    "the most confident masks of the block one after the other, each with its likeliest token",
)
FREEDAVE = Method(
    "freedave",
    "FreeDave (arXiv 2510.00294)",
    named("frozen")(nodes=5),
    "none",
    "the policy applied again and again to the logits at hand: nested sets of what it would commit",
)
TLSD = Method(
    "tlsd",
    "Trajectory-level speculative decoding (arXiv 2608.27514)",
    named("tree")(nodes=8),
    "exact",
    "a tree over strata of confidence, best first, with the refresh that opens the next block in the same call",
)

#: By name, what `draft=` takes beside drafters. Spiffy is a drafter that has to be calibrated: see `spiffy`.
METHODS: dict[str, Method] = {method.name: method for method in (SSD, FREEDAVE, TLSD)}


def method(name: str) -> Method | None:
    """The method called `name`, None when no method is.

    Raises TrajspecError for Spiffy (arXiv 2509.18085), whose graph of ranks is counted on a few prompts first.
    """
    if name == "spiffy":
        raise TrajspecError(
            "draft='spiffy' needs its table: count which ranks come next with ts.calibrate(model, prompts, ...), and "
            "give what it returns, or the file it was saved in, as draft="
        )
    return METHODS.get(name)


__all__ = ["FREEDAVE", "METHODS", "SSD", "TLSD", "Method", "method"]
