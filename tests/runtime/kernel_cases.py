"""Calls of `score_rows`: constructed and arbitrary ones, and the comparison with the ops' numpy meanings in float64."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st

from trajspec.ir.opset import score as meanings
from trajspec.runtime.kernels import score

from .kernel_checks import interpreted

KERNELS = Path(score.__file__).with_name("score_triton.py")
DTYPES = ("bfloat16", "float16", "float32")
CUT = (128, 64)  # a part and a block, so that small vocabularies have several of both


@dataclasses.dataclass
class Rows:
    """A call of `score_rows` without what it asks for; logits float32 [R, V] that `dtype` holds exactly."""

    logits: np.ndarray
    dtype: str = "float32"
    mask_id: int | None = None
    allowed: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.logits = torch.tensor(self.logits, dtype=torch.float32).to(getattr(torch, self.dtype)).float().numpy()

    def __getitem__(self, rows: slice) -> Rows:
        whole = self.allowed is None or self.allowed.ndim == 1
        return dataclasses.replace(
            self, logits=self.logits[rows], allowed=self.allowed if whole else self.allowed[rows]
        )

    def kernel(self, pool, path=KERNELS, cut=CUT, wide=False) -> score.Scores:
        """By Triton's interpreter."""
        mask_id = -1 if self.mask_id is None else self.mask_id
        told = pool.submit(interpreted, str(path), self.logits, self.dtype, wide, mask_id, self.allowed, *cut).result()
        return score.Scores(*map(torch.tensor, told))

    def torch(self) -> score.Scores:
        """By torch, here."""
        given = torch.tensor(self.logits).to(getattr(torch, self.dtype))
        allowed = None if self.allowed is None else torch.tensor(self.allowed)
        return score.score_rows(given, self.mask_id, allowed, margin=True, entropy=True)


def compare(case: Rows, told: score.Scores) -> None:
    """AssertionError unless `told` are the scores of `case`: ids and flags equal, numbers within the stated bounds."""
    rows, size = case.logits.shape
    assert all(part.shape == (rows,) for part in told)
    assert [part.dtype for part in told] == [
        torch.int64, torch.float32, torch.bool, torch.bool, torch.float32, torch.int64, torch.float32
    ]  # fmt: skip
    for row in range(rows):
        got = score.Scores(*(part[row].item() for part in told))
        raw = case.logits[row].astype(np.float64)
        out = np.isneginf(raw) | (np.arange(size) == case.mask_id)
        if case.allowed is not None:
            out |= ~np.broadcast_to(case.allowed, case.logits.shape)[row]
        bad = bool(np.isnan(raw).any() or np.isposinf(raw).any())
        assert (got.bad, got.empty) == (bad, not bad and bool(out.all())), row
        if got.bad or got.empty:
            assert (got.token, got.token2) == (0, 0)
            assert all(map(math.isnan, (got.log_confidence, got.margin, got.entropy))), row
            continue
        # What is out has no share at all; FLOOR would do but for logits that are lower still.
        ids = np.flatnonzero(~out)
        kept = raw[ids]
        order = np.argsort(-kept, kind="stable")
        assert got.token == ids[order[0]], row
        assert got.token2 == ids[order[min(1, len(ids) - 1)]], row
        token, conf = meanings.score.numpy(kept)
        assert ids[token] == got.token
        down = kept.max() - np.delete(kept, token)
        share = np.exp(-down)
        d = (share * down).sum() / share.sum() if share.sum() > 0 else 0.0
        close(got.log_confidence, conf, 16 + 2 * d)
        close(got.margin, meanings.margin.numpy(kept), 16)
        close(got.entropy, entropy(down, share), 16 + 2 * d)


def entropy(down: np.ndarray, share: np.ndarray) -> float:
    """The op's entropy, by sums of positive terms alone: the op's own loses the digits of sure tokens."""
    return np.log1p(share.sum()) + (share * down).sum() / (1 + share.sum())


def close(got: float, exact: float, ulps: float) -> None:
    """Within so many units in the last place; below float32's normal numbers, of the smallest of those."""
    bound = ulps * 2.0**-23 * max(abs(exact), 2.0**-126)
    assert abs(got - exact) <= bound, f"{got} is {abs(got - exact) / bound * ulps:.1f} ulp off {exact}, not {ulps:.1f}"


VALUES = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, -1.0, 2.5, -80.0, 60.0, -1e30, -math.inf]), st.floats(-30, 30, width=16)
)
NONE = st.sampled_from([math.nan, math.inf, -math.inf])


