"""Families that see whole blocks, from checkpoints in their published layout: SDAR, Fast-dLLM v2 and LLaDA2.

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
EXPERTS, CHOSEN, GROUPS, CHOSEN_GROUPS, EXPERT_MLP, SCALE = 8, 3, 4, 2, 24, 2.5
SIZES = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": MLP, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "mask_token_id": MASK, "eos_token_id": 1, "pad_token_id": 0, "use_sliding_window": False,
}  # fmt: skip
LAYOUTS = {
    "sdar": {"architectures": ["SDARForCausalLM"], "model_type": "sdar", "head_dim": DEPTH, "attention_bias": False},
    "fast_dllm_v2": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen", "bd_size": 32, "head_dim": 8
    },
    "llada2": {
        "architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", "head_dim": DEPTH,
        "partial_rotary_factor": 0.5,
        "num_experts": EXPERTS, "num_shared_experts": 1, "num_experts_per_tok": CHOSEN, "n_group": GROUPS,
        "topk_group": CHOSEN_GROUPS, "moe_intermediate_size": EXPERT_MLP, "first_k_dense_replace": 1,
        "routed_scaling_factor": SCALE, "norm_topk_prob": True, "score_function": "sigmoid", "use_qk_norm": True,
        "use_qkv_bias": False, "use_bias": False, "moe_router_enable_expert_bias": True,
    },
}  # fmt: skip


def weights_of(name, seed=0):
    """Random weights under the published names."""
    made = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=made) * 0.3

    depth = WIDTH // HEADS if name == "fast_dllm_v2" else DEPTH
    out = {"model.embed_tokens.weight": random(VOCAB, WIDTH), "lm_head.weight": random(VOCAB, WIDTH)}
    out["model.norm.weight"] = 1 + random(WIDTH)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for title, rows in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            out[f"{at}self_attn.{title}_proj.weight"] = random(rows * depth, WIDTH)
            if name == "fast_dllm_v2":
                out[f"{at}self_attn.{title}_proj.bias"] = random(rows * depth)
        out[f"{at}self_attn.o_proj.weight"] = random(WIDTH, HEADS * depth)
        if name != "fast_dllm_v2":
            out[f"{at}self_attn.q_norm.weight"] = 1 + random(depth)
            out[f"{at}self_attn.k_norm.weight"] = 1 + random(depth)
        for title, shape in (("gate", (MLP, WIDTH)), ("up", (MLP, WIDTH)), ("down", (WIDTH, MLP))):
            out[f"{at}mlp.{title}_proj.weight"] = random(*shape)
        out[f"{at}input_layernorm.weight"] = 1 + random(WIDTH)
        out[f"{at}post_attention_layernorm.weight"] = 1 + random(WIDTH)
    return out if name != "llada2" else renamed(out, random)


def renamed(weights, random):
    """The same under LLaDA2's names, with experts in place of the second layer's MLP."""
    out = {}
    for key, value in weights.items():
        title = key.replace("embed_tokens", "word_embeddings").replace("self_attn.o_proj", "attention.dense")
        title = title.replace("self_attn.q_norm", "attention.query_layernorm")
        title = title.replace("self_attn.k_norm", "attention.key_layernorm")
        joined = any(f"self_attn.{part}_proj" in key for part in "qkv")
        if "layers.1.mlp" not in key and not joined:
            out[title] = value
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        parts = [weights[f"{at}self_attn.{part}_proj.weight"] for part in "qkv"]
        out[f"{at}attention.query_key_value.weight"] = torch.cat(parts)
    at = "model.layers.1.mlp."
    out[f"{at}gate.weight"], out[f"{at}gate.expert_bias"] = random(EXPERTS, WIDTH), random(EXPERTS)
    for place in [f"experts.{number}" for number in range(EXPERTS)] + ["shared_experts"]:
        for title, shape in (("gate", (EXPERT_MLP, WIDTH)), ("up", (EXPERT_MLP, WIDTH)), ("down", (WIDTH, EXPERT_MLP))):
            out[f"{at}{place}.{title}_proj.weight"] = random(*shape)
    return out


def mlp(x, w, at):
    gated = F.silu(F.linear(x, w[f"{at}gate_proj.weight"])) * F.linear(x, w[f"{at}up_proj.weight"])
    return F.linear(gated, w[f"{at}down_proj.weight"])


def experts(x, w):
    """LLaDA2's mixture: groups by the sum of their two best scores, then the best experts in the chosen groups."""
    out = mlp(x, w, "mlp.shared_experts.")
    for number, row in enumerate(x):
        score = torch.sigmoid(w["mlp.gate.weight"] @ row)
        biased = score + w["mlp.gate.expert_bias"]
        best = biased.view(GROUPS, -1).sort(-1, descending=True).values[:, :2].sum(-1)
        groups = best.argsort(descending=True)[:CHOSEN_GROUPS].tolist()
        size = EXPERTS // GROUPS
        there = [e for e in range(EXPERTS) if e // size in groups]
        chosen = sorted(there, key=lambda e: -float(biased[e]))[:CHOSEN]
        total = sum(float(score[e]) for e in chosen)
        for e in chosen:
            out[number] += SCALE * float(score[e]) / total * mlp(row, w, f"mlp.experts.{e}.")
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
    depth = WIDTH // HEADS if name == "fast_dllm_v2" else DEPTH
    turning = depth // 2 if name == "llada2" else depth
    length = len(tokens)
    x = weights["model.word_embeddings.weight" if name == "llada2" else "model.embed_tokens.weight"][tokens]
    angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, turning, 2) / turning)
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    def turned(y):
        y, rest = y[..., :turning], y[..., turning:]
        first, second = y.chunk(2, -1)
        return torch.cat([y * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None], rest], -1)

    for layer in range(LAYERS):
        w = {key.split(f"layers.{layer}.")[1]: value for key, value in weights.items() if f"layers.{layer}." in key}
        h = norm(x, w["input_layernorm.weight"])
        if name == "llada2":
            joint = F.linear(h, w["attention.query_key_value.weight"]).view(length, -1, depth)
            q, k, v = joint.split([HEADS, KEY_HEADS, KEY_HEADS], 1)
            q, k = norm(q, w["attention.query_layernorm.weight"]), norm(k, w["attention.key_layernorm.weight"])
        else:
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
        x = x + F.linear(out, w["attention.dense.weight" if name == "llada2" else "self_attn.o_proj.weight"])
        h = norm(x, w["post_attention_layernorm.weight"])
        x = x + (experts(h, w) if "mlp.gate.weight" in w else mlp(h, w, "mlp."))
    logits = F.linear(norm(x, weights["model.norm.weight"]), weights["lm_head.weight"])
    return torch.cat([logits[:1], logits[:-1]]) if name == "fast_dllm_v2" else logits


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
    [("sdar", "sdar_dynamic"), ("sdar", "sdar_static"), ("sdar", "sdar_sequential"), ("fast_dllm_v2", "fastdllm_v2"),
     ("llada2", "sglang_low_confidence"), ("llada2", "sglang_joint_threshold")],
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
    with pytest.raises(ts.TrajspecError, match="supported are .*SDARForCausalLM, .*LLaDA2MoeModelLM"):
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
