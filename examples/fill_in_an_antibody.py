"""Fill in an antibody with a masked language model of 26M parameters, by several published policies.

    python examples/fill_in_an_antibody.py
"""

import trajspec as ts

# The variable domain of trastuzumab's heavy chain, its three binding loops masked.
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAAS________WVRQAPGKGLEWVARIY________YADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "___________WGQGTLVTVSS"
)

if __name__ == "__main__":
    model = ts.load_model("antiberty")
    for policy, options in (
        ("llada_low_confidence", {}),
        ("fastdllm_threshold", {"threshold": 0.9}),
        ("fastdllm_threshold", {"threshold": 0.6}),
        ("dream_entropy", {"steps": 9}),
        ("klass", {"conf_threshold": 0.6}),
        ("wino", {}),
    ):
        row = ts.infill(model, HEAVY, policy=policy, **options)[0]
        print(f"{row.text}\n    {policy} {options or ''}: {row.calls} calls, {row.tokens_per_call:.2f} residues a call")

    # Sampling: seeds belong to rows, so each variant can be made again alone.
    variants = ts.infill(model, HEAVY, temperature=1.0, seed=7, num_return_sequences=3)
    print(*variants.texts, sep="\n")

    # Residue 27 of the first loop must be aromatic, whatever the order of decoding.
    print(ts.infill(model, HEAVY, allowed={26: "FWY"}).text)
