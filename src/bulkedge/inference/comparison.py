"""Spectrum against law: distances of the bulk, error at the edge, outliers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from bulkedge.inference.linear_statistics import Assumed, GoodnessOfFit, law_fit
from bulkedge.laws.distribution import Distribution, StepDistribution, Unit
from bulkedge.laws.law import LEVEL, SNAP, Law
from bulkedge.spectra import Spectra, Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, shown
from bulkedge.support.errors import DomainError, UnitError
from bulkedge.support.files import html_table

NODES, WEIGHTS = legendre.leggauss(8)


@dataclass(frozen=True)
class Comparison:
    """A measured spectrum compared with a distribution.

    >>> from bulkedge.laws import Semicircle
    >>> result = compare(Spectrum.of([-1.0, -0.2, 0.4, 1.2, 4.0], unit="eigenvalues"), Semicircle())
    >>> round(result.ks, 3), result.outliers
    (0.196, (4.0,))

    Attributes
    ----------
    ks : float
        Kolmogorov distance between the law and the values that are not outliers, rounding errors left aside.
    wasserstein : float
        First Wasserstein distance between the same two.
    edge_error : float
        Largest value that is not an outlier, minus the edge of the law, relative to it; nan where that is 0, infinite
        or unknown.
    outliers : tuple of float
        Values beyond ``finite_edge``, largest last.
    finite_edge : float
        What the largest of as many bulk values exceeds with probability ``level``.
    level : float
        Probability of calling an outlier where there is none.
    unit : Unit
        The unit in which they were compared.
    error : float
        Kolmogorov distance within which the spectrum itself is known; zero if all its values were computed.
    spectrum : Spectrum
        The spectrum, in that unit.
    law : Distribution
        The distribution, in that unit.
    fit : GoodnessOfFit or None
        How well the whole spectrum fits, for Gaussian entries and a law of which no parameter was estimated: see
        :func:`~bulkedge.goodness_of_fit`. None where no calibrated p-value is known.
    """

    ks: float
    wasserstein: float
    edge_error: float
    outliers: tuple[float, ...]
    finite_edge: float
    level: float
    unit: Unit
    error: float
    spectrum: Spectrum = field(repr=False, compare=False)
    law: Distribution = field(repr=False, compare=False)
    fit: GoodnessOfFit | None = field(default=None, repr=False, compare=False)

    def plot(self, axes: Any = None, *, scale: str = "auto") -> Any:
        """Draw the spectrum on the law; see :func:`bulkedge.plots.comparison`."""
        from bulkedge import plots

        return plots.comparison(self, axes, scale=scale)

    def _repr_html_(self) -> str:
        outliers = ", ".join(f"{each:.6g}" for each in self.outliers[-8:]) or "none"
        facts = {
            "Kolmogorov distance": f"{self.ks:.4g}" + (f" ± {self.error:.2g}" if self.error else ""),
            "Wasserstein distance": f"{self.wasserstein:.4g}",
            "edge error": f"{self.edge_error:.2%}",
            f"outliers (level {self.level:g})": f"{len(self.outliers)}: {outliers}",
        }
        if self.fit is not None:
            facts["p of the whole fit, for Gaussian entries"] = f"{self.fit.value:.2g}"
        return html_table(facts | {"unit": self.unit})


@dataclass(frozen=True, eq=False)
class Comparisons:
    """The comparisons of a batch of spectra, indexed as the batch is; every number of a comparison is an array here.

    >>> from bulkedge.laws import QuarterCircle
    >>> from bulkedge.spectra import spectrum
    >>> matrices = np.random.default_rng(0).standard_normal((3, 100, 100)) / 10
    >>> compare(spectrum(matrices), QuarterCircle()).ks.round(2)
    array([0.02, 0.02, 0.02])

    Attributes
    ----------
    members : array of objects
        A :class:`Comparison` for each spectrum.
    """

    members: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the batch."""
        return tuple(self.members.shape)

    def __getattr__(self, name: str) -> Any:
        if name not in {each.name for each in fields(Comparison)}:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        found = [getattr(each, name) for each in self.members.ravel()]
        array = np.empty(len(found), dtype=float if isinstance(found[0], float) else object)
        array[:] = found
        return array.reshape(self.shape)

    def __getitem__(self, index: Any) -> Any:
        found = self.members[index]
        return Comparisons(found) if isinstance(found, np.ndarray) else found

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"Comparisons(shape={self.shape}, ks from {self.ks.min():.4g} to {self.ks.max():.4g})"


