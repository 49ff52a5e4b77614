"""Laws against fifty-digit references and closed forms that they were not built from.

The promise: density to 1e-10 absolute in the interior and 1e-8 relative within 1e-6 of an edge; mass and moments 1 to 8
to 1e-10 relative. The tests ask for ten times less than what was measured where that is stricter.
"""

from fractions import Fraction
from math import comb

import mpmath as mp
import numpy as np
import pytest
import reference

import bulkedge as be
from bulkedge.laws.attention.causal import _elementary
from bulkedge.laws.engine.measure.panels import product_at_zero

INTERIOR = (np.arange(7) + 0.5) / 7
CLOSE = [1e-6, 1e-7, 1e-9, 1e-11]
"""Distances to an edge, in units of the interval: there the edge has to be known beyond double precision."""

LEVY = {
    "SC+SC": (lambda: be.free_add(be.Semicircle(1.0), be.Semicircle(0.5)), lambda w: mp.mpf("1.5") * w),
    "SC+MP(1/2)": (
        lambda: be.free_add(be.Semicircle(), be.MarchenkoPastur(0.5)),
        lambda w: w + 1 / (1 - w / 2),
    ),
    "MP(2)+MP(1/2)": (
        lambda: be.free_add(be.MarchenkoPastur(2.0), be.MarchenkoPastur(0.5)),
        lambda w: 1 / (1 - 2 * w) + 1 / (1 - w / 2),
    ),
    "SumLaw": (
        lambda: be.SumLaw((1.0, 0.5, 0.25), (0.25, 2.0, np.inf)),
        lambda w: w / (1 - 4 * w**2) + (w / 2) / (1 - w**2 / 4) + w / 4,
    ),
}
PRODUCTS = [(0.5,), (1.0,), (0.5, 0.25), (2.0, 0.5), (2.0, 2.0), (1.0, 1.0, 0.5), (4.0, 1.0, 0.125)]


def places(law, shares):
    return np.concatenate([lo + (hi - lo) * np.asarray(shares) for lo, hi in law.support])


def near_edges(law):
    """Points close to the square-root edges."""
    points = []
    for left, right in law.continuum.intervals:
        length = right.location - left.location
        points += [left.location + length * d for d in CLOSE if left.exponent == 0.5]
        points += [right.location - length * d for d in CLOSE if right.exponent == 0.5]
    return np.array(points)


def assert_density(law, exact):
    """The two promises about densities."""
    for x in places(law, INTERIOR):
        assert law.pdf(x) == pytest.approx(float(exact(mp.mpf(float(x)))), rel=1e-12, abs=1e-11)
    for x in near_edges(law):
        assert law.pdf(x) == pytest.approx(float(exact(mp.mpf(float(x)))), rel=1e-8)


@pytest.mark.parametrize("name", LEVY)
def test_free_sums_of_infinitely_divisible_laws(name):
    build, r = LEVY[name]
    assert_density(build(), lambda x: reference.r_transform_density(r, x))


@pytest.mark.parametrize("ratios", PRODUCTS)
def test_products(ratios):
    exact = [mp.mpf(ratio) for ratio in ratios]
    assert_density(be.ProductLaw(ratios), lambda x: reference.product_density(exact, x))


@pytest.mark.parametrize("variance", [0.01, 0.3, 1.0, 2.0, 3.7])
def test_circles(variance):
    """At variances whose root is not a double: the edge is known beyond its rounding."""
    exact = mp.mpf(variance)
    assert_density(be.Semicircle(variance), lambda x: mp.sqrt(4 * exact - x**2) / (2 * mp.pi * exact))
    assert_density(be.QuarterCircle(variance), lambda x: mp.sqrt(4 * exact - x**2) / (mp.pi * exact))


@pytest.mark.parametrize("ratio", [1e-6, 0.1, 0.999999, 1.0, 2.0, 1e6])
def test_marchenko_pastur(ratio):
    assert_density(be.MarchenkoPastur(ratio), lambda x: reference.marchenko_pastur_density(ratio, x))


