"""Problems with exact answers for the bundled model: word problems, sorting and small Python functions.

An item is a pure function of (task, split, index). A prompt belongs to exactly one split, decided by a hash of its
text, so no test prompt can be met in training however many items either side draws.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

SPLITS = ("train", "test")

NAMES = ("tom", "ann", "bob", "eva", "max", "mia", "sam", "zoe")
ITEMS = ("apples", "books", "cards", "coins", "pens", "shells", "stamps", "toys")
GAINS = ("buys", "finds", "gets", "wins")
LOSSES = ("drops", "gives", "loses", "sells")

FUNCTIONS = ("calc", "find", "func", "join", "make", "scan", "take", "work")
FOLDS = ("sum", "count", "product", "list")
TESTS = ("all", "even", "odd", "over", "under")
MAPS = ("as is", "plus", "minus", "times", "squared")


@dataclass(frozen=True)
class Item:
    """One problem: what the user asks and the one reference answer."""

    task: str
    prompt: str
    completion: str


def split_of(prompt: str) -> str:
    """The split a prompt belongs to: one prompt in ten is for testing."""
    return "test" if hashlib.sha256(prompt.encode()).digest()[0] % 10 == 0 else "train"


def item(task: str, split: str, index: int) -> Item:
    """Item `index` of a split; draws again until the prompt falls into the split."""
    known = TASKS | DRILLS
    if task not in known:
        raise ValueError(f"unknown task {task!r}, expected one of {sorted(known)}")
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}, expected one of {SPLITS}")
    if task in DRILLS and split != "train":
        raise ValueError(f"{task!r} is a drill: it has no {split!r} split, ask for 'train'")
    rng = random.Random(f"{task}/{split}/{index}")
    while True:
        prompt, completion = known[task](rng)
        if split_of(prompt) == split:
            return Item(task, prompt, completion)


def is_correct(problem: Item, completion: str) -> bool:
    """Whether `completion` answers the problem exactly; runs nothing of what it is given."""
    if problem.task == "code":
        return same_program(problem.completion, completion)
    return completion.split() == problem.completion.split()


def same_program(reference: str, candidate: str) -> bool:
    """Whether two sources parse to the same tree up to a consistent renaming of arguments and local variables."""
    try:
        trees = [ast.parse(source) for source in (reference, candidate)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return canonical(trees[0]) == canonical(trees[1])


def canonical(tree: ast.AST) -> str:
    """A dump of the tree in which bound names are numbered by first use; names of functions and builtins stay."""
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    numbers: dict[str, str] = {}

    class Rename(ast.NodeTransformer):
        def visit_arg(self, node: ast.arg) -> ast.arg:
            node.arg = numbers.setdefault(node.arg, f"v{len(numbers)}")
            return node

        def visit_Name(self, node: ast.Name) -> ast.Name:
            if node.id in bound:
                node.id = numbers.setdefault(node.id, f"v{len(numbers)}")
            return node

    return ast.dump(Rename().visit(tree))


def change_of(rng: random.Random, have: int, gain: bool, carry: bool) -> int:
    """An amount from 1 that may be added to or taken from `have`; without `carry` each digit stays within 0..9."""
    if carry:
        return rng.randint(1, 99 - have if gain else have)
    tens, units = ((9 - digit if gain else digit) for digit in divmod(have, 10))
    while True:
        if change := 10 * rng.randint(0, tens) + rng.randint(0, units):
            return change


def arith(rng: random.Random, carry: bool = False) -> tuple[str, str]:
    """One to three gains and losses, every intermediate amount below 100 and written with two digits."""
    name, things, steps = rng.choice(NAMES), rng.choice(ITEMS), rng.choices((1, 2, 3), (15, 35, 50))[0]
    have = rng.randrange(100)
    asked, told = f"{name} has {have:02d} {things}", []
    for _ in range(steps):
        gain = have == 0 or (have < 99 and rng.random() < 0.5)
        change = change_of(rng, have, gain, carry)
        asked += f" {rng.choice(GAINS if gain else LOSSES)} {change:02d}"
        after = have + change if gain else have - change
        told.append(f"{have:02d} {'+' if gain else '-'} {change:02d} = {after:02d}")
        have = after
    return f"{asked} ?", f" {'; '.join(told)}; {name} has {have:02d} {things} #### {have:02d}"


def sort(rng: random.Random, shortest: int = 3, longest: int = 5) -> tuple[str, str]:
    """Three to five different two-digit prices, upwards and downwards."""
    prices = rng.sample(range(100), rng.randint(shortest, longest))
    up = " ".join(f"${price:02d}" for price in sorted(prices))
    down = " ".join(f"${price:02d}" for price in sorted(prices, reverse=True))
    return f"sort {' '.join(f'${price:02d}' for price in prices)}", f" up {up} down {down}"


def code(rng: random.Random) -> tuple[str, str]:
    """A loop over a list that folds the chosen elements, each changed by one operation."""
    name, fold, test, change = rng.choice(FUNCTIONS), rng.choice(FOLDS), rng.choice(TESTS), rng.choice(MAPS)
    bound, amount = rng.randint(10, 99), rng.randint(2, 9)
    if fold == "count":
        change = "as is"
    chosen = f"{test} {bound}" if test in ("over", "under") else test
    changed = f"{change} {amount}" if change in ("plus", "minus", "times") else change
    value = {"as is": "x", "plus": f"x + {amount}", "minus": f"x - {amount}", "times": f"x * {amount}",
             "squared": "x * x"}[change]
    start = {"product": "1", "list": "[]"}.get(fold, "0")
    update = {"sum": f"s += {value}", "count": "s += 1", "product": f"s *= {value}", "list": f"s.append({value})"}[fold]
    guard = {"even": "x % 2 == 0", "odd": "x % 2 == 1", "over": f"x > {bound}", "under": f"x < {bound}"}.get(test)
    body = f"        {update}\n" if guard is None else f"        if {guard}:\n            {update}\n"
    prompt = f"{name}: {fold} of {chosen}, {changed}"
    return prompt, f"def {name}(xs):\n    s = {start}\n    for x in xs:\n{body}    return s"


def facts(rng: random.Random, carry: bool = False) -> tuple[str, str]:
    """Six sums and differences as `arith` writes them; the trainer hides their results only (ASKED).

    With `carry`, small digits are drawn more often for the second number: a result then resembles the first number,
    which tells the model where to look long before it knows the table. With uniform digits no single operand does.
    """
    lines = []
    for _ in range(6):
        gain = rng.random() < 0.5
        if carry:
            tens, units = rng.choices(range(10), [1 / (1 + digit) for digit in range(10)], k=2)
            change = 10 * tens + units
            have = rng.randint(0, 99 - change) if gain else rng.randint(change, 99)
        else:
            have = rng.randint(0, 98) if gain else rng.randint(1, 99)
            change = change_of(rng, have, gain, carry)
        after = have + change if gain else have - change
        lines.append(f"{have:02d} {'+' if gain else '-'} {change:02d} = {after:02d}")
    return "", f" {'; '.join(lines)}"


Draw = Callable[[random.Random], tuple[str, str]]
TASKS: dict[str, Draw] = {"arith": arith, "sort": sort, "code": code}

# Easier forms of a task, to train on before it; a drill answers in the words of its task and has no test split.
DRILLS: dict[str, Draw] = {"sort_short": partial(sort, shortest=2, longest=4), "sort_long": partial(sort, longest=7),
                           "facts": facts,
                           "facts_carry": partial(facts, carry=True), "arith_carry": partial(arith, carry=True),
                           "arith_amounts": arith}


# Drills that show all of an answer but some spans.
SHOWN = ("facts", "facts_carry", "arith_amounts")


def asked(problem: Item) -> list[tuple[int, int]] | None:
    """Spans of the answer of a drill that are all hidden at once, the rest being shown; None: the usual random choice.

    `facts` hide every result. `arith_amounts` hide the amounts from one step on: a result alone would be read off its
    copy in the next step.
    """
    if problem.task in ("facts", "facts_carry"):
        return [found.span() for found in re.finditer(r"(?<==) \d\d", problem.completion)]
    if problem.task == "arith_amounts":
        amount = r"(?:(?<==)|(?<=;)|(?<=has)|(?<=####)) \d\d"
        spans = [found.span() for found in re.finditer(amount, problem.completion)]
        step = random.Random(problem.prompt).randrange(problem.completion.count("="))
        return spans[2 * step:]
    return None
