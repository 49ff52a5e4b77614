r"""Tracy-Widom laws of the largest eigenvalue at a soft edge, for beta = 1, 2, 4, accurate in both tails.

``F_beta`` is the limit law of ``n**(2/3) * (lambda_max - 2)`` for the Gaussian beta-ensemble, whose eigenvalues have
density ``prod |x_i - x_j|**beta * exp(-beta * n / 4 * sum x_i**2)`` (Ramirez, Rider, Virag 2011, arXiv:math/0607331).
At beta = 4 usage differs: if ``G`` is the law of the *second* largest point of the beta = 1 limit, here
``F_4(s) = G(2**(2/3) * s)``, mean -2.0552; Bornemann, Mathematica and Wikipedia have ``G(sqrt(2) * s)``, mean -2.3069;
R's RMTstat has ``G(s)``, mean -3.2624.

With ``tau`` the eigenvalues of the kernel ``Ai(x + y - s)`` on ``L2(s, inf)``, whose square is the Airy kernel, the
formulas of Bornemann (2010, arXiv:0904.1581) read ``F_1 = exp(a - d)``, ``F_2 = exp(2 * a)`` and ``G = exp(a) *
cosh(d)``, where ``a = sum log(1 - tau**2) / 2`` and ``d = sum artanh(tau)``. Chebyshev panels interpolate the logarithm
of the smaller tail.

>>> [round(float(x), 12) for x in (TracyWidom(1).mean(), TracyWidom(1).cdf(-1.0), TracyWidom(1).isf(1e-10))]
[-1.206533574582, 0.58378989552, 9.446275599785]
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.polynomial import chebyshev, legendre
from numpy.typing import ArrayLike
from scipy.special import airy

from bulkedge.laws.distribution import Distribution, Unit
from bulkedge.support.arrays import Real
from bulkedge.support.domains import REAL, Choice, Parametric, parameter

# Panel ends in the unit of G. Every cdf underflows before -30; the sf of beta = 2, 4 after 62, of beta = 1 after 100.
_EDGES = (-30.0, -18.0, -11.0, -7.0, -5.5, -4.0, -2.0, 0.0, 2.0, 5.0, 10.0, 20.0, 36.0, 62.0, 100.0)
_PIVOT = _EDGES.index(-2.0)  # panels before this edge interpolate log(cdf), the others log(sf); both exceed 0.1 here
_NODES = 18  # Chebyshev nodes per panel: on each, 16 reach rounding level
_SERIES_A = (
    -0.068270005588559937,
    3 / 128,
    63 / 512,
    2407 / 1024,
    1608657 / 16384,
    1180103913 / 163840,
    26886699679 / 32768,
)
_SERIES_D = (1 / 24, 73 / 1152, 10657 / 15360, 13912277 / 688128, 8045883943 / 7077888, 4839483796783 / 46137344)


def _from_series(y: Real) -> tuple[Real, Real]:
    """(a, d) at x = -y << 0: Painleve II in powers of y**-3, constants of Baik et al. (2008, arXiv:0704.3636)."""
    a = -(y**3) / 24 - np.log(y) / 16 + np.polyval(_SERIES_A[::-1], y**-3)
    return a, (y**1.5 / 3 + y**-1.5 * np.polyval(_SERIES_D[::-1], y**-3)) / np.sqrt(2) + np.log(2) / 4


def _from_determinants(x: Real, order: int) -> tuple[Real, Real]:
    """Return (a, d) from Gauss-Legendre discretizations of the kernel, whose eigenvalues converge exponentially."""
    # Eigenfunctions decay like Ai: past this cut they are below exp(-20) of their start, and tau errs by its square.
    half = ((np.maximum(x, 0) ** 1.5 + 30) ** (2 / 3) - x)[:, None] / 2
    node, weight = legendre.leggauss(order)
    z, root = half * (1 + node), np.sqrt(half * weight)
    i, j = np.tril_indices(order)  # all that eigvalsh reads; the Airy function is most of the cost
    kernel = np.zeros((x.size, order, order))
    kernel[:, i, j] = airy(x[:, None] + z[:, i] + z[:, j])[0] * root[:, i] * root[:, j]
    tau = np.linalg.eigvalsh(kernel)
    return np.log1p(-(tau**2)).sum(axis=1) / 2, np.arctanh(tau).sum(axis=1)


@cache
def _panel(low: float, high: float) -> tuple[Real, Real, Real]:
    """Return the nodes of a panel, and (a, d) there; the three laws share them."""
    x = (low + high) / 2 + (high - low) / 2 * chebyshev.chebpts1(_NODES)
    # rounding costs the determinants here as much as truncation the series: 1e-9 of the cdf
    return x, *(_from_series(-x) if high <= -7.0 else _from_determinants(x, 32 if low < 0 else 24))


def _signed_log_tail(dyson: int, x: Real, a: Real, d: Real) -> Real:
    """Return log(cdf) on a panel before the pivot, -log(sf) on one after it."""
    if x[0] < _EDGES[_PIVOT]:
        return np.asarray({1: a - d, 2: 2 * a, 4: a + np.logaddexp(d, -d) - np.log(2)}[dyson])
    # 1 - exp(a) cosh(d) is of second order in tau: written so that no first-order term is there to be rounded.
    sf = {1: -np.expm1(a - d), 2: -np.expm1(2 * a), 4: -np.expm1(a) * np.cosh(d) - 2 * np.sinh(d / 2) ** 2}[dyson]
    return np.asarray(-np.log(sf))


@dataclass(frozen=True, eq=False)
class _LogTails:
    """Interpolant of the signed log tail, which increases from -inf to inf and jumps over zero at the pivot."""

    edges: Real
    series: Real  # indexed by Chebyshev degree, value or slope, panel
    samples: Real  # value, then site

    def __call__(self, s: ArrayLike) -> tuple[Real, Real]:
        """Return the signed log tail, infinite off the panels, and its slope."""
        x = np.asarray(s, dtype=float)
        inside = np.clip(x, self.edges[0], self.edges[-1])
        panel = np.searchsorted(self.edges[1:-1], inside, side="right")
        t = (2 * inside - self.edges[panel] - self.edges[panel + 1]) / np.diff(self.edges)[panel]
        last, before = np.zeros((2, *t.shape)), np.zeros((2, *t.shape))
        for row in self.series[:0:-1]:  # Clenshaw, gathering row by row to spare memory
            last, before = row.take(panel, axis=1) + 2 * t * last - before, last
        value, slope = self.series[0][:, panel] + t * last - before
        return np.where(np.abs(x - inside) > 0, np.copysign(np.inf, x), value), slope

    def solve(self, cdf: Real, sf: Real) -> Real:
        """Return the points with this cdf and sf, which add up to 1, by Newton from the samples."""
        first, pivot, last = self.edges[0], self.edges[_PIVOT], self.edges[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            target = np.where(sf > np.exp(-self(pivot)[0]), np.log(cdf), -np.log(sf))
        # log(cdf) and log(sf) are concave: after one step, iterates stay on the root's side away from the pivot.
        low, high = np.where(target < 0, first, pivot), np.where(target < 0, np.nextafter(pivot, first), last)
        x = np.clip(np.interp(target, *self.samples), low, high)
        for _ in range(3):  # largest errors: 1e-2 of the guess, then 6e-6, 2e-11, rounding
            value, slope = self(x)
            x = np.clip(x - (value - target) / slope, low, high)
        return np.where(np.isinf(target), target, x)[()]

    def moments(self) -> tuple[float, float, float, float]:
        """Return mean, variance, skewness and excess kurtosis."""
        node, weight = legendre.leggauss(32)
        half, pivot = np.diff(self.edges)[:, None] / 2, float(self.edges[_PIVOT])
        x = self.edges[:-1, None] + half * (1 + node)
        # By parts, E (X - pivot)**k is an integral over the tails, which are more accurate than the density.
        tail = half * weight * np.sign(x - pivot) * np.exp(-np.abs(self(x)[0]))
        m1, m2, m3, m4 = (float(np.sum(k * (x - pivot) ** (k - 1) * tail)) for k in (1, 2, 3, 4))
        var, third, fourth = m2 - m1**2, m3 - 3 * m1 * m2 + 2 * m1**3, m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
        return pivot + m1, var, third / var**1.5, fourth / var**2 - 3


@cache
def _tails(dyson: int) -> _LogTails:
    """Build the interpolant, once per index, from at most 198 determinants."""
    ends = np.array(_EDGES if dyson == 1 else _EDGES[:-1])
    panels = [_panel(low, high) for low, high in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    values = np.array([_signed_log_tail(dyson, *panel) for panel in panels])
    unit = 2 ** (2 / 3) if dyson == 4 else 1.0
    edges, samples = ends / unit, np.stack([values.ravel(), np.concatenate([x for x, _, _ in panels]) / unit])
    series = chebyshev.chebfit(chebyshev.chebpts1(_NODES), values.T, _NODES - 1)
    slope = np.append(chebyshev.chebder(series), np.zeros((1, len(panels))), axis=0) * 2 / np.diff(edges)
    return _LogTails(edges, np.stack([series, slope], axis=1), samples)


def _probability(log_tail: Real) -> Real:
    """Return exp(log_tail) where it is negative, 1 - exp(-log_tail) where positive."""
    return np.where(log_tail < 0, np.exp(-np.abs(log_tail)), -np.expm1(-np.abs(log_tail)))[()]


@dataclass(frozen=True)
class TracyWidom(Parametric, Distribution):
    """Tracy-Widom law; its methods act elementwise.

    >>> TracyWidom(2).ppf([0.5, 0.95]).round(3)
    array([-1.805, -0.232])

    Parameters
    ----------
    dyson : {1, 2, 4}
        Dyson index: real, complex or quaternionic matrices. The module states the scale at 4.
    """

    unit = Unit.VALUES

    dyson: int = parameter(
        Choice((1, 2, 4)), "Dyson's index: 1 for real matrices, 2 for complex, 4 for quaternion ones"
    )

    def pdf(self, s: ArrayLike) -> Real:
        """Return the density at s.

        Parameters
        ----------
        s : array_like
            Points of the line, of any shape.

        Returns
        -------
        array
            The density, of the same shape.
        """
        value, slope = _tails(self.dyson)(REAL.check("s", s))
        return np.exp(-np.abs(value)) * slope

    def cdf(self, s: ArrayLike) -> Real:
        """Return the probability of a value at most s."""
        return _probability(_tails(self.dyson)(REAL.check("s", s))[0])

    def sf(self, s: ArrayLike) -> Real:
        """Return the probability of a value above s, to relative accuracy.

        Parameters
        ----------
        s : array_like
            Points of the line, of any shape.

        Returns
        -------
        array
            The probability, of the same shape.
        """
        return _probability(-_tails(self.dyson)(REAL.check("s", s))[0])

    def ppf(self, q: ArrayLike) -> Real:
        """Return the inverse of cdf; nan outside [0, 1]."""
        levels = REAL.check("q", q)
        return _tails(self.dyson).solve(levels, 1 - levels)

    def isf(self, p: ArrayLike) -> Real:
        """Return the inverse of sf, accurate for tiny p; nan outside [0, 1].

        Parameters
        ----------
        p : array_like
            Probabilities of the upper tail, of any shape.

        Returns
        -------
        array
            The points, of the same shape.
        """
        levels = REAL.check("p", p)
        return _tails(self.dyson).solve(1 - levels, levels)

    def mean(self) -> float:
        """Return the expectation."""
        return _tails(self.dyson).moments()[0]

    def var(self) -> float:
        """Return the variance."""
        return _tails(self.dyson).moments()[1]
