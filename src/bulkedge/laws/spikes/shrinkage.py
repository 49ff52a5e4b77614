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
form, ``t**2`` over the sample eigenvalue (:mod:`bulkedge.laws.spikes.ledoit_peche`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.laws.distribution import Unit
from bulkedge.laws.spikes.ledoit_peche import shrink_coloured
from bulkedge.laws.spikes.rank_one import RATIO, SymmetricResponse, sample_spike
from bulkedge.laws.spikes.singular_spikes import singular_response
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Choice
from bulkedge.support.errors import DomainError

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