@st.composite
def calls(draw) -> Rows:
    """A few rows over a vocabulary of any size up to some blocks, with ties, bans and, rarely, no numbers."""
    rows, size = draw(st.integers(0, 3)), draw(st.one_of(st.integers(1, 12), st.integers(50, 300)))
    seed = draw(st.integers(0, 2**32 - 1))
    g = np.random.default_rng(seed)
    logits = g.choice(np.array(draw(st.lists(VALUES, min_size=1, max_size=6))), size=(rows, size))
    if draw(st.booleans()):
        logits = logits + g.normal(size=logits.shape) * draw(st.sampled_from([0.01, 1.0, 8.0]))
    if draw(st.integers(0, 3)) == 0 and rows:
        logits[g.integers(rows), g.integers(size)] = draw(NONE)
    shape = {"none": None, "all": (size,), "each": (rows, size)}[draw(st.sampled_from(["none", "all", "each"]))]
    allowed = None if shape is None else g.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.8, 1.0]))
    mask_id = draw(st.one_of(st.none(), st.integers(0, size - 1)))
    with np.errstate(over="ignore"):  # float16 makes -inf of -1e30
        return Rows(logits, draw(st.sampled_from(DTYPES)), mask_id, allowed)


def sure(*gaps: float) -> np.ndarray:
    """Rows whose likeliest token leads by so much, in float32 to the bit."""
    logits = np.full((len(gaps), 150), -900.0)
    logits[:, 70], logits[:, 20] = 0.0, -np.array(gaps)
    return logits


@functools.cache
def battery() -> dict[str, Rows]:
    """Calls that tell right from wrong, each by its name."""
    g = np.random.default_rng(1)
    noise = g.normal(size=(4, 333)) * 4
    ties = np.zeros((6, 333))
    ties[1, 200:] = 1.0  # across parts
    ties[2, [30, 90]] = 5.0  # across blocks of a part
    ties[3, [63, 64, 128]] = 5.0
    ties[4, [10, 100, 300]] = 9.0, 5.0, 5.0  # the second ones
    ties[5, [10, 100, 300]] = 5.0, 5.0, 9.0
    rising = np.tile(np.linspace(-3, 3, 333), (2, 1))  # every block has a new maximum
    wrong = g.normal(size=(6, 333))
    wrong[0, 5], wrong[1, 300], wrong[2, 200], wrong[3], wrong[4], wrong[5] = (
        math.nan, math.nan, math.inf, math.nan, -math.inf, -math.inf,
    )  # fmt: skip
    wrong[5, 222] = 1.0
    banned = np.ones((4, 333), bool)
    banned[0], banned[1, ::2], banned[2, :200] = False, False, False
    votes = noise.copy()
    votes[:, 7] = 20.0  # for the mask, cases as in training
    nan_at_mask = noise.copy()
    nan_at_mask[0, 7], nan_at_mask[1, 8] = math.nan, math.inf
    near = np.full((3, 150), -20.0)
    near[:, 3], near[:, 140] = 4.0, 4.0 - np.array([1e-3, 1e-5, 4e-7])
    return {
        "noise": Rows(noise),
        "noise, bfloat16": Rows(noise, "bfloat16"),
        "noise, float16": Rows(noise, "float16"),
        "ties": Rows(ties),
        "ties, mask id": Rows(ties, mask_id=30),
        "rising": Rows(rising),
        "falling": Rows(rising[:, ::-1].copy()),
        "votes for the mask": Rows(votes, mask_id=7),
        "allowed for all": Rows(noise, allowed=banned[1]),
        "allowed by row": Rows(noise, allowed=banned),
        "no numbers": Rows(wrong),
        "no numbers at ids that are out": Rows(nan_at_mask, mask_id=7, allowed=np.arange(333) != 8),
        "sure": Rows(sure(2, 5, 7, 8, 12, 16.6, 17, 20, 33, 50, 70, 86)),
        "sure, a tenth of the temperature": Rows(sure(2, 5) * 10),
        "nearly tied": Rows(near),
        "far apart": Rows(np.array([[-3e38, 3e38, 0.0, -3e38]])),
        "floored": Rows(np.where(banned, noise, -1e30)[1:]),
        "the best in a block of one": Rows(np.where(np.arange(129) == 128, 9.0, noise[:, :129])),
        "one id": Rows(np.array([[3.0]])),
        "one id, the mask": Rows(np.array([[3.0]]), mask_id=0),
        "one left": Rows(noise[:1], allowed=np.arange(333) == 200),
        "one row": Rows(noise[:1]),
        "no rows": Rows(noise[:0], allowed=banned[:0]),
    }
