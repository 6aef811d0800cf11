"""The loop on the host: ends of rows, costs, events, task inputs, ops without a torch meaning, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trajspec as ts
from tests.toys import Counting, InTorch
from trajspec.exact.tabular import FixedModel
from trajspec.ir import OPS, interpret
from trajspec.ir.canvas import canvas
from trajspec.ir.interpret import idle_limit
from trajspec.policies import get_policy
from trajspec.runtime import loop
from trajspec.runtime.batch import pick, put, stack, stack_inputs, unstack
from trajspec.runtime.denoiser import FromNumpy
from trajspec.runtime.loop import drive, run

MODEL = FixedModel([(3, 2.0), (4, 1.0), (2, 3.0), (1, 2.5), (5, 0.5), (6, 0.1)])
ONE_A_STEP = get_policy("fastdllm_quota").plan()


def row(prompt: list[int], length: int, **options) -> ts.Canvas:
    return canvas(prompt, gen_length=length, vocab_size=8, mask_id=7, **options)


@pytest.mark.parametrize("block_length", [1, 2, None])
@pytest.mark.parametrize("stop", [4, 2, 1, 5, 6])
def test_a_stop_token_ends_the_row_as_soon_as_nothing_is_open_before_it(stop, block_length):
    plan = get_policy("fastdllm_quota").bind(block_length=block_length).plan()
    (ours,), _ = run(plan, FromNumpy(MODEL), [row([3], 5, stop=[stop])])
    place = [4, 2, 1, 5, 6].index(stop) + 1
    assert ours.canvas.tokens[1 : place + 1].tolist() == [4, 2, 1, 5, 6][:place]
    assert ours.canvas.done.all()
    # It ends at the first state of that kind, not a step later.
    states = [row([3], 5).tokens.copy()]
    for step in ours.path:
        states.append(states[-1].copy())
        for position, token in step:
            states[-1][position] = token
    ended = [stop in state[1:].tolist() and 7 not in state[: state.tolist().index(stop)] for state in states]
    assert ended == [False] * (len(states) - 1) + [True]


def test_finished_rows_cost_nothing():
    model = Counting(MODEL)
    rows = [row([3], 5, stop=[4]), row([3], 5), row([3, 3], 0), row([3, 3], 2)]
    runs, total = run(get_policy("fastdllm_quota").bind(block_length=1).plan(), FromNumpy(model), rows)
    assert [one.cost.calls for one in runs] == [1, 5, 0, 2]
    assert total.calls == model.calls == 5
    assert [len(asked) for asked in model.asked] == [3, 2, 1, 1, 1]
    assert total.rows == sum(one.cost.rows for one in runs) == 8
    assert total.positions == sum(one.cost.positions for one in runs) == 8 * 6


def test_a_batch_without_masks_asks_nothing():
    model = Counting(MODEL)
    runs, total = run(ONE_A_STEP, FromNumpy(model), [row([1, 2], 0), row([3], 0)])
    assert [one.canvas.tokens.tolist() for one in runs] == [[1, 2], [3]]
    assert model.calls == total.calls == 0


@ts.policy
def stuck(x, logits):
    """Commits only what is certain."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.masked(x) & (conf >= 1.0))


@ts.policy
def stuck_clock(x, logits, turns=ts.history("count", start=0)):
    """Counts for ever."""
    return x, turns + 1


@pytest.mark.parametrize("policy", [stuck, stuck_clock])
def test_a_policy_that_stands_still_is_an_error(policy, monkeypatch):
    # A policy with a counter may stand still for a while.
    assert loop.idle_limit(stuck_clock.plan(), 8) > 1000
    short = lambda plan, length: 20 if plan.clocked else idle_limit(plan, length)  # noqa: E731
    monkeypatch.setattr(loop, "idle_limit", short)
    monkeypatch.setattr(interpret, "idle_limit", short)
    for attempt in (
        lambda: run(policy.plan(), FromNumpy(MODEL), [row([3], 2), row([1, 3], 2)]),
        lambda: ts.run(policy.plan(), MODEL, row([3], 2)),
    ):
        with pytest.raises(ts.TrajspecError, match=rf"policy {policy.name} committed nothing .* 2 masks left"):
            attempt()


def test_one_row_that_stands_still_is_noticed_among_others():
    @ts.policy
    def left_half(x, logits):
        """Commits where the prompt is one long."""
        token, _ = ts.score(logits)
        short = ts.count(ts.known(x)) == 1
        return ts.unmask(x, token, where=ts.first(1, where=ts.masked(x)) & short)

    with pytest.raises(ts.TrajspecError, match="committed nothing in step 0 with 2 masks left"):
        run(left_half.plan(), FromNumpy(MODEL), [row([3], 4), row([3, 3], 2)])