def compare(spectrum: Any, law: Any, level: float = 0.01, dyson: int = 1) -> Any:
    """Compare a spectrum with a law: distances of the bulk, error at the edge, and outliers.

    Parameters
    ----------
    spectrum : Spectrum or Spectra
        Measured values; a batch of them is compared one by one.
    law : Law, Distribution or Spectrum
        What they should follow, or another spectrum.
    level : float
        Accepted probability of a false alarm among the outliers.
    dyson : {1, 2, 4}
        Dyson's index, the symmetry class of the matrix, for the fluctuations at the edge: 1 for real matrices.

    Returns
    -------
    Comparison or Comparisons
        Distances and outliers; an array of them for a batch.

    Raises
    ------
    UnitError
        If the two are of units that do not convert exactly. Singular values are squared for a law of squares, and the
        squared singular values of M are the eigenvalues of M'M. But singular values beside a law of eigenvalues may be
        meant in two ways.

    Notes
    -----
    The false-alarm rate is that of the Tracy-Widom limit; the tests measure it at finite size. A law whose right end is
    not a square-root edge (an atom, say) has no such limit: there everything beyond the end is an outlier. A
    distribution that does not know its edge calls no outliers.

    Examples
    --------
    >>> from bulkedge.ensembles import Wishart
    >>> model = Wishart(dim=400, samples=800)
    >>> result = compare(model.spectrum(np.random.default_rng(0)), model.law())
    >>> result.ks < 0.01, abs(result.edge_error) < 0.02, result.outliers
    (True, True, ())
    """
    level, dyson = LEVEL.check("level", level), Choice((1, 2, 4)).check("dyson", dyson)
    if isinstance(law, Spectrum):
        law = law.distribution()
    if not isinstance(law, Distribution):
        raise DomainError(f"law = {shown(law)} is not a law, a distribution or a spectrum")
    if isinstance(spectrum, Spectra):
        members = np.empty(spectrum.members.shape, dtype=object)
        for index in np.ndindex(members.shape):
            members[index] = _compare(spectrum.members[index], law, level, dyson)
        return Comparisons(members)
    if not isinstance(spectrum, Spectrum):
        raise DomainError(
            f"spectrum = {shown(spectrum)} is not a Spectrum: take be.spectrum(matrix) of a matrix, or "
            "be.Spectrum.of(values, unit) of values that are known already"
        )
    return _compare(spectrum, law, level, dyson)


def separation(first: Distribution, second: Distribution, points: int = 2000) -> float:
    """Kolmogorov distance between two laws: what a spectrum of the one would show compared with the other."""
    units = {first.unit, second.unit}
    if len(units) > 1 and Unit.VALUES not in units and units != {Unit.SQUARED, Unit.EIGEN}:
        raise UnitError(f"{first!r} is of {first.unit}, {second!r} of {second.unit}; convert one of them")
    levels = (np.arange(points) + 0.5) / points
    x = np.concatenate([each.ppf(levels) for each in (first, second)])
    # quantiles at an atom are the atom itself, where both functions jump: the value just below it counts too
    x = np.concatenate([x, np.nextafter(x, -np.inf)])
    return float(np.abs(first.cdf(x) - second.cdf(x)).max())


def _compare(spectrum: Spectrum, law: Distribution, level: float, dyson: int) -> Comparison:
    whole = not spectrum.error and len(spectrum.values) == spectrum.size
    spectrum, law = in_one_unit(spectrum, law)
    reach = law.reach(spectrum.size, level, dyson)
    values = _snap_to_atoms(spectrum.values, law) if isinstance(law, Law) else spectrum.values
    bulk = values <= reach
    if not bulk.any():
        raise DomainError(f"no value lies within {law!r} (edge {reach:g}, least {values.min():g}): different scales?")
    kept, weights = values[bulk], spectrum.weights[bulk] / spectrum.weights[bulk].sum()
    edge = law.edge if isinstance(law, Law) else np.nan
    return Comparison(
        ks=_kolmogorov(kept, weights, law, spectrum.rounding),
        wasserstein=_wasserstein(kept, weights, law),
        edge_error=float((kept.max() - edge) / abs(edge)) if edge and np.isfinite(edge) else np.nan,
        outliers=tuple(values[~bulk].tolist()),
        finite_edge=reach,
        level=level,
        unit=spectrum.unit,
        error=spectrum.error,
        spectrum=spectrum,
        law=law,
        fit=law_fit(values, law, Assumed(reach, dyson)) if whole and isinstance(law, Law) else None,
    )


