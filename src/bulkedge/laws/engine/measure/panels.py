"""Densities between edges, as Chebyshev polynomials on panels.

An :class:`Edge` is an end of a support interval and says how the density starts there. Each half of each interval
belongs to its edge: with ``delta`` the distance to it and ``length`` half the interval, the density is
``delta**exponent * g(s)``, ``s = (delta/length)**(1/order)``. :func:`fit` samples ``g`` on panels of ``s`` and halves
those that have not converged, so any structure, at any scale, costs a number of panels proportional to the logarithm of
the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from bulkedge.support.arrays import EPS, BoolArray, Index, Real
from bulkedge.support.errors import UnresolvedError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law


DEGREE = 20  # Chebyshev coefficients of ``g`` on a panel
REMEDY = "move the parameters a little, or replace a law by EmpiricalLaw(law.ppf((arange(n) + 0.5)/n)), n about 100"
"""What to do about a free convolution that is refused, for whatever reason."""
DensityFunction = Callable[[Real], tuple[Real, Real]]
"""Maps points strictly inside the support to the density there and a bound on its rounding error."""


@dataclass(frozen=True)
class Edge:
    """An end of a support interval."""

    # the density is delta**exponent g(delta**(1/order)), delta the distance; g is analytic (even where ``even``), and
    # order (exponent + 1) is a positive integer

    location: float  # where the edge is
    # exponent, order, even: the behaviour of the density
    exponent: float
    order: int
    even: bool = False
    # true location minus ``location``, where it is known: densities keep their relative accuracy close to the edge
    remainder: float = 0.0

    @classmethod
    def soft(cls, location: float, remainder: float = 0.0) -> Edge:
        """Square-root edge, the generic one: a simple critical point of the inverse map."""
        return cls(location, 0.5, 2, even=True, remainder=remainder)

    @classmethod
    def exactly_soft(cls, location: Fraction) -> Edge:
        """Square-root edge whose location is known beyond double precision."""
        rounded = float(location)
        return cls.soft(rounded, float(location - Fraction(rounded)))

    @classmethod
    def hard(cls, location: float, order: int = 2) -> Edge:
        """Density ``delta**(1/order - 1)``: a zero of the given order of the inverse map."""
        return cls(location, 1 / order - 1, order, even=order == 2)

    @classmethod
    def cusp(cls, location: float, exponent: float = 1 / 3) -> Edge:
        """Two intervals touch: a double critical point of the inverse map."""
        return cls(location, exponent, 3)

    @classmethod
    def plain(cls, location: float, order: int = 1) -> Edge:
        """The density is finite and non-zero, analytic in ``delta**(1/order)``."""
        return cls(location, 0.0, order)

    @property
    def weight(self) -> int:
        """Power of ``s = delta**(1/order)`` in the mass element ``g(s) s**weight ds``."""
        return round(self.order * (self.exponent + 1)) - 1

    @property
    def exact(self) -> Fraction:
        """The location with its remainder."""
        return Fraction(self.location) + Fraction(self.remainder)

    def moved(self, location: Fraction) -> Edge:
        """An edge at which the density behaves the same, at another place."""
        rounded = float(location)
        return Edge(rounded, self.exponent, self.order, self.even, float(location - Fraction(rounded)))


SupportInterval = tuple[Edge, Edge]


class BehaviourAtZero(NamedTuple):
    """How a law meets zero: ``y = s**(power/lead)`` times a series in ``s**(1/lead)``, s the gain of ``y G(y)``."""

    # with a density x**exponent g(x**(1/power)), y G(y) gains a series in y**(1/power) from the smaller of
    # power (exponent + 1) and power on

    power: int
    lead: int
    exponent: float | None

    @classmethod
    def of(cls, law: Law) -> BehaviourAtZero:
        """Read it off the edges of the law."""
        edges = [edge for pair in (law.continuum.intervals if law.continuum else ()) for edge in pair]
        edge = min((each for each in edges if each.location == 0), key=lambda each: each.exponent, default=None)
        if edge is None:
            return cls(1, 1, None)
        power = max(each.order for each in edges if each.location == 0)
        return cls(power, min(round(power * (edge.exponent + 1)), power), edge.exponent)


def product_at_zero(mu: Law, nu: Law) -> Edge | None:
    """The edge at zero of a free product, where its density is not analytic there; None where it is, or vanishes."""
    # x = y_1 y_2 psi/(1 + psi) = s**total times a series in s**(1/root), s = 1 + psi minus the product's mass at zero:
    # a y is such a series if its law has that mass at zero, and else analytic. The density is -Im s/(pi x)
    kernels = [dict(law.atoms).get(0.0, 0.0) for law in (mu, nu)]
    roots = [BehaviourAtZero.of(law) for law, kernel in zip((mu, nu), kernels, strict=True) if kernel == max(kernels)]
    root = lcm(*(each.lead for each in roots))
    order = sum(root * each.power // each.lead for each in roots) - (root if max(kernels) == 0 else 0)
    if order > root:
        # in the bulk of a law that reaches below zero the series are not real
        even = (root, order) == (1, 2) and min(extent(mu)[0], extent(nu)[0]) >= 0
        return Edge(0.0, root / order - 1, order, even=even)
    # s is x to leading order, which is real: the density is that of the laws
    exponents = [each.exponent for each in roots if each.exponent is not None]
    if exponents and any(low < 0 < high for law in (mu, nu) for low, high in law.support):
        exponents.append(0.0)
    return Edge(0.0, min(exponents), root) if exponents else None


def extent(law: Law) -> tuple[float, float]:
    """The leftmost and the rightmost point that a law is represented at: finite for laws with tails too."""
    ends = [end for interval in law.support for end in interval] + [place for place, _ in law.atoms]
    return min(ends), max(ends)


def reach(law: Law) -> float:
    """How close to zero a law has an edge or an atom, other than there, as a fraction of the largest."""
    places = [abs(end) for interval in law.support for end in interval] + [abs(place) for place, _ in law.atoms]
    away = [place for place in places if place > 0]
    return min(away) / max(away) if away else 1.0


class UnresolvedDensityError(UnresolvedError):
    """A density could not be represented to the tolerance; the numbers would have been wrong."""


@cache
def nodes_and_transform(n: int) -> tuple[Real, Real]:
    """Chebyshev nodes on [-1, 1], and the matrix from values there to coefficients."""
    angle = np.pi * (np.arange(n) + 0.5) / n
    transform = np.cos(np.outer(np.arange(n), angle)) * (2 / n)
    transform[0] /= 2
    return np.cos(angle), transform


@dataclass(frozen=True)
class Panels:
    """Panels of the variable ``s`` of the module; every attribute has one entry, or one row, for each panel."""

    # location, remainder, order, exponent, weight, even: the edge that the panel belongs to: see
    # :class:`~bulkedge.laws.engine.measure.panels.Edge`
    location: Real
    remainder: Real
    direction: Real  # one for a left edge, minus one for a right one: x is ``location + direction * length * s**order``
    # length, middle: half the length of the support interval, and its middle, where ``s = 1``
    length: Real
    middle: Real
    order: NDArray[np.int64]
    exponent: Real
    weight: NDArray[np.int64]
    even: BoolArray
    # start, stop: the panel's ends in s
    start: Real
    stop: Real
    coefficients: Real  # (panels, DEGREE): Chebyshev coefficients of g

    @classmethod
    def halves(cls, intervals: Sequence[SupportInterval]) -> Panels:
        """One panel for each half of each interval, still without coefficients."""
        edges = [edge for pair in intervals for edge in pair]
        spans = [(right.location - left.location) + (right.remainder - left.remainder) for left, right in intervals]
        count = len(edges)
        return cls(
            location=np.array([edge.location for edge in edges]),
            remainder=np.array([edge.remainder for edge in edges]),
            direction=np.tile([1.0, -1.0], len(intervals)),
            length=np.repeat(spans, 2) / 2,
            middle=np.repeat([(left.location + right.location) / 2 for left, right in intervals], 2),
            order=np.array([edge.order for edge in edges]),
            exponent=np.array([edge.exponent for edge in edges]),
            weight=np.array([edge.weight for edge in edges]),
            even=np.array([edge.even for edge in edges]),
            start=np.zeros(count),
            stop=np.ones(count),
            coefficients=np.zeros((count, DEGREE)),
        )

    @classmethod
    def stack(cls, parts: Sequence[Panels]) -> Panels:
        """The panels of several collections as one collection."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def __len__(self) -> int:
        return len(self.start)

    def take(self, index: Index | BoolArray) -> Panels:
        """The panels with the given numbers, or those where the mask is true."""
        return Panels(*(getattr(self, each.name)[index] for each in fields(self)))

    def replaced(self, **columns: Any) -> Panels:
        """The same panels with some columns exchanged."""
        return Panels(**(vars(self) | columns))

    @property
    def symmetric(self) -> BoolArray:
        """Panels that start at an edge about which ``g`` is even: there the series is in ``T_k(2 (s/stop)**2 - 1)``."""
        return self.even & (self.start == 0)

    @property
    def scale(self) -> Real:
        """Constant of the mass element: ``density dx = scale * g(s) * s**weight ds``."""
        return self.order * self.length ** (self.exponent + 1)

    @property
    def mass_bound(self) -> Real:
        """An upper estimate of the mass of each panel."""
        largest = np.abs(self.coefficients).max(axis=1)
        return np.asarray(self.scale * largest * self.stop**self.weight * (self.stop - self.start))

    def sites(self, t: Real) -> Real:
        """Map points t of [-1, 1] onto the ``s`` of each panel, one row a panel."""
        middle, half = (self.start + self.stop) / 2, (self.stop - self.start) / 2
        return np.asarray(middle[:, None] + half[:, None] * t)

    def distance(self, s: Real) -> Real:
        """Distance to the panel's edge, for values ``s`` of its variable."""
        return np.asarray(self.length[:, None] * s ** self.order[:, None])

    def position(self, s: Real) -> Real:
        """Point of the line, for values ``s`` of the panel's variable."""
        return np.asarray(self.location[:, None] + self.direction[:, None] * self.distance(s))

    def ends(self) -> tuple[Real, Real]:
        """Points of the line at which each panel starts and stops, the same numbers for panels that meet there."""
        start, stop = self.position(np.stack([self.start, self.stop], axis=1)).T
        return start, np.where(self.stop == 1, self.middle, stop)

    def g(self, s: Real) -> Real:
        """The analytic factor of the density, which is that factor times ``delta**exponent``."""
        start, stop = self.start[:, None], self.stop[:, None]
        t = np.where(self.symmetric[:, None], 2 * (s / stop) ** 2 - 1, (2 * s - start - stop) / (stop - start))
        return np.asarray(chebyshev.chebval(t, self.coefficients.T[:, :, None], tensor=False))

    def mass_density(self, s: Real) -> Real:
        """Mass per unit of ``s``: the density times ``|dx/ds|``."""
        return np.asarray(self.scale[:, None] * self.g(s) * s ** self.weight[:, None])


