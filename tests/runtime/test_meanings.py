"""The torch meanings against the numpy ones: every op, arbitrary operands, row by row."""

from __future__ import annotations

import contextlib
import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from trajspec.ir.canvas import canvas
from trajspec.ir.kinds import COUNT, LOGITS
from trajspec.ir.op import OPS, op
from trajspec.ir.opset.score import FLOOR
from trajspec.runtime.meanings import MEANINGS
from trajspec.runtime.meanings import score as meanings_of_score

from .operands import VALUES, Case, NoHostReads, accepted, cases, pick, same, setting, tensors

DRAFTERS = {"chain", "tree", "frozen", "ranks"}  # test_drafts
ELSEWHERE = {"input", "carried", "forward", "forward_cached", "verify", "walk"}  # runtime.query, views, ahead
LIBRARY = sorted(name for name, made in OPS.items() if made.numpy.__module__.startswith("trajspec.ir."))
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
CONTROL = settings(
    max_examples=400,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=SLOW,
)
NAMES = [name for name in LIBRARY if name not in ELSEWHERE | DRAFTERS]


def check(case: Case, meaning) -> None:
    """AssertionError unless `meaning` on the batch equals the numpy meaning on the batch and on each row."""
    batch = case.numpy()
    data = [tensors(value) for value in case.values]
    before = copy.deepcopy(data)
    with NoHostReads():
        got = case.call(meaning, data)
    for row in range(case.rows):
        expected = plain(case.numpy(row))
        same(expected, pick(got, row))
        same(expected, pick(batch, row))
    for old, new in zip(before, data, strict=True):
        unchanged(old, new)


def plain(value):
    """A numpy result of one row as `pick` gives it."""
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def unchanged(old, new) -> None:
    for one, other in zip(*(value if isinstance(value, tuple) else (value,) for value in (old, new)), strict=True):
        if isinstance(one, tuple):
            unchanged(one, other)
        elif isinstance(one, torch.Tensor):
            torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
        else:
            assert one is other or one == other


@pytest.mark.parametrize("name", NAMES)
def test_torch_equals_numpy(name):
    @settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
    @given(case=cases(name))
    def compare(case):
        check(case, MEANINGS[name])

    compare()


def covered(names) -> None:
    """AssertionError naming the ops without a torch meaning, or that the generator cannot call."""
    missing = [name for name in names if name not in MEANINGS]
    assert not missing, f"no torch meaning for {missing}"
    for name in names:
        for attribute in OPS[name].attributes:
            assert setting(OPS[name], attribute.name), f"no strategy for {name}.{attribute.name}"
        for kinds in accepted(OPS[name], {"value": 0, "kind": "count"}):
            assert all(kind.name in VALUES for kind in kinds), f"no strategy for an operand of {name}"


def test_every_op_has_a_meaning_and_operands():
    covered(NAMES)
    assert set(MEANINGS) == {*NAMES, *DRAFTERS}
    assert len(NAMES) > 50


def test_a_new_op_without_a_meaning_is_noticed():
    @op("unheard(by: scores) -> out: scores")
    def unheard(by):
        """Nothing."""
        return by

    try:
        with pytest.raises(AssertionError, match="no torch meaning for"):
            covered([*NAMES, "unheard"])
    finally:
        del OPS["unheard"]


# Wrong meanings that the comparison has to catch.


def top_with_other_ties(by, k, *, where):
    """Ties to the highest position, which torch.topk is free to do."""
    return MEANINGS["top"](by.flip(-1), k, where=where.flip(-1)).flip(-1)


def window_from_zero(x, *, size):
    return MEANINGS["window"](x._replace(start=torch.zeros_like(x.start)), size=size)


def score_by_logsumexp(logits):
    return logits.argmax(-1), logits.amax(-1) - logits.float().logsumexp(-1)


def last_of_the_largest(of):
    return of.shape[-1] - 1 - of.flip(-1).argmax(-1)


def quotient_in_float32(a, b, *, kinds):
    return MEANINGS["div"](a, b, kinds=kinds).float()


