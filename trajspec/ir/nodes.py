"""What a plan is made of: interned, immutable nodes and the values they give."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .kinds import Kind

if TYPE_CHECKING:
    from .op import Op

Attr = Any  # int, float, str, bool, None, tuples of those, or a plan: hashable, printable, comparable


class Node:
    """One application of an op: `op(*args, **attrs)`. Made by `node()` only, so equal nodes are one object."""

    __slots__ = ("__weakref__", "args", "attrs", "op", "results")
    op: Op
    args: tuple[Value | None, ...]
    attrs: tuple[tuple[str, Attr], ...]
    results: tuple[Value, ...]

    def __init__(self, op: Op, args: tuple[Value | None, ...], attrs: tuple[tuple[str, Attr], ...]) -> None:
        self.op, self.args, self.attrs = op, args, attrs
        self.results = ()

    @property
    def attributes(self) -> dict[str, Attr]:
        return dict(self.attrs)

    def __repr__(self) -> str:
        return f"<node {self.op.name}>"

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: object) -> Node:
        return self


class Value:
    """One result of a node. Compared by identity, which interning makes structural equality."""

    __slots__ = ("__weakref__", "index", "kind", "node")

    def __init__(self, node: Node, index: int, kind: Kind) -> None:
        self.node, self.index, self.kind = node, index, kind

    @property
    def is_const(self) -> bool:
        return self.node.op.name == "const"

    def __repr__(self) -> str:
        return f"<{self.kind.name} from {self.node.op.name}>"

    def __copy__(self) -> Value:
        return self

    def __deepcopy__(self, memo: object) -> Value:
        return self


_interned: weakref.WeakValueDictionary[tuple, Node] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def exact_key(attr: Attr) -> tuple:
    """What tells two attributes apart."""
    # 1, 1.0 and True are equal to Python and 0.0 equals -0.0; as attributes they are different things.
    if isinstance(attr, tuple):
        return ("tuple", *map(exact_key, attr))
    if not isinstance(attr, (int, float, str, bool, type(None))):
        # Plans are equal by structure; the text of each, which names its values, is its own.
        return ("plan", attr, getattr(attr, "text", None))
    return (type(attr).__name__, repr(attr))


def node(op: Op, args: Iterable[Value | None], attrs: dict[str, Attr], kinds: Iterable[Kind]) -> Node:
    """The one node for `op` with these arguments; `kinds` are the kinds of its results."""
    args, kinds = tuple(args), tuple(kinds)
    pairs = tuple(sorted(attrs.items()))
    key = (op, args, kinds, tuple((name, exact_key(value)) for name, value in pairs))
    with _lock:
        found = _interned.get(key)
        if found is None:
            found = Node(op, args, pairs)
            found.results = tuple(Value(found, index, kind) for index, kind in enumerate(kinds))
            _interned[key] = found
    return found


def walk(values: Iterable[Value]) -> Iterator[Node]:
    """Every node that `values` depend on, operands before users, each once. Iterative: plans may be deep."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(value.node, False) for value in reversed(list(values))]
    while stack:
        current, ready = stack.pop()
        if ready:
            yield current
        elif id(current) not in seen:
            seen.add(id(current))
            stack.append((current, True))
            stack.extend((arg.node, False) for arg in reversed(current.args) if arg is not None)
