"""Cached views on tensors: the rules of refreshing and storing, what calls cost, and real networks in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trajspec as ts
from tests.toys import Edited, text_model
from trajspec.exact.tabular import FunctionModel, HashModel
from trajspec.ir import Canvas, TrajspecError, interpret
from trajspec.ir.canvas import canvas
from trajspec.policies import POLICIES
from trajspec.runtime import loop
from trajspec.runtime.denoiser import Bare, FromNumpy
from trajspec.runtime.loop import _Batch, run
from trajspec.runtime.models import load_model
from trajspec.runtime.step import cached_forward
from trajspec.runtime.store import Store
from trajspec.runtime.views import Kept, shown

GOLDENS = Path(__file__).parents[1] / "goldens"
VIEWS = ("full", "prefix", "dual", "block_causal")
MODEL = HashModel(1, 6, 50)


class Spied(Bare):
    """Notes every call on stored tokens: (rows of the store that take part, widths, slots written)."""

    def __init__(self, model: Any) -> None:
        super().__init__(FromNumpy(model))
        object.__setattr__(self, "asked", [])

    def cached(self, tokens, positions, slots, store, keys, before):
        index = range(store.row_count) if store.index is None else store.index.tolist()
        self.asked.append((tuple(index), tokens.shape[1], slots.tolist()))
        return super().cached(tokens, positions, slots, store, keys, before)


def row(prompt: list[int], length: int, **options: Any) -> Canvas:
    return canvas(prompt, gen_length=length, vocab_size=6, mask_id=5, **options)


def threshold(size: int | None, view: str, limit: float = 0.95) -> ts.Plan:
    return POLICIES["fastdllm_threshold"].bind(block_length=size, threshold=limit).plan(view)


# Case T18: a finished block is stored from its final tokens


def sums(tokens, positions, visible):
    """Next token: the sum of everything before it that is seen, mod 8 (a mask counts as 7); 1 is surer than 2."""
    logits = np.zeros((len(tokens), 8))
    for entry, position in enumerate(positions):
        before = visible[entry] & (positions < position)
        answer = {1: 2, 2: 3}.get(int(position), int(tokens[before].sum()) % 8)
        logits[entry, answer] = 6.0 - (position == 2)
    return logits


def t18_row(length: int) -> Canvas:
    return canvas([1], gen_length=length, start=0, vocab_size=8, mask_id=7)


def test_t18_the_block_after_a_block_sees_its_last_commit():
    model, plan = FunctionModel(sums, 8, 7), POLICIES["fastdllm_quota"].bind(block_length=3).plan("block_causal")
    (ours,), cost = run(plan, Bare(FromNumpy(model)), [t18_row(3)])
    assert ours.canvas.tokens.tolist() == [1, 2, 3, 6]
    assert cost.kinds == {"step": 3, "store": 1}
    assert interpret.run(plan, model, t18_row(3)).canvas.tokens.tolist() == [1, 2, 3, 6]
    # A longer prompt: its whole blocks are stored before the first step, its tail stands in the open block.
    (ours,), cost = run(
        plan, Bare(FromNumpy(model)), [canvas([1, 2, 3, 6], gen_length=3, start=0, vocab_size=8, mask_id=7)]
    )
    assert ours.canvas.tokens[4] == (1 + 2 + 3 + 6) % 8
    assert cost.kinds == {"prefill": 1, "step": 3, "store": 1}


def test_t18_without_the_store_pass_the_answer_is_another(monkeypatch):
    class Skips(Kept):
        """Keeps what the last window call left behind."""

        def behind(self, x, where):
            return torch.zeros_like(super().behind(x, where))

    monkeypatch.setattr(loop, "Kept", Skips)
    model, plan = FunctionModel(sums, 8, 7), POLICIES["fastdllm_quota"].bind(block_length=3).plan("block_causal")
    # The block's last call saw position 2 masked: 7 in place of 3.
    (ours,), cost = run(plan, Bare(FromNumpy(model)), [t18_row(3)])
    assert ours.canvas.tokens.tolist() == [1, 2, 3, 2]  # (1 + 2 + 7) % 8
    assert cost.kinds == {"step": 3}


@ts.policy
def rewrites(x, logits, *, block_length=2):
    """Commits one token a step, and masks position 0 again once, from the second block."""
    token = ts.argmax(logits)
    y = ts.unmask(x, token, where=ts.first(1, where=ts.window(x, size=block_length)))
    return ts.remask(y, where=(ts.position(x) == 0) & (ts.step(x) == 2))


@ts.policy
def edits(x, logits, *, block_length=2):
    """Commits one token a step, and writes id 0 (no window says anything) over position 0 from the second block."""
    token = ts.argmax(logits)
    y = ts.unmask(x, token, where=ts.first(1, where=ts.window(x, size=block_length)))
    return ts.edit(y, token, where=(ts.position(x) == 0) & (ts.step(x) == 2))


@pytest.mark.parametrize("policy", [rewrites, edits])
def test_a_stored_block_that_changes_is_stored_anew(policy):
    plan, stores = policy.plan("block_causal"), []
    for seed in range(6):
        model = HashModel(seed, 6, 50)
        (ours,), cost = run(plan, Bare(FromNumpy(model)), [row([], 6)])
        reference = interpret.run(plan, model, row([], 6))
        assert ours.canvas.tokens.tolist() == reference.canvas.tokens.tolist()
        assert cost.kinds["step"] == reference.calls
        stores.append(cost.kinds["store"])
    assert min(stores) >= 2 and max(stores) >= 3


# Case T09 in every view


def mean(tokens, positions, visible):
    logits = np.zeros((len(tokens), 8))
    for entry in range(len(tokens)):
        seen = tokens[visible[entry] & (tokens != 7)]
        logits[entry, round(float(seen.mean())) if seen.size else 0] = 5.0
    return logits


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "order", [[[5], [1, 2, 3]], [[1, 2, 3], [5]], [[5], [1, 2, 3], [5]], [[5], [5, 5], [1, 2, 3], [5]]]
)
def test_t09_padding_is_not_seen(order, view):
    plan = POLICIES["fastdllm_quota"].bind(block_length=2).plan(view)
    start = {"start": 0} if view == "block_causal" else {}
    rows = [canvas(prompt, gen_length=2, vocab_size=8, mask_id=7, **start) for prompt in order]
    together, _ = run(plan, Bare(FromNumpy(FunctionModel(mean, 8, 7))), rows)
    for prompt, ours in zip(order, together, strict=True):
        assert ours.canvas.tokens[-2:].tolist() == ([2, 2] if prompt == [1, 2, 3] else [5, 5])


# When a row is refreshed, and what a call costs


@pytest.mark.parametrize("view", ["prefix", "dual"])
def test_a_refresh_happens_when_the_block_changes_and_only_then(view):
    plan, events = threshold(2, view, 1.0), []
    _, cost = run(plan, Bare(FromNumpy(MODEL)), [row([1], 6)], on_step=events.append)
    forward = cached_forward(plan)
    where = [event.values[forward.args[2]][0].tolist() for event in events]
    changes = 1 + sum(a != b for a, b in zip(where, where[1:], strict=False))
    assert cost.kinds == {"refresh": changes, "step": len(where) - changes} == {"refresh": 3, "step": 3}


@pytest.mark.parametrize("view", ["prefix", "dual"])
def test_rows_that_are_not_due_are_not_refreshed(view):
    model, plan, events = Spied(MODEL), threshold(3, view, 1.0), []
    told = {"vocab_size": 6, "mask_id": 5}
    rows = [canvas([1] * 9, [place >= known for place in range(9)], **told) for known in (0, 1, 2)]
    _, cost = run(plan, model, rows, on_step=events.append)
    length = 9
    assert len(events) == len(model.asked) == cost.calls
    due: dict[int, Any] = {}
    mixed = 0
    for event, (index, width, slots) in zip(events, model.asked, strict=True):
        assert index == event.rows
        where = event.values[cached_forward(plan).args[2]]
        fresh = [due.get(number) != where[place].tolist() for place, number in enumerate(index)]
        assert len(set(fresh)) == 1  # rows of a call are alike
        due |= {number: where[place].tolist() for place, number in enumerate(index)}
        if fresh[0]:
            assert width == length
        elif view == "dual":
            assert width == 3
            for place in range(len(index)):
                inside = where[place].nonzero()[:, 0].tolist()
                assert [slot for slot in slots[place] if slot < length] == inside
        mixed += sum(other.step == event.step for other in events) == 2
    assert max(sum(other.step == event.step for other in events) for event in events) == 2
    assert mixed and cost.kinds["refresh"] > 3


def test_a_round_that_asked_rows_twice_would_show(monkeypatch):
    # The control: groups that are made one after the other take a row that was just refreshed into the second call.
    def lazily(self, live):
        for kind, due in (("refresh", True), ("step", False)):
            group = [number for number in live if self.due[number] == due]
            if group:
                yield kind, group

    monkeypatch.setattr(_Batch, "groups", lazily)
    model, events = Spied(MODEL), []
    run(threshold(3, "dual"), model, [row([1], 3), row([1, 1], 5)], on_step=events.append)
    assert any(set(a.rows) & set(b.rows) and a.step == b.step for a, b in zip(events, events[1:], strict=False))


def test_windows_cost_their_width_padding_included():
    # Five positions in blocks of three: the last block has two, its call is three wide all the same.
    _, cost = run(threshold(3, "dual", 1.0), Bare(FromNumpy(MODEL)), [row([1], 5)])
    assert cost.kinds == {"refresh": 2, "step": 3}
    assert (cost.calls, cost.rows, cost.positions) == (5, 5, 2 * 6 + 3 * 3)
    _, cost = run(threshold(3, "prefix", 1.0), Bare(FromNumpy(MODEL)), [row([1], 5)])
    assert (cost.calls, cost.rows, cost.positions) == (5, 5, 2 * 6 + 2 * 5 + 2)
    _, cost = run(threshold(3, "dual", 1.0), Bare(FromNumpy(MODEL)), [row([1], 5), row([1], 5)])
    assert (cost.calls, cost.rows, cost.positions) == (5, 10, 2 * (2 * 6 + 3 * 3))
    _, cost = run(threshold(3, "block_causal", 1.0), Bare(FromNumpy(MODEL)), [row([1, 1, 1, 1], 5, start=0)])
    assert cost.kinds == {"prefill": 1, "step": 5, "store": 1}
    assert cost.positions == 3 + 5 * 3 + 3


@pytest.mark.parametrize("view", ["prefix", "dual", "block_causal"])
@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN"), (np.inf, "NaN"), (-np.inf, "all logits are -inf")])
def test_logits_that_are_no_numbers_are_refused_in_a_window(view, value, what):
    start = {"start": 0} if view == "block_causal" else {}
    rows, states = [row([1] * 3, 3, **start), row([1] * 6, 3, **start)], []

    def edit(logits, tokens, positions, visible):
        for place in range(len(tokens)):
            known = int((tokens[place] != 5).sum())
            # The longer row, once it has committed something.
            if positions[place].max() == 8 and known > 6 + (view == "block_causal"):
                logits[place, (positions[place] == 8).nonzero()[0]] = value

    plan = POLICIES["fastdllm_quota"].bind(block_length=3).plan(view)
    model = Edited(HashModel(2, 6, 50), edit)
    with pytest.raises(TrajspecError, match=rf"row 1, position 8, step [12]: .*{what}"):
        run(plan, Bare(FromNumpy(model)), rows, on_step=lambda event: states.append(event))
    assert all(event.before.step[0, 0] < 2 for event in states)
    assert {int(event.after.step.max()) for event in states} <= {1, 2}


def test_models_without_a_cache_are_refused_before_any_call():
    calls = []

    class Plain:
        name, vocab_size, mask_id, supports_cache = "plain", 6, 5, False

        def __call__(self, *asked):
            calls.append(asked)

    for model in (Plain(), FromNumpy(MODEL), text_model("ab")):
        with pytest.raises(
            TrajspecError, match="view dual works on stored keys and (plain|FromNumpy|letters) cannot.*full view"
        ):
            run(threshold(2, "dual"), model, [row([1], 2)])
    assert not calls


# Rows of a store


def test_some_rows_of_a_store_are_written_in_place():
    generator = torch.Generator().manual_seed(0)

    def filled() -> Store:
        store = Store.empty(layers=2, rows=4, heads=2, length=5, depth=3, dtype=torch.float32, device="cpu")
        for number, buffer in enumerate(store._buffers()[:-1]):
            buffer.copy_(torch.randn(buffer.shape, generator=torch.Generator().manual_seed(number)))
        return store

    key, value = (torch.randn(2, 2, 2, 3, generator=generator) for _ in range(2))
    index, slots = torch.tensor([3, 1]), torch.tensor([[0, 2], [4, 1]])
    places = torch.tensor([[7, 8], [9, 10]])
    ours, copied = filled(), filled()
    addresses = [buffer.data_ptr() for buffer in ours._buffers()]
    part, copy = ours.part(index), copied.rows(index)
    assert (part.row_count, part.length) == (2, 5)
    seen = part.at(slots, places).update(1, key, value)
    expected = copy.at(slots, places).update(1, key, value)
    copied.put(index, copy)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(seen, expected, strict=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(ours._buffers(), copied._buffers(), strict=True))
    assert torch.equal(part.positions, copy.positions)
    assert [buffer.data_ptr() for buffer in ours._buffers()] == addresses
    assert not all(torch.equal(mine, old) for mine, old in zip(ours._buffers(), filled()._buffers(), strict=True))
    # Parts of parts, and copies of them.
    inner = part.part(torch.tensor([1]))
    assert torch.equal(inner.positions, ours.positions[1:2])
    assert torch.equal(inner.rows(torch.tensor([0])).keys[1], ours.keys[1][1:2])
    whole = filled()
    assert (
        whole.at(slots.repeat(2, 1), places.repeat(2, 1))
        .update(0, key.repeat(2, 1, 1, 1), value.repeat(2, 1, 1, 1))[0]
        .data_ptr()
        == whole.keys[0].data_ptr()
    )


# Real networks


@pytest.fixture(scope="module", params=["tiny_llada", "tiny_dream"])
def network(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(GOLDENS / request.param)
    torch.set_num_threads(threads)


def network_rows(model: Any, lengths: tuple[int, ...], view: str) -> list[Canvas]:
    generator = np.random.default_rng(5)
    told = {"vocab_size": model.vocab_size, "mask_id": model.mask_id, "banned": model.banned_ids}
    start = {"start": 0} if view == "block_causal" else {}
    return [canvas(generator.integers(2, 30, size), gen_length=8 + size % 3, **told, **start) for size in lengths]


def logits_of(plan: Any, model: Any, rows: list[Canvas]) -> tuple[list[list[torch.Tensor]], Any, Any]:
    """The logits of every step of every row, without padding, the runs and the events."""
    found: list[list[torch.Tensor]] = [[] for _ in rows]
    events = []

    def watch(event):
        events.append(event)
        value = event.values[next(v for n in plan.nodes() if n.op.calls_model for v in n.results[:1])]
        for place, number in enumerate(event.rows):
            found[number].append(value[place][event.before.position[place] >= 0])

    runs, _ = run(plan, model, rows, on_step=watch)
    return found, runs, events


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("lengths", "alike"), [((3, 11, 19), False), ((6, 6, 6), True)])
def test_a_batch_of_a_network_equals_its_single_runs(network, view, lengths, alike):
    """Tokens, calls and logits, bit for bit; `test_padding` does so for many lengths."""
    plan = POLICIES["fastdllm_threshold"].bind(block_length=4, threshold=0.5).plan(view)
    rows = network_rows(network, lengths, view)
    together, runs, events = logits_of(plan, network, rows)
    kinds = []
    for number, one in enumerate(rows):
        (alone,), (single,), _ = logits_of(plan, network, [one])
        assert runs[number].path == single.path
        assert runs[number].cost.kinds == single.cost.kinds
        assert len(alone) == len(together[number])
        for mine, theirs in zip(together[number], alone, strict=True):
            assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))
        kinds.append(single.cost.kinds)
    assert alike == (len({len(one.tokens) for one in rows}) == 1)
    if not alike:
        assert len({len(run.path) for run in runs}) > 1  # rows end at different times
    if view in ("prefix", "dual"):
        assert all(kind["refresh"] > 1 and kind["step"] > 0 for kind in kinds)
        assert alike or len(events) > max(event.step for event in events) + 1  # two calls in some round


@pytest.mark.parametrize("view", ["prefix", "dual", "block_causal"])
def test_a_window_of_some_rows_equals_copying_their_store(network, view, monkeypatch):
    plan = POLICIES["fastdllm_threshold"].bind(block_length=4, threshold=0.5).plan(view)
    rows = network_rows(network, (3, 6, 11), view)
    ours, runs, events = logits_of(plan, network, rows)
    assert any(len(event.rows) < 3 for event in events)

    def copying(self, rows, x, columns, exists, keys, before):
        tokens, positions = shown(x).gather(-1, columns), x.position.gather(-1, columns)
        slots = torch.where(exists, columns, self.length)
        rows = torch.arange(len(tokens)) if rows is None else rows
        part = self.store.rows(rows)
        logits = self.model.cached(tokens, positions, slots, part, keys, before)
        self.store.put(rows, part)
        return logits

    monkeypatch.setattr(Kept, "_call", copying)
    theirs, again, _ = logits_of(plan, network, rows)
    assert [one.path for one in runs] == [one.path for one in again]
    for mine, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(mine, other, strict=True))


def test_no_store_is_copied_when_all_rows_take_part(network, monkeypatch):
    def refused(*_):
        raise AssertionError("rows were copied")

    rows = network_rows(network, (6, 6), "dual")
    plan = POLICIES["fastdllm_quota"].bind(block_length=4).plan("dual")
    monkeypatch.setattr(Store, "part", refused)
    monkeypatch.setattr(Store, "rows", refused)
    run(plan, network, rows)
    with pytest.raises(AssertionError, match="rows were copied"):
        run(plan, network, network_rows(network, (6, 8), "dual"))
