"""A row of a batch has, bit for bit, the logits of its single run: real networks, every view, many lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trajspec.ir.canvas import Canvas, canvas
from trajspec.policies import POLICIES
from trajspec.runtime import attention, batch, loop
from trajspec.runtime.loop import run
from trajspec.runtime.models import forward, load_model

GOLDENS = Path(__file__).parents[1] / "goldens"
VIEWS = ("full", "prefix", "dual", "block_causal")
MODELS: dict[str, Any] = {
    "tiny_llada": GOLDENS / "tiny_llada", "tiny_dream": GOLDENS / "tiny_dream", "tiny": "tiny", "antiberty": "antiberty"
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=MODELS)
def network(request, one_thread):
    return load_model(MODELS[request.param])


def made(model: Any, prompt: int, length: int, view: str, seed: int = 0) -> Canvas:
    start = {"start": 0} if view == "block_causal" else {}
    tokens = np.random.default_rng([seed, prompt, length]).integers(2, 20, prompt)
    return canvas(
        tokens, gen_length=length, vocab_size=model.vocab_size, mask_id=model.mask_id, banned=model.banned_ids, **start
    )


def logits_of(plan: Any, model: Any, rows: list[Canvas]) -> tuple[list[list[torch.Tensor]], Any]:
    """Of every row, the logits [L, V] of every step without padding; and the runs."""
    found: list[list[torch.Tensor]] = [[] for _ in rows]
    value = next(node.results[0] for node in plan.nodes() if node.op.calls_model)

    def watch(event):
        for place, number in enumerate(event.rows):
            found[number].append(event.values[value][place][event.before.position[place] >= 0])

    return found, run(plan, model, rows, on_step=watch)[0]


def differing(model: Any, view: str, block: int, sizes: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
    """The (prompt, length) of rows whose logits differ from those of their single run, and how many were compared."""
    plan = POLICIES["fastdllm_threshold"].bind(block_length=block, threshold=0.3).plan(view)
    rows = [made(model, *size, view, seed) for seed, size in enumerate(sizes)]
    together, runs = logits_of(plan, model, rows)
    wrong, compared = [], 0
    for size, row, mine, ours in zip(sizes, rows, together, runs, strict=True):
        (theirs,), (alone,) = logits_of(plan, model, [row])
        assert ours.path == alone.path and ours.cost.kinds == alone.cost.kinds
        assert len(mine) == len(theirs) > 0
        compared += sum(int((~part.isnan()).any(-1).sum()) for part in theirs)
        # Where a view computes nothing both are NaN.
        if not all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(mine, theirs, strict=True)):
            wrong.append(size)
    return wrong, compared


def drawn(model: Any, seed: int) -> tuple[int, list[tuple[int, int]]]:
    """A block length and rows of (prompt, length): one long, one short, one of any size."""
    rng = np.random.default_rng(seed)
    most = min(model.max_positions, 120) - 16
    prompts = [int(rng.integers(most // 2, most)), int(rng.integers(0, 10)), int(rng.integers(0, most))]
    return int(rng.choice([1, 2, 3, 5, 8, 13])), [(prompt, int(rng.integers(1, 12))) for prompt in prompts]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("seed", range(3))
def test_a_row_has_the_logits_of_its_single_run(network, view, seed):
    block, sizes = drawn(network, seed)
    wrong, compared = differing(network, view, block, sizes)
    assert not wrong and compared > 10


# Every length up to 33 in one batch: all lanes of the registers, all ends of the blocks of queries.
SPREAD = [(prompt, 2) for prompt in range(32)]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["tiny_llada", "tiny_dream"])
def test_every_length_up_to_33(name, view):
    assert differing(load_model(MODELS[name]), view, 2, SPREAD)[0] == []


@pytest.mark.parametrize("lengths", [(188, 193, 70), (250, 189, 191), (192, 191, 40), (256, 130, 193)])
def test_where_the_kernel_splits_the_keys(lengths):
    for view in ("full", "dual"):
        sizes = [(length - 2, 2) for length in lengths]
        assert differing(load_model(MODELS["tiny_dream"]), view, 2, sizes)[0] == []


# Controls: without each of the measures some logits differ.


def as_it_is(size: int) -> int:
    return size


def left(rows: Any, *, pad_id: int = 0, device: Any = "cpu", least: int = 0) -> Canvas:
    """`batch.stack` with the padding before the rows."""
    right = batch.stack(rows, pad_id=pad_id, device=device)
    gaps = (right.position < 0).sum(-1).tolist()
    fields = ("tokens", "masked", "free", "position")
    return right._replace(
        **{
            name: torch.stack([part.roll(gap, -1) for part, gap in zip(getattr(right, name), gaps, strict=True)])
            for name in fields
        }
    )


@pytest.mark.parametrize("view", VIEWS)
def test_control_gaps_on_the_left(monkeypatch, view):
    """What happens on the left with any number of keys: gaps of 3 and 5 differ, no gap does not."""
    model = load_model(MODELS["tiny_llada"])
    monkeypatch.setattr(loop, "stack", left)
    monkeypatch.setattr(attention, "key_count", as_it_is)
    wrong, _ = differing(model, view, 4, [(30, 4), (27, 4), (25, 4), (22, 4)])
    assert {(27, 4), (25, 4)} <= set(wrong) and (30, 4) not in wrong


@pytest.mark.parametrize(
    ("module", "name", "value", "network", "view", "sizes"),
    [
        (attention, "key_count", as_it_is, "tiny_dream", "full", [(30, 2), (19, 2), (3, 2)]),
        (attention, "key_count", as_it_is, "tiny_dream", "dual", [(30, 2), (19, 2), (3, 2)]),
        (attention, "key_count", lambda size: -(-size // 16) * 16, "tiny_dream", "full", [(250, 2), (188, 2)]),
        (attention, "QUERIES", 1, "tiny_dream", "full", [(37, 2), (31, 2), (63, 2)]),
        (forward, "SHORTEST", 1, "tiny", "block_causal", [(9, 2), (9, 2)]),
        (forward, "SHORTEST", 1, "tiny", "full", [(0, 2), (9, 2)]),
    ],
)
def test_controls_of_the_kernel(monkeypatch, module, name, value, network, view, sizes):
    assert not differing(load_model(MODELS[network]), view, 2, sizes)[0]
    monkeypatch.setattr(module, name, value)
    assert differing(load_model(MODELS[network]), view, 2, sizes)[0]


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="narrower registers leave nothing over")
def test_control_registers_that_are_not_full(monkeypatch):
    monkeypatch.setattr(forward, "LANES", 1)
    assert differing(load_model(MODELS["tiny_dream"]), "full", 2, [(9, 2), (8, 2), (4, 2)])[0]


def test_token_multiples():
    sizes = {"tiny_dream": 8, "tiny_llada": 8, "tiny": 1, "antiberty": 1}
    found = {name: forward.token_multiple(load_model(MODELS[name]).network.config) for name in sizes}
    assert found == sizes


def test_key_counts():
    counts = {1: 16, 16: 16, 17: 32, 192: 192, 193: 384, 384: 384, 385: 512, 512: 512, 513: 528, 705: 896, 897: 1024}
    assert {size: attention.key_count(size) for size in counts} == counts
