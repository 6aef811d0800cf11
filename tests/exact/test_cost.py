"""Cost formulas: beside counted runs, and the identities that they stand for."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sympy

import trajspec as ts
from trajspec.exact.certificate import certify
from trajspec.exact.tabular import FixedModel, HashModel
from trajspec.ir.canvas import canvas
from trajspec.ir.interpret import run
from trajspec.passes import speculate
from trajspec.passes.cost import SYMBOLS, break_even, chain_advance, cost, expression
from trajspec.passes.speculate import named
from trajspec.policies import POLICIES

ONE = POLICIES["llada_low_confidence"]


def symbol(name: str) -> sympy.Symbol:
    (found,) = expression(name).free_symbols
    return found


def test_every_formula_is_of_known_symbols():
    plans = [ONE.plan(view) for view in ("full", "prefix", "dual", "block_causal")]
    plans += [speculate(plan, "chain") for plan in plans] + [speculate(plans[0], "chain", carried=False)]
    for plan in plans:
        for name, formula in cost(plan).items():
            assert {symbol.name for symbol in expression(formula).free_symbols} <= set(SYMBOLS), (name, formula)
        assert certify(plan).cost == {name: expression(formula) for name, formula in cost(plan).items()}


@pytest.mark.parametrize("carried", [True, False])
@pytest.mark.parametrize(("view", "nodes"), [("full", 1), ("full", 4), ("dual", 4), ("block_causal", 3)])
def test_calls_lie_between_the_bounds(view, nodes, carried):
    base = ONE(block_length=4).plan(view)
    plan = speculate(base, named("chain")(nodes=nodes), carried=carried)
    formulas = {name: expression(formula) for name, formula in cost(plan).items()}
    fewest = []
    for seed in range(6):
        x = canvas([], gen_length=8, vocab_size=4, mask_id=3)
        # The second kind of model never looks at the canvas: a chain is always right.
        model = HashModel(seed, 4, 50) if seed % 2 else FixedModel([(n % 3, 9.0 - n) for n in range(8)], 4)
        calls = run(base, model, x).calls
        got = run(plan, model, x)
        lower, upper = (int(formulas[name].subs(symbol("N"), calls)) for name in ("nfe_lower", "nfe_upper"))
        assert lower <= got.calls <= upper
        assert got.rows <= got.calls * formulas["states_per_call"]
        fewest.append(got.calls - lower)
    # The first round knows no logits, and the view that never looks ahead none of a new block.
    assert min(fewest) <= {"full": 1, "dual": 2, "block_causal": 3}[view]


def test_rechecking_takes_two_calls_a_step_at_most():
    plan = speculate(ONE(block_length=4), named("chain")(nodes=4), recheck=1.0)
    assert expression(cost(plan)["nfe_upper"]) == 2 * symbol("N")
    x = canvas([], gen_length=8, vocab_size=4, mask_id=3)
    for seed in range(4):
        # With two levels nearly every decision is thin.
        calls = run(plan, HashModel(seed, 4, 2), x).calls
        assert run(ONE(block_length=4).plan(), HashModel(seed, 4, 2), x).calls < calls <= 16


def test_positions_of_a_call():
    L, n = symbol("L"), symbol("n")
    full = {name: expression(text) for name, text in cost(speculate(ONE, named("chain")(nodes=4))).items()}
    assert full["positions_per_call"] == 4 * L
    dual = cost(speculate(ONE(block_length=8), named("chain")(nodes=4), view="dual"))["positions_per_call"]
    assert sympy.expand(expression(dual) - (4 * 8 + n * (L - 8))) == 0
    guided = POLICIES["llada_low_confidence"](cfg_scale=1.0).plan()
    assert expression(cost(guided)["positions_per_call"]) == 2 * L


def test_a_policy_that_asks_nothing_has_a_cost_as_well():
    @ts.policy
    def silent(x, logits):
        """Writes what stands there."""
        return ts.unmask(x, ts.tokens(x), where=ts.masked(x))

    assert cost(silent.plan())["positions_per_call"] == "0" and certify(silent.plan()).as_dict()["level"] == "BITWISE"


def test_the_advance_of_a_chain_is_a_geometric_sum():
    alpha, d = symbol("alpha"), symbol("d")
    closed = (1 - alpha ** (d + 1)) / (1 - alpha)
    for depth in range(6):
        exact = expression(chain_advance(depth)).doit()
        assert sympy.cancel(exact - closed.subs(d, depth)) == 0
        assert exact.subs(alpha, 1) == depth + 1
    half = sympy.Rational(1, 2)
    assert expression(chain_advance()).subs({alpha: half, d: 3}).doit() == sympy.Rational(15, 8)


def test_break_even_is_where_one_drafted_state_pays():
    alpha, delta, c2 = symbol("alpha"), symbol("delta"), symbol("c2")
    speedup = expression(chain_advance(1)).doit() / (c2 + delta)
    (threshold,) = sympy.solve(sympy.Eq(speedup, 1), alpha)
    assert sympy.simplify(threshold - expression(break_even())) == 0
    values = {c2: sympy.Rational(11, 10), delta: sympy.Rational(1, 20)}
    at = expression(break_even()).subs(values)
    small = sympy.Rational(1, 100)
    assert speedup.subs(values).subs(alpha, at + small) > 1 > speedup.subs(values).subs(alpha, at - small)


def test_formulas_print_as_latex():
    assert sympy.latex(certify(speculate(ONE, "chain")).cost["nfe_lower"]) == r"\left\lceil{\frac{N}{8}}\right\rceil"


def test_text_needs_no_sympy():
    code = (
        "import sys\n"
        "from trajspec.passes import speculate\n"
        "from trajspec.passes.cost import cost\n"
        "from trajspec.policies import POLICIES\n"
        "cost(speculate(POLICIES['klass'], 'chain'))\n"
        "assert 'sympy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
