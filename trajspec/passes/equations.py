"""The rules of the library, each an equation with the reason why it holds."""

from __future__ import annotations

from typing import Any

from ..ir.op import OPS
from .rules import rule

_ops = {name: made for name, made in OPS.items() if not made.infix}
(
    argmax, score, confidence, softmax, entropy, margin, max_, sample, top_p, top_k, choose, score_and_entropy,
    score_and_margin, window, masked, penalise,
) = (
    _ops[name]
    for name in (
        "argmax", "score", "confidence", "softmax", "entropy", "margin", "max", "sample", "top_p", "top_k", "choose",
        "score_and_entropy", "score_and_margin", "window", "masked",
        "penalise",
    )
)  # fmt: skip

# Pointwise algebra.


@rule(exact=True, a="selection")
def twice_inverted(a: Any) -> Any:
    """What is not outside is inside."""
    return ~~a, a


@rule(exact=True, a="selection")
def and_itself(a: Any) -> Any:
    """A set meets itself in itself."""
    return a & a, a


@rule(exact=True, a="selection")
def or_itself(a: Any) -> Any:
    """A set joined to itself is itself."""
    return a | a, a


@rule(exact=True, a="scores")
def twice_negated(a: Any) -> Any:
    """Negation is exact."""
    return -(-a), a  # noqa: B002


@rule(exact=True, a="logits")
def logits_times_one(a: Any) -> Any:
    """Multiplication by one is exact."""
    return a * 1, a


@rule(exact=True, a="scores")
def scores_times_one(a: Any) -> Any:
    """Multiplication by one is exact."""
    return a * 1, a


@rule(exact=True, a="logits")
def logits_over_one(a: Any) -> Any:
    """Division by one is exact."""
    return a / 1, a


@rule(exact=True, w="selection", a="tokens")
def one_choice_of_tokens(w: Any, a: Any) -> Any:
    """Either way the same."""
    return choose(w, a, a), a


@rule(exact=True, w="selection", a="scores")
def one_choice_of_scores(w: Any, a: Any) -> Any:
    """Either way the same."""
    return choose(w, a, a), a


@rule(exact=True, x="canvas")
def window_of_masks(x: Any, *, size: Any = (None, 2, 3)) -> Any:
    """A window holds masked positions only."""
    return window(x, size=size) & masked(x), window(x, size=size)


# What a setting makes simpler.


@rule(exact=True, x="canvas", l="logits")
def cold_sample(x: Any, l: Any) -> Any:  # noqa: E741
    """At temperature 0 no noise is drawn."""
    return sample(x, l, temperature=0.0), argmax(l)


@rule(exact=True, l="logits")
def whole_nucleus(l: Any, *, crossing: Any = (True, False)) -> Any:  # noqa: E741
    """Without a share nothing is cut."""
    return top_p(l, p=None, crossing=crossing), l


@rule(exact=True, l="logits")
def full_nucleus(l: Any, *, crossing: Any = (True, False)) -> Any:  # noqa: E741
    """The share of all tokens is 1."""
    return top_p(l, p=1.0, crossing=crossing), l


@rule(exact=True, l="logits")
def every_token(l: Any) -> Any:  # noqa: E741
    """Without a number nothing is cut."""
    return top_k(l, k=None), l


@rule(exact=True, x="canvas", l="logits")
def no_penalty(x: Any, l: Any) -> Any:  # noqa: E741
    """A penalty of 1 changes nothing."""
    return penalise(x, l, penalty=1.0), l


@rule(exact=True, l="logits")
def likeliest_of_nucleus(l: Any, *, p: Any = (0.2, 0.9), crossing: Any = (True, False)) -> Any:  # noqa: E741
    """A nucleus never cuts the likeliest token, and of equal ones it keeps the lowest."""
    return argmax(top_p(l, p=p, crossing=crossing)), argmax(l)


@rule(exact=True, l="logits")
def likeliest_of_few(l: Any, *, k: Any = (1, 2)) -> Any:  # noqa: E741
    """The likeliest token is among the k likeliest, with all that equal it."""
    return argmax(top_k(l, k=k)), argmax(l)


# One pass over the vocabulary in place of several.


@rule(exact=True, l="logits")
def confidence_of_likeliest(l: Any) -> Any:  # noqa: E741
    """`score` is the likeliest token and its confidence."""
    return confidence(l, argmax(l)), score(l)[1]


@rule(exact=True, l="logits")
def confidence_scored(l: Any) -> Any:  # noqa: E741
    """A token that was scored has its confidence already."""
    return confidence(l, score(l)[0]), score(l)[1]


