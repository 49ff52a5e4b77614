"""Spectrum against law: distances of the bulk, error at the edge, outliers.

>>> import numpy as np
>>> from bulkedge.laws import MarchenkoPastur
>>> from bulkedge.spectra import spectrum
>>> z = np.random.default_rng(0).standard_normal((800, 400))
>>> z[:, 0] *= 2                                            # a population spike of strength 4
>>> result = compare(spectrum(z / np.sqrt(800)).squared(), MarchenkoPastur(ratio=0.5))
>>> [round(value, 2) for value in result.outliers]          # 4 (1 + 0.5/3) = 4.67 in the limit
[4.51]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial import legendre

from bulkedge.arrays import Real
from bulkedge.errors import DomainError
from bulkedge.laws.base import LEVEL, Law
from bulkedge.spectra import Spectrum

SNAP = 1e-9
"""Values this close to an atom, relative to the size of the law, are at the atom: rounding put them beside it."""
NODES, WEIGHTS = legendre.leggauss(8)


@dataclass(frozen=True)
class Comparison:
    """How a measured spectrum lies beside a law.

    Attributes
    ----------
    ks : float
        Kolmogorov distance between the law and the values that are not outliers, rounding errors left aside.
    wasserstein : float
        First Wasserstein distance between the same two.
    edge_error : float
        Largest value that is not an outlier, minus the edge of the law, relative to it; nan where that is 0 or inf.
    outliers : tuple of float
        Values beyond ``finite_edge``, largest last.
    finite_edge : float
        What the largest of as many bulk values exceeds with probability ``level``.
    level : float
        Probability of calling an outlier where there is none.
    """

    ks: float
    wasserstein: float
    edge_error: float
    outliers: tuple[float, ...]
    finite_edge: float
    level: float


def compare(spectrum: Spectrum, law: Law, level: float = 0.01, beta: int = 1) -> Comparison:
    """Compare a spectrum with a law.

    Parameters
    ----------
    spectrum : Spectrum
        Values of the same kind as the law's: eigenvalues, singular values, or their squares.
    law : Law
        The law they should follow.
    level : float
        Accepted probability of a false alarm among the outliers.
    beta : {1, 2, 4}
        Symmetry class of the matrix, for the fluctuations at the edge: 1 for real matrices.

    Notes
    -----
    The false-alarm rate is that of the Tracy-Widom limit; the tests measure it at finite size. A law whose right end is
    not a square-root edge (an atom, say) has no such limit: there everything beyond the end is an outlier.
    """
    level = LEVEL.check("level", level)
    if spectrum.kind == "singular" and law.lower_edge < 0:
        raise DomainError(
            f"singular values are not negative, but {law!r} reaches down to {law.lower_edge:g}: "
            "compare the squared spectrum with law.squared()"
        )
    reach = law.finite_edge(spectrum.size, level, beta) if law._soft_edge else law.edge + _slack(law)
    values = _snapped(spectrum.values, law)
    bulk = values <= reach
    if not bulk.any():
        raise DomainError(
            f"no value lies within {law!r} (edge {law.edge:g}, smallest value {values.min():g}): different scales?"
        )
    kept, weights = values[bulk], spectrum.weights[bulk] / spectrum.weights[bulk].sum()
    return Comparison(
        ks=_kolmogorov(kept, weights, law, spectrum.rounding),
        wasserstein=_wasserstein(kept, weights, law),
        edge_error=float((kept.max() - law.edge) / abs(law.edge)) if law.edge and np.isfinite(law.edge) else np.nan,
        outliers=tuple(values[~bulk].tolist()),
        finite_edge=reach,
        level=level,
    )


def _slack(law: Law) -> float:
    ends = (law.lower_edge, *(hi for _, hi in law.support), *law._locations)
    return SNAP * max(abs(place) for place in ends)


def _snapped(values: Real, law: Law) -> Real:
    moved = values.copy()
    for place in law._locations:
        # values may come from the continuous part where that comes closer
        nearest = min((max(lo - place, place - hi, 0.0) for lo, hi in law.support), default=np.inf)
        moved[np.abs(values - place) <= min(_slack(law), nearest)] = place
    return moved


def _kolmogorov(values: Real, weights: Real, law: Law, rounding: float) -> float:
    """Largest difference of the two distribution functions, on either side of each value that is not rounding."""
    points, index = np.unique(values, return_inverse=True)
    upto = np.cumsum(np.bincount(index, weights=weights))
    before = np.append(0.0, upto[:-1])
    at = law.cdf(points)
    atoms = dict(law.atoms)
    jump = np.array([atoms.get(point, 0.0) for point in points.tolist()])
    differences = np.maximum(np.abs(upto - at), np.abs(before - (at - jump)))
    known = np.abs(points) > rounding
    return float(differences[known | (jump > 0)].max(initial=0.0))


def _wasserstein(values: Real, weights: Real, law: Law) -> float:
    """``int |difference of the quantile functions|``, by a Gauss rule in the share of each value."""
    upto = np.cumsum(weights)
    middle, half = upto - weights / 2, weights / 2
    levels = np.clip(middle[:, None] + half[:, None] * NODES, 0.0, 1.0)
    gaps = np.abs(law.ppf(levels) - values[:, None])
    return float(np.sum(gaps * WEIGHTS * half[:, None]))
