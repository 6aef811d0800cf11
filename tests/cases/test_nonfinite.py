"""Logits that are no numbers."""

from __future__ import annotations

import numpy as np
import pytest

import trajspec as ts
from tests.toys import Counting, Edited
from trajspec.exact.tabular import FixedModel
from trajspec.ir.canvas import canvas
from trajspec.policies import get_policy
from trajspec.runtime.batch import stack
from trajspec.runtime.denoiser import FromNumpy
from trajspec.runtime.step import start, take

# T17: non-finite logits


FINE = FixedModel([(3, 2.0), (4, 1.0), (2, 3.0), (1, 2.5), (1, 0.5)])
READERS = [
    {"threshold": 0.9}, {"steps": 4}, {"steps": 4, "temperature": 1.0}, {"factor": 1.0}, {"policy": "klass"},
    {"policy": "wino"}, {"policy": "quota"}, {"policy": "llada_random"}, {"policy": "dream_maskgit_plus", "steps": 4},
    {"policy": "dream_topk_margin", "steps": 4}, {"policy": "dream_entropy", "steps": 4},
    {"policy": "dream_entropy", "steps": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 3},
    {"policy": "dream_origin", "steps": 4}, {"policy": "llada", "cfg_scale": 1.0}, {"steps": 4, "logits_eos_inf": True,
    "eos_id": 6},
]  # fmt: skip
BAD = {"nan": (0, np.nan), "inf": (0, np.inf), "empty": (slice(None), -np.inf)}


def spoiled(what: str, position: int, when) -> Edited:
    """FINE with a bad logit at one position, in rows for which `when(tokens of the row)` holds."""
    token, value = BAD[what]

    def edit(logits, tokens, positions, visible):
        for row in range(len(tokens)):
            if when(tokens[row]):
                logits[row, positions[row] == position, token] = value

    return Edited(FINE, edit)


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("rule", READERS)
def test_t17_bad_logits_are_refused_before_any_commit(rule, what):
    model = Counting(spoiled(what, 1, lambda tokens: True))
    events = []
    text = "all logits are -inf" if what == "empty" else "a logit is NaN or [+]inf"
    with pytest.raises(ValueError, match=f"row 0, position 1, step 0: {text}"):
        ts.decode(model, [3], gen_length=4, on_step=events.append, **rule)
    assert model.calls == 1
    assert not events


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("rule", READERS[:4])
def test_t17_the_row_and_the_step_are_named(rule, what):
    # Row 1 goes bad at position 2 once its first token is written.
    model = spoiled(what, 2, lambda tokens: 5 in tokens and (tokens == 7).sum() == 3)
    events = []
    with pytest.raises(ts.TrajspecError, match="row 1, position 2, step 1: "):
        ts.decode(model, [[3], [5], [2]], gen_length=4, block_length=1, on_step=events.append, **rule)
    assert [event.step for event in events] == [0]
    row = canvas([5], gen_length=4, vocab_size=8, mask_id=7)
    with pytest.raises(ts.TrajspecError, match="row 0, position 2, step 1: "):
        ts.run(get_policy("fastdllm_threshold").bind(block_length=1).plan(), model, row)


def test_t17_a_finished_row_is_not_looked_at():
    model = spoiled("nan", 1, lambda tokens: tokens[0] == 5 and tokens[1] != 7)
    plan = get_policy("fastdllm_threshold").bind(block_length=2).plan()
    rows = [canvas([5, 1], vocab_size=8, mask_id=7), canvas([3], gen_length=1, vocab_size=8, mask_id=7)]
    bound = {plan.inputs[0]: stack(rows)}
    outcome = take(plan, FromNumpy(model), bound, start(plan, bound), True)
    assert not outcome.bad.any()
    assert outcome.carried[0].tokens.tolist() == [[5, 1], [3, 4]]


@pytest.mark.parametrize("rule", READERS)
def test_t17_single_minus_infinities_are_fine(rule):
    def edit(logits, tokens, positions, visible):
        logits[:, :, 0] = -np.inf
        logits[:, 2, 5:] = -np.inf

    result = ts.decode(Edited(FINE, edit), [3], gen_length=4, **rule)
    assert 7 not in result[0].token_ids
    assert 0 not in result[0].token_ids


def test_t17_padding_may_be_anything():
    def edit(logits, tokens, positions, visible):
        padding = ~np.diagonal(visible, axis1=1, axis2=2) if visible is not None else np.zeros(tokens.shape, bool)
        logits[padding] = np.nan
        padded.append(int(padding.sum()))

    padded: list[int] = []
    model = FixedModel([(3, 2.0)] * 6, vocab_size=11)
    result = ts.decode(Edited(model, edit), [[1], [1, 1, 1]], gen_length=2, steps=2)
    assert 2 in padded
    assert [row.token_ids for row in result] == [[3, 3], [3, 3]]
