"""Policies without recorded runs beside independent transcriptions: the same states on arbitrary small models."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trajspec as ts
from tests.policies.transcriptions.apd import apd
from tests.policies.transcriptions.dpad import dpad, suffix_kept
from tests.policies.transcriptions.fastdllm_v2 import fastdllm_v2
from tests.policies.transcriptions.sdar import sdar_sequential
from trajspec.exact.tabular import FixedModel, HashModel
from trajspec.ir import interpret
from trajspec.ir.interpret import evaluate
from trajspec.policies import POLICIES
from trajspec.runtime.denoiser import Bare, FromNumpy
from trajspec.runtime.loop import run

LEVELS = 997  # so many logits that positions do not tie by chance
VOCAB, MASK = 6, 5


class NextToken:
    """A model whose entries predict the token after them, as the library wants it: shifted to where it is about."""

    def __init__(self, model: Any, causal: bool = False) -> None:
        self.model, self.causal, self.vocab_size, self.mask_id = model, causal, model.vocab_size, model.mask_id

    def __call__(self, tokens: Any, positions: Any, visible: Any) -> Any:
        sees = np.ones((*tokens.shape, tokens.shape[1]), bool) if visible is None else visible
        if self.causal:
            sees = sees & (positions[:, None, :] <= positions[:, :, None])
        raw = self.model(tokens, positions, sees)
        return np.concatenate([raw[:, :1], raw[:, :-1]], axis=1)


def ours(name: str, view: str, model: Any, row: Any, settings: dict, torch_too: bool = True) -> list[list[int]]:
    """The states of the library's policy, the same in numpy and torch."""
    plan = POLICIES[name].bind(**settings).plan(view)
    path = interpret.run(plan, model, row).path
    states = [np.where(one.masked, -1, one.tokens).tolist() for one in path]
    if torch_too:
        inner = FromNumpy(model)
        (mine,), _ = run(plan, Bare(inner, others=inner.others), [row])
        pairs = zip(states, states[1:], strict=False)
        assert mine.path == [[(i, b[i]) for i in range(len(b)) if a[i] != b[i]] for a, b in pairs]
    return states


def start_of(prompt: list[int], length: int, seed: int, start: int | None = None, stop: tuple = ()) -> Any:
    told = {"vocab_size": VOCAB, "mask_id": MASK, "seed": seed, "stop": stop}
    row = ts.canvas(prompt, gen_length=length, **told)
    return row if start is None else row._replace(start=np.asarray([start]))


Case = tuple[list[list[int]], Callable[[str], list[list[int]]]]


