"""Conversations as prompts: what the template makes of them, alone, several, mixed with text, and in files."""

from __future__ import annotations

import io
import json
import re

import pytest

import trajspec as ts
from tests.runtime.models.completion import save_llada, save_tokenizer
from tests.toys import text_model
from trajspec.exact.tabular import FixedModel
from trajspec.jobs import run_file
from trajspec.runtime.models import load_model

MODEL = FixedModel([(3, 2.0), (4, 1.0), (2, 3.0), (1, 2.5)])
HI = [{"role": "user", "content": "hi"}]
TURNS = [*HI, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "why"}]
# What their tokenizer's template makes of them.
HI_TEXT = "<|bos|><|user|>hi<|eot_id|><|assistant|>"
TURNS_TEXT = "<|bos|><|user|>hi<|eot_id|><|assistant|>yes<|eot_id|><|user|>why<|eot_id|><|assistant|>"
OPTIONS = {"gen_length": 4, "steps": 2, "block_length": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random model with a chat template."""
    folder = tmp_path_factory.mktemp("chat")
    save_llada(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """The same without a template."""
    folder = tmp_path_factory.mktemp("silent")
    save_llada(folder)
    save_tokenizer(folder, chat_template=None)
    return load_model(folder)


def same(row, other):
    """AssertionError unless two rows were decoded from the same canvas to the same end."""
    assert (row.token_ids, row.path, row.prompt_tokens) == (other.token_ids, other.path, other.prompt_tokens)


@pytest.mark.parametrize(("messages", "text"), [(HI, HI_TEXT), (TURNS, TURNS_TEXT), (tuple(HI), HI_TEXT)])
def test_a_conversation_is_the_text_of_the_template(model, messages, text):
    result = ts.decode(model, messages, **OPTIONS)
    assert len(result) == 1
    expected = ts.decode(model, text, **OPTIONS)[0]
    same(result[0], expected)
    assert result[0].manifest == expected.manifest
    assert result[0].manifest["prompt"] == text
    start = model.codec.tokenizer.bos_token_id
    assert (result.sequences[0, : -OPTIONS["gen_length"]] == start).nonzero().tolist() == [[0]]


def test_the_content_reaches_the_model(model):
    # The control: another word is another canvas.
    rows = [ts.decode(model, [{"role": "user", "content": word}], **OPTIONS)[0] for word in ("hi", "ho", "hi")]
    assert rows[0].manifest["prompt"] != rows[1].manifest["prompt"]
    same(rows[0], rows[2])


def test_several_conversations_and_texts_and_ids_together(model):
    ids = model.codec.encode("abc")
    prompts = [HI, "plain text", TURNS, ids]
    result = ts.decode(model, prompts, **OPTIONS)
    assert [row.manifest["prompt"] for row in result] == [HI_TEXT, "plain text", TURNS_TEXT, ids]
    for prompt, row in zip(prompts, result, strict=True):
        same(row, ts.decode(model, [prompt], **OPTIONS)[0])
    both = ts.decode(model, [HI, TURNS], **OPTIONS, num_return_sequences=2)
    assert [row.manifest["prompt"] for row in both] == [HI_TEXT, HI_TEXT, TURNS_TEXT, TURNS_TEXT]


def test_a_manifest_of_a_conversation_is_enough_to_run_it_again(model):
    row = ts.decode(model, TURNS, **OPTIONS)[0]
    told = json.loads(json.dumps(row.manifest))
    same(row, ts.decode(model, [told["prompt"]], policy=told["plan"], gen_length=told["gen_length"])[0])


def test_a_conversation_is_streamed(model):
    pieces = list(ts.stream(model, HI, **OPTIONS))
    assert "".join(piece.text for piece in pieces) == ts.decode(model, HI, **OPTIONS).text


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"content": "hi"}], "message 0 is .*: its role is None, expected a text"),
        ([{"role": "user"}], "message 0 is .*: its content is None, expected a text"),
        ([*HI, {"role": "user", "content": 5}], "message 1 is .*: its content is 5"),
        ([{"role": None, "content": "hi"}], "its role is None"),
        ([{}], "message 0 is {}: its role is None"),
        ([{"role": "user", "content": ["hi"]}], "its content is"),
        ({"role": "user", "content": "hi"}, "prompts is dict; expected text"),
        ([HI[0], "hi"], "prompt 0 is dict; expected text, a list of token ids, or a conversation"),
        (["hi", HI[0]], "prompt 1 is dict; expected text, a list of token ids, or a conversation"),
        ([HI, [HI[0], "hi"]], "prompt 1 is list; expected text, a list of token ids, or a conversation"),
        ([[HI]], "prompt 0 is list; expected text"),
    ],
)
def test_malformed_messages(model, messages, message):
    with pytest.raises(ts.TrajspecError, match=message):
        ts.decode(model, messages, **OPTIONS)


def test_a_long_message_is_not_repeated_in_full(model):
    with pytest.raises(ts.TrajspecError) as error:
        ts.decode(model, [{"content": "a" * 5000}], **OPTIONS)
    assert len(str(error.value)) < 300


def test_models_without_a_chat(silent):
    with pytest.raises(ts.TrajspecError, match="the tokenizer has no chat template. Give the prompt as text"):
        ts.decode(silent, HI, **OPTIONS)
    assert len(ts.decode(silent, "hi", **OPTIONS)) == 1
    with pytest.raises(ts.TrajspecError, match="FixedModel has no text, so no chat template; give token ids"):
        ts.decode(MODEL, HI, gen_length=2)
    with pytest.raises(ts.TrajspecError, match="letters has no chat template; give the prompt as text"):
        ts.decode(text_model("abc"), HI, gen_length=2)


def test_a_template_that_refuses(tmp_path):
    save_llada(tmp_path)
    save_tokenizer(tmp_path, chat_template="{{ raise_exception('only two turns') }}")
    with pytest.raises(ts.TrajspecError, match="the chat template refuses the messages: only two turns"):
        ts.decode(load_model(tmp_path), HI, **OPTIONS)


def test_a_conversation_has_no_attention_mask(model):
    with pytest.raises(ts.TrajspecError, match="attention_mask of prompt 0 needs a 0 or 1 for each of its token ids"):
        ts.decode(model, [HI], attention_mask=[[1]], **OPTIONS)


def test_messages_in_a_file(model, tmp_path):
    lines = [
        {"id": "one", "messages": HI}, {"prompt": "abc"}, {"messages": [{"role": "user"}]}, {"messages": TURNS},
        {"messages": HI[0]},
    ]  # fmt: skip
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = io.StringIO()
    assert run_file(source, out, model, OPTIONS, report=report) == (5, 2)
    told = report.getvalue().splitlines()
    assert re.match(r"line 3: message 0 is \{'role': 'user'\}: its content is None", told[0])
    assert told[1].startswith("line 5: messages must be a list")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for number, prompt in ((0, HI), (1, "abc"), (3, TURNS)):
        expected = ts.decode(model, [prompt], **OPTIONS)[0]
        assert rows[number]["token_ids"] == expected.token_ids
        assert rows[number]["manifest"]["prompt"] == expected.manifest["prompt"]
    whole = out.read_bytes()
    out.write_bytes(whole[: len(whole) // 2])
    run_file(source, out, model, OPTIONS, report=report, batch_rows=2)
    assert out.read_bytes() == whole


def test_messages_in_a_file_for_a_model_without_a_template(silent, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"messages": HI}) + "\n" + json.dumps({"prompt": "hi"}) + "\n")
    report = io.StringIO()
    assert run_file(source, out, silent, OPTIONS, report=report) == (2, 1)
    assert "line 1:" in report.getvalue() and "no chat template" in report.getvalue()
