"""What a law is: atoms and a bulk, and everything that can be read off them.

A family supplies two things: its atoms, and its bulk (the edges of the continuous part and the density between them).
The bulk is resolved once (:mod:`bulkedge.laws.engine.measure.continuum`); density, cdf, quantiles, moments, transforms
and spikes come from that.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.laws.bulk_cache import RESOLVED
from bulkedge.laws.distribution import Atoms
from bulkedge.laws.engine.measure.cauchy import atom_transforms
from bulkedge.laws.engine.measure.continuum import Continuum, resolve
from bulkedge.laws.engine.measure.panels import REMEDY, DensityFunction, SupportInterval, UnresolvedDensityError
from bulkedge.laws.engine.subordination.problem import check_moments
from bulkedge.laws.inverse_cauchy import along_ray, beyond_edges
from bulkedge.laws.spikes.finite_size import FiniteSize
from bulkedge.support import domains
from bulkedge.support.arrays import EPS, Complex, Real
from bulkedge.support.domains import REAL
from bulkedge.support.errors import UnresolvedError
from bulkedge.support.records import html_table

if TYPE_CHECKING:
    from bulkedge.laws.engine.explicit import Levy
    from bulkedge.laws.engine.subordination.problem import RequiredMoments

ORDERS = domains.Integers(0, 1000)
COMPLEX = domains.Numbers(finite=False, complex_too=True)
MASS_TOLERANCE = 1e-10
"""A law whose mass differs from one by more has lost or gained something, and is refused."""
ROUNDED = 1e-14
"""A law whose mass differs from one by more is multiplied by a constant."""

Bulk = tuple[list[SupportInterval], DensityFunction]


class Law(FiniteSize):
    """A limiting spectral distribution on the real line: atoms plus a density.

    Laws are values: two with the same parameters are equal, and what is expensive, the resolution of the bulk, is done
    once for all equal laws of a process.
    """

    # -- what a family supplies ----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def atoms(self) -> Atoms:
        """Point masses ``((location, mass), ...)`` in increasing order of location."""

    @abstractmethod
    def _bulk(self) -> Bulk | None:
        """Edges of the continuous part, in increasing order, and the density between them; None if there is none."""

    def _demanded(self) -> RequiredMoments | None:
        """Moments that the law must have, where they are known without its bulk."""
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

    # -- where it lives ------------------------------------------------------------------------------------------------

    @cached_property
    def _shared_bulk(self) -> Bulk | None:
        """The bulk, found once: images of a law share it."""
        return self._bulk()

    @cached_property
    def continuum(self) -> Continuum | None:
        """The continuous part, resolved once for all equal laws of a process; None if there is none."""
        return RESOLVED.get(self)

    def _resolve(self) -> Continuum | None:
        """The continuous part, resolved from the bulk; an image may move that of its law instead."""
        bulk = self._shared_bulk
        continuum = None if bulk is None else resolve(*bulk)
        total = (continuum.mass if continuum else 0.0) + float(self.masses.sum())
        if not abs(total - 1) <= MASS_TOLERANCE:
            hint = "" if self._demanded() is None else f"; {REMEDY}"
            raise UnresolvedDensityError(f"{self!r} has total mass {total!r}: part of the support was missed{hint}")
        if continuum and abs(total - 1) > ROUNDED:
            continuum = continuum.normalised(1 - float(self.masses.sum()))
        demanded = self._demanded()
        if demanded is not None:
            check_moments(self, continuum, demanded)
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
            integrates to one less the mass of the atoms.

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

        Parameters
        ----------
        z : complex array of shape (n,)
            Points anywhere in the plane.

        Returns
        -------
        tuple of four complex arrays of shape (n,)
            G, G', psi and psi'.
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
        search = along_ray if np.iscomplexobj(targets) else beyond_edges
        return np.array([search(self, each) for each in targets.ravel().tolist()]).reshape(targets.shape)[()]

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
