"""cache=: its spellings, what it changes in results and on the command line, and where it is refused."""

from __future__ import annotations

import json

import pytest

import trajspec as ts
from tests.runtime.models.completion import save_llada, save_tokenizer
from tests.toys import Counting, text_model
from trajspec.cli import main
from trajspec.exact.tabular import FixedModel
from trajspec.options import choose_view

MODEL = FixedModel([(3, 2.0), (4, 1.0), (2, 3.0), (1, 2.5), (5, 0.5), (6, 0.1)])


@pytest.mark.parametrize(
    ("options", "view"),
    [
        ({}, "full"),
        ({"cache": None}, "full"),
        ({"cache": "full"}, "full"),
        ({"cache": "none"}, "full"),
        ({"cache": False}, "full"),
        ({"cache": "prefix"}, "prefix"),
        ({"cache": "Dual"}, "dual"),
        ({"cache": "block-causal"}, "block_causal"),
        ({"cache": True}, "prefix"),
        ({"use_cache": True}, "prefix"),
        ({"use_cache": False}, "full"),
        ({"use_cache": False, "dual_cache": False}, "full"),
        ({"use_cache": True, "dual_cache": False}, "prefix"),
        ({"use_cache": True, "dual_cache": True}, "dual"),
        ({"use_cache": True, "dual_cache": None}, "prefix"),
        ({"dual_cache": True}, "dual"),
        ({"use_cache": "prefix"}, "prefix"),
        ({"use_cache": "dual"}, "dual"),
        ({"use_cache": "dual", "dual_cache": True}, "dual"),
        ({"cache": "dual", "use_cache": "dual"}, "dual"),
    ],
)
def test_spellings(options, view):
    rest = {"steps": 3} | options
    assert choose_view(rest) == view
    assert rest == {"steps": 3}


@pytest.mark.parametrize(
    "options",
    [
        {"cache": "prefix", "use_cache": "dual"},
        {"cache": "prefix", "dual_cache": True},
        {"cache": "full", "use_cache": True},
        {"cache": "dual", "use_cache": False},
        {"use_cache": "prefix", "dual_cache": True},
        {"use_cache": "dual", "dual_cache": False},
        {"use_cache": False, "dual_cache": True},
        {"cache": False, "dual_cache": True},
    ],
)
def test_clashes(options):
    with pytest.raises(ts.TrajspecError, match="ask for different views; give one") as error:
        choose_view(dict(options))
    assert all(f"{name}={value!r}" in str(error.value) for name, value in options.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "duel"}, "cache is 'duel', expected full, prefix, dual or block_causal"),
        ({"use_cache": "yes"}, "use_cache is 'yes'"),
        ({"cache": 1}, "cache is 1"),
        ({"use_cache": []}, r"use_cache is \[\]"),
        ({"dual_cache": "dual"}, "dual_cache is 'dual', expected True or False"),
        ({"dual_cache": 1, "use_cache": True}, "dual_cache is 1"),
    ],
)
def test_values_that_nobody_knows(options, message):
    model = Counting(MODEL)
    with pytest.raises(ts.TrajspecError, match=message):
        ts.decode(model, [3], gen_length=2, **options)
    assert model.calls == 0


@pytest.mark.parametrize(
    ("view", "spellings"),
    [
        ("prefix", [{"cache": "prefix"}, {"use_cache": True}, {"use_cache": "prefix"}]),
        ("dual", [{"cache": "dual"}, {"use_cache": True, "dual_cache": True}, {"use_cache": "dual"}]),
    ],
)
def test_both_dialects_decode_alike(view, spellings):
    rows = [ts.decode(MODEL, [3], gen_length=4, steps=4, block_length=2, **options)[0] for options in spellings]
    for row in rows:
        assert (row.cache, row.manifest["cache"]) == (view, view)
        # A block of two: its first call looks at everything, its second at the block.
        assert {kind: count for kind, count in row.calls_by_kind.items() if count} == {"refresh": 2, "step": 2}
        assert (row.calls, row.rows) == (4, 4)
        assert "forward_cached" in row.manifest["plan"]
        assert row.manifest == rows[0].manifest and row.path == rows[0].path
    assert rows[0].positions == {"prefix": 5 + 4 + 5 + 2, "dual": 5 + 2 + 5 + 2}[view]


def test_the_full_view_keeps_nothing():
    row = ts.decode(MODEL, [3], gen_length=4, steps=4, block_length=2, cache="full")[0]
    assert (row.cache, row.calls_by_kind["step"], row.calls_by_kind["refresh"]) == ("full", 4, 0)
    assert "forward_cached" not in row.manifest["plan"]
    assert row.manifest["plan"] == ts.decode(MODEL, [3], gen_length=4, steps=4, block_length=2)[0].manifest["plan"]


def test_block_causal_stores_finished_blocks():
    row = ts.decode(MODEL, [3, 4], gen_length=4, steps=4, block_length=2, cache="block_causal")[0]
    assert (row.cache, row.calls_by_kind["prefill"], row.calls_by_kind["store"]) == ("block_causal", 1, 1)


