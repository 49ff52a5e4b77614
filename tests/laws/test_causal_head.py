"""The law of causal heads: its equations, their discretisation, and its limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.laws.attention.causal_head import causal_equations, column_popularity, mesh_intervals, row_terms
from bulkedge.laws.engine.masked_density import density, newton, solve_ray, turn
from bulkedge.laws.engine.masked_equations import MaskedProblem, SizeGroups, mesh
from bulkedge.visibility import prefix_mean_values

LAW = be.CausalHeadLaw(0.8, 64, 1000, qk_norm=True)


def problem(seed, intervals=6):
    """Three terms, one of them noise, with random sizes of rows and columns."""
    rng, tokens = np.random.default_rng(seed), 300
    grid = mesh(tokens, intervals)
    pulls = tokens * np.outer((grid.places - 1) / (grid.places + 1) / grid.places**2, rng.uniform(0.2, 1.0, 3))
    sides = [
        SizeGroups(
            np.full((len(grid.places), 4), 0.25), np.tile(rng.uniform(0.5, 1.5, (3, 4)), (len(grid.places), 1, 1))
        )
        for _ in range(2)
    ]
    return MaskedProblem(grid, tokens, pulls, np.array([1 / 20, 1 / 100, 0.0]), *sides)


@settings(max_examples=5)
@given(st.integers(0, 1000))
def test_newton_has_the_derivatives_of_the_equations(seed):
    """Against central differences at a random state, in a random direction: 1e-6."""
    equations, rng = problem(seed), np.random.default_rng(seed)
    w = np.array([3 + 1j, 0.2 + 0.5j])
    state = equations.far(w)
    state, step = (
        base + size * (rng.standard_normal(state.shape) + 1j * rng.standard_normal(state.shape))
        for base, size in ((state, 0.05), (0.0, 1e-6))
    )
    linear = equations.linearised(state, w)[0]
    above, below = (equations.linearised(state + sign * step, w)[0] for sign in (1, -1))
    inner = np.einsum("mzij,mzj->mzi", linear.before, step[:-1]) + np.einsum("mzij,mzj->mzi", linear.after, step[1:])
    first, last = (np.einsum("zij,zj->zi", part[1], step[k]) for part, k in ((linear.first, 0), (linear.last, -1)))
    for found, expected in (
        (inner, above.misses - below.misses),
        (first, above.first[0] - below.first[0]),
        (last, above.last[0] - below.last[0]),
    ):
        assert np.allclose(found, expected / 2, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_equations_by_iteration():
    """The boundary value problem against the module's equations, by finer steps and damped iteration: 1e-3."""
    tokens, w = 64, np.array([0.7 + 0.9j])
    equations = causal_equations(row_terms(0.7, 64, tokens, qk_norm=True), tokens, 60)
    logs = np.arange(np.log(4e2), np.log(np.abs(w[0])) - 1, -0.5)
    near = solve_ray(equations, logs, float(np.angle(w[0])))
    start = near.state[:, [np.argmin(np.abs(near.logs.real - np.log(np.abs(w[0]))))]]
    found, done = newton(equations, start, np.log(w))
    assert done.all()
    # cells of rows and columns, finer than tokens, because the equations are those of the continuum
    fine = 8
    edges = np.linspace(1, tokens, fine * (tokens - 1) + 1)
    middles, width = (edges[1:] + edges[:-1]) / 2, 1 / fine
    omega = np.stack([np.interp(middles, equations.grid.places, each) for each in equations.pulls.T], axis=1)
    inverse, z = equations.inverse_ranks, np.sqrt(w[0])
    g, h = np.full(len(middles), 1 / z), np.full(len(middles), 1 / z)
    for _ in range(60):
        first = h[0]
        p, r = np.empty_like(omega, dtype=complex), np.empty_like(omega, dtype=complex)
        value = np.full(len(inverse), first)
        for k in range(len(middles)):
            half = h[k] * width / 2
            value = value + half
            back = omega[k] * g[k] * inverse * width
            p[k] = value / (1 - back / 2 * value)
            value = p[k] / (1 - back / 2 * p[k]) + half
        value = omega[-1] * g[-1] / 2
        for k in range(len(middles) - 1, -1, -1):
            half = omega[k] * g[k] * width / 2
            value = value + half
            back = h[k] * inverse * width
            r[k] = value / (1 - back / 2 * value)
            value = r[k] / (1 - back / 2 * r[k]) + half
        dressed = 1 / (1 - p * r * inverse)
        g = (g + 1 / (z - (omega * p * dressed).sum(axis=1))) / 2
        h = (h + 1 / (z - (r * dressed).sum(axis=1))) / 2
    cauchy = (first + h.sum() * width) / tokens / z
    assert abs(w[0] * (cauchy - found.cauchy[0])) < 1e-3