def counts_in_float32(masks, clock, *, steps, eps):
    n, after = MEANINGS["linear_quota"](masks, clock, steps=steps, eps=eps)
    return n.float(), after


def reads_the_device(of):
    return torch.full((of.shape[0], 1), max(of.sum(-1).tolist())) if of.sum().item() < 0 else of.sum(-1, keepdim=True)


def changes_its_operand(conf, *, where):
    return conf.masked_fill_(where, -math.inf)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("top", top_with_other_ties),
        ("window", window_from_zero),
        ("score", score_by_logsumexp),
        ("argmax", last_of_the_largest),
        ("div", quotient_in_float32),
        ("linear_quota", counts_in_float32),
        ("count", reads_the_device),
        ("demote", changes_its_operand),
        ("ge", MEANINGS["gt"]),
        ("bottom", MEANINGS["top"]),
        ("least", MEANINGS["most"]),
        ("block", MEANINGS["window"]),
        ("edit", MEANINGS["unmask"]),
        ("uniform", MEANINGS["gumbel"]),
    ],
)
def test_a_wrong_meaning_is_caught(name, wrong):
    @settings(CONTROL)
    @given(case=cases(name))
    def compare(case):
        # A literal, which these do not take, is no finding.
        with contextlib.suppress(TypeError, AttributeError):
            check(case, wrong)

    with pytest.raises(AssertionError):
        compare()


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum().item(),
        lambda t: bool((t > 0).any()),
        lambda t: int(t[0]),
        lambda t: t[t > 0],
        lambda t: t.nonzero(),
        lambda t: t.masked_select(t > 0),
        lambda t: torch.where(t > 0),
        lambda t: torch.equal(t, t),
    ],
)
def test_host_reads_are_caught(read):
    with NoHostReads(), pytest.raises(AssertionError, match="reads the device"):
        read(torch.arange(3))


@pytest.mark.parametrize("name", NAMES)
def test_works_where_the_operands_are(name):
    """On the meta device nothing can be read, and a tensor made on another device is an error."""

    @settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
    @given(case=cases(name))
    def compare(case):
        here = case.call(MEANINGS[name], [tensors(value) for value in case.values])
        there = case.call(MEANINGS[name], [tensors(value, "meta") for value in case.values])
        assert shapes(there, "meta") == shapes(here, "cpu")

    compare()


def shapes(value, device):
    if isinstance(value, tuple):
        return [shapes(part, device) for part in value]
    if isinstance(value, torch.Tensor):
        assert value.device.type == device
        return value.shape, value.dtype
    return value


def test_half_precision_keeps_the_order_of_sure_tokens():
    logits = torch.tensor([[[gap, 0.0, 0.0] for gap in (7.0, 8.0, 12.0)]], dtype=torch.bfloat16)
    token, conf = MEANINGS["score"](logits)
    assert token.tolist() == [[0, 0, 0]] and conf.dtype == torch.float32
    assert conf[0, 0] < conf[0, 1] < conf[0, 2] < 0
    assert MEANINGS["rank"](conf, where=torch.ones(1, 3, dtype=torch.bool)).tolist() == [[2, 1, 0]]
    assert len(set(logits.softmax(-1).amax(-1)[0].tolist())) < 3  # what staying in bfloat16 would do