def test_marchenko_pastur_cdf_above_ratio_one():
    """The value that popular software gets wrong."""
    law = be.MarchenkoPastur(2.0)
    assert law.cdf(0.1) == 0.5
    assert law.cdf(-1e-300) == 0
    assert law.mean() == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_marchenko_pastur_cdf_against_quadrature(ratio):
    law = be.MarchenkoPastur(ratio)
    low = (1 - mp.sqrt(mp.mpf(ratio))) ** 2
    for x in places(law, [0.2, 0.9]):
        exact = max(0, 1 - 1 / ratio) + mp.quad(
            lambda t: reference.marchenko_pastur_density(ratio, t), [low, mp.mpf(float(x))]
        )
        assert law.cdf(x) == pytest.approx(float(exact), abs=1e-13)


@pytest.mark.parametrize("order", [2, 3, 8, 30])
def test_fuss_catalan(order):
    law = be.FussCatalan(order)
    for share in [1e-6, 0.1, 0.3, 0.5, 0.7, 0.9, 1 - 1e-6]:
        x, density = reference.fuss_catalan_point(order, share * mp.pi / (order + 1))
        # x is rounded to a float, which the steep density near zero notices: relative error, not absolute
        assert law.pdf(float(x)) == pytest.approx(float(density), rel=1e-9)
    for k in range(1, 9):
        exact = Fraction(comb((order + 1) * k, k), order * k + 1)
        assert law.moment(k) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("variance", [1e-4, 0.3, 2.0, 12.0])
def test_free_log_normal(variance):
    """Points of the curve on rays of constant ``arg psi``, and moments by Lagrange's inversion."""
    law, v = be.FreeLogNormal(variance), mp.mpf(variance)
    for angle in (1e-3, 0.3, 1.0, 2.0, 3.0, 3.14):
        direction = mp.expj(angle)
        size = mp.findroot(
            lambda r, w=direction, a=angle: mp.arg(1 + r * w) + v * mp.im(r * w) - a, (mp.mpf("1e-9"), mp.mpf("1e5")),
            solver="anderson", tol=mp.mpf("1e-60"), maxsteps=1000, verify=False,
        )  # fmt: skip
        psi = size * direction
        x = mp.re((1 + psi) / psi * mp.exp(v * psi))
        # x is rounded to a float, which a root at an edge notices
        rounding = 1e-16 * x / min(x - law.lower_edge, law.edge - x)
        assert law.pdf(float(x)) == pytest.approx(float(mp.im(psi) / (mp.pi * x)), rel=1e-10 + float(rounding))
    for k in range(1, 9):
        exact = mp.fsum(comb(k, j + 1) * (k * v) ** j / mp.factorial(j) for j in range(k)) / k
        assert law.moment(k) == pytest.approx(float(exact), rel=1e-12)


def test_free_log_normal_is_the_limit_of_products():
    """Thirty factors of ratio v/30: the distance of the two is 0.17/30, and half of that beyond with sixty."""
    law, x = be.FreeLogNormal(1.0), np.linspace(0.05, 5, 200)
    distances = [np.abs(law.cdf(x) - be.ProductLaw((1 / m,) * m).cdf(x)).max() for m in (15, 30)]
    assert distances[1] < 0.006
    assert distances[0] / distances[1] == pytest.approx(2, rel=0.05)


def test_fuss_catalan_far_below_the_bulk():
    """At order 30 a tenth of the mass lies below 1e-30; nothing is lost there."""
    law = be.FussCatalan(30)
    x, density = reference.fuss_catalan_point(30, (1 - mp.mpf(10) ** -6) * mp.pi / 31)
    assert float(x) < 1e-100
    assert law.pdf(float(x)) == pytest.approx(float(density), rel=1e-9)
    assert law.ppf(law.cdf(float(x))) == pytest.approx(float(x), rel=1e-9)


def cubic_density(variance, x):
    """SC(variance) + (delta_{-1} + delta_1)/2: ``G = u/(u**2 - 1)`` at ``u = z - variance G``."""
    v = mp.mpf(variance)
    w = reference.follow(lambda w, z: (z - v * w) / ((z - v * w) ** 2 - 1) - w, x, lambda z: 1 / z)
    return -w.imag / mp.pi


@pytest.mark.parametrize("variance", [0.5, 0.99, 1.0, 1.01, 2.0])
def test_semicircle_and_two_atoms(variance):
    """Before, at and after the support splits."""
    law = be.free_add(be.Semicircle(variance), be.EmpiricalLaw([-1.0, 1.0]))
    assert len(law.support) == (2 if variance < 1 else 1)
    assert_density(law, lambda x: cubic_density(variance, x))
    assert law.moment(2) == pytest.approx(1 + variance, rel=1e-12)
    assert law.moment(4) == pytest.approx(1 + 4 * variance + 2 * variance**2, rel=1e-12)


