"""Parts of the laws of attention against their definitions: sizes of tokens, popular columns, tables by logarithms."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import lognorm

from bulkedge.laws import FiniteHeadLaw
from bulkedge.laws.attention.causal_columns import LEVELS, column_popularity
from bulkedge.laws.attention.causal_head import (
    ALIKE,
    causal_equations,
    first_row_norms,
    mesh_intervals,
    row_terms,
)
from bulkedge.laws.attention.popular_keys import column_atoms
from bulkedge.laws.attention.sharp_head import LogTable
from bulkedge.laws.attention.token_head import (
    TokenStatistics,
    _join_groups,
    _multiply_groups,
    _stretch,
    _tail,
    effective_share,
    inverse_rank,
    popularity_groups,
)
from bulkedge.laws.engine.cavity import Cavity, Degrees, Graph
from bulkedge.laws.engine.masked_density import WIDTH, LogDensity, _deep, _deep_inverse, solve, solve_ray
from bulkedge.laws.engine.masked_equations import MaskedProblem, SizeGroups, mesh
from bulkedge.laws.engine.profiles import Profile
from bulkedge.support.errors import DomainError

# -- given tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [0.02, 0.05, 0.051, 0.3, 0.31, 2.0])
def test_groups_of_popularity_are_quantiles_of_a_log_normal(variance):
    """Mean squares between quantiles, by quadrature; three, five or eight groups as the variance grows."""
    shares, squares = popularity_groups(variance)
    count = 3 if variance <= 0.05 else 5 if variance <= 0.3 else 8
    assert shares == pytest.approx(np.full(count, 1 / count))
    law = lognorm(np.sqrt(variance), scale=np.exp(-variance / 2))  # of mean one
    levels = (np.arange(20_000 * count) + 0.5) / (20_000 * count)
    points = law.ppf(levels).reshape(count, -1) ** 2
    assert squares[:-1] == pytest.approx(points[:-1].mean(axis=1), rel=1e-3)
    assert shares @ squares == pytest.approx(np.exp(variance), rel=1e-12)


def test_popularity_that_is_even_is_none():
    assert [each.tolist() for each in popularity_groups(0.0199)] == [[1.0], [1.0]]


def test_joined_and_multiplied_groups_keep_their_means():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(12))
    profile = Profile(weights, rng.exponential(size=(3, 12)))
    for count in (2, 5, 11):
        few = _join_groups(profile, count)
        assert 1 < len(few.weights) <= count
        assert few.weights.sum() == pytest.approx(1)
        assert few.squares @ few.weights == pytest.approx(profile.squares @ weights)
        # neighbours by size are joined: running sums of the whole are sums of the parts
        order = np.argsort(profile.squares[0])
        assert np.isin(np.cumsum(few.weights).round(12), np.cumsum(weights[order]).round(12)).all()
    assert _join_groups(profile, 12) is profile
    other = Profile(np.array([0.25, 0.75]), np.array([[2.0, 3.0], [1.0, 5.0]]))
    both = _multiply_groups(profile, other, np.array([0, 1, 1]))
    assert both.weights.reshape(12, 2) == pytest.approx(weights[:, None] * other.weights)
    assert both.squares.reshape(3, 12, 2) == pytest.approx(profile.squares[:, :, None] * other.squares[[0, 1, 1], None])
    uneven = _stretch(profile, 4.0)
    assert np.log(uneven.squares).std(axis=1) == pytest.approx(2 * np.log(profile.squares).std(axis=1))
    assert uneven.squares @ weights == pytest.approx(np.ones(3))


def test_ranks_of_degrees_by_a_simulation_of_their_weights():
    """Fourth cumulant of ``M o M`` (and the sixth) for ``M = W_Q W_K'``, on pairs of different directions."""
    rng, dim, width = np.random.default_rng(9), 100, 150
    fourth, sixth = [], []
    for _ in range(10):
        left, right = rng.standard_normal((2, width, dim)) / dim**0.25
        squares = np.linalg.svd(left @ right.T / width**0.5, compute_uv=False) ** 2
        moments = [np.sum(squares**k) / width for k in (1, 2, 3)]
        # a feature of degree two is a product of two directions: its moments are squares
        one, two, three = (moment**2 for moment in moments)
        two, three = two / one**2, three / one**3
        fourth.append(two - 2)
        sixth.append(three - 6 * (two - 2) - 5)
    # cumulants in units of the tensor's width**2/2 directions, at width = directions
    measured = np.mean(fourth), np.mean(sixth)
    found = inverse_rank(2, dim, width) * width**2 / 2
    assert found == pytest.approx(measured[0], rel=0.03)
    assert found**2 / effective_share(dim, width) == pytest.approx(measured[1], rel=0.06)
    # orthonormal tokens fill all directions: degree k has d**k/k! features
    assert [inverse_rank(k, 50, 1e12) for k in (1, 2, 3)] == pytest.approx([1 / 50, 2 / 50**2, 6 / 50**3])
    assert effective_share(50, 1e12) == pytest.approx(1)


