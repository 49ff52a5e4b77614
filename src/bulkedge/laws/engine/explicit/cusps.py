"""The inverse map next to a cusp, where its first two derivatives vanish and its terms cancel each other.

There the map is summed from its Taylor series, which starts with the cube: no digits are lost however close the cusp.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.polynomial import polynomial

from bulkedge.support.arrays import EPS, Complex, Real

Evaluate = Callable[[Complex], tuple[Complex, Complex, Real]]

POINTS = 64
"""Points on the circle with half the radius of convergence: aliasing is 2**-64."""
TERMS = 32


def expanded(evaluate: Evaluate, cusp: float, radius: float) -> Evaluate:
    """The same map, with a Taylor series about the cusp within a quarter of its radius of convergence."""
    unit = radius / 2
    for _ in range(2):
        series, size = _taylor(evaluate, cusp, unit)
        cusp -= unit * float(series[2] / (3 * series[3]))
    series = np.where(np.abs(series) < 8 * EPS * size, 0.0, series)
    derivative = polynomial.polyder(series) / unit

    def summed(u: Complex) -> tuple[Complex, Complex, Real]:
        value, slope, terms = evaluate(u)
        w = (u - cusp) / unit
        close = np.abs(w) < 0.5
        value[close], slope[close] = polynomial.polyval(w[close], series), polynomial.polyval(w[close], derivative)
        terms[close] = polynomial.polyval(np.abs(w[close]), np.abs(series))
        return value, slope, terms

    return summed


def _taylor(evaluate: Evaluate, centre: float, unit: float) -> tuple[Real, float]:
    """Taylor coefficients in ``(u - centre)/unit``, by Cauchy's formula, and the size of the map on the unit circle."""
    values, _, size = evaluate(centre + unit * np.exp(2j * np.pi * np.arange(POINTS) / POINTS))
    return np.fft.fft(values)[:TERMS].real / POINTS, float(size.max())
