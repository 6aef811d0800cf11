"""Ways to decode the same problems, timed in turns: medians over paired passes, calls, rows, positions and answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..decoding import decode
from ..ir.errors import TrajspecError
from .loops import fast_dllm, vanilla

#: Fewer pairs say nothing about a median's spread.
LEAST_RUNS = 3
HEAD = (
    f"{'':26} {'calls':>6} {'rows':>6} {'positions':>9} {'tok/call':>8} {'ms/token':>8} {'spread':>15} {'ratio':>6} "
    "same"
)


@dataclass(frozen=True)
class Problem:
    """What is decoded: `prompt` as `decode` takes it, the canvas that it is, and where its generated part begins."""

    prompt: Any
    tokens: list[int]
    start: int
    infill: bool
    masks: int


def problems_of(model: Any, prompts: Sequence[Any], gen_length: int, infill: bool) -> list[Problem]:
    """The problems that texts, conversations or, with `infill`, texts with masks are for `model`."""
    found = []
    for prompt in prompts:
        if infill:
            written = model.encode_infill(prompt)
            found.append(Problem(prompt, list(written.tokens), 0, True, sum(written.masked)))
        else:
            text = prompt if isinstance(prompt, str) else model.chat(prompt)
            written = model.encode_prompt(text, gen_length)
            found.append(Problem(prompt, list(written.tokens), written.prompt_length, False, sum(written.masked)))
    return found


class Method:
    """One way to decode: `run(problem)` gives the answer, calls, rows, positions and seconds of compiling."""

    def __init__(self, name: str, run: Callable[[Problem], tuple[list[int], int, int, int, float]]) -> None:
        self.name, self.run = name, run
        self.seconds: list[float] = []
        self.compiling = 0.0
        self.cost = [0, 0, 0]
        self.answers: list[list[int]] = []
        self.tokens = 0

    def once(self, problems: Sequence[Problem], keep: bool) -> None:
        """One pass over the problems."""
        began = time.perf_counter()
        found = [self.run(problem) for problem in problems]
        took = time.perf_counter() - began
        compiling: float = sum(one[4] for one in found)
        self.compiling += compiling
        self.answers = [one[0] for one in found]
        pairs = zip(problems, self.answers, strict=True)
        self.tokens = sum(problem.masks if problem.infill else len(said) for problem, said in pairs)
        self.cost = [sum(column) for column in list(zip(*found, strict=True))[1:4]]
        if keep:
            self.seconds.append(took - compiling)


def _answer(ids: list[int], eos: tuple[int, ...]) -> list[int]:
    """The tokens up to the first end."""
    ends = [place for place, token in enumerate(ids) if token in eos]
    return ids[: ends[0]] if ends else ids


def _published(model: Any, loop: Any, block_length: int | None, **options: Any) -> Any:
    """A published loop as a method's run."""

    def run(problem: Problem) -> tuple[list[int], int, int, int, float]:
        done = loop(model, problem.tokens, problem.start, block_length, **options)
        ids = done.x[0].tolist()
        said = model.content_ids(ids) if problem.infill else _answer(ids[problem.start :], model.eos_ids)
        return said, done.calls, done.calls, done.positions, 0.0

    return run


def _ours(model: Any, gen_length: int, block_length: int | None, **options: Any) -> Any:
    """`decode` as a method's run."""

    def run(problem: Problem) -> tuple[list[int], int, int, int, float]:
        told = {"infill": True} if problem.infill else {"gen_length": gen_length}
        row = decode(model, [problem.prompt], block_length=block_length, keep_path=False, **told, **options)[0]
        said = row.token_ids if problem.infill else _answer(row.token_ids, model.eos_ids)
        return said, row.calls, row.rows, row.positions, row.compile_seconds

    return run


