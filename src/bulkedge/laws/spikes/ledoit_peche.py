"""Ledoit and Peche's shrinkage: what the population has along the eigenvectors of a sample covariance.

A population has ``psi(x) = int t/(x - t)``; c is dimension over samples. A sample eigenvalue z belongs to the point x
of the closed upper half-plane with ``z = x (1 + c psi(x))`` (Silverstein 1995; x is minus one over the companion
Stieltjes transform). The mean of ``u' Sigma u`` over eigenvectors u there is ``|x|**2/z`` (Ledoit and Peche 2011).
Inside the bulk x is complex. For an outlier x is the population eigenvalue theta, and the mean ``theta**2/z``. In the
kernel of a sample with c > 1 it is ``-x/(c - 1)``, with x the negative root of ``1 + c psi(x) = 0``.

>>> white = point_masses(np.array([1.0]), np.array([1.0]))
>>> points = population_points(white, np.array([1.0, 14 / 3]), 0.5, top=1.0)
>>> (np.abs(points) ** 2 / np.array([1.0, 14 / 3])).round(6)              # noise is 1; 4**2/(14/3) for a spike of 4
array([1.      , 3.428571])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq

from bulkedge.support.arrays import Complex, Real
from bulkedge.support.errors import DomainError, UnresolvedError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

Psi = Callable[[Complex], tuple[Complex, Complex]]
FALL, NEWTON, POLISH, HALVINGS = 0.4, 2, 6, 10  # of the height in a step; Newton's steps at each, at the end; halvings
HEIGHT = 1e-13  # of the end of the way, relative to the value
RESIDUAL = 1e-9


def point_masses(places: Real, weights: Real) -> Psi:
    """``psi`` and its derivative for a population of point masses."""
    masses = (weights * places).astype(complex)

    def psi(x: Complex) -> tuple[Complex, Complex]:
        inverse = 1 / (x[:, None] - places)
        value = inverse @ masses
        inverse *= inverse
        return value, -(inverse @ masses)

    return psi


def of_law(law: Law) -> Psi:
    """``psi`` and its derivative for any population."""

    def psi(x: Complex) -> tuple[Complex, Complex]:
        _, _, value, slope = law.transforms(x)
        return value, slope

    return psi


def population_points(psi: Psi, values: Real, ratio: float, top: float, height: float = HEIGHT) -> Complex:
    """The point x of each positive sample eigenvalue, or of the point ``height`` times the value above it.

    ``top`` is the largest population eigenvalue. Newton's method follows the point down from far above, where it is
    ``z - ratio * mean``; steps that would leave the upper half-plane are halved.
    """
    start = 4 * max(top * (1 + ratio), float(values.max()))
    lowest = height * values
    steps = max(4, int(np.ceil(np.log(lowest.min() / start) / np.log(FALL))))
    x = values + 1j * start
    for share in np.linspace(0, 1, steps):
        z = values + 1j * start * (lowest / start) ** share
        for _ in range(NEWTON if share < 1 else POLISH):
            x = x - _step(psi, x, z, ratio)
    residual = np.abs(x * (1 + ratio * psi(x)[0]) - z) / np.abs(z)
    if not np.all(residual <= RESIDUAL):
        raise UnresolvedError(
            f"the equation of the sample covariance was solved to {residual.max():.1g} only: the value "
            f"{values[int(np.argmax(residual))]:.6g} is too close to an edge"
        )
    return x


def _step(psi: Psi, x: Complex, z: Complex, ratio: float) -> Complex:
    """Newton's step, short enough to stay in the upper half-plane and within half of the way to zero."""
    value, slope = psi(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        step = (x * (1 + ratio * value) - z) / (1 + ratio * (value + x * slope))
    step = np.where(np.isfinite(step), step, 0.0)
    for _ in range(HALVINGS):
        astray = ((x - step).imag <= 0) | (np.abs(step) > 0.5 * np.abs(x))
        if not astray.any():
            break
        step = np.where(astray, step / 2, step)
    return np.where((x - step).imag > 0, step, 0.0)


def kernel_value(psi: Psi, ratio: float, top: float) -> float:
    """The mean of ``u' Sigma u`` in the kernel of a sample covariance with ratio above one."""

    def excess(log: float) -> float:
        return float((1 + ratio * psi(np.array([-np.exp(log) + 0j]))[0].real)[0])

    low, high = np.log(top) - 60, np.log(top * ratio) + 1
    if excess(low) >= 0:
        raise DomainError("the population has so many zeros that the kernel of the sample says nothing")
    return float(np.exp(brentq(excess, low, high, xtol=1e-14)) / (ratio - 1))


def shrink_coloured(law: Law, values: Real, ratio: float) -> Real:
    """Ledoit and Peche's estimates for a known population law, outliers included."""
    if law.lower_edge < 0 or not np.isfinite(law.edge) or law.edge <= 0:
        raise DomainError(f"{law!r} is no law of population eigenvalues: they are not negative and have an upper end")
    if np.any(values < 0) or (ratio <= 1 and np.any(values == 0)):
        raise DomainError("values are eigenvalues of a sample covariance: positive, or zero where ratio exceeds one")
    psi, found = of_law(law), np.empty(values.shape)
    positive = values > 0
    if np.any(positive):
        points = population_points(psi, values[positive], ratio, law.edge)
        found[positive] = np.abs(points) ** 2 / values[positive]
    if not np.all(positive):
        found[~positive] = kernel_value(psi, ratio, law.edge)
    return found
