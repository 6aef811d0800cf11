"""The verification of the runtime: its law on many rows at once, and what it does case by case."""

from __future__ import annotations

import math

import pytest
import torch

from trajspec.completion import verify
from trajspec.completion.drafts import Drafting
from trajspec.completion.verify import Processing, Verification, judge
from trajspec.ir import TrajspecError

ROWS = 60_000
WARM = Verification("rejection", Processing(1.0))


def drawn(laws: torch.Tensor, seed: int) -> torch.Tensor:
    """Tokens [R, K, k] drawn from laws [K, k, V]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [
            torch.stack([torch.multinomial(row, ROWS, True, generator=generator) for row in one], 1)
            for one in laws
        ], 1,
    )  # fmt: skip


def frequencies(tokens: torch.Tensor, size: int) -> torch.Tensor:
    return torch.bincount(tokens, minlength=size).double() / len(tokens)


def first_two(q: torch.Tensor, p: torch.Tensor, second: torch.Tensor, drafts: int = 1, spoil: float = 0.0):
    """The law of the first token, and of the second given each first one, over many rows.

    p [V]: the target's law of the first token; second [V, V]: of the second after each first one; q [2, V]: the law of
    drafts, which are said to be of q sharpened by `spoil`.
    """
    size = len(p)
    tokens = drawn(q.expand(drafts, -1, -1), 3)
    said = (q * (1 + spoil * torch.arange(size))).log().log_softmax(-1)
    logits = torch.stack(
        [p.log().expand(ROWS, drafts, -1), second.log()[tokens[:, :, 0]], torch.zeros(ROWS, drafts, size)], 2
    )
    each = torch.arange(ROWS)
    told = judge(
        WARM, logits, tokens, torch.full((ROWS,), 2), said.expand(ROWS, drafts, -1, -1), each, each * 0, each * 0, None
    )
    return told


Q = torch.tensor([[0.6, 0.1, 0.3], [0.2, 0.5, 0.3]], dtype=torch.float64)
P = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
SECOND = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_the_law_of_what_is_written(drafts):
    told = first_two(Q, P, SECOND, drafts)
    off = (frequencies(told.tokens[:, 0], 3) - P).abs().max()
    assert off < 0.008
    for token in range(3):
        rows = (told.tokens[:, 0] == token) & (told.count >= 2)
        # Given that the first draft was accepted the second token has the target's law after it.
        assert (frequencies(told.tokens[rows, 1], 3) - SECOND[token]).abs().max() < 0.02
    more = first_two(Q, P, SECOND, drafts + 3)
    assert more.count.double().mean() > told.count.double().mean() > 1.3


def test_another_law_than_the_one_drawn_from_is_noticed():
    """Control: with the wrong q the law is off by far more than the bound above."""
    told = first_two(Q, P, SECOND, spoil=1.5)
    assert (frequencies(told.tokens[:, 0], 3) - P).abs().max() > 0.03


@pytest.mark.parametrize("name", ["coin", "resid"])
def test_shared_noise_would_be_noticed(name, monkeypatch):
    """Control (G6, G11): noise that is not a number of its own gives another law."""
    p, q = torch.tensor([1.0, 1.0, 1.0]).double() / 3, torch.tensor([[1.0, 0.0, 0.0]] * 2).double()
    fair = first_two(q, p, p.expand(3, 3))
    assert (frequencies(fair.tokens[:, 0], 3) - p).abs().max() < 0.008
    if name == "coin":
        monkeypatch.setattr(verify.noise, "uniform", lambda seed, *key: torch.full_like(seed, 0.6, dtype=torch.float64))
    else:
        gumbel = verify.noise.gumbel
        monkeypatch.setattr(verify.noise, "gumbel", lambda seed, role, *key: gumbel(seed * 0, role, *key))
    unfair = first_two(q, p, p.expand(3, 3))
    assert (frequencies(unfair.tokens[:, 0], 3) - p).abs().max() > 0.1


def one(logits, drafted, rule="equality", processing=None, lengths=None, law=None, **keys):
    logits, drafted = torch.tensor(logits)[None, None], torch.tensor(drafted, dtype=torch.int64)[None, None]
    zero = torch.zeros(1, dtype=torch.int64)
    count = torch.tensor([drafted.shape[-1] if lengths is None else lengths])
    told = judge(
        Verification(rule, processing or Processing()), logits, drafted, count, law, zero + keys.get("seed", 0),
        zero + keys.get("done", 0), zero + 3, keys.get("seen"),
    )  # fmt: skip
    return told.tokens[0, : int(told.count[0])].tolist()


LOGITS = [[0.0, 3.0, 1.0], [2.0, 0.0, 1.0], [0.0, 1.0, 5.0]]


def test_equality_case_by_case():
    assert one(LOGITS, [1, 0]) == [1, 0, 2]  # all match, and one more
    assert one(LOGITS, [1, 2]) == [1, 0]  # the target's token in place of the draft
    assert one(LOGITS, [2, 0]) == [1]
    assert one(LOGITS, [1, 0], lengths=1) == [1, 0]  # the draft has one token only
    assert one(LOGITS, [1, 0], lengths=0) == [1]
    assert one([LOGITS[0]], []) == [1]
    # Greedy rejection is equality (a draft that is the likeliest token has probability 1).
    assert one(LOGITS, [1, 2], rule="rejection") == [1, 0]


def test_ties_go_to_the_lowest_id():
    assert one([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]], [1]) == [0]
    assert one([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]], [0]) == [0, 1]


def test_a_penalty_counts_what_was_written_in_the_same_round():
    told = Processing(repetition_penalty=4.0)
    seen = torch.zeros(1, 3, dtype=torch.bool)
    same = [[0.0, 3.0, 1.0]] * 3
    assert one(same, [1, 1]) == [1, 1, 1]
    # After token 1 is written its logit is 0.75, below that of token 2.
    assert one(same, [1, 1], processing=told, seen=seen) == [1, 2]
    assert one(same, [1, 2], processing=told, seen=seen) == [1, 2, 1]


def test_cut_tokens_are_never_written():
    told = Processing(1.0, top_k=1)
    for seed in range(20):
        assert one(LOGITS, [1, 0], processing=told, seed=seed) == [1, 0, 2]
    law = torch.tensor([[[[0.0, -math.inf, -math.inf], [-math.inf, -math.inf, 0.0]]]]).double()
    for seed in range(20):
        assert one(LOGITS, [0, 2], rule="rejection", processing=told, law=law, seed=seed) == [1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Processing(temperature=-1), "temperature is -1"),
        (lambda: Processing(top_k=0), "top_k is 0"),
        (lambda: Processing(top_p=1.5), "top_p is 1.5"),
        (lambda: Processing(repetition_penalty=0), "repetition_penalty is 0"),
        (lambda: Verification("hope", Processing()), "verify is 'hope'"),
        (lambda: Drafting("fast"), "draft is 'fast'"),
        (lambda: Drafting(length=0), "length is 0"),
        (lambda: Drafting(length="long"), "'adaptive'"),
        (lambda: Drafting("left_to_right", drafts=2), "mean_field"),
        (lambda: Drafting(drafts=100), "at most 64"),
        (lambda: one(LOGITS, [1, 0], rule="rejection", processing=Processing(1.0)), "probabilities"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(TrajspecError, match=message):
        make()
