"""APD without a window on the diffusion model's keys: drafts from left to right that an autoregressive model checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from .common import NEVER, draw, say, shift, top_k, top_p


def apd(
    model: Any, verifier: Any, mask_id: int, prompt: list[int], length: int, weight: float | None,
    lookahead: int | None, *, tokens_per_step: int = 1, temperature: float = 0.0, p: float | None = None,
    k: int | None = None, eos_id: int | None = None, seed: int = 0, but: str = "",
) -> list[list[int]]:  # fmt: skip
    """The states of writing `length` ids behind a prompt of one id at least.

    Both models predict the next token at each entry; `verifier` is asked under a causal mask. What it said about the
    first position of a draft was kept from the call before.
    """
    x = list(prompt) + [-1] * length
    states, cur, kept = [x[:]], len(prompt), None
    while cur < len(x):
        right = len(x) if lookahead is None else min(cur + lookahead, len(x))
        shown = [mask_id if token < 0 else token for token in x]
        if but != "sees_all":
            shown = shown[:right]
        logits = shift(say(model, shown))[:right]
        logits[:, mask_id] = NEVER
        drafted = []
        for at in range(cur, right):
            one = logits[at] / temperature if temperature > 0 else logits[at]
            one = top_k(top_p(one, p), k)
            drafted.append(draw(one, seed, len(states) - 1, at) if temperature > 0 else int(np.argmax(one)))
        n = tokens_per_step
        if weight is not None:
            row = x[:cur] + drafted
            causal = [[j <= i for j in range(len(row))] for i in range(len(row))]
            raw = say(verifier, row, causal)
            raw[:, mask_id] = NEVER
            if kept is None:
                said = raw[cur - 1 : -1]
            else:  # the call is on the draft alone, and the first row is the one that was kept
                said = np.concatenate([kept[None], raw[cur:-1]])
            if but == "verifier_unshifted":
                said = raw[cur:right]
            n, going = 0, True
            for j, token in enumerate(drafted):
                mixed = weight * logits[cur + j] + (1 - weight) * said[j]
                if but == "swapped":
                    mixed = (1 - weight) * logits[cur + j] + weight * said[j]
                agrees = token == int(np.argmax(mixed)) or (j == 0 and but != "first_not_forced")
                going = going and agrees if but != "skips" else going
                n += going if but != "skips" else agrees
            n = max(n, 1)
            kept = said[n] if n < len(said) else said[-1]
        n = min(n, right - cur)
        x[cur : cur + n] = drafted[:n]
        cur += n
        states.append(x[:])
        if eos_id is not None and eos_id in x[len(prompt) :]:
            break
    return states
