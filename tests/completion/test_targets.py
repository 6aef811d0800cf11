"""`decode` of autoregressive targets: transformers' own text, the same with drafts, in batches, and its errors."""

from __future__ import annotations

import io
import itertools
import json
import time
from dataclasses import replace

import pytest
import torch
import transformers

import trajspec as ts
from tools import tiny_data
from trajspec.cli import main
from trajspec.completion import load_target
from trajspec.completion.drafts import FORMS, Drafter, Drafting, same_tokens
from trajspec.completion.verify import Processing
from trajspec.ir import TrajspecError
from trajspec.jobs import run_file
from trajspec.runtime.models.causal import Autoregressive

TASKS = sorted(tiny_data.TASKS)


def problems(count: int, skip: int = 0):
    """Unseen problems of all tasks in turn, as conversations."""
    found = (tiny_data.item(TASKS[n % len(TASKS)], "test", skip + n // len(TASKS)).prompt for n in range(count))
    return [[{"role": "user", "content": text}] for text in found]


@pytest.fixture(scope="module")
def target():
    return load_target("tiny-ar")


@pytest.fixture(scope="module")
def tiny():
    return ts.load_model("tiny")


def greedy(target, prompts, length, **options):
    """What transformers' generate writes, up to the end; one prompt at a time."""
    out = []
    for prompt in prompts:
        ids = torch.tensor([target.codec.encode(target.codec.chat(prompt))])
        ids = torch.cat([torch.tensor([list(target.codec.prefix)], dtype=torch.int64), ids], 1)
        told = target.network.generate(ids, max_new_tokens=length, do_sample=False, pad_token_id=0, **options)
        out.append(told[0, ids.shape[1] :].tolist())
    return out


def test_greedy_text_is_that_of_generate_with_and_without_drafts(target, tiny):
    prompts = problems(200)
    expected = greedy(target, prompts, 40)
    alone = ts.decode(target, prompts[:30], gen_length=40)
    drafted = ts.decode(target, prompts, drafter=tiny, gen_length=40)
    for row, tokens in zip(drafted, expected, strict=True):
        assert row.token_ids[: row.answer_tokens_with_eos] == tokens
        assert row.finish_reason == ("eos" if tokens[-1] == 1 else "length")
    for row, tokens in zip(alone, expected, strict=False):
        assert row.token_ids[: row.answer_tokens_with_eos] == tokens
        assert row.calls == len(tokens) and row.rows == row.calls and row.accepted_lengths == []
    tokens = sum(row.answer_tokens_with_eos for row in drafted)
    assert tokens / sum(row.calls for row in drafted) >= 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_form_writes_the_targets_own_text(target, tiny, form, temperature):
    prompts = problems(6, skip=70)
    told = {"gen_length": 40, "temperature": temperature, "seeds": range(6)}
    alone, drafted = ts.decode(target, prompts, **told), ts.decode(target, prompts, drafter=tiny, draft=form, **told)
    for one, other in zip(alone, drafted, strict=True):
        assert one.token_ids == other.token_ids and one.text == other.text
        assert [token for step in other.path for _, token in step] == other.token_ids[: other.base_steps]
        assert other.calls <= one.calls and other.drafter == form and other.drafter_calls > 0
        assert other.certificate["level"] == "BITWISE"
    assert sum(row.calls for row in drafted) < sum(row.calls for row in alone) / 2


def test_the_base_is_the_policy_of_the_library(target):
    """The same tokens as the plan `autoregressive` run by the runtime of policies, drawn with the same noise."""
    model = Autoregressive(target.network)
    for options in (
        {},
        {"temperature": 0.9},
        {"temperature": 1.2, "top_k": 5, "top_p": 0.8, "repetition_penalty": 1.3},
    ):
        prompt = [2, *target.codec.encode(target.codec.chat(problems(1, 90)[0]))]
        row = ts.decode(target, [prompt], gen_length=24, seed=5, **options)[0]
        base = ts.decode(model, [prompt], policy="autoregressive", gen_length=24, seed=5, eos_id=1, **options)[0]
        assert row.token_ids[: row.answer_tokens] == base.token_ids[: base.answer_tokens]
        assert base.manifest["plan"] == row.manifest["plan"]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"temperature": 0.9}, {"temperature": 0.9, "verify": "rejection"}, {"drafts": 3, "temperature": 1.0},
        {"drafts": 3, "temperature": 1.0, "verify": "rejection"}, {"draft": "two_phase", "draft_length": "adaptive"},
        {"draft": "denoise", "draft_steps": 2},
        {"draft": "denoise", "draft_steps": 3, "draft_length": "adaptive", "temperature": 2.5},
        {"draft": "search", "draft_length": 12, "temperature": 2.5},
        {"draft": "two_phase", "draft_length": "adaptive", "temperature": 2.5, "verify": "rejection"},
        {"temperature": 0.7, "repetition_penalty": 1.2},
    ],
    ids=str,
)  # fmt: skip
def test_a_batch_is_its_single_runs(target, tiny, options):
    prompts, told = problems(5, skip=30), {"gen_length": 32, "drafter": tiny, **options}
    batch = ts.decode(target, prompts, seeds=range(5), **told)
    for number, row in enumerate(batch):
        alone = ts.decode(target, prompts[number : number + 1], seeds=[number], **told)[0]
        same = (
            "token_ids", "text", "calls", "rows", "positions", "accepted_lengths", "drafter_calls", "drafter_rows",
            "drafter_positions", "finish_reason",
        )  # fmt: skip
        for name in same:
            assert getattr(row, name) == getattr(alone, name), name
    assert batch.totals.calls < sum(row.calls for row in batch)


