"""Calls of every deterministic policy, alone and speculated with the tree, on both bundled models.

    python bench/policy_calls.py > bench/results/policy_calls.txt && python -m tools.policies_page

`tiny`: three unseen problems, one of each task, 48 tokens in blocks of 32, in the dual view where the policy has one;
`antiberty`: a heavy chain of 120 residues of which 40 are to be filled in, full view. Tree with 8 nodes, exact
look-ahead. The outputs are compared, step by step; a difference ends the program with an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/ is no part of the package

import trajspec as ts
from tools import tiny_data
from trajspec.exact.certificate import certify
from trajspec.ir import Policy, TrajspecError
from trajspec.passes import speculate
from trajspec.policies import POLICIES

CHAIN = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRY" + "_" * 40 + "GGDGFYAMDYWGQGTLVTVS"
)
HEAD = f"{'policy':24} {'model':9} {'view':5} {'base':>5} {'tree':>5} {'fewer':>6} {'rows':>5} {'positions':>9}"


def deterministic() -> list[Policy]:
    """The policies that draw no noise and can be speculated."""
    found = []
    for policy in POLICIES.values():
        try:
            if not certify(speculate(policy, "tree")).noise:
                found.append(policy)
        except TrajspecError:
            continue  # it asks a further model
    return found


def line(policy: Policy, model: Any, prompts: Any, **options: Any) -> str:
    """One line of the table. Raises SystemExit when the speculated run is not the policy's own."""
    view = "full"
    try:
        policy.plan("dual")
        view = "dual" if model.kind == "text" else "full"
    except TrajspecError:
        pass
    told = {"policy": policy.name, **options} | ({"cache": view} if view != "full" else {})
    alone = ts.decode(model, prompts, **told)
    ours = ts.decode(model, prompts, draft="tree", nodes=8, **told)
    if [row.path for row in ours] != [row.path for row in alone]:
        raise SystemExit(f"{policy.name} on {model.name}: the speculated run is another one")
    base, calls, rows, positions = (
        sum(getattr(row, name) for row in part)
        for part, name in ((alone, "calls"), (ours, "calls"), (ours, "rows"), (ours, "positions"))
    )
    name = Path(model.name).name
    return f"{policy.name:24} {name:9} {view:5} {base:>5} {calls:>5} {1 - calls / base:>6.0%} {rows:>5} {positions:>9}"


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--models", nargs="+", default=["tiny", "antiberty"], choices=["tiny", "antiberty"])
    args = reader.parse_args()
    torch.set_num_threads(1)
    print(HEAD)
    texts = [tiny_data.item(task, "test", 0).prompt for task in sorted(tiny_data.TASKS)]
    for name in args.models:
        model = ts.load_model(name)
        for policy in deterministic():
            if name == "tiny":
                chats = [[{"role": "user", "content": text}] for text in texts]
                print(line(policy, model, chats, gen_length=48, **blocks(policy)), flush=True)
            else:
                print(line(policy, model, [CHAIN], infill=True), flush=True)


def blocks(policy: Policy) -> dict[str, Any]:
    """Blocks of 32 for policies that have blocks."""
    return {"block_length": 32} if "block_length" in policy.settings else {}


if __name__ == "__main__":
    main()