def test_density_at_a_cusp():
    """At variance one the two intervals touch, and the density is ``sqrt(3)/(2 pi) |x|**(1/3)`` there."""
    law = be.free_add(be.Semicircle(1.0), be.EmpiricalLaw([-1.0, 1.0]))
    for x in [1e-3, 1e-6, -1e-9]:
        assert law.pdf(x) == pytest.approx(float(cubic_density(1, mp.mpf(x))), rel=1e-8)
    assert law.pdf(0.0) == 0


def test_two_atoms_through_a_sample_covariance():
    """(delta_1 + delta_5)/2 with MP(1/2): two intervals with a narrow gap."""
    law = be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(0.5))
    assert len(law.support) == 2
    half = mp.mpf("0.5")
    assert_density(law, lambda x: reference.silverstein_density([1, 5], [half, half], half, x))
    # the mass of the upper interval is that of the upper eigenvalue
    assert law.cdf(1.67) == pytest.approx(0.5, abs=1e-13)


def test_silverstein_law_of_unequal_atoms_above_ratio_one():
    law = be.free_mul(be.EmpiricalLaw([0.5, 1.0, 7.0], [2, 5, 3]), be.MarchenkoPastur(1.5))
    assert law.atoms == ((0.0, pytest.approx(1 / 3)),)
    weights = [mp.mpf(2) / 10, mp.mpf(5) / 10, mp.mpf(3) / 10]
    assert_density(law, lambda x: reference.silverstein_density([mp.mpf("0.5"), 1, 7], weights, mp.mpf("1.5"), x))


def test_arcsine():
    """The free sum of two Bernoulli laws."""
    law = be.free_add(be.EmpiricalLaw([0.0, 1.0]), be.EmpiricalLaw([0.0, 1.0]))
    x = np.linspace(0.01, 1.99, 41)
    assert np.allclose(law.pdf(x), 1 / (np.pi * np.sqrt(x * (2 - x))), rtol=1e-11)
    assert np.allclose(law.cdf(x), np.arccos(1 - x) / np.pi, atol=1e-12)


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.5), (0.3, 0.6), (0.7, 0.8)])
def test_free_projections(p, q):
    """Product of free projections of traces p and q: a Jacobi law with known edges, density and atoms."""
    law = be.free_mul(be.EmpiricalLaw([0.0, 1.0], [1 - p, p]), be.EmpiricalLaw([0.0, 1.0], [1 - q, q]))
    root = 2 * np.sqrt(p * q * (1 - p) * (1 - q))
    low, high = p + q - 2 * p * q - root, p + q - 2 * p * q + root
    assert law.support[0] == pytest.approx((low, high), abs=1e-13)
    x = low + (high - low) * INTERIOR
    exact = np.sqrt((x - low) * (high - x)) / (2 * np.pi * x * (1 - x))
    assert np.allclose(law.pdf(x), exact, rtol=1e-10)
    atoms = {0.0: max(1 - p, 1 - q), 1.0: max(0.0, p + q - 1)}
    assert dict(law.atoms) == pytest.approx({place: mass for place, mass in atoms.items() if mass > 1e-14})


def test_two_routes_to_the_same_law():
    """The explicit inverse map and the two-sided subordination agree: MP(0.3) hidden in an empirical-free form."""
    atoms, ratio = be.EmpiricalLaw([1.0, 2.0, 4.0]), 0.3
    explicit = be.free_mul(atoms, be.MarchenkoPastur(ratio))
    # MP(c) is also the squared singular values of a rectangular Gaussian matrix; hide it behind a root and a square
    hidden = be.MarchenkoPastur(ratio).sqrt().squared()
    general = be.free_mul(atoms, hidden)
    assert type(general.nu) is not be.MarchenkoPastur
    x = places(explicit, INTERIOR)
    assert np.allclose(general.pdf(x), explicit.pdf(x), atol=1e-12)
    assert np.allclose(general.support, explicit.support, atol=1e-12)


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0])
def test_rectangular_sum_of_gaussian_matrices(ratio):
    """Gaussian + Gaussian is Gaussian: variances add."""
    noise = be.MarchenkoPastur(ratio).sqrt()
    total = be.rectangular_add(noise, noise.scaled(2.0), ratio)
    exact = be.MarchenkoPastur(ratio, scale=5.0).sqrt()
    x = places(exact, INTERIOR)
    assert np.allclose(total.pdf(x), exact.pdf(x), atol=1e-12)
    assert total.edge == pytest.approx(exact.edge, rel=1e-13)


