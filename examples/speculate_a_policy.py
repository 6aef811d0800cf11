"""Write a policy and a drafter of your own; speculation is derived for the one, the other only chooses what to try.

python examples/speculate_a_policy.py
"""

import numpy as np

import trajspec as ts


@ts.policy
def calm(x, logits, *, block_length=32, threshold=0.999):
    """Commit what is sure, at most four tokens a step, and always the surest."""
    here = ts.window(x, size=block_length)
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, 4, where=here & (conf >= threshold)) | ts.top(conf, 1, where=here))


@ts.drafter
def left_to_right(x, logits, *, nodes=8):
    """One trajectory: the masked positions from the left, one after the other, each with its likeliest token."""
    known = np.flatnonzero(x.masked & ~np.isnan(logits).any(axis=-1))
    return [[{int(place): int(logits[place].argmax())} for place in known[: nodes - 1]]]


if __name__ == "__main__":
    print(ts.speculate(calm, "tree", view="dual"))
    question = [[{"role": "user", "content": "zoe has 13 pens finds 14 loses 12 ?"}]]
    options = {"policy": calm, "cache": "dual", "gen_length": 48}
    base = ts.decode("tiny", question, **options)[0]
    print(f"{base.text}\n    {base.calls} calls")
    for draft in (left_to_right, "chain", "tree"):
        # The path is the base's own, step by step, whatever the drafter; require_exact runs the base as well to see it.
        row = ts.decode("tiny", question, draft=draft, nodes=8, require_exact=True, **options)[0]
        assert row.path == base.path
        name = row.drafter
        print(f"{name}: {row.base_steps} base steps in {row.calls} calls; {row.accepted} of {row.drafted} states used")
    print(row.certificate["text"])
