"""Speculated plans on batches: the base's rows and paths, from calls that the reference interpreter makes as well."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trajspec as ts
from tests.policies.rules import ALONE, OF_TOKENS, rows, rules
from tests.strategies import small_models
from trajspec.exact.tabular import FunctionModel, HashModel
from trajspec.ir import Canvas, Plan, canvas
from trajspec.ir.ahead import trajectories
from trajspec.ir.drafter import drafter
from trajspec.ir.interpret import run as interpret
from trajspec.passes import speculate
from trajspec.policies import POLICIES
from trajspec.runtime.denoiser import Bare, FromNumpy
from trajspec.runtime.loop import RowRun, run

OWN_VIEW = ("wino", "dpad")
BLOCKED = tuple(name for name in OF_TOKENS if "block_length" in POLICIES[name].settings and name not in OWN_VIEW)


@drafter
def scattered(x, logits, *, nodes=5, seed=0):
    """States that are anything: some on the way, some impossible, some in later blocks."""
    random = np.random.default_rng(seed + int(x.masked.sum()))
    free, vocab = np.flatnonzero(x.masked), x.allowed.shape[-1]
    known = ~np.isnan(logits).any(-1)
    best = np.where(known, np.nan_to_num(logits).argmax(-1), random.integers(0, vocab, len(x.tokens)))
    return [
        [
            {int(at): int(best[at] if random.random() < 0.8 else random.integers(0, vocab))}
            for at in sorted(random.permutation(free)[: random.integers(1, len(free) + 1)])
        ]
        for _ in range(nodes if len(free) else 0)
    ]


class Steady:
    """A model whose answers hardly depend on the canvas, so that drafts are often right."""

    def __init__(self, seed: int, vocab_size: int = 6) -> None:
        self.vocab_size, self.mask_id = vocab_size, vocab_size - 1
        self.table = np.random.default_rng(seed).normal(size=(64, vocab_size)) * 4
        self.noise = HashModel(seed, vocab_size, 50)

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        return self.table[positions] + 0.15 * self.noise(tokens, positions, visible)


def same(one: Canvas, other: Canvas) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def written(path: list[Canvas]) -> list[list[tuple[int, int]]]:
    """(position, token) of what each step changed."""
    steps = []
    for x, y in itertools.pairwise(path):
        at = np.flatnonzero((x.tokens != y.tokens) | (x.masked != y.masked))
        steps.append([(int(place), int(y.tokens[place])) for place in at])
    return steps


def compare(base: Plan, plan: Plan, model: Any, batch: list[Canvas]) -> list[RowRun]:
    """Runs of `plan` in a batch, held to the base's and to the reference interpreter's."""
    wrapped = Bare(FromNumpy(model))
    alone, _ = run(base, wrapped, batch)
    ours, _ = run(plan, wrapped, batch)
    for row, mine, theirs in zip(batch, ours, alone, strict=True):
        assert same(mine.canvas, theirs.canvas)
        assert mine.path == theirs.path
        assert mine.cost.calls <= theirs.cost.calls
        numpy_base = interpret(base, model, row)
        reference = interpret(plan, model, row)
        assert all(same(a, b) for a, b in zip(numpy_base.path, reference.path, strict=True))
        if written(numpy_base.path) != theirs.path:
            continue  # scores equal but for rounding, which numpy and torch order differently in the base already
        meters = reference.histories[-1]
        for name in ("drafted", "accepted", "off_base", "stale", "first"):
            assert mine.meters[name] == getattr(meters, name)[0], name
        if not any(
            item.op.name == "forward_cached" and item.attributes["view"] == "block_causal" for item in base.nodes()
        ):
            assert (reference.calls, reference.rows) == (mine.cost.calls, mine.cost.rows)
    return ours


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_policy_on_the_full_view(data):
    model = data.draw(st.one_of(small_models(), st.integers(0, 999).map(Steady)))
    base = data.draw(rules(ALONE)).plan()
    drafting = data.draw(st.sampled_from(["chain", scattered(seed=data.draw(st.integers(0, 99)))]))
    compare(base, speculate(base, drafting), model, [data.draw(rows(model)) for _ in range(2)])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_cached_views(data):
    view = data.draw(st.sampled_from(["prefix", "dual", "dual", "block_causal"]))
    model = data.draw(st.one_of(small_models(), st.integers(0, 999).map(Steady)))
    policy = data.draw(rules(BLOCKED))
    if "cfg_scale" in policy.settings:
        policy = policy.bind(cfg_scale=0.0)
    if view == "block_causal":
        policy = policy.bind(block_length=data.draw(st.integers(1, 4)))
    base = policy.plan(view)
    drafting = data.draw(st.sampled_from(["chain", scattered(seed=data.draw(st.integers(0, 99)))]))
    lookahead = data.draw(st.sampled_from(["exact", "none"]))
    batch = [data.draw(rows(model)) for _ in range(2)]
    if view == "block_causal":
        batch = [row._replace(start=np.asarray([0])) for row in batch]
    compare(base, speculate(base, drafting, lookahead=lookahead), model, batch)


def test_the_hard_paths_are_taken():
    """Rounds that accept, several rounds, a refresh crossed inside a round, an end inside one, rows apart."""
    base = POLICIES["llada_low_confidence"].bind(block_length=4).plan("dual")
    plan = speculate(base, "chain")
    seen = dict.fromkeys(("accepted", "rounds", "crossed", "ended", "apart"), 0)
    for seed in range(12):
        model = Steady(seed)
        stop = [int(model.table[5 + seed % 5, :5].argmax())]
        batch = [
            canvas([0] * (seed % 3), gen_length=12, vocab_size=6, mask_id=5, stop=stop),
            canvas([0], gen_length=9, vocab_size=6, mask_id=5),
        ]
        ours = compare(base, plan, model, batch)
        alone, _ = run(base, Bare(FromNumpy(model)), batch)
        for mine, theirs in zip(ours, alone, strict=True):
            seen["accepted"] += mine.meters["accepted"]
            seen["rounds"] += mine.cost.calls > 1
            refreshes = mine.cost.kinds.get("refresh", 0)
            seen["crossed"] += theirs.cost.kinds["refresh"] - refreshes > 0 and mine.meters["accepted"] > 0
            seen["ended"] += bool(mine.canvas.masked.any()) and mine.meters["accepted"] > 0
        seen["apart"] += len(ours[0].path) != len(ours[1].path)
    assert all(seen.values()), seen


def test_a_row_alone_and_in_a_batch_cost_the_same():
    base = POLICIES["fastdllm_threshold"].bind(block_length=4, threshold=0.97).plan("dual")
    plan, model = speculate(base, "chain"), Bare(FromNumpy(Steady(3)))
    batch = [canvas([0] * n, gen_length=11 - n, vocab_size=6, mask_id=5) for n in range(4)]
    together, total = run(plan, model, batch)
    alone = [run(plan, model, [row])[0][0] for row in batch]
    assert [row.cost.calls for row in together] == [row.cost.calls for row in alone]
    assert [row.cost.rows for row in together] == [row.cost.rows for row in alone]
    assert total.calls <= max(row.cost.calls for row in alone) + 1
    assert total.rows == sum(row.cost.rows for row in alone)


def test_logits_of_a_drafted_state_may_be_no_numbers():
    """A state that the trajectory never reaches may give NaN; the root's is an error with its place."""

    def fussy(tokens, positions, visible):
        logits = np.zeros((len(tokens), 4))
        logits[:, 1] = 3.0 - positions
        return np.where((tokens == 2).any(), np.nan, logits)

    @drafter
    def wrongly(x, logits, *, nodes=2):
        """A token that the model never says."""
        return [[{int(np.flatnonzero(x.masked)[0]): 2}]] if x.masked.any() else []

    model = FunctionModel(fussy, 4)
    base = POLICIES["fastdllm_threshold"].plan()
    ours = compare(base, speculate(base, wrongly), model, [canvas([0], gen_length=3, vocab_size=4, mask_id=3)])
    assert ours[0].meters["drafted"] == 2
    with pytest.raises(ts.TrajspecError, match="row 0, position 0, step 0: a logit is NaN"):
        run(speculate(base, wrongly), Bare(FromNumpy(model)), [canvas([2], gen_length=3, vocab_size=4, mask_id=3)])


