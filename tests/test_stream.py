"""Streaming: the pieces are the text, nothing is taken back, stop strings and characters stay whole."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers.convert_slow_tokenizer import bytes_to_unicode

import trajspec as ts
from tests.policies.rules import OF_TOKENS
from tests.toys import LETTERS, further, text_model
from trajspec.cli import main
from trajspec.decoding import stream
from trajspec.runtime.models.text import CompletionCodec
from trajspec.runtime.text import TextStream


def outcome(generator):
    """The texts of the pieces of a stream that are not empty by row, and its result."""
    pieces: dict[int, list[str]] = {}
    while True:
        try:
            piece = next(generator)
        except StopIteration as end:
            return pieces, end.value
        pieces.setdefault(piece.row, [])
        if piece.text:
            pieces[piece.row].append(piece.text)


def of_one(generator):
    """The pieces of the only row, and it; AssertionError unless they join to its text."""
    pieces, result = outcome(generator)
    assert "".join(pieces[0]) == result[0].text
    return pieces[0], result[0]


@pytest.mark.parametrize(
    ("answer", "stop", "expected", "reason"),
    [
        ("abSTOPcd", "STOP", ["ab"], "stop"),
        ("abSTay", "STOP", ["ab", "STay"], "length"),
        ("abSTayST", "STOP", ["ab", "STay", "ST"], "length"),
        ("aSSTOPbc", "STOP", ["a", "S"], "stop"),
        ("abSTOPcd", ["XX", "TO"], ["ab", "S"], "stop"),
        ("abSTOPcd", ["STOPcdx", "OPx"], ["ab", "STOPcd"], "length"),
        ("STOPabcd", "STOP", [], "stop"),
        ("abcd", (), ["ab", "cd"], "length"),
        ("ab$STOP", "STOP", ["ab"], "eos"),
        ("abST$", "STOP", ["ab", "ST"], "eos"),
    ],
)
def test_stop_strings_across_blocks(answer, stop, expected, reason):
    # Blocks of two letters, a step each.
    length = len(answer)
    pieces, row = of_one(stream(text_model(answer), "", gen_length=length, block_length=2, threshold=0.5, stop=stop))
    assert (pieces, row.finish_reason) == (expected, reason)
    decoded = ts.decode(text_model(answer), "", gen_length=length, block_length=2, threshold=0.5, stop=stop)[0]
    assert (decoded.text, decoded.token_ids, decoded.calls) == (row.text, row.token_ids, row.calls)


def test_without_the_hold_back_a_stop_string_would_be_shown(monkeypatch):
    # The control: what the tests here look for is seen when nothing waits.
    monkeypatch.setattr(TextStream, "_held", lambda self, text: 0)
    pieces, result = outcome(stream(text_model("abSTOPcd"), "", gen_length=8, block_length=2, threshold=0.5,
                                    stop="STOP"))  # fmt: skip
    assert pieces[0] == ["ab", "ST"]
    assert result.text == "ab"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    answer=st.text("abST$", min_size=1, max_size=8), block=st.integers(1, 4), order=st.permutations(range(8)),
    stops=st.lists(st.text("abST", min_size=1, max_size=4), max_size=2), threshold=st.sampled_from([0.01, 0.9]),
)  # fmt: skip
def test_pieces_join_to_the_text_whatever_the_order(answer, block, order, stops, threshold):
    sure = {place: 2.0 + rank for rank, place in enumerate(order)}
    model = text_model(answer, sure=sure)
    options = {"gen_length": len(answer), "block_length": block, "threshold": threshold, "stop": stops}
    of_one(stream(model, "", **options))


def test_several_rows_each_in_order():
    model = text_model("abcSTOPdefgh")
    prompts = ["", "abc", "ab", "abcSTOPd"]
    options = {"gen_length": 4, "block_length": 2, "threshold": 0.5, "stop": "STOP"}
    pieces, result = outcome(stream(model, prompts, **options))
    assert result.texts == ["abcS", "", "cSTO", "efgh"]
    assert sorted(pieces) == [0, 1, 2, 3]
    for number, row in enumerate(result):
        assert "".join(pieces[number]) == row.text
        alone, single = of_one(stream(model, prompts[number], **options))
        assert (alone, single.text) == (pieces[number], row.text)
    assert pieces[3] == ["ef", "gh"]


@pytest.mark.parametrize("policy", OF_TOKENS)
def test_nothing_is_taken_back_by_any_policy(policy):
    # A model whose mind depends on what is written already, so that a policy that revises does revise.
    weights = torch.randn(58, 58, generator=torch.Generator().manual_seed(1)) * 2
    model = text_model("abcd")

    def denoise(tokens, positions, visible):
        seen = torch.nn.functional.one_hot(tokens, 58).float()
        near = seen.roll(1, 1) + 0.5 * seen.roll(-1, 1) + 0.2 * seen.mean(1, keepdim=True)
        return near @ weights + torch.sin(positions[..., None] * torch.arange(58) * 0.7)

    model = dataclasses.replace(model, denoise=denoise)
    steps = {"steps": 12} if "steps" in ts.policies.POLICIES[policy].settings else {}
    block = {"block_length": 6} if "block_length" in ts.policies.POLICIES[policy].settings else {}
    for prompt in ("", "abc", "quick", "zz"):
        of_one(stream(model, prompt, gen_length=12, policy=policy, **steps, **block, **further(policy, model)))


@ts.policy
def wavering(x, logits):
    """Writes the first two, then the others while it masks the first again, then the first anew."""
    token, conf = ts.score(logits)
    some = ts.top(conf, ts.choose(ts.step(x) == 0, 2, 4), where=ts.masked(x))
    return ts.remask(ts.unmask(x, token, where=some), where=ts.top(conf, 1, where=ts.free(x)) & (ts.step(x) == 1))


def second_thoughts():
    """A model that writes abcd, and later z at the first position."""
    model, calls = text_model("abcd"), [0]

    def denoise(tokens, positions, visible, plain=model.denoise):
        calls[0] += 1
        logits = plain(tokens, positions, visible)
        if calls[0] > 2:
            logits[:, 0, LETTERS.index("z")] = 9.0
        return logits

    return dataclasses.replace(model, denoise=denoise)


def test_a_policy_that_masks_again_shows_its_text_at_the_end():
    pieces, row = of_one(stream(second_thoughts(), "", gen_length=4, policy=wavering))
    assert (row.text, row.calls, pieces) == ("zbcd", 3, ["zbcd"])
    # The control: the beginning was written and then taken back.
    events = []
    ts.decode(second_thoughts(), "", gen_length=4, policy=wavering, on_step=events.append)
    assert [event.after.masked[0].tolist() for event in events] == [
        [False, False, True, True], [True, False, False, False], [False] * 4,
    ]  # fmt: skip


# Characters of several bytes, a token a byte


def byte_model(answer: bytes):
    """A model that writes these bytes, a token each."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|mask|>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", pad_token="<|end|>", mask_token="<|mask|>"
    )
    letter_of = bytes_to_unicode()
    ids = [tokenizer.convert_tokens_to_ids(letter_of[byte]) for byte in answer]

    def denoise(tokens, positions, visible):
        logits = torch.zeros(*tokens.shape, 258)
        for row, places in enumerate(positions.tolist()):
            for entry, place in enumerate(places):
                logits[row, entry, ids[place % len(ids)]] = 9.0
        return logits

    codec = CompletionCodec("bytes", tokenizer, 258, 257)
    return dataclasses.replace(
        text_model("a"), name="bytes", vocab_size=258, mask_id=257, pad_id=256, eos_ids=(256,), banned_ids=(257,),
        codec=codec, denoise=denoise,
    )  # fmt: skip


