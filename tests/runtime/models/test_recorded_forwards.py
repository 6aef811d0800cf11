"""Every forward recorded from the authors' own LLaDA and Dream code: full, prefix window, block window."""

import json

import pytest
import torch
from safetensors.torch import load_file

from trajspec.runtime.models.forward import Forward, shift_back

CLOSE = dict(rtol=0, atol=1e-4)


@pytest.fixture(scope="module", params=range(5))
def record(request, golden_folder):
    """One recording: its tensors by name (rows of one canvas), and its window."""
    tensors = load_file(golden_folder / "forwards.safetensors")
    item = json.loads((golden_folder / "forwards.json").read_text())["items"][request.param]
    found = {name.split(".", 1)[1]: tensor for name, tensor in tensors.items() if name.startswith(f"{request.param}.")}
    for name in ("entry_tokens", "step_tokens"):
        found[name] = found[name].long()[None]
    return found, item["window"]


def own(model, raw):
    """Recorded logits as predictions of their own entry."""
    return torch.cat([raw[:1], raw[:-1]]) if model.denoise.shifted else raw


def refreshed(model, forward, tokens):
    """A store filled by the full forward of `tokens`, the logits of that forward, and all slots but scratch."""
    length = tokens.shape[1]
    at = torch.arange(length)[None]
    store = model.new_store(1, length)
    keys = torch.arange(length + 1)[None] < length
    return store, forward(tokens, at, at, store, keys), keys


@pytest.mark.parametrize("canvas", ["entry", "step"])
def test_full(completion, record, canvas):
    found, _ = record
    expected = found["full_logits" if canvas == "entry" else "full_logits_step"]
    tokens = found[f"{canvas}_tokens"]
    at = torch.arange(tokens.shape[1])[None]
    torch.testing.assert_close(Forward(completion.network)(tokens, at, None)[0], expected, **CLOSE)
    torch.testing.assert_close(completion(tokens, at)[0], own(completion, expected), **CLOSE)
    _, again, _ = refreshed(completion, completion.cached, tokens)
    torch.testing.assert_close(again[0], own(completion, expected), **CLOSE)


@pytest.mark.parametrize("view", ["prefix", "dual"])
def test_window_on_stored_keys(completion, record, view):
    found, (start, end) = record
    tokens, raw = found["step_tokens"], found[f"{view}_logits"]
    at = torch.arange(start, tokens.shape[1] if view == "prefix" else end)[None]

    def window(forward, **carried):
        store, full, keys = refreshed(completion, forward, found["entry_tokens"])
        return forward(tokens[:, at[0]], at, at, store, keys, **carried)[0], full[0, start]

    plain = Forward(completion.network)
    logits, _ = window(lambda *query: plain.cached(*query, None))
    torch.testing.assert_close(logits, raw, **CLOSE)
    # Control: the stored keys are stale, so a full forward of the same canvas says something else.
    assert (logits - found["full_logits_step"][at[0]]).abs().max() > 0.1

    repeated, before = window(completion.cached)
    torch.testing.assert_close(repeated, own(completion, raw), **CLOSE)
    carried, _ = window(completion.cached, before=before[None])
    torch.testing.assert_close(carried[1:], repeated[1:], rtol=0, atol=0)
    first = found["full_logits"][start - 1] if completion.denoise.shifted else raw[0]
    torch.testing.assert_close(carried[0], first, **CLOSE)


def test_shift_is_dream_s_alone(completion, golden_folder):
    assert completion.denoise.shifted == (golden_folder.name == "tiny_dream")


def test_a_wrong_shift_shows(completion, record):
    """Control: logits shifted where they should not be, or not where they should, are far from the recorded ones."""
    found, _ = record
    at = torch.arange(found["entry_tokens"].shape[1])[None]
    wrong = Forward(completion.network, shifted=not completion.denoise.shifted)(found["entry_tokens"], at, None)[0]
    assert (wrong - own(completion, found["full_logits"])).abs().max() > 0.1


def test_shift_goes_by_position():
    """Row i of the result names the raw row it is: left padding, a thinned canvas, a second copy, a window."""
    raw = torch.arange(6.0)[None, :, None]
    for positions, taken in [
        ([0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4]),
        ([-2, -1, 0, 1, 2, 3], [0, 1, 2, 2, 3, 4]),
        ([0, 0, 0, 1, 2, 3], [0, 1, 2, 2, 3, 4]),
        ([0, 1, 2, 7, 9, 12], [0, 0, 1, 2, 3, 4]),
        ([0, 1, 2, 0, 1, 2], [0, 0, 1, 3, 3, 4]),
        ([4, 5, 6, 7, 8, 9], [0, 0, 1, 2, 3, 4]),
    ]:
        assert shift_back(raw, torch.tensor([positions]))[0, :, 0].tolist() == taken, positions
    before = torch.tensor([[-5.0]])
    for positions, taken in [
        ([0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4]),
        ([4, 5, 6, 7, 8, 9], [-5, 0, 1, 2, 3, 4]),
        ([-1, -1, 6, 7, 8, -1], [0, 1, -5, 2, 3, 5]),
    ]:
        assert shift_back(raw, torch.tensor([positions]), before)[0, :, 0].tolist() == taken, positions
