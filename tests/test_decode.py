"""decode, infill and stream: text, stop strings, allowed sets, results, manifests, option names."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import trajspec as ts
from tests.policies.rules import OF_TOKENS
from tests.toys import EOS, PAD, Counting, InTorch, further, text_model
from trajspec.decoding import Piece, as_model, stream
from trajspec.exact.tabular import FixedModel
from trajspec.options import ALIASES, canonical
from trajspec.policies import get_policy
from trajspec.result import KINDS_OF_CALLS

MODEL = FixedModel([(3, 2.0), (4, 1.0), (2, 3.0), (1, 2.5), (5, 0.5), (6, 0.1)])


def outcome(generator):
    """The pieces of a stream, and its result."""
    pieces = []
    while True:
        try:
            pieces.append(next(generator))
        except StopIteration as end:
            return pieces, end.value


# T22: stop strings


def test_t22_a_stop_string_across_pieces_ends_the_stream():
    # Blocks of two letters, all sure: a step a block.
    model = text_model("abSTOPcd")
    pieces, result = outcome(stream(model, "", gen_length=8, block_length=2, threshold=0.5, stop="STOP"))
    assert [piece.text for piece in pieces if piece.text] == ["ab"]
    assert pieces[-1].final and not pieces[0].final
    row = result[0]
    assert (row.text, row.finish_reason, row.calls) == ("ab", "stop", 3)
    assert (row.answer_tokens, row.token_ids) == (2, [0, 1] + [PAD] * 6)


def test_t22_what_only_looked_like_one_is_shown():
    model = text_model("abSTay")
    pieces, result = outcome(stream(model, "", gen_length=6, block_length=2, threshold=0.5, stop=["STOP"]))
    assert [piece.text for piece in pieces if piece.text] == ["ab", "STay"]
    assert (result[0].text, result[0].finish_reason, result[0].calls) == ("abSTay", "length", 3)


def test_t22_a_stop_string_in_the_last_step():
    result = ts.decode(text_model("abSTOP"), "", gen_length=6, block_length=6, threshold=0.5, stop="STOP")
    assert (result.text, result[0].finish_reason, result[0].calls) == ("ab", "stop", 1)


def test_t22_tokens_behind_a_gap_do_not_belong_to_the_answer():
    # The last letter is written first; the stop string is complete while position 4 is open.
    model = text_model("aXbcde", sure={5: 9.0, 0: 8.0, 1: 7.0})
    row = ts.decode(model, "", gen_length=6, block_length=6, steps=6, stop="X")[0]
    assert (row.text, row.calls, row.answer_tokens) == ("a", 3, 1)
    assert row.token_ids == [0] + [PAD] * 5
    assert row.tokens_per_call == pytest.approx(1 / 3)


def test_t22_eos_before_the_stop_string_wins():
    row = ts.decode(text_model("ab$STOP"), "", gen_length=7, block_length=7, threshold=0.5, stop="STOP")[0]
    assert (row.text, row.finish_reason) == ("ab", "eos")
    assert row.token_ids == [0, 1, EOS] + [PAD] * 4
    assert (row.answer_tokens, row.answer_tokens_with_eos) == (2, 3)


def test_stop_strings_belong_to_the_answer_not_to_the_prompt():
    row = ts.decode(text_model("cdXe", start=2), "aX", gen_length=4, block_length=1, threshold=0.5, stop="X")[0]
    assert (row.text, row.calls, row.prompt_tokens) == ("cd", 3, 2)


def test_stop_strings_end_their_own_row():
    model = text_model("abXcdefg")
    result = ts.decode(model, ["", "bcdefg"], gen_length=4, block_length=1, threshold=0.5, stop="X")
    assert result.texts == ["ab", "fg.."]
    assert [row.finish_reason for row in result] == ["stop", "length"]
    assert [row.calls for row in result] == [3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": [5]}, "ids go to eos_id="),
        ({"stop": ""}, "not empty"),
        ({"stop": "X", "infill": True, "gen_length": 0}, "infilling has none"),
    ],
)
def test_stop_strings_that_make_no_sense(options, message):
    with pytest.raises(ts.TrajspecError, match=message):
        ts.decode(text_model("a"), "_", **options)
    with pytest.raises(ts.TrajspecError, match="a bare denoiser takes eos_id="):
        ts.decode(MODEL, [3], gen_length=2, stop="X")


# Streaming


def test_a_stream_yields_every_row_in_order_of_its_text():
    model = text_model("abcdef", sure={0: 1.0})
    prompts = ["", "ab"]
    pieces, result = outcome(stream(model, prompts, gen_length=4, block_length=4, steps=4))
    for number, row in enumerate(result):
        mine = [piece for piece in pieces if piece.row == number]
        assert "".join(piece.text for piece in mine) == row.text
        assert [piece.final for piece in mine] == [False] * (len(mine) - 1) + [True]
    assert result.texts == ["abcd", "cdef"]
    assert isinstance(pieces[0], Piece)


def test_a_stream_refuses_at_the_call():
    with pytest.raises(TypeError, match="schema"):
        stream(text_model("a"), "", gen_length=2, schema={})
    with pytest.raises(ts.TrajspecError, match="needs a model with text"):
        stream(MODEL, [3], gen_length=2)
    with pytest.raises(ts.TrajspecError, match="64"):
        stream(text_model("a"), "", gen_length=65)


def test_a_streams_caller_is_not_in_inference_mode():
    generator = stream(text_model("abcd"), "", gen_length=4, block_length=1, threshold=0.5)
    next(generator)
    assert not torch.is_inference_mode_enabled()
    generator.close()


# T22: allowed sets


@pytest.mark.parametrize("policy", OF_TOKENS)
def test_t22_an_allowed_set_holds_whatever_the_order(policy):
    steps = {"steps": 4} if "steps" in ts.policies.POLICIES[policy].settings else {}
    for place in range(4):
        told = {"allowed": {place: [4]}, **steps, **further(policy, MODEL)}
        row = ts.decode(MODEL, [[]], gen_length=4, policy=policy, **told)[0]
        assert row.token_ids[place] == 4
        assert [token for at, token in enumerate(row.token_ids) if at != place] == [
            token for at, token in enumerate([3, 4, 2, 1]) if at != place
        ] or policy in ("dream_origin", "mdlm", "remdm")


def test_t22_one_allowed_set_a_prompt():
    result = ts.decode(MODEL, [[3], [3, 3], [3]], gen_length=2, steps=1, allowed=[{1: [6]}, None, {2: [0, 5]}])
    assert [row.token_ids for row in result] == [[6, 2], [2, 1], [4, 0]]


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        ({1: []}, "no id is left for position 1"),
        ({1: [7]}, "no id is left for position 1"),
        ({1: [8]}, "id 8 at position 1 lies outside"),
        ({9: [1]}, "position 9 lies outside"),
        ({1: 4}, "expected a list of ids"),
        ({1: "a"}, "has no letters"),
        ([{1: [4]}, {}], "2 entries for 1 prompts"),
        ([4], "expected one mapping"),
    ],
)
def test_t22_allowed_sets_that_cannot_be_met_are_refused_before_any_call(allowed, message):
    model = Counting(MODEL)
    with pytest.raises(ts.TrajspecError, match=message):
        ts.decode(model, [3], gen_length=2, allowed=allowed)
    assert model.calls == 0


def test_allowed_letters():
    row = ts.decode(text_model("aaaa"), "", gen_length=4, block_length=4, allowed={1: "xy", 3: "z"})[0]
    assert row.text == "axaz"


# Prompts


def test_prompts_in_every_form_are_the_same():
    expected = ts.decode(MODEL, [3, 4], gen_length=2, steps=2).sequences
    for prompt in ([[3, 4]], (3, 4), np.array([3, 4]), torch.tensor([[3, 4]]), [np.int64(3), np.int64(4)]):
        assert torch.equal(ts.decode(MODEL, prompt, gen_length=2, steps=2).sequences, expected)
    padded, mask = torch.tensor([[0, 3, 4], [3, 3, 3]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    result = ts.decode(MODEL, padded, attention_mask=mask, gen_length=2, steps=2)
    assert result.sequences[0].tolist() == [0, *expected[0].tolist()]
    assert [row.prompt_tokens for row in result] == [2, 3]
    one = ts.decode(MODEL, [0, 3, 4], attention_mask=[0, 1, 1], gen_length=2, steps=2)
    assert torch.equal(one.sequences, expected)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (None, {}, "prompts is NoneType"),
        ([], {}, "there are no prompts"),
        (5, {}, "prompts is int"),
        ([[3], None], {}, "prompt 1 is NoneType"),
        ([[3], [3.5]], {}, "prompt 1 is list"),
        ([9], {}, "token 9 at position 0"),
        ([-1], {}, "token -1 at position 0"),
        ("text", {}, "no tokenizer"),
        ([3], {"gen_length": -1}, "gen_length is -1"),
        ([3], {"gen_length": 2.0}, "gen_length is 2.0"),
        ([3], {"num_return_sequences": 0}, "num_return_sequences is 0"),
        ([3], {"mask_id": 5}, "mask_id=5, but the mask id of Counting is 7"),
        ([3], {"attention_mask": [1, 1]}, "attention_mask of prompt 0"),
        ([[3]], {"attention_mask": [[1], [1]]}, "attention_mask has 2 rows"),
        ([3], {"eos_id": "x"}, "eos_id is 'x'"),
        ([3], {"policy": 5}, "policy is int"),
        ([3], {"policy": "treshold"}, "Did you mean threshold"),
        ([3], {"compat": "nothing"}, "has no compat name 'nothing'"),
        ([3], {"dtype": torch.float16}, "is torch.float64"),
        ([3], {"inputs": {"pins": 3}}, "no task input"),
        ([3], {"seeds": 5}, "seeds: 5 for 1 prompts"),
    ],
)
def test_wrong_arguments_are_refused_before_any_call(prompts, options, message):
    model = Counting(MODEL)
    with pytest.raises(ts.TrajspecError, match=message):
        ts.decode(model, prompts, **{"gen_length": 2} | options)
    assert model.calls == 0


def test_a_model_that_is_none():
    for thing in (5, lambda tokens, positions, visible: None, None):
        with pytest.raises(ts.TrajspecError, match="model is .*expected a name or path"):
            ts.decode(thing, [3])
    assert as_model(as_model(MODEL)).vocab_size == 8


# Results


def rich():
    """A result whose every field says something."""
    return ts.decode(
        MODEL, [[3], [3, 3]], seeds=[5, np.int64(6)], gen_length=4, block_length=2, steps=3, temperature=0.5,
        eos_id=[1], allowed={2: [2, 6]}, num_return_sequences=2,
    )  # fmt: skip


def test_every_field_is_there_and_json_can_hold_it():
    result = rich()
    fields = {
        "text", "token_ids", "prompt_tokens", "answer_tokens", "answer_tokens_with_eos", "finish_reason", "calls",
        "calls_by_kind", "rows", "positions", "tokens_per_call", "drafted", "accepted", "base_steps", "policy", "cache",
        "drafter", "nodes", "certificate", "drift", "seconds", "compile_seconds", "manifest",
        "drafter_calls", "drafter_rows", "drafter_positions", "accepted_lengths",
    }  # fmt: skip
    for row in result:
        content = row.as_dict()
        assert set(content) == fields
        assert json.loads(json.dumps(content, allow_nan=False)) == content
        assert set(row.calls_by_kind) == set(KINDS_OF_CALLS)
        assert row.finish_reason in ("eos", "stop", "length")
        assert row.seconds > 0
    assert json.dumps(dataclasses.asdict(result.totals))
    assert len(result) == 4
    assert result.sequences.shape == (4, 6)
    assert result.sequences.dtype == torch.int64
    result.sequences += 0  # an ordinary tensor
    with pytest.raises(ts.TrajspecError, match="there are 4 rows"):
        result.text  # noqa: B018


@pytest.mark.parametrize("policy", [None, *OF_TOKENS])
def test_a_manifest_is_enough_to_run_it_again(policy):
    @ts.policy
    def counted(x, logits, n=ts.given("count"), *, scale=2, how=max):
        """As many as the input says."""
        token = ts.sample(x, logits, temperature=1.0)
        return ts.unmask(x, token, where=ts.top(ts.confidence(logits, token), n, where=ts.masked(x)))

    if policy is None:
        result = ts.decode(MODEL, [[3], [3, 3]], gen_length=3, policy=counted, inputs=[{"n": 2}, {"n": np.int64(1)}])
    else:
        steps = {"steps": 3} if "steps" in ts.policies.POLICIES[policy].settings else {}
        warm = {"temperature": 1.0} if "temperature" in ts.policies.POLICIES[policy].settings else {}
        result = ts.decode(MODEL, [[3], [3, 7]], gen_length=3, policy=policy, seed=9, eos_id=1, infill=True,
                           allowed={2: [2, 1]}, num_return_sequences=2, **steps, **warm,
                           **further(policy, MODEL))  # fmt: skip
    for row in result:
        told = json.loads(json.dumps(row.manifest))
        allowed = told["allowed"] and {int(place): ids for place, ids in told["allowed"].items()}
        again = ts.decode(
            MODEL, [told["prompt"]], policy=told["plan"], gen_length=told["gen_length"], infill=told["infill"],
            seed=told["seed"], stop=told["stop"], eos_id=told["eos_ids"], allowed=allowed, inputs=told["inputs"],
            models=dict.fromkeys(told["models"], MODEL),
        )[0]  # fmt: skip
        assert (again.token_ids, again.path, again.calls) == (row.token_ids, row.path, row.calls)
        assert again.manifest["plan_sha256"] == told["plan_sha256"]


def test_the_manifest_says_what_ran():
    told = rich()[2].manifest
    assert told["policy"] == "llada_low_confidence"
    assert told["settings"]["block_length"] == 2
    assert (told["seed"], told["batch_rows"], told["dtype"], told["eos_ids"]) == (6, 4, "float64", [1])
    assert told["plan"].startswith("def llada_low_confidence(")
    assert ts.decode(InTorch(MODEL), [3], gen_length=1)[0].manifest["dtype"] == "float32"


def test_on_step_and_path():
    events = []
    result = ts.decode(MODEL, [[3], [3, 3]], gen_length=3, steps=3, on_step=events.append)
    assert [[event.committed(0) for event in events]] == [result[0].path]
    assert ts.decode(MODEL, [3], gen_length=3, keep_path=False)[0].path == []


def test_infill_returns_the_whole_row():
    result = ts.infill(MODEL, [[3, 7, 2], [7, 7]], steps=2)
    assert [row.token_ids for row in result] == [[3, 4, 2], [3, 4]]
    assert [row.answer_tokens for row in result] == [1, 2]
    assert [row.prompt_tokens for row in result] == [2, 0]
    assert result.sequences.tolist() == [[3, 4, 2], [0, 3, 4]]
    assert "size=" not in result[0].manifest["plan"].replace("size=None", "")
    # A stop token ends a continuation, not an infilled row.
    assert ts.infill(MODEL, [7, 7, 7], eos_id=3, threshold=0.0)[0].token_ids == [3, 4, 2]


def test_infilled_text():
    result = ts.infill(text_model("abcdef"), ["a_c__f"])
    assert result.text == "abcdef"
    assert (result[0].answer_tokens, result[0].prompt_tokens) == (3, 3)


# Names


@pytest.mark.parametrize("alias", [(name, alias) for name, aliases in ALIASES.items() for alias in aliases])
def test_every_alias_means_its_name(alias):
    name, other = alias
    assert canonical({other: 1}) == {name: 1}
    assert canonical({other: 1}, frozenset([other])) == {other: 1}
    with pytest.raises(ts.TrajspecError, match=f"{name}=1 and {other}=2 are the same option"):
        canonical({name: 1, other: 2})


def test_aliases_are_unambiguous():
    every = [*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases)]
    assert len(every) == len(set(every))


def test_both_dialects_run_the_same():
    llada = {"gen_length": 4, "steps": 4, "block_length": 2, "remasking": "low_confidence", "mask_id": 7}
    engine = {"max_gen_length": 4, "denoising_steps": 4, "block_size": 2, "dllm_algorithm": "low_confidence_static"}
    ours = {"gen_length": 4, "steps": 4, "block_length": 2, "policy": "llada_low_confidence"}
    runs = [ts.decode(MODEL, [3], **options)[0] for options in (llada, engine, ours)]
    assert runs[0].path == runs[1].path == runs[2].path
    assert runs[0].manifest["settings"] == runs[1].manifest["settings"] == runs[2].manifest["settings"]
    dream = {"max_new_tokens": 4, "diffusion_steps": 4, "alg": "entropy", "mask_token_id": 7, "eos_token_id": 6}
    ours = {"gen_length": 4, "steps": 4, "policy": "dream_entropy", "eos_id": 6}
    runs = [ts.decode(MODEL, [3], **options)[0] for options in (dream, ours)]
    assert runs[0].path == runs[1].path
    assert runs[0].manifest == runs[1].manifest
    assert runs[0].policy == "dream_entropy"


def test_a_policys_own_parameter_keeps_its_name():
    @ts.policy
    def mine(x, logits, *, block_size=2, topk=1):
        """With names that are aliases elsewhere."""
        token, conf = ts.score(logits)
        return ts.unmask(x, token, where=ts.top(conf, topk, where=ts.window(x, size=block_size)))

    row = ts.decode(MODEL, [3], gen_length=4, policy=mine, block_size=4, topk=2)[0]
    assert row.manifest["settings"] == {"block_size": 4, "topk": 2}


class Answers:
    """A denoiser that answers with whatever it is told to."""

    vocab_size, mask_id = 8, 7

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, tokens, positions, visible):
        return self.answer(np.zeros((*tokens.shape, self.vocab_size)))


@pytest.mark.parametrize(
    "answer",
    [
        lambda logits: logits[..., 0], lambda logits: logits[..., :-1], lambda logits: logits[:, :-1],
        lambda logits: np.concatenate([logits, logits[:, :1]], axis=1), lambda logits: None, lambda logits: "no",
        lambda logits: logits.astype(complex), lambda logits: logits.astype(object), lambda logits: (logits,),
    ],
)  # fmt: skip
@pytest.mark.parametrize("view", ["full", "prefix", "dual", "block_causal"])
def test_a_model_that_answers_in_another_shape_is_refused(answer, view):
    row = ts.canvas([3], gen_length=4, start=0 if view == "block_causal" else None, vocab_size=8, mask_id=7)
    for run in (
        lambda: ts.decode(Answers(answer), [3], gen_length=4, cache=view),
        lambda: ts.run(get_policy("threshold").plan(view), Answers(answer), row),
    ):
        with pytest.raises(ts.TrajspecError, match="the model answered with"):
            run()


def test_a_policy_that_takes_back_what_it_writes_does_not_run_for_ever(monkeypatch):
    @ts.policy
    def flip(x, logits):
        token, conf = ts.score(logits)
        y = ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))
        return ts.remask(y, where=ts.free(x) & ~ts.masked(x))

    for module in ("trajspec.runtime.loop", "trajspec.ir.interpret"):
        monkeypatch.setattr(f"{module}.step_limit", lambda length: 50)
    with pytest.raises(ts.TrajspecError, match="has not ended after 51 steps"):
        ts.decode(Answers(lambda logits: logits), [3], gen_length=4, policy=flip)
    with pytest.raises(ts.TrajspecError, match="has not ended after 50 steps"):
        ts.run(flip.plan(), Answers(lambda logits: logits), ts.canvas([3], gen_length=4, vocab_size=8, mask_id=7))


def test_a_misspelt_option_is_told():
    with pytest.raises(TypeError, match="did you mean threshold"):
        ts.decode(Answers(lambda logits: logits), [3], gen_length=4, policy="threshold", treshold=0.9)
