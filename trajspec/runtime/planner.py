"""How many states a packed call should hold: chosen from what calls cost here and how far drafts have carried so far.

A round with n states takes `advance(n)` base steps and costs c(n), in calls of one state. The planner takes the n of
the largest advance(n) / c(n) (exactness: theorems D1 to D4), and 1, no speculation, where none is above 1. It chooses
how much is asked early and never what is committed, so a run's output is the same whatever it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: How many states a call may hold; 1: the base's own call.
NODES = (1, 2, 4, 8)
#: The chance that a drafted state is the next one, before any was seen.
PRIOR = 0.6
#: The weight of what was known against one more round.
MEMORY = 0.9
#: Rounds without speculation before it is tried again; doubled whenever that did not pay.
PATIENCE = 32
#: Rounds of one state that are timed before times count as known.
TIMED = 3


@dataclass
class Costs:
    """What a call of n states costs: `fixed` + n `each` seconds, from the (states, seconds) of calls that were made."""

    fixed: float
    each: float

    @classmethod
    def fit(cls, samples: Sequence[tuple[int, float]]) -> Costs:
        """Least squares over `samples`; never less for more states. Raises ValueError for less than two counts."""
        count = len(samples)
        if len({states for states, _ in samples}) < 2:
            raise ValueError("a cost by states needs calls of two different numbers of them")
        mean = sum(states for states, _ in samples) / count
        middle = sum(seconds for _, seconds in samples) / count
        spread = sum((states - mean) ** 2 for states, _ in samples)
        each = max(0.0, sum((states - mean) * (seconds - middle) for states, seconds in samples) / spread)
        return cls(max(middle - each * mean, 0.0), each)

    def __call__(self, nodes: int) -> float:
        """The cost of a call of `nodes` states, in calls of one."""
        one = self.fixed + self.each
        return (self.fixed + nodes * self.each) / one if one > 0 else 1.0


@dataclass
class Planner:
    """Chooses the states of each round's call. `advances`: the mean base steps of rounds with n states, as seen.

    With a `clock` (seconds, without what compiling took) rounds are timed as they go, and once both are known their
    `seconds` stand in for `costs`: a calibration on a busy machine is put right by the run itself.
    """

    costs: Costs
    nodes: Sequence[int] = NODES
    advances: dict[int, float] = field(default_factory=dict)
    chance: float = PRIOR
    chosen: dict[int, int] = field(default_factory=dict)
    idle: int = 0
    patience: int = PATIENCE
    probing: bool = False
    clock: Callable[[], float] | None = None
    seconds: dict[int, list[float]] = field(default_factory=dict)
    began: float = 0.0
    current: int = 1
    timed: bool = True

    def choose(self) -> int:
        """How many states the next round's call should hold."""
        self.current, self.timed = self._choose(), True
        self.chosen[self.current] = self.chosen.get(self.current, 0) + 1
        if self.clock is not None:
            self.began = self.clock()
        return self.current

    def _choose(self) -> int:
        if self.clock is not None and len(self.seconds.get(1, ())) < TIMED:
            return 1
        best = max(self.nodes, key=lambda count: (self.gain(count), -count))
        self.probing = False
        if best == 1:
            self.idle += 1
            if self.idle >= self.patience:
                best = max((count for count in self.nodes if count > 1), key=self.gain)
                self.idle, self.probing = 0, True
        return best

    def skip(self, rounds: int) -> bool:
        """Whether a run of at most `rounds` rounds had better be the base's own; it counts as so many idle ones."""
        if any(self.gain(nodes) > 1 for nodes in self.nodes if nodes > 1) or self.idle + 1 >= self.patience:
            return False
        self.idle += rounds
        self.chosen[1] = self.chosen.get(1, 0) + rounds
        return True

    def gain(self, nodes: int) -> float:
        """The predicted speed-up of calls of `nodes` states over calls of one."""
        return self.advance(nodes) / self.cost(nodes)

    def cost(self, nodes: int) -> float:
        """A round of `nodes` states in rounds of one: as timed in this process, else as measured before it."""
        one, many = self.seconds.get(1, ()), self.seconds.get(nodes, ())
        if len(one) < TIMED or not many:
            return self.costs(nodes)
        return max(_middle(many) / _middle(one), 1e-9)

    def advance(self, nodes: int) -> float:
        """The base steps that a round with `nodes` states is expected to take: as seen, else as a chain's (D1)."""
        if nodes == 1:
            return 1.0
        seen = self.advances.get(nodes)
        return sum(self.chance**step for step in range(nodes)) if seen is None else seen

    def saw(self, nodes: int, states: int, steps: int, kind: str = "verify") -> None:
        """A round for which `nodes` were chosen evaluated `states` of a row and took `steps` base steps of it."""
        if kind == "refresh":
            self.timed = False
        if nodes < 2 or kind == "refresh":
            return
        before = self.advances.get(nodes, self.advance(nodes))
        self.advances[nodes] = MEMORY * before + (1 - MEMORY) * steps
        for hit in [1] * (steps - 1) + [0] * (steps < states):
            self.chance = MEMORY * self.chance + (1 - MEMORY) * hit
        if self.probing:
            self.patience = PATIENCE if self.gain(nodes) > 1 else 2 * self.patience

    def done(self) -> None:
        """The round is over: unless it refreshed a row, which the base does as well, its time is kept."""
        if self.clock is not None and self.timed:
            self.seconds[self.current] = [*self.seconds.get(self.current, ())[-8:], self.clock() - self.began]

    def as_dict(self) -> Mapping[str, object]:
        """What was chosen and on what grounds, ready for JSON."""
        return {
            "chosen": {str(nodes): count for nodes, count in sorted(self.chosen.items())},
            "costs": {str(nodes): round(self.cost(nodes), 3) for nodes in self.nodes},
            "advances": {str(nodes): round(self.advance(nodes), 3) for nodes in self.nodes},
        }


def _middle(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 2]


@dataclass
class Sampler:
    """A planner that tries all numbers of states in turn and times the rounds: `samples` of (states, seconds).

    `clock` gives seconds without what compiling took. Rounds that refresh are left out: they are the base's as well.
    """

    clock: Callable[[], float]
    nodes: Sequence[int] = NODES
    samples: list[tuple[int, float]] = field(default_factory=list)
    rounds: int = 0
    began: float = 0.0
    states: int = 0

    def choose(self) -> int:
        """The next number of states."""
        self.rounds, self.states = self.rounds + 1, 0
        self.began = self.clock()
        return self.nodes[self.rounds % len(self.nodes)]

    def saw(self, nodes: int, states: int, steps: int, kind: str = "verify") -> None:
        """What a row had in the round."""
        if kind != "refresh":
            self.states = max(self.states, states)

    def done(self) -> None:
        """The round is over: it becomes a sample."""
        # The first few warm the caches up.
        if self.states and self.rounds > len(self.nodes):
            self.samples.append((self.states, self.clock() - self.began))


__all__ = ["NODES", "Costs", "Planner", "Sampler"]
