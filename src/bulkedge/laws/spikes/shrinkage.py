"""Optimal shrinkage: what to put in the place of an outlier, so that the signal is recovered as well as can be.

An outlier of a law says how strong the signal is that makes it, and how much its vectors overlap with the signal's
(:meth:`bulkedge.laws.spikes.rank_one.Response.signals`). The best estimate of the form ``sum eta_k u_k v_k'``, with the
vectors as observed, has the ``eta`` that minimises the loss of a two-dimensional problem. With the cosines ``c`` and
``d`` of the angles on the left and on the right, and a signal of strength x:

* Frobenius: ``x c d``;
* operator: ``x min(c, d)/max(c, d)``, which is x itself where both are the same (symmetric or square matrices);
* nuclear: ``x (c d - sqrt(1 - c**2) sqrt(1 - d**2))``, or zero if that is negative.

For white noise these are Gavish and Donoho 2017 (their operator loss for matrices that are not square is not minimised
by x: the two-dimensional problem is ``|x - eta exp(i(a + b))| + |x - eta exp(i(a - b))|``, a and b the angles, and has
the minimum above). For sample covariances of white noise, with a population eigenvalue t among others of s: Donoho,
Gavish and Johnstone 2018, ``s + (t - s)`` times the same factors. For coloured noise the Frobenius loss has a closed
form, ``t**2`` over the sample eigenvalue (Ledoit and Peche 2011), with what the population has along all eigenvectors
of the sample. A population has ``psi(x) = int t/(x - t)``; c is dimension over samples. A sample eigenvalue z belongs
to the point x of the closed upper half-plane with ``z = x (1 + c psi(x))`` (Silverstein 1995; x is minus one over the
companion Stieltjes transform), and the mean of ``u' Sigma u`` over eigenvectors u there is ``|x|**2/z``. Inside the
bulk x is complex. For an outlier x is the population eigenvalue theta, and the mean ``theta**2/z``. In the kernel of a
sample with c > 1 it is ``-x/(c - 1)``, with x the negative root of ``1 + c psi(x) = 0``.

>>> white = point_masses(np.array([1.0]), np.array([1.0]))
>>> points = population_points(white, np.array([1.0, 14 / 3]), 0.5, top=1.0)
>>> (np.abs(points) ** 2 / np.array([1.0, 14 / 3])).round(6)              # noise is 1; 4**2/(14/3) for a spike of 4
array([1.      , 3.428571])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bulkedge.laws.distribution import Unit
from bulkedge.laws.spikes.rank_one import RATIO, SymmetricResponse, sample_spike
from bulkedge.laws.spikes.singular_spikes import singular_response
from bulkedge.support.arrays import Complex, Real
from bulkedge.support.domains import FINITE, Choice
from bulkedge.support.errors import DomainError, UnresolvedError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

Loss = Literal["frobenius", "operator", "nuclear"]
LOSS = Choice(("frobenius", "operator", "nuclear"))


def shrink(law: Law, values: ArrayLike, loss: Loss = "frobenius", ratio: float | None = None) -> Any:
    """Optimal estimates of a signal's eigenvalues or singular values: see :meth:`bulkedge.Law.shrink`."""
    given, norm = FINITE.check("values", values), LOSS.check("loss", loss)
    flat = given.ravel()
    if law.unit is Unit.EIGEN and ratio is None:
        strength, left, right = SymmetricResponse(law).signals(flat)
        return (strength * factor(left, right, norm)).reshape(given.shape)[()]
    response = singular_response(law, ratio)
    strength, left, right = response.signals(flat)
    shrunk = np.abs(strength) * factor(left, right, norm)
    squared = law.unit in {Unit.SQUARED, Unit.EIGEN}
    return (shrunk**2 if squared else shrunk).reshape(given.shape)[()]


def shrink_sample(law: Law, values: ArrayLike, ratio: float, loss: Loss = "frobenius") -> Any:
    """Optimal estimates of population eigenvalues from those of a sample: see :meth:`bulkedge.Law.shrink_sample`."""
    given, norm = FINITE.check("values", values), LOSS.check("loss", loss)
    ratio = RATIO.check("ratio", ratio)
    if len(law.atoms) != 1 or law.atoms[0][1] < 1 or law.atoms[0][0] <= 0:
        if norm != "frobenius":
            raise DomainError(f"{law!r} is not white noise, for which only the loss 'frobenius' has a known shrinkage")
        return shrink_coloured(law, given.ravel().astype(float), ratio).reshape(given.shape)[()]
    noise = law.atoms[0][0]
    # the population eigenvalue t solves t**2 - (value + s (1 - ratio)) t + value s = 0; the roots meet at the edges
    half = (given + noise * (1 - ratio)) / 2
    square = half**2 - given * noise
    population = half + np.sign(half - noise) * np.sqrt(np.maximum(square, 0.0))
    outside = (square > 0) & (population > 0) & (population != noise)
    overlap = np.zeros(given.shape)
    if np.any(outside):
        overlap[outside] = sample_spike(law, population[outside], ratio).overlap
    return (noise + np.where(outside, population - noise, 0.0) * factor(overlap, overlap, norm))[()]


def factor(left: Real, right: Real, loss: str) -> Real:
    """What the strength of a signal is multiplied by."""
    product = np.sqrt(left * right)
    if loss == "frobenius":
        return product
    if loss == "nuclear":
        return np.maximum(product - np.sqrt((1 - left) * (1 - right)), 0.0)
    larger = np.maximum(left, right)
    return np.sqrt(np.minimum(left, right) / np.where(larger > 0, larger, 1.0))


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
