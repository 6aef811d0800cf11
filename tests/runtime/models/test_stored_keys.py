"""Windows on stored keys: rows alone and together, the scratch slot, rows copied and put back, what is refused."""

import pytest
import torch

from trajspec.ir.errors import TrajspecError
from trajspec.runtime.attention import window_widths
from trajspec.runtime.models import load_model
from trajspec.runtime.store import Store

LENGTHS, STARTS, WIDTH = (24, 17, 20), (8, 4, 12), 8


def canvas(model, number, seed=0):
    """Tokens [1, n] of row `number`, free of the mask id."""
    generator = torch.Generator().manual_seed(100 * seed + number)
    return torch.randint(1, model.vocab_size - 1, (1, LENGTHS[number]), generator=generator)


class Batch:
    """Rows of different lengths, left-padded to `length`, each with its own block open."""

    def __init__(self, model, rows, length):
        self.model, self.rows, self.length = model, rows, length
        gaps = torch.tensor([[length - LENGTHS[r]] for r in rows])
        self.gaps, self.slots = gaps, torch.arange(length).repeat(len(rows), 1)
        self.positions = self.slots - gaps
        self.keys = torch.cat([self.positions >= 0, torch.zeros(len(rows), 1, dtype=torch.bool)], 1)
        self.window = torch.tensor([STARTS[r] for r in rows])[:, None] + gaps + torch.arange(WIDTH)
        self.store = model.new_store(len(rows), length)

    def tokens(self, seed):
        return torch.cat(
            [torch.nn.functional.pad(canvas(self.model, r, seed), (self.length - LENGTHS[r], 0)) for r in self.rows]
        )

    def refresh(self, seed=0):
        return self.model.cached(self.tokens(seed), self.positions, self.slots, self.store, self.keys)

    def step(self, seed=1, **options):
        at = self.window
        tokens, positions = self.tokens(seed).gather(1, at), self.positions.gather(1, at)
        return self.model.cached(tokens, positions, at, self.store, self.keys, **options)


@pytest.mark.parametrize(("own_length", "tolerance"), [(False, 0.0), (True, 1e-5)])
def test_rows_at_different_blocks_equal_their_single_runs(completion, own_length, tolerance):
    """Bit for bit in the same slots (float32, one thread); a shorter buffer adds the same numbers in another order."""
    together = Batch(completion, [0, 1, 2], max(LENGTHS))
    full, part = together.refresh(), together.step()
    for r, length in enumerate(LENGTHS):
        alone = Batch(completion, [r], length if own_length else max(LENGTHS))
        torch.testing.assert_close(full[r, -length:], alone.refresh()[0, -length:], rtol=0, atol=tolerance)
        torch.testing.assert_close(part[r], alone.step()[0], rtol=0, atol=tolerance)
        plain = completion(canvas(completion, r), torch.arange(length)[None])[0]
        torch.testing.assert_close(full[r, -length:], plain, rtol=0, atol=1e-5)


def test_padding_that_is_seen_changes_the_row(completion):
    """Control for the test above."""
    batch = Batch(completion, [0, 1, 2], max(LENGTHS))
    expected = batch.refresh()
    batch.keys = batch.keys | (torch.arange(max(LENGTHS) + 1) < max(LENGTHS))
    seen = batch.refresh()
    assert (seen[1, -LENGTHS[1] :] - expected[1, -LENGTHS[1] :]).abs().max() > 1e-2
    assert torch.equal(seen[0], expected[0])


def test_a_window_over_unchanged_tokens_is_the_full_forward(completion):
    batch = Batch(completion, [0, 1, 2], max(LENGTHS))
    full = batch.refresh()
    at = batch.window[..., None].expand(-1, -1, completion.vocab_size)
    before = full.gather(1, at)[:, 0]
    torch.testing.assert_close(batch.step(seed=0, before=before), full.gather(1, at), rtol=0, atol=1e-5)


