"""Bases, drafters and runs that the tests of certificates share: any states as drafts, any small model."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np

import trajspec as ts
from trajspec.exact.models import Table, read_key, unletters
from trajspec.exact.tabular import HashModel
from trajspec.ir.ahead import Draft
from trajspec.ir.canvas import Canvas, canvas
from trajspec.ir.drafter import Drafter
from trajspec.ir.interpret import Run, run
from trajspec.ir.op import op
from trajspec.ir.plan import Plan
from trajspec.passes import speculate
from trajspec.policies import POLICIES

RELAXED = {"accept": "relaxed", "strata": (0.6,)}

#: What the drafters below propose; set by `drafting`.
PROPOSED: dict[str, Any] = {}


@op("proposed(x: canvas, held: held) -> draft: draft")
def proposed(x: Canvas, held: Any) -> Draft:
    """The states of PROPOSED, whatever the canvas is."""
    states = PROPOSED["states"](x)
    tokens = np.array([state[0] for state in states], np.int64).reshape(len(states), x.tokens.shape[-1])
    return Draft(
        tokens, np.array([state[1] for state in states], bool).reshape(tokens.shape), np.ones(len(states), bool)
    )


PROPOSE = Drafter(proposed)


def written(*states: str) -> Any:
    """A drafter of states written as `a_b`."""

    def draft(x: Canvas) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = [np.array(unletters(state)) for state in states]
        return [(np.where(row < 0, x.mask_id, row), row < 0) for row in rows]

    return draft


def adversary(seed: int, path: list[Canvas]) -> Any:
    """A drafter of states of the base's own path, some of them altered: written over, or with mask ids."""
    chance = random.Random(seed)

    def draft(x: Canvas) -> list[tuple[np.ndarray, np.ndarray]]:
        states = []
        for _ in range(chance.randint(0, 4)):
            state = chance.choice(path)
            tokens, masked = state.tokens.copy(), state.masked.copy()
            for place in np.flatnonzero(x.free):
                if chance.random() < 0.15:
                    tokens[place], masked[place] = chance.randrange(x.allowed.shape[-1]), chance.random() < 0.2
            states.append((tokens, masked))
        return states

    return draft


@ts.policy
def adaptive(x, logits, k=ts.history("count", start=1), *, block_length=None):
    """One token first, then two, and so on."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, k, where=ts.window(x, size=block_length))), k + 1


@ts.policy
def counting(x, logits, k=ts.history("count", start=1), *, block_length=None):
    """Counts, and never looks at the count."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, 1, where=ts.window(x, size=block_length))), k + 1


@ts.policy
def drawn(x, logits, *, block_length=None):
    """Draws the leftmost token."""
    token = ts.sample(x, logits, temperature=1.0)
    return ts.unmask(x, token, where=ts.first(1, where=ts.window(x, size=block_length)))


@ts.policy
def timed(x, logits, *, steps=1):
    """One token a step, and so many steps."""
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))
    return ts.advance(x, y, done=ts.step(x) + 1 >= steps)


@ts.policy
def editing(x, logits, *, block_length=None):
    """One token a step, and what is sure is written again."""
    token, conf = ts.score(logits)
    y = ts.unmask(x, token, where=ts.top(conf, 1, where=ts.window(x, size=block_length)))
    return ts.edit(y, token, where=ts.free(x) & ~ts.masked(x) & (conf > 0.6))


BASES: dict[str, Any] = {
    "one": POLICIES["llada_low_confidence"],  # one token a step, no counter, no history
    "quota": POLICIES["llada_low_confidence"](steps=3),
    "warm": POLICIES["llada_low_confidence"](temperature=1.0),
    "order": POLICIES["llada_random"],
    "threshold": POLICIES["fastdllm_threshold"](threshold=0.6),
    "klass": POLICIES["klass"],
    "adaptive": adaptive,
    "counting": counting,
    "drawn": drawn,
    "timed": timed,
    "editing": editing,
}


@cache
def based(base: str, view: str = "full", block_length: int | None = 2) -> Plan:
    policy = BASES[base]
    if base == "timed":
        return policy.plan(view)
    return policy(block_length=block_length).plan(view)


def planned(base: str, view: str = "full", block_length: int | None = 2, **settings: Any) -> Plan:
    return speculate(based(base, view, block_length), PROPOSE, **settings)


class Kept(HashModel):
    """A model with kept keys: outside of the window it answers, everything comes from the canvas they were made of."""

    def stale(self, tokens: Any, positions: Any, reference: Any, window: Any) -> np.ndarray:
        both = np.concatenate([np.where(window, tokens, reference), reference])
        return self(both[None], np.concatenate([positions, positions + 1000])[None])[0, : len(tokens)]


def states(result: Run) -> list[list[int]]:
    """The path, -1 where masked."""
    return [np.where(state.masked, -1, state.tokens).tolist() for state in result.path]


def replayed(
    base: Plan,
    plan: Plan,
    text: str,
    rows: dict[str, Any],
    drafts: list[str],
    seed: int = 0,
    stop: tuple[int, ...] = (),
) -> tuple[Any, Any]:
    state = unletters(text)
    table = Table(tuple((read_key(key, len(state), 2), row) for key, row in rows.items()))
    x = canvas([2] * len(state), [token < 0 for token in state], vocab_size=3, mask_id=2, seed=seed, stop=stop)
    PROPOSED["states"] = written(*drafts)
    return run(base, table.build(2), x), run(plan, table.build(2), x)


def compared(base: str, view: str, settings: dict[str, Any], seed: int) -> tuple[bool, Run]:
    """Whether base and speculated plan go through the same states on a random model, canvas and drafter."""
    chance = random.Random(seed)
    vocab, prompt = chance.choice((3, 4)), 0 if view == "block_causal" else chance.choice((0, 0, 1))
    x = canvas(
        [0] * prompt, gen_length=chance.randint(2, 5), vocab_size=vocab, mask_id=vocab - 1, seed=seed,
        stop=chance.choice(((), (1,))),
    )  # fmt: skip
    model = (HashModel if seed % 3 else Kept)(seed, vocab, chance.choice((1, 2, 4, 50)))
    want = run(based(base, view), model, x)
    PROPOSED["states"] = adversary(seed, want.path)
    got = run(planned(base, view, **settings), model, x)
    return states(want) == states(got), got