def test_single_precision_keeps_the_order_of_very_sure_tokens():
    logits = torch.tensor([[[20.0, 0.0], [50.0, 0.0]]])
    _, conf = MEANINGS["score"](logits)
    assert conf[0, 0] < conf[0, 1] < 0
    rounded = logits.amax(-1) - logits.logsumexp(-1)
    assert rounded[0, 0] == rounded[0, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_types_of_values_a_token(dtype):
    logits = torch.tensor([[[1.0, 0.5, -3.0, 1.0]]], dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for name in ("softmax", "entropy", "margin"):
        assert MEANINGS[name](logits).dtype == wide
    assert MEANINGS["confidence"](logits, torch.tensor([[1]])).dtype == wide
    kept = torch.float32 if dtype == torch.float16 else dtype
    for cut in (
        MEANINGS["suppress"](logits, ids=(1,)),
        MEANINGS["top_k"](logits, k=1),
        MEANINGS["top_p"](logits, p=0.6, crossing=True),
    ):
        assert cut.dtype == kept
        assert torch.isfinite(cut).all() and (cut < FLOOR / 2).any()
    for other in (2, 0.1, torch.tensor([[3]]), torch.tensor([[0.5]], dtype=torch.float64)):
        assert MEANINGS["mul"](logits, other, kinds=[LOGITS, COUNT]).dtype == wide
    assert MEANINGS["mul"](logits, logits, kinds=[LOGITS, LOGITS]).dtype == wide


def test_a_rate_times_a_count_is_floored_as_in_numpy():
    """An int64 count times a float32 rate is a float64 product in numpy and a float32 one in torch."""
    steps, masks = 10, np.arange(1, 300)[:, None]
    differs = False
    for clock in range(steps):
        rate = OPS["linear_rate"].numpy(np.full_like(masks, clock), steps=steps, eps=0.25)
        got = MEANINGS["linear_rate"](torch.full(masks.shape, clock), steps=steps, eps=0.25)
        np.testing.assert_array_equal(got.numpy(), rate.astype(np.float64))
        n = MEANINGS["floor"](MEANINGS["mul"](torch.tensor(masks), got, kinds=[COUNT, COUNT]))
        np.testing.assert_array_equal(n.numpy(), np.floor(masks * rate))
        differs |= bool((n != torch.floor(torch.tensor(masks) * got.float())).any())
    assert differs, "the case does not tell the two products apart"


def test_histories_over_the_vocabulary_are_small():
    row = canvas([1, 2], gen_length=2, vocab_size=5, mask_id=4)
    x = tensors(row._replace(tokens=row.tokens[None], allowed=row.allowed[None]))
    assert MEANINGS["fill"](x, kind="probs", value=0.0).dtype == torch.float32
    assert MEANINGS["fill"](x, kind="probs", value=0.1).dtype == torch.float64
    assert MEANINGS["fill"](x, kind="scores", value=0).dtype == torch.float64


def one_case_each() -> dict[str, Case]:
    """A call of every op, the same at every run."""
    found = {}
    for name in NAMES:
        settings(CONTROL, max_examples=8)(given(case=cases(name))(lambda case: found.update({case.op.name: case})))()
    return found


def test_all_meanings_compile_as_one_graph():
    calls = one_case_each()
    data = {name: [tensors(value) for value in case.values] for name, case in calls.items()}

    def everything(data):
        return {name: calls[name].call(MEANINGS[name], values) for name, values in data.items()}

    torch._dynamo.reset()
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")(data)
    for name, value in everything(data).items():
        for row in range(calls[name].rows):
            same(pick(value, row), pick(compiled[name], row))


@pytest.mark.parametrize("size", [2048, 2049, 5000, 70_001])
def test_large_vocabularies_are_scored_like_small_ones(size):
    """In stretches and in parts: the same tokens and the same bits as in one piece, with ties, infinities and NaN."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(2, 9, size, generator=generator) * 3
    logits[0, 0, :] = 0.0
    logits[0, 1, [7, size - 1, 300]] = 99.0
    logits[0, 2, size - 1] = 99.0
    logits[0, 3, 5:] = -torch.inf
    logits[0, 4] = (logits[0, 4]).round()
    logits[0, 5, [1000, size - 2]] = torch.nan
    logits[0, 6, size - 1] = torch.nan
    for values in (logits, logits.double(), logits.bfloat16()):
        assert torch.equal(meanings_of_score.first_max(values), values.max(-1).indices)
        token, conf = MEANINGS["score"](values)
        expected = meanings_of_score.log_prob(values, values.max(-1).indices)
        assert torch.equal(token, values.max(-1).indices)
        assert torch.equal(conf.nan_to_num(7.0), expected.nan_to_num(7.0))
