"""Muon (K. Jordan et al., 2024) for the matrices of the blocks, in fp32: bf16 products are slow on many CPUs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """The matrix with all singular values moved near 1, by the quintic Newton-Schulz iteration of the Muon post."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, then an orthogonal update; parameters of one shape are updated as one batch."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                shapes.setdefault(weight.shape, []).append(weight)
            for shape, weights in shapes.items():
                updates = []
                for weight in weights:
                    memory = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                    memory.lerp_(weight.grad, 1 - group["momentum"])
                    updates.append(weight.grad.lerp(memory, group["momentum"]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for weight, update in zip(weights, orthogonal(torch.stack(updates)), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)