def test_the_rest_of_the_exponential():
    """``exp(x)`` less its first degrees, over the next one, at points of both signs and where it would cancel."""
    for low in (0, 1, 3):
        for x in (-3.0, -1e-4, 1e-9, 0.5, 4.0):
            exact = sum(x ** (k - low - 1) * math.factorial(low + 1) / math.factorial(k) for k in range(low + 1, 60))
            assert _tail(x, low) == pytest.approx(exact, rel=1e-12)


def test_what_given_tokens_do():
    """Mean square distance, popularity, repeats, spread and likeness, from the tokens one by one."""
    rng = np.random.default_rng(1)
    distinct = rng.standard_normal((30, 50)) / 50**0.5 + 0.02
    members = np.concatenate([np.arange(30), rng.integers(0, 10, 15)])
    found, tokens = TokenStatistics.of(distinct[members]), distinct[members]
    rest = tokens - tokens.mean(axis=0)
    squares = (rest**2).sum(axis=1)
    assert found.scale == pytest.approx(squares.mean())
    assert found.popularity == pytest.approx((tokens.mean(axis=0) ** 2).sum() * squares.mean())
    assert found.spread == pytest.approx(squares.var() / squares.mean() ** 2)
    assert sorted(found.counts) == sorted(np.bincount(members).tolist())
    cosines = rest @ rest.T / np.sqrt(np.outer(squares, squares))
    other = members[:, None] != members
    assert found.likeness == pytest.approx(np.mean(cosines[other] ** 2))
    law = found.law(0.7, 32)
    assert law.head == FiniteHeadLaw(0.7 * found.scale, 32, 45)
    assert law.popularity == pytest.approx(0.49 * found.popularity)
    assert law.atoms == ((0.0, pytest.approx(15 / 45)),)
    with pytest.raises(DomainError, match="all the same token"):
        TokenStatistics.of(np.ones((40, 3)))
    with pytest.raises(DomainError, match=r"vary by 0\.0005"):
        TokenStatistics.of(np.eye(40)).law(0.0005 * 40 / 39, 32)


@pytest.mark.parametrize("width", [40, 400])
def test_directions_of_tokens_leave_near_repeats_out(width):
    """Gaussian tokens fill as many directions as they have columns, and so do clusters of three around them."""
    rng = np.random.default_rng(3)
    centres, noise = rng.standard_normal((120, width)), rng.standard_normal((360, width))
    for tokens in (noise, np.repeat(centres, 3, axis=0) + 0.1 * noise):
        found = TokenStatistics.of(tokens / np.linalg.norm(tokens, axis=1, keepdims=True))
        assert found.directions == pytest.approx(width, rel=0.12)
    # two of the 359 other tokens are near repeats
    assert found.likeness == pytest.approx(1 / width + 2 / 359, rel=0.1)


