"""The same as a plan: the base `autoregressive`, speculated by a drafter that asks a diffusion model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trajspec as ts
from tests.completion.test_targets import problems
from trajspec.completion import load_target
from trajspec.exact.rules import Level
from trajspec.passes import speculate
from trajspec.policies import POLICIES
from trajspec.runtime.models.causal import Autoregressive

TINY = ts.load_model("tiny")


@ts.drafter
def by_diffusion(x, logits, *, nodes=8):
    """One trajectory: what a diffusion model would write at the first masks, from one call of it."""
    shown = torch.from_numpy(np.where(x.masked, TINY.mask_id, x.tokens))[None]
    said = TINY(shown, torch.arange(shown.shape[1])[None])[0].double()
    said[:, list(TINY.banned_ids)] = -torch.inf
    places = np.flatnonzero(x.masked)[: nodes - 1]
    return [[{int(place): int(said[place].argmax())} for place in places]]


@pytest.fixture(scope="module")
def target():
    return load_target("tiny-ar")


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 20}], ids=str)
def test_rounds_of_the_plan_are_those_of_the_target(target, options):
    model = Autoregressive(target.network)
    for number, prompt in enumerate(problems(4, skip=50)):
        ids = [*target.codec.prefix, *target.codec.encode(target.codec.chat(prompt))]
        told = {"gen_length": 32, "seed": number, **options}
        plan = ts.decode(model, [ids], policy="autoregressive", draft=by_diffusion, nodes=8, eos_id=1, **told)[0]
        rounds = ts.decode(target, [ids], drafter=TINY, draft_length=7, **told)[0]
        count = rounds.answer_tokens_with_eos
        assert plan.token_ids[:count] == rounds.token_ids[:count]
        assert plan.path[: rounds.base_steps] == rounds.path
        if not options:
            # A drafted state is a row of the plan's call, and an entry of the only row of the target's.
            assert plan.calls == rounds.calls and plan.rows > rounds.rows == rounds.calls
        assert plan.certificate["level"] == rounds.certificate["level"] == "BITWISE"


def test_its_certificate_and_the_checker_agree():
    plan = speculate(POLICIES["autoregressive"], by_diffusion)
    assert ts.certify(plan).plan_level is Level.BITWISE
    verdict = ts.check(plan, against=POLICIES["autoregressive"], examples=60, own=False, seed=3)
    assert not verdict.refuted and verdict.accepted > 0
