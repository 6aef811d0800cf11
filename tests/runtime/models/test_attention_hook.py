"""The attention function on its own: windows by position, stored keys, and the sliding window of ModernBERT."""

import pytest
import torch
import transformers

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.attention import (
    IMPLEMENTATION,
    attention,
    attention_context,
    register,
    window_widths,
)
from trajspec.runtime.models import load_model


def dense(query, key, value, allowed, scaling):
    """The definition, one query at a time: softmax over the allowed keys, zero where there are none."""
    out = torch.zeros(query.shape)
    for r, h, q in torch.cartesian_prod(*(torch.arange(n) for n in query.shape[:3])).tolist():
        keys = allowed[r, q].nonzero()[:, 0]
        if len(keys):
            weights = torch.softmax(key[r, h, keys] @ query[r, h, q] * scaling, dim=0)
            out[r, h, q] = weights @ value[r, h, keys]
    return out.transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_against_the_definition(window):
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 2, 2, 7, 4)
    positions = torch.tensor([[-2, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 1, 2, 3]])
    visible = torch.rand(2, 7, 7) < 0.4
    visible[1, 3] = False
    context = attention_context(positions, visible, windows=(None, 1, 3))
    out, weights = attention(
        torch.nn.Identity(), query, key, value, None, scaling=0.7, sliding_window=window, **{IMPLEMENTATION: context}
    )
    near = torch.ones_like(visible)
    if window is not None:
        near = (positions[:, :, None] - positions[:, None, :]).abs() < window
    torch.testing.assert_close(out, dense(query, key, value, visible & near, 0.7))
    assert weights is None and (out[1, 3] == 0).all()


def test_fewer_key_heads_than_query_heads():
    torch.manual_seed(2)
    query, key, value = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    context = attention_context(torch.arange(5)[None])
    out, _ = attention(torch.nn.Identity(), query, key, value, None, scaling=0.3, **{IMPLEMENTATION: context})
    everything = torch.ones(1, 5, 5, dtype=torch.bool)
    wide = dense(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), everything, 0.3)
    torch.testing.assert_close(out, wide)


def test_a_layer_without_a_mask_for_its_window_is_an_error():
    context = attention_context(torch.arange(3)[None], windows=(None,))
    with pytest.raises(TrajspecError, match=r"sliding window 5.*built masks for \[None\]"):
        context.mask(5)


def test_a_network_called_past_its_model_is_an_error(tmp_path, kit):
    model = load_model(kit.save(tmp_path, "BertForMaskedLM"))
    with pytest.raises(TrajspecError, match=r"without an AttentionContext.*Call the Model"):
        model.network(input_ids=torch.tensor([[2, 5, 3]]))


@pytest.mark.parametrize("attention_name", ["eager", "sdpa"])
def test_sliding_window_is_modernbert_s_own(tmp_path, kit, attention_name):
    folder = kit.save(tmp_path, "ModernBertForMaskedLM")
    plain = transformers.ModernBertForMaskedLM.from_pretrained(folder, attn_implementation=attention_name).eval()
    model = load_model(folder)
    assert window_widths(model.network) == (None, kit.window // 2 + 1)
    tokens = torch.randint(5, 15, (2, 4 * kit.window), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(4 * kit.window).repeat(2, 1)
    expected = plain(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    torch.testing.assert_close(model(tokens, positions), expected, rtol=1e-4, atol=1e-4)

    # Controls: a window one wider or narrower, or none at all, is not the same.
    def logits(width_of):
        masks = attention_context(positions, windows=(None, width_of)).masks
        context = attention_context(positions, windows=(None, kit.window // 2 + 1))
        context.masks[kit.window // 2 + 1] = masks[width_of]
        return model.network(input_ids=tokens, position_ids=positions, **{IMPLEMENTATION: context}).logits

    torch.testing.assert_close(logits(kit.window // 2 + 1), expected, rtol=1e-4, atol=1e-4)
    for wrong in (kit.window // 2, kit.window // 2 + 2, None):
        assert (logits(wrong) - expected).abs().max() > 1e-2


class Slots:
    """Full-length buffers for every layer; a call overwrites the slots of its entries and reads all of them."""

    def __init__(self, slots, length):
        self.slots, self.length, self.layers = slots, length, {}

    def update(self, layer, key, value):
        for i, part in enumerate((key, value)):
            rows, heads, _, depth = part.shape
            buffer = self.layers.setdefault((layer, i), torch.zeros(rows, heads, self.length, depth))
            buffer[:, :, self.slots] = part
        return self.layers[layer, 0], self.layers[layer, 1]


@pytest.mark.parametrize("title", ["BertForMaskedLM", "ModernBertForMaskedLM", "RobertaForMaskedLM"])
def test_stored_keys_serve_a_call_over_part_of_the_canvas(kit, title):
    register()
    torch.manual_seed(5)
    # One layer: then keys of the other entries do not depend on what a later call computes, and equality is exact.
    config = kit.config(title, layers=1)
    config._attn_implementation = IMPLEMENTATION
    network = getattr(transformers, title)(config).eval()
    tokens = torch.randint(5, 15, (1, 20))
    positions = torch.arange(20)[None]
    store = Slots(torch.arange(20), 20)

    def call(at):
        context = attention_context(
            positions[:, at], windows=window_widths(network), key_positions=positions, store=store
        )
        return network(input_ids=tokens[:, at], position_ids=positions[:, at] + 1, **{IMPLEMENTATION: context}).logits

    call(torch.arange(20))
    block = torch.arange(8, 13)
    tokens[:, block] = (tokens[:, block] - 4) % 10 + 5
    store.slots = block
    part = call(block)
    store.slots = torch.arange(20)
    torch.testing.assert_close(part, call(torch.arange(20))[:, block], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("title", ["BertForMaskedLM", "ModernBertForMaskedLM"])
def test_one_graph_without_breaks(tmp_path, kit, title):
    model = load_model(kit.save(tmp_path, title))
    torch._dynamo.reset()
    compiled = torch.compile(lambda *query: model(*query), fullgraph=True, backend="eager")
    tokens, positions = torch.tensor([[2, 5, 6, 3], [0, 2, 7, 3]]), torch.tensor([[0, 1, 2, 3], [-1, 0, 1, 2]])
    visible = (positions >= 0)[:, None, :].expand(2, 4, 4)
    torch.testing.assert_close(compiled(tokens, positions, visible), model(tokens, positions, visible))
    torch.testing.assert_close(compiled(tokens, positions, None), model(tokens, positions))