def cut_at_zero(intervals: list[SupportInterval], zero: Edge | None) -> list[SupportInterval]:
    """The same intervals, the one that contains zero cut there: products are singular at zero also in their bulk."""
    if zero is None:
        return intervals
    result = []
    for left, right in intervals:
        inside = left.location < 0 < right.location
        result += [(left, zero), (zero, right)] if inside else [(left, right)]
    return result


def fit(intervals: Sequence[SupportInterval], density: DensityFunction) -> Panels:
    """Represent a density between known edges, on panels that are halved until they converge."""
    pending, done, sampled = Panels.halves(intervals), [], 0
    limit = 1000 + 100 * len(pending)
    before = np.full(len(pending), np.inf)
    for _ in range(400):
        fitted, tail, rounding = _sample(pending, density)
        sampled += len(pending)
        # where rounding explains the tail, halve until that no longer shrinks it: a half may be free of the rounding
        # so little mass does not change any integral
        converged = (tail <= 1e-13) | ((tail <= rounding) & (tail >= before / 8)) | (fitted.mass_bound < 1e-17)
        done.append(fitted.take(converged))
        if converged.all():
            return Panels.stack(done)
        coarse, before = fitted.take(~converged), np.tile(tail[~converged], 2)
        middle = (coarse.start + coarse.stop) / 2
        pending = Panels.stack([coarse.replaced(stop=middle), coarse.replaced(start=middle)])
        # panels that are sampled in all, halved ones included
        if len(pending) > limit or sampled > 3000 + limit:
            break
    where = pending.position(pending.sites(np.zeros(1)))[:3, 0]
    raise UnresolvedDensityError(
        f"the density is not resolved near x = {where}: {len(pending)} panels do not converge. It may be singular "
        "there in a way that its edges do not tell of: move the parameters a little"
    )


