"""Prophet: commit everything as soon as the answer is clear (Li et al., arXiv 2508.19982; pixeli99/Prophet)."""

from __future__ import annotations

import trajspec as ts


@ts.policy
def prophet(
    x, logits, *, steps=None, block_length=32, temperature=0.0, answer_start=None, answer_length=5,
    gap_thresholds=(7.5, 5.0, 2.5),
):  # fmt: skip
    """Commit by the even schedule, and all that is left once the logit gap over the answer is wide enough (Prophet).

    The answer is `answer_length` positions from `answer_start` on (None: the whole generated part).
    """
    token = ts.sample(x, logits, temperature=temperature)
    conf = ts.confidence(logits, token)
    answer, place = ts.free(x), ts.position(x)
    if answer_start is not None:
        answer = (place >= answer_start) & (place < answer_start + answer_length)
    done = (ts.step(x) + 1) / (ts.count(ts.free(x)) if steps is None else steps)
    early, middle, late = gap_thresholds
    limit = ts.choose(done < 0.33, early, ts.choose(done < 0.67, middle, late))
    clear = ts.mean(ts.gap(logits), where=answer) >= limit
    best = ts.top(conf, ts.quota(x, steps=steps, size=block_length), where=ts.window(x, size=block_length))
    return ts.unmask(x, token, where=ts.choose(clear, ts.masked(x), best))
