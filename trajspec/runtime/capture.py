"""Capture of a step: run once over fixed storages, then replayed without Python; a CUDA graph, or a tape on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..ir.errors import TrajspecError

Kind = Literal["graph", "tape", "none"]
aten = torch.ops.aten
#: What asks the device for a number, or has a shape that depends on one.
_READS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten._unique2.default, aten.unique_dim.default, aten.repeat_interleave.Tensor, aten.item.default,
    aten.is_nonzero.default, aten.bincount.default,
}  # fmt: skip
_WARM_UPS = 2


class Captured:
    """`function(*args)` over storages of its own.

    A call copies the tensors in `args` into the storages that the function was captured with and replays it. What it
    returns is overwritten by the next call: clone what has to last. Everything in `args` that is no tensor, and the
    shapes of what is, stay as they were at the capture. `state()` names the tensors that the function changes in place
    (keys and values); they are put back after the warm-up, which really runs, and must be the same storages afterwards.

    Raises TrajspecError at the capture when the function reads the device, has a shape that depends on data, or puts
    another tensor in the place of one in `state()`; and at a call whose arguments do not fit.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        *,
        kind: Kind,
        state: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self.function, self.kind = function, kind
        leaves, self.spec = pytree.tree_flatten(tuple(args))
        self.leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        before = list(state())
        saved = [tensor.clone() for tensor in before]
        self._args = pytree.tree_unflatten(self.leaves, self.spec)
        if kind == "none":
            return
        self._warm_up(before, saved)
        self._replay, self.out = (_tape if kind == "tape" else _graph)(lambda: function(*self._args))
        after = list(state())
        if [tensor.data_ptr() for tensor in after] != [tensor.data_ptr() for tensor in before]:
            raise TrajspecError(
                "a captured step put a new tensor in the place of one that it keeps; write into it (copy_, "
                "index_copy_), else a replay goes on with the old one"
            )
        self._restore(before, saved)

    def __call__(self, *args: Any) -> Any:
        """What the function gives for `args`."""
        if self.kind == "none":
            return self.function(*args)
        leaves, spec = pytree.tree_flatten(args)
        if spec != self.spec:
            raise TrajspecError("a captured step got arguments of another structure than it was captured with")
        for mine, given in zip(self.leaves, leaves, strict=True):
            if not isinstance(mine, Tensor):
                if given is not mine and given != mine:
                    raise TrajspecError(f"a captured step got {given!r:.60} where it was captured with {mine!r:.60}")
            elif mine.shape != given.shape or mine.dtype != given.dtype:
                raise TrajspecError(
                    f"a captured step got a tensor {given.dtype} {list(given.shape)} where it was captured with "
                    f"{mine.dtype} {list(mine.shape)}"
                )
            else:
                mine.copy_(given)
        self._replay()
        return self.out

    def _warm_up(self, before: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
        for _ in range(_WARM_UPS):
            self.function(*self._args)
            self._restore(before, saved)

    @staticmethod
    def _restore(state: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
        for tensor, old in zip(state, saved, strict=True):
            tensor.copy_(old)


def _graph(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """A CUDA graph of `run`, and what it gives."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph.replay, out


def _tape(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """The operators of `run`, to be run again into the same storages, and what it gives.

    It stands in for a CUDA graph on the CPU: what it refuses a graph would refuse, or silently get wrong.
    """
    recorder = _Recorder()
    with recorder:
        out = run()
    return recorder.replay, out


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor] | None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        masks = func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default) and any(
            part is not None and part.dtype in (torch.bool, torch.uint8) for part in args[1]
        )
        if func in _READS or masks:
            raise TrajspecError(
                f"a captured step may not read the device, and {func} does; choose with torch.where, and keep the "
                "shapes fixed"
            )
        out = func(*args, **kwargs)
        writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in _arguments(func))
        # By storage, not by schema: `reshape` and `to` are views only where they can be.
        homes = {_home(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        shared = any(_home(leaf) in homes for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor))
        if writes or not shared:
            # An operator that writes in place is run again as it is; a new tensor's values are copied where it lies.
            made = None if writes else [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
            self.lines.append((func, args, kwargs, made))
        return out

    def replay(self) -> None:
        for func, args, kwargs, made in self.lines:
            out = func(*args, **kwargs)
            if made is not None:
                new = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
                for old, fresh in zip(made, new, strict=True):
                    old.copy_(fresh)


def _home(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _arguments(func: Any) -> Sequence[Any]:
    return func._schema.arguments


__all__ = ["Captured", "Kind"]
