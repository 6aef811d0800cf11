"""Models as values: their text, what is read back, and what shrinking makes of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajspec.exact.case import Case, Drafts, draw_case, draw_drafts, read_case
from trajspec.exact.models import Hash, Table, Tape, key_text, letters, moved, ranks, read_key, rows_met, unletters
from trajspec.exact.program import Denoise

ONCE = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@st.composite
def cases(draw):
    return draw_case(draw, drafts=draw(st.integers(0, 2)))


@ONCE
@given(cases())
def test_cases_survive_their_text(case):
    assert read_case(json.loads(json.dumps(case.as_dict()))) == case
    assert "canvas" in case.lines()[0] and len(case.lines()) >= 2
    assert -1 in case.canvas and 1 <= len(case.canvas) <= 5 and 2 <= case.vocab <= 4


@ONCE
@given(cases(), st.integers(0, 2))
def test_what_a_model_answered_is_the_same_model_again(case, contexts):
    model = case.model.build(case.vocab)
    denoise = Denoise(model, len(case.canvas))
    context = None if not contexts else [[-1] * (len(case.canvas) * contexts)]
    first = denoise([case.canvas], context)
    table = Table(tuple(rows_met(model).items()))
    again = Denoise(table.build(case.vocab), len(case.canvas))([case.canvas], context)
    assert np.allclose(first, again, rtol=1e-12)
    copy = Case(case.canvas, case.vocab, table)
    assert read_case(json.loads(json.dumps(copy.as_dict()))) == copy


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a_@1", (((0, 0), (1, 2)), 1)),
        ("a_|__@1", (((18, 0), (19, 2)), 19)),
        ("a_|a_,__@0", (((216, 0), (217, 2)), 216)),
        ("{0a 0b 1_}@1", (((0, 0), (0, 1), (1, 2)), 1)),
        ("{1b}@0", (((1, 1),), 0)),
    ],
)
def test_keys_have_texts(text, key):
    assert key_text(key, 2, 2) == text and read_key(text, 2, 2) == key


def test_letters():
    assert letters((-1, 0, 2)) == "_ac" and unletters("_ac") == (-1, 0, 2)
    assert ranks((-4.0, 4.0, -4.0)) == (1, 2, 1)


def table(vocab, length, **rows):
    return Table(tuple((read_key(key.replace("X", "@"), length, vocab), row) for key, row in rows.items()))


def texts(table, vocab, length):
    return {key_text(key, length, vocab): row for key, row in table.rows}


def test_moving_a_table():
    plain = table(2, 3, a__X1=(1, 2), __bX0=(2, 1))
    shorter = moved(plain, 2, 3, 2, lambda s: s[:2], lambda p: p if p < 2 else None, lambda p, row: row)
    assert texts(shorter, 2, 2) == {"a_@1": (1, 2), "__@0": (2, 1)}
    turned = moved(plain, 2, 3, 2, lambda s: s[::-1], lambda p: 2 - p, lambda p, row: row[::-1])
    assert texts(turned, 2, 3) == {"__a@1": (2, 1), "b__@2": (1, 2)}
    wide = Table(((read_key("a_|__,_c@1", 2, 3), (1, 2, 0)), (read_key("a_@1", 2, 3), (0, 0, 1))))
    turned = moved(wide, 3, 2, 3, lambda s: s[::-1], lambda p: 1 - p, lambda p, row: row)
    assert texts(turned, 3, 2) == {"_a|c_,__@0": (1, 2, 0), "_a@0": (0, 0, 1)}
    # Rows that need the third token go.
    assert moved(wide, 3, 2, 2, lambda s: s, lambda p: p, lambda p, row: row) == Table()


class Seen:
    def __init__(self, path, rows=()):
        self.path, self.rows = path, dict(rows)


def test_smaller_cases():
    path = ((-1, -1), (-1, 1), (1, 1))
    rows = {read_key("__@1", 2, 3): (-4.0, 4.0, -4.0), read_key("_b@0", 2, 3): (4.0, 4.0, 4.0)}
    drafts = Drafts((((-1, 1), (1, 1)),), follow=2)
    hashed = Case((-1, -1), 3, Hash(1, 2), 5, drafts)
    tables = [case.model for case in hashed.smaller(Seen(path, rows))]
    assert tables[0] == Table(((read_key("__@1", 2, 3), (1, 2, 1)),)) and tables[-1] == Table(tuple(rows.items()))
    case = Case((-1, -1), 3, tables[0], 5, drafts)
    smaller = list(case.smaller(Seen(path)))
    assert case not in smaller and len(set(smaller)) == len(smaller)
    shown = [one.as_dict() for one in smaller]
    assert any(one["canvas"] == "_" for one in shown) and any(one["vocab"] == 2 for one in shown)
    assert any(one["seed"] == 0 for one in shown) and any(one["model"] == {"rows": {}} for one in shown)
    assert any(one["drafts"] == {"chains": [["_b", "bb"], ["_b", "bb"]], "follow": 0, "jump": False} for one in shown)
    # The order of writing made left to right, and what is written made a.
    assert any("__@0" in one["model"]["rows"] for one in shown)
    assert any(one["model"]["rows"].get("__@1") == [2, 1, 1] for one in shown)


@ONCE
@given(st.data())
def test_drafted_chains_are_paths_from_the_canvas(data):
    canvas = (0, -1, -1)
    drafts = draw_drafts(data.draw, canvas, 2)
    assert len(drafts.chains) <= 2 and drafts.along([canvas, (0, 1, -1)]).follow == 0
    for chain in drafts.chains:
        for before, after in zip((canvas, *chain), chain, strict=False):
            assert sum(old != new for old, new in zip(before, after, strict=True)) == 1 and after[0] == 0
    jumps = Drafts((), 2, jump=True).along([canvas, (0, 1, -1), (0, 1, 1)])
    assert jumps == Drafts((((0, 1, -1),), ((0, 1, 1),)))
    assert [[node.tolist() for node in chain] for chain in drafts(None)] == [list(map(list, c)) for c in drafts.chains]


def test_tapes_are_models():
    logits = Denoise(Tape((1, 3)).build(2), 1)([[-1]])
    assert np.allclose(np.exp(logits), [[[1, 3]]])
