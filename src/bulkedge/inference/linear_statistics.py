"""Whether a whole spectrum fits: a p-value from sums ``sum_i T_k(x_i)`` of Chebyshev polynomials over the values.

Such sums fluctuate by order one, however large the matrix is. For Gaussian matrices with eigenvalues on one interval,
mapped to [-1, 1], they are independent Gaussians in the limit (Johansson 1998; Bai and Silverstein 2004; Lytova and
Pastur 2009). With Dyson's index b the variance is ``k/(2 b)``; the mean is n times that of the law, plus ``1/b - 1/2``
for even k. The derivation is in docs/theory/outliers.md, "Linear statistics of a spectrum".

These are the closed forms; :func:`bulkedge.goodness_of_fit` simulates the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from scipy.special import chdtrc

from bulkedge.laws import MarchenkoPastur, QuarterCircle, Semicircle
from bulkedge.laws.classical.images import Affine, Squared
from bulkedge.laws.distribution import Distribution
from bulkedge.laws.law import SNAP, Law
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Each, Interval, Text
from bulkedge.support.errors import DomainError
from bulkedge.support.files import html_table

FEWEST = 20
"""Values from which on the rates of rejection were measured to be right (docs/goodness_of_fit.md)."""
ESTIMATED = Each(Text(), 8, fewest=0)
KURTOSIS = Interval(-2, 1e6)
STEP = 1e-4  # relative change of an estimated parameter; its second order is 1e-8 of the number of values


@dataclass(frozen=True)
class GoodnessOfFit:
    """How well a whole spectrum fits.

    >>> fit = GoodnessOfFit(value=0.004, statistic=15.4, freedom=4, draws=None, outliers=1)
    >>> print(fit.words)
    The spectrum does not fit: p = 0.004, with 1 outlier set aside.

    Attributes
    ----------
    value : float
        The p-value: how often a spectrum without structure is as far from its mean.
    statistic : float
        Squared distance of the linear statistics from their mean, in units of their covariance.
    freedom : int
        Number of linear statistics, minus the number of estimated parameters.
    draws : int or None
        Simulated spectra behind the p-value; None where the limit law is known.
    outliers : int
        Values beyond the edge that were set aside; what they do to the other values is allowed for.
    """

    value: float
    statistic: float
    freedom: int
    draws: int | None
    outliers: int = 0

    @property
    def words(self) -> str:
        """The result in a sentence, at level 0.05."""
        drawn = "" if self.draws is None else f", from {self.draws} simulated spectra"
        aside = f", with {self.outliers} outlier{'s' * (self.outliers > 1)} set aside" if self.outliers else ""
        size = f"= {self.value:.2g}" if self.value >= 1e-15 else "< 1e-15"
        verdict = "fits" if self.value > 0.05 else "does not fit"
        return f"The spectrum {verdict}: p {size}{drawn}{aside}."

    def _repr_html_(self) -> str:
        return html_table({"p of the whole fit": f"{self.value:.2g}", "draws": str(self.draws or "none: a limit law")})


class OneCut(NamedTuple):
    """A law on one interval of which the fluctuations are known."""

    centre: float
    half: float
    ratio: float | None  # of a sample covariance, at most one; None for a symmetric matrix
    atom: bool = False  # whether the values at zero are a kernel, and do not count

    def means(self, degree: Real) -> Real:
        """``int T_k`` over the continuous part of the law, in closed form."""
        if self.ratio is None:
            return np.where(degree == 2, -0.5, 0.0)
        root = -np.sqrt(self.ratio)
        return np.where(degree == 1, root / 2, -(1 - self.ratio) / 2 * root ** np.maximum(degree - 2, 0))

    def scaled(self, factor: float) -> OneCut:
        """The law of values times a factor."""
        return self._replace(centre=factor * self.centre, half=factor * self.half)


def one_cut(law: Distribution) -> OneCut | None:
    """The interval of a law whose linear statistics are known, or None."""
    if isinstance(law, Affine) and law.shift == 0 and law.factor > 0:
        inner = one_cut(law.law)
        return inner and inner.scaled(law.factor)
    if isinstance(law, Semicircle):
        return OneCut(0.0, 2 * law.variance**0.5, None)
    if isinstance(law, Squared) and isinstance(law.law, QuarterCircle):
        return one_cut(MarchenkoPastur(1.0, law.law.variance))
    if isinstance(law, MarchenkoPastur):
        if law.ratio > 1:  # the other Gram matrix has the same values, and no kernel
            return OneCut(law.scale * (1 + law.ratio), 2 * law.scale * law.ratio**0.5, 1 / law.ratio, atom=True)
        return OneCut(law.scale * (1 + law.ratio), 2 * law.scale * law.ratio**0.5, law.ratio)
    return None


def degrees(size: int) -> int:
    """Number of linear statistics: higher degrees follow their limit only in larger matrices."""
    return int(min(np.cbrt(size) + 1e-9, 8))


def chebyshev_sums(points: Real, count: int) -> Real:
    """``sum T_k`` for k from 1 to count; points beyond the interval by more than they fluctuate are moved back."""
    reach = 1 + 0.5 * len(points) ** (-2 / 3)
    return np.asarray(chebvander(np.clip(points, -reach, reach), count)[:, 1:].sum(axis=0))


class Assumed(NamedTuple):
    """What a fit takes for granted."""

    reach: float  # values beyond it are outliers
    dyson: int
    kurtosis: float = 0.0
    estimated: Sequence[str] = ()


def law_fit(values: Real, law: Law, assumed: Assumed) -> GoodnessOfFit | None:
    """The fit of all values of a matrix to a law; None where it is not known how they fluctuate."""
    if isinstance(law, QuarterCircle):
        values, assumed = values**2, assumed._replace(reach=assumed.reach**2)
        law = MarchenkoPastur(1.0, law.variance)
    shape = one_cut(law)
    if shape is None:
        return None
    if shape.atom:
        values = values[values > _rounding(shape)]
    count, estimated = degrees(len(values)), len(assumed.estimated)
    if len(values) < FEWEST or count <= estimated:
        return None
    moved, outliers = _deviations(values, shape, count, assumed)
    directions = _directions(values, law, moved, assumed)
    degree = np.arange(1.0, count + 1)
    gaussian = degree / (2 * assumed.dyson)
    # a fourth cumulant of the entries adds to one variance and to one mean
    first, second, share = (2, 4, 0.5) if shape.ratio is None else (1, 2, 0.25)
    variance = gaussian + np.where(degree == first, share * assumed.kurtosis, 0.0)
    # share of its Gaussian variance below which a statistic is fixed by the entries' kurtosis, and is left out
    kept = variance > 0.02 * gaussian
    spread = np.sqrt(variance[kept])
    scaled = (moved - np.where(degree == second, assumed.kurtosis / 2, 0.0))[kept] / spread
    freedom = len(spread) - estimated
    if freedom < 1:
        return None
    if estimated:
        axes = (directions[:, kept] / spread).T
        scaled = scaled - axes @ np.linalg.lstsq(axes, scaled, rcond=None)[0]
    statistic = float(scaled @ scaled)
    return GoodnessOfFit(float(chdtrc(freedom, statistic)), statistic, freedom, None, outliers)


def _rounding(shape: OneCut) -> float:
    """Size up to which values belong to the kernel: single precision leaves 1e-7 of the largest value there."""
    edge, lower = shape.centre + shape.half, shape.centre - shape.half
    return max(SNAP * edge, min(1e-5 * edge, lower / 100))


def _deviations(values: Real, shape: OneCut, count: int, assumed: Assumed) -> tuple[Real, int]:
    """The linear statistics of the values that are no outliers, minus their mean; and the number of outliers."""
    degree, points = np.arange(1.0, count + 1), (values - shape.centre) / shape.half
    limit = (assumed.reach - shape.centre) / shape.half
    beyond = points > limit
    if shape.ratio is None:  # a symmetric matrix has outliers on both sides
        beyond |= points < -limit
    far = points[beyond]
    inverse = far - np.sign(far) * np.sqrt(np.maximum(far**2 - 1, 0.0))
    # the signal of an outlier at (w + 1/w)/2 takes w**-k/2 from the sum over the others
    pull = -(inverse[:, None] ** degree).sum(axis=0) / 2
    even = np.where(degree % 2 == 0, 1 / assumed.dyson - 0.5, 0.0)
    mean = len(values) * shape.means(degree) + even
    return chebyshev_sums(points[~beyond], count) - mean - pull, int(beyond.sum())


def _directions(values: Real, law: Law, base: Real, assumed: Assumed) -> Real:
    """What a relative change of each estimated parameter does to the deviations: axes (parameter, degree)."""
    names: list[str] = [each.name for each in fields(law)] if is_dataclass(law) else []
    # a parameter of zero, such as a shift, has no relative change
    known = [each for each in names if isinstance(getattr(law, each), int | float) and getattr(law, each)]
    found = np.zeros((len(assumed.estimated), len(base)))
    for row, name in zip(found, assumed.estimated, strict=True):
        changed = one_cut(replace(law, **{name: getattr(law, name) * (1 + STEP)})) if name in known else None  # type: ignore[type-var]
        if changed is None:
            raise DomainError(f"estimated = {name!r} is no parameter of {law!r}, whose parameters are {known}")
        row[:] = (_deviations(values, changed, len(base), assumed)[0] - base) / STEP
    return found
