"""DiffusionGemma against transformers' own `generate`, on a small random checkpoint and with the same draws."""

import numpy as np
import pytest
import torch
import transformers
from transformers.models.diffusion_gemma import generation_diffusion_gemma as theirs

import trajspec as ts
from trajspec.ir import noise
from trajspec.prepare import prepare
from trajspec.runtime.compiled import Compiled, length_of
from trajspec.runtime.loop import run
from trajspec.runtime.models import load_model

VOCAB, CANVAS = 24, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    text = transformers.DiffusionGemmaTextConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, global_head_dim=8, max_position_embeddings=128, sliding_window=5,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], num_experts=4, top_k_experts=2,
        moe_intermediate_size=8, eos_token_id=1, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    vision = transformers.Gemma4VisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        head_dim=8,
    )  # fmt: skip
    config = transformers.DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=CANVAS, image_token_id=VOCAB - 1,
        boi_token_id=VOCAB - 2, eoi_token_id=VOCAB - 3,
    )  # fmt: skip
    torch.manual_seed(3)
    network = transformers.DiffusionGemmaForBlockDiffusion(config)
    place = tmp_path_factory.mktemp("gemma")
    network.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


class Draws:
    """The library's noise, for a run of transformers' sampler on one row: a new canvas, then a draw and a renewal."""

    def __init__(self, seed, prompt):
        self.seed, self.start, self.step, self.fresh, self.calls = np.asarray(seed), prompt, 0, True, 0

    def canvas(self, batch_size, device):
        at = np.arange(self.start, self.start + CANVAS)
        role = "ord" if self.fresh else "view"
        u = noise.uniform(self.seed, noise.ROLES[role], np.asarray(self.step), at)
        self.step += not self.fresh
        self.fresh = False
        return torch.from_numpy(np.floor(u * VOCAB).astype(np.int64))[None]

    def multinomial(self, probs, num_samples):
        at = np.arange(self.start, self.start + CANVAS)[:, None]
        noisy = noise.gumbel(self.seed, noise.ROLES["tok"], np.asarray(self.step), at, np.arange(VOCAB))
        self.calls += 1
        return (probs.double().log() + torch.from_numpy(noisy)).argmax(-1, keepdim=True)

    def next_canvas(self):
        self.start, self.fresh = self.start + CANVAS, True


def generate(model, prompt, seed, monkeypatch, **options):
    """What transformers' `generate` gives with those draws: the new tokens, and how often the decoder was called."""
    draws = Draws(seed, len(prompt))
    network = model.network
    monkeypatch.setattr(
        theirs.EntropyBoundSampler, "initialize_canvas", lambda self, batch_size, device: draws.canvas(1, device)
    )
    monkeypatch.setattr(torch, "multinomial", draws.multinomial)
    finalize = network._finalize_canvas

    def finished(**given):
        draws.next_canvas()
        return finalize(**given)

    monkeypatch.setattr(network, "_finalize_canvas", finished, raising=False)
    out = network.generate(torch.tensor([prompt]), disable_compile=True, **options)
    monkeypatch.undo()
    return out.sequences[0, len(prompt) :].tolist(), draws.calls


# With settings cold enough for a random network to come to rest, and without.
OPTIONS: list[dict] = [
    dict(max_denoising_steps=7, confidence_threshold=0.005, entropy_bound=0.1),
    dict(max_denoising_steps=12, confidence_threshold=1.5, entropy_bound=20.0, t_min=0.02, t_max=0.05),
    dict(max_denoising_steps=12, confidence_threshold=2.5, entropy_bound=20.0, stability_threshold=2, t_min=0.01,
         t_max=0.02),
    dict(max_denoising_steps=5, confidence_threshold=3.5, entropy_bound=8.0, stability_threshold=0),
    dict(max_denoising_steps=6, stability_threshold=None, entropy_bound=1.0),
]  # fmt: skip


def ours(options):
    known = {"max_denoising_steps": "steps"}
    return {known.get(name, name): value for name, value in options.items()}


@pytest.fixture(scope="module")
def rested():
    return set()