def test_a_drafter_of_a_smaller_vocabulary(target, tiny):
    """Tokens that the drafter lacks are shown to it as its first one, and never drafted."""
    small = replace(tiny, vocab_size=460, codec=None, denoise=lambda *args: tiny.denoise(*args)[..., :460])
    bare = replace(target, codec=None)
    with pytest.raises(TrajspecError, match="466 ids and tiny 460"):
        ts.decode(bare, [[2, 465, 30]], drafter=small, gen_length=8)
    drafter = Drafter(small, Drafting(length=4), Processing(1.0), None, by_law=True)
    zero = torch.zeros(1, dtype=torch.int64)
    made = drafter.draft([torch.tensor([2, 465, 30])], [8], [4], 466, zero, zero)
    assert made.law is not None and made.law.shape[-1] == 466 and bool((made.law[..., 460:] == -torch.inf).all())
    assert int(made.tokens.max()) < 460


def test_rejection_keeps_the_law_on_a_real_model(target, tiny):
    """The frequencies of the first drawn tokens, over many seeds, with and without drafts."""
    prompt, count = problems(1, skip=5), 400
    told = {"gen_length": 3, "temperature": 2.5, "num_return_sequences": count, "keep_path": False}
    alone = ts.decode(target, prompt, seed=1, **told)
    drafted = ts.decode(target, prompt, seed=2, drafter=tiny, verify="rejection", **told)
    other = ts.decode(target, prompt, seed=3, **(told | {"temperature": 1.6}))
    spread = [
        torch.stack([torch.bincount(torch.tensor([row.token_ids[at] for row in rows]), minlength=466) for at in (0, 1)])
        for rows in (alone, drafted, other)
    ]
    off = [(spread[0] - one).abs().sum(-1).double() / (2 * count) for one in spread[1:]]
    assert sum(sum(row.accepted_lengths) for row in drafted) > count / 4
    # Two samples of one law are this far apart by chance; another temperature is farther.
    assert off[0].max() < 0.26 < off[1].max()
    assert drafted[0].certificate["level"] == "LAW" and "not bitwise" in drafted[0].certificate["text"]
    again = ts.decode(target, prompt, seed=2, drafter=tiny, verify="rejection", **told)
    assert [row.token_ids for row in again] == [row.token_ids for row in drafted]