@rule(exact=True, l="logits")
def confidence_scored_beside_entropy(l: Any) -> Any:  # noqa: E741
    """A token that was scored has its confidence already."""
    return confidence(l, score_and_entropy(l)[0]), score_and_entropy(l)[1]


@rule(exact=True, l="logits")
def confidence_scored_beside_margin(l: Any) -> Any:  # noqa: E741
    """A token that was scored has its confidence already."""
    return confidence(l, score_and_margin(l)[0]), score_and_margin(l)[1]


@rule(exact=True, l="logits")
def likeliest_scored(l: Any) -> Any:  # noqa: E741
    """A token that is scored anyway need not be looked for again."""
    return argmax(l), score(l)[0], score(l)[1]


@rule(exact=True, l="logits")
def token_beside_entropy(l: Any) -> Any:  # noqa: E741
    """The pass that sums up the entropy sees the likeliest token."""
    return argmax(l), score_and_entropy(l)[0], entropy(l)


@rule(exact=True, l="logits")
def token_scored_beside_entropy(l: Any) -> Any:  # noqa: E741
    """The pass that sums up the entropy scores as well."""
    return score(l)[0], score_and_entropy(l)[0], entropy(l)


@rule(exact=True, l="logits")
def score_beside_entropy(l: Any) -> Any:  # noqa: E741
    """The pass that sums up the entropy scores as well."""
    return score(l)[1], score_and_entropy(l)[1], entropy(l)


@rule(exact=True, l="logits")
def entropy_beside_score(l: Any) -> Any:  # noqa: E741
    """Where both are wanted, one pass gives both."""
    return entropy(l), score_and_entropy(l)[2], score_and_entropy(l)[0]


@rule(exact=True, l="logits")
def entropy_beside_confidence(l: Any) -> Any:  # noqa: E741
    """Where both are wanted, one pass gives both."""
    return entropy(l), score_and_entropy(l)[2], score_and_entropy(l)[1]


@rule(exact=True, l="logits")
def token_beside_margin(l: Any) -> Any:  # noqa: E741
    """The pass that finds the two likeliest tokens knows the first."""
    return argmax(l), score_and_margin(l)[0], margin(l)


@rule(exact=True, l="logits")
def token_scored_beside_margin(l: Any) -> Any:  # noqa: E741
    """The pass that finds the two likeliest tokens scores as well."""
    return score(l)[0], score_and_margin(l)[0], margin(l)


@rule(exact=True, l="logits")
def score_beside_margin(l: Any) -> Any:  # noqa: E741
    """The pass that finds the two likeliest tokens scores as well."""
    return score(l)[1], score_and_margin(l)[1], margin(l)


@rule(exact=True, l="logits")
def margin_beside_token(l: Any) -> Any:  # noqa: E741
    """Where both are wanted, one pass gives both."""
    return margin(l), score_and_margin(l)[2], score_and_margin(l)[0]


@rule(exact=True, l="logits")
def margin_beside_confidence(l: Any) -> Any:  # noqa: E741
    """Where both are wanted, one pass gives both."""
    return margin(l), score_and_margin(l)[2], score_and_margin(l)[1]


@rule(exact=False, l="logits")
def likeliest_probability(l: Any) -> Any:  # noqa: E741
    """The order of probabilities is that of logits, but for those that softmax rounds to the same."""
    return argmax(softmax(l)), argmax(l)


@rule(exact=False, l="logits")
def largest_probability(l: Any) -> Any:  # noqa: E741
    """The largest probability, with an order among sure tokens, whose probabilities round to 1."""
    return max_(softmax(l)), score(l)[1]


SIMPLIFY = (
    twice_inverted, and_itself, or_itself, twice_negated, logits_times_one, scores_times_one, logits_over_one,
    one_choice_of_tokens, one_choice_of_scores, window_of_masks,
)  # fmt: skip
SPECIALISE = (
    cold_sample, no_penalty, whole_nucleus, full_nucleus, every_token, likeliest_of_nucleus, likeliest_of_few,
)  # fmt: skip
FUSE = (
    confidence_of_likeliest, confidence_scored, confidence_scored_beside_entropy, confidence_scored_beside_margin,
    likeliest_scored, token_beside_entropy, token_scored_beside_entropy, score_beside_entropy,
    entropy_beside_score, entropy_beside_confidence, token_beside_margin, token_scored_beside_margin,
    score_beside_margin, margin_beside_token, margin_beside_confidence, likeliest_probability, largest_probability,
)  # fmt: skip
RULES = (*SIMPLIFY, *SPECIALISE, *FUSE)