def _sample(panels: Panels, density: DensityFunction) -> tuple[Panels, Real, Real]:
    """Sample the density on every panel; also sizes of last coefficients and of rounding, relative to the largest."""
    t, transform = nodes_and_transform(DEGREE)
    # even functions of s are sampled as functions of s**2: better conditioned, as no sample is close to the edge
    s = np.where(panels.symmetric[:, None], panels.stop[:, None] * np.sqrt((1 + t) / 2), panels.sites(t))
    x, power = panels.position(s), panels.distance(s) ** panels.exponent[:, None]
    values, errors = (np.reshape(np.broadcast_to(part, s.size), s.shape) for part in density(x.ravel()))
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        raise UnresolvedDensityError(f"the density is not finite and non-negative at x = {x[bad][:3]}")
    # x is rounded too: where it lies beside a far edge, a steep density feels it
    rise, run = np.gradient(values, axis=1), np.gradient(x, axis=1)
    far = (panels.location != 0)[:, None] & (run != 0)
    steepness = np.abs(np.divide(rise, run, out=np.zeros_like(run), where=far))
    errors = errors + 2 * EPS * np.abs(panels.location)[:, None] * steepness
    fitted = panels.replaced(coefficients=(values / power) @ transform.T)
    tail = np.abs(fitted.coefficients[:, -3:]).max(axis=1)
    rounding = 2 * np.mean(errors / power, axis=1)
    largest = np.maximum(np.abs(fitted.coefficients).max(axis=1), np.finfo(float).tiny)
    return fitted, tail / largest, rounding / largest