def test_ends_inside_an_accepted_run(target, tiny):
    """A token that ends the text, wherever in a round it falls (an end accepted in the middle of a draft)."""
    prompt = problems(1, skip=3)
    whole = ts.decode(target, prompt, gen_length=40)[0].token_ids
    for place in range(1, 12):
        stop = whole[place]
        first = whole.index(stop)
        row = ts.decode(target, prompt, drafter=tiny, gen_length=40, eos_id=stop, draft_length=8)[0]
        assert row.token_ids[: row.answer_tokens_with_eos] == whole[: first + 1] and row.finish_reason == "eos"
        assert not any(row.token_ids[first + 1 :])
    for length in (1, 2, 5, 8, 9, 10):
        row = ts.decode(target, prompt, drafter=tiny, gen_length=length, ignore_eos=True)[0]
        assert row.token_ids == ts.decode(target, prompt, gen_length=length, ignore_eos=True)[0].token_ids
        assert len(row.token_ids) == row.base_steps == length and row.finish_reason == "length"
    assert ts.decode(target, prompt, drafter=tiny, gen_length=0)[0].calls == 0


def test_stop_strings_and_streams(target, tiny):
    prompt = [[{"role": "user", "content": "find: list of even, plus 3"}]]
    whole = ts.decode(target, prompt, drafter=tiny, gen_length=48)[0]
    assert "for x" in whole.text
    row = ts.decode(target, prompt, drafter=tiny, gen_length=48, stop=["for x", "never"])[0]
    assert row.text == whole.text[: whole.text.index("for x")] and row.finish_reason == "stop"
    pieces = list(ts.stream(target, prompt, drafter=tiny, gen_length=48))
    assert "".join(piece.text for piece in pieces) == whole.text and pieces[-1].final and len(pieces) > 2
    cut = list(ts.stream(target, prompt, drafter=tiny, gen_length=48, stop="for x"))
    assert "".join(piece.text for piece in cut) == row.text


def test_the_other_way_to_say_it(tiny):
    row = ts.decode("tiny", problems(1), target="tiny-ar", gen_length=24)[0]
    assert row.manifest["model"] == "tiny-ar" and row.manifest["drafter"] == "tiny"
    assert row.token_ids == ts.decode("tiny-ar", problems(1), drafter=tiny, gen_length=24)[0].token_ids


def test_drafting_that_does_not_pay_is_left_out(target, tiny):
    def late(*args):
        time.sleep(0.2)
        return tiny.denoise(*args)

    slow = replace(tiny, denoise=late)
    row = ts.decode(target, problems(1), drafter=slow, draft="auto", gen_length=48, ignore_eos=True)[0]
    assert row.drafter_calls <= 5 and row.manifest["draft"] == "auto"
    assert row.token_ids == ts.decode(target, problems(1), gen_length=48, ignore_eos=True)[0].token_ids


def test_rejected_tokens_leave_nothing_behind(target):
    """What is kept of a text after drafts were refused is what reading it alone keeps (stale keys: T19, G7)."""

    reading = target.read(1)
    text = torch.tensor([[2, 30, 31, 32, 33]])
    reading.logits(text, torch.ones_like(text, dtype=torch.bool))
    junk = torch.tensor([[50, 51, 52]])
    reading.logits(junk, torch.ones_like(junk, dtype=torch.bool))
    reading.keep(torch.tensor([[True, False, False]]))
    after = reading.logits(torch.tensor([[34]]), torch.tensor([[True]]))
    fresh = target.read(1)
    whole = torch.tensor([[2, 30, 31, 32, 33, 50, 34]])
    expected = fresh.logits(whole, torch.ones_like(whole, dtype=torch.bool))[:, -1:]
    assert torch.allclose(after, expected, atol=1e-5) and reading.kept.shape[1] == 7


