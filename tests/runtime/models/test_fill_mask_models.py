"""Every supported architecture through the hook: same logits as its plain class, rows alone, visibility that hides."""

import pytest
import torch

from trajspec.ir.errors import TrajspecError


def row(model, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 15, (1, length), generator=generator), torch.arange(length)[None]


def left_pad(model, rows):
    """Tokens, positions and visibility of single rows [1, n] put into one left-padded batch."""
    width = max(tokens.shape[1] for tokens in rows)
    gaps = torch.tensor([width - tokens.shape[1] for tokens in rows])
    tokens = torch.full((len(rows), width), model.pad_id)
    for r, single in enumerate(rows):
        tokens[r, gaps[r] :] = single
    real = torch.arange(width)[None] >= gaps[:, None]
    return tokens, torch.arange(width)[None] - gaps[:, None], real[:, :, None] & real[:, None, :]


def test_logits_are_the_plain_class_s(model, plain):
    # Longer than the sliding window on both sides; tokens free of the padding id, from which RoBERTa counts positions.
    tokens, positions = row(model, 30)
    expected = plain(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    torch.testing.assert_close(model(tokens, positions), expected, rtol=1e-4, atol=1e-4)
    everything = torch.ones(1, 30, 30, dtype=torch.bool)
    torch.testing.assert_close(model(tokens, positions, everything), expected, rtol=1e-4, atol=1e-4)
    # Control: the positions are read.
    moved = model(tokens, positions.flip(1))
    assert (moved - expected).abs().max() > 1e-2


def test_left_padded_rows_equal_their_single_runs(model):
    rows = [row(model, n, seed=n)[0] for n in (3, 17, 9)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0]):
        batch = model(*left_pad(model, [rows[i] for i in order]))
        assert torch.isfinite(batch).all()
        for r, i in enumerate(order):
            n = rows[i].shape[1]
            single = model(rows[i], torch.arange(n)[None])
            torch.testing.assert_close(batch[r, -n:], single[0], rtol=1e-5, atol=1e-5)


def test_padding_that_is_seen_changes_the_row(model):
    """Control for the test above: without the visibility rule the batch is wrong."""
    rows = [row(model, n, seed=n)[0] for n in (3, 9)]
    tokens, positions, _ = left_pad(model, rows)
    single = model(rows[0], torch.arange(3)[None])
    assert (model(tokens, positions)[0, -3:] - single[0]).abs().max() > 1e-2


def test_a_hidden_token_has_no_influence_and_a_visible_one_has(model):
    tokens, positions = row(model, 12)
    hidden, shown = 5, 6
    visible = torch.ones(1, 12, 12, dtype=torch.bool)
    visible[0, :, hidden] = False
    visible[0, hidden, hidden] = True
    others = [i for i in range(12) if i not in (hidden, shown)]
    before = model(tokens, positions, visible)

    def changed(at):
        edited = tokens.clone()
        edited[0, at] = 5 + (tokens[0, at] - 4) % 10
        return (model(edited, positions, visible) - before)[0, others].abs().max()

    assert changed(hidden) == 0
    assert changed(shown) > 1e-3


def test_a_query_that_sees_nothing_is_finite_and_touches_nobody(model):
    tokens, positions = row(model, 6)
    visible = torch.ones(1, 6, 6, dtype=torch.bool)
    visible[0, 2, :] = False
    visible[0, :, 2] = False
    logits = model(tokens, positions, visible)
    assert torch.isfinite(logits).all()
    rest = [0, 1, 3, 4, 5]
    torch.testing.assert_close(logits[:, rest], model(tokens[:, rest], positions[:, rest]), rtol=1e-5, atol=1e-5)
    assert torch.isfinite(model(tokens, positions, torch.zeros(1, 6, 6, dtype=torch.bool))).all()


def test_entries_may_share_positions(model):
    """A second copy of the row behind it, seeing only itself, gives the row's own logits."""
    tokens, positions = row(model, 9)
    own = torch.arange(18) // 9
    logits = model(tokens.repeat(1, 2), positions.repeat(1, 2), (own[:, None] == own[None, :])[None])
    torch.testing.assert_close(logits[0, 9:], logits[0, :9], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[0, :9], model(tokens, positions)[0], rtol=1e-5, atol=1e-5)


def test_constants(model):
    assert (model.kind, model.vocab_size, model.mask_id, model.pad_id, model.eos_ids) == ("infill", 16, 4, 0, ())
    # Special tokens, the mask, and id 15, which the tokenizer does not have.
    assert model.banned_ids == (0, 1, 2, 3, 4, 15)
    assert model.max_positions == 64
    assert (model.dtype, model.device) == (torch.float32, torch.device("cpu"))
    assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())


def test_the_last_position_is_usable(model):
    tokens, positions = row(model, model.max_positions)
    assert torch.isfinite(model(tokens, positions)).all()


def test_text_and_canvas(model):
    canvas = model.encode_infill("The cat [MASK] on the mats.")
    assert model.codec.tokenizer.convert_ids_to_tokens(canvas.tokens) == (
        ["[CLS]", "the", "cat", "[MASK]", "on", "the", "mat", "##s", ".", "[SEP]"]
    )
    assert [i for i, masked in enumerate(canvas.masked) if masked] == [3]
    assert (canvas.prompt_length, canvas.suffix_length) == (0, 0)
    assert model.decode_text([*canvas.tokens, model.pad_id]) == "the cat [MASK] on the mats."
    assert model.content_ids([*canvas.tokens, model.pad_id]) == canvas.tokens[1:-1]


def test_a_mask_written_in_a_prompt_is_data(model):
    canvas = model.encode_prompt("the [MASK]", 2)
    assert canvas.tokens == [2, 5, 4, 4, 4, 3]
    assert canvas.masked == [False, False, False, True, True, False]
    assert (canvas.prompt_length, canvas.suffix_length) == (3, 1)
    assert model.encode_prompt("", 1).tokens == [2, 4, 3]


def test_text_without_a_token_names_the_piece_and_where(model):
    with pytest.raises(TrajspecError, match=r"text\[8:13\] = 'zebra' is not in the vocabulary"):
        model.encode_infill("the cat zebra")
    with pytest.raises(TrajspecError, match=r"text\[0:5\] = 'zebra'"):
        model.encode_prompt("zebra", 3)


def test_too_long_is_said_before_any_call(model):
    assert len(model.encode_prompt("the " * 40, 22)) == 64
    with pytest.raises(
        TrajspecError, match=r"65 tokens \(prompt 41 \+ gen_length 23 \+ closing 1\).* 64 positions.*by 1"
    ):
        model.encode_prompt("the " * 40, 23)
    assert len(model.encode_infill("the " * 62)) == 64
    with pytest.raises(TrajspecError, match=r"66 tokens \(text 64 \+ special tokens 2\).*by 2"):
        model.encode_infill("the " * 64)


@pytest.mark.parametrize("length", [0, -1, 2.0, True, None])
def test_gen_length_must_be_a_whole_number(model, length):
    with pytest.raises(TrajspecError, match="gen_length must be a whole number"):
        model.encode_prompt("the", length)


def test_wrong_shapes_are_refused(model):
    tokens, positions = row(model, 4)
    with pytest.raises(TrajspecError, match=r"tokens and positions.*\[1, 4\] and \[1, 3\]"):
        model(tokens, positions[:, :3])
    with pytest.raises(TrajspecError, match=r"visible must be bool \[1, 4, 4\], got torch.bool \[1, 4\]"):
        model(tokens, positions, torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(TrajspecError, match=r"got torch.float32"):
        model(tokens, positions, torch.ones(1, 4, 4))
