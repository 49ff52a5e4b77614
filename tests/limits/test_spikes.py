"""Outliers of finite matrices against those of their laws: random bulks of one to four intervals, perturbed at random.

Outliers fluctuate by a multiple of ``n**-1/2`` of the size of the law, and so do squared overlaps. A measured mean may
be off by four standard errors and one ``n**-1/2`` in these units: the second is for scatter that few draws
underestimate, and for the bias at finite size. That is stated for outliers that stand clear of the bulk (``CLEAR``);
closer to an edge the constant grows without bound. Conversely every eigenvalue clear of the bulk must be one of those
predicted; right of it, clear also of where the largest of so many bulk values strays once in ten thousand draws.
"""

from typing import NamedTuple

import numpy as np
import pytest

import bulkedge as be

N, DRAWS = 600, 4
CLEAR = 0.12
"""Distance to the bulk, in root mean squares of the law, and squared overlap, from which on outliers are compared."""


class Case(NamedTuple):
    """A law with a perturbation, its outliers (location, squared overlaps), and draws of values with their overlaps."""

    law: be.Law
    outliers: list
    draw: object


def direction(n, rng):
    vector = rng.standard_normal(n)
    return vector / np.linalg.norm(vector)


def atoms(rng, low, high):
    """One to four distinct values with shares of at least a tenth, and as many eigenvalues as the shares say."""
    count = rng.integers(1, 5)
    values = np.sort(rng.uniform(low, high, count))
    counts = rng.multinomial(N - count * N // 10, np.full(count, 1 / count)) + N // 10
    return be.EmpiricalLaw(values, counts), np.repeat(values, counts)


def eigen_draw(matrix, theta):
    def draw(rng):
        u = direction(N, rng)
        values, vectors = np.linalg.eigh(matrix(rng) + theta * np.outer(u, u))
        return values, (u @ vectors)[None] ** 2

    return draw


def singular_draw(matrix, strength):
    def draw(rng):
        m = matrix(rng)
        u, v = direction(m.shape[0], rng), direction(m.shape[1], rng)
        left, values, right = np.linalg.svd(m + strength * np.outer(u, v), full_matrices=False)
        return values, np.array([u @ left, right @ v]) ** 2

    return draw


def signed(rng, size):
    return float(rng.choice([-1, 1]) * size * np.exp(rng.uniform(np.log(0.3), np.log(4))))


def strength_of(rng, size):
    return abs(signed(rng, size))


def sought(rng, law, propose, outliers_of):
    """A strength; every other time one that makes a clear outlier in a gap, if there is such a one among forty."""
    first = propose()
    for candidate in [first, *(propose() for _ in range(39))] if rng.random() < 0.5 else []:
        inside = [each for each in outliers_of(candidate) if law.lower_edge < each[0] < law.edge]
        if any(is_clear(law, each) for each in inside):
            return candidate
    return first


def is_clear(law, outlier):
    location, *overlaps = outlier
    apart = distance_to_bulk(law, np.array([location]))[0] / np.sqrt(law.moment(2))
    return min(apart, *overlaps) >= CLEAR


def listed(outliers):
    return [(each.location, each.overlap) for each in outliers]


def both_sides(outliers):
    return [(each.singular_value, each.left_overlap, each.right_overlap) for each in outliers]


def additive_sum(rng, scale):
    """Fixed eigenvalues and a Wigner matrix."""
    mu, diagonal = atoms(rng, -4, 4)
    variance = rng.uniform(0.01, 0.4)
    law = be.free_add(mu, be.Semicircle(variance)).scaled(scale)
    theta = sought(rng, law, lambda: signed(rng, np.sqrt(law.var())), lambda theta: listed(law.spike(theta).outliers))
    wigner = be.Wigner(N, variance=variance)
    draw = eigen_draw(lambda rng: scale * (np.diag(diagonal) + wigner.sample(rng)), theta)
    return Case(law, listed(law.spike(theta).outliers), draw)


def additive_product(rng, scale):
    """A sample covariance of a population of a few eigenvalues, perturbed after it was measured."""
    mu, diagonal = atoms(rng, 0, 8)
    samples = int(N * np.exp(rng.uniform(-1, 3)))
    law = be.free_mul(mu, be.MarchenkoPastur(N / samples)).scaled(scale)
    theta = sought(rng, law, lambda: signed(rng, np.sqrt(law.var())), lambda theta: listed(law.spike(theta).outliers))

    def matrix(rng):
        z = rng.standard_normal((samples, N)) * np.sqrt(diagonal)
        return scale * z.T @ z / samples

    return Case(law, listed(law.spike(theta).outliers), eigen_draw(matrix, theta))


def additive_products(rng, scale):
    """Products of Gaussian matrices."""
    ratios = tuple(np.exp(rng.uniform(-2, 1, rng.integers(1, 4))).tolist())
    model = be.GaussianProduct(N, ratios)
    law = model.law().scaled(scale)
    theta = sought(rng, law, lambda: signed(rng, np.sqrt(law.var())), lambda theta: listed(law.spike(theta).outliers))

    def matrix(rng):
        m = model.sample(rng)
        return scale * m @ m.T

    return Case(law, listed(law.spike(theta).outliers), eigen_draw(matrix, theta))


def population(rng, scale):
    """One population eigenvalue, anywhere outside the others, seen through samples."""
    mu, diagonal = atoms(rng, 0.5, 20)
    mu, diagonal = mu.scaled(scale), scale * diagonal
    samples = int(N * np.exp(rng.uniform(1, 3.2)))
    law = be.free_mul(mu, be.MarchenkoPastur(N / samples))
    theta = sought(
        rng,
        law,
        lambda: float(scale * rng.uniform(0, 30)),
        lambda theta: listed(mu.sample_spike(theta, N / samples).outliers),
    )
    roots = np.sqrt(np.append(diagonal[1:], theta))

    def draw(rng):
        z = rng.standard_normal((samples, N)) * roots
        values, vectors = np.linalg.eigh(z.T @ z / samples)
        return values, vectors[None, -1] ** 2

    return Case(law, listed(mu.sample_spike(theta, N / samples).outliers), draw)


def singular_sum(rng, scale):
    """Low-rank terms and noise, square."""
    terms = rng.integers(1, 4)
    ratios = (*np.exp(rng.uniform(-3, 1, terms)).tolist(), np.inf)
    model = be.GaussianSum(N, (*rng.uniform(0.3, 2, terms).tolist(), rng.uniform(0.02, 0.5)), ratios)
    law = be.SumLaw(model.variances, ratios).scaled(scale)
    strength = sought(
        rng,
        law,
        lambda: strength_of(rng, 2 * np.sqrt(law.var())),
        lambda strength: both_sides(law.singular_spike(strength).outliers),
    )
    draw = singular_draw(lambda rng: scale * model.sample(rng), strength)
    return Case(law, both_sides(law.singular_spike(strength).outliers), draw)


def singular_rectangular(rng, scale):
    """Given singular values and noise of independent entries, with more or with fewer columns than rows."""
    mu, diagonal = atoms(rng, 0, 6)
    columns = int(N * np.exp(rng.uniform(0.05, 1)))
    variance = rng.uniform(0.05, 0.5)
    noise = be.MarchenkoPastur(N / columns, variance).sqrt()
    law = be.rectangular_add(mu, noise, N / columns).scaled(scale)
    strength = sought(
        rng,
        law,
        lambda: strength_of(rng, 2 * scale * np.sqrt(mu.moment(2) + variance)),
        lambda strength: both_sides(law.singular_spike(strength).outliers),
    )

    def matrix(rng):
        m = rng.standard_normal((N, columns)) * np.sqrt(variance / columns)
        m[np.arange(N), np.arange(N)] += diagonal
        return scale * m

    return Case(law, both_sides(law.singular_spike(strength).outliers), singular_draw(matrix, strength))


def singular_covariance(rng, scale):
    """Rows of a few sizes times independent entries: a law of eigenvalues, read as squared singular values."""
    mu, diagonal = atoms(rng, 0.2, 8)
    columns = int(N * np.exp(rng.uniform(-0.7, 2)))
    law = be.free_mul(mu, be.MarchenkoPastur(N / columns)).scaled(scale**2)
    strength = sought(
        rng,
        law.sqrt(),
        lambda: strength_of(rng, 2 * scale * np.sqrt(mu.mean())),
        lambda strength: both_sides(law.singular_spike(strength, ratio=N / columns).outliers),
    )
    found = law.singular_spike(strength, ratio=N / columns)

    def matrix(rng):
        return scale * rng.standard_normal((N, columns)) * np.sqrt(diagonal / columns)[:, None]

    return Case(law.sqrt(), both_sides(found.outliers), singular_draw(matrix, strength))


KINDS = (
    additive_sum,
    additive_product,
    additive_products,
    population,
    singular_sum,
    singular_rectangular,
    singular_covariance,
)


def distance_to_bulk(law, values):
    """How far values are from the nearest interval or atom."""
    pieces = np.array([*law.support, *((place, place) for place, _ in law.atoms)])
    below, above = pieces[:, 0] - values[:, None], values[:, None] - pieces[:, 1]
    return np.maximum(np.maximum(below, above), 0).min(axis=1)


def check(kind, seed):
    rng = np.random.default_rng([20261115, KINDS.index(kind), seed])
    law, outliers, draw = kind(rng, float(np.exp(rng.uniform(-7, 7))))
    size = np.sqrt(law.moment(2))
    draws = [draw(rng) for _ in range(DRAWS)]
    predicted = np.array(outliers)
    clear = []
    for location, *overlaps in outliers:
        if not is_clear(law, (location, *overlaps)):
            continue
        clear.append(location)
        found = []
        for values, shares in draws:
            nearest = np.argmin(np.abs(values - location))
            found.append([values[nearest] / size, *shares[:, nearest]])
        error = np.std(found, axis=0, ddof=1) / np.sqrt(DRAWS)
        miss = np.abs(np.mean(found, axis=0) - [location / size, *overlaps])
        assert np.all(miss < 4 * error + N**-0.5), (law, location / size, miss, error)
    for values, _ in draws:
        beyond = (values < law.edge) | (values > law.finite_edge(N, 1e-4))
        for value in values[(distance_to_bulk(law, values) > CLEAR * size) & beyond]:
            apart = np.abs(predicted[:, 0] - value).min() if len(predicted) else np.inf
            assert apart < 8 * size * N**-0.5, (law, value / size, predicted)
    return clear


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_random_bulks(kind, seed):
    check(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 17))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_many_random_bulks(kind, seed):
    check(kind, seed)