def test_approximate_modes_are_the_interpreter_s():
    """Relaxed and subset acceptance, and the cheap look-ahead, in torch and in numpy: states and meters."""
    left = 0
    for seed in range(10):
        model = Steady(seed)
        for view, told in (
            ("full", {"accept": "relaxed", "strata": (0.5, 0.3)}), ("full", {"accept": "subset"}),
            ("dual", {"lookahead": "cheap"}), ("full", {"accept": "relaxed", "strata": (0.2,), "budget": 1.0}),
            ("full", {"accept": "relaxed", "strata": (0.2,), "budget": 1.0, "then": "stop"}),
        ):  # fmt: skip
            base = POLICIES["fastdllm_threshold"].bind(block_length=4, threshold=0.99).plan(view)
            plan = speculate(base, "chain", **told)
            batch = [canvas([0] * n, gen_length=10, vocab_size=6, mask_id=5) for n in (0, 2)]
            ours, _ = run(plan, Bare(FromNumpy(model)), batch)
            for row, mine in zip(batch, ours, strict=True):
                reference = interpret(plan, model, row)
                assert same(mine.canvas, reference.canvas)
                for name in ("drafted", "accepted", "off_base", "stale", "first", "sum_tv"):
                    assert mine.meters[name] == getattr(reference.histories[-1], name)[0], (told, name)
                left += mine.meters["off_base"] + mine.meters["stale"]
                if "budget" in told:
                    assert mine.meters["sum_tv"] <= 1.0
    assert left > 0


