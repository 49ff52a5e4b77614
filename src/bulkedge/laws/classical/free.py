"""Free convolution of any two laws: sums, products, and sums of rectangular matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, reduce

import numpy as np

from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.classical.images import Affine, SquareRoot
from bulkedge.laws.classical.product import FussCatalan, MarchenkoPastur, ProductLaw
from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.explicit import Levy, PickMap, exact_cauchy, is_short, sorted_barriers
from bulkedge.laws.engine.measure.cauchy import root_mean_square
from bulkedge.laws.engine.measure.panels import Edge, cut_at_zero, extent, product_at_zero
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.engine.subordination.problem import Addition, Multiplication, RectangularAddition, RequiredMoments
from bulkedge.laws.law import MASS_TOLERANCE, BulkDensity, Law
from bulkedge.support.arrays import EPS, Complex, Real
from bulkedge.support.domains import Instance, Interval
from bulkedge.support.errors import DomainError

CLOSEST = 1e-120
"""Share of the largest atom below which an atom counts as zero: the squares of such numbers have no inverse."""
LAW = Instance(Law)


def free_add(mu: Law, nu: Law) -> Law:
    """Free additive convolution: the law of A + U B U', for A of law mu, B of law nu and a random rotation U.

    Parameters
    ----------
    mu, nu : Law
        Any two laws with finite moments.

    Returns
    -------
    Law
        The law of the sum; an affine image of one of the laws if the other is a point mass.

    Raises
    ------
    DomainError
        If a law has a heavy tail, as :class:`~bulkedge.laws.attention.causal.CausalLaw` does.

    Examples
    --------
    >>> from bulkedge.laws.classical.semicircle import Semicircle
    >>> round(free_add(Semicircle(1.0), Semicircle(3.0)).edge, 10)        # variances add up: 2 sqrt(1 + 3)
    4.0
    """
    mu, nu = _operand("mu", mu), _operand("nu", nu)
    rounding = 4 * EPS * sum(max(map(abs, extent(law))) for law in (mu, nu))
    mu, nu = (
        EmpiricalLaw([law.mean()]) if np.diff(extent(law))[0] <= rounding else _merged(law, rounding)
        for law in (mu, nu)
    )
    for law, other in ((mu, nu), (nu, mu)):
        if _is_point(law):
            return Affine.of(other, 1.0, law.atoms[0][0])
    return FreeSum(mu, nu)


def free_mul(mu: Law, nu: Law) -> Law:
    """Free multiplicative convolution: the eigenvalues of sqrt(B) U A U' sqrt(B).

    Parameters
    ----------
    mu, nu : Law
        Two laws, at least one of them on the positive half-line.

    Returns
    -------
    Law
        The law of the product.

    Raises
    ------
    DomainError
        If both laws reach below zero.

    Examples
    --------
    >>> square = MarchenkoPastur(1.0)
    >>> round(free_mul(square, square).edge, 10)                 # 27/4, that of FussCatalan(order=2)
    6.75
    """
    mu, nu = _operand("mu", mu), _operand("nu", nu)
    if mu.lower_edge < 0 and nu.lower_edge < 0:
        raise DomainError(f"free_mul needs a law on [0, inf); {mu!r} and {nu!r} both reach below zero")
    if mu.lower_edge >= 0 and nu.lower_edge < 0:
        mu, nu = nu, mu
    (mu_shape, mu_scale), (nu_shape, nu_scale) = _shape_and_scale(mu), _shape_and_scale(nu)
    return _unscaled_product(mu_shape, nu_shape).scaled(mu_scale * nu_scale)


def _shape_and_scale(law: Law) -> tuple[Law, float]:
    """A law without its factor, and the factor."""
    if isinstance(law, Affine) and law.shift == 0:
        shape, scale = _shape_and_scale(law.law)
        return shape, scale * law.factor
    if isinstance(law, MarchenkoPastur | ProductLaw | FussCatalan):
        return replace(law, scale=1.0), law.scale
    largest = 1.0 if law.support else float(np.abs(law.locations).max())
    if largest and not 1e-50 < largest < 1e50:
        # far from one, squares of the atoms are no numbers; a power of two changes no digit of them
        unit = 2.0 ** np.round(np.log2(largest))
        return EmpiricalLaw(law.locations / unit, law.masses), float(unit)
    return law, 1.0


def _unscaled_product(mu: Law, nu: Law) -> Law:
    """The free product of laws whose scale has been taken out."""
    for law, other in ((mu, nu), (nu, mu)):
        if _is_point(law):
            return other.scaled(law.atoms[0][0])
    ratios = _ratios(mu), _ratios(nu)
    if ratios[0] and ratios[1]:
        return ProductLaw((*ratios[0], *ratios[1]))
    for law, factors in ((mu, ratios[1]), (nu, ratios[0])):
        if factors:
            return reduce(lambda inner, ratio: FreeProduct(inner, MarchenkoPastur(ratio)), factors, law)
    return FreeProduct(mu, nu)


def rectangular_add(mu: Law, nu: Law, ratio: float) -> Law:
    """Rectangular free convolution: the singular values of A + U B V' for n x m matrices, ``ratio = n/m <= 1``.

    Parameters
    ----------
    mu, nu : Law
        Laws of the n singular values, on [0, inf), or symmetric about zero (symmetrised).
    ratio : float
        Aspect ratio in (0, 1].

    Returns
    -------
    Law
        The law of the singular values of the sum, on [0, inf) (Benaych-Georges 2009).

    Examples
    --------
    >>> noise = MarchenkoPastur(0.5).sqrt()                      # singular values of white noise, twice as wide as high
    >>> round(rectangular_add(noise, noise, 0.5).edge, 10)       # variances add up: sqrt(2) (1 + sqrt(1/2))
    2.4142135624
    """
    ratio = Interval(1e-6, 1).check("ratio", ratio)
    mu, nu = _operand("mu", mu), _operand("nu", nu)
    for law in (mu, nu):
        if law.lower_edge < 0 and not _is_symmetric(law):
            raise DomainError(f"rectangular_add needs laws on [0, inf) or symmetric ones; {law!r} is neither")
    for law, other in ((mu, nu), (nu, mu)):
        if _is_point(law) and law.atoms[0][0] == 0:
            return SquareRoot(other.squared())
    return SquareRoot(RectangularSquares(mu.squared(), nu.squared(), ratio))


def _operand(name: str, law: Law) -> Law:
    """The law without the lightest of its atoms and with close ones joined; heavy tails are refused."""
    law = LAW.check(name, law)
    if np.isfinite(law._infinite_moment):
        raise DomainError(
            f"{name} = {law!r} has no finite moment of order {law._infinite_moment:g}: free convolutions are of laws "
            "with light tails. Take a finite sample of it, EmpiricalLaw(law.ppf((arange(n) + 0.5)/n)), n about 100"
        )
    if law.support:
        return law
    # mass below which an atom is left out: the islands that it makes are narrower than double precision resolves
    heavy, sizes = law.masses >= 1e-14, np.abs(law.locations)
    tiny = (sizes < CLOSEST * sizes.max()) & (sizes > 0)
    if tiny.any() or not heavy.all():
        law = EmpiricalLaw(np.where(tiny, 0.0, law.locations)[heavy], law.masses[heavy])
    return _merged(law, 4 * EPS * np.abs(law.locations[1:]))


def _merged(law: Law, closest: Real | float) -> Law:
    """Atoms that are closer to each other than rounding as one at their mean."""
    apart = np.append(True, np.diff(law.locations) > closest)
    if law.support or apart.all():
        return law
    starts = np.flatnonzero(apart)
    masses = np.add.reduceat(law.masses, starts)
    return EmpiricalLaw(np.add.reduceat(law.masses * law.locations, starts) / masses, masses)


def _is_point(law: Law) -> bool:
    """Whether a law is a single atom, whose mass may have been rounded."""
    return len(law.atoms) == 1 and abs(law.atoms[0][1] - 1) < MASS_TOLERANCE and not law.support


def _is_symmetric(law: Law) -> bool:
    """Whether atoms, intervals and density of a law are those of its mirror image, up to rounding."""
    if law._symmetric:
        return True
    slack = 1e-12 * max(law.edge, -law.lower_edge)
    ends = np.ravel(law.support)
    mirrored = (
        np.allclose(law.locations, -law.locations[::-1], rtol=0, atol=slack)
        and np.allclose(law.masses, law.masses[::-1], rtol=1e-9, atol=0)
        and np.allclose(ends, -ends[::-1], rtol=0, atol=slack)
    )
    if not mirrored:
        return False
    shares = (np.arange(9) + 0.5) / 9
    points = np.concatenate([low + (high - low) * shares for low, high in law.support] or [np.zeros(0)])
    return np.allclose(law.pdf(points), law.pdf(-points), rtol=1e-9, atol=1e-12 / law.edge if law.edge else 0.0)


def _ratios(law: Law) -> tuple[float, ...]:
    """The Marchenko-Pastur factors of a law that is a product of them."""
    if isinstance(law, MarchenkoPastur):
        return (law.ratio,)
    if isinstance(law, FussCatalan):
        return (1.0,) * law.order
    return law.ratios if isinstance(law, ProductLaw) else ()


@dataclass(frozen=True)
class FreeSum(Law):
    """Free additive convolution of two laws; made by :func:`free_add`."""

    mu: Law
    nu: Law

    @property
    def unit(self) -> Unit:
        """Eigenvalues; symmetrised singular values if both terms are."""
        both = self.mu.unit is self.nu.unit is Unit.SYMMETRISED
        return Unit.SYMMETRISED if both else Unit.EIGEN

    @cached_property
    def _levy(self) -> Levy | None:
        return self.mu._levy + self.nu._levy if self.mu._levy and self.nu._levy else None

    @cached_property
    def atoms(self) -> PointMasses:
        """An atom at ``a + b`` where atoms exceed unit mass, of that excess (Bercovici and Voiculescu 1998)."""
        if self._levy:
            return self._levy.surviving_atoms(((0.0, 1.0),))
        return _atom_pairs(self.mu, self.nu, lambda a, b: a + b)

    def _known_moments(self) -> RequiredMoments:
        return Addition(self.mu, self.nu).moments()

    def _bulk(self) -> BulkDensity | None:
        if self._levy:
            return self._levy.own_map().bulk()
        for law, other in ((self.mu, self.nu), (self.nu, self.mu)):
            if law._levy:
                return law._levy.map_over(other).bulk()
        return bulk_of(Addition.of(self.mu, self.nu), self.atoms)


@dataclass(frozen=True)
class FreeProduct(Law):
    """Free multiplicative convolution of two laws, the second positive; made by :func:`free_mul`."""

    mu: Law
    nu: Law

    @property
    def unit(self) -> Unit:
        """Squared singular values of ``M sqrt(B)`` if one factor has those of M; eigenvalues otherwise."""
        return Unit.SQUARED if Unit.SQUARED in (self.mu.unit, self.nu.unit) else Unit.EIGEN

    _aspect = None  # a factor can stand for one of any shape

    @cached_property
    def atoms(self) -> PointMasses:
        """An atom at ``a b`` where atoms a and b have more than unit mass together; at zero, the larger kernel."""
        pairs = [(place, mass) for place, mass in _atom_pairs(self.mu, self.nu, lambda a, b: a * b) if place]
        kernel = max(dict(law.atoms).get(0.0, 0.0) for law in (self.mu, self.nu))
        return tuple(sorted([*pairs, (0.0, kernel)] if kernel else pairs))

    def _known_moments(self) -> RequiredMoments:
        return Multiplication(self.mu, self.nu).moments()

    def _bulk(self) -> BulkDensity | None:
        if isinstance(self.nu, MarchenkoPastur):
            intervals, density = silverstein_map(self.mu, self.nu.ratio).bulk()
            # next to ratio one the density is analytic at zero, but only as far as the square of the difference
            return cut_at_zero(intervals, product_at_zero(self.mu, self.nu) or Edge.plain(0.0)), density
        return bulk_of(Multiplication.of(self.mu, self.nu), self.atoms)


def _atom_pairs(mu: Law, nu: Law, combine: Callable[[float, float], float]) -> PointMasses:
    pairs = [
        (combine(a, b), m + n - 1)
        for a, m in mu.atoms
        if m > 1 - max((n for _, n in nu.atoms), default=0.0)
        for b, n in nu.atoms
        if m + n - 1 > 1e-14
    ]
    return tuple(sorted(pairs))


def silverstein_map(law: Law, ratio: float) -> PickMap:
    """The inverse map ``z(u) = u (1 + ratio psi(u))`` of the free product with MP(ratio)."""
    kernel = dict(law.atoms).get(0.0, 0.0)

    def evaluate(u: Complex) -> tuple[Complex, Complex, Real]:
        g, g_slope, psi, slope = law.transforms(u)
        # at zero G is infinite if the law has a kernel, and at atoms all is
        with np.errstate(invalid="ignore"):
            u_g = np.where(u == 0, kernel, u * g)
            spread = np.where(u == 0, 0.0, np.abs(u) * root_mean_square(u, g, g_slope))
            # 1 + psi = u G: near u = 0 the second has the relative accuracy, far away the first
            close = np.abs(1 + psi) < 0.5
            factor = np.where(close, 1 - ratio + ratio * u_g, 1 + ratio * psi)
            size = np.where(close, abs(1 - ratio), 1 + ratio) + ratio * spread
            return u * factor, factor + ratio * u * slope, np.abs(u) * size

    def exact(u: Fraction) -> Fraction:
        return u * (1 + Fraction(ratio) * (u * exact_cauchy(law, u) - 1))

    positive = law.locations != 0
    atoms, masses = law.locations[positive], law.masses[positive]
    barriers, weights = sorted_barriers(law.support, atoms, ratio * masses * atoms**2)
    return PickMap(
        evaluate,
        barriers,
        weights,
        lambda u, x: (1 / u - (1 - ratio) / x) / ratio,
        np.zeros(1),
        exact=exact if is_short(law) else None,
        touching=product_at_zero(law, MarchenkoPastur(ratio)) if np.any(barriers == 0) else None,
        linear=1 - ratio * (1 - kernel),
        multiplicative=law.lower_edge >= 0 or law.edge <= 0,
    )


@dataclass(frozen=True)
class RectangularSquares(Law):
    """Squared singular values of a sum of independent bi-invariant n x m matrices, from those of its terms."""

    unit = Unit.SQUARED
    matrix = "A + U B V'"

    mu: Law
    nu: Law
    ratio: float

    @property
    def _aspect(self) -> float:
        return self.ratio

    @cached_property
    def atoms(self) -> PointMasses:
        """Singular values of one term on the kernel of the other; at zero, the common kernel."""
        kernels = [dict(law.atoms).get(0.0, 0.0) for law in (self.mu, self.nu)]
        others = zip((self.mu, self.nu), kernels[::-1], strict=True)
        # a value survives where its left and right vectors meet the other law's left and right kernels
        pairs = [(place, mass + 2 * kernel - 2) for law, kernel in others for place, mass in law.atoms if place]
        return tuple(sorted(pair for pair in [*pairs, (0.0, sum(kernels) - 1)] if pair[1] > 1e-14))

    def _known_moments(self) -> RequiredMoments:
        return RectangularAddition(self.mu, self.nu, self.ratio).moments()

    def _bulk(self) -> BulkDensity | None:
        return bulk_of(RectangularAddition.of(self.mu, self.nu, self.ratio), self.atoms)
