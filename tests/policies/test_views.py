"""What holds for every policy with a window in every cached view: one meaning, rows alone and together, true ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trajspec as ts
from tests.policies.rules import rows, rules
from tests.strategies import seeds, small_models
from trajspec.exact.tabular import FunctionModel
from trajspec.ir import Canvas, Plan, Policy, TrajspecError, interpret
from trajspec.ir.kinds import CONF, SCORES
from trajspec.ir.opset.read import block_numbers
from trajspec.ir.opset.write import stopped
from trajspec.ir.views import VIEWS
from trajspec.policies import POLICIES
from trajspec.policies.compat import COMPAT
from trajspec.runtime.batch import stack, unstack
from trajspec.runtime.denoiser import Bare, FromNumpy
from trajspec.runtime.loop import StepEvent, run
from trajspec.runtime.step import cached_forward, start, take
from trajspec.runtime.views import Kept

# Examples are fixed, so the counts of what they met can be asserted at the end of each test.

WITHOUT = {
    "wino", "dream_maskgit_plus", "dream_topk_margin", "dream_entropy", "dream_origin", "dpad", "apd", "mdlm", "remdm",
    "diffusion_gemma", "autoregressive",
}  # fmt: skip
WINDOWED = tuple(name for name in POLICIES if name not in WITHOUT)


def often(count: int) -> settings:
    """The same `count` examples at every run."""
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def long_rows(draw: st.DrawFn, model: Any) -> Canvas:
    """A row of several blocks: a continuation, or masks with a few tokens given in front of them and among them."""
    ids = [token for token in range(model.vocab_size) if token != model.mask_id]
    told = {"vocab_size": model.vocab_size, "mask_id": model.mask_id, "seed": draw(seeds)}
    prompt, length = draw(st.lists(st.sampled_from(ids), max_size=3)), draw(st.integers(5, 8))
    if draw(st.booleans()):
        given = {*range(len(prompt)), draw(st.integers(0, length - 1))}
        return ts.canvas([ids[0]] * length, [place not in given for place in range(length)], **told)
    return ts.canvas(prompt, gen_length=length, stop=draw(st.sampled_from([(), (), (ids[0],)])), **told)


@st.composite
def cases(
    draw: st.DrawFn, view: str, count: int = 1, names: tuple[str, ...] = WINDOWED
) -> tuple[Any, Policy, list[Canvas]]:
    """A model, a policy with a window and no further query, and rows that the view can decode."""
    model, policy = draw(small_models()), draw(rules(names))
    if "threshold" in policy.settings:
        policy = policy.bind(threshold=draw(st.sampled_from([0.3, 0.9])))
    if policy.settings["block_length"] == 1:
        policy = policy.bind(block_length=3)  # every call would be a refresh
    if "cfg_scale" in policy.settings:
        policy = policy.bind(cfg_scale=0.0)
    found = [draw(rows(model)) if draw(st.integers(0, 3)) == 0 else draw(long_rows(model)) for _ in range(count)]
    if view == "block_causal" or count > 1:
        policy = policy.bind(block_length=draw(st.integers(2, 4)))
    if view == "block_causal":
        found = [row._replace(start=np.asarray([0])) for row in found]
    return model, policy, found


def bare(model: Any) -> Bare:
    return Bare(FromNumpy(model))


def same(left: Canvas, right: Canvas) -> bool:
    """Whether two numpy rows hold the same tokens and masks."""
    return np.array_equal(left.tokens, right.tokens) and np.array_equal(left.masked, right.masked)


def same_row(left: Canvas, right: Canvas) -> None:
    """AssertionError unless two numpy rows are equal in every field."""
    for name in Canvas._fields:
        assert np.array_equal(getattr(left, name), getattr(right, name)), name


def nearly_tied(values: dict[Any, Any]) -> bool:
    """Whether two scores of a step differ by rounding alone: two rows of the same logits in another order."""
    for value, data in values.items():
        if value.kind in (CONF, SCORES):
            known = np.unique(data[np.isfinite(data)])
            if (np.diff(known) < 1e-12 * np.maximum(np.abs(known[1:]), 1)).any():
                return True
    return False


def go_the_same_way(model: Any, policy: Policy, row: Canvas, view: str) -> tuple[list[Canvas], Any]:
    """AssertionError unless numpy and torch pass through the same states; the path and the cost of it.

    Where rounding decides between two scores the two may part, and what comes after is not compared.
    """
    plan = policy.plan(view)
    events: list[StepEvent] = []
    seen: list[tuple[Canvas, Any]] = []
    reference = interpret.run(plan, model, row, on_step=lambda step: seen.append((step.after, step.values)))
    (ours,), cost = run(plan, bare(model), [row], on_step=events.append)
    for (after, values), event in zip(seen, events, strict=False):
        mine = unstack(event.after, 0)
        if not same(after, mine) and nearly_tied(values):
            return reference.path, cost
        same_row(after, mine)
        for value in plan.step[1:-1]:  # the last is the cache
            np.testing.assert_allclose(np.asarray(event.values[value])[0], values[value], rtol=1e-9, atol=1e-9)
        for kept, theirs in zip(event.values[plan.step[-1]], values[plan.step[-1]], strict=True):
            assert np.array_equal(kept[0], theirs)
    assert len(events) == len(seen)
    assert cost.kinds.get("step", 0) + cost.kinds.get("refresh", 0) == reference.calls
    assert cost.calls == cost.rows
    assert ours.cost == cost
    same_row(ours.canvas, reference.canvas)
    return reference.path, cost


@pytest.mark.parametrize("view", VIEWS)
def test_numpy_and_torch_go_the_same_way(view):
    met: Counter = Counter()

    def compare(case):
        model, policy, (row,) = case
        path, cost = go_the_same_way(model, policy, row, view)
        size = policy.settings["block_length"]
        met[policy.name] += 1
        met["refreshed again"] += cost.kinds.get("refresh", 0) > 1
        met["window calls"] += cost.kinds.get("step", 0) > 0
        met["prefill"] += cost.kinds.get("prefill", 0)
        met["store"] += cost.kinds.get("store", 0)
        met["short last block"] += size is not None and int((block_numbers(row, size) >= 0).sum()) % size > 0
        met["filled in"] += int(row.start[0]) == 0 and bool((~row.free).any())
        met["ended early"] += bool(stopped(path[-1])[0]) and bool(path[-1].masked.any())
        met["mask id given"] += bool((row.tokens[~row.free] == row.mask_id).any())
        met["ties"] += model._values.size <= 2

    for name in WINDOWED:
        often(5)(given(case=cases(view, names=(name,)))(compare))()
    kinds = ("prefill", "store") if view == "block_causal" else ("refreshed again",)
    for fact in (*kinds, "window calls", "short last block", "filled in", "mask id given", "ties"):
        assert met[fact] >= 2, (fact, met)
    assert met["ended early"], met


def ends(plan: Plan, model: Any, row: Canvas, within: int) -> bool:
    """Whether a run is over after `within` steps: where the mask id may be predicted it may go round in circles."""

    class Enough(Exception):
        pass

    def count(step: Any) -> None:
        if step.index >= within:
            raise Enough

    try:
        interpret.run(plan, model, row, on_step=count)
    except (Enough, TrajspecError):
        return False
    return True


QUIRKS = {names: policy for names, policy in COMPAT.items() if names[0] in WINDOWED and "eos" not in names[1]}


@pytest.mark.parametrize("names", QUIRKS)
def test_compat_policies_go_the_same_way(names):
    met: Counter = Counter()

    @often(5)
    @given(
        model=small_models(), size=st.integers(2, 3), blocks=st.integers(2, 3), prompt=st.integers(0, 3),
        threshold=st.sampled_from([0.0, 0.3, 0.9]), view=st.sampled_from(["prefix", "dual"]),
    )  # fmt: skip
    def compare(model, size, blocks, prompt, threshold, view):
        told = {"block_length": size, "steps": blocks * size, "threshold": threshold, "block_steps": size}
        policy = QUIRKS[names]
        policy = policy.bind(**{name: value for name, value in told.items() if name in policy.settings})
        prompt = [int(model.mask_id == 0)] * prompt
        row = ts.canvas(prompt, gen_length=size * blocks, vocab_size=model.vocab_size, mask_id=model.mask_id)
        if policy.predict_mask and not ends(policy.plan(view), model, row, within=100):
            met["went round in circles"] += 1
            return
        _, cost = go_the_same_way(model, policy, row, view)
        met["refreshed again"] += cost.kinds["refresh"] > 1

    compare()
    assert met["refreshed again"], met


def blocks_of(plan: Plan, event: StepEvent) -> set[tuple[int, ...]]:
    """The first and last position of the block that each row looks at in one call."""
    forward = cached_forward(plan)
    where = event.values[forward.args[2]]
    found = set()
    for number in range(len(where)):
        places = event.before.position[number][where[number]]
        found.add((int(places[0]), int(places[-1])))
    return found


@pytest.mark.parametrize("view", VIEWS)
def test_a_batch_equals_its_single_runs(view):
    met: Counter = Counter()

    def compare(case, order):
        model, policy, found = case
        plan, events = policy.plan(view), []
        alone = [run(plan, bare(model), [row])[0][0] for row in found]
        together, cost = run(plan, bare(model), [found[number] for number in order], on_step=events.append)
        for number, ours in zip(order, together, strict=True):
            one = alone[number]
            same_row(ours.canvas._replace(allowed=0, stop=0), one.canvas._replace(allowed=0, stop=0))
            assert ours.path == one.path
            assert (ours.cost.calls, ours.cost.rows, ours.cost.kinds) == (
                one.cost.calls, one.cost.rows, one.cost.kinds
            )  # fmt: skip
        # Two steps a round at most, of different rows, and every live row takes part in one.
        rounds: dict[int, list[int]] = {}
        for event in events:
            rounds.setdefault(event.step, []).extend(event.rows)
        steps = {number: len(alone[number].path) for number in range(3)}
        for step, took in rounds.items():
            assert sorted(took) == [place for place, number in enumerate(order) if steps[number] > step]
        assert cost.rows == sum(one.cost.rows for one in alone)
        groups = Counter(event.step for event in events)
        assert max(groups.values(), default=0) <= (1 if view == "block_causal" else 2)
        met["two calls in a round"] += 2 in groups.values()
        met["different blocks in a call"] += any(len(blocks_of(plan, event)) > 1 for event in events)
        met["refresh mid batch"] += any(
            event.step > 0 and len(event.rows) < len(rounds[event.step]) for event in events
        )
        met["padding"] += len({len(row.tokens) for row in found}) > 1
        met["one ends before the others"] += len(set(steps.values())) > 1
        met["stopped"] += any(one.canvas.masked.any() for one in alone)
        met["store of some"] += cost.kinds.get("store", 0) > max(one.cost.kinds.get("store", 0) for one in alone)

    for name in WINDOWED:
        drawn = {"case": cases(view, 3, (name,)), "order": st.permutations(range(3))}
        often(4)(given(**drawn)(compare))()
    facts = ["different blocks in a call", "padding", "one ends before the others"]
    facts += ["store of some"] if view == "block_causal" else ["two calls in a round", "refresh mid batch"]
    assert all(met[fact] >= 2 for fact in facts), met
    assert met["stopped"], met


@pytest.mark.parametrize("view", VIEWS)
def test_a_step_on_a_finished_row_changes_nothing(view):
    changed: Counter = Counter()

    @often(12)
    @given(case=cases(view), refresh=st.booleans())
    def compare(case, refresh):
        model, policy, (row,) = case
        plan, before = policy.plan(view), stack([row])
        bound = {plan.inputs[0]: before}
        carried = start(plan, bound)
        kept = Kept(bare(model), carried[0], view, cached_forward(plan).attributes["size"])
        # A full call each time: what is left on the canvas at the end is some end state.
        while not carried[0].done.all():
            outcome = take(plan, bare(model), bound, carried, True, kept, None, True)
            changed["states"] += bool(outcome.changed.any())
            carried = outcome.carried
        outcome = take(plan, bare(model), bound, carried, True, kept, None, refresh)
        assert outcome.done.all()
        assert not outcome.changed.any()
        for old, new in zip(carried, outcome.carried, strict=True):
            pairs = zip(old, new, strict=True) if isinstance(old, tuple) else [(old, new)]
            assert all(torch.equal(one, other) for one, other in pairs if not one.is_floating_point())

    compare()
    assert changed["states"] >= 12


@pytest.mark.parametrize("view", VIEWS)
def test_runs_end_and_leave_what_is_given(view):
    met: Counter = Counter()

    @often(50)
    @given(case=cases(view))
    def compare(case):
        model, policy, (row,) = case
        (ours,), _ = run(policy.plan(view), bare(model), [row])
        end = ours.canvas
        assert np.array_equal(end.tokens[~row.free], row.tokens[~row.free])
        assert end.done.all()
        assert not end.masked[~row.free].any()
        assert (end.tokens[row.free & ~end.masked] != model.mask_id).all()
        assert not end.masked.any() or stopped(end)[0]
        met["filled in"] += int(row.start[0]) == 0 and bool(row.free.any() and not row.free.all())
        met["ended early"] += bool(end.masked.any())

    compare()
    assert met["filled in"] and met["ended early"], met


def blind_outside(model: Any, size: int, start: int) -> FunctionModel:
    """`model` as one whose entries see the prompt and their own block of `size` only."""

    def row(tokens, positions, visible):
        number = np.maximum((positions - start) // size, -1)
        near = visible & ((number[None, :] == -1) | (number[None, :] == number[:, None]))
        return model(tokens[None], positions[None], near[None])[0]

    return FunctionModel(row, model.vocab_size, model.mask_id)


def test_views_agree_when_nothing_outside_the_block_matters():
    met: Counter = Counter()

    @often(20)
    @given(
        model=small_models((4, 50)), name=st.sampled_from(WINDOWED), size=st.integers(1, 3),
        prompt=st.integers(0, 3), length=st.integers(1, 6), threshold=st.sampled_from([0.3, 0.6, 0.9]),
    )  # fmt: skip
    def compare(model, name, size, prompt, length, threshold):
        told = {"block_length": size, "threshold": threshold}
        policy = POLICIES[name]
        policy = policy.bind(**{key: value for key, value in told.items() if key in policy.settings})
        if name == "klass":
            return  # its history holds what the last call said of later blocks, and a window says nothing of them
        row = ts.canvas([0] * prompt, gen_length=length, vocab_size=model.vocab_size, mask_id=model.mask_id)
        local = blind_outside(model, size, prompt)
        paths = [run(policy.plan(view), bare(local), [row])[0][0].path for view in ("full", "prefix", "dual")]
        assert paths[0] == paths[1] == paths[2]
        met["several blocks"] += length > size and len(paths[0]) > 2
        whole = [run(policy.plan(view), bare(model), [row])[0][0].path for view in ("full", "prefix", "dual")]
        # In one block nothing outside it changes, so nothing can be stale either.
        if length <= size:
            assert whole[0] == whole[1] == whole[2]
            met["one block"] += 1
        met["dual differs"] += whole[0] != whole[2]

    compare()
    assert met["several blocks"] >= 3 and met["one block"] >= 3, met


def test_a_stale_outside_would_show():
    # The control of the test above: what is to the right of the block is computed anew by prefix, and kept by dual.
    def row(tokens, positions, visible):
        logits = np.zeros((len(tokens), 6))
        logits[:, 1] = 1.0
        written = int(((tokens != 5) & (positions < 2)).sum())  # of the first block
        for entry, position in enumerate(positions):
            logits[entry, 2] = 3.0 * (position < 2 and written == 1)
            logits[entry, 3] = 4.0 * (position >= 2 and written == 2)
        return logits

    model = FunctionModel(row, 6, 5)
    canvas = ts.canvas([], gen_length=4, vocab_size=6, mask_id=5)
    plan = POLICIES["fastdllm_quota"].bind(block_length=2)
    for view in ("full", *VIEWS[:2]):
        assert run(plan.plan(view), bare(model), [canvas])[0][0].canvas.tokens.tolist() == [1, 2, 3, 3]

    def never(self, rows, x, where, predict_mask):
        # A window call that forgets to show the model what was written since the refresh.
        return Kept.window(self, rows, x._replace(masked=x.free), where, predict_mask)

    class Forgetful(Kept):
        window = never

    import trajspec.runtime.loop as loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Kept", Forgetful)
        assert run(plan.plan("dual"), bare(model), [canvas])[0][0].canvas.tokens.tolist() != [1, 2, 3, 3]


def test_block_causal_refuses_a_window_that_lies_in_two_blocks():
    model = FunctionModel(lambda tokens, positions, visible: np.eye(6)[positions % 5], 6, 5)
    plan = POLICIES["fastdllm_threshold"].bind(block_length=2).plan("block_causal")
    row = ts.canvas([1], gen_length=4, vocab_size=6, mask_id=5)
    message = r"row 0: view block_causal has blocks of 2 counted from position 0.* count from position 1.*start=0"
    for attempt in (lambda: run(plan, bare(model), [row]), lambda: interpret.run(plan, model, row)):
        with pytest.raises(TrajspecError, match=message):
            attempt()
    for fine in (row._replace(start=np.asarray([0])), ts.canvas([1, 2], gen_length=4, vocab_size=6, mask_id=5)):
        (ours,), _ = run(plan, bare(model), [fine])
        same_row(ours.canvas, interpret.run(plan, model, fine).canvas)
