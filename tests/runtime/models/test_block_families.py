"""Families that see whole blocks, from checkpoints in their published layout: SDAR and Fast-dLLM v2.

What their networks compute is written here once more in plain torch, from the papers' description and the published
weight names, and shares nothing with transformers or the library.
"""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import trajspec as ts
from trajspec.runtime.models import FAMILIES

WIDTH, HEADS, KEY_HEADS, DEPTH, MLP, LAYERS, VOCAB, MASK = 32, 4, 2, 16, 48, 2, 40, 39
SIZES = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": MLP, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "mask_token_id": MASK,
    "eos_token_id": 1, "pad_token_id": 0, "use_sliding_window": False,
}  # fmt: skip
LAYOUTS = {
    "sdar": {"architectures": ["SDARForCausalLM"], "model_type": "sdar", "head_dim": DEPTH, "attention_bias": False},
    "fast_dllm_v2": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen", "bd_size": 32, "head_dim": 8
    },
}  # fmt: skip


def weights_of(name, seed=0):
    """Random weights under the published names."""
    made = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=made) * 0.3

    depth = DEPTH if name == "sdar" else WIDTH // HEADS
    out = {"model.embed_tokens.weight": random(VOCAB, WIDTH), "lm_head.weight": random(VOCAB, WIDTH)}
    out["model.norm.weight"] = 1 + random(WIDTH)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for title, rows in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            out[f"{at}self_attn.{title}_proj.weight"] = random(rows * depth, WIDTH)
            if name == "fast_dllm_v2":
                out[f"{at}self_attn.{title}_proj.bias"] = random(rows * depth)
        out[f"{at}self_attn.o_proj.weight"] = random(WIDTH, HEADS * depth)
        if name == "sdar":
            out[f"{at}self_attn.q_norm.weight"] = 1 + random(depth)
            out[f"{at}self_attn.k_norm.weight"] = 1 + random(depth)
        for title, shape in (("gate", (MLP, WIDTH)), ("up", (MLP, WIDTH)), ("down", (WIDTH, MLP))):
            out[f"{at}mlp.{title}_proj.weight"] = random(*shape)
        out[f"{at}input_layernorm.weight"] = 1 + random(WIDTH)
        out[f"{at}post_attention_layernorm.weight"] = 1 + random(WIDTH)
    return out


