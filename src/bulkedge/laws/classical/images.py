"""Images and mixtures of laws: multiples, squares, square roots, and shares of several laws.

The bulk of an image is resolved from the original density, not from its representation, so no accuracy is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.explicit import Levy
from bulkedge.laws.engine.measure.continuum import Continuum
from bulkedge.laws.engine.measure.panels import Edge, SupportInterval
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support import domains
from bulkedge.support.arrays import Real
from bulkedge.support.errors import DomainError

ANY = domains.Interval(-1e300, 1e300)


def merge_atoms(pairs: list[tuple[float, float]]) -> PointMasses:
    """Atoms in increasing order, equal locations merged."""
    total: dict[float, float] = {}
    for place, mass in sorted(pairs):
        total[place] = total.get(place, 0.0) + mass
    return tuple(total.items())


@dataclass(frozen=True)
class _Image(Law):
    """The law of a function of x, for x of the original law."""

    law: Law

    @property
    def matrix(self) -> str:
        """The original's; where that is a Gram matrix M'M, the square roots are singular values of M."""
        return self.law.matrix

    @property
    def _aspect(self) -> float | None:
        return self.law._aspect

    @property
    def _unbounded(self) -> bool:
        return self.law._unbounded


@dataclass(frozen=True)
class Affine(_Image):
    """The law of ``factor * x + shift``, factor not zero."""

    factor: float
    shift: float

    @classmethod
    def of(cls, law: Law, factor: float, shift: float) -> Law:
        """Compose with an image that is already affine; a vanishing factor leaves a point mass."""
        factor, shift = ANY.check("factor", factor), ANY.check("shift", shift)
        if isinstance(law, Affine):
            return cls.of(law.law, factor * law.factor, factor * law.shift + shift)
        if factor == 0:
            return EmpiricalLaw([shift])
        if isinstance(law, EmpiricalLaw):
            return EmpiricalLaw(factor * law.values + shift, law.weights)
        return law if (factor, shift) == (1.0, 0.0) else cls(law, factor, shift)

    @property
    def unit(self) -> Unit:
        """That of the original, if such values may be moved so: singular values stay positive and start at zero."""
        return self.law.unit if self.law.unit is Unit.EIGEN or (self.factor > 0 and not self.shift) else Unit.VALUES

    @property
    def _aspect(self) -> float | None:
        return None if self.shift else self.law._aspect

    @property
    def matrix(self) -> str:
        """The original's, with the factor."""
        return f"({self.law.matrix}), values times {self.factor:g} plus {self.shift:g}" if self.law.matrix else ""

    @property
    def atoms(self) -> PointMasses:
        """The atoms of the original, moved."""
        return tuple(sorted((self.factor * place + self.shift, mass) for place, mass in self.law.atoms))

    @property
    def _infinite_moment(self) -> float:
        return self.law._infinite_moment

    @property
    def _levy(self) -> Levy | None:
        return None if self.law._levy is None else self.law._levy.affine(self.factor, self.shift)

    def _resolve(self) -> Continuum | None:
        inner = self.law.continuum
        return None if inner is None else inner.moved(Fraction(self.factor), Fraction(self.shift))

    def _bulk(self) -> BulkDensity | None:
        bulk = self.law._shared_bulk
        if bulk is None:
            return None
        intervals, inner = bulk
        factor, shift = Fraction(self.factor), Fraction(self.shift)

        def moved(edge: Edge) -> Edge:
            return edge.moved(factor * edge.exact + shift)

        def at(x: Real) -> tuple[Real, Real]:
            value, error = inner((x - self.shift) / self.factor)
            return value / abs(self.factor), error / abs(self.factor)

        images = [(moved(left), moved(right)) for left, right in intervals]
        return (images if self.factor > 0 else [(right, left) for left, right in images[::-1]]), at


@dataclass(frozen=True)
class Squared(_Image):
    """The law of ``x**2``."""

    @property
    def unit(self) -> Unit:
        """What squares of the original's values are."""
        return self.law.unit.square()

    @property
    def _aspect(self) -> float | None:
        # of a Hermitian matrix, which is square, absolute eigenvalues are singular values
        return 1.0 if self.law.unit is Unit.EIGEN else self.law._aspect

    @property
    def atoms(self) -> PointMasses:
        """The atoms of the original, squared; those at +-x merge."""
        return merge_atoms([(place**2, mass) for place, mass in self.law.atoms])

    @property
    def _infinite_moment(self) -> float:
        return self.law._infinite_moment / 2

    def _bulk(self) -> BulkDensity | None:
        bulk = self.law._shared_bulk
        if bulk is None:
            return None
        intervals, inner = bulk

        def one_side(y: Real) -> tuple[Real, Real]:
            value, error = np.zeros(y.shape), np.zeros(y.shape)
            for left, right in intervals:
                inside = (y > left.location) & (y < right.location)
                if inside.any():
                    value[inside], error[inside] = inner(y[inside])
            return value, error

        def density(x: Real) -> tuple[Real, Real]:
            root = np.sqrt(x)
            plus, plus_error = one_side(root)
            minus, minus_error = (plus, plus_error) if self.law._symmetric else one_side(-root)
            return (plus + minus) / (2 * root), (plus_error + minus_error) / (2 * root)

        return _overlay([piece for pair in intervals for piece in _square_pieces(*pair)]), density


def _square_pieces(left: Edge, right: Edge) -> list[SupportInterval]:
    """The images of an interval under squaring: two if it contains zero."""
    if left.location < 0 < right.location:
        centre = Edge.hard(0.0)
        return [(centre, _square_edge(right)), (centre, _square_edge(left))]
    low, high = sorted((left, right), key=lambda edge: abs(edge.location))
    return [(_square_edge(low), _square_edge(high))]


