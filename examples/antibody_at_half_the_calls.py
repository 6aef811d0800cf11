"""Fill in an antibody with real weights in half the calls: the same residues, in the same order.

    python examples/antibody_at_half_the_calls.py
"""

import trajspec as ts

# Trastuzumab's heavy chain from its 21st residue on is unknown but for the length.
HEAVY = "EVQLVESGGGLVQPGGSLRL" + "_" * 100

if __name__ == "__main__":
    model = ts.load_model("antiberty")
    base = ts.infill(model, HEAVY, threshold=0.9)[0]
    fast = ts.infill(model, HEAVY, threshold=0.9, draft="tree", nodes=8)[0]
    assert fast.path == base.path
    print(fast.text)
    for name, row in (("the policy alone", base), ("with a tree of 8 states", fast)):
        print(f"{name}: {row.calls} calls, {row.rows} rows, {row.positions} positions")
    print(f"{1 - fast.calls / base.calls:.0%} fewer calls for {base.base_steps} steps of the policy")
    # How far the assumption holds that a packed call gives the numbers of a single one, here and now.
    print(ts.compare_calls(model, HEAVY[:60], threshold=0.9, draft="tree"))
