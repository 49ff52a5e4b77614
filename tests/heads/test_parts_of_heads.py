"""Parts of the laws of heads against their definitions: popularity, features, weights, fixed points, tables."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.polynomial import hermite_e

from bulkedge.errors import UnresolvedError
from bulkedge.heads import Channel, resolvent, tabulation
from bulkedge.heads.features import FAR, LARGEST, Expander, MultiIndices, Tokens, _factor, _hermite, _moments
from bulkedge.heads.popularity import forms, own_maps
from bulkedge.heads.resolvent import Equations, _accelerated
from bulkedge.heads.tabulation import RISE, STEPS, Walk, _ascend, _fill, _moved


def test_forms_of_popularity_by_quadrature():
    """``x = exp(sum a u y - a**2 u**2/2)`` over Gaussian rows: log E x; mean and variance of log x with weight x."""
    rng = np.random.default_rng(0)
    couplings, mean, keys = rng.uniform(0.2, 2.0, 3), rng.standard_normal(3), 2 * rng.standard_normal((7, 3))
    channel = Channel(couplings, mean)
    found = forms(keys, own_maps(channel.couplings, channel.drift))
    u = np.linspace(-14, 14, 4001)
    log = channel.couplings * keys[..., None, :] * u[:, None] - (channel.couplings * u[:, None]) ** 2 / 2
    weight = np.exp(log - (u[:, None] - mean) ** 2 / 2)
    total = weight.sum(axis=1)
    level = (weight * log).sum(axis=1) / total
    variance = (weight * (log - level[:, None]) ** 2).sum(axis=1) / total
    first = np.log(total * (u[1] - u[0]) / np.sqrt(2 * np.pi))
    assert found == pytest.approx(np.stack([each.sum(axis=-1) for each in (first, level, variance)], axis=-1), rel=1e-9)


def test_hermite_polynomials_are_those_of_numpy():
    points = np.random.default_rng(1).standard_normal((3, 2))
    found = _hermite(points, 9)
    size = 1.0
    for n in range(10):
        size *= max(n, 1) ** 0.5
        assert found[n] == pytest.approx(hermite_e.hermeval(points, np.eye(10)[n]) / size, rel=1e-10)
    assert _hermite(points, 0).shape == (1, 3, 2)


def test_features_are_products_of_polynomials():
    ratios = np.array([0.8, 0.6, 0.3])
    indices = MultiIndices.largest(ratios, 40)
    points, factor = np.random.default_rng(2).standard_normal((5, 3)), np.arange(1.0, 6.0)
    exponents = np.zeros((40, 3), dtype=int)
    for n in range(1, 40):
        exponents[n] = exponents[indices.base[n]]
        exponents[n, indices.direction[n]] = indices.degree[n]
    table = _hermite(points, 40)
    expected = [factor * np.prod([table[k, :, j] for j, k in enumerate(each)], axis=0) for each in exponents]
    assert indices.features(points, factor) == pytest.approx(np.array(expected), rel=1e-10)
    # ratios that vanish make no terms, and without any there is number 0 alone
    assert set(MultiIndices.largest(np.array([0.5, 1e-13]), 6).direction.tolist()) == {-1, 0}
    assert MultiIndices.largest(np.array([1e-13]), 6).products.tolist() == [1.0]


def test_weighted_moments():
    """The covariance of weighted tokens is the square of the root, whose inverse leaves out what tokens do not have."""
    rng = np.random.default_rng(3)
    vectors, weights = rng.standard_normal((30, 4)) @ np.diag([2.0, 1.0, 0.3, 0.0]), rng.exponential(size=30)
    mean, root, inverse = _moments(vectors, weights)
    assert mean == pytest.approx(np.average(vectors, axis=0, weights=weights))
    covariance = np.cov(vectors.T, aweights=weights, ddof=0)
    assert root @ root == pytest.approx(covariance, abs=1e-12)
    assert inverse == pytest.approx(np.linalg.pinv(root, rcond=1e-6), abs=1e-10)
    # first direction kept, and first left out: 1e-10 of the largest variance
    for small, rank in ((1.1e-5, 2), (0.9e-5, 1)):
        pair = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, small], [0.0, -small]])
        assert np.linalg.matrix_rank(_moments(pair, np.ones(4)).inverse, tol=1e-3) == rank


def test_tokens_too_far_out_have_no_factor():
    logs = np.array([-3.0, np.nextafter(LARGEST, 0), LARGEST, 1e4, 0.0])
    found = _factor(logs, np.array([True, True, True, True, False]))
    assert found == pytest.approx([np.exp(-3), np.exp(LARGEST), 0, 0, 0])


def far_out(deviations):
    """Queries of one token far from thousands of equal pairs, in units of their deviation."""
    many = 100_000.0
    vectors = np.array([[1.0], [-1.0], [deviations]])
    weights = np.array([many, many, 1e-9])
    return Expander(Tokens(vectors, np.ones(3), np.zeros(3)), Tokens(0.01 * vectors, np.ones(3), np.zeros(3)), 5)(
        weights, weights
    )


def test_the_first_token_that_is_too_far_out():
    assert far_out(0.999 * FAR).rows[0].all()
    assert far_out(1.001 * FAR).rows[0].tolist()[2] == 0
    assert far_out(-1.001 * FAR).columns[0].tolist()[2] == 0


def test_factors_of_large_logarithms_are_shared_between_the_sides():
    """Rows times exp(250) and columns over it are the same matrix: no token is too large, and few terms make it."""
    rng = np.random.default_rng(4)
    query, key = 0.5 * rng.standard_normal((2, 20, 1))
    sides = [Tokens(each, np.ones(20), np.full(20, log)) for each, log in ((query, 250.0), (key, -250.0))]
    whole = np.exp(query @ key.T)
    for left, right in (sides, [Tokens(each.vectors, each.counts, -each.logs) for each in sides]):
        found = Expander(left, right, 30)(np.ones(20), np.ones(20))
        assert np.abs(found.rest / whole).max() < 1e-9
        assert found.rows[0].max() == pytest.approx(found.columns[0].max())


def test_multi_indices_are_kept_while_ratios_are_similar():
    """A tenth of each ratio and a hundredth of the largest; products are those of the ratios at hand."""
    sides = [Tokens(np.zeros((2, 2)), np.ones(2), np.zeros(2)) for _ in "qk"]
    expander = Expander(*sides, 12)
    expander._choose(np.array([0.5, 0.2]))
    kept = expander._indices
    expander._choose(np.array([0.5, 0.2249]))  # 0.02 + 0.005
    assert expander._indices is kept
    expander._choose(np.array([0.5, 0.1751]))
    assert expander._indices is kept
    exponents = np.zeros((12, 2), dtype=int)
    for n in range(1, 12):
        exponents[n] = exponents[kept.base[n]]
        exponents[n, kept.direction[n]] = kept.degree[n]
    other = np.array([0.51, 0.19])
    assert expander._powers(other) == pytest.approx(np.prod(other**exponents, axis=1))
    expander._choose(np.array([0.5, 0.2251]))
    assert expander._indices is not kept


def linear(states, rng):
    """A contraction of the lower half-plane, another one for each column, and its fixed points."""
    size = rng.uniform(0.2, 0.95, states)
    base = rng.standard_normal((6, states)) - 1j * rng.uniform(0.5, 2, (6, states))
    mix = rng.uniform(0, 1, (6, 6))
    mix /= mix.sum(axis=1, keepdims=True)
    exact = np.stack([np.linalg.solve(np.eye(6) - s * mix, b) for s, b in zip(size, base.T, strict=True)], axis=1)
    return lambda state, which: size[which] * (mix @ state) + base[:, which], exact


def test_accelerated_fixed_points_are_those_of_the_map():
    """Each column to its own tolerance, and all of them within the steps that acceleration is for."""
    rng = np.random.default_rng(5)
    image, exact = linear(9, rng)
    sizes = np.exp(rng.uniform(-2, 2, 9))
    found, missed = _accelerated(image, np.full((6, 9), -1j), sizes, 1e-9, 40)
    assert not len(missed)
    left = np.abs(image(found, np.arange(9)) - found).max(axis=0) * sizes
    assert np.all(left < 1e-9)
    assert np.abs(found - exact).max() * 0.05 < 1e-9 / sizes.min()
    # a start at the solution stays there; too few steps are told of
    assert _accelerated(image, exact, sizes, 1e-6, 1)[1].size == 0
    assert _accelerated(image, np.full((6, 9), -1j), sizes, 1e-9, 2)[1].tolist() == list(range(9))


def test_equations_that_are_left_unsolved(monkeypatch):
    """What is within a hundred tolerances after the last step is taken; more is an error."""
    equations = Equations(np.full(1, 0.3), np.ones((1, 4)), np.ones((1, 3)), np.full((4, 3), 0.5), 4, 4)
    z = np.array([0.3 + 0.2j, 1.0 + 1.0j])
    start = np.tile(1 / z, (7, 1))
    exact = equations.solve(z, start, 1e-12)
    assert equations.image(exact, z) == pytest.approx(exact, abs=1e-11)
    monkeypatch.setattr(resolvent, "MOST", 2)
    reached = equations.approach(z, start, 1e-12, 2)
    left = (np.abs(equations.image(reached, z) - reached).max(axis=0) * np.abs(z)).max()
    assert equations.solve(z, start, left / 99) == pytest.approx(reached, abs=left)
    with pytest.raises(UnresolvedError, match="not solved at"):
        equations.solve(z, start, left / 101)


def test_weights_move_by_a_power_of_their_quotient():
    old, new = (np.array([1.0, 3.0]), np.array([2.0, 2.0])), (np.array([2.0, 2.0]), np.array([1.0, 0.0]))
    change, found = _moved(old, new, 0.5)
    assert change == pytest.approx(0.5 + 1.0)
    assert found[0] == pytest.approx([(0.25 * 0.5) ** 0.5, (0.75 * 0.5) ** 0.5])
    # a token without weight keeps 1e-12, so that it may come back
    assert found[1] == pytest.approx([0.5**0.5, (0.5e-12) ** 0.5])


class Stub:
    """A walk over a distribution function that is known, and remembers what it was asked for."""

    def __init__(self, function, better=()):
        self.function, self.better, self.asked, self.retries = function, better, [], []

    def mass(self, x):
        self.asked.append(float(np.log(x)))
        return self.function(float(np.log(x)))

    def retried(self, x, other):
        self.retries.append((round(float(np.log(x)), 9), round(float(np.log(other)), 9)))
        return 0.5 if self.retries[-1] in self.better else None


def test_points_of_a_table_ascend_by_about_a_rise():
    """Of a smooth distribution function: steps within their bounds, up to where enough lies below or the top is."""
    walk = Stub(lambda log: 1 / (1 + np.exp(-log)))
    points = {-6.0: walk.function(-6.0), -5.0: walk.function(-5.0)}
    _ascend(points, walk, 20.0, 0.99)
    logs = np.array(sorted(points))
    masses = np.array([points[each] for each in logs])
    steps = np.diff(logs)
    assert np.all((steps[1:] >= STEPS[0] - 1e-12) & (steps[1:] <= STEPS[1] + 1e-12))
    slopes = np.diff(masses)[:-1] / steps[:-1]
    assert steps[1:] == pytest.approx(np.clip(RISE / slopes, *STEPS), rel=1e-9)
    assert masses[-1] > 0.99 >= masses[-2]
    # the top ends it too, a step below; and a function that falls keeps what was there
    points = {0.0: 0.2}
    _ascend(points, walk, 2.0, 0.99)
    assert max(points) == pytest.approx(2.0 - STEPS[0])
    points = {0.0: 0.9}
    _ascend(points, Stub(lambda log: 0.5), 5.0, 0.99)
    assert points == {0.0: 0.9}


def test_points_of_a_table_are_filled_in_and_tried_from_both_sides():
    """A stretch that rises by more than twice the rise is cut in equal parts, no shorter than the least step."""
    walk = Stub(lambda log: log / 10, better={(2.0, 4.0), (4.0, 2.0)})
    points = {0.0: 0.0, 2.0: 6.9 * RISE, 4.0: 6.9 * RISE + 1.9 * RISE, 5.0: 1.0}
    known = dict(points)
    _fill(points, walk)
    added = sorted(set(points) - set(known))
    # ceil(6.9/2) = 4 parts of 0.5; then one; then two by the least step, though the rise asks for more
    assert added == pytest.approx([0.5, 1.0, 1.5, 4.5])
    order = [0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 4.5, 5.0]
    downwards = [(low, high) for low, high in zip(order[-2::-1], order[:0:-1], strict=True)]
    assert walk.retries == downwards + [(high, low) for low, high in pairwise(order)]
    assert points[2.0] == 0.5
    assert points[4.0] == 0.5
    assert points[1.0] == pytest.approx(0.1)


def test_the_largest_value_and_all_of_the_mass(monkeypatch):
    """The bound is the sum of the squares, repeats and all; next to it all mass is below, however many columns."""
    rng = np.random.default_rng(6)
    counts = [np.array([1.0, 2.0, 1.0, 3.0, 1.0, 1.0]), np.array([2.0, 1.0, 2.0, 4.0])]
    query, key = 0.4 * rng.standard_normal((6, 2)), rng.standard_normal((4, 2))
    raw = np.exp(query @ key.T)
    # rows of l A sum to l
    logs = np.log(9 / (raw @ counts[1]))
    sides = Tokens(query, counts[0], logs), Tokens(key, counts[1], np.zeros(4))
    walk = Walk(*sides, 9, sampled=False)
    rows, columns = (np.repeat(np.arange(len(each)), each.astype(int)) for each in counts)
    whole = (np.exp(logs)[:, None] * raw)[rows][:, columns]
    values = np.linalg.svd((whole - whole.mean(axis=0)) / 3, compute_uv=False) ** 2
    assert walk.largest == pytest.approx(values.sum(), rel=1e-12)
    monkeypatch.setattr(tabulation, "TOLERANCE", 1e-9)
    # rows beyond the number of columns are zeros, which do not count
    assert walk.mass(1e3 * walk.largest) == pytest.approx(1.0, abs=2e-3)
    # without noise or terms at tiny points, nothing is below
    assert 0 <= walk.mass(1e-3 * walk.largest) < 1


def test_a_text_that_is_read_three_times_over():
    """Rows and columns of A over three, nine times each: the same values, tripled, and zeros that do not count."""
    rng = np.random.default_rng(7)
    query, key = 0.5 * rng.standard_normal((12, 2)), rng.standard_normal((12, 2))
    logs = np.log(12 / np.exp(query @ key.T).sum(axis=1))
    once, thrice = (
        Walk(Tokens(query, np.full(12, n), logs), Tokens(key, np.full(12, n), np.zeros(12)), int(12 * n), sampled=False)
        for n in (1.0, 3.0)
    )
    assert thrice.largest == pytest.approx(3 * once.largest)
    for share in (1e-2, 0.2):
        x = share * once.largest
        # both are solved to 1e-5
        assert thrice.mass(3 * x) == pytest.approx(once.mass(x), abs=1e-4)


def test_equations_of_a_head_with_repeats():
    """Squares of functions and of the rest at each token, times how often it is there."""
    rng = np.random.default_rng(8)
    counts = rng.integers(1, 5, 10).astype(float), rng.integers(1, 5, 8).astype(float)
    query, key = 0.5 * rng.standard_normal((10, 2)), rng.standard_normal((8, 2))
    walk = Walk(Tokens(query, counts[0], np.zeros(10)), Tokens(key, counts[1], np.zeros(8)), 30, sampled=False)
    equations, _, weights, _ = walk._settled(0.3, counts)
    found = walk._expand(*weights)
    assert equations.squares == pytest.approx(found.products[1:] ** 2)
    assert equations.rows == pytest.approx(found.rows[1:] ** 2 * counts[0])
    assert equations.columns == pytest.approx(found.columns[1:] ** 2 * counts[1])
    assert equations.noise == pytest.approx(found.rest**2 * np.outer(*counts))
    assert (equations.tokens, equations.total) == (30, 30)
