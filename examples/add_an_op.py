"""An op the library does not have: one line of signature, one sentence, one numpy meaning.

    python examples/add_an_op.py
"""

import numpy as np

import trajspec as ts


@ts.op("beside(where: selection) -> beside: selection")
def beside(where):
    """The positions next to one that is not in the selection."""
    rest = ~where
    left = np.concatenate([rest[..., :1], rest[..., :-1]], axis=-1)
    right = np.concatenate([rest[..., 1:], rest[..., -1:]], axis=-1)
    return where & (left | right)


@ts.policy
def grow(x, logits, *, threshold=0.8):
    """Commit only next to what is known, and always the surest such position."""
    token, conf = ts.score(logits)
    front = ts.beside(ts.masked(x))
    return ts.unmask(x, token, where=front & (conf >= threshold) | ts.top(conf, 1, where=front))


if __name__ == "__main__":
    print(grow.plan())
    row = ts.infill("antiberty", "EVQLVESGGGLVQPGGSLRLSCAAS________WVRQAPGKGLEWVA", policy=grow)[0]
    print(row.text, f"{row.calls} calls")
    for step in row.path:
        print("  committed at", [position for position, _ in step])
