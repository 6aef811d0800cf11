"""The drafters of the library in torch against their numpy meanings, and in one graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trajspec.ir.ahead import nothing_held
from trajspec.ir.canvas import canvas
from trajspec.ir.op import OPS
from trajspec.runtime.meanings import MEANINGS

from .operands import NoHostReads, canvases, logits, reference_form, same, sizes, tensors

STATE = st.lists(st.sampled_from([0, 0, 1, 2]), min_size=1, max_size=6).map(
    lambda choices: sum(choice << 2 * rank for rank, choice in enumerate(choices)) or 1
)
TABLES = st.lists(st.lists(STATE, max_size=9), min_size=1, max_size=3).map(
    lambda lists: tuple((floor, *codes) for floor, codes in zip((0.9, 0.4, 0.0), lists, strict=False))
)
SETTINGS = {
    "ranks": st.fixed_dictionaries({"nodes": st.integers(1, 9), "table": TABLES}),
    "chain": st.fixed_dictionaries({"nodes": st.integers(1, 9)}),
    "tree": st.fixed_dictionaries(
        {
            "nodes": st.integers(1, 9), "threshold": st.sampled_from([None, 0.9, 0.5]),
            "strata": st.sampled_from([(), (0.7, 0.5, 0.3), (0.4,)]), "alternatives": st.integers(0, 3),
            "branching": st.integers(1, 4),
        }
    ),
}  # fmt: skip


@st.composite
def drafting(draw, name):
    """A canvas, what is held, and settings of the drafter `name`."""
    size = draw(sizes)
    x = draw(canvases(size))
    told = draw(SETTINGS[name])
    told["size"] = draw(st.one_of(st.none(), st.integers(1, size.length + 1)))
    return x, nothing_held(x, draw(logits(tuple(size)))), told


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_torch_drafts_what_numpy_drafts(name):
    @settings(max_examples=40, deadline=None)
    @given(case=drafting(name))
    def compare(case):
        x, held, told = case
        with NoHostReads():
            got = MEANINGS[name](tensors(x), tensors(held), **told)
        batch = OPS[name].numpy(x, held, **told)
        for row in range(len(x.tokens)):
            one = OPS[name].numpy(*(reference_form(value, len(x.tokens), row) for value in (x, held)), **told)
            same(tuple(one), tuple(part[row].numpy() for part in got))
            same(tuple(one), tuple(part[row] for part in batch))
        assert one.exists.shape == (told["nodes"] - 1,)
        # Whatever is held, only masked positions are written, and what is not there says so.
        changed = (batch.tokens != x.tokens[:, None]) | (batch.masked != x.masked[:, None])
        assert not (changed & ~x.masked[:, None]).any() and not (batch.masked & ~x.masked[:, None]).any()
        assert (changed.any(-1) == batch.exists).all()

    compare()


def test_a_draft_with_other_ties_is_noticed():
    """The comparison sees which of two equally sure positions comes first."""
    row = canvas([], gen_length=3, vocab_size=4, mask_id=3)
    x = row._replace(**{name: getattr(row, name)[None] for name in row._fields})
    held = nothing_held(x, np.zeros((1, 3, 4)))
    draft = OPS["chain"].numpy(x, held, nodes=2, size=None)
    backwards = MEANINGS["chain"](
        tensors(x), tensors(held._replace(logits=held.logits + [[[0], [0], [1e-4]]])), nodes=2, size=None
    )
    assert draft.masked[0].tolist() == [[False, True, True]] == backwards.masked[0].tolist()
    surer = held._replace(logits=np.array([[[0.0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]]))
    assert MEANINGS["chain"](tensors(x), tensors(surer), nodes=2, size=None).masked[0].tolist() == [[True, True, False]]


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_drafters_compile_as_one_graph(name):
    told = {attribute.name: attribute.default for attribute in OPS[name].attributes} | {"nodes": 4, "size": 2}
    if name == "ranks":
        told["table"] = ((0.9, 1, 5, 21), (0.5, 2, 8), (0.0, 1, 4, 6, 9))
    row = canvas([1], gen_length=4, vocab_size=5, mask_id=4)
    x = row._replace(**{field: getattr(row, field)[None] for field in row._fields})
    held = nothing_held(x, np.random.default_rng(0).normal(size=(1, 5, 5)))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, held: MEANINGS[name](x, held, **told), fullgraph=True, backend="aot_eager")
    got = compiled(tensors(x), tensors(held))
    same(tuple(OPS[name].numpy(x, held, **told)), tuple(part.numpy() for part in got))