# -- single matrices ---------------------------------------------------------------------------------------------------


def close(measured, predicted, size):
    """Means of draws, as above."""
    error = np.std(measured, axis=0, ddof=1) / np.sqrt(len(measured))
    return np.all(np.abs(np.mean(measured, axis=0) - predicted) < 4 * error + size * N**-0.5)


def test_a_population_eigenvalue_in_a_gap():
    """Between population eigenvalues 1 and 10, at ratio 1/10: in the gap of the sample, not hidden."""
    rng = np.random.default_rng(11)
    roots = np.sqrt(np.append(np.repeat([1.0, 10.0], N // 2)[1:], 4.0))
    (outlier,) = be.EmpiricalLaw([1.0, 10.0]).sample_spike(4.0, 0.1).outliers
    bulk = be.free_mul(be.EmpiricalLaw([1.0, 10.0]), be.MarchenkoPastur(0.1))
    assert outlier.gap == pytest.approx((bulk.support[0][1], bulk.support[1][0]), rel=1e-10)
    found = []
    for _ in range(DRAWS):
        z = rng.standard_normal((10 * N, N)) * roots
        values, vectors = np.linalg.eigh(z.T @ z / (10 * N))
        (inside,) = np.flatnonzero((values > outlier.gap[0] + 0.5) & (values < outlier.gap[1] - 0.5))
        found.append([values[inside], vectors[-1, inside] ** 2])
    assert close(found, [outlier.location, outlier.overlap], 4.0)
    assert close(found, [3.7333, 0.9167], 4.0)


def test_an_additive_spike_in_a_gap():
    rng = np.random.default_rng(12)
    law = be.free_add(be.EmpiricalLaw([-3.0, 4.0], [0.9, 0.1]), be.Semicircle(0.3))
    spike = law.spike(1.0)
    assert spike.detectable
    assert spike.threshold > 1  # above the bulk there is nothing
    (outlier,) = spike.outliers
    assert (outlier.location, outlier.overlap) == (spike.location, spike.overlap)
    assert outlier.gap == (law.support[0][1], law.support[1][0])
    diagonal, found = np.diag(np.repeat([-3.0, 4.0], [9 * N // 10, N // 10])), []
    for _ in range(2 * DRAWS):
        u = direction(N, rng)
        values, vectors = np.linalg.eigh(diagonal + be.Wigner(N, variance=0.3).sample(rng) + np.outer(u, u))
        index = 9 * N // 10 - 1  # the largest of the lower interval has left it
        found.append([values[index], (vectors[:, index] @ u) ** 2])
    assert close(found, [spike.location, spike.overlap], 1.0)


def test_a_signal_in_attention_is_a_spike_of_singular_values():
    """x = 3 in the linear model of attention at beta = 1, d = T; adding x**2 to M M' would say 3.373."""
    rng = np.random.default_rng(13)
    law = be.AttentionLaw(beta=1.0, head_ratio=1.0)
    spike = law.singular_spike(3.0)
    assert spike.singular_value == pytest.approx(3.6144, abs=1e-4)
    assert spike.location == pytest.approx(spike.singular_value**2, rel=1e-14)
    model = be.GaussianSum(N, (1.0, np.e - 2), (1.0, np.inf))
    found = []
    for _ in range(DRAWS):
        values, shares = singular_draw(model.sample, 3.0)(rng)
        found.append([values[0], *shares[:, 0]])
    assert close(found, [spike.singular_value, spike.left_overlap, spike.right_overlap], 1.0)


def test_orthogonal_spikes_act_independently():
    """Strengths 3, 2 and -1.7 at once: three outliers, each along its own direction only."""
    rng = np.random.default_rng(14)
    law, strengths = be.Semicircle(), (3.0, 2.0, -1.7)
    outliers = law.spikes(strengths)
    assert [each.strength for each in outliers] == [-1.7, 2.0, 3.0]
    found = []
    for _ in range(2 * DRAWS):
        basis = np.linalg.qr(rng.standard_normal((N, 3)))[0]
        values, vectors = np.linalg.eigh(be.Wigner(N).sample(rng) + basis * np.array(strengths) @ basis.T)
        shares = (basis[:, [2, 1, 0]].T @ vectors[:, [0, -2, -1]]) ** 2
        found.append([*values[[0, -2, -1]], *shares.ravel()])
    expected = [*(each.location for each in outliers), *np.diag([each.overlap for each in outliers]).ravel()]
    assert close(found, expected, 1.0)


def test_orthogonal_signals_act_independently():
    """The same for singular values of a rectangular matrix."""
    rng = np.random.default_rng(15)
    strengths = (1.5, 4.0, 2.5)
    outliers = be.MarchenkoPastur(0.5).singular_spike(strengths).together
    assert [each.strength for each in outliers] == [1.5, 2.5, 4.0]
    found = []
    for _ in range(DRAWS):
        left, right = (np.linalg.qr(rng.standard_normal((size, 3)))[0] for size in (N, 2 * N))
        noise = rng.standard_normal((N, 2 * N)) / np.sqrt(2 * N)
        u, values, v = np.linalg.svd(noise + left * np.array(strengths) @ right.T, full_matrices=False)
        order = [0, 2, 1]
        shares = [(left.T @ u[:, [2, 1, 0]])[order] ** 2, (right.T @ v[[2, 1, 0]].T)[order] ** 2]
        found.append([*values[[2, 1, 0]], *shares[0].ravel(), *shares[1].ravel()])
    overlaps = [np.diag([getattr(each, f"{side}_overlap") for each in outliers]).ravel() for side in ("left", "right")]
    assert close(found, [*(each.singular_value for each in outliers), *overlaps[0], *overlaps[1]], 1.0)
