"""Hypothesis strategies for policies with their parameters, and for rows to decode."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.strategies import seeds, small_models
from tests.toys import Shelf
from trajspec.ir import Canvas, Policy, canvas
from trajspec.policies import POLICIES

BLOCKS = st.sampled_from([None, 1, 2, 3, 4])
STEPS = st.sampled_from([None, 1, 2, 3, 5, 9])
COLD = st.sampled_from([0.0, 0.0, 0.7, 3.0])
PARAMETERS: dict[str, st.SearchStrategy] = {
    "block_length": BLOCKS,
    "steps": STEPS,
    "block_steps": st.sampled_from([1, 2, 4]),
    "temperature": COLD,
    "cfg_scale": st.sampled_from([0.0, 1.5]),
    "threshold": st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    "factor": st.sampled_from([0.3, 1.0, 3.0]),
    "threshold_back": st.sampled_from([0.2, 0.5, 0.9, 1.0]),
    "eps": st.sampled_from([1e-3, 0.1]),
    "top_p": st.sampled_from([None, 0.4, 0.9]),
    "top_k": st.sampled_from([None, 1, 2]),
    "alg_temp": st.sampled_from([0.0, 0.1, 2.0]),
    "conf_threshold": st.sampled_from([0.2, 0.6]),
    "kl_threshold": st.sampled_from([0.01, 10.0]),
    "kl_history_length": st.sampled_from([1, 2]),
    "gamma": st.sampled_from([0.0, 0.1, 1.0]),
    "margin": st.sampled_from([0.0, 0.25, 0.75]),
    "low_threshold": st.sampled_from([0.1, 0.4]),
    "credit_alpha": st.sampled_from([0.0, 0.7, 3.0]),
    "boost_gamma": st.sampled_from([0.2, 1.0]),
    "decay_beta": st.sampled_from([0.0, 0.8]),
    "answer_start": st.sampled_from([None, 0, 3]),
    "answer_length": st.sampled_from([1, 5]),
    "gap_thresholds": st.sampled_from([(7.5, 5.0, 2.5), (1.0, 0.5, 0.1)]),
    "denoising_steps": st.sampled_from([1, 2, 4]),
    "edit_threshold": st.sampled_from([0.0, 0.3, 0.8]),
    "max_post_edit_steps": st.sampled_from([0, 2, 5]),
    "penalty_lambda": st.sampled_from([0.0, 0.5]),
    "dropout": st.sampled_from(["gaussian", "uniform"]),
    "sigma": st.sampled_from([0.0, 1.0, 4.0]),
    "scale": st.sampled_from([0.5, 2.0]),
    "window": st.sampled_from([1, 3, 256]),
    "preserved_tokens": st.sampled_from([0, 1, 3]),
    "small_block_size": st.sampled_from([1, 2, 8]),
    "apd_mixture_weight": st.sampled_from([None, 0.0, 0.4, 0.7, 1.0]),
    "max_lookahead": st.sampled_from([None, 1, 2, 4]),
    "tokens_per_step": st.sampled_from([1, 3]),
    "strategy": st.sampled_from(["cap", "rescale", "conf", "loop", "forward_backward", "none"]),
    "eta": st.sampled_from([0.0, 0.1, 0.5]),
    "t_on": st.sampled_from([0.55, 0.8]),
    "t_off": st.sampled_from([0.05, 0.3]),
    "alpha_on": st.sampled_from([0.5, 0.9]),
    "repetition_penalty": st.sampled_from([1.0, 1.5]),
    "unmask_strategy": st.sampled_from(["all", "max_conf", "min_kl", "random"]),
}
#: Policies that show a model tokens alone; those that show it logits as well need a model that reads them.
OF_TOKENS = tuple(
    name for name, policy in POLICIES.items() if not any(item.op.name == "soften" for item in policy.plan().nodes())
)
#: Of these, the ones that ask one model, which is what can be speculated.
ALONE = tuple(name for name in OF_TOKENS if not POLICIES[name].plan().models)
#: What is left as it is: flags about ids that only some models have.
FIXED = {"logits_eos_inf", "confidence_eos_eot_inf", "eos_id", "eot_id", "early_termination", "stop_id"}


@st.composite
def rules(draw: st.DrawFn, names: tuple[str, ...] = OF_TOKENS) -> Policy:
    """A policy of the library with arbitrary parameters."""
    policy = POLICIES[draw(st.sampled_from(names))]
    settings = {name: draw(PARAMETERS[name]) for name in policy.settings if name not in FIXED}
    if policy.name.startswith("dream") or policy.name in ("mdlm", "remdm"):
        settings["steps"] = settings["steps"] or 6  # the linear schedule has no "one a step"
    if policy.name.startswith("sdar"):
        settings["block_length"] = settings["block_length"] or 6  # its steps share the length of a block
    return policy.bind(**settings)


@st.composite
def rows(draw: st.DrawFn, model: Any, most: int = 9) -> Canvas:
    """A row to continue or to fill in: prompts of all lengths that may hold the mask id, stop ids, allowed sets."""
    vocab, mask_id = model.vocab_size, model.mask_id
    prompt = draw(st.lists(st.integers(0, vocab - 1), max_size=4))
    others = [token for token in range(vocab) if token != mask_id]
    stop = draw(st.sampled_from([(), (others[0],), tuple(others[:2])]))
    options: dict[str, Any] = {"seed": draw(seeds), "stop": stop}
    if draw(st.integers(0, 3)) == 0:
        # Filling in: masks anywhere.
        length = draw(st.integers(1, most))
        tokens = draw(st.lists(st.integers(0, vocab - 1), min_size=length, max_size=length))
        options |= {"masked": draw(st.lists(st.booleans(), min_size=length, max_size=length)), "stop": ()}
    else:
        tokens, options["gen_length"] = prompt, draw(st.integers(1, most - len(prompt)))
    total = len(tokens) + options.get("gen_length", 0)
    if draw(st.integers(0, 4)) == 0:
        options["allowed"] = {draw(st.integers(0, total - 1)): [draw(st.sampled_from(others))]}
    return canvas(tokens, vocab_size=vocab, mask_id=mask_id, **options)


@st.composite
def shelves(draw: st.DrawFn) -> Shelf:
    """Models whose positions tie bit for bit: one answer for all, a few, or many."""
    return Shelf(draw(small_models((50,))), draw(st.sampled_from([1, 2, 3, 40])), draw(st.integers(0, 2**16)))


@st.composite
def runs(
    draw: st.DrawFn,
    count: int = 1,
    names: tuple[str, ...] = OF_TOKENS,
    models: st.SearchStrategy = small_models(),  # noqa: B008
) -> tuple[Any, Policy, list[Canvas]]:
    """A model, a policy and rows."""
    model = draw(models)
    return model, draw(rules(names)), [draw(rows(model)) for _ in range(count)]
