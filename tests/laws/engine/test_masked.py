"""Masked problems: their derivatives, and that blocks of intervals are the same as all at once."""

import numpy as np
import pytest

from bulkedge.laws.attention.causal_head import causal_equations, row_terms
from bulkedge.laws.engine import masked_equations as module


@pytest.fixture(scope="module")
def problem():
    return causal_equations(row_terms(0.8, 40, 300, qk_norm=False), 300, 12)


@pytest.fixture(scope="module")
def start(problem):
    """Points, and unknowns about those of far away."""
    rng = np.random.default_rng(0)
    w = np.exp(np.log(problem.pulls.sum()) + rng.uniform(-1, 1, 3) + 1j * rng.uniform(0.5, 2.5, 3))
    far = problem.far(w)
    return w, far + 0.1 * (rng.standard_normal(far.shape) + 1j * rng.standard_normal(far.shape))


def test_derivatives_are_those_of_the_equations(problem, start):
    """Differences of the equations along a random change of the unknowns, in the intervals and at both ends."""
    w, state = start
    rng, step = np.random.default_rng(1), 1e-6  # a pole is near: the third derivative is of the order 1e5
    change = rng.standard_normal(state.shape) + 1j * rng.standard_normal(state.shape)
    linear, _ = problem.linearised(state, w)
    above, below = (problem.linearised(state + sign * step * change, w)[0] for sign in (1, -1))
    inner = (linear.before @ change[:-1, ..., None] + linear.after @ change[1:, ..., None])[..., 0]
    np.testing.assert_allclose((above.misses - below.misses) / (2 * step), inner, rtol=1e-6, atol=1e-7)
    for which, place in (("first", 0), ("last", -1)):
        wanted = (getattr(linear, which)[1] @ change[place][..., None])[..., 0]
        difference = (getattr(above, which)[0] - getattr(below, which)[0]) / (2 * step)
        np.testing.assert_allclose(difference, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("block", [1, 5000])
def test_blocks_make_no_difference(problem, start, block, monkeypatch):
    w, state = start
    wanted, cauchy = problem.linearised(state, w)
    monkeypatch.setattr(module, "BLOCK", block)
    found, again = problem.linearised(state, w)
    np.testing.assert_allclose(again, cauchy, rtol=1e-13)
    for mine, exact in zip(found[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-12, atol=1e-13)
    for mine, exact in zip((*found.first, *found.last), (*wanted.first, *wanted.last), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-12, atol=1e-13)