@pytest.mark.parametrize("kind", ["orthonormal", "repeated", "long and short", "mean"])
def test_terms_of_given_tokens_keep_the_variance(kind):
    """The mean square of attention's entries, from the kernels one by one, whatever the groups of modes."""
    rng = np.random.default_rng(4)
    tokens = np.linalg.qr(rng.standard_normal((400, 400)))[0][:120]
    if kind == "repeated":
        tokens = tokens[rng.integers(0, 60, 120)]
    if kind == "long and short":
        tokens = tokens * np.exp(0.1 * rng.standard_normal((120, 1)))
    if kind == "mean":
        tokens = np.sqrt(0.6) * tokens + np.sqrt(0.4) * np.linalg.qr(rng.standard_normal((400, 1)))[0].T
    law = TokenStatistics.of(tokens).law(0.7, 64)
    found = law._problem
    for side in (found.rows, found.columns):
        assert side.squares @ side.weights == pytest.approx(np.ones(len(found.variances)), rel=1e-9)
    rest = tokens - tokens.mean(axis=0)
    gram = rest @ rest.T / np.mean(np.sum(rest**2, axis=1))
    both, beta = np.outer(np.diag(gram), np.diag(gram)), law.head.beta
    factor = np.exp(beta**2 * both / 2)
    factor /= factor.mean(axis=1, keepdims=True)
    shares = law.head.profiled_sum().variances
    low = len(law.ranks)
    # of the first degrees, and all others together
    sizes = [both**k for k in range(1, low + 2)]
    sizes[-1] *= _tail(beta**2 * both, low) / _tail(beta**2, low)
    strengths = np.append(shares[:low], shares[low:].sum())
    expected = sum(b * np.mean(size * factor**2) for b, size in zip(strengths, sizes, strict=True))
    # the mean of the second degree is not in the bulk, which is a part of one over the number of tokens
    assert found.variances.sum() * law.distinct == pytest.approx(expected * np.exp(law.popularity), rel=0.02)


# -- causal heads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head_dim", "tokens", "expected"), [(64, 100, 40), (64, 1024, 40), (64, 4096, 60), (16, 4096, 80), (32, 2048, 60)]
)
def test_intervals_grow_with_tokens_over_dimensions(head_dim, tokens, expected):
    """Forty up to sixteen tokens a dimension, and fifteen for each factor of e beyond."""
    assert mesh_intervals(head_dim, tokens) == expected


def test_squared_norms_of_first_rows():
    """One of the draws by hand, and all of them beyond any of their entries."""
    beta = 0.9
    found = first_row_norms(beta)
    scores = beta * np.random.default_rng(2025).standard_normal((2000, 32, 32))
    for draw in (0, 1999):
        matrix = np.zeros((32, 32))
        for i in range(32):
            weights = np.exp(scores[draw, i, : i + 1])
            matrix[i, : i + 1] = weights / weights.sum() - 1 / (i + 1)
        assert found[draw] == pytest.approx(np.linalg.norm(matrix, 2) ** 2, rel=1e-12)


def test_popularity_by_place_and_size():
    """Blocks, prefixes and sizes from the popularities one by one; levels fall between tokens of 193."""
    rng = np.random.default_rng(4)
    values = np.exp(rng.standard_normal(193) + np.arange(193) / 100)
    found = column_popularity(values, 193)
    values = values / values.mean()
    stops = np.unique(np.rint(np.geomspace(1, 193, 24)).astype(int)).tolist()
    starts = [0, *stops[:-1]]
    # tokens are numbered from one: the middle of the first block is the first token
    assert found.places == pytest.approx([(low + 1 + high) / 2 for low, high in zip(starts, stops, strict=True)])
    means = [values[low:high].mean() for low, high in zip(starts, stops, strict=True)]
    assert found.means == pytest.approx(means)
    before = np.append(0, np.cumsum(values))
    for place, prefix, low, high in zip(found.places, found.prefixes, starts, stops, strict=True):
        inside = before[low] + (before[high] - before[low]) * (place - low) / (high - low)
        assert prefix == pytest.approx(inside / place)
    ratio = np.sort(np.concatenate([values[a:b] / m for a, b, m in zip(starts, stops, means, strict=True)]))
    level = (np.arange(193) + 0.5) / 193
    groups = [ratio[(level > low) & (level <= high)] for low, high in pairwise(LEVELS)]
    groups = [each for each in groups if len(each)]
    assert found.shares == pytest.approx([len(each) / 193 for each in groups])
    assert found.squares == pytest.approx([np.mean(each**2) for each in groups])
    assert found.interpolate(np.array(found.places)) == pytest.approx(means)
    assert found.interpolate(np.array(found.places), "prefixes") == pytest.approx(found.prefixes)
    assert found.interpolate(np.array([0.5, 1e6])) == pytest.approx([means[0], means[-1]])
    # a sample holds for all places
    sample = column_popularity(values[:50], 193)
    assert sample.interpolate(np.array([1.0, 77.0, 193.0])) == pytest.approx(np.ones(3))