# Events


def test_events_show_the_live_rows_before_and_after():
    events = []
    rows = [row([3], 3), row([3, 1], 1)]
    runs, _ = run(ONE_A_STEP, FromNumpy(MODEL), rows, on_step=events.append)
    assert [event.rows for event in events] == [(0, 1), (0,), (0,)]
    assert [event.step for event in events] == [0, 1, 2]
    assert events[0].committed(1) == [(2, 2)] == runs[1].path[0]
    assert [event.committed(0) for event in events] == runs[0].path
    assert events[0].before.position[1].tolist() == [0, 1, 2, -1]
    for event, after in zip(events, events[1:], strict=False):
        assert torch.equal(event.after.tokens[0], after.before.tokens[0])
    with pytest.raises(ValueError):
        events[1].committed(1)


@ts.policy
def second_thoughts(x, logits):
    """Commits all but the last, masks position 2 again, commits the rest."""
    token, _ = ts.score(logits)
    turn, place = ts.step(x), ts.position(x)
    y = ts.unmask(x, token, where=ts.masked(x) & (((turn == 0) & (place < 5)) | (turn >= 2)))
    return ts.remask(y, where=(place == 2) & (turn == 1))


def test_path_and_canvas_agree_when_tokens_are_masked_again():
    (ours,), _ = run(second_thoughts.plan(), FromNumpy(MODEL), [row([3], 5)])
    tokens = row([3], 5).tokens.copy()
    for step in ours.path:
        for position, token in step:
            tokens[position] = token
    assert tokens.tolist() == ours.canvas.tokens.tolist()
    assert ours.path == [[(1, 4), (2, 2), (3, 1), (4, 5)], [(2, 7)], [(2, 2), (5, 6)]]


def test_no_path_is_kept_when_none_is_wanted():
    (ours,), cost = run(ONE_A_STEP, FromNumpy(MODEL), [row([3], 3)], keep_path=False)
    assert ours.path == []
    assert cost.calls == 3


def test_callers_code_is_not_in_inference_mode():
    driver = drive(ONE_A_STEP, FromNumpy(MODEL), [row([3], 3)])
    next(driver)
    assert not torch.is_inference_mode_enabled()
    assert torch.ones(1, requires_grad=True).exp().requires_grad
    driver.close()


def test_halt_ends_a_row_between_steps():
    seen = []

    def halt(number, canvas):
        seen.append((number, canvas.tokens.tolist()))
        return number == 1 and len([pair for pair in seen if pair[0] == 1]) == 2

    runs, total = run(ONE_A_STEP, FromNumpy(MODEL), [row([3], 4), row([3, 3, 3], 3)], halt=halt)
    assert [one.cost.calls for one in runs] == [4, 2]
    assert [one.halted for one in runs] == [False, True]
    assert seen[1] == (1, [3, 3, 3, 1, 7, 7])
    assert total.calls == 4


# Task inputs


@ts.policy
def pinned(x, logits, pins=ts.given("tokens"), where=ts.given("selection"), limit=ts.given("count")):
    """Writes the pins first, then the model's tokens, `limit` a step."""
    token, conf = ts.score(logits)
    open_pins = ts.masked(x) & where
    free = ts.top(conf, limit, where=ts.masked(x))
    return ts.unmask(x, ts.choose(where, pins, token), where=ts.choose(ts.any(open_pins), open_pins, free))


def given(length: int, at: int, token: int, limit: int) -> dict:
    pins, where = np.zeros(length, int), np.zeros(length, bool)
    pins[at], where[at] = token, True
    return {"pins": pins.tolist(), "where": torch.from_numpy(where), "limit": limit}


def test_task_inputs_belong_to_their_row():
    rows = [row([3], 4), row([3, 3, 3], 3)]
    inputs = [given(5, 4, 6, 1), given(6, 3, 5, 2)]
    together, _ = run(pinned.plan(), FromNumpy(MODEL), rows, inputs=inputs)
    for one, mine, ours in zip(rows, inputs, together, strict=True):
        (alone,), _ = run(pinned.plan(), FromNumpy(MODEL), [one], inputs=[mine])
        plain = {name: np.asarray(value).reshape(-1) for name, value in mine.items()}
        reference = ts.run(pinned.plan(), MODEL, one, plain)
        assert ours.path == alone.path
        assert ours.canvas.tokens.tolist() == reference.canvas.tokens.tolist()
        assert ours.cost.calls == reference.calls
    assert together[0].path == [[(4, 6)], [(2, 2)], [(3, 1)], [(1, 4)]]
    assert together[1].path == [[(3, 5)], [(4, 5), (5, 6)]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pins": None}, "task input 'pins' of row 1 is None, expected tokens"),
        ({"pins": [1.5] * 6}, "task input 'pins' of row 1"),
        ({"pins": [1] * 5}, r"has shape \[5\], expected \[6\]"),
        ({"where": [2] * 6}, "task input 'where' of row 1"),
        ({"where": True}, r"has shape \[\], expected \[6\]"),
        ({"limit": [1, 2]}, "task input 'limit' of row 1"),
        ({"limits": 1}, "task input 'limits' is missing for row 0"),
    ],
)
def test_wrong_task_inputs_name_the_row(change, message):
    model = Counting(MODEL)
    inputs = [given(5, 4, 6, 1), given(6, 3, 5, 2) | change]
    with pytest.raises(ts.TrajspecError, match=message):
        run(pinned.plan(), FromNumpy(model), [row([3], 4), row([3, 3, 3], 3)], inputs=inputs)
    assert model.calls == 0


