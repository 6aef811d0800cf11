"""Plans with cached views: their text, and what is refused before any call."""

from __future__ import annotations

import pytest

import trajspec as ts
from trajspec.ir import TrajspecError, parse
from trajspec.ir.views import VIEWS
from trajspec.policies import POLICIES

WITHOUT = {
    "wino", "dream_maskgit_plus", "dream_topk_margin", "dream_entropy", "dream_origin", "dpad", "apd", "mdlm", "remdm",
    "diffusion_gemma", "autoregressive",
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", [name for name in POLICIES if name not in WITHOUT])
def test_plans_with_views_read_back(name, view):
    plan = POLICIES[name].bind(block_length=4).plan(view)
    written = str(plan)
    assert f"view={view}" in written.replace("'", "").replace('"', "")
    back = parse(written)
    assert back == plan
    assert str(back) == written
    assert plan != POLICIES[name].bind(block_length=4).plan()


@pytest.mark.parametrize("view", ["prefix", "dual"])
def test_the_text_of_a_cached_plan(golden, view):
    golden(f"fastdllm_threshold_{view}", str(POLICIES["fastdllm_threshold"].plan(view)))


@pytest.mark.parametrize("name", ["dream_entropy", "dream_origin"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_needs_a_window(name, view):
    with pytest.raises(TrajspecError, match=f"{name}: view {view} takes its block from the policy's window.*has none"):
        POLICIES[name].plan(view)


@pytest.mark.parametrize("policy", [POLICIES["wino"], POLICIES["llada_low_confidence"].bind(cfg_scale=1.5)], ids=str)
def test_a_view_takes_one_query(policy):
    with pytest.raises(TrajspecError, match="view dual takes one query, the canvas"):
        policy.plan("dual")


def test_a_query_that_nobody_reads_is_no_query():
    assert "forward_cached" in str(POLICIES["llada_low_confidence"].bind(cfg_scale=0.0).plan("dual"))


def test_unknown_views_are_named():
    with pytest.raises(TrajspecError, match="view is duel, expected prefix, dual, block_causal"):
        POLICIES["fastdllm_threshold"].plan("duel")
    written = str(POLICIES["fastdllm_threshold"].plan("dual"))
    with pytest.raises(TrajspecError, match="view is duel, expected prefix, dual, block_causal"):
        parse(written.replace("view=dual", "view=duel").replace("dual'", "duel'").replace('dual"', 'duel"'))


def test_block_causal_needs_a_size():
    policy = POLICIES["fastdllm_threshold"].bind(block_length=None)
    with pytest.raises(TrajspecError, match="block_causal needs size, .* give the policy a block_length"):
        policy.plan("block_causal")
    assert "size=None" not in str(policy.bind(block_length=3).plan("block_causal"))
    assert policy.plan("dual").name == "fastdllm_threshold"  # one block for everything is fine there


def test_a_window_may_be_of_several_sizes():
    @ts.policy
    def two(x, logits):
        """Looks at blocks of two and of four."""
        token, conf = ts.score(logits)
        near = ts.top(conf, 1, where=ts.window(x, size=2))
        return ts.unmask(x, token, where=near & ts.window(x, size=4))

    assert "size=4" in next(line for line in str(two.plan("dual")).splitlines() if "forward_cached" in line)
