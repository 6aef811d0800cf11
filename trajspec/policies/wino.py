"""WINO: commit widely, then take back what a second look does not confirm (Hong et al., arXiv 2507.18578)."""

from __future__ import annotations

from typing import Any

import trajspec as ts


def second_look(x: Any, *, block_length: int | None) -> Any:
    """A mask beside every position of the block, which does not see the token there: what the model thinks of it."""
    return ts.twins(x, where=ts.block(x, size=block_length), size=block_length)


@ts.policy
def wino(
    x, logits, look=ts.query(second_look), last=ts.history("count", start=30), *, block_length=32, threshold=0.6,
    threshold_back=0.9,
):  # fmt: skip
    """Commit the tokens of the block above the threshold, mask again those a second look doubts (WINO)."""
    here, block = ts.window(x, size=block_length), ts.block(x, size=block_length)
    token, conf = ts.score(logits)
    cap = ts.least(ts.most(ts.floor(0.7 * ts.count(here)), 5), 20)
    wide = ts.top(conf, cap, where=here & (conf > threshold))
    chosen = ts.choose(ts.any(wide), wide, ts.top(conf, 1, where=here))
    doubt = ts.confidence(look, ts.tokens(x))
    weak = block & ts.free(x) & ~ts.masked(x) & (doubt < threshold_back)
    # Fewer are taken back than the step before committed, so every block ends.
    limit = ts.choose(ts.block_step(x) == 0, 30, last) - 1
    back = ts.bottom(doubt, limit, where=weak) & (ts.count(chosen) > 1)
    return ts.remask(ts.unmask(x, token, where=chosen), where=back), ts.count(chosen)
