"""Asking the model: queries, the forward, and values that start a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..canvas import Canvas
from ..errors import TrajspecError
from ..kinds import CONF, LOGITS, Kind
from ..op import op
from ..query import Query, Soft, ask
from .read import whole


@op("hide(x: canvas, *, where: selection) -> query: query")
def hide(x: Canvas, *, where: np.ndarray) -> Query:
    """The canvas with the positions of `where` masked as well, as a row of its own."""
    return Query(x.tokens, x.masked | where, None, of=x)


@op("substitute(x: canvas, token: tokens, *, where: selection) -> query: query")
def substitute(x: Canvas, token: np.ndarray, *, where: np.ndarray) -> Query:
    """The canvas with `token` at the positions of `where`, as a row of its own."""
    return Query(np.where(where, token, x.tokens), x.masked & ~where, None, of=x)


@op("twins(x: canvas, *, where: selection, size: int | None = None) -> query: query", check=whole)
def twins(x: Canvas, *, where: np.ndarray, size: int | None) -> Query:
    """One more mask at each position of `where` (the first `size` of them), beside the canvas in its row.

    A twin sees the canvas except the token it stands beside, and all other twins; the canvas sees no twin. Their logits
    are what the model thinks of a committed token without looking at it. Source: WINO.
    """
    return Query(x.tokens, x.masked, where, size, of=x)


@op("without(x: canvas | query, *, where: selection) -> query: query")
def without(x: Canvas | Query, *, where: np.ndarray) -> Query:
    """The row without the positions of `where`: nothing sees them, and there are no logits about them (NaN).

    What remains keeps its positions, and the call is as wide as what remains. TrajspecError for a query of twins.
    """
    return absent(x, where)


def absent(x: Canvas | Query, where: Any) -> Query:
    """`x`, in numpy or torch, with the positions of `where` left out as well."""
    if isinstance(x, Canvas):
        return Query(x.tokens, x.masked, None, absent=where, of=x)
    if x.twins is not None:
        raise TrajspecError("twins go with the whole canvas; leave positions out of another query")
    return x._replace(absent=where if x.absent is None else x.absent | where)


@op("soften(x: canvas | query, logits: logits, *, where: selection, given: flag) -> query: query")
def soften(x: Canvas | Query, logits: np.ndarray, *, where: np.ndarray, given: np.ndarray) -> Query:
    """The query with `logits` shown beside its tokens at the positions of `where`, once they are `given`.

    For models that read what they predicted before (self-conditioning); the positions of `where` are the open part,
    which such a model tells from finished text.
    """
    return softened(x, logits, where, given)


def softened(x: Canvas | Query, logits: Any, where: Any, given: Any) -> Query:
    """`x`, in numpy or torch, with soft inputs. Raises TrajspecError for a query of twins."""
    query = x if isinstance(x, Query) else Query(x.tokens, x.masked, None, of=x)
    if query.twins is not None:
        raise TrajspecError("twins go with the whole canvas; show logits beside another query")
    return query._replace(soft=Soft(logits, where, given))


def _each(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind, ...]:
    return tuple(LOGITS for _ in kinds)


def _named(by: str | None, **_: object) -> None:
    if by is not None and not by.isidentifier():
        raise TrajspecError(f"by is {by!r:.60}, expected a name such as 'ar' (None: the model that decodes)")


@op(
    "forward(*queries: canvas | query, predict_mask: bool = False, by: str | None = None) -> logits: logits",
    infer=_each,
    calls_model=True,
    check=_named,
)
def forward(model: Any, *queries: Canvas | Query, predict_mask: bool, by: str | None) -> Any:
    """One call on all queries, of the model or of a further one (`by`); what may not be predicted is impossible."""
    logits = ask(model, queries, predict_mask, by)
    return logits if len(logits) > 1 else logits[0]


def _like(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple[Kind]:
    from ..kinds import KINDS

    kind = KINDS.get(attrs["kind"])
    # A history of confidences would start as a logarithm, which nobody means: scores hold ts.prob(conf).
    if kind is None or not kind.axes or kind is CONF:
        usual = ", ".join(name for name, known in KINDS.items() if known.axes and known is not CONF)
        raise TrajspecError(f"kind is {attrs['kind']}, expected one of {usual}")
    return (kind,)


@op("fill(x: canvas, *, kind: name, value: int | float | bool) -> history: scores", infer=_like)
def fill(x: Canvas, *, kind: str, value: float) -> np.ndarray:
    """A history that holds `value` everywhere, with the axes of `kind`."""
    from ..kinds import KINDS

    length, vocab = x.tokens.shape[-1], x.allowed.shape[-1]
    tail = {"1": (1,), "L": (length,), "LV": (length, vocab)}[KINDS[kind].axes]
    dtype = bool if kind in ("selection", "flag") else np.int64 if kind in ("tokens", "count") else np.float64
    if dtype is np.int64 and isinstance(value, float):
        dtype = np.float64
    return np.full(x.tokens.shape[:-1] + tail, value, dtype=dtype)
