"""A decoding policy of one's own, run on a real pretrained model.

    python examples/write_a_policy.py
"""

import trajspec as ts


@ts.policy
def outside_in(x, logits, *, threshold=0.9):
    """Commit what is surer than the threshold; when nothing is, the surest of the outermost masks."""
    token, conf = ts.score(logits)
    masked = ts.masked(x)
    edge = ts.first(1, where=masked) | (masked & ~ts.first(ts.count(masked) - 1, where=masked))
    sure = masked & (conf >= threshold)
    return ts.unmask(x, token, where=ts.choose(ts.any(sure), sure, ts.top(conf, 1, where=edge)))


ANTIBODY = "EVQLVESGGGLVQPGGSLRLSCAAS________WVRQAPGKGLEWVA__________YADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"

if __name__ == "__main__":
    model = ts.load_model("antiberty")
    for policy in (outside_in, outside_in(threshold=0.5), "threshold"):
        row = ts.infill(model, ANTIBODY, policy=policy)[0]
        print(f"{row.text}  {row.calls} calls  {policy}")
