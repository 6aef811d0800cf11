"""A policy may ask more than one model, and show less than the canvas: what is seen, its cost, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import trajspec as ts
from tests.policies.transcriptions.apd import apd
from tests.toys import text_model
from trajspec.exact.tabular import FunctionModel, HashModel
from trajspec.ir import TrajspecError, interpret, parse
from trajspec.ir.query import Query
from trajspec.ir.query import ask as ask_numpy
from trajspec.passes import speculate
from trajspec.policies import POLICIES
from trajspec.runtime.denoiser import FromNumpy
from trajspec.runtime.further import SameIds
from trajspec.runtime.loop import run
from trajspec.runtime.models.causal import Autoregressive
from trajspec.runtime.query import ask

V, MASK = 6, 5


def model(seed: int, vocab: int = V) -> HashModel:
    return HashModel(seed, vocab, 997, vocab - 1)


def network(kind: str, vocab: int = V, seed: int = 0):
    """A tiny causal language model of transformers with random weights."""
    import transformers

    torch.manual_seed(seed)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=vocab, n_embd=16, n_layer=2, n_head=2, n_positions=32, initializer_range=0.4
        )
        return transformers.GPT2LMHeadModel(config).double().eval()
    config = transformers.Qwen2Config(
        vocab_size=vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, initializer_range=0.4,
    )  # fmt: skip
    return transformers.Qwen2ForCausalLM(config).double().eval()


def whole(x):
    """The canvas as it is, as a query."""
    return ts.hide(x, where=ts.masked(x))


# A causal language model of transformers is a further model.


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_a_causal_model_says_what_comes_from_what_stands_before(kind):
    inner = network(kind)
    ours = Autoregressive(inner)
    tokens = torch.tensor([[1, 2, 3, 4, 0], [4, 4, 1, 0, 2]])
    positions = torch.arange(5).expand(2, 5)
    with torch.inference_mode():
        raw = inner(input_ids=tokens).logits
    logits = ours(tokens, positions, None)
    torch.testing.assert_close(logits[:, 1:], raw[:, :-1])
    torch.testing.assert_close(logits[:, 0], raw[:, 0])
    # Padding behind a row, and what is hidden from it, changes nothing.
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    visible = real[:, None, :] & real[:, :, None]
    padded = ours(torch.where(real, tokens, 5), torch.where(real, positions, 0), visible)
    torch.testing.assert_close(padded[0], logits[0])
    torch.testing.assert_close(padded[1, :3], logits[1, :3])
    # The control: without the mask the padding would not be told from tokens by a model that looks ahead.
    assert not torch.allclose(ours(tokens.flip(1), positions, None)[:, 2], logits[:, 2])


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_apd_with_a_causal_model_of_transformers(kind):
    inner = network(kind)

    def verifier(tokens, positions, visible):
        with torch.inference_mode():
            return inner(input_ids=torch.from_numpy(tokens)).logits.numpy()

    differs = 0
    for seed in range(6):
        first = model(seed)
        told = {"policy": "apd", "gen_length": 6, "apd_mixture_weight": 0.3, "max_lookahead": 4}
        batch = ts.decode(first, [[1, 2], [3, 0, 1]], models={"ar": inner}, **told)
        for row, prompt in zip(batch, [[1, 2], [3, 0, 1]], strict=True):
            alone = ts.decode(first, [prompt], models={"ar": inner}, **told)[0]
            assert (row.token_ids, row.path, row.calls) == (alone.token_ids, alone.path, alone.calls)
            # A diffusion model in its own place, here: the transcription shifts what it gets.
            raw = Unshifted(first)
            states = apd(raw, verifier, MASK, prompt, 6, 0.3, 4)
            assert states[-1][len(prompt) :] == row.token_ids and len(states) == row.base_steps + 1
            differs += states != apd(raw, verifier, MASK, prompt, 6, 0.9, 4)
    assert differs >= 3


class Unshifted:
    """`model` as one whose entries predict the token after them: at each entry what `model` says of the next one."""

    def __init__(self, inner):
        self.inner, self.vocab_size, self.mask_id = inner, inner.vocab_size, inner.mask_id

    def __call__(self, tokens, positions, visible):
        about = self.inner(tokens, positions, visible)
        return np.concatenate([about[:, 1:], about[:, -1:]], axis=1)


def test_a_model_of_another_vocabulary_size():
    tokens, positions = torch.tensor([[1, 7, 2]]), torch.arange(3)[None]
    small = Autoregressive(network("qwen2", 5))
    shown = torch.tensor([[1, 4, 2]])
    wide = SameIds(small, 8)(tokens, positions, None)
    assert wide.shape == (1, 3, 8) and bool((wide[..., 5:] == -torch.inf).all())
    assert torch.equal(wide[..., :5], small(shown, positions, None))
    large = Autoregressive(network("qwen2", 9))
    assert torch.equal(SameIds(large, 8)(tokens, positions, None), large(tokens, positions, None)[..., :8])
    told = {"policy": "apd", "gen_length": 5, "models": {"ar": network("qwen2", 4)}}
    assert set(ts.decode(model(0), [[5, 1]], **told)[0].token_ids) <= {0, 1, 2, 3, 4}


def test_what_further_models_cost_and_what_the_manifest_says():
    told = {"policy": "apd", "gen_length": 6, "max_lookahead": 3, "models": {"ar": model(9)}}
    result = ts.decode(model(1), [[1, 2]], **told)
    row = result[0]
    assert row.calls_by_kind["further"] == row.calls_by_kind["step"] == row.base_steps
    assert row.calls == result.totals.calls == 2 * row.base_steps and row.rows == row.calls
    lengths, cur = [], 2
    for step in row.path:
        lengths.append(min(cur + 3, 8))
        cur += len(step)
    assert row.positions == 2 * sum(lengths)
    assert json.loads(json.dumps(row.manifest))["models"] == {"ar": "HashModel"}
    alone = ts.decode(model(1), [[1, 2]], policy="apd", apd_mixture_weight=None, gen_length=6)[0]
    assert alone.calls == alone.base_steps == 6 and alone.manifest["models"] == {}
    pieces = list(ts.stream(text_model("abcd"), "", gen_length=4, policy="apd", models={"ar": text_model("abcd")}))
    assert "".join(piece.text for piece in pieces) == "abcd"


def test_a_further_model_is_shown_its_own_mask():
    @ts.policy
    def two(x, logits, other=ts.query(whole, model="b")):
        """Commit the surest by the sum of two models."""
        token, conf = ts.score(logits + other)
        return ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))

    seen = []

    def fn(tokens, positions, visible):
        seen.append(tokens.tolist())
        return np.zeros((len(tokens), V))

    second = FunctionModel(fn, V, 0)
    result = ts.decode(model(2), [[1, 5]], policy=two, gen_length=2, models={"b": second})
    assert seen[0] == [1, 5, 0, 0]  # its mask id is 0; the 5 of the prompt is data
    first = model(2)
    first.others = {"b": second}
    row = ts.canvas([1, 5], gen_length=2, vocab_size=V, mask_id=MASK)
    done = interpret.run(two.plan(), first, row)
    assert done.canvas.tokens.tolist()[2:] == result[0].token_ids
    assert seen[-1][2:].count(0) == 1


# What is refused.


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({}, "policy apd asks a further model 'ar'; give models="),
        ({"models": {}}, "policy apd asks a further model 'ar'; give models="),
        ({"models": {"arr": model(0)}}, "models has arr for policy apd; it asks: ar"),
        ({"models": {"ar": model(0), "b": model(0)}}, "models has b for policy apd; it asks: ar"),
        ({"models": [model(0)]}, "models is .*, expected"),
        ({"models": {"ar": 3}}, "model is int; expected a name or path"),
        ({"models": {"ar": model(0)}, "policy": "threshold"}, "models has ar for policy fastdllm_threshold"),
        (
            {"models": {"ar": model(0)}, "draft": "chain"},
            "plan apd cannot be speculated: its step asks",
        ),
        ({"models": {"ar": network("qwen2").train()}}, "Qwen2ForCausalLM is in training mode; call its eval"),
        ({"models": {"ar": network("gpt2")}, "gen_length": 40}, "GPT2LMHeadModel: the canvas has 42 .* takes 32"),
        ({"models": {"ar": model(0)}, "cache": "dual"}, "apd: view dual takes one query, the canvas"),
    ],
)
def test_what_decode_refuses(told, message):
    told = {"policy": "apd", "gen_length": 4} | told
    with pytest.raises(TrajspecError, match=message):
        ts.decode(model(1), [[1, 2]], **told)


def test_what_a_declaration_refuses():
    with pytest.raises(TrajspecError, match="a further model has a name, got 3"):
        ts.query(whole, model=3)
    with pytest.raises(TrajspecError, match="a further model has a name, got 'a b'"):
        ts.query(whole, model="a b")
    with pytest.raises(TrajspecError, match="argument 'logits' is what the model says"):

        @ts.policy
        def wrong(x, logits=3):
            return x

    with pytest.raises(TrajspecError, match="argument 'logits' is what the model says"):

        @ts.policy
        def other(x, logits=ts.query(whole, model="ar")):
            return x

    row = ts.canvas([1], gen_length=2, vocab_size=V, mask_id=MASK)
    for attempt in (interpret.run, lambda plan, one, row: run(plan, FromNumpy(one), [row])):
        with pytest.raises(TrajspecError, match="the plan asks a further model 'ar', and none was given"):
            attempt(POLICIES["apd"].plan(), model(0), row)
    with pytest.raises(TrajspecError, match="a step may call the model once"):
        parse(str(POLICIES["apd"].plan()).replace("ar = forward(query3, by='ar')", "ar = forward(query3)"))
    with pytest.raises(TrajspecError, match="by is 'a b', expected a name"):
        parse(str(POLICIES["apd"].plan()).replace("by='ar'", "by='a b'"))


def test_the_text_of_a_plan_with_two_models_reads_back():
    plan = POLICIES["apd"].plan()
    assert "ar = forward(query3, by='ar')" in str(plan) and plan.models == ("ar",)
    assert parse(str(plan)) == plan
    assert POLICIES["apd"](apd_mixture_weight=None).plan().models == ()


def test_of_several_questions_to_a_further_model_those_that_are_read_are_asked():
    @ts.policy
    def mine(x, logits, a=ts.query(whole, model="ar"), b=ts.query(whole, model="ar"), c=ts.query(whole, model="z")):
        token, conf = ts.score(logits + b)
        return ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))

    assert mine.plan().models == ("ar",)
    assert str(mine.plan()).count("forward(") == 2


# Positions that are left out of a row.


def test_asking_without_some_positions():
    random = np.random.default_rng(0)
    one, compared = model(4), 0
    for _ in range(60):
        length, count = int(random.integers(1, 6)), int(random.integers(1, 3))
        rows = [
            ts.canvas(random.integers(0, MASK, 2), gen_length=length - 1, vocab_size=V, mask_id=MASK)
            for _ in range(count)
        ]
        x = ts.Canvas(*(np.stack(parts) for parts in zip(*rows, strict=True)))
        absent = random.random(x.tokens.shape) < 0.4
        hidden = Query(x.tokens, x.masked | (random.random(x.tokens.shape) < 0.3), None, None, absent, x)
        queries = [hidden] if random.random() < 0.5 else [x, hidden]
        answers = ask_numpy(one, queries, False)
        tensors = [type(query)(*map(as_tensor, query)) for query in queries]
        theirs, bad, empty = ask(FromNumpy(one), tensors, False, all_real=True)
        assert not (bad | empty).any()
        for mine, other in zip(answers, theirs, strict=True):
            np.testing.assert_array_equal(mine, other.numpy())
        for row in range(count):
            there = np.flatnonzero(~absent[row])
            shown = np.where(hidden.masked, MASK, x.tokens)[row, there]
            assert np.isnan(answers[-1][row, absent[row], 0]).all()
            if len(there):
                expected = one(shown[None], there[None], None)[0]
                np.testing.assert_array_equal(answers[-1][row, there][:, :MASK], expected[:, :MASK])
                compared += len(there) < length
    assert compared > 20


def as_tensor(part):
    if isinstance(part, tuple):
        return type(part)(*map(as_tensor, part))
    return torch.from_numpy(part) if isinstance(part, np.ndarray) else part


def test_twins_stand_beside_the_whole_canvas():
    @ts.policy
    def mine(x, logits, look=ts.query(lambda x: ts.without(ts.twins(x, where=ts.free(x)), where=ts.masked(x)))):
        token, conf = ts.score(look)
        return ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))

    row = ts.canvas([1], gen_length=2, vocab_size=V, mask_id=MASK)
    for attempt in (interpret.run, lambda plan, one, row: run(plan, FromNumpy(one), [row])):
        with pytest.raises(TrajspecError, match="twins go with the whole canvas"):
            attempt(mine.plan(), model(0), row)


def half(x):
    """Another half of the masks at every step."""
    return ts.without(x, where=ts.masked(x) & (ts.uniform(x) < 0.5) & ~ts.first(1, where=ts.masked(x)))


@ts.policy
def flickering(x, logits=ts.query(half)):
    """Commit the first mask, which is always shown, from a canvas of which something else is left out each time."""
    return ts.unmask(x, ts.argmax(logits), where=ts.first(1, where=ts.masked(x)))


def counting(tokens, positions, visible):
    """Surely token 0 or 1, by how much is shown."""
    logits = np.zeros((len(tokens), V))
    logits[:, visible.sum(axis=1).max() % 2] = 5.0
    return logits


def differing(seeds: int) -> int:
    """In how many runs the speculated plan leaves the states of its base."""
    base, count = flickering.plan(), 0
    plan = speculate(base, "frozen")
    for seed in range(seeds):
        one = FunctionModel(counting, V, MASK)
        row = ts.canvas([0], gen_length=5, vocab_size=V, mask_id=MASK, seed=seed)
        alone, ahead = interpret.run(base, one, row).path, interpret.run(plan, one, row).path
        (mine,), _ = run(plan, FromNumpy(one), [row])
        assert mine.canvas.tokens.tolist() == ahead[-1].tokens.tolist()
        states = [[state.tokens.tolist() for state in path] for path in (alone, ahead)]
        count += states[0] != states[1]
    return count


def test_what_is_left_out_is_part_of_the_key():
    assert differing(60) == 0


def test_a_key_that_does_not_hold_it_is_noticed(monkeypatch):
    from trajspec.ir.opset import verify, walk
    from trajspec.runtime import verify as torch_verify

    def careless(of, known, key="view"):
        asked = verify.arguments(of, known)
        return ("full", *(np.where(query.masked, MASK, query.tokens).tobytes() for query in asked))

    for module in (verify, walk):
        monkeypatch.setattr(module, "view_key", careless)
    monkeypatch.setattr(
        torch_verify.Verifier, "key",
        lambda self, arguments, known: tuple(torch.where(query.masked, MASK, query.tokens) for query in arguments),
    )  # fmt: skip
    assert differing(60) > 0