ARCHITECTURES = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=466, n_positions=256, n_embd=32, n_layer=2, n_head=2, eos_token_id=1)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=466, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=48, eos_token_id=1, pad_token_id=0,
        )
    ),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(
            vocab_size=466, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=48, sliding_window=6, eos_token_id=1, pad_token_id=0,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_causal_language_model(name, tiny, tmp_path):
    """Random networks of other architectures, loaded from their folders; drafts are refused again and again."""
    torch.manual_seed(0)
    network = ARCHITECTURES[name]().eval()
    network.save_pretrained(tmp_path)
    prompt = [2, 30, 31, 32, 40, 41, 42, 43, 44]
    target = load_target(str(tmp_path))
    assert target.codec is None and ts.decode(str(tmp_path), [prompt], gen_length=2)[0].calls == 2
    for drafter in (None, tiny):
        told = {} if drafter is None else {"drafter": drafter}
        row = ts.decode(target, [prompt], gen_length=24, ignore_eos=True, **told)[0]
        expected = network.generate(
            torch.tensor([prompt]), max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0,
            eos_token_id=None,
        )  # fmt: skip
        assert row.token_ids == expected[0, len(prompt) :].tolist()
    pair = ts.decode(target, [prompt, prompt[:3]], drafter=tiny, gen_length=24, ignore_eos=True)
    assert pair[0].token_ids == row.token_ids


def test_a_pair_of_published_classes(tmp_path):
    """A Qwen2 target with a Dream drafter, tiny and random, through the loading path of the real ones."""
    dream = ts.load_model("tests/goldens/tiny_dream")
    torch.manual_seed(1)
    config = transformers.Qwen2Config(
        vocab_size=dream.vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        num_key_value_heads=1, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    prompt = [[3, 5, 7, 9]]
    alone = ts.decode(str(tmp_path), prompt, gen_length=12, temperature=0.7, seed=3)[0]
    pair = ts.decode(str(tmp_path), prompt, drafter=dream, gen_length=12, temperature=0.7, seed=3)[0]
    assert pair.token_ids == alone.token_ids and pair.drafter_calls > 0


def test_a_drafter_that_sees_whole_blocks(tmp_path):
    """A Fast-dLLM v2 drafter: what it drafts is what its network says under its own visibility."""
    from tests.runtime.models.test_block_families import MASK, VOCAB, in_blocks, plain, save

    weights = save(tmp_path, "fast_dllm_v2")
    model = ts.load_model(str(tmp_path))
    drafter = Drafter(model, Drafting(length=3, block_length=8), Processing(), None, by_law=False)
    text = torch.tensor([3, 4, 5, 6, 7])
    zero = torch.zeros(1, dtype=torch.int64)
    made = drafter.draft([text], [12], [3], VOCAB, zero, zero)
    shown = torch.tensor([3, 4, 5, 6, 7, *[MASK] * 12])
    logits = plain(weights, shown, in_blocks(17, 8), "fast_dllm_v2")
    logits[:, MASK] = -torch.inf
    assert made.tokens[0, 0].tolist() == logits[5:8].argmax(-1).tolist()
    other = Drafter(model, Drafting(length=3), Processing(), None, by_law=False).draft(
        [text], [12], [3], VOCAB, zero, zero
    )
    everything = plain(weights, shown, torch.ones(17, 17, dtype=torch.bool), "fast_dllm_v2")
    everything[:, MASK] = -torch.inf
    assert other.tokens[0, 0].tolist() == everything[5:8].argmax(-1).tolist()
    config = transformers.Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        num_key_value_heads=1, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    network = transformers.Qwen2ForCausalLM(config).eval()
    alone, pair = (
        ts.decode(network, [text.tolist()], gen_length=12, **told)[0]
        for told in ({}, {"drafter": model, "draft_block_length": 8})
    )
    assert pair.token_ids == alone.token_ids and pair.manifest["draft_block_length"] == 8


class Fake:
    def __init__(self, vocab, **special):
        self.vocab, self.all_special_tokens = vocab, list(special.get("special", []))

    def get_vocab(self):
        return dict(self.vocab)

    def tokenize(self, text):
        return [letter for letter in text if letter in self.vocab]

    def convert_tokens_to_ids(self, tokens):
        return [self.vocab[token] for token in tokens]


class Voiced:
    def __init__(self, name, vocab, size=None):
        self.name, self.vocab_size, self.device = name, size or len(vocab), "cpu"
        self.codec = type("Codec", (), {"tokenizer": Fake(vocab)})()


def test_tokenizers_that_number_the_same_strings_differently():
    letters = "The quick brown fox, 42 times."
    mine = {letter: number for number, letter in enumerate(sorted(set(letters)))}
    theirs = {letter: len(mine) - number for letter, number in mine.items()} | {"new": 0}
    assert same_tokens(Voiced("target", mine), Voiced("drafter", mine)) is None
    ids = same_tokens(Voiced("target", mine), Voiced("drafter", theirs))
    for letter, number in theirs.items():
        assert int(ids[number]) == mine.get(letter, -1)
    with pytest.raises(TrajspecError, match=r"do not agree: 3 of 4 tokens .* 'X' \(1\), 'Y' \(2\), 'Z' \(3\)"):
        same_tokens(Voiced("target", mine), Voiced("drafter", {"T": 0, "X": 1, "Y": 2, "Z": 3}))


def test_a_drafter_with_other_ids(target, tiny):
    """Ids turned round: the drafts come back in the target's ids, and the text is the target's."""

    size = tiny.vocab_size
    turn = torch.arange(size).flip(0)

    def turned(tokens, positions, visible):
        return tiny.denoise(turn[tokens], positions, visible).flip(-1)

    class Codec:
        def __init__(self):
            vocab = {token: size - 1 - number for token, number in tiny.codec.tokenizer.get_vocab().items()}
            self.tokenizer = Fake(vocab)
            self.tokenizer.tokenize = tiny.codec.tokenizer.tokenize

    other = replace(
        tiny, denoise=turned, codec=Codec(), mask_id=size - 1 - tiny.mask_id,
        banned_ids=tuple(size - 1 - token for token in tiny.banned_ids),
    )  # fmt: skip
    for options in ({}, {"temperature": 0.8}, {"temperature": 0.8, "verify": "rejection"}, {"draft": "two_phase"}):
        told = {"gen_length": 32, "seed": 4, **options}
        row, same = (ts.decode(target, problems(1, 8), drafter=one, **told)[0] for one in (other, tiny))
        assert row.token_ids == same.token_ids and row.accepted_lengths == same.accepted_lengths
        assert row.accepted > 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft": "denoise", "temperature": 1.0, "verify": "rejection"}, "trajspec explain G1"),
        ({"draft": "search", "temperature": 1.0, "verify": "rejection"}, "equality"),
        ({"draft": "tree"}, "draft is 'tree'"),
        ({"policy": "threshold"}, "left to right"),
        ({"threshold": 0.9}, "no option 'threshold'"),
        ({"cache": "dual"}, "no option 'cache'"),
        ({"gen_length": 1000}, "Shorten it"),
        ({"gen_length": -1}, "gen_length is -1"),
        ({"eos_id": 5000}, "eos_id has 5000"),
        ({"stop": [""]}, "not empty"),
        ({"seeds": [1, 2]}, "seeds"),
        ({"temperature": "hot"}, "temperature"),
        ({"drafter": "antiberty"}, "does not continue"),
        ({"drafter": "tiny-ar"}, "tiny-ar"),
        ({"target": "tiny"}, "both given"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_done_is_said_before_any_work(target, tiny, options, message):
    with pytest.raises((TrajspecError, TypeError), match=message):
        ts.decode(target, problems(1), **({"drafter": tiny, "gen_length": 24} | options))


def test_more_that_is_refused(target, tiny):
    for options, message in (
        ({"draft": "mean_field"}, "needs a diffusion model"),
        ({"draft_length": 4}, "nothing is drafted"),
        ({"verify": "rejection"}, "nothing is drafted"),
    ):
        with pytest.raises(TrajspecError, match=message):
            ts.decode(target, problems(1), **options)
    with pytest.raises(TrajspecError, match="no tokens"):
        ts.decode(target, [[]], gen_length=3)
    with pytest.raises(TrajspecError, match="outside of the vocabulary"):
        ts.decode(target, [[2, 900]], gen_length=3)
    with pytest.raises(TrajspecError, match="a diffusion model is the drafter|architectures"):
        load_target("tests/goldens/tiny_llada")
    with pytest.raises(TrajspecError, match="training mode"):
        load_target(ARCHITECTURES["qwen2"]().train())
    with pytest.raises(TrajspecError, match="on_step"):
        ts.decode(target, problems(1), on_step=print)


def test_drafts_do_not_depend_on_the_order_of_a_batch(target, tiny):
    prompts = problems(4, skip=11)
    told = {"drafter": tiny, "gen_length": 24, "temperature": 1.1, "verify": "rejection"}
    rows = ts.decode(target, prompts, seeds=[5, 6, 7, 8], **told)
    for order in itertools.islice(itertools.permutations(range(4)), 1, 24, 7):
        mixed = ts.decode(target, [prompts[n] for n in order], seeds=[5 + n for n in order], **told)
        assert [row.token_ids for row in mixed] == [rows[n].token_ids for n in order]


def test_a_file_of_prompts(target, tiny, tmp_path):
    """Broken lines are said and the rest is done; a file that was cut off goes on to the same end."""
    source, whole, cut = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "cut.jsonl"))
    lines = [{"id": f"n{n}", "messages": chat} for n, chat in enumerate(problems(5, skip=9))]
    lines.insert(2, {"infill": "a_c"})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {"drafter": tiny, "gen_length": 32, "temperature": 0.8}
    assert run_file(source, whole, target, told, batch_rows=3, report=io.StringIO()) == (6, 1)
    rows = [json.loads(line) for line in whole.read_text().splitlines()]
    assert "infill" in rows[2]["error"]
    alone = ts.decode(target, problems(5, skip=9), **told)
    assert [row["text"] for row in rows if "text" in row] == alone.texts
    assert all(row["manifest"]["drafter"] == "tiny" and row["drafter_calls"] for row in rows if "text" in row)
    cut.write_bytes(whole.read_bytes()[: len(whole.read_bytes()) // 2])
    run_file(source, cut, target, told, batch_rows=3, report=io.StringIO())
    assert cut.read_bytes() == whole.read_bytes()
    with pytest.raises(TrajspecError, match="another draft_length"):
        run_file(source, cut, target, told | {"draft_length": 3}, batch_rows=3, report=io.StringIO())


def test_the_command_line_takes_files_too(tmp_path, capsys):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"messages": problems(1)[0]}) + "\n")
    argv = ["decode", "--model", "tiny-ar", "--drafter", "tiny", "--gen-length", "24"]
    assert main([*argv, "--input", str(source), "--output", str(out)]) == 0
    assert json.loads(out.read_text())["policy"] == "autoregressive"
    assert main([*argv, "sort $53 $23 $85"]) == 0
    assert "drafted tokens" in capsys.readouterr().out
    for more, message in (
        (["--cache", "dual", "sort"], "without --infill"),
        (["--drafts", "100", "sort"], "at most 64"),
        (["--nodes", "4", "sort"], "--nodes"),
    ):
        assert main([*argv, *more]) == 2 and message in capsys.readouterr().err
    assert main(["decode", "--draft-length", "4", "sort"]) == 2
    assert "--draft-length is about drafts" in capsys.readouterr().err