@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize("prompt", [[5, 9, 3], [4, 4, 8, 9, 13, 2, 7, 11, 6]])
def test_the_tokens_and_calls_are_those_of_generate(model, number, prompt, monkeypatch, rested):
    options = dict(OPTIONS[number])
    given = options | {"eos_token_id": 1, "pad_token_id": 0}
    given["sampler_config"] = theirs.EntropyBoundSamplerConfig(entropy_bound=given.pop("entropy_bound"))
    for seed in (1, 2, 3):
        expected, calls = generate(model, prompt, seed, monkeypatch, max_new_tokens=3 * CANVAS, **given)
        row = ts.decode(model, [prompt], gen_length=3 * CANVAS, seeds=[seed], **ours(options))[0]
        end = expected.index(1) + 1 if 1 in expected else len(expected)
        assert row.token_ids[:end] == expected[:end]
        assert not any(row.token_ids[end:])
        assert row.calls == calls
        if calls < options["max_denoising_steps"] * -(-end // CANVAS):
            rested.add(number)


def test_some_of_those_runs_ended_their_canvases_early(rested):
    assert {1, 2, 3} <= rested <= {1, 2, 3}


def test_a_batch_of_different_prompts_is_its_single_runs(model):
    prompts = [[5, 9, 3], [4, 4, 8, 9, 13, 2, 7, 11, 6], [7]]
    told = dict(gen_length=2 * CANVAS, steps=5, entropy_bound=3.0)
    batch = ts.decode(model, prompts, seeds=[1, 2, 3], **told)
    for number, row in enumerate(batch):
        alone = ts.decode(model, [prompts[number]], seeds=[number + 1], **told)[0]
        assert (row.token_ids, row.calls) == (alone.token_ids, alone.calls)


def test_the_reference_interpreter_draws_the_same(model):
    from trajspec.ir import interpret
    from trajspec.policies import diffusion_gemma
    from trajspec.runtime.denoiser import ToNumpy

    row = ts.decode(model, [[5, 9, 3]], gen_length=2 * CANVAS, steps=4, entropy_bound=3.0, seeds=[9])[0]
    x = ts.canvas([5, 9, 3], gen_length=2 * CANVAS, vocab_size=VOCAB, mask_id=0, seed=9, stop=[1])
    plan = diffusion_gemma(block_length=CANVAS, steps=4, entropy_bound=3.0).plan()
    done = interpret.run(plan, ToNumpy(model), x)
    assert done.calls == row.calls
    found = np.where(done.canvas.masked, 0, done.canvas.tokens)[3:].tolist()
    assert found[: row.answer_tokens] == row.token_ids[: row.answer_tokens]


class Counting:
    """A network whose encoder is counted."""

    def __init__(self, model, monkeypatch):
        self.count = 0
        forward = model.network.model.encoder.forward

        def counted(*args, **given):
            self.count += 1
            return forward(*args, **given)

        monkeypatch.setattr(model.network.model.encoder, "forward", counted)


def test_the_text_is_encoded_once_a_canvas(model, monkeypatch):
    counting = Counting(model, monkeypatch)
    row = ts.decode(model, [[8, 8, 3]], gen_length=2 * CANVAS, steps=5, ignore_eos=True)[0]
    assert row.calls == 10 and counting.count == 2


def test_the_last_prediction_is_read(model, monkeypatch):
    """Without self-conditioning the run goes another way: a negative control of the comparison above."""
    row = ts.decode(model, [[5, 9, 3]], gen_length=CANVAS, steps=6, entropy_bound=3.0, ignore_eos=True)[0]
    forward = model.denoise.network.forward

    def blind(*args, self_conditioning_logits, **given):
        return forward(*args, self_conditioning_logits=None, **given)

    monkeypatch.setattr(model.denoise.network, "forward", blind)
    other = ts.decode(model, [[5, 9, 3]], gen_length=CANVAS, steps=6, entropy_bound=3.0, ignore_eos=True)[0]
    assert row.token_ids != other.token_ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(policy="threshold"), "does not show it"),
        (dict(gen_length=CANVAS + 1), "multiple"),
        (dict(infill=True), "whole canvases"),
        (dict(compile=True), "eagerly"),
        (dict(draft="tree"), "nothing to draft"),
        (dict(cache="dual"), "one query"),
        (dict(entropy_bound=0.0), "entropy_bound"),
        (dict(steps=0), "steps is 0"),
        (dict(t_min=0.9), "t_min"),
        (dict(block_length=CANVAS + 2), "block_length=6"),
    ],
)
def test_what_cannot_be_decoded_is_refused(model, options, message):
    with pytest.raises((ts.TrajspecError, TypeError), match=message):
        ts.decode(model, [[5, 9, 3]], **{"gen_length": 2 * CANVAS, **options})


def test_the_lowered_step_draws_the_same(model):
    job = prepare(model, [[5, 9, 3]], {"gen_length": 2 * CANVAS, "steps": 4, "entropy_bound": 3.0})

    def compiler(plan):
        return steps

    steps, compiler.padded = Compiled(job.plan, backend="none"), length_of
    rows = [row.canvas for row in job.rows]
    (ours, cost), (row, expected) = run(job.plan, model, rows, compiler=compiler), run(job.plan, model, rows)
    assert ours[0].path == row[0].path and cost.calls == expected.calls and len(steps.graphs) == 1


def test_a_model_of_tokens_alone_refuses_the_policy():
    class Plain:
        vocab_size, mask_id = 5, 4

        def __call__(self, tokens, positions, visible):
            raise AssertionError("asked before the error")

    with pytest.raises(ts.TrajspecError, match="fourth argument"):
        ts.decode(Plain(), [[1]], policy="diffusion_gemma", gen_length=4, block_length=4)
    with pytest.raises(ts.TrajspecError, match="tokens alone"):
        ts.decode("tiny", "sort $53 $23", policy="diffusion_gemma", gen_length=32)


def test_names_of_the_field_are_understood(model):
    told = dict(max_new_tokens=CANVAS, max_denoising_steps=3, confidence_threshold=0.1)
    row = ts.decode(model, [[5, 9, 3]], **told)[0]
    assert row.calls == 3 and row.policy == "diffusion_gemma"
    assert ts.decode(model, [[5, 9, 3]], steps=2)[0].calls == 2
