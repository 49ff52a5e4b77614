"""Profiled sums: the mass that they count in gaps, and how many variables they take."""

from itertools import pairwise

import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.base import Law
from bulkedge.laws.engine.fixed_point import descend
from bulkedge.laws.engine.gaps import bulk_of
from bulkedge.laws.engine.profiles import Profile, ProfiledSum, Sizes


class Sum(Law):
    atoms = ()
    unit = be.Unit.SQUARED

    def __init__(self, problem):
        self.problem = problem

    def _bulk(self):
        return bulk_of(self.problem, ())


def normalised(weights, squares):
    return Profile(np.array(weights), np.array(squares) / (np.array(squares) @ np.array(weights))[:, None])


ALIKE = Profile(np.ones(1), np.ones((1, 1)))
UNEQUAL = normalised([0.8, 0.2], [[1.0, 1000.0]])


@pytest.mark.parametrize(("rows", "columns"), [(UNEQUAL, ALIKE), (ALIKE, UNEQUAL)])
def test_large_rows_or_columns_are_counted_once(rows, columns):
    """Noise of which a fifth of the rows is larger by far: a fifth of the values lies beyond the gap, exactly."""
    problem = ProfiledSum(np.ones(1), np.array([np.inf]), rows, columns)
    law = Sum(problem)
    assert len(law.support) == 2
    middle = np.array([np.sqrt(law.support[0][1] * law.support[1][0])])
    state, decided = descend(problem.step, middle, problem.far)
    assert decided.all()
    assert problem.count(state.real, middle) == pytest.approx(0.8, abs=1e-12)
    assert law.cdf(middle) == pytest.approx(0.8, abs=1e-10)


def test_counted_mass_is_the_mass_of_the_density_in_every_gap():
    """Random sums of one to three low-rank terms and noise, whose rows and columns fall into groups of other sizes."""
    rng, gaps = np.random.default_rng(5), 0
    for _ in range(8):
        count = int(rng.integers(1, 4))
        ratios = np.append(np.exp(rng.uniform(-4, 0, count)), np.inf)
        variances = np.append(np.exp(rng.uniform(-1, 2, count)), 0.1)

        def sides(terms=count + 1):
            weights = rng.dirichlet(np.ones(3))
            return normalised(weights, np.exp(rng.uniform(-1.5, 1.5, (terms, 3))))

        shared = Sizes(np.array([0.7, 0.3]), np.array([0.1, 1.0]) / 0.37)
        problem = ProfiledSum(variances, ratios, sides(), sides()._replace(shared=shared))
        law = Sum(problem)
        for (_, low), (high, _) in pairwise(law.support):
            middle = np.array([(low + high) / 2])
            state, decided = descend(problem.step, middle, problem.far)
            assert decided.all()
            assert problem.count(state.real, middle) == pytest.approx(law.cdf(middle), abs=1e-9)
            gaps += 1
    assert gaps >= 4


def test_terms_share_variables_where_their_profiles_are_the_same():
    head = be.FiniteHeadLaw(0.7, 64, 1200, qk_norm=True)
    assert len(head.profiled().variances) > 4
    assert head.profiled().size == head.with_columns([1.0, 2.0]).profiled().size == 2
    assert be.FiniteHeadLaw(0.7, 64, 1200).profiled().size == 2 * len(be.FiniteHeadLaw(0.7, 64, 1200).profiled().ratios)


def test_shared_sizes_are_groups_of_their_own():
    """One factor of the sizes for all terms is the same as groups for each pair of size and group."""
    rows, shared = normalised([0.4, 0.6], [[1.0, 2.0], [3.0, 1.0]]), Sizes(np.array([0.5, 0.5]), np.array([0.4, 1.6]))
    squares = (shared.squares[:, None] * rows.squares[:, None]).reshape(2, -1)
    every = Profile(np.outer(shared.weights, rows.weights).ravel(), squares)
    variances, ratios = np.array([1.0, 0.5]), np.array([0.5, np.inf])
    first = Sum(ProfiledSum(variances, ratios, rows._replace(shared=shared), rows))
    second = Sum(ProfiledSum(variances, ratios, every, rows))
    x = second.ppf(np.linspace(0.01, 0.99, 20))
    assert np.ravel(first.support) == pytest.approx(np.ravel(second.support), rel=1e-12)
    assert first.pdf(x) == pytest.approx(second.pdf(x), rel=1e-11)