def test_rectangular_sum_at_ratio_one_is_the_symmetrised_free_sum():
    first, second = be.EmpiricalLaw([1.0, 4.0]), be.EmpiricalLaw([1.0, 2.0])
    rectangular = be.rectangular_add(first, second, 1.0)
    symmetric = be.free_add(be.EmpiricalLaw([-4, -1, 1, 4]), be.EmpiricalLaw([-2, -1, 1, 2]))
    x = np.linspace(0.1, 5.5, 23)
    assert np.allclose(rectangular.pdf(x), 2 * symmetric.pdf(x), atol=1e-11)


def test_rectangular_sum_at_small_ratio_adds_squares_freely():
    """As the ratio goes to zero, squares add freely; at 1e-6 they do so to about 1e-5."""
    first, second = be.EmpiricalLaw([1.0, 2.0]), be.EmpiricalLaw([1.0, 3.0])
    rectangular = be.rectangular_add(first, second, 1e-6).squared()
    limit = be.free_add(first.squared(), second.squared())
    x = places(limit, [0.2, 0.4, 0.6, 0.8])
    assert np.allclose(rectangular.cdf(x), limit.cdf(x), atol=1e-4)


FREE_CUMULANTS = {
    "Semicircle": (lambda: be.Semicircle(0.5), lambda n: Fraction(1, 2) if n == 2 else Fraction(0)),
    "MarchenkoPastur": (lambda: be.MarchenkoPastur(0.25, 2.0), lambda n: 2 * Fraction(1, 2) ** (n - 1)),
    "SC+MP": (
        lambda: be.free_add(be.Semicircle(), be.MarchenkoPastur(0.5)),
        lambda n: Fraction(1, 2) ** (n - 1) + (n == 2),
    ),
    "SumLaw": (
        lambda: be.SumLaw((1.0, 0.5), (4.0, np.inf)),
        lambda n: Fraction(0) if n % 2 else Fraction(1, 4) ** (n // 2 - 1) + (Fraction(1, 2) if n == 2 else 0),
    ),
    "SC+two atoms": (
        lambda: be.free_add(be.Semicircle(0.5), be.EmpiricalLaw([-1.0, 1.0])),
        # free cumulants of a symmetric Bernoulli law are signed Catalan numbers
        lambda n: (
            Fraction(0)
            if n % 2
            else (-1) ** (n // 2 - 1) * Fraction(comb(n - 2, n // 2 - 1), n // 2) + (Fraction(1, 2) if n == 2 else 0)
        ),
    ),
}


@pytest.mark.parametrize("name", FREE_CUMULANTS)
def test_moments_from_free_cumulants(name):
    build, cumulant = FREE_CUMULANTS[name]
    exact = reference.moments_from_free_cumulants([cumulant(n) for n in range(1, 9)])
    law = build()
    for k, value in enumerate(exact, start=1):
        assert law.moment(k) == pytest.approx(float(value), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("ratios", PRODUCTS)
def test_moments_of_products(ratios):
    law = be.ProductLaw(ratios)
    for k, value in enumerate(reference.product_moments(ratios, 8), start=1):
        assert law.moment(k) == pytest.approx(float(value), rel=1e-12)


def test_attention_edge():
    """``a**2 + b**2 (1 + cg)/(1 - cg)**2 = 1/g``, g in (0, 1/c); the edge is ``K(sqrt(g))**2``.

    docs/theory/attention.md, "The edge".
    """
    law = be.AttentionLaw(beta=1.0, head_ratio=1.0)
    a2, b2 = mp.e - 2, mp.mpf(1)
    c = b2
    g = mp.findroot(lambda g: a2 + b2 * (1 + c * g) / (1 - c * g) ** 2 - 1 / g, mp.mpf("0.3"))
    w = mp.sqrt(g)
    edge = (1 / w + a2 * w + b2 * w / (1 - c * w**2)) ** 2
    assert law.edge == pytest.approx(float(edge), rel=1e-15)
    assert law.edge == pytest.approx(9.00954255, abs=1e-8)


@pytest.mark.parametrize(("beta", "head_ratio"), [(0.01, 1.0), (0.7, 0.3), (1.0, 1.0), (3.0, 0.01)])
def test_attention_density_solves_the_quartic(beta, head_ratio):
    """``-a**2 c G**4 + z c G**3 + (a**2 + b**2 - c) G**2 - z G + 1 = 0`` with z = sqrt(x).

    docs/theory/attention.md, "The proportional law".
    """
    law = be.AttentionLaw(beta, head_ratio)
    b2 = mp.mpf(beta) ** 2
    a2 = mp.e**b2 - 1 - b2
    q2 = b2 / mp.mpf(head_ratio)
    for x in places(law, INTERIOR):
        z = mp.sqrt(mp.mpf(float(x)))
        symmetric = reference.r_transform_density(lambda w: a2 * w + b2 * w / (1 - q2 * w**2), z)
        assert law.pdf(x) == pytest.approx(float(symmetric / z), rel=1e-10)


def test_poisson_moments_are_touchard_numbers():
    law = be.PoissonLaw(1.0)
    assert [law.moment(k) for k in range(1, 9)] == pytest.approx([1, 2, 5, 15, 52, 203, 877, 4140], rel=1e-12)
    assert law.cdf(1) == pytest.approx(2 / np.e, rel=1e-14)
    assert law.edge == np.inf


@pytest.mark.parametrize("x", [0.3, 20.0])
def test_causal_law(x):
    """Its equation in the form dM/dlog X = (X - M X + M**2)/(X - M + 1), by another integrator with twenty digits.

    It starts next to the fixed point, on the tangent of the unstable manifold: what is not on it decays.
    """

    def rate(place, m):
        return (place - m * place + m * m) / (place - m + 1)

    with mp.workdps(20):
        side, start = mp.sign(mp.log(2 * x)), mp.mpf(10) ** -9
        first = mp.mpf(1) / 2 + side * start * (mp.sqrt(5) - 2) / 2
        along = mp.odefun(lambda s, y: [side * rate(-mp.exp(side * s) / 2, y[0])], start, [first])
        m = along(abs(mp.log(2 * x)))[0]
        # turned from the negative axis to the positive one; the distribution function is the average of Re M on the way
        around = mp.odefun(
            lambda s, y: [-1j * rate(x * mp.expj(mp.pi - s), y[0]), y[0].real], 0, [mp.mpc(m), mp.mpc(0)]
        )
        m, total = around(mp.pi)
        density, below = float(-m.imag / (mp.pi * x)), float(total.real / mp.pi)
    law = be.CausalLaw(2.0)
    assert law.pdf(2 * x) == pytest.approx(density / 2, rel=1e-11)
    assert law.cdf(2 * x) == pytest.approx(below, abs=1e-11)


def test_profile_laws_that_are_others():
    """Equal variances: Marchenko-Pastur. Variances of rows alone: Silverstein's law, with population 1 and 5."""
    assert be.ProfileLaw([[2.0, 2.0], [2.0, 2.0]]).edge == pytest.approx(8.0, rel=1e-12)
    rounded = be.ProfileLaw([[1.0], [5.0]], rows=(0.5, 0.5 - 8e-10))  # of numbers that were read from a file
    assert sum(rounded.rows) == pytest.approx(1.0, rel=1e-15)
    law = be.ProfileLaw([[1.0], [5.0]])
    other = be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(1.0))
    x = np.linspace(0.1, 0.99, 9) * other.edge
    assert law.edge == pytest.approx(other.edge, rel=1e-11)
    assert law.pdf(x) == pytest.approx(other.pdf(x), rel=1e-10)


def test_cauchy_transform_on_both_sides_of_a_cut():
    """Where one interval ends and the next begins, the boundary value still carries the density."""
    for law in (be.CausalLaw(1.0), be.free_add(be.Semicircle(), be.EmpiricalLaw([-1.0, 3.0])).squared()):
        cuts = law.continuum._touching
        x = np.concatenate([cuts * (1 + 1e-9), cuts * (1 - 1e-9), cuts * 1.01])
        assert -law.cauchy(x).imag / np.pi == pytest.approx(law.pdf(x), rel=1e-9)
        # at the cut itself it is that of the next number, and a density with a square root moves by 1e-8
        assert -law.cauchy(cuts).imag / np.pi == pytest.approx(law.pdf(cuts), rel=1e-7)


@pytest.mark.parametrize("x", ["1e-12", "1e-3", "1", "9", "15.9", "15.9999"])
def test_product_of_independent_marchenko_pastur_variables(x):
    """MP(1) twice: the convolution of ``sqrt((4-x)/x)/(2 pi)`` with itself on a logarithmic scale, to fifty digits."""
    x = mp.mpf(x)

    def integrand(angle):
        # the first variable runs from x/4 to 4, as the middle of the two plus a cosine
        t = (4 + x / 4) / 2 + (4 - x / 4) / 2 * mp.cos(angle)
        return mp.sqrt((4 - t) / t * (4 - x / t) / (x / t)) / t * mp.sin(angle) * (4 - x / 4) / 2

    near = mp.pi - mp.sqrt(x)  # where t is of the order of x
    exact = mp.quad(integrand, [0, mp.pi / 2, 3, near, mp.pi] if near > 3 else [0, mp.pi / 2, mp.pi])
    law = be.IndependentProduct(be.MarchenkoPastur(1.0), be.MarchenkoPastur(1.0))
    assert law.pdf(float(x)) == pytest.approx(float(exact / (4 * mp.pi**2)), rel=1e-10)


@pytest.mark.parametrize("orders", [(1, 1), (2, 3), (6, 6)])
def test_moments_of_independent_variables_multiply(orders):
    law = be.IndependentProduct(*(be.FussCatalan(order) for order in orders))
    for k in range(1, 9):
        exact = np.prod([float(Fraction(comb((m + 1) * k, k), m * k + 1)) for m in orders])
        assert law.moment(k) == pytest.approx(exact, rel=1e-12)


def test_a_density_that_vanishes_fast_hides_no_population_spike():
    """``lam`` increases from the edge on while ``ratio int (t/(edge - t))**2 < 1``: every larger spike is seen."""
    law = be.IndependentProduct(be.FussCatalan(1), be.FussCatalan(1))
    share, weights = np.polynomial.legendre.leggauss(400)
    t = law.edge * (1 + share) / 2
    limit = 2 / law.edge / np.sum(weights * law.pdf(t) * (t / (law.edge - t)) ** 2)
    assert law.sample_spike(20.0, 0.999 * limit).threshold == law.edge
    assert law.sample_spike(20.0, 1.001 * limit).threshold > law.edge


@pytest.mark.parametrize("distance", [0.0, 1e-9, 1e-3, 0.1, 3.0])
def test_transforms_beside_an_edge_of_higher_power(distance):
    """G and its derivative to the right of the edge, where the density is ``delta**2``, by Gauss's rule."""
    law = be.IndependentProduct(be.QuarterCircle(), be.QuarterCircle())
    nodes, weights = np.polynomial.legendre.leggauss(300)
    # graded at the edge, and at zero for the logarithm there
    u = (1 + nodes) / 2
    t, mass = law.edge * (1 - (1 - u**4) ** 2), 4 * u**3 * (1 - u**4) * weights * law.edge
    mass, z = mass * law.pdf(t), law.edge + distance
    g, slope, _, _ = (part[0].real for part in law.transforms(np.array([z + 0j])))
    assert g == pytest.approx(np.sum(mass / (z - t)), rel=1e-8)
    assert slope == pytest.approx(-np.sum(mass / (z - t) ** 2), rel=1e-6)


def test_independent_products_that_are_refused():
    for law in (be.MarchenkoPastur(0.5), be.MarchenkoPastur(2.0), be.EmpiricalLaw([1.0]), be.FussCatalan(7)):
        with pytest.raises(ValueError, match="first = "):
            be.IndependentProduct(law, be.FussCatalan(1))


@pytest.mark.parametrize(("places", "even"), [([1.0, 5.0], True), ([-1.0, 5.0], False)])
def test_square_roots_at_zero_are_even_where_no_law_is_negative(places, even):
    """``x**(-1/2)`` times a series in x, and else in its root."""
    edge = product_at_zero(be.EmpiricalLaw(places), be.MarchenkoPastur(1.0))
    assert (edge.exponent, edge.order, edge.even) == (-0.5, 2, even)


def test_the_causal_law_far_to_the_left_solves_its_equation():
    """``1/m + log m`` is a constant minus ``log X``, to rounding: six steps of Newton's method reach it."""
    log_x = -np.linspace(60.0, 700.0, 30)
    m = _elementary(log_x)
    constant = 1 / m + np.log(m) + log_x
    assert constant == pytest.approx(np.full(30, constant[-1]), abs=1e-12)
