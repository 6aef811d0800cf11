"""The decoding loops that people run today, written from the papers' published samplers, on this library's models.

They are what they are: one row at a time, no end at EOS, a softmax in float64 over the whole window, selection row by
row in Python with reads of the device. The network and its stored keys are the library's, so that only the loops
differ.

Sources: LLaDA, `generate.py`; Fast-dLLM v1, `llada/generate.py` (loops none, prefix and dual, threshold rule).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def transfer(logits: Tensor, shown: Tensor, mask_id: int, threshold: float) -> tuple[Tensor, Tensor]:
    """Fast-dLLM's selection on a window: tokens, and where they are committed; logits [R, W, V], shown [R, W]."""
    token = logits.argmax(dim=-1)
    p = torch.softmax(logits.to(torch.float64), dim=-1)
    confidence = p.gather(-1, token[..., None])[..., 0]
    masked = shown == mask_id
    token = torch.where(masked, token, shown)
    confidence = torch.where(masked, confidence, -torch.inf)
    commit = torch.zeros_like(masked)
    for row in range(len(logits)):
        count = int(masked[row].sum().item())
        if not count:
            continue
        values, places = torch.topk(confidence[row], k=count)
        commit[row, places] = True
        for number in range(1, count):
            if values[number].item() < threshold:
                commit[row, places[number]] = False
    return token, commit


class Loop:
    """One row with its keys and values, as the loops use them; `calls` and `positions` of the network."""

    def __init__(self, model: Any, tokens: list[int]) -> None:
        self.model, self.mask_id = model, model.mask_id
        self.x = torch.tensor([tokens], device=model.device)
        self.at = torch.arange(self.x.shape[1], device=model.device)[None]
        self.store: Any = None
        self.calls = self.positions = 0

    def full(self) -> Tensor:
        """Logits of the whole canvas."""
        self._count(self.x.shape[1])
        return self._banned(self.model(self.x, self.at))

    def refresh(self) -> Tensor:
        """The same, keeping keys and values."""
        self.store = self.store or self.model.new_store(1, self.x.shape[1])
        return self.window(0, self.x.shape[1])

    def window(self, begin: int, end: int) -> Tensor:
        """Logits of entries begin..end in the midst of what is kept, replacing their keys and values."""
        self._count(end - begin)
        keys = torch.ones(1, self.x.shape[1] + 1, dtype=torch.bool, device=self.x.device)
        keys[:, -1] = False
        at = self.at[:, begin:end]
        return self._banned(self.model.cached(self.x[:, begin:end], at, at, self.store, keys))

    def _banned(self, logits: Tensor) -> Tensor:
        # Their models never predict the mask; this one is told so, as our policies are.
        logits[..., list(self.model.banned_ids)] = -torch.inf
        return logits

    def _count(self, width: int) -> None:
        self.calls, self.positions = self.calls + 1, self.positions + width

    def commit(self, logits: Tensor, begin: int, end: int, threshold: float) -> None:
        """Commit in begin..end by the threshold rule; logits of those entries."""
        shown = self.x[:, begin:end]
        token, where = transfer(logits, shown, self.mask_id, threshold)
        shown[where] = token[where]

    def masks(self, begin: int, end: int) -> int:
        """How many masks are left; reads the device."""
        return int((self.x[:, begin:end] == self.mask_id).sum().item())


def blocks(tokens: list[int], start: int, block_length: int | None) -> list[tuple[int, int]]:
    """Where the blocks of the part from `start` on begin and end; one block without a length."""
    size = block_length or max(len(tokens) - start, 1)
    return [(begin, min(begin + size, len(tokens))) for begin in range(start, len(tokens), size)]


@torch.inference_mode()
def vanilla(model: Any, tokens: list[int], start: int, block_length: int | None, **_: Any) -> Loop:
    """LLaDA's loop: a full forward for every token, the most confident of the block first."""
    loop = Loop(model, tokens)
    for begin, end in blocks(tokens, start, block_length):
        while loop.masks(begin, end):
            logits = loop.full()
            token = logits.argmax(dim=-1)
            confidence = torch.softmax(logits.to(torch.float64), dim=-1).gather(-1, token[..., None])[..., 0]
            confidence[:, end:] = -torch.inf
            confidence = torch.where(loop.x == loop.mask_id, confidence, -torch.inf)
            for row in range(len(loop.x)):
                place = torch.topk(confidence[row], k=1).indices
                loop.x[row, place] = token[row, place]
    return loop


@torch.inference_mode()
def fast_dllm(
    model: Any, tokens: list[int], start: int, block_length: int | None, threshold: float, cache: str = "dual"
) -> Loop:
    """Fast-dLLM's loops: `cache` none, prefix or dual."""
    loop = Loop(model, tokens)
    for begin, end in blocks(tokens, start, block_length):
        if cache == "none":
            while loop.masks(begin, end):
                loop.commit(loop.full()[:, begin:end], begin, end, threshold)
            continue
        loop.commit(loop.refresh()[:, begin:end], begin, end, threshold)
        while loop.masks(begin, end):
            logits = loop.window(begin, len(tokens) if cache == "prefix" else end)
            loop.commit(logits[:, : end - begin], begin, end, threshold)
    return loop
