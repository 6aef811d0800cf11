"""What a policy holds while it runs: values of a plan being traced, or numpy arrays that know their kind."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from .errors import fail
from .kinds import Kind
from .nodes import Value


class Handle:
    """A value in a user's hands; the operators build pointwise ops."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy hands `array + handle` over to us
    kind: Kind

    def __bool__(self) -> bool:
        raise fail(
            f"'if', 'and', 'or' and 'not' need one truth value, got {self.kind} from {self.origin}",
            "A policy is traced once, before any value is known. Combine with & | ~, or write: "
            + (
                "ts.choose(flag, a, b)"
                if self.kind.name in ("flag", "count")
                else "ts.choose(ts.any(selection), a, b)"
            ),
        )

    def __iter__(self) -> NoReturn:
        raise fail(
            f"a {self.kind} cannot be unpacked or looped over",
            f"{self.origin} gives one value; a policy handles every position at once and never loops over them.",
        )

    def __getitem__(self, index: object) -> NoReturn:
        raise fail(
            f"a {self.kind} cannot be indexed",
            "A policy handles every position at once: choose positions with a selection, as in where=here & sure",
        )

    @property
    def origin(self) -> str:
        raise NotImplementedError

    # Operators. The ops are looked up by name, so that this module knows none of them.
    def __add__(self, other: Any) -> Any:
        return _infix("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _infix("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _infix("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _infix("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _infix("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _infix("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _infix("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _infix("div", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _infix("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _infix("floordiv", other, self)

    def __mod__(self, other: Any) -> Any:
        return _infix("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _infix("mod", other, self)

    def __neg__(self) -> Any:
        return _infix("neg", self)

    def __invert__(self) -> Any:
        return _infix("invert", self)

    def __and__(self, other: Any) -> Any:
        return _infix("and_", self, other)

    def __rand__(self, other: Any) -> Any:
        return _infix("and_", other, self)

    def __or__(self, other: Any) -> Any:
        return _infix("or_", self, other)

    def __ror__(self, other: Any) -> Any:
        return _infix("or_", other, self)

    def __xor__(self, other: Any) -> Any:
        return _infix("xor", self, other)

    def __ge__(self, other: Any) -> Any:
        return _infix("ge", self, other)

    def __gt__(self, other: Any) -> Any:
        return _infix("gt", self, other)

    def __le__(self, other: Any) -> Any:
        return _infix("le", self, other)

    def __lt__(self, other: Any) -> Any:
        return _infix("lt", self, other)

    def __eq__(self, other: Any) -> Any:
        return _infix("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        return _infix("ne", self, other)

    __hash__ = None  # type: ignore[assignment]


def _infix(name: str, *args: Any) -> Any:
    from .op import OPS

    return OPS[name](*args)


class Traced(Handle):
    """A value of the plan that is being traced."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return self.value.kind

    @property
    def origin(self) -> str:
        name = self.value.node.op.name
        if name == "carried":
            return "the policy's own arguments"
        return "a literal" if name == "const" else name

    def __repr__(self) -> str:
        return f"<{self.kind} from {self.origin}>"


class Eager(Handle):
    """A concrete value: `data` is a numpy array with the axes of `kind` (a `Canvas` for canvases)."""

    __slots__ = ("kind", "data", "source")

    def __init__(self, kind: Kind, data: Any, source: str = "an array") -> None:
        self.kind, self.data, self.source = kind, data, source

    @property
    def origin(self) -> str:
        return self.source

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.data, dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        # The fields of a canvas (tokens, masked, step, ...) can be read in a debugger.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.data, name)

    def __repr__(self) -> str:
        return f"<{self.kind} from {self.source}: {self.data!r}>"
