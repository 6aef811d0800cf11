"""How many model calls the drafters save on whole antibody domains, with the weights of antiberty.

    python bench/antiberty_calls.py [--quick]

Three canvases with every residue masked (122, 112 and 119), and the same with the first 20 residues of trastuzumab's
heavy chain given; one window over the whole canvas, full view. All numbers are sums over the three. Every run's text
and path are compared with the base's. `nodes` counts the states of a packed call, the root included.
"""

from __future__ import annotations

import argparse
from typing import Any

import trajspec as ts

LENGTHS = (122, 112, 119)
GIVEN = "EVQLVESGGGLVQPGGSLRL"
#: What the drafter `ranks` is calibrated on: other lengths, and the first residues of other published antibodies.
OTHERS = (
    "_" * 116,
    "_" * 125,
    "_" * 107,
    "QVQLQ" + "_" * 116,  # rituximab, heavy chain
    "QVQLVQSGVE" + "_" * 110,  # pembrolizumab, heavy chain
    "DIQMTQSPSSLS" + "_" * 95,  # adalimumab, light chain
)


def rows_of(result: Any) -> list[Any]:
    """Text and path of every row: what must not depend on the drafter."""
    return [(row.text, row.path) for row in result]


def summed(result: Any, name: str) -> int:
    return sum(getattr(row, name) for row in result)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--quick", action="store_true", help="threshold 0.9 and 8 nodes only")
    quick = reader.parse_args().quick
    model = ts.load_model("antiberty")
    print("given threshold nodes drafter   calls  saved   rows  positions")
    for threshold in (0.9,) if quick else (0.9, 0.7, 0.5):
        told = {"threshold": threshold, "block_length": None}
        ranks = ts.calibrate(model, OTHERS, **told)
        for given in ("", GIVEN):
            texts = [given + "_" * (length - len(given)) for length in LENGTHS]
            base = ts.infill(model, texts, **told)
            line(given, threshold, 1, "none", base, base)
            for nodes in (8,) if quick else (4, 8, 16):
                for drafter in ("chain", "tree", "frozen", ranks):
                    ours = ts.infill(model, texts, draft=drafter, nodes=nodes, **told)
                    assert rows_of(ours) == rows_of(base), (given, threshold, nodes, drafter)
                    line(given, threshold, nodes, getattr(drafter, "name", drafter), ours, base)


def line(given: str, threshold: float, nodes: int, name: str, ours: Any, base: Any) -> None:
    calls, before = summed(ours, "calls"), summed(base, "calls")
    print(
        f"{len(given):5} {threshold:9} {nodes:5} {name:8} {calls:6} {1 - calls / before:6.0%} {summed(ours, 'rows'):6} "
        f"{summed(ours, 'positions'):10}",
        flush=True,
    )


if __name__ == "__main__":
    main()
