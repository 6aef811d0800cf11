"""What a base plan reads and writes, found in its step: the facts that the rules of `certify` compare with a key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..ir.ahead import forward_of
from ..ir.kinds import CACHE, CANVAS
from ..ir.nodes import Node, Value, walk
from ..ir.plan import Plan


@dataclass(frozen=True)
class Reads:
    """The effects of the step of `base` on what it commits."""

    base: Plan

    @cached_property
    def forward(self) -> Node:
        """Its one model call."""
        return forward_of(self.base)

    @cached_property
    def view(self) -> str:
        """full, prefix, dual or block_causal."""
        return str(self.forward.attributes.get("view", "full"))

    @cached_property
    def memories(self) -> tuple[str, ...]:
        """The carried values beside the canvas that decide what is committed, by name."""
        step, alive = self.base.step, {0}
        while True:
            cone = {item.results[0] for item in walk([step[index] for index in alive])}
            more = {index for index, value in enumerate(self.base.carried) if value in cone}
            if more <= alive:
                break
            alive |= more
        # What a block-causal view keeps of finished blocks is what a forward on their tokens gives.
        idle = {0} | {
            index
            for index, value in enumerate(self.base.carried)
            if value.kind is CACHE and self.view == "block_causal"
        }
        return tuple(self.base.carried_names[index] for index in sorted(alive - idle))

    @cached_property
    def histories(self) -> tuple[str, ...]:
        """The memories that no key holds: all but the cache, whose origin a cached view's key tells."""
        names = zip(self.base.carried_names, self.base.carried, strict=True)
        return tuple(name for name, value in names if name in self.memories and value.kind is not CACHE)

    @cached_property
    def counters(self) -> tuple[str, ...]:
        """The ops that read the counters of the row, or noise that is keyed by them."""
        return tuple(dict.fromkeys(item.op.name for item in self._clocked()))

    @cached_property
    def noise(self) -> tuple[str, ...]:
        """The ops that draw."""
        drawn = (item.op.name for item in self._clocked() if item.op.name in _DRAWS)
        once = (item.op.name for item in walk(self.base.step) if item.op.name == "uniform_of")
        return tuple(dict.fromkeys((*drawn, *once)))

    @cached_property
    def own_ops(self) -> tuple[str, ...]:
        """The ops of the step that were declared outside the library."""
        items = walk(self.base.step)
        return tuple(dict.fromkeys(item.op.name for item in items if not _of_library(item)))

    @cached_property
    def key_holds_canvas(self) -> bool:
        """Whether two states with one view have one canvas: what a hypothetical one has elsewhere is then nothing."""
        # A cached view shows its window alone; what a draft wrote behind the block, or over what is kept, is not seen.
        return self.view == "full" and self.base.carried[0] in self.forward.args

    @cached_property
    def ends_when_full(self) -> bool:
        """Whether a row ends by having no masks or at a stop token, and by nothing else."""
        closing = self.base.step[0].node
        return closing.op.name == "advance" and closing.args[2] is None

    @cached_property
    def ends_show(self) -> bool:
        """Whether the view shows that a row has reached a stop token; states in which it has are never evaluated."""
        # With the open block as window nothing is masked before it, and every token of it is shown.
        where = None if self.view == "full" else self.forward.args[2]
        return self.key_holds_canvas or (where is not None and where.node.op.name == "block")

    @cached_property
    def commit(self) -> Node | None:
        """The `unmask` of x that is all that the step does to the canvas; None when it does more or something else."""
        closing, x = self.base.step[0].node, self.base.carried[0]
        if closing.op.name != "advance" or closing.args[0] is not x or closing.args[1] is None:
            return None
        item = closing.args[1].node
        return item if item.op.name == "unmask" and item.args[0] is x else None

    @cached_property
    def one_a_step(self) -> bool:
        """Whether it commits one token a step at most, whatever the model says."""
        return self.commit is not None and self.commit.args[2] is not None and _at_most_one(self.commit.args[2])

    @cached_property
    def keeps_law_without_step(self) -> bool:
        """Whether tokens keep their law when the step is no part of the noise key (theorem B2, third row).

        So it is when positions are chosen by what the model says and by no drawn token, and every position is
        committed once: its noise is then fresh at that moment.
        """
        commit = self.commit
        if commit is None or not self.ends_when_full or self.forward.attributes["predict_mask"] or self.own_ops:
            return False
        drawn = [item for item in self._clocked() if item.op.name != "sample"]
        token, where = commit.args[1], commit.args[2]
        if drawn or token is None or where is None or token.node.op.name != "sample":
            return False
        choosing = {item for value in (where, *token.node.args) if value is not None for item in walk([value])}
        return not any(item.op.name == "sample" for item in choosing)

    def _clocked(self) -> Iterator[Node]:
        for item in walk(self.base.step):
            cold = item.op.name == "sample" and item.attributes["temperature"] == 0
            even = item.op.name == "quota" and item.attributes["steps"] is None
            # An op of the user's that takes the canvas may look at its counters.
            unknown = not _of_library(item) and any(arg is not None and arg.kind is CANVAS for arg in item.args)
            if (item.op.clocked and not cold and not even) or unknown:
                yield item


_DRAWS = ("sample", "uniform", "gumbel")


def _of_library(item: Node) -> bool:
    module = getattr(item.op.numpy, "__module__", "") or ""
    return module.startswith("trajspec.ir.")


def _at_most_one(where: Value) -> bool:
    item = where.node
    name, args = item.op.name, [arg for arg in item.args if arg is not None]
    if name in ("top", "bottom"):
        return _one(args[1])
    if name == "first":
        return _one(args[0])
    if name == "and_":
        return any(_at_most_one(arg) for arg in args)
    if name == "choose":
        return args[0].kind.name == "flag" and all(_at_most_one(arg) for arg in args[1:])
    return False


def _one(count: Value) -> bool:
    item = count.node
    if item.op.name == "const":
        value = item.attributes["value"]
        return bool(value <= 1)
    return item.op.name == "quota" and item.attributes["steps"] is None
