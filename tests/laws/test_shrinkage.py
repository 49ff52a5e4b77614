"""Optimal shrinkage against its closed forms, and against the best that can be done with the vectors of drawn matrices.

The oracle of a draw knows the signal and chooses the value that minimises the loss for the observed vectors. At n = 600
the mean of ten oracles is within 0.02 of the shrunken value: fluctuations of outliers are of order n**(-1/2) = 0.04 for
one draw.
"""

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import bulkedge as be

NORMS = {"frobenius": "fro", "operator": 2, "nuclear": "nuc"}
N = 600


def oracle(strength, left, right, loss):
    """The value that is best for vectors at these cosines, by search over the two-dimensional problem."""
    signal = np.array([[strength, 0.0], [0.0, 0.0]])
    one, other = ([cosine, np.sqrt(1 - cosine**2)] for cosine in (left, right))

    def error(eta):
        return np.linalg.norm(signal - eta * np.outer(one, other), NORMS[loss])

    return minimize_scalar(error, bounds=(0, 2 * strength), method="bounded", options={"xatol": 1e-10}).x


@pytest.mark.parametrize("loss", NORMS)
@pytest.mark.parametrize(("left", "right"), [(0.9, 0.9), (0.9, 0.6), (0.5, 0.95), (0.3, 0.4)])
def test_factors_minimise_the_loss(left, right, loss):
    expected = oracle(3.0, left, right, loss)
    found = 3.0 * be.laws.spikes.shrinkage.factor(np.array(left**2), np.array(right**2), loss)
    assert found == pytest.approx(expected, abs=1e-6)  # the search ends at 1e-10, where the loss is flat to 1e-20


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_white_noise_is_gavish_and_donoho(ratio):
    y = np.linspace(1 + np.sqrt(ratio) + 0.01, 9, 50)
    root = np.sqrt((y**2 - ratio - 1) ** 2 - 4 * ratio)
    square = (y**2 - ratio - 1 + root) / 2
    nuclear = (square**2 - ratio - np.sqrt(ratio * square) * y) / (square * y)
    law = be.MarchenkoPastur(ratio)
    np.testing.assert_allclose(law.shrink(y**2, ratio=ratio), (root / y) ** 2, rtol=1e-9)
    np.testing.assert_allclose(
        law.shrink(y**2, "nuclear", ratio=ratio), np.maximum(nuclear, 0) ** 2, rtol=1e-9, atol=1e-12
    )
    if ratio == 1:
        np.testing.assert_allclose(law.shrink(y**2, "operator", ratio=ratio), square, rtol=1e-9)


def test_wigner():
    theta = np.array([1.1, 2.0, 5.0, -3.0])
    values = theta + 1 / theta
    law = be.Semicircle()
    np.testing.assert_allclose(law.shrink(values), theta - 1 / theta, rtol=1e-10)
    np.testing.assert_allclose(law.shrink(values, "operator"), theta, rtol=1e-10)
    np.testing.assert_allclose(
        law.shrink(values, "nuclear"), np.sign(theta) * np.maximum(abs(theta) - 2 / abs(theta), 0)
    )
    assert law.shrink([-2.0, 0.0, 1.999, 2.0]).tolist() == [0, 0, 0, 0]
    assert law.shrink(2.5) == pytest.approx(1.5)


@pytest.mark.parametrize("loss", NORMS)
@pytest.mark.parametrize(
    "law", [be.AttentionLaw(0.8, 1.0), be.ProductLaw((0.5, 2.0)), be.free_add(be.Semicircle(), be.MarchenkoPastur(0.5))]
)
def test_shrinkage_undoes_what_spikes_do(law, loss):
    """The strength, and the overlaps of the forward direction, from the outlier alone."""
    for strength in (4.0, 9.0):
        if law.unit is be.Unit.EIGEN:
            spike = law.spike(strength)
            expected = strength * be.laws.spikes.shrinkage.factor(spike.overlap, spike.overlap, loss)
            assert law.shrink(spike.location, loss) == pytest.approx(expected, rel=1e-9)
        else:
            spike = law.singular_spike(strength)
            expected = strength * be.laws.spikes.shrinkage.factor(spike.left_overlap, spike.right_overlap, loss)
            assert law.shrink(spike.location, loss) == pytest.approx(expected**2, rel=1e-9)


@pytest.fixture(scope="module")
def rectangles():
    """Strength of the spike in rows over columns 1/4; largest value and cosines with the signal, a row a draw."""
    rng, strength, found = np.random.default_rng(3), 1.3, []
    for _ in range(10):
        noise = rng.standard_normal((N, 4 * N)) / np.sqrt(4 * N)
        noise[0, 0] += strength
        left, values, right = np.linalg.svd(noise, full_matrices=False)
        found.append([values[0], abs(left[0, 0]), abs(right[0, 0])])
    return strength, found


@pytest.mark.parametrize("loss", NORMS)
def test_the_oracle_of_drawn_rectangles(loss, rectangles):
    """Rows over columns 1/4: the overlaps differ, and Gavish and Donoho's operator rule (x itself) is far off."""
    law, (strength, draws) = be.MarchenkoPastur(0.25), rectangles
    best = [oracle(strength, left, right, loss) for _, left, right in draws]
    shrunk = [np.sqrt(law.shrink(value**2, loss, ratio=0.25)) for value, *_ in draws]
    assert np.mean(shrunk) == pytest.approx(np.mean(best), abs=0.02)
    if loss == "operator":
        assert np.mean(best) < strength - 0.1