def test_a_flaw_runs_in_the_reference_interpreter_only():
    base = POLICIES["fastdllm_threshold"].plan()
    row = canvas([0], gen_length=3, vocab_size=6, mask_id=5)
    for told in ({"head": "node"}, {"accept": "tokens"}, {"isolate": False}, {"halt": "end"}):
        with pytest.raises(ts.TrajspecError, match="is a flaw that exists for the checker"):
            run(speculate(base, "chain", **told), Bare(FromNumpy(Steady(0))), [row])
    with pytest.raises(ts.TrajspecError, match="apply the pass `carry`"):
        run(speculate(base, "chain", carried=False), Bare(FromNumpy(Steady(0))), [row])


def test_drafters_that_give_what_no_canvas_can_be():
    model, row = Bare(FromNumpy(Steady(0))), canvas([0, 1], gen_length=3, vocab_size=6, mask_id=5)
    base = POLICIES["fastdllm_threshold"].plan()

    def drafting(paths):
        def drafted(x, logits, *, nodes=4):
            """Fixed trajectories."""
            return paths(x)

        return speculate(base, drafter(drafted))

    with pytest.raises(ts.TrajspecError, match="changed a position that was given"):
        run(drafting(lambda x: [[{0: 2}]]), model, [row])
    with pytest.raises(ts.TrajspecError, match="token 9 at position 3"):
        run(drafting(lambda x: [[{3: 9}]]), model, [row])
    with pytest.raises(ts.TrajspecError, match="drafter drafted: ZeroDivisionError"):
        run(drafting(lambda x: 1 // 0), model, [row])
    alone = run(base, model, [row])[0][0]
    for nothing in (lambda x: [], lambda x: None, lambda x: [[]]):
        assert run(drafting(nothing), model, [row])[0][0].cost.calls == alone.cost.calls
    assert trajectories(row, [[{2: 1}, {3: 2}], [{2: 1}]]).tokens.tolist() == [[0, 1, 1, 5, 5], [0, 1, 1, 2, 5]]


@pytest.mark.parametrize("name", ["tiny_llada", "tiny_dream"])
@pytest.mark.parametrize("view", ["full", "prefix", "dual", "block_causal"])
def test_real_networks_bit_for_bit(name, view):
    torch.manual_seed(0)
    model = ts.load_model(f"tests/goldens/{name}")
    policy = "fastdllm_dream_block" if name == "tiny_dream" else "fastdllm_threshold"
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [8] * 16] if view == "block_causal" else [[1, 2, 3, 4, 5], [6, 7], [8] * 9]
    options = {"policy": policy, "gen_length": 24, "block_length": 8, "threshold": 0.9, "cache": view}
    alone = ts.decode(model, prompts, **options)
    ours = ts.decode(model, prompts, draft="chain", require_exact=True, **options)
    assert [row.path for row in ours] == [row.path for row in alone]
    assert all(mine.calls <= theirs.calls for mine, theirs in zip(ours, alone, strict=True))
    report = ts.compare_calls(model, prompts[:1], draft="chain", **options)
    assert report.states > 3 and report.equal == report.states
