"""Ancestral sampling of masked diffusion, without and with masking again (MDLM, ReMDM; kuleshov-group)."""

from __future__ import annotations

from typing import Any

import trajspec as ts

from ..ir import TrajspecError

STRATEGIES = ("cap", "rescale", "conf", "loop", "forward_backward", "none")


def time_step(steps: Any, eps: Any) -> float:
    """The width of `steps` steps from time 1 to `eps`. Raises TrajspecError for numbers that make no such grid."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise TrajspecError(f"steps is {steps!r}, expected how many steps there are: a whole number from 1 up")
    within(eps=eps)
    return (1 - eps) / steps


def within(**given: Any) -> None:
    """Raise TrajspecError unless all of `given` are numbers from 0 to below 1."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise TrajspecError(f"{name} is {value!r}, expected a number from 0 to below 1")


@ts.policy
def mdlm(x, logits, *, steps=128, eps=1e-5):
    """Write each masked position with the chance that its time is now, its token drawn; then all at once (MDLM)."""
    dt, removal = time_step(steps, eps), ts.step(x) >= steps
    token = ts.choose(removal, ts.argmax(logits), ts.sample(x, logits, temperature=1.0))
    rate = dt / (1 - ts.step(x) * dt)  # 1 - s / t from t to s = t - dt, on the grid from 1 to eps
    return ts.unmask(x, token, where=ts.masked(x) & ((ts.uniform(x) < rate) | removal))


def alpha(t: Any, strategy: str, t_on: float, t_off: float, alpha_on: float) -> Any:
    """The share that is written at time t: 1 - t, but in the loop it stands still between t_on and t_off."""
    if strategy != "loop":
        return 1 - t
    late = 1 - t * (1 - alpha_on) / t_off
    return ts.choose(t > t_on, (1 - t) * alpha_on / (1 - t_on), ts.choose(t > t_off, alpha_on, late))


def sigma(t: Any, a: Any, b: Any, weight: Any, strategy: str, eta: float, loop: tuple[float, float]) -> Any:
    """The chance of masking again between shares a and b, a value a position for `conf`."""
    most = (1 - b) / ts.most(a, 1e-30)
    if strategy == "cap":
        return ts.least(most, eta)
    if strategy == "rescale":
        return eta * ts.least(most, 1.0)
    if strategy == "conf":
        return weight * ts.least(most, 1.0)
    if strategy == "loop":
        return ts.choose((t > loop[1]) & ~(t > loop[0]), eta, 0.0)
    return ts.least((b - a) / ts.most(a, 1e-30), 1.0) if strategy == "forward_backward" else 0.0


@ts.policy
def remdm(
    x, logits, sure=ts.history("scores", start=0.0), *, steps=128, eps=1e-5, strategy="cap", eta=0.02, top_p=None,
    t_on=0.55, t_off=0.05, alpha_on=0.9,
):  # fmt: skip
    """Write as MDLM does, and mask again, with chance sigma, what was written before (ReMDM)."""
    if strategy not in STRATEGIES:
        raise TrajspecError(f"strategy is {strategy!r}, expected one of {', '.join(STRATEGIES)}")
    within(eta=eta, t_on=t_on, t_off=t_off, alpha_on=alpha_on)
    if not 0 < t_off < t_on:
        raise TrajspecError(f"t_off is {t_off} and t_on {t_on}, expected 0 < t_off < t_on: time runs from 1 to 0")
    dt, removal = time_step(steps, eps), ts.step(x) >= steps
    if top_p is not None:
        logits = ts.top_p(logits, p=top_p, crossing=False)
    token = ts.choose(removal, ts.argmax(logits), ts.sample(x, logits, temperature=1.0))
    hidden, written = ts.masked(x), ts.free(x) & ~ts.masked(x)
    t = 1 - ts.step(x) * dt
    a, b = (alpha(time, strategy, t_on, t_off, alpha_on) for time in (t, t - dt))
    odds = ts.exp(-sure)  # of the probability that a position's token had when it was written
    back = sigma(t, a, b, odds / ts.most(ts.total(odds, where=written), 1e-30), strategy, eta, (t_on, t_off))
    kept = 1 - (0.0 if strategy == "conf" else back)
    now = hidden & ((ts.uniform(x) < (b - kept * a) / (1 - a)) | removal)
    gone = written & (ts.uniform(x) < back) & ~removal
    y = ts.remask(ts.unmask(x, token, where=now), where=gone)
    sure = ts.choose(now, ts.prob(ts.confidence(logits, token)), sure)
    return ts.advance(x, y, done=removal), sure