def _square_edge(edge: Edge) -> Edge:
    if edge.location == 0:
        return Edge(0.0, (edge.exponent - 1) / 2, 2 * edge.order)
    return edge.moved(edge.exact**2)


def _overlay(pieces: list[SupportInterval]) -> list[SupportInterval]:
    """Cut overlapping intervals at each other's ends; a cut is an edge at which the density need not vanish."""
    ends = sorted({edge.location for piece in pieces for edge in piece})
    # a symmetric law squares to the same edge twice, up to rounding
    points = [point for k, point in enumerate(ends) if not k or point - ends[k - 1] > 1e-14 * abs(point)]
    result = []
    for low, high in pairwise(points):
        middle = (low + high) / 2
        over = [piece for piece in pieces if piece[0].location < middle < piece[1].location]
        if over:
            result.append((_joint([piece[0] for piece in over], low), _joint([piece[1] for piece in over], high)))
    return result


def _joint(edges: list[Edge], point: float) -> Edge:
    """The edge, at the point, of a sum of densities of which some end there and others pass through it."""
    here = [edge for edge in edges if abs(edge.location - point) <= 1e-14 * abs(point)]
    sharpest = min(here, key=lambda edge: edge.exponent, default=Edge.plain(point))
    alike = all((edge.exponent, edge.order) == (sharpest.exponent, sharpest.order) for edge in here)
    if len(here) == len(edges) and alike:
        return sharpest
    order = max([edge.order for edge in here], default=1)
    return Edge(point, min(sharpest.exponent, 0.0), order)


@dataclass(frozen=True)
class SquareRoot(_Image):
    """The law of ``sqrt(x)``, for a law on the positive half-line."""

    def __post_init__(self) -> None:
        """Refuse laws that reach below zero."""
        if self.law.lower_edge < 0:
            raise DomainError(f"sqrt() needs a law on [0, inf); {self.law!r} reaches down to {self.law.lower_edge:g}")

    @property
    def unit(self) -> Unit:
        """What square roots of the original's values are."""
        return self.law.unit.root()

    @property
    def atoms(self) -> PointMasses:
        """The atoms of the original, rooted."""
        return tuple((float(np.sqrt(place)), mass) for place, mass in self.law.atoms)

    @property
    def _infinite_moment(self) -> float:
        return 2 * self.law._infinite_moment

    def _bulk(self) -> BulkDensity | None:
        bulk = self.law._shared_bulk
        if bulk is None:
            return None
        intervals, inner = bulk

        def density(y: Real) -> tuple[Real, Real]:
            value, error = inner(y**2)
            return 2 * y * value, 2 * y * error

        return [(_root_edge(left), _root_edge(right)) for left, right in intervals], density


def _root_edge(edge: Edge) -> Edge:
    if edge.location > 0:
        root = float(np.sqrt(edge.location))
        return edge.moved(Fraction(root) + (edge.exact - Fraction(root) ** 2) / (2 * Fraction(root)))
    # g is analytic in x**(1/order) = y**(2/order), or in x = y**2 where it is even
    order = 1 if edge.even else edge.order // 2 if edge.order % 2 == 0 else edge.order
    return Edge(0.0, 2 * edge.exponent + 1, order)


@dataclass(frozen=True)
class MixtureLaw(Law):
    """The law of values of which a share is of each law."""

    laws: tuple[Law, ...]
    shares: tuple[float, ...]  # they sum to one

    @property
    def unit(self) -> Unit:
        """That of all the laws."""
        return self.laws[0].unit

    @property
    def matrix(self) -> str:
        """That of the first law."""
        return self.laws[0].matrix

    @property
    def atoms(self) -> PointMasses:
        """Those of the laws."""
        found = zip(self.shares, self.laws, strict=True)
        return merge_atoms([(place, share * mass) for share, law in found for place, mass in law.atoms])

    def _bulk(self) -> BulkDensity | None:
        parts = [(share, law._shared_bulk) for share, law in zip(self.shares, self.laws, strict=True)]
        return mixed_bulk([(share, bulk) for share, bulk in parts if bulk is not None])


def mixed_bulk(parts: Sequence[tuple[float, BulkDensity]]) -> BulkDensity | None:
    """The bulk of a mixture, of the shares and bulks of its laws; it is cut at each edge of each of them."""
    pairs = [pair for _, (intervals, _) in parts for pair in intervals]
    cuts = sorted({edge.location for pair in pairs for edge in pair})
    intervals = []
    for low, high in pairwise(cuts):
        inside = [(left, right) for left, right in pairs if left.location <= low and high <= right.location]
        if inside:
            intervals.append((_edge_at(low, [a for a, _ in inside]), _edge_at(high, [b for _, b in inside])))

    def density(x: Real) -> tuple[Real, Real]:
        total, error = np.zeros(len(x)), np.zeros(len(x))
        for share, (own, each) in parts:
            within = np.any([(low.location < x) & (x < high.location) for low, high in own], axis=0)
            if within.any():
                value, rounding = each(x[within])
                total[within] += share * value
                error[within] += share * rounding
        return total, error

    return (intervals, density) if intervals else None


def _edge_at(place: float, covering: list[Edge]) -> Edge:
    """How a sum of densities starts at a place, of which each has an edge there or goes on."""
    own = [edge for edge in covering if edge.location == place]
    if len(covering) == 1 and own:
        return own[0]
    # the most singular one, in whose variable the others are analytic too, or a finite density in it
    first = min(own, key=lambda edge: edge.exponent, default=Edge.plain(place))
    order = int(np.lcm.reduce([edge.order for edge in own])) if own else 1
    if first.exponent >= 0:
        return Edge.plain(place, order)
    return Edge(place, first.exponent, max(order, first.order))
