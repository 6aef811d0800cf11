"""Small numpy denoisers, for checking policies on models whose every logit can be worked out by hand.

All of them answer `model(tokens, positions, visible)` as every denoiser does: tokens and positions int64 [R, W],
visible bool [R, W, W] (`visible[r, i, j]`: entry i may see entry j) or None (everything sees everything); the
result is float64 [R, W, V], row i of which predicts entry i. Each row of a call is answered by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajspec.ir.errors import TrajspecError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
#: What an entry sees: its (position, token) pairs as a set, sorted.
Canvas = tuple[tuple[int, int], ...]


class StubModel:
    """The stub denoisers `table` and `peaky` of the recorded golden trajectories.

        logit[i, v] = gain_p * (base_scale * b[p, v] + ctx_scale / sqrt(L) * sum_j W[p_j, x_j, p, v])   p = p_i
        peaky adds    amp_p * (1 - fade * m / L)   at v = target_p;   mask_bias, if any, goes to column mask_id

    The sum and m, the number of masks, run over the entries j that entry i may see. With `shift` the logits are
    Dream's, shifted by one: entry i gets what the entry one position earlier would get from the same visible
    entries (position 0 its own), which is the row i - 1 of a plain canvas, also where entries lie out of order.

    The sum is taken in the order of positions, invisible entries adding zero. So an entry's logits are the same
    bit for bit however the entries are laid out and whatever else is packed into the call.

    Source: the description that comes with the golden trajectories, section 2.
    """

    def __init__(
        self,
        base: Floats,
        context: Floats,
        gain: Floats,
        *,
        mask_id: int,
        base_scale: float,
        ctx_scale: float,
        mask_bias: float | None = None,
        peak: tuple[Ints, Floats, float] | None = None,
        shift: bool = False,
    ) -> None:
        """base [L, V], context [L, V, L, V] as W[j, token at j, i, v], gain [L]; peak (target [L], amp [L], fade)."""
        self.length, self.vocab_size = base.shape
        self.mask_id = mask_id
        self._base = (gain[:, None] * base_scale) * base
        if mask_bias is not None:
            self._base[:, mask_id] += mask_bias
        self._context = context
        self._scale = gain * (ctx_scale / np.sqrt(self.length))
        self._peak = peak
        self._shift = shift

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], shift: bool = False) -> StubModel:
        """The stub of a golden file's `model` entry, its tables drawn from numpy's Philox in the stated order.

        Raises TrajspecError for a kind other than table and peaky, and for a missing key.
        """
        kind = spec.get("kind")
        if kind not in ("table", "peaky"):
            raise TrajspecError(f"stub kind is {kind!r}; expected 'table' or 'peaky'")
        peaky = kind == "peaky"
        needed = {"seed", "length", "vocab", "mask_id", "base_scale", "ctx_scale", "gain_lo", "gain_hi", "mask_bias"}
        missing = sorted((needed | {"amp_lo", "amp_hi", "fade"} if peaky else needed) - set(spec))
        if missing:
            raise TrajspecError(f"stub spec of kind {kind!r} lacks {', '.join(missing)}; add what is missing")
        length, vocab, mask_id = spec["length"], spec["vocab"], spec["mask_id"]
        _check_ids(vocab, mask_id)
        random = np.random.Generator(np.random.Philox(spec["seed"])).random
        base = 2.0 * random((length, vocab)) - 1.0
        context = 2.0 * random((length, vocab, length, vocab)) - 1.0
        gain = spec["gain_lo"] + (spec["gain_hi"] - spec["gain_lo"]) * random(length)
        peak = None
        if peaky:
            amp = spec["amp_lo"] + (spec["amp_hi"] - spec["amp_lo"]) * random(length)
            others = np.delete(np.arange(vocab), mask_id)
            target = others[np.floor(random(length) * (vocab - 1)).astype(np.int64)]
            peak = (target, amp, spec["fade"])
        scales = {key: spec[key] for key in ("base_scale", "ctx_scale", "mask_bias")}
        return cls(base, context, gain, mask_id=mask_id, peak=peak, shift=shift, **scales)

    def __call__(self, tokens: Ints, positions: Ints, visible: Bools | None = None) -> Floats:
        """Logits float64 [R, W, V].

        Raises TrajspecError for wrong shapes, for a token outside the vocabulary, and for a position outside the
        tables that a position inside them can see (padding that nothing sees is fine; its logits mean nothing).
        """
        tokens, positions, visible = _checked(tokens, positions, visible, self.vocab_size)
        places = _places(positions, visible, self.length)
        asked = np.maximum(places - 1, 0) if self._shift else places
        order = np.argsort(places, axis=1, kind="stable")
        sources, held = np.take_along_axis(places, order, 1), np.take_along_axis(tokens, order, 1)
        # [R, W keys by position, W queries, V]; not an einsum, whose order of additions depends on the sizes.
        terms = self._context[sources[:, :, None], held[:, :, None], asked[:, None, :]]
        sees = None
        if visible is not None:
            sees = np.take_along_axis(visible.transpose(0, 2, 1), order[:, :, None], 1)
            terms *= sees[..., None]
        logits = self._base[asked] + self._scale[asked][..., None] * np.add.reduce(terms, axis=1)
        if self._peak is not None:
            target, amp, fade = self._peak
            masks = held[:, :, None] == self.mask_id
            count = masks.sum(axis=1) if sees is None else (masks & sees).sum(axis=1)
            rows, entries = np.arange(asked.shape[0])[:, None], np.arange(asked.shape[1])
            logits[rows, entries, target[asked]] += amp[asked] * (1.0 - fade * count / self.length)
        return logits


class HashModel:
    """An arbitrary model: every logit is one of `levels` values, chosen by a hash of all that the entry may see.

    logits[i, v] is a function of (seed, the set of visible (position, token) pairs, position of i, v), by BLAKE2b
    (RFC 7693), so it is the same in every process. The values are spread evenly over [-4, 4]; levels = 1 gives
    zeros only, levels = 2 ties in nearly every row. The mask id is an ordinary column: the model may vote for it.
    """

    def __init__(self, seed: int, vocab_size: int, levels: int, mask_id: int | None = None) -> None:
        """mask_id defaults to the last id. Raises TrajspecError if it is not an id or if levels < 1."""
        if levels < 1:
            raise TrajspecError(f"levels is {levels}; expected at least 1 distinct logit")
        self.vocab_size = vocab_size
        self.mask_id = _check_ids(vocab_size, mask_id)
        self._values = np.linspace(-4.0, 4.0, levels) if levels > 1 else np.zeros(1)
        self._seed = int(seed)
        self._memo: dict[tuple[Canvas, int], Floats] = {}

    def __call__(self, tokens: Ints, positions: Ints, visible: Bools | None = None) -> Floats:
        """Logits float64 [R, W, V]. Raises TrajspecError for wrong shapes or a token outside the vocabulary."""
        tokens, positions, visible = _checked(tokens, positions, visible, self.vocab_size)
        return _by_entry(self, tokens, positions, visible)

    def _row(self, canvas: Canvas, position: int) -> Floats:
        if (canvas, position) not in self._memo:
            # 64 bytes a block are 16 tokens of 4 bytes.
            blocks = [
                hashlib.blake2b(repr((self._seed, canvas, position, block)).encode()).digest()
                for block in range(-(-self.vocab_size // 16))
            ]
            drawn = np.frombuffer(b"".join(blocks), "<u4")[: self.vocab_size]
            self._memo[canvas, position] = self._values[drawn % len(self._values)]
        return self._memo[canvas, position]


class TapeModel:
    """A model whose weights are read off a list of small ints: what a shrinking test case wants.

    An entry asked for the first time takes the next V - 1 ints as the weights of the ids other than the mask, in
    ascending order: its logits are their logs. The answer is remembered under the set of visible (position, token)
    pairs and the position, so the model is a function, though which one depends on the order of the first calls:
    row by row, in a row the entries that hold the mask first, then the others, each in order.
    A missing int counts as 1, so an exhausted tape is uniform; weights that are all 0 are uniform too. The mask's
    logit is -inf.
    """

    def __init__(self, tape: Sequence[int], vocab_size: int, length: int, mask_id: int | None = None) -> None:
        """Positions run from 0 to length - 1; mask_id defaults to the last id.

        Raises TrajspecError for a negative weight and if mask_id is not an id.
        """
        if any(weight < 0 for weight in tape):
            raise TrajspecError(f"tape {list(tape)} holds a negative weight; expected ints from 0")
        self.vocab_size = vocab_size
        self.mask_id = _check_ids(vocab_size, mask_id)
        self.length = length
        self._tape = list(tape)
        self._read = 0
        #: {(visible (position, token) pairs, position): logits [V]}, in the order of the first calls
        self.memo: dict[tuple[Canvas, int], Floats] = {}

    def __call__(self, tokens: Ints, positions: Ints, visible: Bools | None = None) -> Floats:
        """Logits float64 [R, W, V]; errors as in `StubModel.__call__`."""
        tokens, positions, visible = _checked(tokens, positions, visible, self.vocab_size)
        places = _places(positions, visible, self.length)
        return _by_entry(self, tokens, places, visible)

    def _row(self, canvas: Canvas, position: int) -> Floats:
        if (canvas, position) not in self.memo:
            weights = self._tape[self._read : self._read + self.vocab_size - 1]
            self._read += len(weights)
            weights += [1] * (self.vocab_size - 1 - len(weights))
            with np.errstate(divide="ignore"):  # log 0 is the -inf meant here
                logs = np.log(np.array(weights if any(weights) else [1] * len(weights), np.float64))
            self.memo[canvas, position] = np.insert(logs, self.mask_id, -np.inf)
        return self.memo[canvas, position]


class FixedModel:
    """A model that knows each position's logits beforehand and never looks at the canvas.

    `rows` holds one item a position: (token, gain) stands for `gain` at that token and 0 elsewhere; a mapping
    {token: logit} for those logits and 0 elsewhere. `shift` as in `StubModel`.

        FixedModel([(3, 5.0), {1: 7.0, 7: 9.0}])
    """

    def __init__(
        self,
        rows: Sequence[tuple[int, float] | Mapping[int, float]],
        vocab_size: int = 8,
        mask_id: int | None = None,
        shift: bool = False,
    ) -> None:
        """mask_id defaults to the last id. Raises TrajspecError for a token that is no id, and if there are no rows."""
        self.vocab_size = vocab_size
        self.mask_id = _check_ids(vocab_size, mask_id)
        if not rows:
            raise TrajspecError("rows is empty; give (token, gain) or {token: logit} for each position")
        self._shift = shift
        self._table = np.zeros((len(rows), vocab_size))
        for position, row in enumerate(rows):
            for token, logit in row.items() if isinstance(row, Mapping) else (row,):
                if not 0 <= token < vocab_size:
                    raise TrajspecError(f"row {position} names token {token}; expected 0 <= token < {vocab_size}")
                self._table[position, token] = logit

    def __call__(self, tokens: Ints, positions: Ints, visible: Bools | None = None) -> Floats:
        """Logits float64 [R, W, V]; errors as in `StubModel.__call__`."""
        tokens, positions, visible = _checked(tokens, positions, visible, self.vocab_size)
        places = _places(positions, visible, len(self._table))
        return self._table[np.maximum(places - 1, 0) if self._shift else places]


class FunctionModel:
    """A model out of a function of one row: fn(tokens [W], positions [W], visible bool [W, W]) -> logits [W, V]."""

    def __init__(self, fn: Callable[[Ints, Ints, Bools], Any], vocab_size: int, mask_id: int | None = None) -> None:
        """mask_id defaults to the last id. Raises TrajspecError if it is not an id."""
        self.fn = fn
        self.vocab_size = vocab_size
        self.mask_id = _check_ids(vocab_size, mask_id)

    def __call__(self, tokens: Ints, positions: Ints, visible: Bools | None = None) -> Floats:
        """Logits float64 [R, W, V].

        Raises TrajspecError for wrong shapes, a token outside the vocabulary, or an answer that is not [W, V].
        """
        tokens, positions, visible = _checked(tokens, positions, visible, self.vocab_size)
        rows, width = tokens.shape
        if visible is None:
            visible = np.ones((rows, width, width), bool)
        logits = np.empty((rows, width, self.vocab_size))
        for r in range(rows):
            # Copies, so that a function that writes into its arguments cannot edit the caller's canvas.
            answer = np.asarray(self.fn(tokens[r].copy(), positions[r].copy(), visible[r].copy()))
            if answer.shape != logits[r].shape:
                raise TrajspecError(f"fn returned shape {answer.shape}; expected [W, V] = {logits[r].shape}")
            logits[r] = answer
        return logits


def _by_entry(model: HashModel | TapeModel, tokens: Ints, positions: Ints, visible: Bools | None) -> Floats:
    logits = np.empty((*tokens.shape, model.vocab_size))
    for r in range(tokens.shape[0]):
        pairs = list(zip(positions[r].tolist(), tokens[r].tolist(), strict=True))
        everything: Canvas = tuple(sorted(set(pairs)))
        # Masks first: most policies read nothing else, so a short tape reaches what matters.
        for i in np.argsort(tokens[r] != model.mask_id, kind="stable").tolist():
            canvas = everything if visible is None else tuple(sorted({pairs[j] for j in np.flatnonzero(visible[r, i])}))
            logits[r, i] = model._row(canvas, pairs[i][0])
    return logits


def _check_ids(vocab_size: int, mask_id: int | None) -> int:
    """mask_id, or the last id if it is None; raises TrajspecError unless it is an id and there is another one."""
    if vocab_size < 2:
        raise TrajspecError(f"vocab_size is {vocab_size}; expected at least one token besides the mask")
    if mask_id is None:
        return vocab_size - 1
    if not 0 <= mask_id < vocab_size:
        raise TrajspecError(f"mask_id is {mask_id}; expected an id below vocab_size = {vocab_size}")
    return mask_id


def _checked(tokens: Ints, positions: Ints, visible: Bools | None, vocab_size: int) -> tuple[Ints, Ints, Bools | None]:
    tokens, positions = np.asarray(tokens), np.asarray(positions)
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or positions.dtype.kind not in "iu":
        raise TrajspecError(
            f"tokens are {tokens.dtype} {tokens.shape}, positions {positions.dtype} {positions.shape}; "
            "expected integers of shape [R, W] for both"
        )
    if positions.shape != tokens.shape:
        raise TrajspecError(f"positions have shape {positions.shape}; expected that of the tokens, {tokens.shape}")
    bad = (tokens < 0) | (tokens >= vocab_size)
    if bad.any():
        r, i = np.argwhere(bad)[0]
        raise TrajspecError(f"row {r} entry {i} holds token {tokens[r, i]}; expected 0 <= token < {vocab_size}")
    if visible is not None:
        visible = np.asarray(visible)
        expected = (*tokens.shape, tokens.shape[1])
        if visible.shape != expected or visible.dtype != np.bool_:
            raise TrajspecError(f"visible is {visible.dtype} {visible.shape}; expected bool {expected} or None")
    return tokens, positions, visible


def _places(positions: Ints, visible: Bools | None, length: int) -> Ints:
    """The positions, with those outside the tables moved to their edge if no entry inside the tables sees them."""
    outside = (positions < 0) | (positions >= length)
    if not outside.any():
        return positions
    seen = outside if visible is None else outside & (visible & ~outside[:, :, None]).any(axis=1)
    if seen.any():
        r, i = np.argwhere(seen)[0]
        raise TrajspecError(
            f"row {r} entry {i} is at position {positions[r, i]}; the model has positions 0 to {length - 1}: "
            "make it longer, or hide the entry"
        )
    return np.clip(positions, 0, length - 1)