@pytest.mark.parametrize("left", [True, False])
def test_narrow_windows_are_padded_into_the_scratch_slot(completion, left):
    batch = Batch(completion, [0, 1, 2], max(LENGTHS))
    full = batch.refresh()
    before = full.gather(1, batch.window[:, :1, None].expand(-1, -1, completion.vocab_size))[:, 0]
    expected, kept = batch.step(before=before), batch.store.rows(torch.arange(3))

    def padded(numbers, fill):
        return torch.nn.functional.pad(numbers, (3, 0) if left else (0, 3), value=fill)

    batch.refresh()
    slots = padded(batch.window, max(LENGTHS))
    tokens = padded(batch.tokens(1).gather(1, batch.window), 1)
    positions = padded(batch.positions.gather(1, batch.window), 0)
    # Even keys that name the scratch slot do not make it visible.
    keys = batch.keys.clone()
    keys[:, -1] = True
    logits = completion.cached(tokens, positions, slots, batch.store, keys, before=before)
    inner = slice(3, None) if left else slice(None, WIDTH)
    torch.testing.assert_close(logits[:, inner], expected, rtol=0, atol=1e-5)
    assert torch.isfinite(logits).all()
    for mine, other in zip(batch.store.keys, kept.keys, strict=True):
        torch.testing.assert_close(mine[:, :, :-1], other[:, :, :-1], rtol=0, atol=1e-5)
        assert (mine[:, :, -1] != other[:, :, -1]).any()


def test_a_visible_scratch_slot_would_show(completion, monkeypatch):
    """Control: what lies in the scratch slot reaches the logits as soon as it is not hidden."""
    batch = Batch(completion, [0, 1, 2], max(LENGTHS))
    batch.keys[:, -1] = True
    expected = batch.refresh()
    for values in batch.store.values:
        values[:, :, -1] = 3.0
    assert torch.equal(batch.refresh(), expected)
    monkeypatch.setattr(Store, "hide_scratch", lambda store, keys: keys)
    assert (batch.refresh() - expected).abs().max() > 1e-2


def test_keys_may_differ_between_queries(completion):
    batch = Batch(completion, [0, 1, 2], max(LENGTHS))
    batch.refresh()
    plain = batch.step()
    each = Batch(completion, [0, 1, 2], max(LENGTHS))
    each.refresh()
    each.keys = each.keys[:, None, :].repeat(1, WIDTH, 1)
    assert torch.equal(each.step(), plain)
    each.keys[0, -2, 0] = False
    hidden = each.step()
    assert torch.equal(hidden[1:], plain[1:])
    assert (hidden[0] - plain[0]).abs().max() > 1e-4


def test_a_refresh_of_some_rows_leaves_the_others_untouched(completion):
    batch = Batch(completion, [0, 1, 2], max(LENGTHS))
    batch.refresh()
    addresses = [buffer.data_ptr() for buffer in batch.store._buffers()]
    before = [buffer.clone() for buffer in batch.store._buffers()]
    due = torch.tensor([2, 0])
    part = batch.store.rows(due)
    completion.cached(batch.tokens(1)[due], batch.positions[due], batch.slots[due], part, batch.keys[due])
    assert all(torch.equal(mine, old) for mine, old in zip(batch.store._buffers(), before, strict=True))
    batch.store.put(due, part)
    assert [buffer.data_ptr() for buffer in batch.store._buffers()] == addresses
    whole = Batch(completion, [0, 1, 2], max(LENGTHS))
    whole.refresh(seed=1)
    for mine, old, new in zip(batch.store._buffers()[:-1], before[:-1], whole.store._buffers()[:-1], strict=True):
        assert torch.equal(mine[1], old[1])
        torch.testing.assert_close(mine[due], new[due], rtol=0, atol=1e-5)
        assert (mine[due] - old[due]).abs().max() > 1e-2


def test_copies_of_one_row_serve_several_candidates(completion):
    batch = Batch(completion, [0], LENGTHS[0])
    batch.refresh()
    copies = batch.store.rows(torch.tensor([0, 0, 0]))
    at = batch.window.repeat(3, 1)
    tokens = torch.cat([canvas(completion, 0, seed) for seed in (1, 2, 3)]).gather(1, at)
    logits = completion.cached(tokens, at, at, copies, batch.keys.repeat(3, 1))
    for number, seed in enumerate((1, 2, 3)):
        batch.refresh()
        assert torch.equal(logits[number], batch.step(seed)[0])
    assert (logits[0] - logits[1]).abs().max() > 1e-2


