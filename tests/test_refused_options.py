"""Options of a wrong type or out of range are refused before any work, by name, value and remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trajspec as ts
from tests.toys import Counting, text_model
from trajspec.cli import main
from trajspec.exact.tabular import HashModel
from trajspec.ir.op import OPS
from trajspec.runtime.models import load_model

GOLDENS = Path(__file__).parent / "goldens"
SMALL = {"gen_length": 2}
DREAM = {"policy": "dream_entropy", "steps": 2}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"infill": "no"}, "infill is 'no', expected True or False"),
        ({"infill": 1}, "infill is 1, expected True or False"),
        ({"ignore_eos": "false"}, "ignore_eos is 'false', expected True or False"),
        ({"keep_path": [True]}, r"keep_path is \[True\], expected True or False"),
        ({"eos_id": 6}, "eos_id has 6, and the ids of Counting are 0 to 5; give ids of its vocabulary"),
        ({"eos_id": -1}, "eos_id has -1"),
        ({"eos_id": [1, 2, 600]}, "eos_id has 600"),
        ({"eos_id": True}, "eos_id is True, expected a token id or a list"),
        ({"eos_token_id": 99}, "eos_id has 99"),
        ({**DREAM, "alg_temp": -0.5}, "alg_temp of dream_entropy is -0.5, expected a number from 0 up"),
        ({**DREAM, "alg_temp": float("nan")}, "alg_temp of dream_entropy is nan"),
        ({**DREAM, "alg_temp": "hot"}, "alg_temp of dream_entropy is 'hot'"),
        ({"policy": "llada_low_confidence", "cfg_scale": "no"}, "cfg_scale of llada_low_confidence is 'no'"),
        ({"stop": 5}, "stop is 5, expected a text or a list"),
        ({"seeds": 3.5}, "seeds: 3.5 for 1 prompts"),
        ({"attention_mask": 5}, "attention_mask is 5, expected a list of 0 and 1"),
        ({"attention_mask": [1.5]}, "attention_mask of prompt 0 needs a 0 or 1 for each"),
        ({"allowed": {"a": [1]}}, r"allowed: position 'a' with \[1\]; expected a position and ids"),
        ({"allowed": {0: ["a", 2]}}, r"allowed: position 0 with \['a', 2\]"),
        ({"compat": ["x"]}, r"compat is \['x'\], expected the name of a quirk"),
        ({"device": "nowhere"}, "device is 'nowhere', expected the name of a device"),
        ({"device": 3.5}, "device is 3.5, expected the name of a device"),
    ],
)
def test_refused_before_any_call(options, text):
    model = Counting(HashModel(1, 6, 50))
    with pytest.raises(ts.TrajspecError, match=text):
        ts.decode(model, [[1, 2]], **SMALL | options)
    assert model.calls == 0


def test_values_that_are_fine_are_taken():
    model = Counting(HashModel(1, 6, 50))
    flags = {"infill": np.bool_(False), "ignore_eos": None, "keep_path": False}
    ts.decode(model, [1, 2], eos_id=[0, 4], device="cpu", attention_mask=[1, 1], **SMALL, **flags)
    ts.decode(model, [[1, 2]], eos_id=np.int64(4), seeds=np.array([3]), **SMALL)
    ts.decode(model, [[1, 2], [1]], attention_mask=[[0, 1], [1]], **SMALL)
    for warm in (0, 0.0, 1, np.float32(0.5)):
        ts.decode(model, [[1, 2]], **DREAM, alg_temp=warm, **SMALL)
    assert model.calls > 0
    assert ts.decode(text_model("ab."), "x", stop=("b",), gen_length=3)[0].text is not None


def test_a_second_look_through_shifted_logits_is_refused(monkeypatch):
    model = load_model(GOLDENS / "tiny_dream")
    asked = []
    monkeypatch.setattr(type(model.denoise), "__call__", lambda *args: asked.append(args))
    with pytest.raises(
        ts.TrajspecError, match="policy wino asks for twins, and .*tiny_dream predicts an entry from the one before"
    ):
        ts.decode(model, [[3, 4]], policy="wino", gen_length=4)
    with pytest.raises(ts.TrajspecError, match="asks for twins"):
        ts.decode(model, [[3, 4]], policy="wino", gen_length=4, draft="chain")
    assert not asked


def test_a_second_look_is_fine_where_logits_are_not_shifted():
    assert ts.decode(load_model(GOLDENS / "tiny_llada"), [[3, 4]], policy="wino", gen_length=4)[0].calls > 0


def test_ops_lists_all_that_can_be_written(capsys):
    assert main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split("(")[0]: line for line in lines[::2]}
    assert set(shown) == {name for name, op in OPS.items() if not op.hidden}
    assert shown["top"] == "top(by: conf | scores, k: count, *, where: selection) -> best: selection"
    assert lines[lines.index(shown["top"]) + 1].startswith("    The k best positions of `where`")
    assert all(line.startswith("    ") and line.strip() for line in lines[1::2])
