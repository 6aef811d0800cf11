"""Every deterministic policy, speculated with the tree drafter, withstands the checker; a broken one does not."""

from __future__ import annotations

import pytest

from trajspec.exact.certificate import Level, certify
from trajspec.exact.plan_check import check_plan
from trajspec.ir import TrajspecError
from trajspec.passes import speculate
from trajspec.policies import POLICIES

SMALL = {"block_length": 2, "threshold": 0.5, "steps": None, "low_threshold": 0.2, "small_block_size": 2}


def small(policy):
    """The policy with settings that make several steps of the checker's short canvases."""
    told = {name: value for name, value in SMALL.items() if name in policy.settings}
    if policy.settings.get("steps") is not None:
        told["steps"] = 4  # the linear schedule has no "one a step"
    return policy.bind(**told)


def speculated(policy):
    try:
        return speculate(policy, "tree")
    except TrajspecError:
        return None  # asks a further model, or shows it logits


DETERMINISTIC = [
    name
    for name, policy in POLICIES.items()
    if (plan := speculated(small(policy))) is not None and not certify(plan).noise
]


def test_the_zoo_is_there():
    assert len(DETERMINISTIC) >= 20


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_no_counterexample(name):
    policy = small(POLICIES[name])
    plan = speculate(policy, "tree")
    assert certify(plan).plan_level is Level.BITWISE
    verdict = check_plan(plan, policy.plan(), examples=25, lengths=(2, 5), near_ties=False, seed=7)
    assert not verdict.refuted, str(verdict)
    assert verdict.drafted > 0


@pytest.mark.parametrize("name", ["fastdllm_threshold", "llada_low_confidence", "klass"])
def test_a_flaw_is_found(name):
    """Control: the tree's states are accepted by their tokens alone."""
    policy = small(POLICIES[name])
    plan = speculate(policy, "tree", accept="tokens")
    verdict = check_plan(plan, policy.plan(), examples=400, lengths=(2, 4), near_ties=False, seed=7)
    assert verdict.refuted, str(verdict)