def test_equations_of_popular_columns():
    """Every group of norms with every popularity, at every place; rows are normalised by what they see."""
    terms = row_terms(0.7, 64, 500, qk_norm=False)
    columns = column_popularity(np.exp(np.random.default_rng(5).standard_normal(500) + np.arange(500) / 300), 500)
    plain, found = causal_equations(terms, 500, 20), causal_equations(terms, 500, 20, columns)
    places = plain.grid.places
    assert found.pulls == pytest.approx(plain.pulls / columns.interpolate(places, "prefixes")[:, None] ** 2)
    assert plain.pulls[-1] == pytest.approx(terms.variances[-1] / 500)
    shares = np.einsum("pg,n->pgn", plain.columns.shares, columns.shares).reshape(len(places), -1)
    assert found.columns.shares == pytest.approx(shares)
    sizes = np.einsum("p,n->pn", columns.interpolate(places) ** 2, columns.squares)
    squares = np.einsum("pkg,pn->pkgn", plain.columns.squares, sizes).reshape(found.columns.squares.shape)
    assert found.columns.squares == pytest.approx(squares)
    # the first row is not told apart by its norm; far down the last ones are
    apart = 1 - np.exp((1 - places) / ALIKE)
    assert plain.rows.squares == pytest.approx(1 + (terms.rows - 1) * apart[:, None, None])
    assert plain.columns.squares == pytest.approx(1 + (terms.columns - 1) * apart[:, None, None])
    assert (terms.rows @ terms.shares, terms.columns @ terms.shares) == (
        pytest.approx(np.ones(len(terms.rows)), rel=1e-6),
        pytest.approx(np.ones(len(terms.rows)), rel=1e-6),
    )


@pytest.mark.parametrize("angle", [0.4, 1.7])
def test_a_ray_has_the_transforms_of_independent_entries(angle):
    """Entries of one variance behind the mask: row by row, by iteration over all rows and columns."""
    tokens, grid = 400, mesh(400, 80)
    ones = SizeGroups(np.ones((161, 1)), np.ones((161, 1, 1)))
    problem = MaskedProblem(grid, tokens, np.full((161, 1), 1 / tokens), np.zeros(1), ones, ones)
    logs = np.arange(4.0, -1.1, -0.25)
    rough = solve_ray(problem, logs, angle)
    assert rough.logs == pytest.approx(logs + 1j * angle)
    found, done = solve(problem, rough.state, rough.logs)
    assert done.all()
    # the last step on a ray is below 0.01, and what is left is about its square
    assert np.abs(found.state - rough.state).max() < 1e-3
    for k in (8, len(logs) - 1):
        z = np.exp(found.logs[k] / 2)
        g = h = np.full(tokens, 1 / z)
        for _ in range(200):
            g = (g + 1 / (z - np.cumsum(h) / tokens)) / 2
            h = (h + 1 / (z - np.cumsum(g[::-1])[::-1] / tokens)) / 2
        assert np.isclose(h.mean(), g.mean())
        # sums over places are integrals up to 1/T, a tenth of it with the halves at both ends
        assert found.moment[k] == pytest.approx(z * h.mean(), abs=5e-4)
    assert found.take(slice(3, 5)).moment == pytest.approx(found.moment[3:5])


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_density_by_logarithms_is_the_one_that_its_panels_say():
    """Drawn coefficients: values on the three kinds of panels, and their mass by adaptive quadrature."""
    rng = np.random.default_rng(6)
    breaks = np.array([-30.0, -6.0, -3.0, -1.0, 0.5])
    coefficients = tuple(0.3 ** np.arange(6) * rng.uniform(-1, 1, 6) for _ in range(4))
    table = LogDensity(breaks, coefficients, 0.01, 1.7)

    def f(u):
        panel = min(int(np.searchsorted(breaks, u, side="right")) - 1, 3)
        low, high = breaks[panel], breaks[panel + 1]
        if panel == 0:
            ends, here = (1 / (high + WIDTH - np.array([low, high]))), 1 / (high + WIDTH - u)
            t = -1 + 2 * (here - ends[0]) / (ends[1] - ends[0])
        else:
            t = -1 + 2 * (u - low) / (high - low)
        value = sum(c * np.cos(k * np.arccos(np.clip(t, -1, 1))) for k, c in enumerate(coefficients[panel]))
        return 1.7 * (np.sqrt(np.exp(value) * (breaks[-1] - u)) if panel == 3 else np.exp(value))

    logs = np.concatenate([rng.uniform(-30, 0.5, 200), breaks[:-1]])
    assert table(logs) == pytest.approx([f(u) for u in logs], rel=1e-12)
    mass = sum(quad(f, low, high, epsabs=1e-12, limit=200)[0] for low, high in pairwise(breaks))
    assert table.mass() == pytest.approx(mass, rel=1e-7)
    nodes = np.linspace(-1, 1, 9)
    assert _deep(-30.0, -6.0, _deep_inverse(-30.0, -6.0, nodes)) == pytest.approx(nodes)
    assert _deep_inverse(-30.0, -6.0, np.array([-1.0, 1.0])) == pytest.approx([-30.0, -6.0])


