"""Profiled sums: the mass that they count in gaps, and how many variables they take."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.engine.subordination.fixed_point import descend, newton
from bulkedge.laws.engine.subordination.problem import WorkBudget
from bulkedge.laws.engine.subordination.support import SupportSurvey
from bulkedge.laws.law import Law


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

        def sides(groups, terms=count + 1):
            weights = rng.dirichlet(np.ones(groups))
            return normalised(weights, np.exp(rng.uniform(-1.5, 1.5, (terms, groups))))

        problem = ProfiledSum(variances, ratios, sides(3), sides(6))
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
    assert len(head.profiled_sum().variances) > 4
    assert head.profiled_sum().size == head.with_columns([1.0, 2.0]).profiled_sum().size == 2
    assert be.FiniteHeadLaw(0.7, 64, 1200).profiled_sum().size == 2 * len(
        be.FiniteHeadLaw(0.7, 64, 1200).profiled_sum().ratios
    )


HEAD = be.FiniteHeadLaw(0.9, 48, 3000)


def states(problem, rng, count=12):
    """Points of the line, and variables about those of far away, in the upper half-plane."""
    x = rng.uniform(0.05, 1.0, count) * problem.bounds()[1] / 4
    far = problem.far(x + 0j)
    return x, far * np.exp(0.3 * rng.standard_normal(far.shape)) + 0.2j * np.abs(far)


def problems(rng):
    """A head; and sums of two terms, with as many groups of rows as of columns, and with more."""
    shapes = [(3, 3), (2, 5)]
    sums = [
        [normalised(rng.dirichlet(np.ones(count)), np.exp(rng.uniform(-1, 1, (2, count)))) for count in shape]
        for shape in shapes
    ]
    return HEAD.profiled_sum(), *(ProfiledSum(np.array([1.0, 0.3]), np.array([0.4, np.inf]), *each) for each in sums)


def test_the_jacobian_is_the_derivative_of_a_round():
    """In each variable, by central differences."""
    rng = np.random.default_rng(7)
    for problem in problems(rng):
        x, u = states(problem, rng)
        z = x + 0.3j
        _, jacobian, _ = problem.step(u, z)
        for k in range(len(u)):
            moved = np.zeros_like(u)
            moved[k] = 1e-5 * np.abs(u[k])
            high, low = (problem.step(u + side * moved, z)[0] + side * moved for side in (1, -1))
            np.testing.assert_allclose((high - low) / (2 * moved[k]), jacobian[:, k], rtol=1e-6, atol=1e-9)


def test_real_points_stay_real():
    """In gaps the round is done in real numbers, and is the same."""
    for problem in problems(np.random.default_rng(8)):
        x, u = states(problem, np.random.default_rng(8))
        found, wanted = problem.step(u.real + 0j, x + 0j), problem.step(u.real + 1e-30j, x + 0j)
        assert found[0].dtype == found[1].dtype == float
        for mine, exact in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, exact.real, rtol=1e-9, atol=1e-11 * np.abs(exact).max())
        # beyond the origin roots are imaginary, and so is all else
        assert problem.step(u.real + 0j, -x + 0j)[0].dtype == complex


def test_points_do_not_know_of_each_other():
    """Newton's method for many points is that for each of them, whether they converge or not."""
    problem, rng = HEAD.profiled_sum(), np.random.default_rng(9)
    x, u = states(problem, rng, 24)
    z = x + 1j * np.where(np.arange(24) % 2, 0.0, 0.1 * x)
    found, lost = newton(problem.step, z, u, 12)
    for k in range(24):
        one, failed = newton(problem.step, z[k : k + 1], u[:, k : k + 1], 12)
        assert len(failed) == (k in lost)
        if not len(failed):
            np.testing.assert_allclose(found[:, k], one[:, 0], rtol=1e-9)
    assert 0 < len(lost) < 24


def test_proofs_led_from_neighbours_are_those_from_above():
    """Points all over the line, proved at once: the same side and the same variables as by descent from far above."""
    problem, rng = HEAD.profiled_sum(), np.random.default_rng(10)
    x = np.sort(np.exp(rng.uniform(np.log(1e-6), np.log(problem.bounds()[1]), 30)))
    with np.errstate(all="ignore"):
        survey = SupportSurvey(
            problem, WorkBudget().meter(problem), (), np.zeros(0), np.zeros(0), np.zeros((problem.size, 0)) + 0j
        )
        state, decided = survey.prove(x)
        wanted, sure = descend(problem.step, x, problem.far)
    assert decided.all()
    assert sure.all()
    inside = np.all(state.imag > 0, axis=0)
    np.testing.assert_array_equal(inside, np.all(wanted.imag > 0, axis=0))
    assert 5 < inside.sum() < 25
    np.testing.assert_allclose(state, wanted, rtol=1e-7)


def test_a_gap_that_no_resolution_finds_is_given_up():
    """Looked for at 1e-6 and 1e-8 of the points, and no closer: the mass that is missing is refused elsewhere."""
    looked = []
    survey = SimpleNamespace(
        runs=lambda: (np.array([0, 2]), np.array([1, 3])),
        mass=np.array([0.0, 0.4, 0.4, 1.0]),
        rounds=0,
        _sharpen=lambda fine, coarse: looked.append((fine.tolist(), coarse.tolist())),
    )
    found = [SupportSurvey.complete(survey, np.array([0.4, 0.5])) for _ in range(6)]
    assert found == [False, False, True, True, True, True]
    assert looked == [([0, 0], [2, 2])] * 2
    assert SupportSurvey.complete(SimpleNamespace(**vars(survey) | {"rounds": 0}), np.array([0.4, 0.6]))
