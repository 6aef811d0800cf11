"""The counter-based noise of `trajspec.ir.noise` in torch: the same values, bit for bit up to the uniform.

No function reads the device from the host, and none keeps state, so all of them may be compiled and captured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajspec.ir.errors import TrajspecError
from trajspec.ir.noise import BELOW_ONE, MASK32, PARITY, ROTATIONS, ROUNDS, ROW_SEEDS

Key = Tensor | int


def threefry2x32(k0: Tensor, k1: Tensor, c0: Tensor, c1: Tensor) -> tuple[Tensor, Tensor]:
    """The Threefry-2x32 block function, 20 rounds, on int64 tensors that hold 32-bit words and broadcast.

    torch has no complete uint32 arithmetic, so words live in int64 and are masked. Only x1 is masked on the way:
    x0 merely takes sums (below 2**38 after 20 rounds), whose low 32 bits are right without it.
    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), library Random123.
    """
    keys = (k0, k1, k0 ^ k1 ^ PARITY)
    x0, x1 = c0 + k0, (c1 + k1) & MASK32
    for r in range(ROUNDS):
        rotation = ROTATIONS[r % 8]
        x0 = x0 + x1
        x1 = (((x1 << rotation) | (x1 >> (32 - rotation))) ^ x0) & MASK32
        if r % 4 == 3:
            i = r // 4 + 1
            x0 = x0 + keys[i % 3]
            x1 = (x1 + keys[(i + 1) % 3] + i) & MASK32
    return x0 & MASK32, x1


def words(seed: Key, role: Key, step: Key, position: Key, token: Key = 0) -> tuple[Tensor, Tensor]:
    """The 64 bits at a key, as two int64 tensors of 32-bit words (high word first), of the broadcast shape.

    Arguments are int64 tensors (on one device) or ints, at least one of them a tensor; the results are on its
    device. The meaning of the key is that of `trajspec.ir.noise.words`.

    Raises TrajspecError if no argument is a tensor or if one holds anything but integers.
    """
    device = _device(seed, role, step, position, token)
    whole = _tensor(seed, "seed", device)
    high, low = (whole >> 32) & MASK32, whole & MASK32
    k0, k1 = threefry2x32(high, low, _low_word(role, "role", device), _low_word(step, "step", device))
    return threefry2x32(k0, k1, _low_word(position, "position", device), _low_word(token, "token", device))


def uniform(seed: Key, role: Key, step: Key, position: Key, token: Key = 0) -> Tensor:
    """A uniform float64 of 53 bits in (0, 1), equal to `trajspec.ir.noise.uniform`; arguments as in `words`."""
    high, low = words(seed, role, step, position, token)
    n = ((high >> 5) << 26) | (low >> 6)
    return ((n.to(torch.float64) + 0.5) * 2.0**-53).clamp(max=BELOW_ONE)


def gumbel(seed: Key, role: Key, step: Key, position: Key, token: Key = 0) -> Tensor:
    """Standard Gumbel noise -log(-log(uniform)), float64; arguments as in `words`.

    Equal to `trajspec.ir.noise.gumbel` up to the last bits of the two logarithms (1e-12).
    """
    return -torch.log(-torch.log(uniform(seed, role, step, position, token)))


def row_seed(seed: Key, index: Key) -> Tensor:
    """Seeds of the `index`-th samples, int64, equal to `trajspec.ir.noise.row_seed`; arguments broadcast.

    Raises TrajspecError if neither argument is a tensor or if one holds anything but integers.
    """
    device = _device(seed, index)
    whole, index = _tensor(seed, "seed", device), _tensor(index, "index", device)
    first = torch.full((), ROW_SEEDS, dtype=torch.int64, device=device)
    high, low = threefry2x32((whole >> 32) & MASK32, whole & MASK32, first, index & MASK32)
    signed = (high ^ 0x80000000) - 0x80000000  # the high word as int32, so that the product stays inside int64
    return torch.where(index == 0, whole, signed * 2**32 + low)


def _device(*values: Key) -> torch.device:
    for value in values:
        if isinstance(value, Tensor):
            return value.device
    raise TrajspecError("noise in torch needs a tensor among its arguments, got ints only; use trajspec.ir.noise")


def _tensor(value: Key, name: str, device: torch.device) -> Tensor:
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            raise TrajspecError(f"{name} is {value!r}; noise keys are int64 tensors or ints of 64 bits")
        if value >= 2**63:
            value = value - 2**64
        # A fill, not a copy from the host: a copy would make a captured step depend on host memory.
        return torch.full((), value, dtype=torch.int64, device=device)
    if value.dtype is torch.bool or value.is_floating_point() or value.is_complex():
        raise TrajspecError(f"{name} holds {value.dtype} values; noise keys are int64 tensors or ints of 64 bits")
    return value.to(torch.int64)


def _low_word(value: Key, name: str, device: torch.device) -> Tensor:
    return _tensor(value, name, device) & MASK32