def methods(
    model: Any, *, infill: bool, gen_length: int, block_length: int | None, threshold: float, compiles: bool,
    nodes: int,
) -> list[Method]:  # fmt: skip
    """Every way to decode with the threshold rule: published loops, then this library's, of which the first is the
    policy alone, eager, which answers are compared with."""
    cached = model.supports_cache and not infill

    def loop(which: Any, **options: Any) -> Any:
        return _published(model, which, block_length, **options)

    found = [
        Method("LLaDA, one a call", loop(vanilla)),
        Method("Fast-dLLM none", loop(fast_dllm, threshold=threshold, cache="none")),
    ]
    if cached:
        found += [
            Method(f"Fast-dLLM {view}", loop(fast_dllm, threshold=threshold, cache=view)) for view in ("prefix", "dual")
        ]
    told = {"policy": "fastdllm_threshold", "threshold": threshold, "cache": "dual" if cached else "full"}
    ways: list[tuple[str, dict[str, Any]]] = [
        (f"trajspec {told['cache']}", {}), (f"  tree, {nodes} nodes", {"draft": "tree", "nodes": nodes}),
        ("  auto", {"draft": "auto"}),
    ]  # fmt: skip
    if compiles:
        # The rounds of a tree take minutes to compile, a graph for every way in which states share a call.
        ways += [("  compiled", {"compile": True}), ("  compiled, auto", {"draft": "auto", "compile": True})]
    return found + [Method(name, _ours(model, gen_length, block_length, **told, **options)) for name, options in ways]


def compare(
    model: Any, problems: Sequence[Problem], *, gen_length: int = 128, block_length: int | None = 32,
    threshold: float = 0.9, runs: int = 7, compiles: bool = False, nodes: int = 8,
    show: Callable[[str], None] = print,
) -> list[dict[str, Any]]:  # fmt: skip
    """Time every method on `problems`, one at a time, in `runs` paired passes after two that warm up; a dict a method.

    `show` is given the lines of the table. ratio: the median over the passes of how many times the last published loop
    takes as long. same: answers, up to EOS, that are those of the policy alone. Raises TrajspecError for too few runs,
    no problems, or problems of both kinds.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < LEAST_RUNS:
        raise TrajspecError(f"runs is {runs!r}, expected how many passes are timed: at least {LEAST_RUNS}")
    kinds = {problem.infill for problem in problems}
    if len(kinds) != 1:
        raise TrajspecError("give problems to compare on, all of them to continue or all of them to fill in")
    infill = kinds.pop()
    block_length = None if infill else block_length
    found = methods(
        model, infill=infill, gen_length=gen_length, block_length=block_length, threshold=threshold,
        compiles=compiles, nodes=nodes,
    )  # fmt: skip
    for method in found:
        for _ in range(2):  # compiles and warms up
            method.once(problems, keep=False)
    for _ in range(runs):
        for method in found:
            method.once(problems, keep=True)
    against = [method for method in found if method.name.startswith("Fast-dLLM")][-1]
    base = next(method for method in found if method.name.startswith("trajspec"))
    show(f"{HEAD}   (ratio: {against.name} = 1)")
    return [_line(method, against, base, show) for method in found]


def _line(method: Method, against: Method, base: Method, show: Callable[[str], None]) -> dict[str, Any]:
    tokens = max(method.tokens, 1)
    low, middle, high = statistics.quantiles([1e3 * seconds / tokens for seconds in method.seconds], n=4)
    ratio = statistics.median(a / b for a, b in zip(against.seconds, method.seconds, strict=True))
    same = sum(mine == theirs for mine, theirs in zip(method.answers, base.answers, strict=True))
    calls, rows, positions = method.cost
    compiling = f"  ({method.compiling:.0f} s to compile)" if method.compiling else ""
    show(
        f"{method.name:26} {calls:>6} {rows:>6} {positions:>9} {tokens / calls:>8.2f} {middle:>8.2f} "
        f"{f'{low:.2f} - {high:.2f}':>15} {ratio:>6.2f} {same} of {len(base.answers)}{compiling}"
    )
    return {
        "method": method.name.strip(), "calls": calls, "rows": rows, "positions": positions, "tokens": tokens,
        "ms_per_token": middle, "quartiles": [low, high], "ratio": ratio, "same": same,
        "compile_seconds": method.compiling, "torch": torch.__version__, "threads": torch.get_num_threads(),
    }  # fmt: skip


__all__ = ["HEAD", "LEAST_RUNS", "Method", "Problem", "compare", "methods", "problems_of"]
