"""The smallest known case for each condition of exactness: what goes wrong without it, replayed and searched for.

print(explain("K1"))                    the case, and what base and flawed program do on it
WITNESSES["K1"].found(0)                the verdict of a search that has to refute the flawed program
WITNESSES["K1"].sound(0)                the same search on the program that keeps the condition
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..ir.errors import TrajspecError
from .cached import delayed, delayed_walk, every_n, every_n_walk
from .case import Case, Drafts
from .check import check_program, compare_paths
from .law_check import LawCase, check_law, compare_laws, table_case, whole
from .laws import Sampler, Weights
from .models import Table, read_key, unletters
from .program import Program
from .samplers import (
    low_confidence,
    mean_field,
    node_walk,
    random_order,
    rejection,
    rejection_sampled,
    seeded_walk,
)
from .search import Counterexample, Log, Verdict

#: So many examples a search may take to find a flaw, and how many the sound program has to pass.
BUDGET, PASSED = 4000, 250


@dataclass(frozen=True)
class Witness:
    """A condition, and the case that shows what it is for.

    `condition`: what has to hold; `sentence`: what happens when it does not; `replay()`: the case as a text with the
    table of states or the two laws; `found(seed)`: a search for a counterexample to the flawed program, `sound(seed)`
    to the program that keeps the condition.
    """

    id: str
    condition: str
    sentence: str
    replay: Callable[[], str]
    found: Callable[[int], Verdict]
    sound: Callable[[int], Verdict] | None = None


WITNESSES: dict[str, Witness] = {}


def register(witness: Witness) -> Witness:
    """Add a witness under its id. Raises TrajspecError when there is one already."""
    if witness.id in WITNESSES:
        raise TrajspecError(f"there is a witness {witness.id} already; choose another id")
    WITNESSES[witness.id] = witness
    return witness


def explain(name: str) -> str:
    """The text of a witness: condition, what happens without it, the case. Raises TrajspecError for an unknown id."""
    from . import completion_witnesses, plan_witnesses  # noqa: F401  (they register their own)

    key = name.strip().replace("\u2032", "'").lower()
    found = next((witness for witness in WITNESSES.values() if witness.id.lower() == key), None)
    if found is None:
        raise TrajspecError(f"no witness is called {name!r}; there are: {', '.join(sorted(WITNESSES))}")
    return f"{found.id}: {found.condition}\n{found.sentence}\n\n{found.replay()}"


def law_witness(
    name: str, condition: str, sentence: str, *, base: Sampler, flawed: Sampler, case: LawCase,
    sound: Sampler | None = None, sound_base: Sampler | None = None,
) -> Witness:  # fmt: skip
    """Register a witness about laws of samplers (`exact.laws`)."""

    def show() -> str:
        return str(Counterexample(case, compare_laws(flawed, base, case)))

    def passes(seed: int) -> Verdict:
        return check_law(sound or flawed, sound_base or base, outcome=whole, examples=PASSED, seed=seed)

    found = partial(check_law, flawed, base, examples=BUDGET)
    return register(
        Witness(name, condition, sentence, show, lambda seed: found(seed=seed), passes if sound else None)
    )  # fmt: skip


def path_witness(
    name: str, condition: str, sentence: str, *, base: Program, flawed: Program, case: Case,
    sound: Program | None = None, sound_base: Program | None = None, lengths: tuple[int, int] = (1, 4),
) -> Witness:  # fmt: skip
    """Register a witness about the paths of programs (`exact.program`)."""

    def show() -> str:
        difference = compare_paths(flawed, base)(case, Log())
        if difference is None:
            raise TrajspecError(f"witness {name} does not differ from its base any more; its case has to be found anew")
        return str(Counterexample(case, difference))

    def search(program: Program, against: Program, examples: int, seed: int) -> Verdict:
        return check_program(program, against, examples=examples, seed=seed, lengths=lengths)

    return register(
        Witness(
            name, condition, sentence, show,
            lambda seed: search(flawed, base, BUDGET, seed),
            (lambda seed: search(sound, sound_base or base, PASSED, seed)) if sound else None,
        )
    )  # fmt: skip


def path_case(canvas: str, rows: Mapping[str, Weights], *chains: str, vocab: int = 2) -> Case:
    """A case written down: `path_case("__", {"_a@0": (1, 2)}, "_a")`; a chain is states with `>` between them."""
    table: Any = Table(tuple((read_key(key, len(canvas), vocab), row) for key, row in rows.items()))
    drafted = tuple(tuple(map(unletters, chain.split(">"))) for chain in chains)
    return Case(unletters(canvas), vocab, table, drafts=Drafts(drafted))


law_witness(
    "K1",
    "the step is part of the noise key when selection reads the sampled tokens",
    "Tokens that were drawn and not kept come back in the next step, after the selection has looked at them.",
    base=low_confidence,
    flawed=partial(seeded_walk, step_in_key=False),
    sound=seeded_walk,
    case=table_case("__", {"__@0": (2, 1), "__@1": (2, 1), "_a@0": (2, 1)}),
)
law_witness(
    "K2",
    "noise keyed by round and node is hidden from the drafter",
    "The drafter proposes a state only where the noise of its node writes the token it likes.",
    base=low_confidence,
    flawed=partial(node_walk, blind=False),
    sound=node_walk,
    case=table_case("__", {"a_@1": (1, 1)}, {"a_@1": (1, 1)}),
)
law_witness(
    "K3",
    "when selection reads the sampled tokens, the whole vector of proposals is coupled and the target selects",
    "Only the position that the drafter selected is coupled, and it is committed.",
    base=low_confidence,
    flawed=partial(rejection_sampled, whole_vector=False),
    sound=rejection_sampled,
    case=table_case("__", {"__@0": (1, 1)}),
)
law_witness(
    "K3'",
    "the positions of a step come from the target's selection",
    "The drafter's positions are committed: their tokens have the right law, in the wrong order.",
    base=mean_field,
    flawed=partial(rejection, target_positions=False),
    sound=rejection,
    case=table_case("__", {"__@0": (1, 1)}),
)
law_witness(
    "K4",
    "after a correction the target is evaluated at the true state",
    "The next draft is judged by the target's probabilities at the state that was rejected.",
    base=mean_field,
    flawed=partial(rejection, true_logits=False),
    sound=rejection,
    case=table_case("__", {"__@0": (1, 1), "__@1": (1, 1), "b_@1": (0, 1)}),
)
law_witness(
    "K5",
    "nothing is chosen among verified candidates",
    "Of two chains of drafts that were both verified by rejection, the longer one is kept.",
    base=mean_field,
    flawed=partial(rejection, candidates=2),
    sound=rejection,
    case=table_case("_", {"_@0": (1, 1)}),
)
law_witness(
    "K6",
    "noise that orders the positions and is drawn once for the whole run has no ties",
    "Equal numbers are told apart by position, and stay so step after step, while fresh ones would not.",
    base=partial(random_order, ties=True),
    flawed=partial(random_order, ties=True, frozen=True),
    sound=partial(random_order, frozen=True),
    sound_base=random_order,
    case=table_case("___", {"a__@1": (1, 1)}),
)
law_witness(
    "K7",
    "the coin that accepts is hidden from the drafter",
    "The drafter's tokens have the law it says, but unlikely ones are proposed where the coin will take them.",
    base=mean_field,
    flawed=partial(rejection, coin_hidden=False),
    sound=rejection,
    case=table_case("_", {"_@0": (2, 1)}, {"_@0": (1, 1)}),
)
path_witness(
    "C1age",
    "the age of the cache is the true state's",
    "The age is copied from the drafted state, which counts from the root, and a refresh comes too late.",
    base=partial(every_n, n=3),
    flawed=partial(every_n_walk, n=3, true_age=False),
    sound=partial(every_n_walk, n=3),
    case=path_case("____", {"aaa_@3": (1, 2)}, "a___"),
)
path_witness(
    "C3b",
    "the epoch of the cache is part of the key",
    "A state that the base would refresh for is read from the old cache, because its canvas is in the table.",
    base=partial(every_n, n=1),
    flawed=partial(every_n_walk, n=1, epoch_in_key=False),
    # With a refresh at every step nothing can ever be accepted.
    sound=partial(every_n_walk, n=2),
    sound_base=partial(every_n, n=2),
    case=path_case("__", {"__@1": (2, 1), "_a@0": (1, 2)}, "_a"),
)
path_witness(
    "C3c",
    "the path by which a state was reached is part of the key when the cache depends on it",
    "Two drafted paths meet in one canvas and are merged, though they froze different keys and values.",
    base=delayed,
    flawed=partial(delayed_walk, path_in_key=False),
    sound=delayed_walk,
    case=path_case("___", {"a__@2": (2, 1), "a_a|a__,___,___@1": (1, 2)}, "__a>a_a", "a__"),
)
