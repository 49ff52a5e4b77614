"""Fifty-digit references that share no code with the package.

Densities come from the defining equation by Newton continuation from far above the axis (:func:`follow`), where the
solution is known, straight down to the axis; moments from exact power series in rational numbers.
"""

from fractions import Fraction

import mpmath as mp
import numpy as np

mp.mp.dps = 50


def follow(equation, x, start):
    """Solve ``equation(w, z) = 0`` at z = x + i0, following the branch that is ``start(z)`` at large z.

    On the way down each height is half the one before: branch points lie on the axis, so the solution at one height is
    well inside the disc of convergence about the next, and Newton's method starts on the right branch.
    """
    height = mp.mpf(10) ** 6
    z = mp.mpc(x, height)
    w = start(z)
    while height > 0:
        z = mp.mpc(x, height)
        w = _newton(equation, w, z, digits=12)
        height = height / 2 if height > mp.mpf(10) ** -12 else mp.mpf(0)
    return _newton(equation, w, mp.mpf(x), digits=45)


def _newton(equation, w, z, digits):
    step = mp.mpf(1)
    for _ in range(100):
        value = equation(w, z)
        shift = abs(w) * mp.mpf(10) ** -25
        slope = (equation(w + shift, z) - value) / shift
        step = value / slope
        w -= step
        if abs(step) < abs(w) * mp.mpf(10) ** -digits:
            break
    return w


def r_transform_density(r, x):
    """Density at x of the law with the given R-transform."""
    w = follow(lambda w, z: 1 / w + r(w) - z, x, lambda z: 1 / z)
    return -w.imag / mp.pi


def product_density(ratios, x, scale=1):
    """Density at x of the free product of Marchenko-Pastur laws."""

    def equation(psi, z):
        value = scale * (1 + psi) / psi
        for ratio in ratios:
            value *= 1 + ratio * psi
        return value - z

    psi = follow(equation, x, lambda z: scale / z)
    return -(psi.imag) / (mp.pi * x)


def silverstein_density(values, weights, ratio, x):
    """Density at x of the free product of atoms with MP(ratio), from the companion Stieltjes transform."""

    def equation(m, z):
        return -1 / m + ratio * mp.fsum(p * t / (1 + t * m) for t, p in zip(values, weights, strict=True)) - z

    m = follow(equation, x, lambda z: -1 / z)
    return m.imag / (mp.pi * ratio)


def silverstein_density_beside_zero(values, weights, ratio, x):
    """The same at x so close to zero that the equation ``x = u (1 - ratio + ratio u G(u))`` is quadratic at first.

    The solution above the axis is the only one there, so that where Newton's method starts does not matter.
    """
    x, c = mp.mpf(x), mp.mpf(ratio)
    pairs = [(mp.mpf(t), mp.mpf(p) / mp.fsum(map(mp.mpf, weights))) for t, p in zip(values, weights, strict=True)]

    def value(u):
        return u * (1 - c + c * u * mp.fsum(p / (u - t) for t, p in pairs))

    slope = c * mp.fsum(p / t for t, p in pairs)
    root = mp.sqrt(4 * slope * x - (1 - c) ** 2)
    start = ((1 - c) / slope + 1j * abs(root / slope)) / 2
    u = mp.findroot(lambda u: value(u) / x - 1, start, tol=mp.mpf(10) ** -35)
    assert u.imag > 0
    return -((1 / u - (1 - c) / x) / c).imag / mp.pi


def fuss_catalan_point(order, angle):
    """Point and density of the Fuss-Catalan law by its angle in (0, pi/(order + 1)) (Haagerup and Moller 2013)."""
    m, phi = order, mp.mpf(angle)
    x = mp.sin((m + 1) * phi) ** (m + 1) / (mp.sin(phi) * mp.sin(m * phi) ** m)
    density = mp.sin(phi) ** 2 * mp.sin(m * phi) ** (m - 1) / (mp.pi * mp.sin((m + 1) * phi) ** m)
    return x, density


def marchenko_pastur_density(ratio, x):
    """Closed form, scale one."""
    c = mp.mpf(ratio)
    return mp.sqrt(((1 + mp.sqrt(c)) ** 2 - x) * (x - (1 - mp.sqrt(c)) ** 2)) / (2 * mp.pi * c * x)


def moments_from_free_cumulants(cumulants):
    """Moments 1..n from free cumulants 1..n, in the arithmetic of the arguments: ``M(z) = 1 + sum k_n (z M(z))**n``."""
    n = len(cumulants)
    series = [Fraction(1)] + [Fraction(0)] * n
    for _ in range(n):
        # one more coefficient is right after each pass
        total = [Fraction(1)] + [Fraction(0)] * n
        power = [Fraction(1)] + [Fraction(0)] * n
        for cumulant in cumulants:
            power = [Fraction(0), *_multiply(power, series, n)[:n]]
            total = [a + cumulant * b for a, b in zip(total, power, strict=True)]
        series = total
    return series[1:]


def _multiply(a, b, n):
    return [sum((a[i] * b[k - i] for i in range(k + 1)), Fraction(0)) for k in range(n + 1)]


def product_moments(ratios, n):
    """Moments 1..n of the product law: ``m_k = [u**(k-1)] ((1 + u) prod(1 + c u))**k / k`` (Lagrange inversion)."""
    polynomial = [Fraction(1), Fraction(1)]
    for ratio in ratios:
        polynomial = [
            (polynomial[k] if k < len(polynomial) else Fraction(0)) + (Fraction(ratio) * polynomial[k - 1] if k else 0)
            for k in range(len(polynomial) + 1)
        ]
    result = []
    for k in range(1, n + 1):
        padded = (polynomial + [Fraction(0)] * n)[: n + 1]
        power = [Fraction(1)] + [Fraction(0)] * n
        for _ in range(k):
            power = _multiply(power, padded, n)
        result.append(power[k - 1] / k)
    return result


def atomic_cauchy(values, weights):
    """The Cauchy transform of atoms, as a function of an array of points."""
    values, weights = np.asarray(values), np.asarray(weights)
    return lambda u: (weights / (u[:, None] - values)).sum(axis=1)


def subordinated_cauchy(cauchy, r, z):
    """Cauchy transform at z of the free sum of a law with one of R-transform r: ``G(u)`` at ``u = z - r(G(u))``.

    Plain averaged iteration in double precision, for z well above the axis; it knows nothing of edges or gaps. It stops
    relative to how far u is from z, not from zero: a law may be much narrower than its distance from there.
    """
    u = np.array(z)
    for _ in range(100_000):
        image = z - r(cauchy(u))
        rounding = 2 * np.spacing(np.abs(image))
        if np.all(np.abs(image - u) <= np.maximum(1e-13 * np.abs(image - z), rounding)):
            return cauchy(image)
        u = (u + image) / 2
    raise AssertionError("the iteration of the reference did not converge")


def silverstein_cauchy(values, weights, ratio, z):
    """Cauchy transform at z of the free product of atoms with MP(ratio), by iteration of Silverstein's equation.

    ``m = -1/(z - ratio int t/(1 + t m))`` is the companion transform, ``-m = ratio G + (1 - ratio)/z``.
    """
    values, weights = np.asarray(values), np.asarray(weights)
    m = -1 / z
    for _ in range(100_000):
        image = -1 / (z - ratio * (weights * values / (1 + values * m[:, None])).sum(axis=1))
        if np.abs(image - m).max() <= 1e-14 * np.abs(image).min():
            return -(image + (1 - ratio) / z) / ratio
        m = (m + image) / 2
    raise AssertionError("the iteration of the reference did not converge")
