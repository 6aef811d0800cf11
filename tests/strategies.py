"""Hypothesis strategies for small models, canvases and seeds."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from trajspec.exact.tabular import HashModel

#: Row seeds: 64 bits in two's complement.
seeds = st.integers(-(2**63), 2**63 - 1)


@st.composite
def small_models(draw: st.DrawFn, levels: tuple[int, ...] = (1, 2, 4, 50)) -> HashModel:
    """Arbitrary functions of the canvas over 3 to 6 tokens; few levels make ties."""
    vocab_size = draw(st.integers(3, 6))
    mask_id = draw(st.sampled_from([vocab_size - 1, 0]))
    seed = draw(st.integers(0, 2**16))
    model = HashModel(seed, vocab_size, draw(st.sampled_from(levels)), mask_id)
    # For policies that ask a further model.
    model.others = {"ar": HashModel(seed + 1, vocab_size, 50, mask_id)}
    return model


@st.composite
def canvases(draw: st.DrawFn, vocab_size: int, mask_id: int, rows: int = 1, max_length: int = 8) -> np.ndarray:
    """Tokens int64 [rows, L], L from 1 to max_length: ordinary tokens under a random plane of masks."""
    length = draw(st.integers(1, max_length))
    others = [token for token in range(vocab_size) if token != mask_id]
    entry = st.one_of(st.just(mask_id), st.sampled_from(others))
    return np.array(draw(st.lists(entry, min_size=rows * length, max_size=rows * length))).reshape(rows, length)
