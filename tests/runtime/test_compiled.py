"""Lowered, compiled and captured steps do what eager ones do, without reading the device, for every policy."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

import trajspec as ts
from tests.policies.rules import OF_TOKENS
from trajspec.ir import TrajspecError
from trajspec.policies import POLICIES, get_policy
from trajspec.prepare import prepare
from trajspec.runtime import compiled as module
from trajspec.runtime.capture import Captured
from trajspec.runtime.compiled import Compiled, CompiledRounds
from trajspec.runtime.loop import run
from trajspec.runtime.lower import lower

FURTHER = {name for name, policy in POLICIES.items() if policy.plan().models}
PROMPTS = [[1, 2, 3, 4, 5], [6, 7], [8] * 9]
SHORT = {"gen_length": 16, "block_length": 8, "threshold": 0.3}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return ts.load_model("tests/goldens/tiny_llada")


@pytest.fixture(autouse=True)
def fresh():
    module._made.clear()
    torch._dynamo.reset()
    counters.clear()


def job_of(model, prompts=PROMPTS, **options):
    policy = get_policy(options.get("policy", "fastdllm_threshold"))
    told = {name: value for name, value in (SHORT | options).items() if name in policy.settings or name not in SHORT}
    return prepare(model, prompts, told | {"gen_length": SHORT["gen_length"]})


def outcome(job, steps=None):
    given = None
    if steps is not None:
        given = lambda plan: steps  # noqa: E731
        given.padded = module.length_of
    rows, cost = run(job.plan, job.model, [row.canvas for row in job.rows], pad_id=job.model.pad_id, compiler=given)
    return [row.path for row in rows], cost


@pytest.mark.parametrize("name", sorted(set(OF_TOKENS) - FURTHER))
def test_every_policy_lowers_and_runs_as_one_function(network, name):
    job = job_of(network, policy=name)
    steps = Compiled(job.plan, backend="none")
    assert f"def body(ask, prompt, {job.plan.carried_names[0]}" in ts.step_source(job.plan)
    paths, cost = outcome(job, steps)
    expected, calls = outcome(job)
    assert paths == expected and cost.calls == calls.calls and len(steps.graphs) > 0


@pytest.mark.parametrize("view", ["full", "prefix", "dual", "block_causal"])
def test_no_step_reads_the_device(network, view):
    """A tape refuses to read; and what it replays is what runs."""
    job = job_of(network, cache=view, policy="fastdllm_threshold")
    steps = Compiled(job.plan, "none", "tape")
    assert outcome(job, steps)[0] == outcome(job)[0]
    # The prefix view's window has no fixed width, and runs eagerly.
    assert len(steps._captured[1]) >= 1


@pytest.mark.parametrize("view", ["full", "dual"])
def test_blocks_move_and_rows_end_without_another_graph(network, view):
    steps = None
    for prompts in (PROMPTS, [[3, 1], [2] * 7, [5], [9] * 11]):
        job = job_of(network, prompts, cache=view)
        steps = steps or Compiled(job.plan, backend="eager")
        assert outcome(job, steps)[0] == outcome(job)[0]
        seen = counters["stats"]["unique_graphs"]
        assert seen == len(steps.graphs) <= 2 * (2 if view == "dual" else 1) + 2
    before = counters["stats"]["unique_graphs"]
    assert outcome(job, steps)[0] == outcome(job)[0] and counters["stats"]["unique_graphs"] == before


def test_finished_rows_add_no_calls(network):
    job = job_of(network, cache="dual")
    steps = Compiled(job.plan, backend="none")
    paths, cost = outcome(job, steps)
    alone = [len(path) for path in paths]
    assert cost.rows == sum(alone) and min(alone) < max(alone) <= cost.calls


@pytest.mark.parametrize(("view", "draft", "lookahead"), [("dual", "tree", "exact"), ("full", "chain", "none")])
def test_rounds_are_two_graphs(network, view, draft, lookahead):
    job = job_of(network, [PROMPTS[0]], cache=view, draft=draft, lookahead=lookahead, nodes=4)
    steps = CompiledRounds(job.plan, backend="eager")
    paths, cost = outcome(job, steps)
    expected, calls = outcome(job)
    assert paths == expected and cost.calls == calls.calls and cost.rows == calls.rows
    before = counters["stats"]["unique_graphs"]
    assert before == len(steps.graphs)
    assert outcome(job, steps)[0] == expected and counters["stats"]["unique_graphs"] == before


@pytest.mark.parametrize("draft", ["tree", "chain", "frozen", "ranks"])
@pytest.mark.parametrize("view", ["full", "dual", "block_causal", "prefix"])
def test_rounds_of_a_batch(network, draft, view):
    if draft == "ranks":
        draft = ts.calibrate(network, PROMPTS, **SHORT)
    job = job_of(network, cache=view, draft=draft, nodes=4)
    (paths, cost), (expected, calls) = outcome(job, CompiledRounds(job.plan, backend="none")), outcome(job)
    # Canvases are longer by padding.
    assert paths == expected and cost.positions >= calls.positions
    assert (cost.calls, cost.rows, cost.kinds) == (calls.calls, calls.rows, calls.kinds)


def test_inductor(network):
    options = SHORT | {"policy": "fastdllm_threshold", "cache": "dual"}
    alone = ts.decode(network, PROMPTS[:1], **options)[0]
    ours = ts.decode(network, PROMPTS[:1], compile=True, **options)[0]
    assert ours.path == alone.path and ours.calls == alone.calls
    assert ours.compile_seconds > 0 == alone.compile_seconds and ours.manifest["compile"] is True
    again = ts.decode(network, PROMPTS[:1], compile=True, **options)[0]
    assert again.path == alone.path and again.compile_seconds == 0.0


def test_a_bare_denoiser_is_refused():
    from tests.runtime.test_ahead import Steady

    with pytest.raises(TrajspecError, match="compile=True needs a network in torch"):
        ts.infill(Steady(0), [[5] * 4], policy="llada_low_confidence", compile=True)


def test_what_cannot_be_lowered_is_refused(network):
    plan = job_of(network, draft="tree").plan
    for make in (lower, ts.step_source):
        with pytest.raises(TrajspecError, match="give its base fastdllm_threshold"):
            make(plan)


# A captured step


def adding(x, kept):
    kept.add_(x)
    return (x * 2).reshape(-1) + kept.sum()


def test_a_tape_replays_into_the_same_storages():
    kept = torch.zeros(2, 2)
    step = Captured(lambda x: adding(x, kept), (torch.ones(2, 2),), kind="tape", state=lambda: [kept])
    assert kept.sum() == 0  # the warm-up is undone
    first = step(torch.ones(2, 2)).clone()
    second = step(torch.full((2, 2), 3.0)).clone()
    assert first.tolist() == [6.0] * 4 and second.tolist() == [22.0] * 4 and kept.tolist() == [[4.0, 4.0]] * 2


@pytest.mark.parametrize(
    "flaw",
    [
        lambda x: x * float(x.sum()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x if bool((x > 0).any()) else -x,
        lambda x: torch.masked_select(x, x > 0),
    ],
)
def test_a_tape_refuses_reads_of_the_device(flaw):
    with pytest.raises(TrajspecError, match="may not read the device"):
        Captured(flaw, (torch.ones(3),), kind="tape")


def test_a_tape_refuses_a_buffer_that_is_replaced():
    held = [torch.zeros(2)]

    def step(x):
        held[0] = held[0] + x
        return held[0]

    with pytest.raises(TrajspecError, match="put a new tensor in the place"):
        Captured(step, (torch.ones(2),), kind="tape", state=lambda: held)


def test_a_captured_step_refuses_other_arguments():
    step = Captured(lambda x, n: x * n, (torch.ones(3), 2), kind="tape")
    with pytest.raises(TrajspecError, match=r"float32 \[4\] where it was captured with"):
        step(torch.ones(4), 2)
    with pytest.raises(TrajspecError, match="got 3 where it was captured with 2"):
        step(torch.ones(3), 3)
