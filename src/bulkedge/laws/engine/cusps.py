"""The inverse map next to a cusp, where its first two derivatives vanish and its terms cancel each other.

There the map is summed from its Taylor series, which starts with the cube: no digits are lost however close the cusp.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.polynomial import polynomial

from bulkedge.arrays import EPS, Complex, Real

Evaluate = Callable[[Complex], tuple[Complex, Complex, Real]]

CIRCLE = 64
"""Points on the circle of half the radius of convergence: aliasing is 2**-64."""
TERMS = 32


def expanded(evaluate: Evaluate, cusp: float, radius: float) -> Evaluate:
    """The same map, with a Taylor series about the cusp within a quarter of its radius of convergence."""
    for _ in range(2):
        series, size = _taylor(evaluate, cusp, radius)
        cusp -= float(series[2] / (3 * series[3]))
    noise = 8 * EPS * size * (2 / radius) ** np.arange(TERMS)
    series = np.where(np.abs(series) < noise, 0.0, series)
    derivative = polynomial.polyder(series)

    def summed(u: Complex) -> tuple[Complex, Complex, Real]:
        value, slope, terms = evaluate(u)
        close = np.abs(u - cusp) < radius / 4
        w = u[close] - cusp
        value[close], slope[close] = polynomial.polyval(w, series), polynomial.polyval(w, derivative)
        terms[close] = polynomial.polyval(np.abs(w), np.abs(series))
        return value, slope, terms

    return summed


def _taylor(evaluate: Evaluate, centre: float, radius: float) -> tuple[Real, float]:
    """Taylor coefficients, by Cauchy's formula on a circle, and the size of the map there."""
    values, _, size = evaluate(centre + radius / 2 * np.exp(2j * np.pi * np.arange(CIRCLE) / CIRCLE))
    return np.fft.fft(values)[:TERMS].real / CIRCLE / (radius / 2) ** np.arange(TERMS), float(size.max())
