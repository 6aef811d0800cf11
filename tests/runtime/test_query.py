"""Asking a torch model: the same logits as asking in numpy, and planes in place of errors."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from trajspec.ir.canvas import Canvas, canvas
from trajspec.ir.errors import TrajspecError
from trajspec.ir.query import FLOOR, Query
from trajspec.ir.query import ask as ask_numpy
from trajspec.runtime.query import ask

from .operands import NoHostReads, Sizes, canvases, pick, planes, same, sizes, tensors, whole

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


class Seen:
    """A model whose every logit depends on all that an entry sees, in whole numbers: the same in numpy and torch.

    `at` says which of its logits (counted over a call) are spoilt, and by what.
    """

    mask_id = 0

    def __init__(self, vocab_size: int, spoilt: dict[int, float] | None = None) -> None:
        self.vocab_size, self.spoilt = vocab_size, spoilt or {}

    def __call__(self, tokens, positions, visible):
        if isinstance(tokens, torch.Tensor):
            given = [None if part is None else part.numpy() for part in (tokens, positions, visible)]
            return torch.tensor(self(*given))
        each = (tokens * 31 + positions * 7 + 3) ** 2 % 1009
        if visible is None:
            visible = np.ones((*tokens.shape, tokens.shape[1]), bool)
        seen = (visible * each[:, None, :]).sum(axis=-1) + 13 * positions
        logits = (seen[..., None] * (1 + np.arange(self.vocab_size)) % 17).astype(np.float64)
        for at, value in self.spoilt.items():
            logits.reshape(-1)[at % logits.size] = value
        return logits


class Smooth:
    """A model in torch alone, of any dtype."""

    mask_id = 0

    def __init__(self, vocab_size: int, dtype: torch.dtype, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(0)
        self.vocab_size = vocab_size
        self.table = torch.randn(vocab_size, vocab_size, generator=generator).to(device, dtype)

    def __call__(self, tokens, positions, visible):
        return self.table[tokens] + positions[..., None]


@st.composite
def questions(draw: st.DrawFn) -> tuple[Sizes, list[Canvas | Query]]:
    """The canvas with up to two more queries, or with twins, in any order."""
    size = draw(sizes)
    x = draw(canvases(size))
    if draw(st.booleans()):
        x = x._replace(position=np.broadcast_to(np.arange(size.length), x.position.shape).copy())
    shape = x.tokens.shape
    if draw(st.booleans()):
        bound = draw(st.one_of(st.none(), st.integers(1, size.length)))
        others = [Query(x.tokens, x.masked, draw(planes(shape)), bound)]
    else:
        tokens = draw(whole(shape, 0, size.vocab - 1))
        hidden = Query(x.tokens, x.masked | draw(planes(shape)), None)
        others = draw(st.lists(st.sampled_from([hidden, Query(tokens, draw(planes(shape)), None)]), max_size=2))
    return size, draw(st.permutations([x, *others]))


def canvas_of(queries) -> Canvas:
    return next(query for query in queries if isinstance(query, Canvas))


def compare(queries, model, predict_mask, ask_torch=ask) -> None:
    """AssertionError unless torch and numpy give the same logits, or torch marks what numpy refuses."""
    x = canvas_of(queries)
    real = x.position >= 0
    for all_real in {False, bool(real.all())}:
        with NoHostReads():
            logits, bad, empty = ask_torch(
                model, [tensors(query) for query in queries], predict_mask, all_real=all_real
            )
        assert not ((bad | empty).numpy() & ~real).any()
        try:
            expected = ask_numpy(model, queries, predict_mask)
        except TrajspecError as error:
            row, position = map(int, re.search(r"row (\d+), position (\d+)", str(error)).groups())
            plane = empty if "all logits are -inf" in str(error) else bad
            assert plane[row][x.position[row] == position].all()
            continue
        assert not (bad | empty).any()
        assert len(logits) == len(expected)
        for one, other in zip(expected, logits, strict=True):
            for row in range(len(one)):
                same(one[row], pick(other, row))


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(asked=questions(), predict_mask=st.booleans())
def test_torch_equals_numpy(asked, predict_mask):
    size, queries = asked
    compare(queries, Seen(size.vocab), predict_mask)


spoils = st.dictionaries(
    st.integers(0, 200), st.sampled_from([-np.inf, -np.inf, -np.inf, np.inf, np.nan]), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(asked=questions(), spoilt=spoils, predict_mask=st.booleans())
def test_what_numpy_refuses_is_marked(asked, spoilt, predict_mask):
    size, queries = asked
    compare(queries, Seen(size.vocab, spoilt), predict_mask)


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(asked=questions(), spoilt=spoils)
@example(asked=(Sizes(1, 2, 2), None), spoilt={0: -np.inf, 1: -np.inf})
@example(asked=(Sizes(1, 2, 2), None), spoilt={3: np.nan})
def test_planes_mark_every_computed_entry(asked, spoilt):
    """Against the definition, entry by entry, for queries without twins."""
    size, queries = asked
    if queries is None:
        queries = [batch(canvas([0, 1], [True, False], vocab_size=2, mask_id=0))]
    assume(all(not isinstance(query, Query) or query.twins is None for query in queries))
    model, calls = Seen(size.vocab, spoilt), []

    def listening(*given):
        calls.append(model(*given).numpy())
        return torch.tensor(calls[-1])

    _, bad, empty = ask(listening, [tensors(query) for query in queries], False, all_real=False)
    rows, length = bad.shape
    (raw,) = calls
    real = canvas_of(queries).position >= 0
    for row in range(rows):
        for column in range(length):
            each = raw[row::rows, column]
            wrong = bool((np.isnan(each) | (each == np.inf)).any())
            none = bool((each == -np.inf).all(axis=-1).any())
            assert bool(bad[row, column]) == (wrong and real[row, column])
            assert bool(empty[row, column]) == (none and real[row, column])


def batch(row: Canvas) -> Canvas:
    """One row with the row axis in front."""
    return Canvas(*(part[None] for part in row))


# A wrong ask has to be caught.


def other_mask_rule(model, queries, predict_mask, *, all_real):
    return ask(model, queries, not predict_mask, all_real=all_real)


def padding_seen(model, queries, predict_mask, *, all_real):
    return ask(model, queries, predict_mask, all_real=True)


def twins_in_the_first_columns(model, queries, predict_mask, *, all_real):
    logits, bad, empty = ask(model, queries, predict_mask, all_real=all_real)
    for at, query in enumerate(queries):
        if isinstance(query, Query) and query.twins is not None:
            logits[at] = logits[at].roll(1, dims=1)
    return logits, bad, empty


def no_planes(model, queries, predict_mask, *, all_real):
    logits, bad, empty = ask(model, queries, predict_mask, all_real=all_real)
    return logits, bad & False, empty & False


def reading(model, queries, predict_mask, *, all_real):
    out = ask(model, queries, predict_mask, all_real=all_real)
    assert out[1].sum().item() >= 0
    return out


@pytest.mark.parametrize(
    "wrong",
    [other_mask_rule, padding_seen, twins_in_the_first_columns, no_planes, reading],
    ids=lambda wrong: wrong.__name__,
)
def test_a_wrong_ask_is_caught(wrong):
    x = batch(canvas([3, 4, 2], gen_length=3, vocab_size=6, mask_id=5))
    padded = x._replace(position=x.position - 2, start=x.start - 2)
    twins = Query(x.tokens, x.masked, x.position % 2 == 0, 3)
    queries = [padded, Query(x.tokens, ~x.masked, None) if wrong is padding_seen else twins]
    spoilt = {7 * 6: np.nan} if wrong is no_planes else None
    compare(queries, Seen(6, spoilt), False)
    with pytest.raises(AssertionError):
        compare(queries, Seen(6, spoilt), False, wrong)


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_type_and_device_of_the_model_are_kept(dtype, kept, device):
    x = batch(canvas([3, 4, 2], gen_length=3, vocab_size=6, mask_id=5))
    here = tensors(x, device)
    model = Smooth(6, dtype, device)
    for queries in ([here], [here, Query(here.tokens, here.masked, here.masked, 2)]):
        with NoHostReads():
            logits, bad, empty = ask(model, queries, False, all_real=True)
        assert {each.dtype for each in logits} == {kept} and {bad.dtype, empty.dtype} == {torch.bool}
        assert all(each.shape == (1, 6, 6) for each in logits) and bad.shape == empty.shape == (1, 6)
        if device == "cpu":
            assert (logits[0][..., 5] <= FLOOR / 2).all() and torch.isfinite(logits[0]).all()
            torch.testing.assert_close(logits[0][..., :5], model(here.tokens, here.position, None)[..., :5].to(kept))


def test_compiles_as_one_graph():
    x = tensors(batch(canvas([3, 4, 2], gen_length=3, vocab_size=6, mask_id=5)))
    model = Smooth(6, torch.float32)

    def both(x):
        twins = ask(model, [x, Query(x.tokens, x.masked, x.masked, 2)], False, all_real=False)
        return twins, ask(model, [Query(x.tokens, ~x.masked, None), x], True, all_real=True)

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, both(x), equal_nan=True)


def test_the_canvas_must_be_asked_about():
    x = tensors(batch(canvas([3], gen_length=1, vocab_size=6, mask_id=5)))
    with pytest.raises(TrajspecError, match="needs the canvas among its queries"):
        ask(Smooth(6, torch.float32), [Query(x.tokens, x.masked, None)], False, all_real=True)


def test_twins_go_with_the_canvas_alone():
    x = tensors(batch(canvas([3], gen_length=1, vocab_size=6, mask_id=5)))
    queries = [x, Query(x.tokens, x.masked, x.masked, 1), Query(x.tokens, x.masked, None)]
    with pytest.raises(TrajspecError, match="twins go with the canvas alone"):
        ask(Smooth(6, torch.float32), queries, False, all_real=True)