@pytest.mark.parametrize("view", ["prefix", "dual", "block_causal"])
def test_a_model_without_stored_keys_is_refused_before_any_call(view):
    def never(tokens, positions, visible):
        raise AssertionError("called")

    model = text_model("abcd")
    object.__setattr__(model, "denoise", never)
    plan = ts.policies.get_policy("fastdllm_threshold").plan(view)
    for options in ({"cache": view, "threshold": 0.5}, {"policy": plan}, {"policy": str(plan)}):
        with pytest.raises(ts.TrajspecError, match=f"cache='{view}': letters cannot work on kept keys; .*cache='full'"):
            ts.decode(model, "", gen_length=4, **options)
    with pytest.raises(AssertionError, match="called"):
        ts.decode(model, "", gen_length=4, cache="full")


@pytest.mark.parametrize("view", ["prefix", "dual", "block_causal"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "wino"}, "wino: view .* takes one query, the canvas"),
        ({"policy": "llada_low_confidence", "steps": 4, "cfg_scale": 1.0}, "view .* takes one query"),
        ({"policy": "dream_entropy", "steps": 4}, "takes its block from the policy's window, and this policy has none"),
    ],
)
def test_policies_that_no_cached_view_can_serve(view, options, message):
    model = Counting(MODEL)
    with pytest.raises(ts.TrajspecError, match=message) as error:
        ts.decode(model, [3], gen_length=4, cache=view, **options)
    assert "full" in str(error.value)
    assert model.calls == 0


def test_a_plan_with_a_cached_view_decodes():
    policy = ts.policies.get_policy("fastdllm_threshold").bind(threshold=0.6, block_length=2)
    asked = ts.decode(MODEL, [3], gen_length=4, policy=policy, cache="dual")[0]
    for plan in (policy.plan("dual"), str(policy.plan("dual"))):
        row = ts.decode(MODEL, [3], gen_length=4, policy=plan)[0]
        assert (row.cache, row.manifest["cache"], row.path) == ("dual", "dual", asked.path)
        assert row.calls_by_kind == asked.calls_by_kind
        with pytest.raises(TypeError, match="a plan takes no options, got 'cache'"):
            ts.decode(MODEL, [3], gen_length=4, policy=plan, cache="prefix")


def test_a_manifest_with_a_view_is_enough_to_run_it_again():
    row = ts.decode(MODEL, [3], gen_length=4, threshold=0.4, block_length=2, cache="prefix")[0]
    told = json.loads(json.dumps(row.manifest))
    again = ts.decode(MODEL, [told["prompt"]], policy=told["plan"], gen_length=4)[0]
    assert (again.path, again.calls_by_kind, again.cache) == (row.path, row.calls_by_kind, "prefix")


# The command line


@pytest.mark.parametrize("view", ["prefix", "dual", "block_causal"])
def test_explain_shows_the_cached_call(view, capsys):
    assert main(["explain", "--policy", "threshold", "--cache", view]) == 0
    text = capsys.readouterr().out
    assert "forward_cached" in text and f"view={view}" in text
    assert str(ts.parse(text)) == text
    assert main(["explain", "--policy", "threshold"]) == 0
    assert "forward_cached" not in capsys.readouterr().out


def test_explain_refuses_what_decode_refuses(capsys, tmp_path):
    assert main(["explain", "--policy", "wino", "--cache", "dual"]) == 2
    assert "takes one query" in capsys.readouterr().err
    path = tmp_path / "mine.py"
    path.write_text("import trajspec as ts\nplan = ts.policies.get_policy('threshold').plan()\n")
    assert main(["explain", "--policy", f"{path}:plan", "--cache", "dual"]) == 2
    assert "is a plan, which has no parameters; got cache" in capsys.readouterr().err
    assert main(["explain", "--policy", f"{path}:plan"]) == 0


def test_decode_takes_the_view(capsys, tmp_path):
    save_llada(tmp_path)
    save_tokenizer(tmp_path)
    argv = ["decode", "--infill", "the <|mask|><|mask|> a <|mask|><|mask|>", "--model", str(tmp_path)]
    argv += ["--steps", "6", "--block-length", "3"]
    for view in ("prefix", "dual"):
        assert main([*argv, "--cache", view]) == 0
        assert f"; llada_low_confidence, cache {view};" in capsys.readouterr().out
        assert main([*argv, "--cache", view, "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert (row["cache"], row["manifest"]["cache"], row["answer_tokens"]) == (view, view, 4)
        assert row["calls"] == row["calls_by_kind"]["refresh"] + row["calls_by_kind"]["step"] == 4
        assert row["calls_by_kind"]["refresh"] >= 2
    assert main(argv) == 0
    assert "cache" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*argv, "--cache", "duel"])


def test_decode_refuses_the_view_for_a_model_without_stored_keys(capsys, monkeypatch):
    monkeypatch.setattr("trajspec.runtime.denoiser.load_model", lambda name, dtype, device: text_model("abcd"))
    assert main(["decode", "", "--model", "x", "--gen-length", "4", "--cache", "dual"]) == 2
    assert "letters cannot work on kept keys; decode with cache='full'" in capsys.readouterr().err
