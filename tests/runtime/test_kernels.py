"""The score kernel against the ops' numpy meanings in float64, by Triton's interpreter, and compiled for sm_90."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from trajspec.ir.errors import TrajspecError
from trajspec.ir.opset import score as meanings
from trajspec.runtime.kernels import score
from trajspec.runtime.meanings import MEANINGS

from .kernel_cases import KERNELS, Rows, battery, calls, compare, entropy
from .kernel_checks import compiled


@contextlib.contextmanager
def process(interpret: bool):
    """A process in which Triton interprets, or does not; a fork would have the Triton of this one."""
    name, wanted = "TRITON_INTERPRET", "1" if interpret else "0"
    before = os.environ.get(name)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        os.environ[name] = wanted
        try:
            assert pool.submit(os.getenv, name).result() == wanted
        finally:
            os.environ.pop(name) if before is None else os.environ.update({name: before})
        yield pool


@pytest.fixture(scope="module")
def interpreter():
    pytest.importorskip("triton")
    with process(interpret=True) as pool:
        yield pool


def test_the_oracle_s_entropy_is_the_op_s():
    logits = np.random.default_rng(0).normal(size=50) * 3
    down = logits.max() - np.delete(logits, logits.argmax())
    assert abs(entropy(down, np.exp(-down)) - meanings.entropy.numpy(logits)) < 1e-12


@settings(max_examples=40, deadline=None)
@given(case=calls())
def test_torch_gives_the_scores(case):
    compare(case, case.torch())


def test_the_kernel_gives_the_scores(interpreter):
    @settings(max_examples=40, deadline=None)
    @given(case=calls(), wide=st.booleans())
    def check(case, wide):
        compare(case, case.kernel(interpreter, wide=wide))

    check()


@pytest.mark.parametrize("name", battery())
def test_the_scores_of(name, interpreter):
    case = battery()[name]
    compare(case, case.torch())
    for wide in (False, True):
        compare(case, case.kernel(interpreter, wide=wide))


def test_sure_tokens_keep_their_order(interpreter):
    """Where max - logsumexp is 0 for all of them, and a softmax 1."""
    case = battery()["sure"]
    logits = torch.tensor(case.logits)
    assert (logits.amax(-1) - logits.logsumexp(-1) == 0).sum() > 5
    for told in (case.torch(), case.kernel(interpreter)):
        assert (told.log_confidence.diff() > 0).all() and (told.log_confidence < 0).all()


@pytest.mark.parametrize("size", [126_464, 152_064, 50_257])
def test_vocabularies_as_they_are(size, interpreter):
    """LLaDA's, Dream's and GPT-2's, cut as on a GPU; none is a multiple of a block."""
    assert size % score.BLOCK
    g = np.random.default_rng(size)
    logits = g.normal(size=(2, size)) * 3
    logits[1, [size - 1, size // 2]] = 30.0
    case = Rows(logits, "bfloat16", mask_id=size - 128)
    compare(case, case.kernel(interpreter, cut=(score.PART, score.BLOCK)))
    compare(case, case.torch())


def test_a_row_has_the_same_bits_alone_and_among_others(interpreter):
    case = Rows(np.random.default_rng(3).normal(size=(9, 300)) * 4)
    whole = case.kernel(interpreter)
    for row in (0, 5):
        for mine, theirs in zip(case[row : row + 1].kernel(interpreter), whole, strict=True):
            assert torch.equal(mine[0], theirs[row])


#: What is wrong, the call that shows it, the kernel's line, and the flawed one.
FLAWS: list[tuple[str, str, str, str]] = [
    ("ties to the last id of a block", "ties", "first = tl.min(tl.where(value == best, at, size - 1), axis=0)",
     "first = tl.max(tl.where(value == best, at, 0), axis=0)"),
    ("ties to the last block", "ties", "newer = best > top", "newer = best >= top"),
    ("ties to the last part", "ties", "token = tl.min(tl.where(tops == top, tokens, 2147483647), axis=0)",
     "token = tl.max(tl.where(tops == top, tokens, 0), axis=0)"),
    ("mask id may be predicted", "votes for the mask", "value = tl.where(at == mask_id, none, value)", "value = value"),
    ("banned ids may be predicted", "allowed for all", "mask=inside, other=0) != 0, value, none)",
     "mask=inside, other=0) != 2, value, none)"),
    ("one plane for all rows", "allowed by row", "may = plane + row.to(tl.int64) * step", "may = plane"),
    ("sum not rescaled", "noise", "here + there * (others + 1)", "here + (others + 1)"),
    ("old maximum forgotten", "rising", "here + there * (others + 1)", "here + there * others"),
    ("later maximum forgotten", "falling", "others + there * (here + 1))", "others + there * here)"),
    ("part's maximum forgotten", "noise", "there * tl.where(won, sums, sums + 1)", "there * sums"),
    ("two parts win a tie", "ties", "won = here == tl.min(tl.where(tops == top, here, PARTS), axis=0)",
     "won = tops == top"),
    ("moment not moved", "noise", "there * (lost + d *", "there * (lost + 0 *"),
    ("moment of a part not moved", "noise", "there * (moments + d *", "there * (moments + 0 *"),
    ("old maximum is no second", "sure", "mine_first = tl.where(newer, top, second)", "mine_first = second"),
    ("second ties to the last", "ties", "tl.where(later > mine_first,", "tl.where(later >= mine_first,"),
    ("NaN unseen", "no numbers", '(~(value < float("inf")))', '(value == float("inf"))'),
    ("+inf unseen", "no numbers", '(~(value < float("inf")))', "(value != value)"),
    ("numbers for rows that have none", "one id, the mask", 'tl.where(lost, float("nan"), -log1p(others))',
     "-log1p(others)"),
    ("log of 1 + s", "sure", "-log1p(others)))", "-tl.log(1 + others)))"),
    ("1 - exp", "nearly tied", "tl.where(y <= 0.5, near, 1 - tl.exp(-y))", "1 - tl.exp(-y)"),
    ("a block too few", "the best in a block of one", "tl.minimum(part * PART + PART, size), BLOCK)",
     "tl.minimum(part * PART + PART, size - 1), BLOCK)"),
    ("an id too many", "one row", "inside = at < size", "inside = at <= size"),
    ("row stride forgotten", "noise", "mine = logits + row.to(tl.int64) * stride",
     "mine = logits + row.to(tl.int64) * size"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "right", "wrong"), [flaw[1:] for flaw in FLAWS], ids=[flaw[0] for flaw in FLAWS])
def test_a_flaw_is_caught(tmp_path, name, right, wrong, interpreter):
    text = KERNELS.read_text(encoding="utf-8")
    assert text.count(right) == 1, right
    copy = tmp_path / "score_triton.py"
    copy.write_text(text.replace(right, wrong), encoding="utf-8")
    case = battery()[name]
    told = case.kernel(interpreter, copy, wide=True)
    with pytest.raises(AssertionError):
        compare(case, told)


def test_it_compiles_for_sm_90_without_spills(tmp_path, monkeypatch, record_property):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    asked = [("score_parts", *of) for of in (("bf16", False, False), ("bf16", True, True), ("fp16", False, True))]
    asked += [("score_parts", "fp32", False, False), ("score_parts", "fp32", True, True)]
    asked += [("score_merge", "fp32", False, False), ("score_merge", "fp32", True, False)]
    with process(interpret=False) as pool:
        for one in asked:
            found = pool.submit(compiled, str(KERNELS), *one).result()
            if found is None:
                pytest.skip("triton came without ptxas")
            name = " ".join(map(str, one))
            record_property(name, f"{found['registers']} registers, {found['spilled']} bytes spilled")
            assert found["spilled"] == 0 and "0 bytes stack frame" in found["report"], (name, found["report"])
            parts, everything = one[0] == "score_parts", one[2]
            # With 64 registers four programs of 256 threads fit a multiprocessor.
            assert found["registers"] <= (128 if everything or not parts else 64), (name, found["registers"])
            assert not parts or re.search(r"ld\.global\S*\.v4\.b32", found["ptx"]), f"{name}: loads are not 16 bytes"


def on_cuda(dtype=torch.bfloat16):
    """Logits [2, 5, 300] on a GPU that need not be there, within FakeTensorMode."""
    return torch.empty(2, 5, 300, device="cuda", dtype=dtype)


def test_score_of_cuda_tensors_is_the_kernel_in_compiled_steps_as_well():
    seen: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    with FakeTensorMode():
        token, conf = torch.compile(MEANINGS["score"], fullgraph=True, backend=backend)(on_cuda())
    assert token.shape == conf.shape == (2, 5)
    assert (token.dtype, conf.dtype) == (torch.int64, torch.float32)
    assert seen.count("trajspec.score_rows") == 1
    assert f"{score.__name__}_triton" not in sys.modules  # so far nothing ran


def test_without_triton_or_in_float64_it_is_torch(monkeypatch):
    monkeypatch.setattr(score, "torch_scores", lambda *_: "torch")
    with FakeTensorMode():
        for dtype in score.TYPES:
            assert score.score_rows(on_cuda(dtype).flatten(0, 1), None) != "torch"
        assert score.score_rows(on_cuda(torch.float64).flatten(0, 1), None) == "torch"
        monkeypatch.setattr(score, "TRITON", False)
        assert score.score_rows(on_cuda().flatten(0, 1), None) == "torch"


def test_only_what_is_asked_for():
    plain = score.score_rows(torch.zeros(2, 5), 0)
    assert plain.token.tolist() == [1, 1] and (plain.margin, plain.token2, plain.entropy) == (None, None, None)
    with FakeTensorMode():
        for margin, entropy in ((False, False), (True, False), (False, True), (True, True)):
            told = score.score_rows(on_cuda().flatten(0, 1), None, margin=margin, entropy=entropy)
            assert [part is not None for part in told[4:]] == [margin, margin, entropy]
            assert all(part is None or part.shape == (10,) for part in told)
    double = score.score_rows(torch.zeros(2, 5, dtype=torch.float64), 0, margin=True)
    assert double.log_confidence.dtype == double.margin.dtype == torch.float64


@pytest.mark.parametrize(
    ("logits", "mask_id", "allowed", "message"),
    [
        (torch.zeros(2, 3, 5), 0, None, r"logits are torch.float32 \[2, 3, 5\]; expected"),
        (torch.zeros(2, 5, dtype=torch.int64), 0, None, "logits are torch.int64"),
        (torch.zeros(2, 0), None, None, "at least one id"),
        (torch.zeros(2, 5), 5, None, "mask_id is 5; expected an id from 0 to 4"),
        (torch.zeros(2, 5), -1, None, "mask_id is -1"),
        (torch.zeros(2, 5), 0, torch.ones(4, dtype=torch.bool), r"allowed is torch.bool \[4\]"),
        (torch.zeros(2, 5), 0, torch.ones(2, 5), r"allowed is torch.float32 \[2, 5\]; expected torch.bool"),
        (torch.zeros(2, 5), 0, torch.ones(5, dtype=torch.bool, device="meta"), "allowed is on meta, logits on cpu"),
    ],
)  # fmt: skip
def test_other_operands_are_refused(logits, mask_id, allowed, message):
    with pytest.raises(TrajspecError, match=message):
        score.score_rows(logits, mask_id, allowed)
