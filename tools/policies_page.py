"""Writes docs/policies.md from the code: what every policy is, takes, and is equal to.

    python -m tools.policies_page [--check]
"""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from pathlib import Path

from trajspec.exact.certificate import Certificate, certify
from trajspec.ir import Policy, TrajspecError
from trajspec.methods import METHODS
from trajspec.passes import speculate
from trajspec.policies import ALIASES, POLICIES
from trajspec.policies.compat import COMPAT

PAGE = Path(__file__).parents[1] / "docs" / "policies.md"
TABLE = Path(__file__).parents[1] / "bench" / "results" / "policy_calls.txt"
CALLS = (
    "Of every deterministic policy, alone and with the tree of 8 nodes and exact look-ahead; same path in every line\n"
    "(`python bench/policy_calls.py`). `tiny`: three unseen problems, 48 tokens, blocks of 32; `antiberty`: 40 of 120\n"
    "residues of a heavy chain."
)

#: What the published samplers do that their papers do not say, and what this library does instead.
FAULTS = {
    "llada_low_confidence": (
        "The softmax runs in the logits' own type, so that sure tokens tie in bf16 and the order is that of "
        "torch.topk. With `confidence_eos_eot_inf` at temperature 0 EOS leaves the softmax after the argmax "
        "was taken. All steps run, also those that commit nothing."
    ),
    "fastdllm_factor": "When the test fails at the last candidate only, everything is committed, however unsure.",
    "fastdllm_threshold": (
        "The dual loop stops after steps / blocks forwards with masks left; older loops make one more forward "
        "for a block that is already full."
    ),
    "dream_maskgit_plus": (
        "The number of tokens a step is a mean over the batch, so a row depends on its neighbours; an error "
        "while sampling makes the whole call greedy without a word."
    ),
    "dream_topk_margin": "As dream_maskgit_plus.",
    "dream_entropy": "As dream_maskgit_plus.",
    "dream_origin": "As dream_maskgit_plus.",
    "klass": "A block that has used up its steps is left with the masks it has.",
    "wino": "Unsound on models with shifted logits: the entry before a twin sees the true token; refused there.",
    "sdar_dynamic": (
        "A threshold that nothing reaches falls back on the schedule's number; picks beyond the masks write "
        "to tokens that are known."
    ),
    "sglang_joint_threshold": (
        "The loop may go round in circles on a model that disagrees with itself: it is ended here by the "
        "number of edits after completion, and refused when it has not ended after 16,384 steps."
    ),
    "dinfer_credit": "The prediction of the mask id is committed, and its loop then never ends.",
    "apd": "The published temperature acts twice (T squared).",
    "diffusion_gemma": (
        "transformers' `generate` draws from the global generator, and rows that have ended go on drawing, so a row "
        "depends on its batch; compiled, it keeps the first call's entropy bound for all later ones."
    ),
    "mdlm": (
        "The published sampler keeps the last prediction while no token changed (`ddpm_cache`), by `torch.allclose` on "
        "ids, which takes 126336 for 126335. Here `draft=\"frozen\"` does that, exactly, and looks ahead as well: 32 "
        "tokens in 512 steps take `tiny` 510 calls, 34 with that cache, 10 with 64 states a call."
    ),
    "fastdllm_v2": "A prompt of exactly one block is never shown to the model.",
}

#: What was not forced into a policy, and why.
OUTSIDE = {
    "LoPA": (
        "branches could be canvases kept as histories; its table of blocks that open, close and are cached "
        "while others run needs choices a block for a number of blocks known only while it runs, and its "
        "cached blocks go stale in a way that is none of the views."
    ),
    "LLaDA2.x insertions and deletions": (
        "they change the length of a row inside a block; positions and kept keys are fixed here."
    ),
    "DFlash, EAGLE": "their drafters read the hidden states of the target; a query gives tokens.",
    "DiffuSpec's path search": (
        "a beam search with an n-gram model; it is a drafter for an autoregressive target, not a policy."
    ),
    "trained policies": "a second network whose answer is a selection, not logits over the vocabulary.",
    "engine scheduling (dInfer's unrolling, rounds of SGLang)": (
        "changes the number of calls, not the tokens; recorded under compat names where a reference run shows "
        "it."
    ),
    "SEDD's analytic sampler": "score ratios in place of logits.",
}


