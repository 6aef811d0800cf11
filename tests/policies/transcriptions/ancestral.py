"""MDLM and ReMDM in plain numpy, from their sheets; only the noise is the library's."""

from __future__ import annotations

import numpy as np

from trajspec.ir import noise


def draws(seed, step, length, vocab):
    """A uniform number a position, and Gumbel noise a token."""
    places = np.arange(length)
    u = noise.uniform(np.int64(seed), noise.ROLES["ord"], np.int64(step), places)
    g = noise.gumbel(np.int64(seed), noise.ROLES["tok"], np.int64(step), places[:, None], np.arange(vocab))
    return u, g


def probabilities(model, tokens, mask):
    logits = np.asarray(model(tokens[None], np.arange(len(tokens))[None], None), float)[0]
    logits[:, mask] = -np.inf
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def nucleus(p, share, crossing=False):
    """ReMDM's cut: tokens from the likeliest on while their sum is at most `share`, the first one always."""
    out = np.zeros_like(p)
    for place, row in enumerate(p):
        total = 0.0
        for rank, token in enumerate(np.argsort(-row, kind="stable")):
            before, total = total, total + row[token]
            if rank == 0 or (before if crossing else total) <= share:
                out[place, token] = row[token]
    return out / out.sum(-1, keepdims=True)


def mdlm(model, x, free, seed, steps, eps, mask, wrong=""):
    """The states: move chances t and s, the token drawn, a last call that takes the likeliest everywhere."""
    states = [x.copy()]
    for step in range(steps + 1):
        if not (states[-1] == mask)[free].any():
            break
        x = states[-1].copy()
        p = probabilities(model, x, mask)
        u, g = draws(seed, step, len(x), p.shape[1])
        t = 1 - step * (1 - eps) / steps
        s = t - (1 - eps) / steps
        if wrong == "schedule":
            t, s = t * t, s * s
        for place in np.flatnonzero(x == mask):
            if step == steps:
                x[place] = p[place].argmax()
            elif u[place] < (t - s) / t:
                with np.errstate(divide="ignore"):
                    x[place] = (np.log(p[place]) + g[place]).argmax()
        states.append(x)
    return states


def shares(t, told):
    if told["strategy"] != "loop":
        return 1 - t
    on, off, plateau = told["t_on"], told["t_off"], told["alpha_on"]
    if t > on:
        return (1 - t) * plateau / (1 - on)
    return plateau if t > off else 1 - t * (1 - plateau) / off


def remdm(model, x, free, seed, steps, eps, mask, wrong="", **told):
    """The states: written positions are masked again with chance sigma, masked ones written so as to keep the share."""
    states, conf = [x.copy()], np.full(len(x), -np.inf)
    for step in range(steps + 1):
        x = states[-1].copy()
        p = probabilities(model, x, mask)
        if told.get("top_p") is not None:
            p = nucleus(p, told["top_p"], crossing=wrong == "crossing")
        u, g = draws(seed, step, len(x), p.shape[1])
        t = 1 - step * (1 - eps) / steps
        s = t - (1 - eps) / steps
        a, b = shares(t, told), shares(s, told)
        most = np.inf if a == 0 else (1 - b) / a
        if told["strategy"] == "cap":
            sigma = np.full(len(x), min(told["eta"], most))
        elif told["strategy"] == "rescale":
            sigma = np.full(len(x), told["eta"] * min(1.0, most))
        elif told["strategy"] == "loop":
            sigma = np.full(len(x), told["eta"] if told["t_off"] < t <= told["t_on"] else 0.0)
        elif told["strategy"] == "forward_backward":
            sigma = np.full(len(x), 1.0 if a == 0 else min((b - a) / a, 1.0))
        elif told["strategy"] == "conf":
            weight = np.where(np.isfinite(conf), np.exp(conf), 0.0)
            sigma = weight / max(weight.sum(), 1e-300) * min(1.0, most)
        else:
            sigma = np.zeros(len(x))
        if wrong == "sigma":
            sigma = sigma / 2
        before = x.copy()
        for place in np.flatnonzero(free):
            if before[place] == mask:
                if step == steps:
                    x[place] = p[place].argmax()
                elif u[place] < (b - (1 - sigma[place]) * a) / (1 - a):
                    with np.errstate(divide="ignore"):
                        x[place] = (np.log(p[place]) + g[place]).argmax()
                if x[place] != mask:
                    conf[place] = -p[place, x[place]]
            elif step < steps and u[place] < sigma[place]:
                x[place], conf[place] = mask, -np.inf
        states.append(x)
    return states
