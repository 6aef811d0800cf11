"""The Triton kernels of `score_rows`: parts of rows in one pass over the vocabulary, and their merger.

Of a stretch of ids it keeps: m, the largest logit, and its first id; s, the sum of exp(l - m) over all *other* ids; the
second largest logit and its first id; t, the sum of exp(l - m) (l - m). With s the log confidence is -log1p(s), which
keeps an order among sure tokens. Two stretches are joined about the larger maximum: of the other one, d = m - m' below
it, the maximum is another id now, so its s becomes (s + 1) e^d and its t becomes (t + d (s + 1)) e^d.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def below(loser, winner):
    """d and e^d of the smaller of two maxima; 0 and 0 for one that is -inf, which has nothing to give."""
    d = tl.where(loser == float("-inf"), 0.0, loser - winner)
    return d, tl.where(loser == float("-inf"), 0.0, tl.exp(d))


@triton.jit(do_not_specialize=["mask_id", "count"])
def score_parts(
    logits, plane, reals, whole, size, mask_id, stride, step, count,
    MARGIN: tl.constexpr, ENTROPY: tl.constexpr, PLANE: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One part of one row: logits [R, V], plane bool [V] or [R, V] by `step`, reals [4, R, P], whole [3, R, P]."""
    row, part = tl.program_id(0), tl.program_id(1)
    mine = logits + row.to(tl.int64) * stride
    may = plane + row.to(tl.int64) * step
    none = float("-inf")
    top, others, second, moment = none, 0.0, none, 0.0
    token, token2, bad = size - 1, size - 1, 0
    for begin in range(part * PART, tl.minimum(part * PART + PART, size), BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < size
        value = tl.load(mine + at, mask=inside, other=none).to(tl.float32)
        # Neither NaN nor +inf is below +inf. Ids that are out count as well: the row is no prediction then.
        bad = tl.maximum(bad, tl.max((~(value < float("inf"))).to(tl.int32), axis=0))
        value = tl.where(at == mask_id, none, value)
        if PLANE:
            value = tl.where(tl.load(may + at, mask=inside, other=0) != 0, value, none)

        best = tl.max(value, axis=0)
        first = tl.min(tl.where(value == best, at, size - 1), axis=0)
        rest = tl.where(at == first, none, value)
        shifted = rest - tl.where(best == none, 0.0, best)
        each = tl.exp(shifted)
        here = tl.sum(each, axis=0)

        newer = best > top  # of equals the earlier id stays
        d, there = below(tl.where(newer, top, best), tl.where(newer, best, top))
        if ENTROPY:
            t = tl.sum(tl.where(each > 0, each * shifted, 0.0), axis=0)
            won, lost = tl.where(newer, t, moment), tl.where(newer, moment, t)
            moment = won + there * (lost + d * (tl.where(newer, others, here) + 1))
        if MARGIN:
            after = tl.max(rest, axis=0)
            after_id = tl.min(tl.where(rest == after, at, size - 1), axis=0)
            # Candidates: the maximum that lost, and the second of the stretch that won; the earlier one of equals.
            mine_first = tl.where(newer, top, second)
            first_id = tl.where(newer, token, token2)
            later, later_id = tl.where(newer, after, best), tl.where(newer, after_id, first)
            second = tl.maximum(mine_first, later)
            token2 = tl.where(later > mine_first, later_id, first_id)
        others = tl.where(newer, here + there * (others + 1), others + there * (here + 1))
        token = tl.where(newer, first, token)
        top = tl.maximum(top, best)

    place = row.to(tl.int64) * tl.num_programs(1) + part
    tl.store(reals + place, top)
    tl.store(reals + count + place, others)
    tl.store(whole + place, token)
    tl.store(whole + count + place, bad)
    if MARGIN:
        tl.store(reals + 2 * count + place, second)
        tl.store(whole + 2 * count + place, token2)
    if ENTROPY:
        tl.store(reals + 3 * count + place, moment)


@triton.jit(do_not_specialize=["parts", "count"])
def score_merge(
    reals, whole, token_out, conf_out, bad_out, empty_out, margin_out, token2_out, entropy_out, parts, count,
    MARGIN: tl.constexpr, ENTROPY: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The parts of one row joined, and its scores; `PARTS` is the power of two from `parts` up."""
    row = tl.program_id(0)
    here = tl.arange(0, PARTS)
    inside = here < parts
    place = row.to(tl.int64) * parts + here
    none = float("-inf")
    tops = tl.load(reals + place, mask=inside, other=none)
    tokens = tl.load(whole + place, mask=inside, other=2147483647)
    sums = tl.load(reals + count + place, mask=inside, other=0.0)
    bad = tl.max(tl.load(whole + count + place, mask=inside, other=0), axis=0) > 0

    top = tl.max(tops, axis=0)
    lost = bad | (top == none)
    token = tl.min(tl.where(tops == top, tokens, 2147483647), axis=0)
    # Ids are cut in order, so of equal maxima the first part has the lowest.
    won = here == tl.min(tl.where(tops == top, here, PARTS), axis=0)
    d, there = below(tops, top)
    others = tl.sum(there * tl.where(won, sums, sums + 1), axis=0)
    tl.store(token_out + row, tl.where(lost, 0, token).to(tl.int64))
    tl.store(conf_out + row, tl.where(lost, float("nan"), -log1p(others)))
    tl.store(bad_out + row, bad)
    tl.store(empty_out + row, (top == none) & ~bad)
    if MARGIN:
        seconds = tl.where(won, tl.load(reals + 2 * count + place, mask=inside, other=none), tops)
        ids = tl.where(won, tl.load(whole + 2 * count + place, mask=inside, other=2147483647), tokens)
        second = tl.max(seconds, axis=0)
        token2 = tl.min(tl.where(seconds == second, ids, 2147483647), axis=0)
        gap = one_less_exp(tl.where(lost | (second == none), float("inf"), top - second))
        tl.store(margin_out + row, tl.where(lost, float("nan"), gap / (1 + others)))
        tl.store(token2_out + row, tl.where(lost, 0, tl.where(second == none, token, token2)).to(tl.int64))
    if ENTROPY:
        moments = tl.load(reals + 3 * count + place, mask=inside, other=0.0)
        # d is 0 where a part won.
        moment = tl.sum(there * (moments + d * (sums + 1)), axis=0)
        tl.store(entropy_out + row, tl.where(lost, float("nan"), log1p(others) - moment / (1 + others)))


# Triton has neither of these, CUDA's own cannot be interpreted; a row needs each once.


@triton.jit
def log1p(x):
    """log(1 + x) of x >= 0: up to 1 by the series of 2 artanh(x / (2 + x)), what is left out is below 2^-27 of it."""
    z = tl.where(x <= 1, x, 0.0) / (2 + tl.where(x <= 1, x, 0.0))
    w = z * z
    tail = w * (1 / 3 + w * (1 / 5 + w * (1 / 7 + w * (1 / 9 + w * (1 / 11 + w * (1 / 13 + w * (1 / 15)))))))
    return tl.where(x <= 1, 2 * z + 2 * z * tail, tl.log(1 + x))


@triton.jit
def one_less_exp(y):
    """1 - exp(-y) of y >= 0: up to 1/2 by its series, what is left out is below 2^-26 of it."""
    x = tl.where(y <= 0.5, y, 0.0)
    tail = 1 - x / 5 * (1 - x / 6 * (1 - x / 7 * (1 - x / 8)))
    near = x * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * tail)))
    return tl.where(y <= 0.5, near, 1 - tl.exp(-y))
