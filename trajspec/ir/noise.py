"""Noise as a pure function of (row seed, role, step, position, token): the Threefry-2x32-20 cipher in numpy.

Nothing is drawn from a stream, so the value at a key is the same whoever asks for it, in whatever order, and
however many rows, drafts or batch neighbours were evaluated before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajspec.ir.errors import TrajspecError

#: What a number is for; a role of its own keeps e.g. the acceptance coin apart from the residual's draw.
ROLES: dict[str, int] = {"tok": 0, "ord": 1, "draft": 2, "coin": 3, "resid": 4, "view": 5}

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
ROUNDS = 20
MASK32 = 0xFFFFFFFF
#: The first counter word under which row seeds are derived; roles are small, so no stream meets it.
ROW_SEEDS = MASK32
#: The largest float64 below 1.
BELOW_ONE = 1.0 - 2.0**-53


def threefry2x32(
    k0: NDArray[np.uint32], k1: NDArray[np.uint32], c0: NDArray[np.uint32], c1: NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The Threefry-2x32 block function, 20 rounds: two words out of a key and a counter of two words each.

    All four are uint32 arrays that broadcast; both results have the broadcast shape.
    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), library Random123.
    """
    shape = np.broadcast_shapes(k0.shape, k1.shape, c0.shape, c1.shape)
    # numpy warns when a scalar overflows but not when an array does, hence no operand of zero dimensions.
    k0, k1, c0, c1 = np.atleast_1d(k0, k1, c0, c1)
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(PARITY))
    x0, x1 = c0 + k0, c1 + k1
    for r in range(ROUNDS):
        rotation = ROTATIONS[r % 8]
        if r == 0:
            x0 = x0 + x1  # full shape from here on
            x1 = ((x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))) ^ x0
            spare = np.empty_like(x1)
        else:
            x0 += x1
            np.right_shift(x1, np.uint32(32 - rotation), out=spare)
            x1 <<= np.uint32(rotation)
            x1 |= spare
            x1 ^= x0
        if r % 4 == 3:
            i = r // 4 + 1
            x0 += keys[i % 3]
            x1 += keys[(i + 1) % 3] + np.uint32(i)
    return x0.reshape(shape), x1.reshape(shape)


def words(
    seed: ArrayLike, role: ArrayLike, step: ArrayLike, position: ArrayLike, token: ArrayLike = 0
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The 64 bits at a key, as two uint32 arrays (high word first) of the arguments' broadcast shape.

    All arguments are int64 arrays or ints that broadcast. `seed` is a 64-bit value carried in two's complement
    (an int up to 2**64 - 1 is taken too); of the other four the low 32 bits count.
    The key is folded in twice: k1 = threefry(key=seed halves, counter=(role, step)), then
    threefry(key=k1, counter=(position, token)); so a [L, V] request pays for one k1 only.

    Raises TrajspecError for an argument that holds anything but integers.
    """
    whole = _integers(seed, "seed").astype(np.uint64)
    high, low = (whole >> np.uint64(32)).astype(np.uint32), whole.astype(np.uint32)
    k0, k1 = threefry2x32(high, low, _low_word(role, "role"), _low_word(step, "step"))
    return threefry2x32(k0, k1, _low_word(position, "position"), _low_word(token, "token"))


def uniform(
    seed: ArrayLike, role: ArrayLike, step: ArrayLike, position: ArrayLike, token: ArrayLike = 0
) -> NDArray[np.float64]:
    """A uniform float64 of 53 bits in the open interval (0, 1); arguments, shape and errors as in `words`.

    With n the first 53 of the 64 bits it is (n + 1/2) * 2**-53, rounded to float64, and never 1.
    """
    high, low = words(seed, role, step, position, token)
    n = (high >> np.uint32(5)) * np.float64(2**26) + (low >> np.uint32(6))
    # n + 1/2 needs 54 bits in the upper half; there it rounds to even, and the top value would become 1.
    return np.minimum((n + 0.5) * 2.0**-53, BELOW_ONE)


def gumbel(
    seed: ArrayLike, role: ArrayLike, step: ArrayLike, position: ArrayLike, token: ArrayLike = 0
) -> NDArray[np.float64]:
    """Standard Gumbel noise -log(-log(uniform)), finite float64; arguments, shape and errors as in `words`.

    argmax over tokens of logits / T + gumbel is a draw from softmax(logits / T).
    """
    return -np.log(-np.log(uniform(seed, role, step, position, token)))


def row_seed(seed: int, index: int) -> int:
    """The seed of the `index`-th sample of one prompt, as an int64 value; index 0 keeps the base seed.

    The others come from the same cipher, threefry(key=seed halves, counter=(2**32 - 1, index)), a counter that
    no role uses. A row's seed therefore does not depend on its place in a batch.

    Raises TrajspecError unless -2**63 <= seed < 2**64 and 0 <= index < 2**32.
    """
    if not -(2**63) <= seed < 2**64:
        raise TrajspecError(f"seed {seed} does not fit 64 bits; give an int from -2**63 to 2**64 - 1")
    if not 0 <= index <= MASK32:
        raise TrajspecError(f"sample index {index} is out of range; expected 0 <= index < 2**32")
    whole = int(seed) % 2**64
    if index:
        high, low = threefry2x32(*(np.array(w, np.uint32) for w in (whole >> 32, whole & MASK32, ROW_SEEDS, index)))
        whole = (int(high) << 32) | int(low)
    return whole - 2**64 if whole >= 2**63 else whole


def _integers(value: ArrayLike, name: str) -> NDArray[np.integer]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TrajspecError(f"{name} holds {array.dtype} values; noise keys are int64 arrays or ints of 64 bits")
    return array


def _low_word(value: ArrayLike, name: str) -> NDArray[np.uint32]:
    return _integers(value, name).astype(np.uint32)
