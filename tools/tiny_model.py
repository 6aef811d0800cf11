"""The bundled model for training: Llama blocks without biases, in plain torch, with attention as two products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of the model; the names in the exported config are those of the LLaDA checkpoints."""

    vocab_size: int
    d_model: int = 128
    n_layers: int = 6
    n_heads: int = 4
    mlp_hidden_size: int = 384
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_sequence_length: int = 256


class Norm(nn.Module):
    """RMS norm with a learnt scale."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate_half(x: Tensor) -> Tensor:
    """(a, b) -> (-b, a) over the two halves of the last axis: the convention of LLaDA and of transformers."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Block(nn.Module):
    """Attention and gated MLP, each added to the residual; parameter names are those of a LLaDA checkpoint."""

    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        d, ff = c.d_model, c.mlp_hidden_size
        self.heads, self.size = c.n_heads, d // c.n_heads
        self.attn_norm, self.ff_norm = Norm(d, c.rms_norm_eps), Norm(d, c.rms_norm_eps)
        self.q_proj, self.k_proj, self.v_proj, self.attn_out = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.ff_proj, self.up_proj = (nn.Linear(d, ff, bias=False) for _ in range(2))
        self.ff_out = nn.Linear(ff, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, hidden: Tensor | None) -> Tensor:
        rows, length, d = x.shape
        # One wide product is faster on a CPU than three narrow ones; joining the weights costs next to nothing.
        joint = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        q, k, v = F.linear(self.attn_norm(x), joint).view(rows, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        scores = q @ k.transpose(-1, -2) * self.size**-0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        mixed = scores.softmax(-1) @ v
        x = x + self.attn_out(mixed.transpose(1, 2).reshape(rows, length, d))
        joint = torch.cat((self.ff_proj.weight, self.up_proj.weight))
        gate, up = F.linear(self.ff_norm(x), joint).chunk(2, -1)
        return x + self.ff_out(F.silu(gate) * up)


class TinyModel(nn.Module):
    """tokens int64 [R, T] -> logits float [R, T, V]; everything sees everything unless `causal`."""

    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.config = c
        self.wte = nn.Embedding(c.vocab_size, c.d_model)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.ln_f = Norm(c.d_model, c.rms_norm_eps)
        self.ff_out = nn.Linear(c.d_model, c.vocab_size, bias=False)
        size = c.d_model // c.n_heads
        rates = c.rope_theta ** -(torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(c.max_sequence_length).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Blocks start as the identity: what is written to the residual starts at zero, as with Muon in practice."""
        nn.init.normal_(self.wte.weight, std=0.5)
        nn.init.normal_(self.ff_out.weight, std=0.02)
        for block in self.blocks:
            for name, weight in block.named_parameters():
                if weight.ndim == 2:
                    out = name in ("attn_out.weight", "ff_out.weight")
                    nn.init.zeros_(weight) if out else nn.init.normal_(weight, std=0.6 * weight.shape[1] ** -0.5)

    def forward(self, tokens: Tensor, causal: bool = False) -> Tensor:
        length = tokens.shape[1]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length], hidden)
        return self.ff_out(self.ln_f(x))