def v2_case(chance: random.Random) -> Case:
    block, small = chance.choice([(2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (4, 4), (6, 2)])
    prompt = [chance.randrange(MASK) for _ in range(chance.randint(1, 2 * block + 1))]
    total = (len(prompt) // block + chance.randint(1, 3)) * block
    threshold, warm = chance.choice([0.2, 0.4, 0.6, 0.95]), chance.choice([0.0, 0.0, 0.8])
    p, stop, seed = chance.choice([None, 0.6, 0.95]), chance.choice([None, 1]), chance.getrandbits(40)
    model = HashModel(chance.getrandbits(20), VOCAB, LEVELS, MASK)
    settings = {
        "block_length": block, "small_block_size": small, "threshold": threshold, "temperature": warm, "top_p": p,
        "stop_id": stop,
    }  # fmt: skip
    # The runtime's block-causal windows have no logits of the entry before them, which a shifted model needs.
    mine = ours(
        "fastdllm_v2", "block_causal", NextToken(model), start_of(prompt, total - len(prompt), seed, 0), settings,
        torch_too=False,
    )  # fmt: skip

    def other(but: str) -> list[list[int]]:
        told = {"temperature": warm, "p": p, "stop_id": stop, "seed": seed, "but": but}
        return fastdllm_v2(model, MASK, prompt, total, block, small, threshold, **told)

    return mine, other


def sdar_case(chance: random.Random) -> Case:
    block, steps = chance.choice([2, 3, 4]), chance.choice([1, 2, 3, 4])
    steps = min(steps, block)
    prompt = [chance.randrange(MASK) for _ in range(chance.randint(0, 5))]
    total = (len(prompt) // block + chance.randint(1, 3)) * block
    warm, stop, seed = chance.choice([0.0, 0.9]), chance.choice([None, 1]), chance.getrandbits(40)
    model = HashModel(chance.getrandbits(20), VOCAB, LEVELS, MASK)
    settings = {"block_length": block, "denoising_steps": steps, "temperature": warm, "stop_id": stop}
    mine = ours("sdar_sequential", "block_causal", model, start_of(prompt, total - len(prompt), seed, 0), settings)

    def other(but: str) -> list[list[int]]:
        told = {"temperature": warm, "stop_id": stop, "seed": seed, "but": but}
        return sdar_sequential(model, MASK, prompt, total, block, steps, **told)

    return mine, other


def dpad_settings(chance: random.Random) -> dict[str, Any]:
    return {
        "dropout": chance.choice(["gaussian", "gaussian", "uniform"]), "sigma": chance.choice([1.0, 2.0, 4.0]),
        "scale": chance.choice([0.7, 2.0]), "window": chance.choice([2, 4, 256]),
    }  # fmt: skip


def dpad_case(chance: random.Random) -> Case:
    block, blocks = chance.choice([1, 2, 3]), chance.choice([2, 3])
    prompt = [chance.randrange(MASK) for _ in range(chance.randint(0, 3))]
    length = block * blocks
    threshold = chance.choice([None, 0.3, 0.5, 0.9])
    steps = blocks * chance.choice([1, 2, block])
    warm, eos, seed = chance.choice([0.0, 0.0, 0.7]), chance.choice([None, 1]), chance.getrandbits(40)
    preserved, drops = chance.choice([0, 1, 2]), dpad_settings(chance)
    model = HashModel(chance.getrandbits(20), VOCAB, LEVELS, MASK)
    settings = {
        "block_length": block, "threshold": threshold, "steps": steps, "temperature": warm, "eos_id": eos,
        "preserved_tokens": preserved, **drops,
    }  # fmt: skip
    mine = ours("dpad", "full", model, start_of(prompt, length, seed), settings)

    def other(but: str) -> list[list[int]]:
        told = {
            "threshold": threshold, "steps": steps, "preserved": preserved, "temperature": warm, "eos_id": eos,
            "seed": seed, "but": but,
        }  # fmt: skip
        return dpad(model, MASK, prompt, length, block, **drops, **told)

    return mine, other


def apd_case(chance: random.Random) -> Case:
    prompt = [chance.randrange(MASK) for _ in range(chance.randint(1, 3))]
    length, lookahead = chance.randint(1, 7), chance.choice([None, 1, 2, 4])
    weight = chance.choice([None, 0.0, 0.3, 0.7, 0.9, 1.0])
    tokens, warm = chance.choice([1, 3]), chance.choice([0.0, 0.0, 0.6])
    p, k, eos = chance.choice([None, 0.7]), chance.choice([None, 2]), chance.choice([None, 1])
    seed = chance.getrandbits(40)
    model = HashModel(chance.getrandbits(20), VOCAB, LEVELS, MASK)
    verifier = HashModel(chance.getrandbits(20), VOCAB, LEVELS, MASK)
    settings = {
        "apd_mixture_weight": weight, "max_lookahead": lookahead, "tokens_per_step": tokens, "temperature": warm,
        "top_p": p, "top_k": k,
    }  # fmt: skip
    shifted = NextToken(model)
    shifted.others = {"ar": NextToken(verifier, causal=True)}
    mine = ours("apd", "full", shifted, start_of(prompt, length, seed, stop=() if eos is None else (eos,)), settings)

    def other(but: str) -> list[list[int]]:
        told = {"tokens_per_step": tokens, "temperature": warm, "p": p, "k": k, "eos_id": eos, "seed": seed, "but": but}
        return apd(model, verifier, MASK, prompt, length, weight, lookahead, **told)

    return mine, other


#: How to draw a case, and the details that a wrong transcription may get wrong.
POLICIES_HERE: dict[str, tuple[Callable[[random.Random], Case], tuple[str, ...]]] = {
    "fastdllm_v2": (v2_case, ("no_first", "warm_first", "whole_block", "unshifted")),
    "sdar_sequential": (sdar_case, ("share_of_masks", "sees_all", "one_less", "last_first")),
    "dpad": (dpad_case, ("off_by_one", "drawn_anew", "no_suffix", "close_up")),
    "apd": (apd_case, ("sees_all", "verifier_unshifted", "swapped", "first_not_forced", "skips")),
}
COUNT = 120


@pytest.mark.parametrize("name", POLICIES_HERE)
def test_the_states_of_the_transcription(name):
    draw_case, details = POLICIES_HERE[name]
    chance, met = random.Random(name), Counter()
    for _ in range(COUNT):
        mine, other = draw_case(chance)
        assert mine == other("")
        met["several steps"] += len(mine) > 3
        met["several tokens in a step"] += any(
            sum(a != b for a, b in zip(one, after, strict=True)) > 1 for one, after in zip(mine, mine[1:], strict=False)
        )
        met["ended early"] += -1 in mine[-1]
        for but in details:
            met[but] += mine != other(but)
    for fact in ("several steps", "several tokens in a step", *details):
        assert met[fact] >= 5, (fact, met)
    assert met["ended early"] or name == "dpad", met  # which fills up what is left


# Thresholds and ties, where an arbitrary model never stands.

EVEN = (0, 0.0)  # with the mask id (2) left out: two tokens of probability 1/2
SURE = (0, 9000.0)


def steps_of(name: str, logits: list, settings: dict, others: Any = None) -> list[list[int]]:
    """The positions that each step writes."""
    model = FixedModel(logits, vocab_size=3)
    if others is not None:
        model.others = {"ar": FixedModel(others, vocab_size=3)}
    row = ts.canvas([], gen_length=len(logits), vocab_size=3, mask_id=2)
    states = ours(name, "full", model, row, settings)
    return [[i for i in range(len(b)) if a[i] != b[i]] for a, b in zip(states, states[1:], strict=False)]


@pytest.mark.parametrize(
    ("name", "settings", "logits", "written"),
    [
        # Above the threshold: at equality the leftmost goes alone. The first of a block always does.
        ("fastdllm_v2", {"threshold": 0.5, "block_length": 4}, [EVEN] * 4, [[0], [1], [2], [3]]),
        ("fastdllm_v2", {"threshold": 0.49999, "block_length": 4}, [EVEN] * 4, [[0], [1, 2, 3]]),
        ("fastdllm_v2", {"threshold": 0.5, "block_length": 4}, [EVEN, EVEN, SURE, SURE], [[0], [2, 3], [1]]),
        (
            "fastdllm_v2", {"threshold": 0.4, "block_length": 4, "small_block_size": 2}, [EVEN] * 4,
            [[0], [1], [2, 3]],
        ),
        # At least the threshold.
        ("dpad", {"threshold": 0.5, "block_length": 4}, [EVEN] * 4, [[0, 1, 2, 3]]),
        ("dpad", {"threshold": 0.50001, "block_length": 4}, [EVEN] * 4, [[0], [1], [2], [3]]),
        ("dpad", {"steps": 2, "block_length": 4}, [EVEN] * 4, [[0, 1], [2, 3]]),
        # Where positions stand decides, however sure they are.
        ("sdar_sequential", {"denoising_steps": 3}, [EVEN, EVEN, EVEN, SURE], [[0, 1], [2], [3]]),
    ],
)  # fmt: skip
def test_equality_and_ties(name, settings, logits, written):
    assert steps_of(name, logits, settings) == written


def test_the_transcriptions_stand_at_a_threshold_as_well():
    # With the other comparison they part, so the tests above would notice.
    model = FixedModel([EVEN] * 4, vocab_size=3)
    row = ts.canvas([], gen_length=4, vocab_size=3, mask_id=2)
    told = {"threshold": 0.5, "block_length": 4}
    assert ours("dpad", "full", model, row, told) == dpad(model, 2, [], 4, 4, threshold=0.5)
    assert ours("dpad", "full", model, row, told) != dpad(model, 2, [], 4, 4, threshold=0.5, but="above")
    row = ts.canvas([0], [False], gen_length=3, vocab_size=3, mask_id=2)
    mine = ours("fastdllm_v2", "block_causal", NextToken(model), row, told, torch_too=False)
    assert mine == fastdllm_v2(model, 2, [0], 4, 4, 4, 0.5)
    assert mine != fastdllm_v2(model, 2, [0], 4, 4, 4, 0.5, but="at_least")


def test_the_lowest_id_wins_in_a_mixture_that_ties():
    told = {"apd_mixture_weight": 0.5, "max_lookahead": None}
    agree, lean = {0: 0.0, 1: 0.0}, {0: 0.0, 1: 1e-9}
    assert steps_of("apd", [EVEN] * 3, told, [agree] * 3) == [[0, 1, 2]]  # both tie: 0 was drafted, 0 is the target
    assert steps_of("apd", [EVEN] * 3, told, [agree, lean, agree]) == [[0], [1, 2]]
    # What the first position of a draft is to be is not asked.
    assert steps_of("apd", [EVEN] * 3, told, [lean] * 3) == [[0], [1], [2]]


# DPad: real dropout, drawn once for each block, and gone when everything is kept.


def kept_by(settings: dict, seed: int, committed: int) -> list[int]:
    """The masks behind the first block of 2 (of 8) that the model is shown, `committed` tokens into it."""
    told = {"block_length": 2, **settings}
    plan = POLICIES["dpad"].bind(**told).plan()
    row = start_of([0], 8, seed)
    row = row._replace(masked=row.masked & (row.position > committed))
    query = next(node for node in plan.nodes() if node.op.name == "without").results[0]
    made = evaluate([query], {plan.carried[0]: row})[query]
    return [at for at in range(3, 9) if not made.absent[at]]


def test_the_suffix_is_drawn_once_a_block_and_by_the_seed():
    settings = {"window": 6, "sigma": 2.0, "scale": 2.0}
    seen = {seed: kept_by(settings, seed, 0) for seed in range(40)}
    for seed, kept in seen.items():
        assert kept == kept_by(settings, seed, 1)
        assert kept == suffix_kept("gaussian", list(range(3, 9)), seed, 0, 2.0, 2.0, 6, 0)
    assert len({tuple(kept) for kept in seen.values()}) > 10
    # The first mask stays with probability 2 / sqrt(2 pi), the last of the window with 2 exp(-2) / sqrt(2 pi).
    drawn = [kept_by(settings, seed, 0) for seed in range(500)]
    shares = [np.mean([at in kept for kept in drawn]) for at in (3, 8)]
    expected = [2 / np.sqrt(2 * np.pi), 2 * np.exp(-2) / np.sqrt(2 * np.pi)]
    assert np.abs(np.array(shares) - expected).max() < 0.07


def test_uniform_dropout_keeps_so_many_of_the_window():
    for seed in range(20):
        kept = kept_by({"dropout": "uniform", "window": 4, "preserved_tokens": 2}, seed, 0)
        assert len(kept) == 2 and set(kept) <= {3, 4, 5, 6}
    assert kept_by({"dropout": "uniform", "window": 4, "preserved_tokens": 9}, 0, 0) == [3, 4, 5, 6]


def test_with_everything_kept_it_is_the_policy_that_keeps_all():
    met = Counter()
    for seed in range(30):
        model = HashModel(seed, VOCAB, LEVELS, MASK)
        row = start_of([0, 1], 6, seed)
        base = {"block_length": 2, "threshold": 0.5}
        whole = ours("dpad_all_kept", "full", model, row, base)
        assert ours("dpad", "full", model, row, base | {"scale": 1e9, "window": 6, "sigma": 1.0}) == whole
        met["thinned differs"] += ours("dpad", "full", model, row, base) != whole
    assert met["thinned differs"] > 10


def test_a_thinned_call_costs_what_is_shown():
    model, row = HashModel(3, VOCAB, LEVELS, MASK), start_of([0], 8, 0)
    settings = {"block_length": 2, "dropout": "uniform", "preserved_tokens": 1, "window": 6}
    done = interpret.run(POLICIES["dpad"].bind(**settings).plan(), model, row)
    # One token a step: two calls a block on 1 + 2 entries and one mask behind them, then two more each block.
    assert (done.calls, done.positions) == (8, 2 * (3 + 1) + 2 * (5 + 1) + 2 * (7 + 1) + 2 * 9)
    (_,), cost = run(POLICIES["dpad"].bind(**settings).plan(), FromNumpy(model), [row])
    assert (cost.calls, cost.positions) == (done.calls, done.positions)


def test_unknown_dropout_is_refused():
    with pytest.raises(ts.TrajspecError, match="dropout is 'none', expected gaussian or uniform"):
        POLICIES["dpad"].bind(dropout="none").plan()