def test_discretisation():
    """Twice as many intervals move the distribution function by less than 2e-5."""
    terms = row_terms(0.8, 64, 1000, qk_norm=True)
    tables = [density(causal_equations(terms, 1000, intervals)) for intervals in (40, 80)]
    logs = np.linspace(-20, 5.5, 400)
    functions = [np.cumsum(table(logs)) * (logs[1] - logs[0]) for table in tables]
    assert np.abs(functions[1] - functions[0]).max() < 2e-5
    assert abs(tables[0].below - tables[1].below) < 1e-5
    assert abs(tables[0].scale - 1) < 1e-5


def test_mean_is_the_variance_of_all_entries():
    """The sum over rows of ``T/i`` times the variance of an entry, known without the law."""
    terms = row_terms(0.8, 64, 1000, qk_norm=True)
    equations = causal_equations(terms, 1000, 200)
    rows = equations.pulls.sum(axis=1) * equations.grid.places
    expected = equations.grid.weights @ rows
    assert LAW.mean() == pytest.approx(expected, rel=2e-3)


def test_many_dimensions_give_the_law_of_independent_scores():
    """At 300 tokens and 4096 dimensions a degree has nearly full rank: 0.012, where 64 at 1000 tokens are 0.1 off."""
    x = np.array([0.01, 0.1, 1.0, 4.0])
    close = be.CausalHeadLaw(0.5, 4096, 300, qk_norm=True).cdf(x) - be.CausalLaw(np.expm1(0.25)).cdf(x)
    assert np.abs(close).max() < 0.012
    assert np.abs(LAW.cdf(x) - be.CausalLaw(np.expm1(0.64)).cdf(x)).max() > 0.1


def test_equal_popularity_changes_nothing():
    x = np.array([0.01, 0.1, 1.0, 10.0])
    assert LAW.with_columns(np.full(1000, 3.0)).cdf(x) == pytest.approx(LAW.cdf(x), abs=1e-6)
    assert LAW.with_columns([2.0]).cdf(x) == pytest.approx(LAW.cdf(x), abs=1e-6)


def test_popularity_may_have_any_normalisation():
    values = np.exp(np.random.default_rng(0).standard_normal(1000) / 3)
    for one, other in zip(column_popularity(values, 1000), column_popularity(7 * values, 1000), strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize("popularity", [[], [1.0, -1.0], [0.0], [np.nan]])
def test_popularity_is_positive(popularity):
    with pytest.raises(be.DomainError, match="popularity"):
        LAW.with_columns(popularity)


def test_outliers_are_those_of_the_mean():
    weights = np.exp(np.random.default_rng(1).standard_normal(100))
    matrix = np.tril(np.ones((100, 100))) * weights
    matrix /= matrix.sum(axis=1, keepdims=True)
    assert prefix_mean_values(100, 5, weights) == pytest.approx(np.linalg.svd(matrix, compute_uv=False)[:5], rel=1e-10)
    law = be.CausalHeadLaw(0.8, 64, 100, qk_norm=True)
    cesaro = np.linalg.svd(np.tril(np.ones((100, 100))) / np.arange(1, 101)[:, None], compute_uv=False)
    assert [each.location for each in law.outliers(3)] == pytest.approx((100 * cesaro[:3] ** 2).tolist())


def test_popularity_in_few_sizes():
    """Mean squares and shares are kept, and a trend goes into the means of blocks."""
    rng = np.random.default_rng(2)
    values = np.exp(rng.standard_normal(500))
    found = column_popularity(values, 1000)
    assert np.dot(found.squares, found.shares) == pytest.approx(np.mean(values**2) / np.mean(values) ** 2)
    trend = column_popularity(np.exp(np.arange(1000) / 500), 1000)
    places = np.array([100.0, 400.0, 800.0])
    assert trend.interpolate(places) / trend.interpolate(places[1:2]) == pytest.approx(
        np.exp((places - 400) / 500), rel=0.1
    )


def test_rows_of_different_angles_agree():
    """The Cauchy transform of the law against that of the equations, off the axis, and the one zero: 1e-4."""
    equations = causal_equations(row_terms(0.8, 64, 1000, qk_norm=True), 1000, 60)
    logs = np.arange(7.5, -5, -0.8)
    (found,) = turn(equations, solve_ray(equations, logs, 1.0), np.array([0.7]))
    expected = np.exp(found.logs) * LAW.cauchy(np.exp(found.logs))
    assert np.abs(found.moment * (1 - 1e-3) + 1e-3 - expected).max() < 1e-4


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.floats(0.2, 1.5), st.integers(32, 512), st.floats(np.log(100), np.log(2**16)), st.booleans())
def test_the_usual_sizes_are_resolved(beta, head_dim, log_tokens, qk_norm):
    """Mass to 1e-3 before it is normalised, and quantiles in order."""
    tokens = int(np.exp(log_tokens))
    law = be.CausalHeadLaw(beta, head_dim, tokens, qk_norm)
    table = density(
        causal_equations(row_terms(beta, head_dim, tokens, qk_norm=qk_norm), tokens, mesh_intervals(head_dim, tokens))
    )
    assert abs(table.scale - 1) < 1e-3
    assert np.all(np.diff(law.ppf(np.linspace(0.02, 0.999, 30))) > 0)