def save(folder, name, **changes):
    """A checkpoint as published; its weights."""
    weights = weights_of(name)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(SIZES | LAYOUTS[name] | changes))
    return weights


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def plain(weights, tokens, visible, name):
    """Logits [T, V] about their own position: what the family's network computes of `tokens` [T]."""
    depth = DEPTH if name == "sdar" else WIDTH // HEADS
    length = len(tokens)
    x = weights["model.embed_tokens.weight"][tokens]
    angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, depth, 2) / depth)
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    def turned(y):
        first, second = y.chunk(2, -1)
        return y * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    for layer in range(LAYERS):
        w = {key.split(f"layers.{layer}.")[1]: value for key, value in weights.items() if f"layers.{layer}." in key}
        h = norm(x, w["input_layernorm.weight"])
        q, k, v = (
            F.linear(h, w[f"self_attn.{t}_proj.weight"], w.get(f"self_attn.{t}_proj.bias")).view(length, -1, depth)
            for t in "qkv"
        )
        if name == "sdar":
            q, k = norm(q, w["self_attn.q_norm.weight"]), norm(k, w["self_attn.k_norm.weight"])
        q, k = turned(q), turned(k)
        k, v = (part.repeat_interleave(HEADS // KEY_HEADS, 1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / depth**0.5
        mixed = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        out = torch.einsum("hqk,khd->qhd", mixed, v).reshape(length, -1)
        x = x + F.linear(out, w["self_attn.o_proj.weight"])
        h = norm(x, w["post_attention_layernorm.weight"])
        gated = F.silu(F.linear(h, w["mlp.gate_proj.weight"])) * F.linear(h, w["mlp.up_proj.weight"])
        x = x + F.linear(gated, w["mlp.down_proj.weight"])
    logits = F.linear(norm(x, weights["model.norm.weight"]), weights["lm_head.weight"])
    return logits if name == "sdar" else torch.cat([logits[:1], logits[:-1]])


def in_blocks(length, size):
    """Everything sees its own block and those before it."""
    number = torch.arange(length) // size
    return number[None, :] <= number[:, None]


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_are_those_of_the_published_network(tmp_path, name):
    weights = save(tmp_path, name)
    model = ts.load_model(str(tmp_path))
    assert (model.mask_id, model.eos_ids, model.kind) == (MASK, (1,), "text")
    tokens = torch.randint(0, VOCAB, (17,), generator=torch.Generator().manual_seed(1))
    for visible in (torch.ones(17, 17, dtype=torch.bool), in_blocks(17, 4)):
        ours = model(tokens[None], torch.arange(17)[None], visible[None])[0]
        theirs = plain(weights, tokens, visible, name)
        assert (ours - theirs).abs().max() < 2e-5
        # Control: another visibility is another answer.
        assert (ours - plain(weights, tokens, in_blocks(17, 8), name)).abs().max() > 1e-2


def threshold_loop(weights, name, prompt, length, size, threshold):
    """Blocks from position 0, one after the other, each by the threshold rule; the steps as (position, token)."""
    x = torch.tensor([*prompt, *[MASK] * length])
    masked = torch.tensor([False] * len(prompt) + [True] * length)
    steps = []
    while masked.any():
        block = int(masked.nonzero()[0, 0]) // size
        end = min((block + 1) * size, len(x))
        logits = plain(weights, torch.where(masked, MASK, x)[:end], in_blocks(end, size), name)
        logits[:, MASK] = -torch.inf
        p, token = logits.double().softmax(-1).max(-1)
        here = masked[:end] & (torch.arange(end) // size == block)
        take = here & (p >= threshold)
        take[torch.where(here, p, -1).argmax()] = True
        steps.append([(int(place), int(token[place])) for place in take.nonzero()[:, 0]])
        x[:end][take], masked[:end][take] = token[take], False
    return steps


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("draft", [None, "tree"])
def test_blocks_on_kept_keys_are_the_network_s_own(tmp_path, name, size, draft):
    """The store pass, and for shifted logits the entry before a block, give what one pass over all of it gives."""
    weights = save(tmp_path, name)
    model = ts.load_model(str(tmp_path))
    prompts = [[3, 4, 5, 6, 7, 8], [9, 10], [11] * 8]
    told = {"policy": "fastdllm_threshold", "cache": "block_causal", "block_length": size, "threshold": 0.3}
    rows = ts.decode(model, prompts, gen_length=14, ignore_eos=True, draft=draft, **told)
    for prompt, row in zip(prompts, rows, strict=True):
        assert row.path == threshold_loop(weights, name, prompt, 14, size, 0.3)
    assert rows[0].path != threshold_loop(weights, name, prompts[0], 14, 2 * size, 0.3)


@pytest.mark.parametrize(
    ("name", "policy"),
    [("sdar", "sdar_dynamic"), ("sdar", "sdar_static"), ("sdar", "sdar_sequential"), ("fast_dllm_v2", "fastdllm_v2")],
)
def test_their_policies_run(tmp_path, name, policy):
    save(tmp_path, name)
    row = ts.decode(str(tmp_path), [[3, 4, 5]], policy=policy, cache="block_causal", gen_length=9, ignore_eos=True)[0]
    assert len(row.token_ids) == 9 and MASK not in row.token_ids and row.calls_by_kind["step"] > 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_not_computed_is_refused(tmp_path, name):
    save(tmp_path, name, rope_scaling={"type": "yarn"})
    with pytest.raises(ts.TrajspecError, match="rope_scaling is"):
        ts.load_model(str(tmp_path))
    save(tmp_path, name, mask_token_id=VOCAB)
    with pytest.raises(ts.TrajspecError, match=f"mask id {VOCAB} is outside the vocabulary"):
        ts.load_model(str(tmp_path))
    save(tmp_path, name, architectures=["LlamaForCausalLM"])
    with pytest.raises(ts.TrajspecError, match="supported are .*SDARForCausalLM, Fast_dLLM_QwenForCausalLM"):
        ts.load_model(str(tmp_path))
    weights = save(tmp_path, name)
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ts.TrajspecError, match=r"norm\.weight"):
        ts.load_model(str(tmp_path))


def test_published_ids():
    assert FAMILIES["SDARForCausalLM"].mask_id == 151669 and not FAMILIES["SDARForCausalLM"].shifted
    v2 = FAMILIES["Fast_dLLM_QwenForCausalLM"]
    assert (v2.mask_id, v2.eos_ids, v2.shifted) == (151665, (151645,), True)