def test_quantiles_of_a_table_are_those_of_its_distribution_function():
    rng = np.random.default_rng(7)
    logs = np.cumsum(rng.uniform(0.1, 2, 12)) - 15
    masses = np.sort(rng.uniform(0.05, 1, 12))
    masses[-1] = 1.0
    table = LogTable(logs, masses)
    assert table.cdf(logs) == pytest.approx(masses)
    levels = np.concatenate([np.geomspace(1e-6, 0.05, 7), np.linspace(masses[0], 0.999, 40), [1.0]])
    assert table.cdf(table.log_quantile(levels)) == pytest.approx(levels, rel=1e-9)
    assert table.log_quantile(masses[[0, -1]]) == pytest.approx(logs[[0, -1]])
    assert table.log_quantile(np.zeros(1)).tolist() == [-np.inf]
    assert table.cdf(logs[-1:] + 1).tolist() == [1.0]
    # a table that begins flat goes down like x to 0.001
    flat = LogTable(np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.5, 1.0]))
    assert flat.cdf(np.array([-100.0])) == pytest.approx([0.5 * np.exp(-0.1)])


def test_columns_far_apart_are_taken_together_in_forty_bins():
    """A bin for each factor of e of the squares, up to forty; what is below 1e-4 of the mean counts as that."""
    rng = np.random.default_rng(8)
    # ends of the stretch decide on the number of bins: 3 and a bit is four
    for span, bins in ((0.99, 1), (1.01, 2), (3.01, 4), (2.99, 3), (17.0, 17)):
        sizes = np.exp(np.append(rng.uniform(0, span, 4000), [0.0, span]) / 2)
        assert len(column_atoms(sizes)[0]) == 2 * bins
    wide = np.exp(np.append(rng.uniform(0, 45, 40_000), [0.0, 45.0]) / 2) / 10**3.9
    assert len(column_atoms(wide)[0]) == 80
    squares, shares = column_atoms(np.array([1e-9, 1e-4, 1.0, 1.0]))
    assert squares == pytest.approx([1e-8, 1.0])
    assert shares == pytest.approx([0.5, 0.5])


def test_cavity_equations_start_from_no_matrix_at_all():
    """Which is their solution on the negative axis where there is none, to the last digit."""
    none = np.zeros(0, dtype=int)
    cavity = Cavity(Graph(none, none, np.zeros(0), np.zeros((5, 1)), np.zeros(5, dtype=int), Degrees.none(5, 0)), 1e-4)
    start = cavity.empty(-0.5j)
    assert start.columns == pytest.approx(np.full(5, 1 / 2j))
    assert cavity.sweep(2j, start).columns == pytest.approx(start.columns)