def test_sample_covariances():
    """Donoho, Gavish and Johnstone: population 4 among ones, half as many dimensions as samples."""
    white, population = be.EmpiricalLaw([1.0]), 4.0
    spike = white.sample_spike(population, 0.5)
    for loss, factor in (("frobenius", spike.overlap), ("operator", 1.0), ("nuclear", 2 * spike.overlap - 1)):
        assert white.shrink_sample(spike.location, 0.5, loss) == pytest.approx(1 + 3 * factor, rel=1e-10)
    scaled = be.EmpiricalLaw([2.5]).shrink_sample(2.5 * spike.location, 0.5)
    assert scaled == pytest.approx(2.5 * white.shrink_sample(spike.location, 0.5), rel=1e-10)
    assert white.shrink_sample([0.5, 1.0, 2.0], 0.5).tolist() == [1, 1, 1]
    # below the bulk: a population eigenvalue of 0.1
    low = white.sample_spike(0.1, 0.5)
    assert white.shrink_sample(low.location, 0.5, "operator") == pytest.approx(0.1, rel=1e-9)
    with pytest.raises(be.DomainError, match="not white noise"):
        be.MarchenkoPastur(0.5).shrink_sample(4.0, 0.5, "operator")


def reference(places, ratio, value):
    """Ledoit and Peche's estimate with equal shares, from the equation's root to fifty digits."""
    a, b = places
    share = ratio / 2
    # x (1 + c psi(x)) = z times (x - a)(x - b), highest power first
    begin = np.roots([1, (share - 1) * (a + b) - value, (1 - ratio) * a * b + value * (a + b), -value * a * b])
    with mpmath.workdps(50):
        z, c = mpmath.mpf(value), mpmath.mpf(ratio)
        sample = lambda x: x * (1 + c * (a / (x - a) + b / (x - b)) / 2) - z  # noqa: E731
        x = mpmath.findroot(sample, mpmath.mpc(begin[np.argmax(begin.imag)]))
        return float(abs(x) ** 2 / z)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 3.0])
def test_coloured_noise_in_fifty_digits(ratio):
    """Inside the bulk; 1e-10 is what is left of double precision between edges."""
    law = be.EmpiricalLaw([1.0, 4.0])
    values = be.free_mul(law, be.MarchenkoPastur(ratio)).ppf(np.linspace(0.75, 0.95, 5))
    expected = [reference((1.0, 4.0), ratio, value) for value in values.tolist()]
    np.testing.assert_allclose(law.shrink_sample(values, ratio), expected, rtol=1e-10)


def test_outliers_of_coloured_noise():
    law = be.MarchenkoPastur(0.3)
    spike = law.sample_spike(np.array([4.0, 9.0]), 0.5)
    np.testing.assert_allclose(law.shrink_sample(spike.location, 0.5), np.array([16, 81]) / spike.location, rtol=1e-9)
    white = be.EmpiricalLaw([2.0, 2.0 * (1 + 1e-9)])  # two atoms that are nearly one: the closed form of white noise
    values = np.array([0.5, 2.0, 12.0])
    expected = be.EmpiricalLaw([2.0]).shrink_sample(values, 0.5)
    np.testing.assert_allclose(white.shrink_sample(values, 0.5), expected, rtol=1e-7)


@pytest.mark.parametrize("samples", [800, 200])
def test_the_oracle_of_coloured_samples(samples):
    """Means of ``u' Sigma u`` over forty vectors of each part; their spread is a fifth of the noise over root forty."""
    dim, rng = 400, np.random.default_rng(5)
    population = np.repeat([1.0, 4.0], dim // 2)
    population[0] = 14.0
    data = rng.standard_normal((samples, dim)) * np.sqrt(population)
    values, vectors = np.linalg.eigh(data.T @ data / samples)
    oracle = (vectors**2 * population[:, None]).sum(axis=0)
    values[: max(dim - samples, 0)] = 0
    shrunk = be.EmpiricalLaw([1.0, 4.0]).shrink_sample(values, dim / samples)
    for start in range(0, dim - 40, 40):
        assert shrunk[start : start + 40].mean() == pytest.approx(oracle[start : start + 40].mean(), rel=0.08)
    assert shrunk[-1] == pytest.approx(oracle[-1], rel=0.1)


def test_what_is_refused():
    with pytest.raises(be.DomainError, match="loss"):
        be.Semicircle().shrink(3.0, "spectral")
    with pytest.raises(be.DomainError, match="values"):
        be.Semicircle().shrink([np.nan])
    coloured = be.EmpiricalLaw([1.0, 2.0])
    with pytest.raises(be.DomainError, match="positive, or zero"):
        coloured.shrink_sample([0.0, 1.0], 0.5)
    with pytest.raises(be.DomainError, match="population eigenvalues"):
        be.Semicircle().shrink_sample([1.0], 0.5)
