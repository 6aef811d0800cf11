"""A policy that the library does not have, whole in one file: the leftmost run of sure tokens.

    python examples/add_a_policy.py

Autoregressive models write from left to right. This policy does so as far as a masked model is sure, several tokens a
call: in the block it commits the masks from the left up to the first one that is not sure enough, and always one.
"""

import trajspec as ts


@ts.policy
def left_run(x, logits, *, block_length=32, threshold=0.9):
    """Commit the leftmost masks of the block up to the first unsure one."""
    here = ts.window(x, size=block_length)
    token, conf = ts.score(logits)
    unsure = here & (conf < threshold)
    place = ts.rank(-ts.position(x), where=here)
    n = ts.choose(ts.any(unsure), ts.total(place, where=ts.first(1, where=unsure)), ts.count(here))
    return ts.unmask(x, token, where=ts.first(ts.most(n, 1), where=here))


if __name__ == "__main__":
    told = {"policy": left_run, "gen_length": 48, "threshold": 0.9999, "cache": "dual"}
    chat = [[{"role": "user", "content": "zoe has 13 pens finds 14 ?"}]]
    alone = ts.decode("tiny", chat, **told)[0]
    ahead = ts.decode("tiny", chat, draft="frozen", **told)[0]
    print(alone.text)
    print(f"{alone.calls} calls; looking ahead with frozen logits {ahead.calls}, same path: {alone.path == ahead.path}")
    verdict = ts.check(ts.speculate(left_run, "frozen"), examples=200)
    print(verdict.verdict, f"after {verdict.examples} cases, {verdict.accepted} drafted states used")
