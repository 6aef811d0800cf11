"""DiffusionGemma: a canvas of noise is drawn anew until it stands still (Google; transformers' `diffusion_gemma`)."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from ..ir import TrajspecError


def open_canvas(x: Any, noise: Any, guess: Any, block_length: int) -> Any:
    """Finished text and the open canvas: tokens at random at first, then the last draw, with what was predicted."""
    here, later = ts.window(x, size=block_length), ts.block_step(x) > 0
    drawn = ts.choose(later, noise, ts.token_at(x, ts.uniform(x)))
    shown = ts.without(ts.substitute(x, drawn, where=here), where=ts.masked(x) & ~here)
    return ts.soften(shown, guess, where=here, given=later)


def check_schedule(steps: Any, entropy_bound: Any, t_min: Any, t_max: Any) -> None:
    """Raise TrajspecError for steps, a bound or temperatures that transformers' own config refuses."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise TrajspecError(f"steps is {steps!r}, expected the most draws a canvas takes: a whole number from 1 up")
    if not entropy_bound > 0:
        raise TrajspecError(f"entropy_bound is {entropy_bound!r}, expected a number above 0, in nats")
    if t_min is not None and t_max is not None and not t_max >= t_min > 0:
        raise TrajspecError(f"t_min is {t_min!r} and t_max {t_max!r}, expected 0 < t_min <= t_max, or None for 1")


# Finished tokens may be any id of the vocabulary: there is no mask among them.
@ts.policy(predict_mask=True)
def diffusion_gemma(
    x, logits=ts.query(open_canvas), noise=ts.history("tokens"), guess=ts.history("logits"), last=ts.history("tokens"),
    stable=ts.history("count"), *, block_length=256, steps=48, entropy_bound=0.1, t_min=0.4, t_max=0.8,
    stability_threshold=1, threshold=0.005,
):  # fmt: skip
    """Draw a canvas anew but for its lowest entropies, until its likeliest tokens stay, surely (DiffusionGemma)."""
    check_schedule(steps, entropy_bound, t_min, t_max)
    here, left = ts.window(x, size=block_length), steps - ts.block_step(x)
    cooled = t_min is not None and t_max is not None
    guess = logits / (t_min + (t_max - t_min) * (left / steps)) if cooled else logits
    token, entropy = ts.argmax(guess), ts.entropy(guess)
    kept = here & (ts.running(entropy, by=-entropy, where=here) - entropy <= entropy_bound)
    noise = ts.choose(kept, ts.sample(x, guess), ts.token_at(x, ts.uniform_of(x, ts.step(x))))
    same = ts.all(token == last, where=here) & (ts.block_step(x) > 0)
    stable, done = ts.choose(same, stable + 1, 0), left <= 1
    if stability_threshold is not None:
        done = done | (stable >= stability_threshold) & (ts.mean(entropy, where=here) < threshold)
    return ts.unmask(x, token, where=here & done), noise, guess, token, stable
