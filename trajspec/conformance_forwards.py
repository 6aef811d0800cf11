"""What a recorded file says about its forwards: which of them the rule needs, and which fill caches."""

from __future__ import annotations

from typing import Any


def spare(case: dict[str, Any]) -> set[int] | None:
    """The recorded forwards that the rule does not need: they found a complete block, or filled a cache."""
    if "empty_forwards" in case:
        return {number for number, changes in enumerate(case["steps"]) if not changes}
    if "block_of_forward" in case:
        blocks = case["block_of_forward"]
        return {at for at, block in enumerate(blocks) if blocks[at + 1 : at + 2] != [block]}
    if "denoising_steps" in case["params"]:
        return {at for at, (_, _, stores) in enumerate(case["forwards"]) if stores}
    return None


def stores(case: dict[str, Any]) -> int | None:
    """The calls that fill a block-causal cache: the prompt's whole blocks, and every block that another one follows."""
    if "block_of_forward" in case:
        whole = len(case["prompt"]) >= case["params"]["block_length"]
        return whole + len(set(case["block_of_forward"])) - 1
    if "denoising_steps" in case["params"]:
        return sum(stores for _, _, stores in case["forwards"]) - 1
    return None


def without(spare: set[int], case: dict[str, Any]) -> dict[str, Any]:
    """The recorded run without the forwards of `spare`, none of which changed the canvas."""
    busy = [number for number in range(case["nfe"]) if number not in spare]
    told = {
        "final": case["final"],
        "nfe": len(busy),
        "commit_step": [None if step is None else busy.index(step) for step in case["commit_step"]],
        "steps": [case["steps"][number] for number in busy],
    }
    if "states" in case:
        told["states"] = [*(case["states"][number] for number in busy), case["states"][-1]]
    return told


def filled(case: dict[str, Any]) -> range:
    """The positions that an end of sequence before them filled: no forward's logits did."""
    return range(*(case.get("eos_fill") or (0, 0)))