def test_one_graph_without_breaks(completion):
    torch._dynamo.reset()
    batch, other = (Batch(completion, [0, 1, 2], max(LENGTHS)) for _ in range(2))
    batch.refresh(), other.refresh()
    expected = batch.step()
    batch.refresh()
    compiled = torch.compile(completion.cached, fullgraph=True, backend="eager")
    tokens, at = other.tokens(1).gather(1, other.window), other.window
    logits = compiled(tokens, other.positions.gather(1, at), at, other.store, other.keys)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    with torch._dynamo.config.patch(error_on_recompile=True):
        moved = at - 1
        compiled(tokens, other.positions.gather(1, moved), moved, other.store, other.keys)


def test_fill_mask_models_keep_keys_too(checkpoint, model):
    """Where the layers are numbered; ModernBERT's window goes by the stored positions."""
    if checkpoint[0] == "DistilBertForMaskedLM":
        assert not model.supports_cache
        with pytest.raises(TrajspecError, match="DistilBertForMaskedLM cannot work on stored keys"):
            model.new_store(1, 4)
        return
    assert model.supports_cache
    length, gap = 20, 3
    tokens = torch.randint(5, 15, (2, length), generator=torch.Generator().manual_seed(4))
    slots = torch.arange(length).repeat(2, 1)
    positions = slots - torch.tensor([[0], [gap]])
    keys = torch.cat([positions >= 0, torch.zeros(2, 1, dtype=torch.bool)], 1)
    store = model.new_store(2, length)
    full = model.cached(tokens, positions, slots, store, keys)
    torch.testing.assert_close(full[0], model(tokens[:1], positions[:1])[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        full[1, gap:], model(tokens[1:, gap:], slots[:1, : length - gap])[0], rtol=1e-5, atol=1e-5
    )
    at = torch.stack([torch.arange(8, 13), torch.arange(11, 16)])
    part = model.cached(tokens.gather(1, at), positions.gather(1, at), at, store, keys)
    torch.testing.assert_close(part, torch.stack([full[0, 8:13], full[1, 11:16]]), rtol=1e-5, atol=1e-5)
    if len(window_widths(model.network)) > 1:
        store.positions.add_(50)
        assert (model.cached(tokens.gather(1, at), positions.gather(1, at), at, store, keys) - part).abs().max() > 1e-2


def test_wrong_shapes_are_refused(completion):
    store, at = completion.new_store(2, 6), torch.arange(3).repeat(2, 1)
    keys = torch.ones(2, 7, dtype=torch.bool)
    with pytest.raises(TrajspecError, match=r"tokens and positions.*\[2, 3\] and \[2, 2\]"):
        completion.cached(at, at[:, :2], at, store, keys)
    with pytest.raises(TrajspecError, match=r"slots must be \[2, 3\].*got \[2, 2\] and 2"):
        completion.cached(at, at, at[:, :2], store, keys)
    with pytest.raises(TrajspecError, match=r"the store must have 1 rows.*and 2"):
        completion.cached(at[:1], at[:1], at[:1], store, keys)
    for wrong in (keys[:, :6], keys.float(), keys[:, None].expand(2, 2, 7)):
        with pytest.raises(TrajspecError, match=r"keys must be bool \[2, 7\] or \[2, 3, 7\]"):
            completion.cached(at, at, at, store, wrong)
    with pytest.raises(TrajspecError, match=r"before must be \[2, "):
        completion.cached(at, at, at, store, keys, before=torch.zeros(2, 3))
    with pytest.raises(TrajspecError, match="rows and a length of 1 or more, got 0 and 6"):
        completion.new_store(0, 6)
    with pytest.raises(TrajspecError, match=r"length 6 for each of \[1\] row numbers, got 2 rows of length 6"):
        store.put(torch.tensor([0]), completion.new_store(2, 6))
    with pytest.raises(TrajspecError, match="rows of length 5"):
        store.put(torch.tensor([0, 1]), completion.new_store(2, 5))


def test_the_store_has_the_dtype_of_the_weights(golden_folder):
    half = load_model(golden_folder, dtype=torch.bfloat16)
    batch = Batch(half, [0, 1, 2], max(LENGTHS))
    full, part = batch.refresh(), batch.step(seed=0)
    assert {buffer.dtype for buffer in (*batch.store.keys, *batch.store.values)} == {torch.bfloat16}
    assert full.dtype == part.dtype == torch.bfloat16