def in_one_unit(spectrum: Spectrum, law: Distribution) -> tuple[Spectrum, Distribution]:
    """Both in the unit of the law, by conversions that are exact."""
    match spectrum.unit, law.unit:
        case (own, other) if own is other or Unit.VALUES in (own, other):
            return spectrum, law
        case (Unit.SINGULAR, Unit.SQUARED):
            return spectrum.squared(), law
        case (Unit.SQUARED, Unit.SINGULAR):
            return spectrum.sqrt(), law
        case (Unit.SINGULAR | Unit.SQUARED, Unit.SYMMETRISED) if isinstance(law, Law):
            return (spectrum.squared() if spectrum.unit is Unit.SINGULAR else spectrum), law.squared()
        case (Unit.SQUARED, Unit.EIGEN) if isinstance(law, StepDistribution) or float(law.cdf(-SNAP)) == 0:
            return _of_gram_matrix(spectrum, law), law
    raise UnitError(
        f"the spectrum holds {spectrum.unit}, the law {law!r} is of {law.describes}, and these may be meant in several "
        "ways; pass two that match. be.spectrum(M) has the singular values of M, be.spectrum(M).squared() the "
        "eigenvalues of M'M, be.spectrum(S, kind='eigen') those of a symmetric S. Values that are known already are "
        "named by be.Spectrum.of(values, unit), and law.squared() has the squares of a law of singular values"
    )


def _of_gram_matrix(spectrum: Spectrum, law: Distribution) -> Spectrum:
    """Squared singular values of M as eigenvalues of M'M or MM', whichever has the zeros that the law has."""
    kernel = dict(law.atoms).get(0.0, 0.0)
    share = spectrum.kernel / (spectrum.size + spectrum.kernel)
    # a law's atom at zero is the kernel of a Gram matrix if its mass is that of the matrix's shape to this accuracy
    return spectrum.padded() if kernel and share and abs(share - kernel) <= 0.01 else spectrum


def _snap_to_atoms(values: Real, law: Law) -> Real:
    """Values that rounding has put beside an atom, moved onto it."""
    moved = values.copy()
    for place, _ in law.atoms:
        # values may come from the continuous part where that comes closer
        nearest = min((max(lo - place, place - hi, 0.0) for lo, hi in law.support), default=np.inf)
        moved[np.abs(values - place) <= min(law.slack, nearest)] = place
    return moved


def _kolmogorov(values: Real, weights: Real, law: Distribution, rounding: float) -> float:
    """Largest difference of the two distribution functions, on either side of each value that is not rounding."""
    points, index = np.unique(values, return_inverse=True)
    upto = np.cumsum(np.bincount(index, weights=weights))
    before = np.append(0.0, upto[:-1])
    at = law.cdf(points)
    atoms = dict(law.atoms)
    jump = np.array([atoms.get(point, 0.0) for point in points.tolist()])
    differences = np.maximum(np.abs(upto - at), np.abs(before - (at - jump)))
    known = np.abs(points) > rounding
    rounded = np.flatnonzero(~known)
    beyond = np.zeros(0)
    if rounded.size:
        # of values that are rounding only the number is known: it is between the law's at zero and at the rounding.
        # A law without an atom has few so small, and a matrix of low rank is far from it
        share = upto[rounded[-1]]
        beyond = np.array([share - law.cdf(rounding), law.cdf(0.0) - share])
    return float(np.concatenate([differences[known], beyond]).max(initial=0.0))


def _wasserstein(values: Real, weights: Real, law: Distribution) -> float:
    """``int |difference of the quantile functions|``, by a Gauss rule in the share of each value."""
    upto = np.cumsum(weights)
    middle, half = upto - weights / 2, weights / 2
    levels = np.clip(middle[:, None] + half[:, None] * NODES, 0.0, 1.0)
    gaps = np.abs(law.ppf(levels) - values[:, None])
    return float(np.sum(gaps * WEIGHTS * half[:, None]))
