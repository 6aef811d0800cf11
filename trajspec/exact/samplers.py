"""Small stochastic samplers with a speculative form each, and one switch for each condition that may be dropped.

All are written against `laws.Choices`, so their laws are exact. A position that is committed is chosen by target
probabilities, the surest first, ties to the lowest. Sources: theorems B1 to B4 and C0 to C4 of speculative decoding on
trajectories are stated beside the switches; the rejection rule is that of Leviathan et al. (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction

from .laws import Choices, Weights, World
from .program import State

Path = list[State]
Tokens = dict[int, int]
RowsAt = dict[int, Weights]


def masked(state: State) -> list[int]:
    """The masked positions."""
    return [place for place, token in enumerate(state) if token < 0]


def write(state: State, tokens: Tokens) -> State:
    """The state with these tokens at these positions."""
    return tuple(tokens.get(place, token) for place, token in enumerate(state))


def rows_at(model: Callable[[State, int], Weights], state: State) -> RowsAt:
    """The model's weights at every masked position."""
    return {place: model(state, place) for place in masked(state)}


def surest(rows: RowsAt, width: int = 1) -> list[int]:
    """The `width` positions whose likeliest token is likeliest."""
    return sorted(rows, key=lambda place: (-Fraction(max(rows[place]), sum(rows[place])), place))[:width]


def keep_surest(state: State, rows: RowsAt, tokens: Tokens) -> State:
    """Of tokens sampled everywhere, keep the one with the largest probability (LLaDA's low_confidence)."""
    best = min(rows, key=lambda place: (-Fraction(rows[place][tokens[place]], sum(rows[place])), place))
    return write(state, {best: tokens[best]})


def sample(rows: RowsAt, choices: Choices, role: str, key: Callable[[int], Hashable]) -> Tokens:
    """One token at every position, its noise keyed by `key(position)`."""
    return {place: choices.categorical(row, role, key(place)) for place, row in rows.items()}


# Noise that is remembered by its key: flaws K1, K2, K6.


def low_confidence(world: World, choices: Choices) -> Path:
    """The base of K1, K2 and K3: sample a token at every masked position, keep the surest, start again."""
    path = [world.canvas]
    while masked(path[-1]):
        rows, step = rows_at(world.target, path[-1]), len(path)
        tokens = sample(rows, choices, "tok", lambda place, step=step: (step, place))  # type: ignore[misc]
        path.append(keep_surest(path[-1], rows, tokens))
    return path


def seeded_walk(world: World, choices: Choices, *, step_in_key: bool = True) -> Path:
    """Speculation under common noise: the drafter reads the noise of the true step, and may (theorem B1).

    Without `step_in_key` (K1) tokens that were sampled and not kept come back in the next step, although keeping has
    looked at them.
    """
    path = [world.canvas]
    while masked(path[-1]):

        def head(state: State, rows: RowsAt, step: int) -> State:
            def key(place: int) -> Hashable:
                return (step, place) if step_in_key else place

            return keep_surest(state, rows, sample(rows, choices, "tok", key))

        root = path[-1]
        table = {root: rows_at(world.target, root)}
        node = head(root, rows_at(world.draft, root), len(path))
        table[node] = rows_at(world.target, node)
        start = len(path)
        while masked(path[-1]) and path[-1] in table:
            path.append(head(path[-1], table[path[-1]], len(path)))
        choices.log.round(1, len(path) - start - 1 + (not masked(path[-1]) and path[-1] in table))
    return path


def node_walk(world: World, choices: Choices, *, blind: bool = True) -> Path:
    """Speculation with noise keyed by round and node: the law is kept while the drafter cannot see it.

    A drafter that is not `blind` (K2) looks at the noise its node would get, and drafts only where it likes it.
    """
    path, number = [world.canvas], 0
    while masked(path[-1]):
        root = path[-1]
        guess = rows_at(world.draft, root)
        best = surest(guess)[0]
        node = write(root, {best: _likeliest(guess[best])})
        nodes = [root, node]
        if not blind and masked(node):
            place = masked(node)[0]
            if choices.categorical(world.draft(node, place), "tok", (number, 1, place)) != 0:
                nodes = [root]
        start = len(path)
        while masked(path[-1]) and path[-1] in nodes:
            rows, at = rows_at(world.target, path[-1]), nodes.index(path[-1])
            tokens = sample(rows, choices, "tok", lambda place, key=(number, at): (*key, place))  # type: ignore[misc]
            path.append(keep_surest(path[-1], rows, tokens))
        choices.log.round(len(nodes) - 1, len(path) - start - 1)
        number += 1
    return path


def random_order(world: World, choices: Choices, *, frozen: bool = False, ties: bool = False) -> Path:
    """Positions in random order, one token a step: the masked position with the largest order noise comes next.

    `frozen`: one noise a position for the whole run, instead of one a step. With `ties` the noise is a single bit,
    and frozen noise (K6) is then another law; without ties it is the same one.
    """
    path = [world.canvas]
    while masked(path[-1]):
        state, step = path[-1], len(path)
        places = masked(world.canvas if frozen else state)

        def key(place: int, step: int = step) -> Hashable:
            return place if frozen else (step, place)

        if ties:
            noise = {place: choices.categorical((1, 1), "ord", key(place)) for place in places}
        else:
            order: list[int] = []
            for place in places:
                order.insert(choices.categorical([1] * (len(order) + 1), "ord", key(place)), place)
            noise = {place: order.index(place) for place in places}
        place = max(masked(state), key=lambda place: (noise[place], -place))
        path.append(write(state, {place: choices.categorical(world.target(state, place), "tok", (step, place))}))
    return path


def _likeliest(row: Weights) -> int:
    return row.index(max(row))