TEXT = "aé\N{SNOWMAN}\N{GRINNING FACE}z\N{CJK UNIFIED IDEOGRAPH-4E2D}e\N{COMBINING ACUTE ACCENT}"


@pytest.mark.parametrize("block", [1, 2, 3, 5, 16])
def test_characters_come_out_whole(block):
    answer = TEXT.encode()
    pieces, row = of_one(stream(byte_model(answer), "", gen_length=len(answer), block_length=block, threshold=0.5))
    assert row.text == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    if block == 1:
        assert pieces == list(TEXT)


def test_bytes_that_never_become_a_character_come_at_the_end():
    answer = "aé".encode() + "\N{GRINNING FACE}".encode()[:3]
    pieces, row = of_one(stream(byte_model(answer), "", gen_length=len(answer), block_length=1, threshold=0.5))
    assert pieces[:2] == ["a", "é"] and set("".join(pieces[2:])) == {"\ufffd"}
    assert row.text.startswith("aé")


def test_a_stop_string_whose_last_character_is_split():
    # "S" is a part of the stop string as long as the bytes behind it may become its end.
    for text, expected in (("abSé!", ["a", "b"]), ("abSè!", ["a", "b", "Sè", "!"])):
        answer = text.encode()
        model = byte_model(answer)
        pieces, row = of_one(stream(model, "", gen_length=len(answer), block_length=1, threshold=0.5, stop="Sé"))
        assert pieces == expected
        assert row.text == "".join(expected)


