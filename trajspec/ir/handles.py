"""What a policy holds while it runs: values of a plan being traced, or numpy arrays that know their kind."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from .errors import TrajspecError, fail
from .kinds import Kind
from .nodes import Value


class Handle:
    """A value in a user's hands; the operators build pointwise ops."""

    __slots__ = ()
    kind: Kind

    def __bool__(self) -> bool:
        raise fail(
            f"'if', 'and', 'or' and 'not' need one truth value, got {self.kind} from {self.origin}",
            "A policy is traced once, before any value is known. Combine with & | ~ (a < b < c is (a < b) & (b < c)), "
            + ("or write: ts.choose(flag, a, b)" if self.kind.axes == "1" else "or write: ts.choose(ts.any(a), b, c)"),
        )

    def __iter__(self) -> NoReturn:
        raise fail(
            f"a {self.kind} cannot be unpacked or looped over",
            f"It is one value ({self.origin}); a policy handles every position at once and never loops over them.",
        )

    def __getitem__(self, index: object) -> NoReturn:
        remedy = "A policy handles every position at once: choose positions with a selection, as in where=here & sure"
        raise fail(f"a {self.kind} cannot be indexed", remedy)

    def __len__(self) -> NoReturn:
        raise fail(f"a {self.kind} has no len()", "Write ts.count(selection) for how many positions it holds.")

    def __float__(self) -> NoReturn:
        raise fail(
            f"a {self.kind} is not one number: float(), int(), round() and the functions of 'math' cannot take it",
            "Compute with + - * / // %, ts.floor, ts.least, ts.most, ts.prob and the other ops.",
        )

    __int__ = __index__ = __complex__ = __floor__ = __ceil__ = __trunc__ = __round__ = __abs__ = __float__

    def __hash__(self) -> NoReturn:
        raise fail(
            f"a {self.kind} cannot be in a set or a key of a dictionary",
            "== builds an op of the plan, so two values cannot be told apart like that.",
        )

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # `array + value` arrives here as numpy's function for +.
        name = _UFUNCS.get(function.__name__)
        if method == "__call__" and name and not kwargs and any(isinstance(item, np.ndarray) for item in inputs):
            return _infix(name, *inputs)
        raise self._no_numpy(function)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        raise self._no_numpy(function)

    def _no_numpy(self, function: Any) -> TrajspecError:
        return fail(
            f"np.{function.__name__} cannot take a {self.kind}: a policy is made of ops",
            "Compute with operators and ops (dir(trajspec) lists them), or declare your own with @ts.op. In a "
            "debugger, np.asarray(value) gives the array when the policy runs on arrays.",
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


_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "floor_divide": "floordiv", "remainder": "mod", "greater_equal": "ge", "greater": "gt", "less_equal": "le",
    "less": "lt", "equal": "eq", "not_equal": "ne", "bitwise_and": "and_", "bitwise_or": "or_", "bitwise_xor": "xor",
}  # fmt: skip


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
        name = self.value.node.op.infix or self.value.node.op.name
        if name in ("carried", "input"):
            return "the policy's arguments"
        return "a literal" if name == "const" else name

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise fail(
            f"a {self.kind} has no array while its policy is traced",
            "To look at arrays, run the policy on some: policy(ts.canvas(...), logits)",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        from .explain import usage
        from .op import OPS

        found = OPS.get(name)
        known = found is not None and not found.infix and not found.hidden
        remedy = "A value is read with ops: ts.tokens(x), ts.masked(x), ts.step(x)"
        raise fail(f"a {self.kind} has no attribute '{name}'", f"Write: {usage(found)}" if known and found else remedy)

    def __repr__(self) -> str:
        return f"<{self.kind} from {self.origin}>"


class Eager(Handle):
    """A concrete value: `data` is a numpy array with the axes of `kind` (a `Canvas` for canvases)."""

    __slots__ = ("data", "kind", "source")

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


class Absent(Handle):
    """Stands for an argument that was not given to a policy run on arrays; an error where it is used."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def error(self) -> TrajspecError:
        return fail(f"'{self.name}' is needed here and was not given", f"Write: policy(x, logits, {self.name})")

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        raise self.error()