def lines_of(policy: Policy) -> int:
    """Lines of the policy's function, from its first decorator to its end."""
    return len(inspect.getsource(policy.function).strip().splitlines())


def speculated(policy: Policy) -> Certificate | str:
    """The certificate of the policy under the tree drafter on the full view, or why there is none."""
    try:
        return certify(speculate(policy, "tree"))
    except TrajspecError as error:
        return str(error).split(";")[0]


def entry(policy: Policy) -> str:
    """The section of one policy."""
    aliases = sorted(alias for alias, name in ALIASES.items() if name == policy.name)
    parameters = ", ".join(f"`{name}={value!r}`" for name, value in policy.settings.items()) or "none"
    module = inspect.getmodule(policy.function)
    assert module is not None
    certificate = speculated(policy)
    if isinstance(certificate, str):
        nodes = list(policy.plan().nodes())
        noisy = {item.op.name for item in nodes} & {"uniform", "gumbel", "uniform_of"} or any(
            item.op.name == "sample" and item.attributes["temperature"] > 0 for item in nodes
        )
        drawn, exact = "no" if noisy else "yes", f"none: {certificate}"
    else:
        drawn = f"no: noise keyed by {certificate.noise}" if certificate.noise else "yes"
        level = certificate.plan_level.name
        assumed = ", ".join(one.id for one in certificate.assumes if one.status != "proved")
        exact = f"{level} ({assumed} assumed)" if assumed else level
    cached = "any view" if policy.window is not None or takes_cache(policy) else "full view"
    out = [
        f"### {policy.name}",
        "",
        policy.doc,
        "",
        f"* where: `{module.__name__.replace('.', '/')}.py`, {lines_of(policy)} lines; {cached}",
        f"* also called: {', '.join(f'`{alias}`' for alias in aliases) or 'nothing else'}",
        f"* parameters: {parameters}",
        f"* deterministic: {drawn}",
        f"* speculated: {exact}",
    ]
    quirks = {quirk: compat.doc for (name, quirk), compat in COMPAT.items() if name == policy.name}
    out += [f"* `compat=\"{quirk}\"`: {doc}" for quirk, doc in quirks.items()]
    if policy.name in FAULTS:
        out.append(f"* the reference: {FAULTS[policy.name]}")
    return "\n".join(out)


def takes_cache(policy: Policy) -> bool:
    """Whether the policy can be decoded with kept keys."""
    try:
        policy.plan("dual")
    except TrajspecError:
        return False
    return True


def page() -> str:
    """The whole page."""
    methods = [f"* `{one.name}`: {one.source}. {one.what[0].upper()}{one.what[1:]}." for one in METHODS.values()]
    outside = [f"* {name}: {why}" for name, why in OUTSIDE.items()]
    intro = (
        "Every policy of the library, as `python -m tools.policies_page` finds it in the code. A name or one of its "
        "other names goes in `policy=` or `--policy`; parameters are keywords, or `--set NAME=VALUE`. `speculated` "
        "is what `certify` says about the policy under a drafter, with the conditions that are assumed and not proved; "
        "`trajspec explain NAME --draft tree` says all of it. A quirk of the published code is behind a `compat` name, "
        "and never the default."
    )
    parts = [
        "# Policies",
        "\n".join(textwrap.wrap(intro, 118)),
        *[entry(policy) for policy in POLICIES.values()],
        "## Methods that guess ahead",
        "They take a policy and give its own result in fewer calls: `draft=\"NAME\"`, or `--draft NAME`.",
        "\n".join([*methods, "* Spiffy (arXiv 2509.18085): the drafter that `ts.calibrate` counts on a few prompts."]),
        "## Calls",
        CALLS,
        "```\n" + TABLE.read_text(encoding="utf-8").strip() + "\n```",
        "## What is no policy here",
        "\n".join(outside),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--check", action="store_true", help="only say whether the page is what the code gives")
    args = reader.parse_args()
    if not args.check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE.name} is not what the code gives; run: python -m tools.policies_page")


if __name__ == "__main__":
    main()
