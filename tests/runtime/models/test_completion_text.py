"""What completion models write: prompts, answers and chats as ids, and which ids mean mask, end and padding."""

import json

import pytest
from tokenizers import Tokenizer

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models import load_model

from .completion import CHAT, LETTERS, MASK, SIZE, SPECIAL, save_dream


def test_recorded_checkpoints_have_no_text(completion, golden_folder):
    dream = golden_folder.name == "tiny_dream"
    assert (completion.kind, completion.codec, completion.pad_id) == ("text", None, 0)
    assert (completion.mask_id, completion.vocab_size) == ((43, 44) if dream else (39, 40))
    assert completion.eos_ids == (() if dream else (1,))
    assert completion.max_positions == (256 if dream else 128)
    assert completion.banned_ids == (completion.mask_id,)
    for call in (
        lambda: completion.encode_prompt("the", 4),
        lambda: completion.decode_text([1]),
        lambda: completion.chat([{"role": "user", "content": "the"}]),
    ):
        with pytest.raises(TrajspecError, match=r"no tokenizer files.*Give token ids"):
            call()


def test_text(written, kind):
    model = load_model(written)
    ends = {"llada": "<|eot_id|>", "dream": "<|im_end|>"}[kind]
    assert model.eos_ids == tuple(model.codec.tokenizer.convert_tokens_to_ids(["<|end|>", ends]))
    assert model.pad_id == model.eos_ids[0]
    made = model.encode_prompt("the cat", 3)
    assert made.tokens == [LETTERS.index(letter) for letter in "theĠcat"] + [MASK] * 3
    assert (made.prompt_length, made.suffix_length, made.masked) == (7, 0, [False] * 7 + [True] * 3)
    # Special tokens, padding and ids without a token stand for no text; masks do.
    assert model.decode_text([*made.tokens[:8], *model.eos_ids, SIZE - 1]) == "the cat<|mask|>"
    assert model.content_ids([MASK, *model.eos_ids, SIZE - 1, 3]) == [MASK, 3]
    infill = model.encode_infill("a<|mask|>b")
    assert (infill.tokens, infill.masked) == ([0, MASK, 1], [False, True, False])
    with pytest.raises(TrajspecError, match=r"66 tokens \(prompt 60 \+ gen_length 6.*64 positions"):
        model.encode_prompt("a" * 60, 6)


def test_chat(written):
    model = load_model(written)
    text = model.chat([{"role": "user", "content": "hi"}])
    assert text == "<|bos|><|user|>hi<|eot_id|><|assistant|>"
    ids = model.encode_prompt(text, 1).tokens[:-1]
    assert model.codec.tokenizer.convert_ids_to_tokens(ids) == (
        ["<|bos|>", "<|user|>", "h", "i", "<|eot_id|>", "<|assistant|>"]
    )
    for wrong in ("hi", ["hi"]):
        with pytest.raises(TrajspecError, match=r"messages must be a list of \{'role'"):
            model.chat(wrong)


def test_chat_without_a_template_or_refused_by_it(written, kit):
    kit.edit_json(written / "tokenizer_config.json", chat_template=None)
    with pytest.raises(TrajspecError, match=r"no chat template. Give the prompt as text"):
        load_model(written).chat([{"role": "user", "content": "hi"}])
    kit.edit_json(written / "tokenizer_config.json", chat_template="{{ raise_exception('only two turns') }}")
    with pytest.raises(TrajspecError, match=r"the chat template refuses the messages: only two turns"):
        load_model(written).chat([{"role": "user", "content": "hi"}])


def test_fill_mask_models_have_no_chat(tmp_path, kit):
    model = load_model(kit.save(tmp_path, "BertForMaskedLM"))
    with pytest.raises(TrajspecError, match="has no chat"):
        model.chat([{"role": "user", "content": "hi"}])


def test_a_start_token_the_tokenizer_adds_is_there_once(written):
    from tokenizers.processors import TemplateProcessing

    backend = Tokenizer.from_file(str(written / "tokenizer.json"))
    start = backend.token_to_id("<|bos|>")
    backend.post_processor = TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", start)])
    backend.save(str(written / "tokenizer.json"))
    model = load_model(written)
    assert model.codec.prefix == (start,)
    for text in ("ab", "<|bos|>ab"):
        assert model.encode_prompt(text, 1).tokens == [start, 0, 1, MASK]


def test_dream_s_own_tokenizer_files(tmp_path):
    """vocab.json and merges.txt under a class that is the checkpoint's own code, as published."""
    save_dream(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(LETTERS)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    added = {str(len(LETTERS) + i): {"content": token, "special": True} for i, token in enumerate(SPECIAL)}
    config = {"tokenizer_class": "DreamTokenizer", "added_tokens_decoder": added, "mask_token": "<|mask|>",
              "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]}, "eos_token": "<|end|>",
              "bos_token": "<|bos|>", "pad_token": "<|end|>", "chat_template": CHAT}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    trap = tmp_path / "sprung"
    (tmp_path / "tokenization_dream.py").write_text(f"open({str(trap)!r}, 'w').close()\n")
    model = load_model(tmp_path)
    text = model.chat([{"role": "user", "content": "the cat"}])
    assert model.decode_text(model.encode_prompt(text, 1).tokens[:-1]) == "the cat"
    assert model.mask_id == model.codec.tokenizer.mask_token_id == MASK
    assert not trap.exists()


def test_mask_id_by_default_and_from_the_tokenizer(written, kind, kit):
    kit.edit_json(written / "config.json", mask_token_id=None)
    default = {"llada": 126336, "dream": 151666}[kind]
    with pytest.raises(
        TrajspecError, match=rf"mask id {default}, which .* by default, is outside the vocabulary of {SIZE}"
    ):
        load_model(written)
    kit.edit_json(written / "tokenizer_config.json", mask_token="<|mask|>")
    assert load_model(written).mask_id == MASK


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (MASK - 1, rf"config.json says mask_token_id {MASK - 1}, the tokenizer says {MASK} \(<\|mask\|>\)"),
        (SIZE, "config.json says mask_token_id"),
    ],
)
def test_a_mask_id_that_disagrees(written, declared, said, kit):
    kit.edit_json(written / "config.json", mask_token_id=declared)
    kit.edit_json(written / "tokenizer_config.json", mask_token="<|mask|>")
    with pytest.raises(TrajspecError, match=said):
        load_model(written)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (SIZE, f"mask id {SIZE} is outside the vocabulary of {SIZE}. Set mask_token_id"),
        (-1, "mask id -1 is outside the vocabulary"),
        (2, "mask id 2 is the ordinary token 'c'"),
    ],
)
def test_a_mask_id_that_cannot_be(written, declared, said, kit):
    kit.edit_json(written / "config.json", mask_token_id=declared)
    with pytest.raises(TrajspecError, match=said):
        load_model(written)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (written / file).unlink()
    if declared == 2:  # without a tokenizer nothing contradicts it
        assert load_model(written).mask_id == 2
    else:
        with pytest.raises(TrajspecError, match=said):
            load_model(written)


def test_eos_of_the_config(written, kit):
    kit.edit_json(written / "config.json", eos_token_id=[5, 6])
    assert load_model(written).eos_ids[:2] == (5, 6)
    kit.edit_json(written / "config.json", eos_token_id=SIZE)
    with pytest.raises(TrajspecError, match=rf"eos id \[{SIZE}.*outside the vocabulary of {SIZE}"):
        load_model(written)
