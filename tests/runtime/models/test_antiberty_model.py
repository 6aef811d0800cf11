"""AntiBERTy: the logits of plain BERT, residues as text, and what its loading must not do."""

import importlib.util
import sys

import pytest
import torch
from transformers import BertForMaskedLM
from transformers.utils import logging

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models import load_model
from trajspec.runtime.models.antiberty import _trained_models

HEAVY = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
MASKED = HEAVY[:20] + "__" + HEAVY[22:40] + "[MASK]" + HEAVY[41:]


def query(model, text):
    tokens = torch.tensor([model.encode_infill(text).tokens])
    return tokens, torch.arange(tokens.shape[1])[None]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_logits_are_plain_bert_s(antiberty, attention):
    plain = BertForMaskedLM.from_pretrained(_trained_models() / "AntiBERTy_md_smooth", attn_implementation=attention)
    tokens, positions = query(antiberty, MASKED)
    expected = plain.eval()(input_ids=tokens).logits
    torch.testing.assert_close(antiberty(tokens, positions), expected, rtol=1e-4, atol=1e-4)


def test_it_knows_antibodies(antiberty):
    """Control against weights or a vocabulary that load wrongly: the masked residues of a germline are recovered."""
    canvas = antiberty.encode_infill(MASKED)
    tokens, positions = query(antiberty, MASKED)
    logits = antiberty(tokens, positions)[0]
    logits[:, list(antiberty.banned_ids)] = -torch.inf
    filled = torch.where(torch.tensor(canvas.masked), logits.argmax(-1), tokens[0])
    assert sum(canvas.masked) == 3
    assert antiberty.decode_text(filled) == HEAVY


def test_left_padded_rows_equal_their_single_runs(antiberty):
    texts = [MASKED, HEAVY[:12], HEAVY[30:64]]
    singles = [query(antiberty, text) for text in texts]
    width = max(tokens.shape[1] for tokens, _ in singles)
    tokens = torch.full((3, width), antiberty.pad_id)
    positions = torch.arange(width).repeat(3, 1)
    for r, (single, _) in enumerate(singles):
        tokens[r, width - single.shape[1] :] = single
        positions[r] -= width - single.shape[1]
    real = positions >= 0
    batch = antiberty(tokens, positions, real[:, :, None] & real[:, None, :])
    assert torch.isfinite(batch).all()
    for r, one in enumerate(singles):
        torch.testing.assert_close(batch[r, width - one[0].shape[1] :], antiberty(*one)[0], rtol=1e-5, atol=1e-5)
    # Control: padding that is seen changes the row.
    seen = antiberty(tokens, positions)
    assert (seen[1, -14:] - batch[1, -14:]).abs().max() > 1e-2


def test_constants(antiberty):
    assert (antiberty.name, antiberty.kind, antiberty.vocab_size, antiberty.max_positions) == (
        "antiberty",
        "infill",
        25,
        512,
    )
    assert (antiberty.mask_id, antiberty.pad_id, antiberty.eos_ids) == (4, 0, ())
    assert antiberty.banned_ids == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("text", ["EV_L[MASK]Y", "E V _ L [MASK] Y", " EV\n_L _Y\t"])
def test_residues_with_or_without_blanks(antiberty, text):
    canvas = antiberty.encode_infill(text)
    assert canvas.tokens == [2, 8, 22, 4, 14, 4, 24, 3]
    assert canvas.masked == [token == 4 for token in canvas.tokens]
    assert antiberty.decode_text([*canvas.tokens, 0, 0]) == "EV_L_Y"
    assert antiberty.content_ids([*canvas.tokens, 0, 0]) == canvas.tokens[1:-1]


def test_a_mask_written_in_a_prompt_is_data(antiberty):
    canvas = antiberty.encode_prompt("E_", 2)
    assert canvas.tokens == [2, 8, 4, 4, 4, 3]
    assert canvas.masked == [False, False, False, True, True, False]
    assert (canvas.prompt_length, canvas.suffix_length) == (3, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("EVQX", r"text\[3\] = 'X' is not a residue"),
        ("EV ql", r"text\[3\] = 'q' is not a residue.*Write 'Q'"),
        ("EV[CLS]", r"text\[2\] = '\['"),
        ("EV[MASK", r"text\[2\] = '\['"),
        ("E-V", r"text\[1\] = '-'"),
    ],
)
def test_what_is_no_residue_is_named(antiberty, text, said):
    with pytest.raises(TrajspecError, match=said):
        antiberty.encode_infill(text)
    with pytest.raises(TrajspecError, match=said):
        antiberty.encode_prompt(text, 1)


def test_too_long_is_said_before_any_call(antiberty):
    assert len(antiberty.encode_infill("_" * 510)) == 512
    with pytest.raises(TrajspecError, match=r"513 tokens \(text 511 \+ special tokens 2\).*512 positions.*by 1"):
        antiberty.encode_infill("_" * 511)
    assert len(antiberty.encode_prompt("E" * 500, 10)) == 512
    with pytest.raises(TrajspecError, match=r"513 tokens \(prompt 501 \+ gen_length 11 \+ closing 1\)"):
        antiberty.encode_prompt("E" * 500, 11)


def test_a_missing_package_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "antiberty" else find(name))
    with pytest.raises(TrajspecError, match=r'pip install "trajspec\[antiberty\]"'):
        load_model("antiberty")


def test_loading_is_quiet_imports_nothing_and_leaves_logging_alone(antiberty, capfd, caplog, monkeypatch):
    monkeypatch.delitem(sys.modules, "antiberty", raising=False)
    level = logging.get_verbosity()
    try:
        logging.set_verbosity_info()
        logging.enable_progress_bar()
        load_model("antiberty")
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.INFO, True)
        logging.disable_progress_bar()
        load_model("antiberty")
        assert not logging.is_progress_bar_enabled()
        out, err = capfd.readouterr()
        assert (out, err, caplog.text) == ("", "", "")
        # Control: transformers itself shows a bar and reports the unused weights.
        logging.set_verbosity_warning()
        logging.enable_progress_bar()
        BertForMaskedLM.from_pretrained(_trained_models() / "AntiBERTy_md_smooth")
        assert "cls.graft.weight" in caplog.text
        assert "Loading weights" in capfd.readouterr().err
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()
    assert "antiberty" not in sys.modules


def test_half_precision(antiberty):
    half = load_model("antiberty", dtype=torch.bfloat16)
    logits = half(*query(half, MASKED))
    assert half.dtype == logits.dtype == torch.bfloat16
    assert (logits.float() - antiberty(*query(antiberty, MASKED))).abs().max() < 0.5
