"""Masking, batches, resuming, and the decoder that scores the model."""

import sys

import pytest
import torch

from tools import evaluate, export, tokenizer, train
from tools.muon import orthogonal
from tools.tiny_model import TinyConfig, TinyModel


def test_exactly_k_of_the_response_are_hidden_and_k_is_spread_evenly():
    response = torch.zeros(40, 30, dtype=torch.bool)
    response[:, 10:] = True
    hidden, factor = train.hide(response, torch.zeros(40, dtype=torch.bool), torch.Generator().manual_seed(0))
    counts = hidden.sum(1)
    assert not (hidden & ~response).any()
    torch.testing.assert_close(factor[:, 0] * counts, torch.full((40,), 20.0))
    assert sorted(counts.tolist()) == sorted([*range(1, 21)] * 2)  # 40 strata on 20 values


def test_whole_rows_hide_all_of_their_response():
    response = torch.rand(20, 30, generator=torch.Generator().manual_seed(4)) < 0.3
    whole = torch.arange(20) % 2 == 0
    hidden, factor = train.hide(response, whole, torch.Generator().manual_seed(0))
    assert torch.equal(hidden[whole], response[whole]) and (factor[whole] == 1).all()
    assert not torch.equal(hidden[~whole], response[~whole])


def test_masked_loss_has_the_expectation_of_the_bound():
    """E[(R/k) sum over hidden of c] is (sum of c) * mean of 1: with constant weights every token counts once."""
    response = torch.ones(64, 12, dtype=torch.bool)
    cost, total = torch.rand(12, generator=torch.Generator().manual_seed(1)), torch.zeros(())
    for seed in range(200):
        hidden, factor = train.hide(response, torch.zeros(64, dtype=torch.bool), torch.Generator().manual_seed(seed))
        total += (cost * hidden * factor).sum(1).mean()
    torch.testing.assert_close(total / 200, cost.sum(), rtol=0.02, atol=0)


def test_batches_follow_the_state_and_pad_with_end_tokens():
    batches = train.Batches({"sort": 1.0, "code": 1.0}, seed=3)
    tokens, response, weight, names = batches.next(train.State(step=5), 8, 56)
    again = batches.next(train.State(step=5), 8, 56)[0]
    other = batches.next(train.State(step=5, counts={"sort": 100, "code": 100}), 8, 56)[0]
    assert torch.equal(tokens, again) and not torch.equal(tokens, other)
    eos, answer = batches.ids[tokenizer.EOS], batches.ids[tokenizer.ANSWER]
    for row, name in enumerate(names):
        start = tokens[row].tolist().index(answer) + 1
        end = tokens[row].tolist().index(eos) + 1
        assert name in ("sort", "code") and response[row].tolist() == [False] * start + [True] * (56 - start)
        assert (tokens[row, end:] == eos).all() and (weight[row, start:end] == 1).all()
    with pytest.raises(ValueError, match="does not fit 20"):
        batches.next(train.State(), 8, 20)


def test_a_drill_hides_what_it_asks_for_only():
    batches = train.Batches({"facts": 1.0}, seed=3)
    tokens, response, weight, _ = batches.next(train.State(), 2, 56)
    text = batches.tok.decode(tokens[0][response[0]].tolist())
    assert response.sum(1).tolist() == [12, 12] and torch.equal(weight > 0, response)
    assert text.split() == [line.split()[-1] for line in batches.tok.decode(tokens[0].tolist()).split(";")]


def test_orthogonal_update_has_singular_values_near_one():
    for shape in ((1, 12, 30), (1, 30, 12)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(2))))
        assert values.min() > 0.5 and values.max() < 1.5


def run(monkeypatch, out, *more):
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    monkeypatch.setattr(sys, "argv", ["train", "--out", str(out), "--rows", "4", "--sizes", "16", "1", "2", "16",
                                      "--long-every", "3", "--minutes", "1000", *more])
    train.main()
    return torch.load(out / "checkpoint.pt", weights_only=True)


@pytest.mark.parametrize("objective", ["masked", "next"])
def test_a_resumed_run_is_the_run(monkeypatch, tmp_path, objective):
    whole = run(monkeypatch, tmp_path / "a", "--objective", objective, "--steps", "6")
    run(monkeypatch, tmp_path / "b", "--objective", objective, "--steps", "4")
    parts = run(monkeypatch, tmp_path / "b", "--objective", objective, "--steps", "6", "--resume")
    assert parts["state"]["counts"] == whole["state"]["counts"] and parts["state"]["step"] == 6
    for kind in ("model", "ema"):
        for name, value in whole[kind].items():
            torch.testing.assert_close(parts[kind][name], value, rtol=0, atol=1e-6)
    short = run(monkeypatch, tmp_path / "c", "--objective", objective, "--steps", "5")
    assert not torch.equal(whole["model"]["wte.weight"], short["model"]["wte.weight"])


def test_training_starts_from_exported_weights(monkeypatch, tmp_path):
    first = run(monkeypatch, tmp_path / "a", "--steps", "3")
    export.save(export.from_checkpoint(tmp_path / "a" / "checkpoint.pt"), tmp_path / "exported", torch.float32)
    second = run(monkeypatch, tmp_path / "b", "--init", str(tmp_path / "exported"), "--steps", "0")
    assert all(torch.equal(second["model"][name], value) for name, value in first["ema"].items())


class Scripted(TinyModel):
    """Answers [7, 8, 9, end, end...] whatever it sees, the later the surer."""

    def forward(self, tokens, causal=False):
        logits = torch.zeros(*tokens.shape, 12)
        for place, token in enumerate([7, 8, 9] + [1] * (tokens.shape[1] - 5)):
            logits[:, 2 + place, token] = 3.0 + place
        return logits


@pytest.mark.parametrize(("threshold", "fewest", "most"), [(2.0, 32, 32), (0.0, 1, 1), (0.99, 2, 31)])
def test_decoding_commits_by_confidence_and_counts_calls(threshold, fewest, most):
    model = Scripted(TinyConfig(12, 16, 1, 2, 16))
    out = evaluate.decode(model, torch.zeros(3, 2, dtype=torch.long), 40, mask=11, eos=1, threshold=threshold)
    assert out.tokens[0, :4].tolist() == [7, 8, 9, 1]
    # The row ends within the first block of 32: the second is never asked.
    assert all(fewest <= calls <= most for calls in out.calls.tolist())


def test_interval_contains_the_share_and_narrows():
    low, high = evaluate.interval(90, 100)
    assert low < 0.9 < high and low > 0.82 and high < 0.95
    assert evaluate.interval(900, 1000)[0] > low