def test_without_the_hold_back_broken_characters_would_be_shown(monkeypatch):
    monkeypatch.setattr(TextStream, "_held", lambda self, text: 0)
    answer = TEXT.encode()
    pieces, result = outcome(stream(byte_model(answer), "", gen_length=len(answer), block_length=1, threshold=0.5))
    assert "\ufffd" in "".join(pieces[0]) and "".join(pieces[0]) != result.text


# The command line


@pytest.fixture
def letters(monkeypatch):
    """`--model letters` is a model that writes abSTayef."""
    monkeypatch.setattr("trajspec.runtime.denoiser.load_model", lambda name, dtype, device: text_model("abSTayef"))


ARGV = ["--model", "letters", "--gen-length", "8", "--block-length", "2", "--threshold", "0.5"]


def test_the_command_prints_pieces_as_they_come(letters, monkeypatch):
    printed = []
    monkeypatch.setattr(
        "builtins.print", lambda *words, end="\n", flush=False, **_: printed.append((words, end, flush))
    )
    assert main(["decode", "", "--stream", "--stop", "STOP", *ARGV]) == 0
    assert [(words[0], end, flush) for words, end, flush in printed[:-2] if words[0]] == [
        ("ab", "", True), ("STay", "", True), ("ef", "", True),
    ]  # fmt: skip
    assert printed[-2][:2] == ((), "\n")
    assert printed[-1][0][0].startswith("[8 tokens in 4 calls, 2.00 a call; 4 rows, ")


def test_streamed_or_not_the_command_prints_the_same(letters, capsys):
    for more in (["--stop", "STOP"], ["--stop", "Ta"], []):
        outs = []
        for stream_too in ([], ["--stream"]):
            assert main(["decode", "b", *more, *stream_too, *ARGV]) == 0
            outs.append(capsys.readouterr().out.rsplit("; ", 1)[0])
        assert outs[0] == outs[1]
    assert main(["decode", "--infill", "a_c_", "--stream", "--model", "letters"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "abcT"


@pytest.mark.parametrize(
    ("argv", "got"), [(["a", "b"], "2 rows"), (["a", "--samples", "3"], "3 rows"), (["a", "--json"], "1 rows --json")]
)
def test_a_stream_of_the_command_is_one_text(letters, capsys, argv, got):
    assert main(["decode", *argv, "--stream", *ARGV]) == 2
    told = capsys.readouterr()
    assert f"--stream shows a single text, without --json; got {got}" in told.err and not told.out
