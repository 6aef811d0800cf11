"""Break a speculative decoder on purpose, twice, and let the checker find out how.

python examples/break_and_check.py
trajspec check examples/break_and_check.py:hasty --against examples/break_and_check.py:surest_first
"""

import numpy as np

import trajspec as ts


@ts.policy
def surest_first(x, logits):
    """Commit the surest position, one a step."""
    token, conf = ts.score(logits)
    return ts.unmask(x, token, where=ts.top(conf, 1, where=ts.masked(x)))


def hasty(denoise, canvas, seed):
    """A hand-written decoder: draft from the left, keep what the model agrees with. It forgets the order.

    canvas int [L], -1 = masked; denoise(int [n, L]) -> float64 [n, L, V]. Returns every state of the path.
    """
    states = [canvas]
    while (states[-1] < 0).any():
        state = states[-1]
        token = denoise(state[None])[0].argmax(axis=-1)
        draft, place = state.copy(), np.flatnonzero(state < 0)[0]
        draft[place] = token[place]
        # The drafted token is the model's own choice there. But was it this position's turn?
        states.append(draft)
    return states


if __name__ == "__main__":
    good = ts.speculate(surest_first, "tree")
    print(ts.check(good, examples=300))

    print()
    print(ts.check(hasty, against=surest_first, examples=300))

    # The same kind of mistake as a setting of a plan: the certificate knows it without running anything.
    bad = ts.speculate(surest_first, "tree", accept="threshold", strata=(0.6,))
    print()
    print(ts.certify(bad))
    verdict = ts.check(bad, examples=300)
    print(verdict)
    assert verdict.verdict == "refuted"