def test_missing_and_unknown_task_inputs():
    more = given(5, 4, 6, 1) | {"more": 1}
    for inputs, message in (([{}], "needs the task input 'pins'"), ([more], "no task input")):
        with pytest.raises(ts.TrajspecError, match=message):
            run(pinned.plan(), FromNumpy(MODEL), [row([3], 4)], inputs=inputs)


def test_values_a_token_are_task_inputs_too():
    @ts.policy
    def biased(x, logits, bias=ts.given("logits")):
        """Adds a bias."""
        token, conf = ts.score(logits + bias)
        return ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))

    bias = np.zeros((5, 8))
    bias[2, 0] = 50
    rows = [row([3], 4), row([3, 3], 4)]
    runs, _ = run(biased.plan(), FromNumpy(MODEL), rows, inputs=[{"bias": bias}, {"bias": np.zeros((6, 8))}])
    assert runs[0].canvas.tokens.tolist() == [3, 4, 0, 1, 5]
    stacked = stack_inputs(biased.plan(), rows, [{"bias": bias}, {"bias": np.ones((6, 8))}])["bias"]
    assert stacked.shape == (2, 6, 8)
    assert stacked[0, 0].eq(0).all()


# Ops of a user


def test_an_op_without_a_torch_meaning_runs_through_numpy():
    @ts.op("every_other(where: selection) -> some: selection, n: count")
    def every_other(where):
        """Each second position of a selection, and how many there are."""
        assert isinstance(where, np.ndarray)
        some = where & (np.cumsum(where, axis=-1) % 2 == 1)
        return some, some.sum(axis=-1, keepdims=True)

    try:

        @ts.policy
        def halves(x, logits):
            """Half of what is left."""
            token, conf = ts.score(logits)
            some, n = every_other(ts.masked(x))
            return ts.unmask(x, token, where=ts.top(conf, n, where=some))

        rows = [row([3], 5), row([3, 3], 4)]
        for model in (FromNumpy(MODEL), InTorch(MODEL)):
            runs, _ = run(halves.plan(), model, rows)
            for one, ours in zip(rows, runs, strict=True):
                reference = ts.run(halves.plan(), MODEL, one)
                assert ours.canvas.tokens.tolist() == reference.canvas.tokens.tolist()
                assert ours.cost.calls == reference.calls
    finally:
        del OPS["every_other"]


# Batches


def test_rows_come_back_from_a_batch_as_they_were():
    infilled = canvas([7, 2], [True, False], vocab_size=8, mask_id=7)
    rows = [row([3], 4, stop=[1, 2]), row([3, 3, 3], 1, allowed={3: [5]}), infilled]
    batch = stack(rows, pad_id=6)
    assert batch.tokens.tolist()[2] == [7, 2, 6, 6, 6]
    assert batch.position.tolist()[2] == [0, 1, -1, -1, -1]
    assert not batch.masked[2, 2:].any() and not batch.free[2, 2:].any()
    for number, one in enumerate(rows):
        back = unstack(batch, number)
        for name in ("tokens", "masked", "free", "position", "start", "seed", "done", "step", "mask_id"):
            assert np.array_equal(getattr(back, name), getattr(one, name)), name
        assert (back.allowed == one.allowed).all()
        assert set(back.stop.tolist()) - {-1} == set(one.stop.tolist()) - {-1}


def test_picked_rows_are_put_back():
    batch = stack([row([3], 2), row([4], 2), row([5], 2)])
    index = torch.tensor([2, 0])
    (part,) = pick((batch,), index)
    assert part.tokens[:, 0].tolist() == [5, 3]
    (whole,) = put((batch,), index, (part._replace(tokens=part.tokens + 1),))
    assert whole.tokens.tolist() == [[4, 8, 8], [4, 7, 7], [6, 8, 8]]
    assert batch.tokens[:, 0].tolist() == [3, 4, 5]
