"""Fast-dLLM v2 without its cache inside a block: block diffusion with sub-blocks on an autoregressive model."""

from __future__ import annotations

from typing import Any

import numpy as np

from .common import NEVER, draw, say, shift, softmax, top_p


def fastdllm_v2(
    model: Any, mask_id: int, prompt: list[int], total: int, block: int, small: int, threshold: float, *,
    temperature: float = 0.0, p: float | None = 0.95, stop_id: int | None = None, seed: int = 0, but: str = "",
) -> list[list[int]]:  # fmt: skip
    """The states on the way to `total` ids, a multiple of `block`; `model` predicts the next token at each entry."""
    x = list(prompt)
    states = [x + [-1] * (total - len(x))]

    def note(row: list[int]) -> None:
        states.append(row + [-1] * (total - len(row)))

    def forward(row: list[int]) -> Any:
        # What is stored of finished blocks is what a block-causal call on all of them computes.
        sees = [[j // block <= i // block for j in range(len(row))] for i in range(len(row))]
        raw = say(model, [mask_id if token < 0 else token for token in row], sees)
        raw[:, mask_id] = NEVER
        return raw

    if len(x) and len(x) % block == 0 and but != "no_first":
        x.append(int(np.argmax(forward(x)[-1])))
        note(x)
    while len(x) < total:
        start = len(x) // block * block
        row = x + [-1] * (start + block - len(x))
        for sub in range(start, start + block, small if but != "whole_block" else block):
            size = small if but != "whole_block" else block
            while any(row[i] < 0 for i in range(sub, sub + size)):
                logits = forward(row)[start:]
                logits = shift(logits) if but != "unshifted" else logits
                chosen: dict[int, tuple[float, int]] = {}
                for i in range(sub, sub + size):
                    if row[i] >= 0:
                        continue
                    one = logits[i - start]
                    if temperature > 0:
                        one = top_p(one / temperature, p)
                        token = draw(one, seed, len(states) - 1, i)
                    else:
                        token = int(np.argmax(one))
                    chosen[i] = (softmax(one)[token], token)
                best = max(sorted(chosen), key=lambda i: chosen[i][0])
                for i, (sure, token) in chosen.items():
                    above = sure >= threshold if but == "at_least" else sure > threshold
                    if above or i == best:
                        row[i] = token
                note(row[:])
        x = row
        if stop_id is not None and stop_id in x[len(prompt) :]:
            break
        if len(x) < total and but != "no_first":
            following = forward(x)[-1]
            if but == "warm_first" and temperature > 0:
                x.append(draw(top_p(following / temperature, p), seed, len(states) - 1, len(x)))
            else:
                x.append(int(np.argmax(following)))
            note(x)
    return states
