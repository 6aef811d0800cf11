"""The `@policy` decorator: what a policy's signature has to look like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

from .apply import is_name
from .declare import Asked, Given, History
from .errors import fail
from .trace import Policy
from .watch import definition


@overload
def policy(function: Callable[..., Any], /) -> Policy: ...
@overload
def policy(
    *, name: str | None = None, predict_mask: bool = False, window: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Policy]: ...
def policy(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    predict_mask: bool = False,
    window: Callable[..., Any] | None = None,
) -> Any:
    """Make a policy of a function `(x, logits, ..., *, parameters) -> x`.

    x is the canvas, logits the model's answer about it, or about what `logits=ts.query(f)` shows in its place. Further
    positional arguments declare themselves by their default: `ts.query(f)`, `ts.history(kind, start)` (also returned,
    in order), `ts.given(kind)`. Keyword-only arguments are parameters and need defaults. `predict_mask=True` lets the
    model vote for the mask id, which only reference quirks want. `window` says where a cached view's block is, as a
    function of the canvas, histories and parameters by name, for policies whose block is not the leftmost one with
    masks.

    Raises TrajspecError when the signature does not read like that.
    """
    if function is None:
        return lambda function: _declare(function, name, predict_mask, window)
    return _declare(function, name, predict_mask, window)


def _declare(
    function: Callable[..., Any], name: str | None, predict_mask: bool, window: Callable[..., Any] | None
) -> Policy:
    shape = "def my_policy(x, logits, *, threshold=0.9): ..."
    lazy = inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)
    if not inspect.isfunction(function) or lazy:
        raise fail(f"a policy is a plain function, got {function!r:.80}", f"Write: {shape}")
    place = definition(function)
    if not is_name(name or function.__name__):
        raise fail(f"a policy's name must be a name in Python, got {name or function.__name__!r}", "", place)
    settings: dict[str, Any] = {}
    positional: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise fail(f"parameter '{parameter.name}' needs a default", f"Write: {shape}", place)
            settings[parameter.name] = parameter.default
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional.append(parameter)
        else:
            raise fail(f"argument '{parameter.name}' cannot be starred", f"Write: {shape}", place)
    if len(positional) < 2:
        raise fail("a policy takes the canvas and the logits first", f"Write: {shape}", place)
    shows = None if positional[1].default is inspect.Parameter.empty else positional[1].default
    if shows is not None and not (isinstance(shows, Asked) and shows.model is None):
        raise fail(
            f"argument '{positional[1].name}' is what the model says", "Its only default is ts.query(f), of the model "
            "that decodes.", place,
        )  # fmt: skip
    arguments = []
    for parameter in positional[2:]:
        if not isinstance(parameter.default, (History, Given, Asked)):
            raise fail(
                f"argument '{parameter.name}' must say what it is",
                "Write name=ts.query(f), name=ts.history(kind, start) or name=ts.given(kind); "
                "parameters come after a *.",
                place,
            )
        if isinstance(parameter.default, Given) and parameter.name == "prompt":
            raise fail("'prompt' is the canvas that a plan starts from", "Give the task input another name.", place)
        arguments.append((parameter.name, parameter.default))
    doc = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    told = (settings, predict_mask, window, shows)
    return Policy(function, name or function.__name__, doc, tuple(arguments), *told)
