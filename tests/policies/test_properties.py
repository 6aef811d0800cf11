"""What holds for every policy on every model: one meaning in numpy and torch, rows that do not see each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import trajspec as ts
from tests.policies.rules import FIXED, OF_TOKENS, PARAMETERS, runs, shelves
from tests.strategies import seeds
from tests.toys import InTorch
from trajspec.exact.tabular import HashModel
from trajspec.ir import interpret
from trajspec.ir.canvas import Canvas
from trajspec.ir.opset.write import stopped
from trajspec.policies import POLICIES
from trajspec.runtime.batch import stack, unstack
from trajspec.runtime.denoiser import FromNumpy
from trajspec.runtime.loop import StepEvent, run
from trajspec.runtime.step import start, take

# Examples are fixed, so the counts of what they met can be asserted at the end of each test.


def often(count: int) -> settings:
    """The same `count` examples at every run."""
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def same_row(left: Canvas, right: Canvas) -> None:
    """AssertionError unless two numpy rows are equal in every field."""
    for name in Canvas._fields:
        assert np.array_equal(getattr(left, name), getattr(right, name)), name


def facts(met: Counter, row: Canvas, path: list[Canvas], model: Any) -> None:
    """Note which of the interesting situations a run met."""
    end = path[-1]
    met["several steps"] += len(path) > 2
    met["ended early"] += bool(stopped(end)[0]) and bool(row.masked.sum() > 1) and bool(end.masked.any())
    met["mask id given"] += bool((row.tokens[~row.free] == row.mask_id).any())
    met["several at once"] += any((a.masked & ~b.masked).sum() > 1 for a, b in zip(path, path[1:], strict=False))
    met["filled in"] += int(row.start[0]) == 0 and bool((~row.free).any())
    met["masked again"] += any((~a.masked & b.masked).any() for a, b in zip(path, path[1:], strict=False))
    met["allowed"] += row.allowed.shape[0] > 1
    met["ties"] += len(model.rows) <= 3


def go_the_same_way(case: tuple, met: Counter) -> None:
    """AssertionError unless numpy and torch pass through the same states at the same cost."""
    model, policy, (row,) = case
    if not policy.settings.get("temperature"):
        model.tie_tokens()
    plan = policy.plan()
    events: list[StepEvent] = []
    seen: list[tuple[Canvas, Any]] = []
    reference = interpret.run(plan, model, row, on_step=lambda step: seen.append((step.after, step.values)))
    (ours,), cost = run(plan, FromNumpy(model), [row], on_step=events.append)
    assert len(events) == len(seen)
    for (after, values), event in zip(seen, events, strict=True):
        same_row(after, unstack(event.after, 0))
        for value in plan.step[1:]:
            np.testing.assert_allclose(np.asarray(event.values[value])[0], values[value], rtol=1e-9, atol=1e-9)
    assert (cost.calls, cost.rows, cost.positions) == (reference.calls, reference.rows, reference.positions)
    assert ours.cost == cost
    same_row(ours.canvas, reference.canvas)
    met[policy.name] += 1
    facts(met, row, reference.path, model)


def test_numpy_and_torch_go_the_same_way():
    met: Counter = Counter()

    for name in OF_TOKENS:

        @often(16)
        @given(case=runs(names=(name,), models=shelves()))
        def compare(case):
            go_the_same_way(case, met)

        compare()
    assert not [name for name in OF_TOKENS if not met[name]]
    for fact in ("several steps", "ended early", "mask id given", "several at once", "filled in", "allowed", "ties"):
        assert met[fact] >= 5, (fact, met)


def test_numpy_and_torch_mask_the_same_again():
    met: Counter = Counter()

    @often(50)
    @given(model=shelves(), threshold=st.sampled_from([0.3, 0.5, 0.6]), seed=seeds)
    def compare(model, threshold, seed):
        policy = POLICIES["wino"].bind(threshold=threshold, threshold_back=1.0, block_length=None)
        row = ts.canvas([], gen_length=11, vocab_size=model.vocab_size, mask_id=model.mask_id, seed=seed)
        go_the_same_way((model, policy, [row]), met)

    compare()
    assert met["masked again"] >= 3, met


def finished(model: Any, policy: Any, row: Canvas) -> tuple[Any, tuple[Any, ...], dict]:
    """Plan, carried values and inputs at the end of a run in torch."""
    plan = policy.plan()
    bound = {plan.inputs[0]: stack([row])}
    carried = start(plan, bound)
    for _ in range(200):
        if carried[0].done.all():
            return plan, carried, bound
        carried = take(plan, FromNumpy(model), bound, carried, True).carried
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_step_on_a_finished_row_changes_nothing(name):
    @often(8)
    @given(case=runs(names=(name,)))
    def compare(case):
        model, policy, (row,) = case
        plan, carried, bound = finished(model, policy, row)
        outcome = take(plan, FromNumpy(model), bound, carried, True)
        assert outcome.done.all()
        assert not outcome.changed.any()
        for old, new in zip(carried, outcome.carried, strict=True):
            for one, other in zip(
                *(value if isinstance(value, Canvas) else (value,) for value in (old, new)), strict=True
            ):
                assert torch.equal(one, other)
        # In numpy nothing is asked either.
        plain = (unstack(carried[0], 0), *(value[0].numpy() for value in carried[1:]))
        kept, _ = interpret.advance(plan, {plan.inputs[0]: plain[0]}, plain, None)
        assert all(old is new for old, new in zip(plain, kept, strict=True))

    compare()


def test_a_step_on_an_unfinished_row_changes_something():
    # The negative control of the test above.
    policy = POLICIES["fastdllm_threshold"]
    model, plan = FromNumpy(HashModel(1, 3, 1)), policy.plan()
    row = ts.canvas([0], gen_length=2, vocab_size=3, mask_id=2)
    bound = {plan.inputs[0]: stack([row])}
    assert take(plan, model, bound, start(plan, bound), True).changed.all()


def test_runs_end_and_leave_what_is_given():
    met: Counter = Counter()

    @often(150)
    @given(case=runs())
    def compare(case):
        model, policy, (row,) = case
        (ours,), _ = run(policy.plan(), FromNumpy(model), [row])
        end = ours.canvas
        assert np.array_equal(end.tokens[~row.free], row.tokens[~row.free])
        assert not end.masked[~row.free].any()
        assert end.done.all()
        written = row.free & ~end.masked
        assert (end.tokens[written] != model.mask_id).all()
        assert not end.masked.any() or stopped(end)[0]
        for position in np.flatnonzero(written):
            assert row.allowed[min(position, len(row.allowed) - 1), end.tokens[position]]
        met["mask id given"] += bool((row.tokens[~row.free] == model.mask_id).any())
        met["ended early"] += bool(end.masked.any())
        met["filled in"] += int(row.start[0]) == 0 and bool(row.free.any() and not row.free.all())

    compare()
    assert all(met[fact] >= 5 for fact in ("mask id given", "ended early", "filled in")), met


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_batch_equals_its_single_runs(dtype):
    met: Counter = Counter()

    @often(60)
    @given(case=runs(3), order=st.permutations(range(3)))
    def compare(case, order):
        model, policy, rows = case
        plan, torch_model = policy.plan(), InTorch(model, dtype)
        alone = [run(plan, torch_model, [row])[0][0] for row in rows]
        together, cost = run(plan, torch_model, [rows[number] for number in order])
        for number, ours in zip(order, together, strict=True):
            one = alone[number]
            same_row(ours.canvas._replace(allowed=0, stop=0), one.canvas._replace(allowed=0, stop=0))
            assert ours.path == one.path
            assert (ours.cost.calls, ours.cost.rows) == (one.cost.calls, one.cost.rows)
        assert cost.calls == max(one.cost.calls for one in alone)
        lengths = {len(row.tokens) for row in rows}
        met["padding"] += len(lengths) > 1
        met["different ends"] += len({one.cost.calls for one in alone}) > 1
        met["ended early"] += any(one.canvas.masked.any() for one in alone)
        met["noise"] += any("temp" in name and value for name, value in policy.settings.items())
        met["ties"] += model._values.size <= 2
        met["allowed differs"] += len({row.allowed.shape[0] > 1 for row in rows}) > 1

    compare()
    assert all(met[fact] >= 5 for fact in ("padding", "different ends", "noise", "ties", "allowed differs")), met
    assert met["ended early"]


def test_the_batch_test_sees_a_leak():
    # A model that looks at padding gives other tokens: the comparison above would notice.
    class Leaky(InTorch):
        def __call__(self, tokens, positions, visible):
            return super().__call__(tokens, positions, None)

    plan, model = POLICIES["fastdllm_threshold"].plan(), Leaky(HashModel(1, 5, 50))
    rows = [ts.canvas([1] * n, gen_length=4, vocab_size=5, mask_id=4) for n in (1, 4)]
    together, _ = run(plan, model, rows)
    assert together[0].path != run(plan, model, rows[:1])[0][0].path


WARM = tuple(name for name, policy in POLICIES.items() if "temperature" in policy.settings)


def test_seeds_alone_decide_the_noise():
    met: Counter = Counter()

    @often(40)
    @given(case=runs(2, WARM), seed=st.integers(0, 2**63))
    def compare(case, seed):
        model, policy, rows = case
        random = policy.name in ("llada_random", "dream_origin")
        assume(random or any("temp" in name and value for name, value in policy.settings.items()))
        plan = policy.plan()
        states = torch.get_rng_state(), np.random.get_state()[1].copy()
        rows = [row._replace(seed=np.asarray([np.uint64(seed).astype(np.int64)])) for row in rows]
        first, _ = run(plan, FromNumpy(model), rows)
        second, _ = run(plan, FromNumpy(model), rows[::-1])
        assert [one.path for one in first] == [one.path for one in second[::-1]]
        other, _ = run(plan, FromNumpy(model), [row._replace(seed=row.seed + 1) for row in rows])
        met["other seed, other run"] += [one.path for one in first] != [one.path for one in other]
        met["runs"] += 1
        assert torch.equal(states[0], torch.get_rng_state())
        assert np.array_equal(states[1], np.random.get_state()[1])

    compare()
    assert met["runs"] >= 15
    assert met["other seed, other run"] >= met["runs"] // 3, met


def test_every_parameter_is_drawn():
    drawn = {*PARAMETERS, *FIXED}
    assert {setting for name in OF_TOKENS for setting in POLICIES[name].settings} <= drawn
