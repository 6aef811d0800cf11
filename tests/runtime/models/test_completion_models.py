"""LLaDA and Dream checkpoints: the logits of the plain class, what the adapters set, and what is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.models import load_model

from .completion import SAVE, SIZE, save_dream, save_llada


def both_sides(plain, tokens):
    """Logits of a plain causal class with nothing hidden."""
    return plain(input_ids=tokens, attention_mask=torch.zeros(1, 1, *(tokens.shape[1],) * 2)).logits


def row(length=14):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, SIZE, (1, length), generator=generator), torch.arange(length)[None]


@pytest.mark.parametrize("changes", [{}, {"weight_tying": True}])
def test_published_llada_names_load_and_save(tmp_path, changes):
    plain = save_llada(tmp_path / "published", **changes)
    model = load_model(tmp_path / "published")
    tokens, positions = row()
    logits = model(tokens, positions)
    torch.testing.assert_close(logits, both_sides(plain, tokens), rtol=1e-4, atol=1e-4)
    # Control: a causal mask is something else.
    assert (logits - plain(input_ids=tokens).logits).abs().max() > 1e-2
    again = tmp_path / "again"
    model.network.save_pretrained(again)
    shutil.copy(tmp_path / "published" / "config.json", again / "config.json")
    assert set(load_file(again / "model.safetensors")) == set(load_file(tmp_path / "published" / "model.safetensors"))
    assert torch.equal(load_model(again)(tokens, positions), logits)


def test_dream_is_qwen2_seeing_both_sides_and_shifted(tmp_path):
    plain = save_dream(tmp_path)
    tokens, positions = row()
    raw = both_sides(plain, tokens)
    shifted = torch.cat([raw[:, :1], raw[:, :-1]], dim=1)
    torch.testing.assert_close(load_model(tmp_path)(tokens, positions), shifted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "heads"), [({}, 2), ({"n_kv_heads": None}, 4), ({"n_kv_heads": None, "multi_query_attention": True}, 1)]
)
def test_key_heads(tmp_path, changes, heads):
    from trajspec.runtime.models.llada import translate

    save_llada(tmp_path, **changes)
    config = translate("here", json.loads((tmp_path / "config.json").read_text()))
    assert (config.num_key_value_heads, config.vocab_size) == (heads, SIZE)


@pytest.mark.parametrize(
    ("given", "rotates_in"), [(True, torch.float32), (None, torch.float32), (False, torch.bfloat16)]
)
def test_llada_rotates_in_float32_where_its_config_says_so(tmp_path, given, rotates_in):
    save_llada(tmp_path, rope_full_precision=given)
    half = load_model(tmp_path, dtype=torch.bfloat16)
    full = load_model(tmp_path)
    rotary = half.network.model.rotary_emb
    cos, sin = rotary(torch.zeros(1, 1, 32, dtype=torch.bfloat16), torch.arange(50)[None])
    assert (cos.dtype, sin.dtype) == (rotates_in, rotates_in)
    # The frequencies stay in float32 in any case; casting the loaded network would round them.
    assert torch.equal(rotary.inv_freq, full.network.model.rotary_emb.inv_freq)
    tokens, positions = row()
    logits = half(tokens, positions)
    assert half.dtype == logits.dtype == torch.bfloat16
    assert (logits.float() - full(tokens, positions)).abs().mean() < 0.2
    assert full.network.to(torch.bfloat16).model.rotary_emb.inv_freq.dtype == torch.bfloat16


def test_dream_rotates_in_the_dtype_of_its_weights(tmp_path):
    save_dream(tmp_path)
    rotary = load_model(tmp_path, dtype=torch.bfloat16).network.model.rotary_emb
    assert rotary.inv_freq.dtype == torch.float32
    assert rotary(torch.zeros(1, 1, 32, dtype=torch.bfloat16), torch.arange(5)[None])[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("llada", {"block_type": "sequential"}, "block_type is 'sequential'; only 'llama' is computed here"),
        ("llada", {"alibi": True}, "alibi is True; only False"),
        ("llada", {"rope_scaling": {"type": "linear"}}, "rope_scaling is .*; only None"),
        ("llada", {"d_model": None, "n_heads": None}, "config.json has no d_model, n_heads"),
        ("llada", {"n_layers": "three"}, "config.json does not fit LLaDAModelLM"),
        ("llada", {"n_layers": 2}, "LlamaForCausalLM has no place for 9 weights"),
        ("llada", {"n_layers": 4}, "9 weights of LlamaForCausalLM are not in the checkpoint"),
        ("dream", {"use_sliding_window": True}, "use_sliding_window is True; only False"),
        ("dream", {"rope_theta": None}, "config.json has no rope_theta"),
        ("dream", {"num_hidden_layers": 1}, "Qwen2ForCausalLM has no place for"),
    ],
)
def test_a_config_that_does_not_fit(tmp_path, name, changes, said):
    SAVE[name](tmp_path, **changes)
    with pytest.raises(TrajspecError, match=said):
        load_model(tmp_path)


def test_code_in_a_checkpoint_is_never_run(written, kit):
    trap = written / "sprung"
    (written / "custom.py").write_text(f"open({str(trap)!r}, 'w').close()\n")
    kit.edit_json(written / "config.json", auto_map={"AutoConfig": "custom.C", "AutoModel": "custom.M"})
    kit.edit_json(written / "tokenizer_config.json", auto_map={"AutoTokenizer": ["custom.T", None]})
    load_model(written)
    assert not trap.exists()


@pytest.mark.parametrize("text", [True, False])
def test_a_hub_id_in_the_cache(written, text, monkeypatch, tmp_path_factory):
    import huggingface_hub.constants

    cache = tmp_path_factory.mktemp("hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    if not text:
        (written / "tokenizer.json").unlink(), (written / "tokenizer_config.json").unlink()
    entry = cache / "models--some--model"
    shutil.copytree(written, entry / "snapshots" / ("0123456789" * 4))
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("0123456789" * 4)
    model, tokens = load_model("some/model"), row()
    assert (model.name, model.codec is not None) == ("some/model", text)
    assert torch.equal(model(*tokens), load_model(written)(*tokens))
