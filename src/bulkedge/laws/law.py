"""What a law is: atoms and a bulk, and everything that can be read off them.

A family supplies its bulk (the edges of the continuous part and the density between them), and its atoms if there are
any. The bulk is resolved once (:mod:`bulkedge.laws.engine.measure.continuum`); density, cdf, quantiles, moments,
transforms and spikes come from that.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bulkedge.laws.classical.tracy_widom import TracyWidom
from bulkedge.laws.distribution import Distribution, Unit
from bulkedge.laws.engine.measure.cauchy import atom_transforms
from bulkedge.laws.engine.measure.continuum import CLOSEST, Continuum, resolve
from bulkedge.laws.engine.measure.panels import REMEDY, DensityFunction, SupportInterval, UnresolvedDensityError
from bulkedge.laws.engine.subordination.problem import check_moments
from bulkedge.laws.spikes.rank_one import Outlier, Spike, additive_spike, sample_spike
from bulkedge.laws.spikes.shrinkage import Loss, shrink, shrink_sample
from bulkedge.laws.spikes.singular_spikes import SingularSpike, singular_spike
from bulkedge.support import domains
from bulkedge.support.arrays import EPS, Complex, Real
from bulkedge.support.domains import FINITE, REAL
from bulkedge.support.errors import DomainError, UnitError, UnresolvedError
from bulkedge.support.files import html_table

if TYPE_CHECKING:
    from bulkedge.laws.engine.explicit import Levy
    from bulkedge.laws.engine.subordination.problem import RequiredMoments

ORDERS = domains.Integers(0, 1000)
COMPLEX = domains.Numbers(finite=False, complex_too=True)
LEVEL = domains.Interval(0, 1, "()")
COUNT = domains.Integers(1, 2**62)
MASS_TOLERANCE = 1e-10  # a law whose mass differs from one by more has lost or gained something, and is refused
SNAP = 1e-9
"""Values this close to an atom, relative to the size of the law, are at the atom: rounding put them beside it."""

BulkDensity = tuple[list[SupportInterval], DensityFunction]


class Law(Distribution):
    """A limiting spectral distribution on the real line: atoms plus a density.

    Laws are values: two with the same parameters are equal, and what is expensive, the resolution of the bulk, is done
    once for all equal laws of a process.
    """

    # -- what a family supplies ----------------------------------------------------------------------------------------

    @abstractmethod
    def _bulk(self) -> BulkDensity | None:
        """Edges of the continuous part, in increasing order, and the density between them; None if there is none."""

    def _known_moments(self) -> RequiredMoments | None:
        """RequiredMoments that the law must have, where they are known without its bulk."""
        return None

    @property
    def _levy(self) -> Levy | None:
        """The free Levy measure, where it is known and made of atoms: such laws convolve explicitly."""
        return None

    @property
    def _symmetric(self) -> bool:
        """Whether the law is symmetric about zero by construction."""
        return False

    @property
    def _unbounded(self) -> bool:
        """Whether the law has a tail, of which only the part that matters is represented."""
        return False

    @property
    def _infinite_moment(self) -> float:
        """The order from which on moments are infinite."""
        return np.inf

    @property
    def _aspect(self) -> float | None:
        """Rows over columns of the matrix whose singular values these are, where the law knows it."""
        return 1.0 if self.unit in {Unit.SINGULAR, Unit.SQUARED, Unit.SYMMETRISED} else None

    # -- where it lives ------------------------------------------------------------------------------------------------

    @cached_property
    def _shared_bulk(self) -> BulkDensity | None:
        """The bulk, found once: images of a law share it."""
        return self._bulk()

    @cached_property
    def continuum(self) -> Continuum | None:
        """The continuous part, resolved once for all equal laws of a process; None if there is none."""
        return resolve_once(self)

    def _resolve(self) -> Continuum | None:
        """The continuous part, resolved from the bulk; an image may move that of its law instead."""
        bulk = self._shared_bulk
        continuum = None if bulk is None else resolve(*bulk)
        total = (continuum.mass if continuum else 0.0) + float(self.masses.sum())
        if not abs(total - 1) <= MASS_TOLERANCE:
            hint = "" if self._known_moments() is None else f"; {REMEDY}"
            raise UnresolvedDensityError(f"{self!r} has total mass {total!r}: part of the support was missed{hint}")
        if continuum and abs(total - 1) > 1e-14:  # rounding: the density is off by a constant factor
            continuum = continuum.normalised(1 - float(self.masses.sum()))
        moments = self._known_moments()
        if moments is not None:
            check_moments(self, continuum, moments)
        return continuum

    @cached_property
    def locations(self) -> Real:
        """Where the atoms are, in increasing order."""
        return np.array([location for location, _ in self.atoms], dtype=float)

    @cached_property
    def masses(self) -> Real:
        """The masses of the atoms, in the same order."""
        return np.array([mass for _, mass in self.atoms], dtype=float)

    @cached_property
    def _atom_weights(self) -> Real:
        """Masses of the atoms, and masses times locations, as two columns."""
        return np.stack([self.masses, self.masses * self.locations], axis=1)

    @property
    def support(self) -> tuple[tuple[float, float], ...]:
        """Intervals ``((lo, hi), ...)`` of the continuous part, in increasing order."""
        return self.continuum.support if self.continuum else ()

    @property
    def edge(self) -> float:
        """The rightmost point: the upper end of the support, or an atom beyond it."""
        if self._unbounded:
            return np.inf
        return max([hi for _, hi in self.support[-1:]] + [location for location, _ in self.atoms[-1:]])

    @property
    def lower_edge(self) -> float:
        """The leftmost point."""
        return min([lo for lo, _ in self.support[:1]] + [location for location, _ in self.atoms[:1]])

    # -- distribution --------------------------------------------------------------------------------------------------

    def pdf(self, x: ArrayLike) -> Any:
        """Density of the continuous part (atoms have none: see :attr:`atoms`).

        Parameters
        ----------
        x : array_like
            Points of the line, of any shape.

        Returns
        -------
        float or array
            The density, of the same shape: zero outside the support, infinite at hard edges, nan where x is. It
            integrates to one minus the mass of the atoms.

        Examples
        --------
        >>> from bulkedge.laws import MarchenkoPastur
        >>> round(float(MarchenkoPastur(1.0).pdf(1.0)), 6)           # sqrt(3)/(2 pi)
        0.275664
        """
        points = REAL.check("x", x)
        density = np.where(np.isnan(points), np.nan, 0.0)
        finite = np.isfinite(points)
        if self.continuum:
            density[finite] = self.continuum.pdf(points[finite])
        return density[()]

    def cdf(self, x: ArrayLike) -> Any:
        """Mass at or below x, atoms included."""
        points = REAL.check("x", x)
        mass = np.where(np.isnan(points), np.nan, np.where(points > 0, 1.0, 0.0))
        finite = np.isfinite(points)
        below = np.append(0.0, np.cumsum(self.masses))
        upto = below[np.searchsorted(self.locations, points[finite], side="right")]
        if self.continuum:
            upto = upto + self.continuum.cdf(points[finite])
        mass[finite] = np.clip(upto, 0.0, 1.0)
        return mass[()]

    def ppf(self, q: ArrayLike) -> Any:
        """Smallest x with ``cdf(x) >= q``; nan outside [0, 1]."""
        levels = REAL.check("q", q)
        valid = (levels >= 0) & (levels <= 1)
        result = np.full(levels.shape, np.nan)
        result[valid] = self._quantile(levels[valid])
        result[levels == 0] = self.lower_edge
        result[levels == 1] = self.edge
        return result[()]

    def _quantile(self, level: Real) -> Real:
        if self.continuum is None:
            reached = np.searchsorted(np.cumsum(self.masses), level * (1 - 4 * EPS))
            return self.locations[np.minimum(reached, len(self.locations) - 1)]
        if not len(self.locations):
            return self.continuum.ppf(np.clip(level, 0.0, self.continuum.mass))
        upto = self.continuum.cdf(self.locations) + np.cumsum(self.masses)
        passed = np.searchsorted(upto, level, side="left")
        taken = np.append(0.0, np.cumsum(self.masses))[passed]
        between = self.continuum.ppf(np.clip(level - taken, 0.0, self.continuum.mass))
        # the next atom holds the level if its own jump reaches down to it
        following = np.minimum(passed, len(upto) - 1)
        on_atom = (passed < len(upto)) & (level > upto[following] - self.masses[following])
        return np.where(on_atom, self.locations[following], between)

    def moment(self, k: int) -> float:
        """``E[x**k]``, the k-th moment about zero.

        Parameters
        ----------
        k : int
            Order of the moment, zero or more.

        Returns
        -------
        float
            The moment about zero, atoms included.
        """
        return self._moment_about(ORDERS.check("k", k), 0.0)

    def _moment_about(self, k: int, centre: float) -> float:
        if k >= self._infinite_moment:
            return np.inf
        continuous = self.continuum.moment(k, centre) if self.continuum else 0.0
        return continuous + float(np.sum(self.masses * (self.locations - centre) ** k))

    def mean(self) -> float:
        """First moment."""
        return self.moment(1)

    def var(self) -> float:
        """Variance."""
        return self._moment_about(2, self.mean())

    # -- the Cauchy transform and its inverse --------------------------------------------------------------------------

    def transforms(self, z: Complex) -> tuple[Complex, Complex, Complex, Complex]:
        """``G = int 1/(z-t)``, ``G'``, ``psi = int t/(z-t)`` and ``psi'``; on the support, their limits from above.

        Infinite at atoms and hard edges.
        """
        lower = z.imag < 0
        point = np.where(lower, np.conj(z), z)
        result: Complex = np.zeros((4, len(z)), dtype=complex)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.continuum:
                result += self.continuum.transforms(point)
            if len(self.locations):
                result += atom_transforms(point, self.locations, self._atom_weights)
        g, g_slope, psi, psi_slope = np.where(lower, np.conj(result), result)
        return g, g_slope, psi, psi_slope

    def cauchy(self, z: ArrayLike) -> Any:
        """Cauchy transform ``G(z) = int dmu(t)/(z - t)``; on the support, its limit from the upper half-plane.

        Parameters
        ----------
        z : array_like
            Points of the complex plane, of any shape, real ones included.

        Returns
        -------
        complex or array
            G there, of the same shape; infinite at atoms.

        Examples
        --------
        >>> from bulkedge.laws import Semicircle
        >>> round(float(Semicircle(1.0).cauchy(2.5).real), 10)       # (z - sqrt(z**2 - 4))/2
        0.5
        """
        points = COMPLEX.check("z", z).astype(complex)
        return self.transforms(points.ravel())[0].reshape(points.shape)[()]

    @cached_property
    def edge_cauchy(self) -> tuple[float, float]:
        """G at the lower and at the upper edge, approached from outside."""
        low, high = self.transforms(np.array([self.lower_edge, self.edge]) + 0j)[0].real
        at_infinity = 0.0 if self._unbounded else np.inf
        return (float(low) if np.isfinite(low) else -np.inf), (float(high) if np.isfinite(high) else at_infinity)

    def inverse_cauchy(self, w: ArrayLike) -> Any:
        """The inverse K of the Cauchy transform, on the branch that is ``1/w + mean + ...`` at small w.

        Real w must lie strictly between G at the two outer edges; complex w is reached along the ray from zero.

        Parameters
        ----------
        w : array_like
            Values of the Cauchy transform, not zero, of any shape.

        Returns
        -------
        float, complex or array
            ``K(w)`` with ``G(K(w)) = w``, of the same shape; complex if w is of a complex type.

        Raises
        ------
        ValueError
            If K has no value at some w on that branch.
        """
        targets = COMPLEX.check("w", w)
        search = _inverse_along_ray if np.iscomplexobj(targets) else _inverse_beyond_edges
        return np.array([search(self, each) for each in targets.ravel().tolist()]).reshape(targets.shape)[()]

    # -- the largest value of a finite matrix --------------------------------------------------------------------------

    @property
    def edge_scale(self) -> float:
        """Width of the edge: the largest of n values is about ``edge + edge_scale * n**(-2/3) * TracyWidom``.

        It is ``(pi C)**(-2/3)`` where the density is ``C sqrt(edge - x)`` at the edge, which must be of square-root
        type.
        """
        continuum = self.continuum
        if continuum is None or not self.has_soft_edge:
            raise DomainError(f"{self!r} has no square-root edge on the right, so no Tracy-Widom scale")
        return float((np.pi * continuum.edge_coefficient) ** (-2 / 3))

    @property
    def has_soft_edge(self) -> bool:
        """Whether the law ends on the right with a square-root edge."""
        continuum = self.continuum
        last = continuum.intervals[-1][1] if continuum else None
        return last is not None and last.location == self.edge and last.exponent == 0.5

    def reach(self, n: int, level: float, dyson: int = 1) -> float:
        """What the largest of n bulk values exceeds with probability ``level``.

        That is :meth:`finite_edge` where the law ends with a square-root edge. Elsewhere no limit is known, and it is
        the edge itself, up to rounding.
        """
        if self.has_soft_edge:
            return self.finite_edge(n, level, dyson)
        LEVEL.check("level", level)
        return self.edge + self.slack

    @property
    def slack(self) -> float:
        """Rounding of values of the size of the law: those closer to an atom are at the atom."""
        ends = (self.lower_edge, *(hi for _, hi in self.support), *self.locations)
        return SNAP * max(abs(place) for place in ends)

    def finite_edge(self, n: int, level: float = 0.01, dyson: int = 1) -> float:
        """The value that the largest of n bulk values exceeds with probability ``level``.

        Parameters
        ----------
        n : int
            Number of eigenvalues of the finite matrix, those in atoms included.
        level : float
            Probability of a false alarm.
        dyson : {1, 2, 4}
            Dyson's index, the symmetry class: 1 for real matrices, 2 for complex ones.

        Returns
        -------
        float
            ``edge + edge_scale * n**(-2/3) * q`` with q the quantile of the Tracy-Widom law.
        """
        level = LEVEL.check("level", level)
        n = COUNT.check("n", n)
        return self.edge + self.edge_scale * n ** (-2 / 3) * float(TracyWidom(dyson).isf(level))

    # -- spikes and shrinkage ------------------------------------------------------------------------------------------

    def spike(self, theta: ArrayLike) -> Spike:
        """The outliers that ``theta u u'`` makes in a symmetric matrix of this law, for u free of the matrix.

        In every gap of the law, and beyond both of its ends, the outlier is where ``G(x) = 1/theta``, if there is such
        a point, and its squared overlap with u is ``-1/(theta**2 G'(x))`` (Benaych-Georges and Nadakuditi 2011;
        *recovery*, equations 19 and 22).

        Parameters
        ----------
        theta : array_like
            Strengths of either sign, not zero. Each is a perturbation on its own; see :meth:`spikes`.

        Returns
        -------
        Spike
            The outermost outlier, and all of them.

        Raises
        ------
        UnitError
            For a law of singular values or of their squares: a matrix that has these is perturbed by ``x u v'``, which
            is :meth:`singular_spike`.

        Examples
        --------
        >>> from bulkedge.laws import Semicircle
        >>> spike = Semicircle(1.0).spike(2.0)
        >>> round(float(spike.location), 10), round(float(spike.overlap), 10)     # theta + 1/theta and 1 - 1/theta**2
        (2.5, 0.75)
        """
        if self.unit in {Unit.SINGULAR, Unit.SQUARED}:
            raise UnitError(
                f"spike() adds to a symmetric matrix, but {self!r} is a law of {self.unit}: "
                "singular_spike(strength) says what a signal of rank one does to those"
            )
        return additive_spike(self, theta)

    def spikes(self, theta: ArrayLike) -> tuple[Outlier, ...]:
        """The outliers of several perturbations along orthogonal directions at once.

        In the limit each acts as if it were alone: its outliers overlap with its own direction only. Where strengths
        coincide, so do the outliers, and the overlap is the squared length within the span of their directions.

        Parameters
        ----------
        theta : array_like
            The strengths, of either sign.

        Returns
        -------
        tuple of Outlier
            In increasing order; each has its ``strength``.
        """
        return self.spike(np.atleast_1d(FINITE.check("theta", theta))).together

    def singular_spike(
        self, strength: ArrayLike, ratio: float | None = None, unit: Unit | str | None = None
    ) -> SingularSpike:
        """The outliers that ``x u v'`` makes in a matrix whose singular values have this law, for free u and v.

        Outliers are where ``phi(z) phi~(z) = 1/x**2``, with ``phi(z) = int z/(z**2 - t**2)`` over the singular values t
        of the rows and ``phi~ = ratio phi + (1 - ratio)/z`` over those of the columns (Benaych-Georges and Nadakuditi
        2012). Eigenvalues of a Gram matrix are taken as the squared singular values that they are.

        Parameters
        ----------
        strength : array_like
            Singular values x > 0 of the signal, not their squares. Each is a signal on its own.
        ratio : float, optional
            Rows over columns of the matrix. The law is that of as many values as there are rows: a matrix with more
            rows than columns (ratio > 1) has at least a share ``1 - 1/ratio`` of zeros among them, one with fewer has
            none by its shape. Laws that know their matrix have it as default: ``MarchenkoPastur`` its own ratio, those
            of square matrices 1.
        unit : Unit, optional
            For laws of plain values, such as :class:`EmpiricalLaw`: whether these are "singular values" or "squared
            singular values".

        Returns
        -------
        SingularSpike
            The largest outlier with its left and right overlap, and all of them.
        """
        return singular_spike(self, strength, ratio, unit)

    def sample_spike(self, theta: ArrayLike, ratio: float) -> Spike:
        """A population eigenvalue seen through a sample covariance, with this law as the population's bulk.

        The outlier is ``lam(theta) = theta (1 + ratio int t/(theta - t))``, present when ``lam'(theta) > 0``, with
        squared overlap ``theta lam'(theta)/lam(theta)`` (*recovery*, equations 24 and 27).

        Parameters
        ----------
        theta : array_like
            Population eigenvalues: above the law, below it or in its gaps. Those inside it make no outlier.
        ratio : float
            Dimension over number of samples.

        Returns
        -------
        Spike
            There is one outlier at most, in a gap of the sample's bulk. Without one, ``location`` is the upper edge of
            that bulk.

        Examples
        --------
        >>> from bulkedge.laws import EmpiricalLaw
        >>> spike = EmpiricalLaw([1.0]).sample_spike(4.0, ratio=0.5)
        >>> round(float(spike.location), 6), bool(spike.detectable)  # theta (1 + ratio/(theta - 1))
        (4.666667, True)
        """
        return sample_spike(self, theta, ratio)

    def shrink(self, values: ArrayLike, loss: Loss = "frobenius", ratio: float | None = None) -> Any:
        """The best estimates of a signal from the outliers it makes in noise of this law.

        Eigenvalues are those of a symmetric matrix ``signal + noise``, singular values those of any; the estimate of
        the signal keeps the observed vectors. See :mod:`bulkedge.laws.spikes.shrinkage`.

        Parameters
        ----------
        values : array_like
            Observed values, in the unit of the law.
        loss : {"frobenius", "operator", "nuclear"}
            The norm of the error that is made as small as possible.
        ratio : float, optional
            Rows over columns of the matrix, for laws of singular values that do not know it; a law of eigenvalues with
            a ratio is taken as that of a Gram matrix, of squared singular values.

        Returns
        -------
        array
            Estimates in the same unit; zero for values within the bulk.

        Examples
        --------
        >>> from bulkedge.laws import Semicircle
        >>> Semicircle().shrink([2.5, 1.9]).round(10)                   # theta = 2, overlap 3/4
        array([1.5, 0. ])
        """
        return shrink(self, values, loss, ratio)

    def shrink_sample(self, values: ArrayLike, ratio: float, loss: Loss = "frobenius") -> Any:
        """The best estimates of population eigenvalues from sample eigenvalues, if the population has this law.

        Parameters
        ----------
        values : array_like
            Eigenvalues of the sample covariance.
        ratio : float
            Dimension over number of samples.
        loss : {"frobenius", "operator", "nuclear"}
            The norm of the error that is made as small as possible; only the first for coloured noise.

        Returns
        -------
        array
            Estimates. For values within the bulk, the eigenvalue of white noise; of coloured noise, what it has on
            average along eigenvectors with that value. For an outlier that a population eigenvalue t makes in coloured
            noise, ``t**2/value``.

        Raises
        ------
        DomainError
            If the law is not one positive atom and the loss is not Frobenius.

        Examples
        --------
        >>> from bulkedge.laws import EmpiricalLaw
        >>> EmpiricalLaw([1.0]).shrink_sample([14 / 3, 1.2], ratio=0.5, loss="operator").round(10)
        array([4., 1.])
        >>> coloured = EmpiricalLaw([1.0, 2.0])
        >>> sample = coloured.sample_spike(6.0, ratio=0.5).location
        >>> round(float(coloured.shrink_sample(sample, ratio=0.5)), 6), round(36 / float(sample), 6)
        (5.106383, 5.106383)
        """
        return shrink_sample(self, values, ratio, loss)

    # -- images --------------------------------------------------------------------------------------------------------

    def scaled(self, factor: float) -> Law:
        """The law of ``factor * x``, for x of this law.

        Parameters
        ----------
        factor : float
            Any finite number; a negative one turns the law around, zero leaves a point mass at zero.

        Returns
        -------
        Law
            The law of the eigenvalues of ``factor`` times the matrix.
        """
        from bulkedge.laws.classical.images import Affine

        return Affine.of(self, factor, 0.0)

    def squared(self) -> Law:
        """The law of ``x**2``."""
        from bulkedge.laws.classical.images import Squared

        return Squared(self)

    def sqrt(self) -> Law:
        """The law of ``sqrt(x)``, for a law on the positive half-line."""
        from bulkedge.laws.classical.images import SquareRoot

        return SquareRoot(self)

    # -- pictures ------------------------------------------------------------------------------------------------------

    def plot(self, axes: Any = None, *, scale: str = "auto", **look: Any) -> Any:
        """Draw the density; see :func:`bulkedge.plots.density`.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where; the current axes of pyplot by default.
        scale : {"auto", "linear", "sqrt", "log"}
            The axis of the values.
        **look : object
            Options of ``Axes.plot``, such as ``label`` and ``color``.

        Returns
        -------
        matplotlib Axes
            The axes.
        """
        from bulkedge import plots

        return plots.density(self, axes, scale=scale, **look)

    def _repr_html_(self) -> str:
        try:
            support = " ∪ ".join(f"[{low:.6g}, {high:.6g}]" for low, high in self.support) or "none"
        except UnresolvedError as error:
            return html_table({"not resolved": error}, repr(self))
        atoms = ", ".join(f"{mass:.4g} at {place:.6g}" for place, mass in self.atoms[:6]) or "none"
        more = f" and {len(self.atoms) - 6} more" if len(self.atoms) > 6 else ""
        facts = {"of": self.describes, "support": support, "atoms": atoms + more}
        return html_table(facts | {"mean": f"{self.mean():.6g}", "variance": f"{self.var():.6g}"}, repr(self))


@lru_cache(maxsize=256)
def resolve_once(law: Law) -> Continuum | None:
    """The resolved bulk of a law; equal laws of a process share it, and the one used longest ago is forgotten first."""
    return law._resolve()


def _inverse_beyond_edges(law: Law, w: float) -> float:
    """The real point beyond the outer edges of a law at which its Cauchy transform equals w."""
    low, high = law.edge_cauchy
    if not (low < w < high and w != 0):
        raise DomainError(f"w = {w!r} is outside its domain ({low:.6g}, {high:.6g}) without 0")
    start, sign = (law.edge, 1.0) if w > 0 else (law.lower_edge, -1.0)

    # |G| is at most one over the distance to the law, so the point is within 1/|w| of it
    def miss(v: float) -> float:
        value = float(law.cauchy(start + np.exp(v) / w).real)
        return sign * (value - w) if np.isfinite(value) else 1e300

    if miss(1e-9) > 0:  # so close to an atom that no number lies between
        return start
    return float(start + np.exp(brentq(miss, CLOSEST, 1e-9, xtol=1e-15, rtol=8 * EPS)) / w)


def _inverse_along_ray(law: Law, w: complex) -> complex:
    """Newton continuation of ``G(z) = w`` along the ray from zero, where ``z = 1/w + mean``."""
    spread = max(abs(law.edge - law.mean()), abs(law.lower_edge - law.mean()))
    share = 0.05 / max(abs(w) * spread, 0.05)
    z = 1 / (share * w) + law.mean() if w else complex(np.nan)
    while np.isfinite(z):
        for _ in range(50):
            value, slope, _, _ = law.transforms(np.array([z]))
            with np.errstate(divide="ignore", invalid="ignore"):  # a vanishing slope ends the search below
                step = complex((share * w - value[0]) / slope[0])
            z += step
            if abs(step) <= 1e-14 * abs(z):
                break
        if (z.imag > 0) != (w.imag < 0):
            break
        if share == 1:
            return z
        share = min(1.0, 1.1 * share)
    raise DomainError(f"w = {w!r} is outside the image of the Cauchy transform along the ray from zero")
