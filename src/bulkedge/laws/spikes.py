"""Outliers and overlaps: what a rank-one perturbation does to the spectrum of a law.

Everything is read off one function and its derivative: the inverse Cauchy transform K for additive perturbations, and
``lam(l) = l (1 + ratio psi(l))`` for sample covariances (docs/theory/transforms.md, "Spikes").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bulkedge.arrays import EPS, Real
from bulkedge.errors import DomainError

if TYPE_CHECKING:
    from bulkedge.laws.base import Law

CLOSEST = -72.0
"""Roots are sought from a relative distance of exp(-72) = 5e-32 to an edge outwards."""


@dataclass(frozen=True)
class Spike:
    """What a rank-one perturbation does to the top of a spectrum; arrays where the strength was an array.

    Attributes
    ----------
    location : float
        Where the top eigenvalue goes; the bulk edge if the spike is not detectable.
    overlap : float
        Squared overlap of the top eigenvector with the direction of the perturbation.
    detectable : bool
        Whether an eigenvalue leaves the bulk.
    threshold : float
        The smallest strength at which one does.
    """

    location: Any
    overlap: Any
    detectable: Any
    threshold: float


def additive_spike(law: Law, theta: ArrayLike) -> Spike:
    """Spike of strength theta added to a matrix of the given law."""
    strength = np.asarray(theta, dtype=float)
    if not np.all((strength > 0) & np.isfinite(strength)):
        raise DomainError(f"theta = {theta!r} is outside its domain (0, inf)")
    threshold = 1 / law._edge_cauchy[1] if law._edge_cauchy[1] else np.inf
    detectable = strength > threshold
    location, overlap = np.full(strength.shape, law.edge), np.zeros(strength.shape)
    location[detectable] = [law.inverse_cauchy(1 / each) for each in strength[detectable]]
    # an outlier that no number separates from an atom shares its eigenspace
    overlap[detectable] = dict(law.atoms).get(law.edge, 0.0)
    apart = detectable & (location > law.edge)
    slope = law._transforms(location[apart] + 0j)[1].real
    overlap[apart] = np.minimum(-1 / (strength[apart] ** 2 * slope), 1.0)
    return Spike(location[()], overlap[()], detectable[()], threshold)


def sample_spike(law: Law, theta: ArrayLike, ratio: float) -> Spike:
    """Population eigenvalue theta above a population bulk of the given law, seen through samples."""
    strength = np.asarray(theta, dtype=float)
    if not np.all((strength >= 0) & np.isfinite(strength)):
        raise DomainError(f"theta = {theta!r} is outside its domain [0, inf)")
    if not 0 < ratio < np.inf:
        raise DomainError(f"ratio = {ratio!r} is outside its domain (0, inf)")
    if law.lower_edge < 0:
        raise DomainError(f"a population covariance is positive, but {law!r} reaches down to {law.lower_edge:g}")
    threshold = _sample_threshold(law, ratio)
    detectable = strength > threshold
    value, slope = _sample_map(law, np.where(detectable, strength, threshold).ravel(), ratio)
    value, slope = value.reshape(strength.shape), slope.reshape(strength.shape)
    overlap = np.where(detectable, strength * slope / value, 0.0)
    return Spike(value[()], overlap[()], detectable[()], threshold)


def _sample_map(law: Law, level: Real, ratio: float) -> tuple[Real, Real]:
    """``lam`` and its derivative."""
    _, _, psi, d_psi = (part.real for part in law._transforms(level + 0j))
    with np.errstate(invalid="ignore"):  # at an atom both are infinite, with opposite signs
        return level * (1 + ratio * psi), 1 + ratio * (psi + level * d_psi)


def _sample_threshold(law: Law, ratio: float) -> float:
    """The critical point of ``lam`` beyond the edge, or the edge; its value there is the edge of the sample bulk."""
    if np.isinf(law.edge):
        return np.inf
    scale = max(law.edge, float(np.finfo(float).tiny))

    def slope(v: float) -> float:
        rise = float(_sample_map(law, np.array([law.edge + scale * np.exp(v)]), ratio)[1][0])
        return rise if np.isfinite(rise) else -1e300

    if slope(CLOSEST) >= 0:  # the density vanishes so fast that lam increases from the edge on
        return law.edge
    # psi <= edge/(l - edge), so the slope is positive once l - edge exceeds (ratio + sqrt(ratio)) edge
    high = np.log(2 * (ratio + np.sqrt(ratio)))
    return float(law.edge + scale * np.exp(brentq(slope, CLOSEST, high, xtol=1e-15, rtol=8 * EPS)))