# Rejection sampling of drafts: flaws K3 to K7.


def couple(p: Weights, q: Weights, token: int, choices: Choices, key: Hashable) -> int:
    """A token of law p out of a draft of law q: kept with probability min(1, p/q), else drawn from (p - q)+."""
    target, draft = ([Fraction(weight, sum(row)) for weight in row] for row in (p, q))
    if choices.flip(min(Fraction(1), target[token] / draft[token]), "coin", key):
        return token
    left = [max(Fraction(0), a - b) for a, b in zip(target, draft, strict=True)]
    return choices.categorical(left, "resid", key)


def mean_field(world: World, choices: Choices, *, width: int = 1) -> Path:
    """The base of K3' to K7: the `width` surest positions by their probabilities, their tokens sampled apart."""
    path = [world.canvas]
    while masked(path[-1]):
        rows = rows_at(world.target, path[-1])
        tokens = {place: choices.categorical(rows[place], "tok", (len(path), place)) for place in surest(rows, width)}
        path.append(write(path[-1], tokens))
    return path


class _Node:
    """A drafted step: from `state`, tokens of law `rows` at positions the drafter chose, to `after`."""

    def __init__(self, state: State, rows: RowsAt, tokens: Tokens) -> None:
        self.state, self.rows, self.tokens, self.after = state, rows, tokens, write(state, tokens)


def rejection(
    world: World,
    choices: Choices,
    *,
    width: int = 1,
    depth: int = 2,
    target_positions: bool = True,
    true_logits: bool = True,
    candidates: int = 1,
    coin_hidden: bool = True,
) -> Path:
    """Speculative sampling of `mean_field`: chains of `depth` drafted steps, each position accepted by itself.

    After a correction the later drafts are still used, against the target at the true state (theorem C4). Dropped
    conditions: positions of the drafter instead of the target (K3'); the target's rows at the drafted state after a
    correction (K4); the longest of several verified `candidates` (K5); a drafter that sees the coin (K7).
    """
    path, number = [world.canvas], 0
    while masked(path[-1]):
        verified, drafted = [], 0
        for candidate in range(candidates):
            key = (number, candidate)
            chain = _draft(world, choices, path[-1], key, width, depth, coin_hidden)
            drafted += len(chain)
            verified.append(_verify(world, choices, path[-1], chain, key, width, target_positions, true_logits))
        states, kept = max(verified, key=lambda item: item[1])
        choices.log.round(drafted, kept)
        path += states
        number += 1
    return path


def _draft(
    world: World, choices: Choices, state: State, key: tuple[int, int], width: int, depth: int, coin_hidden: bool
) -> list[_Node]:
    chain: list[_Node] = []
    while masked(state) and len(chain) < depth:
        rows = rows_at(world.draft, state)
        tokens = {}
        for place in surest(rows, width):
            spot = (*key, len(chain), place)
            if coin_hidden:
                tokens[place] = choices.categorical(rows[place], "draft", spot)
            else:
                # The law of the draft is what it says; only it goes with the coin that will judge it.
                tokens[place] = world.vocab - 1 - choices.categorical(rows[place][::-1], "coin", spot)
        chain.append(_Node(state, rows, tokens))
        state = chain[-1].after
    return chain


def _verify(
    world: World, choices: Choices, state: State, chain: Sequence[_Node], key: tuple[int, int], width: int,
    target_positions: bool, true_logits: bool,
) -> tuple[Path, int]:  # fmt: skip
    states: Path = []
    kept = 0
    for depth, node in enumerate(chain):
        if not masked(state):
            break
        rows = rows_at(world.target, state)
        if not true_logits:
            rows |= {place: row for place, row in rows_at(world.target, node.state).items() if place in rows}
        places: Iterable[int] = surest(rows, width)
        if not target_positions:
            places = [place for place in node.tokens if place in rows] or places
        tokens = {}
        for place in places:
            spot = (*key, depth, place)
            if place in node.tokens:
                tokens[place] = couple(rows[place], node.rows[place], node.tokens[place], choices, spot)
            else:
                tokens[place] = choices.categorical(rows[place], "tok", spot)
        state = write(state, tokens)
        states.append(state)
        kept += state == node.after
    return states, kept


def rejection_sampled(world: World, choices: Choices, *, whole_vector: bool = True, depth: int = 2) -> Path:
    """Speculative sampling of `low_confidence`, whose selection reads the sampled tokens.

    The whole vector of proposals is coupled and the target selects among the coupled tokens (theorem C2). Without
    `whole_vector` (K3) only the position that the drafter selected is coupled, and committed.
    """
    path, number = [world.canvas], 0
    while masked(path[-1]):
        state, start, node = path[-1], len(path), path[-1]
        proposals: list[_Node] = []
        while masked(node) and len(proposals) < depth:
            rows = rows_at(world.draft, node)
            at = len(proposals)
            tokens = sample(rows, choices, "draft", lambda place, at=at, n=number: (n, at, place))  # type: ignore[misc]
            proposals.append(_Node(node, rows, tokens))
            node = keep_surest(node, rows, tokens)
        kept = 0
        for at, drafted in enumerate(proposals):
            if state != drafted.state:
                break
            rows = rows_at(world.target, state)
            wanted = keep_surest(state, drafted.rows, drafted.tokens)
            places = list(rows) if whole_vector else [place for place in rows if wanted[place] >= 0]
            coupled = {
                place: couple(rows[place], drafted.rows[place], drafted.tokens[place], choices, (number, at, place))
                for place in places
            }
            state = keep_surest(state, {place: rows[place] for place in places}, coupled)
            path.append(state)
            kept += state == wanted
        choices.log.round(len(proposals), kept)
        assert len(path) > start
        number += 1
    return path
