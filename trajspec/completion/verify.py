"""Which drafted tokens an autoregressive target accepts, and what it writes after them.

`equality`: the target's own token, the likeliest one or one drawn with keyed noise, is compared with the draft and is
what is written: the same text as without drafts, bit for bit. `rejection`: a draft of probability q is kept with
probability min(1, p / q), else a token of (p - q)+ takes its place: the target's law (speculative sampling, Leviathan
et al., arXiv 2211.17192; several drafts by recursive rejection, as in SpecInfer and SpecDiff-2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ir.errors import TrajspecError
from ..ir.noise import ROLES
from ..runtime import noise
from ..runtime.meanings import MEANINGS
from ..runtime.meanings.score import first_max

RULES = ("equality", "rejection")


@dataclass(frozen=True)
class Processing:
    """How logits become the law that a token is drawn from, in the order of transformers: penalty, temperature, top_k,
    top_p. A temperature of 0: the likeliest token."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("temperature", 0), ("repetition_penalty", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < least:
                raise TrajspecError(f"{name} is {value!r}, expected a number from {least} up")
        if self.repetition_penalty == 0:
            raise TrajspecError("repetition_penalty is 0, expected a number above 0 (1: none)")
        if self.top_k is not None and (
            isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1
        ):
            raise TrajspecError(f"top_k is {self.top_k!r}, expected 1 or more tokens (None: no cut)")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise TrajspecError(f"top_p is {self.top_p!r}, expected a share above 0 and at most 1 (None: no cut)")

    def __call__(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Logits [..., V] as the law has them; `seen` bool [..., V]: the tokens that the text holds so far."""
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self.repetition_penalty != 1 and seen is not None:
            less = torch.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = torch.where(seen, less, logits)
        if self.temperature > 0:
            logits = logits / self.temperature
        logits = MEANINGS["top_k"](logits, k=self.top_k)
        return MEANINGS["top_p"](logits, p=self.top_p, crossing=True)

    def token(self, logits: Tensor, seed: Tensor, step: Tensor, position: Tensor) -> Tensor:
        """The target's own tokens [R, W] from processed logits [R, W, V]; keyed int64 [R, W], as the policy draws."""
        if self.temperature == 0:
            return first_max(logits)
        ids = torch.arange(logits.shape[-1], device=logits.device)
        noisy = noise.gumbel(seed[..., None], ROLES["tok"], step[..., None], position[..., None], ids)
        return first_max(logits.double() + noisy)


@dataclass(frozen=True)
class Verification:
    """How drafts are judged: `rule` of RULES."""

    rule: str
    processing: Processing

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise TrajspecError(f"verify is {self.rule!r}, expected equality or rejection")

    @property
    def level(self) -> str:
        """What the text equals: that of the target alone, for each seed, or in law."""
        return "law" if self.rule == "rejection" and self.processing.temperature > 0 else "bitwise"


@dataclass
class Judged:
    """`tokens` int64 [R, k + 1]: what is written, of which `count` int64 [R] are meant; the last of these is the
    target's own. `best` int64 [R]: the draft of each row that it followed."""

    tokens: Tensor
    count: Tensor
    best: Tensor


def judge(
    verification: Verification, logits: Tensor, drafted: Tensor, lengths: Tensor, law: Tensor | None, seed: Tensor,
    done: Tensor, start: Tensor, seen: Tensor | None,
) -> Judged:  # fmt: skip
    """What a round writes.

    logits [R, K, k + 1, V]: the target's, raw, after the accepted text and after each drafted token of K drafts;
    drafted int64 [R, K, k], of which `lengths` [R] are meant; law [R, K, k, V]: the log probabilities that they were
    drawn with, None when they were not drawn, or are compared only. seed, done, start int64 [R]: the row's seed, tokens
    written so far, and the prompt's length: noise is keyed by them. seen bool [R, V]: the tokens that the text holds.
    """
    rows, drafts, width = drafted.shape
    spread = torch.arange(width + 1, device=logits.device)
    step = done[:, None] + spread
    position = start[:, None] + step
    alive = torch.ones(rows, drafts, dtype=torch.bool, device=logits.device)
    going = torch.ones(rows, dtype=torch.bool, device=logits.device)
    out = torch.zeros(rows, width + 1, dtype=torch.int64, device=logits.device)
    count = torch.zeros(rows, dtype=torch.int64, device=logits.device)
    best = torch.zeros(rows, dtype=torch.int64, device=logits.device)
    processing = verification.processing
    by_law = verification.level == "law"
    if by_law and law is None:
        raise TrajspecError("rejection needs the probabilities that drafts were drawn with; verify='equality' does not")
    each = torch.arange(rows, device=logits.device)
    for at in range(width + 1):
        # Drafts that are alive share what was accepted, so any of them has the target's logits after it.
        here = alive.int().argmax(-1)
        target = processing(logits[each, here, at], seen)
        own = processing.token(target[:, None], seed[:, None], step[:, at : at + 1], position[:, at : at + 1])[:, 0]
        open_ = going & (at < lengths) if at < width else going & False
        if by_law and at < width:
            assert law is not None
            token, alive = _coupled(
                target, drafted[:, :, at], law[:, :, at], alive & open_[:, None], seed, done, position[:, at], own
            )
        else:
            token = own
            if at < width:
                alive = alive & open_[:, None] & (drafted[:, :, at] == own[:, None])
        out[:, at] = torch.where(going, token, out[:, at])
        count = count + going
        best = torch.where(going, here, best)
        if at < width:
            going = going & alive.any(-1)
            alive = torch.where(going[:, None], alive, torch.ones_like(alive))
            best = torch.where(going, alive.int().argmax(-1), best)
        if seen is not None:
            seen = seen.scatter(1, token[:, None], True)
    return Judged(out, count, best)


def _coupled(
    target: Tensor,
    drafted: Tensor,
    law: Tensor,
    alive: Tensor,
    seed: Tensor,
    done: Tensor,
    position: Tensor,
    own: Tensor,
) -> tuple[Tensor, Tensor]:
    """A token [R] of the target's law out of the drafts [R, K] that are alive, and the drafts that go on.

    Recursive rejection: a draft is kept with probability min(1, p / q), else p becomes the rest (p - q)+ and the next
    one is tried against it; a token of the last rest takes the place of them all. Without drafts: the target's own.
    """
    p = target.double().softmax(-1)
    token = torch.full_like(own, -1)
    for number in range(drafted.shape[1]):
        tried = alive[:, number] & (token < 0)
        q = law[:, number].double().exp()
        chosen = drafted[:, number]
        mine, theirs = (part.gather(-1, chosen[:, None])[:, 0] for part in (p, q))
        coin = noise.uniform(seed, ROLES["coin"], done, position, number)
        kept = tried & (coin * theirs < mine)
        token = torch.where(kept, chosen, token)
        rest = (p - q).clamp(min=0)
        mass = rest.sum(-1, keepdim=True)
        # Where nothing is left p and q are equal, and a draft is kept with probability 1.
        rest = torch.where(mass > 0, rest / mass, p)
        p = torch.where((tried & ~kept)[:, None], rest, p)
    ids = torch.arange(p.shape[-1], device=p.device)
    noisy = noise.gumbel(seed[:, None], ROLES["resid"], done[:, None], position[:, None], ids)
    rejected = first_max(p.log() + noisy)
    replaced = torch.where(alive.any(-1), rejected, own)
    token = torch.where(token < 0, replaced, token)
    # A token of the rest is none of those that were tried: where one was refused, the rest has nothing left of it.
    return token, alive & (drafted == token[:, None])


__all__ = ["RULES", "Judged", "Processing", "Verification", "judge"]
