"""The canvas: the token ids of a row, what is masked, and the counters every policy may read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .errors import TrajspecError


class Canvas(NamedTuple):
    """One row, or a batch with rows in front. Arrays are numpy or torch; L positions, V vocabulary, K stop ids.

    A position is masked because `masked` says so, never because its id equals the mask id: a prompt may hold that id.
    """

    tokens: Any  # int64 [..., L]; at masked positions the mask id
    masked: Any  # bool  [..., L]
    free: Any  # bool  [..., L] masked at the start: what the policy may write
    position: Any  # int64 [..., L] 0 at the row's first real token; negative on padding
    start: Any  # int64 [..., 1] position where the prompt ends: blocks are counted from here
    step: Any  # int64 [..., 1] base steps done
    block_step: Any  # int64 [..., 1] base steps done since the open block was entered
    seed: Any  # int64 [..., 1] the row's own seed
    done: Any  # bool  [..., 1] the row has ended
    mask_id: Any  # int64 [..., 1]
    stop: Any  # int64 [..., K] ids that end a row; -1 fills up
    allowed: Any  # bool  [..., 1 or L, V] tokens that may be predicted; never the mask id


class Cache(NamedTuple):
    """What a cached view remembers of a row: the canvas it was made from and the block it was made for.

    The keys and values outside the block are a function of this canvas, so this is all a cache means; where a runtime
    keeps tensors besides, they follow from it.
    """

    tokens: Any  # int64 [..., L]
    masked: Any  # bool  [..., L]
    where: Any  # bool  [..., L] the block; nowhere when there is no cache yet


def canvas(
    tokens: Iterable[int],
    masked: Iterable[bool] | None = None,
    *,
    gen_length: int = 0,
    start: int | None = None,
    vocab_size: int,
    mask_id: int,
    seed: int = 0,
    stop: Iterable[int] = (),
    banned: Iterable[int] = (),
    allowed: Mapping[int, Iterable[int]] | None = None,
) -> Canvas:
    """The start state of one row: `tokens` followed by `gen_length` masks.

    `masked` marks positions of `tokens` to be filled in (blocks then count from position 0, or from `start`); without
    it all of `tokens` is prompt and blocks count from its end. `stop`: ids that end the row; `banned`: ids that are
    never predicted (the mask id always is one); `allowed`: {position: ids} restricts single positions.

    Raises TrajspecError when an id lies outside the vocabulary or a position has nothing left to predict.
    """
    ids = np.asarray(list(tokens), dtype=np.int64)
    hidden = np.zeros(len(ids), bool) if masked is None else np.asarray(list(masked), dtype=bool)
    if hidden.shape != ids.shape:
        raise TrajspecError(f"masked has {len(hidden)} entries, expected {len(ids)}, one a token")
    if not 0 <= mask_id < vocab_size:
        raise TrajspecError(f"mask id {mask_id} lies outside the vocabulary of {vocab_size} ids")
    if gen_length < 0:
        raise TrajspecError(f"gen_length is {gen_length}, expected 0 or more")
    prompt = len(ids)
    if start is None:
        start = prompt if masked is None else 0
    ids = np.concatenate([ids, np.full(gen_length, mask_id)])
    hidden = np.concatenate([hidden, np.ones(gen_length, bool)])
    bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if bad.size:
        raise TrajspecError(f"token {ids[bad[0]]} at position {bad[0]}: expected ids from 0 to {vocab_size - 1}")
    if ids.size == 0:
        raise TrajspecError("the canvas is empty: give a prompt, or gen_length of 1 or more")
    ids = np.where(hidden, mask_id, ids)
    stops = np.asarray(sorted(set(stop)) or [-1], dtype=np.int64)
    return Canvas(
        tokens=ids,
        masked=hidden,
        free=hidden.copy(),
        position=np.arange(len(ids)),
        start=np.asarray([start]),
        step=np.asarray([0]),
        block_step=np.asarray([0]),
        seed=np.asarray([_signed(seed)]),
        done=np.asarray([not hidden.any()]),
        mask_id=np.asarray([mask_id]),
        stop=stops,
        allowed=_allowed(len(ids), vocab_size, mask_id, banned, allowed, hidden),
    )


def _allowed(
    length: int,
    vocab_size: int,
    mask_id: int,
    banned: Iterable[int],
    allowed: Mapping[int, Iterable[int]] | None,
    hidden: np.ndarray,
) -> np.ndarray:
    everywhere = np.ones((1, vocab_size), bool)
    for token in {mask_id, *banned}:
        if not 0 <= token < vocab_size:
            raise TrajspecError(f"banned id {token} lies outside the vocabulary of {vocab_size} ids")
        everywhere[0, token] = False
    if not everywhere.any():
        raise TrajspecError("every id of the vocabulary is banned: nothing is left to predict")
    if not allowed:
        return everywhere
    table = np.repeat(everywhere, length, axis=0)
    for position, tokens in allowed.items():
        if not 0 <= position < length:
            raise TrajspecError(f"allowed: position {position} lies outside the canvas of {length} positions")
        row = np.zeros(vocab_size, bool)
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise TrajspecError(f"allowed: id {token} at position {position} lies outside the {vocab_size} ids")
            row[token] = True
        table[position] &= row
        if hidden[position] and not table[position].any():
            raise TrajspecError(f"allowed: no id is left for position {position}; expected at least one that may occur")
    return table


def _signed(seed: int) -> int:
    if not -(2**63) <= seed < 2**64:
        raise TrajspecError(f"seed {seed} does not fit into 64 bits")
    return seed - 2**64 if seed >= 2**63 else seed


def to_text(row: Canvas) -> str:
    """The tokens of one numpy row with `_` at masked positions: for messages and tables."""
    return " ".join("_" if hidden else str(token) for token, hidden in zip(row.tokens, row.masked, strict=True))
