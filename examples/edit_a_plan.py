"""A policy is a small program: read it, change its text, run the changed one.

    python examples/edit_a_plan.py
"""

import numpy as np

import trajspec as ts
from trajspec.policies import fastdllm_threshold


class Toy:
    """A denoiser in a few lines of numpy: the answer to position p is token p % 7, surer the fewer masks are left."""

    vocab_size, mask_id = 8, 7

    def __call__(self, tokens, positions, visible):
        logits = np.zeros((*tokens.shape, self.vocab_size))
        sure = 6 - 5 * (tokens == self.mask_id).mean(axis=1, keepdims=True) + (positions % 3)
        np.put_along_axis(logits, (positions % 7)[..., None], sure[..., None], axis=-1)
        return logits


if __name__ == "__main__":
    plan = fastdllm_threshold(threshold=0.9, block_length=8).plan()
    print(plan)

    # The text is the program: lower the threshold, and look at whole canvas instead of blocks of eight.
    edited = ts.parse(str(plan).replace("0.9", "0.6").replace("window(x, size=8)", "window(x)"))
    assert ts.parse(str(edited)) == edited

    for each in (plan, edited):
        row = ts.decode(Toy(), [1, 2, 3], policy=each, gen_length=16)[0]
        print(row.token_ids, f"{row.calls} calls")

    # Reading a plan never runs anything, and says what is wrong with it.
    try:
        ts.parse(str(plan).replace("window(", "widow("))
    except ts.TrajspecError as error:
        print(error)
