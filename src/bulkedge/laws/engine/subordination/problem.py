"""Laws as fixed-point problems: free sums, products and rectangular sums of any two laws.

Given x and the variable y_1 of one law, the partner map of that law gives the variable y_2 of the other, and back. The
round trip is an analytic self-map of the upper half-plane. Inside the bulk its fixed point has positive imaginary part;
outside the bulk it is real, with a multiplier below one. Either is a proof of where x lies, and a real one also gives
the mass to the left of x (``count``). Profiled sums (:mod:`bulkedge.laws.engine.profiles`) are such problems too.

A problem knows what it may cost (:class:`WorkBudget`) and what its result owes to its operands
(:class:`RequiredMoments`). The total mass says nothing of light islands far out, nor of an interval taken for another.
The first two moments do: an island of mass m at a distance x from the mean has a share of ``m x**2`` of the variance.

References: Belinschi and Bercovici (2007); Benaych-Georges (2009) for rectangular sums, solved here as sums with
amalgamation over the diagonal (Belinschi, Mai and Speicher 2017).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bulkedge.laws.engine.measure.cauchy import root_mean_square
from bulkedge.laws.engine.measure.panels import (
    REMEDY,
    BehaviourAtZero,
    Edge,
    UnresolvedDensityError,
    extent,
    product_at_zero,
    reach,
)
from bulkedge.laws.engine.subordination.fixed_point import BranchError, SelfMap
from bulkedge.support.arrays import EPS, Complex, Real
from bulkedge.support.errors import UnresolvedError

if TYPE_CHECKING:
    from bulkedge.laws.engine.measure.continuum import Continuum
    from bulkedge.laws.law import Law


MOST_WORK = 9.0  # units of :meth:`Problem.work` that a law may cost: two thirds of a second each
ACCURACY = 1e-9
"""How far moments may be off, relative to the deviation and the variance: ten times what is demanded of masses."""
SMALLEST_MASS = 1e-11  # mass between two gaps that counts as none, if its share of the variance does not count either
FEWEST = 1e-13  # mass that counts as none wherever it is: counts are differences of numbers of size one
ROUNDING = 4 * EPS


class RequiredMoments(NamedTuple):
    """Mean and variance of a law, and the size of the terms that add up to its mean."""

    mean: float
    variance: float
    size: float


class Problem(ABC):
    """A law given by the fixed point of a self-map of half-planes."""

    def moments(self) -> RequiredMoments | None:
        """Moments of the result as far as they are known beforehand; None if they are not."""
        return None

    @property
    def light_islands(self) -> bool:
        """Whether far out there may be islands whose mass, however small, is known."""
        return False

    @property
    def size(self) -> int:
        """Number of variables."""
        return 1

    @property
    def smallest(self) -> float:
        """A positive law whose bulk reaches below this fraction of its size reaches down to zero."""
        return 1e-16

    @property
    def positive(self) -> bool:
        """Whether the result lives on the positive half-line."""
        return False

    @property
    def flat_at_zero(self) -> bool:
        """Whether zero lies in the bulk, and there the variables are real to leading order."""
        return False

    @property
    def graded(self) -> bool:
        """Whether the law is to be seen at every scale next to zero: positive laws are."""
        return self.positive

    @property
    def at_once(self) -> bool:
        """Whether it is seen at all these scales from the first; else only where something was found next to zero."""
        return True

    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """Numbers between which the support of the result lies."""

    def far(self, z: Complex) -> Complex:
        """The variables at z far above the axis, to leading order; shape (size, n)."""
        return np.tile(z, (self.size, 1))

    @abstractmethod
    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """The round trip from the variables u of mu, a :data:`SelfMap`."""

    @abstractmethod
    def work(self, points: int) -> float:
        """What a call of :meth:`step` with so many points costs: 1.5 units a second on a core of 2020, roughly."""

    @abstractmethod
    def cauchy(self, u: Complex, x: Real) -> Complex:
        """The Cauchy transform of the result at a fixed point."""

    @abstractmethod
    def count(self, u: Real, x: Real) -> Real:
        """Mass to the left of x at a real fixed point: the imaginary part of the logarithmic potential."""

    @abstractmethod
    def edge_at_zero(self) -> Edge | None:
        """The edge at zero, if there is one, where it is known not to be of square-root type."""


@dataclass
class WorkBudget:
    """The work spent on a law so far, by all problems that belong to it."""

    spent: float = 0.0  # units of :meth:`Problem.work`
    most: float = MOST_WORK  # units that may be spent

    def allow_images(self) -> None:
        """Leave some work for images of the law, once its bulk is known: they ask for its density at other points."""
        self.most = max(MOST_WORK, self.spent + MOST_WORK / 3)

    def meter(self, operation: Problem) -> SelfMap:
        """The self-map of a problem, which raises when more work has been done than a law may cost."""

        def step(u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
            self.spent += operation.work(len(z))
            if self.spent > self.most:
                raise UnresolvedError(f"{operation!r}: its bulk takes more work than {MOST_WORK:g} units; {REMEDY}")
            return operation.step(u, z)

        return step


def unresolved(operation: Problem, what: str, x: Real) -> BranchError:
    """The error to raise: what was being resolved, and what can be done about it."""
    return BranchError(f"{operation!r}: {what}", x)


def least_mass(moments: RequiredMoments | None, x: Real) -> Real:
    """The least mass that counts at points of the line: the less the further out they are."""
    smallest = np.full(len(x), SMALLEST_MASS)
    if moments is None or not moments.variance > 0:
        return smallest
    with np.errstate(divide="ignore"):
        # a share of the variance that counts as none
        share = 1e-10 * moments.variance / (x - moments.mean) ** 2
    return np.asarray(np.maximum(np.minimum(smallest, share), FEWEST))


def lost_variance(moments: RequiredMoments | None, x: Real, mass: Real) -> float:
    """Share of the variance in islands between neighbouring points in gaps."""
    if moments is None or not moments.variance > 0:
        return 0.0
    between = np.abs(np.diff(mass))
    counted = between > FEWEST
    squares = (x - moments.mean) ** 2
    return float(np.sum(between[counted] * np.minimum(squares[1:], squares[:-1])[counted]) / moments.variance)


def check_moments(law: Law, continuum: Continuum | None, demanded: RequiredMoments) -> None:
    """Refuse a law whose mean or variance is not what its operands demand."""
    mean, variance, size = demanded
    ends = np.concatenate([law.locations, np.ravel(continuum.support) if continuum else []])
    reach, deviation = float(np.abs(ends - mean).max()), float(np.sqrt(variance))
    rounding = 64 * EPS * (size + float(np.abs(ends).max()))
    allowed = (
        ACCURACY * deviation + SMALLEST_MASS * reach + rounding,
        ACCURACY * variance + SMALLEST_MASS * reach**2 + rounding * (deviation + rounding),
    )
    for order, name, value, slack in zip((1, 2), ("mean", "variance"), (0.0, variance), allowed, strict=True):
        found = continuum.moment(order, mean) if continuum else 0.0
        found += float(np.sum(law.masses * (law.locations - mean) ** order))
        if not abs(found - value) <= slack:
            raise UnresolvedDensityError(
                f"{law!r}: its {name} is off by {found - value:.3g}, of {value or mean:.6g}: part of the support was "
                f"missed or is not what it should be; {REMEDY}"
            )


class LawTransforms(NamedTuple):
    """One law at its own variable: y, G, G', psi and psi' (see :meth:`bulkedge.laws.law.Law.transforms`)."""

    y: Complex
    g: Complex
    dg: Complex
    psi: Complex
    dpsi: Complex

    @classmethod
    def at(cls, law: Law, y: Complex) -> LawTransforms:
        """Evaluate the transforms of a law at its own variable."""
        return cls(y, *law.transforms(y))

    @property
    def h(self) -> Complex:
        """``1/G(y) - y``."""
        return -self.psi / self.g

    @property
    def h_size(self) -> Real:
        """Size of the terms that add up to h: times the rounding unit, its rounding error."""
        mean = root_mean_square(self.y, self.g, self.dg)
        return (1 + np.abs(self.y) * mean + np.abs(self.h) * mean) / np.abs(self.g)

    @property
    def dh(self) -> Complex:
        """Derivative of h, ``-G'/G**2 - 1``, written so that nothing cancels far from the law."""
        far = (self.psi * self.dg - self.dpsi * self.g) / self.g**2
        return np.where(np.abs(self.psi) < 0.5, far, -self.dg / self.g**2 - 1)


@dataclass(frozen=True)
class FreeConvolution(Problem):
    """A free convolution of mu and nu."""

    mu: Law
    nu: Law

    def work(self, points: int) -> float:
        """Transforms of the two laws, measured: calls with few points, which are most, cost what calls cost."""
        measures = [law.continuum for law in (self.mu, self.nu) if law.continuum]
        panels = sum(len(measure.panels) for measure in measures)
        orders = sum(int(measure.panels.order.max()) for measure in measures)
        atoms = len(self.mu.atoms) + len(self.nu.atoms)
        # of more panels than that, no call sees all at once
        crowd = sum(min(len(measure.panels) / 300, 1.0) for measure in measures)
        each = 7e-7 + 2.7e-6 * len(measures) + 3.5e-7 * orders + 4e-8 * panels + 7.5e-9 * atoms
        return 1.5e-4 * (1 + self.size) + 2.5e-4 * len(measures) + 1e-3 * crowd + points * each

    @classmethod
    def of(cls, mu: Law, nu: Law, *rest: float) -> FreeConvolution:
        """The operation on two laws in the order that keeps digits: a wide law's variable hardly leaves the axis."""
        return cls(*sorted((mu, nu), key=cls._width), *rest)

    @staticmethod
    def _width(law: Law) -> tuple[float, float]:
        return 0.0, law.var()

    @property
    def smallest(self) -> float:
        """As deep as the laws have edges or atoms next to zero, one under the other, and a rounding unit below."""
        depths = [reach(law) for law in (self.mu, self.nu)]
        return max(1e-16 * depths[0] * depths[1], float(np.finfo(float).tiny) / EPS)

    @abstractmethod
    def moments(self) -> RequiredMoments:
        """Moments of the result, from those of the two laws."""

    @property
    def light_islands(self) -> bool:
        """If the wider law has atoms alone; a density so low would be lost in the rounding of the variables."""
        return not max(self.mu, self.nu, key=lambda law: law.var()).support


class Addition(FreeConvolution):
    """``G_mu(y_1) = G_nu(y_2)`` and ``x = y_1 + y_2 - 1/G``; partner map ``x + h(y)``."""

    def moments(self) -> RequiredMoments:
        """Means and variances add up."""
        one, two = self.mu.mean(), self.nu.mean()
        return RequiredMoments(one + two, self.mu.var() + self.nu.var(), abs(one) + abs(two))

    def bounds(self) -> tuple[float, float]:
        """Sums of the edges."""
        (low, high), (other_low, other_high) = extent(self.mu), extent(self.nu)
        return low + other_low, high + other_high

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """``y_1 -> z + h(z + h(y_1))``."""
        one = LawTransforms.at(self.mu, u[0])
        two = LawTransforms.at(self.nu, z + one.h)
        error = np.abs(z) + two.h_size + np.abs(two.dh) * (np.abs(z) + one.h_size)
        return (z + two.h - u[0])[None], (one.dh * two.dh)[None, None], ROUNDING * error[None]

    def cauchy(self, u: Complex, x: Real) -> Complex:  # noqa: ARG002  # the others need x
        """``G_mu(y_1)``."""
        return self.mu.transforms(u[0])[0]

    def count(self, u: Real, x: Real) -> Real:
        """The potentials satisfy ``L = L_mu(y_1) + L_nu(y_2) + log G``."""
        one = LawTransforms.at(self.mu, u[0] + 0j)
        return self.mu.cdf(u[0]) + self.nu.cdf(x + one.h.real) - (one.g.real > 0)

    def edge_at_zero(self) -> Edge | None:
        """Zero is not special."""
        return None


class Multiplication(FreeConvolution):
    """``psi_mu(y_1) = psi_nu(y_2)`` and ``x = y_1 y_2 psi/(1 + psi)``; partner map ``-x/h(y)``; nu is positive."""

    def moments(self) -> RequiredMoments:
        """``E[x**2] = E[a**2] E[b]**2 + E[a]**2 Var[b]`` for factors a and b."""
        one, two = self.mu.mean(), self.nu.mean()
        variance = self.mu.var() * two**2 + self.nu.var() * one**2
        # the mean of a signed law is a difference
        return RequiredMoments(one * two, variance, float(np.sqrt(self.mu.moment(2))) * two)

    @staticmethod
    def _width(law: Law) -> tuple[float, float]:
        """First the law that reaches below zero, then by relative width, last what has most density at zero."""
        low = extent(law)[0]
        if low > 0:
            return 1.0, law.var() / law.mean() ** 2
        exponent = BehaviourAtZero.of(law).exponent
        return (0.0, 0.0) if low < 0 else (2.0, -np.inf if exponent is None else -exponent)

    @property
    def flat_at_zero(self) -> bool:
        """If nu has a density that vanishes at zero: a finite one makes a logarithm, and no density nothing special."""
        exponent = BehaviourAtZero.of(self.nu).exponent
        return not self.positive and exponent is not None and exponent > 0

    @property
    def graded(self) -> bool:
        """Also where the density of a signed product diverges at zero: on one side the bulk may start next to it."""
        if self.positive:
            return True
        edge = self.edge_at_zero()
        return extent(self.mu)[1] > 0 and edge is not None and edge.exponent < 0

    @property
    def at_once(self) -> bool:
        """If it ends at zero; most products of signed laws have nothing but bulk there."""
        return self.positive

    @property
    def smallest(self) -> float:
        """For a signed law as deep as the other has mass next to zero: there is where positive and negative cancel."""
        if self.positive:
            return super().smallest
        root = BehaviourAtZero.of(self.nu)
        return max(super().smallest * SMALLEST_MASS ** (root.power / root.lead), float(np.finfo(float).tiny) / EPS)

    def bounds(self) -> tuple[float, float]:
        """Products of the edges."""
        (low, high), (_, largest) = extent(self.mu), extent(self.nu)
        return min(low * largest, 0.0), max(high * largest, 0.0)

    def far(self, z: Complex) -> Complex:
        """``psi_mu`` at y is ``psi`` at z, which is smaller than that by the mean of nu."""
        return (z / self.nu.mean())[None]

    @property
    def positive(self) -> bool:
        """If both laws do."""
        return self.mu.lower_edge >= 0

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """``y_1 -> -z/h(-z/h(y_1))``; for negative z the partner lies in the lower half-plane."""
        one = LawTransforms.at(self.mu, u[0])
        two = LawTransforms.at(self.nu, -z / one.h)
        jacobian = (z / one.h**2 * one.dh) * (z / two.h**2 * two.dh)
        error = np.abs(z / two.h**2) * (two.h_size + np.abs(two.dh * two.y) * (1 + one.h_size / np.abs(one.h)))
        return (-z / two.h - u[0])[None], jacobian[None, None], ROUNDING * error[None]

    def cauchy(self, u: Complex, x: Real) -> Complex:
        """``(1 + psi)/x``."""
        return u[0] * self.mu.transforms(u[0])[0] / x

    def count(self, u: Real, x: Real) -> Real:
        """The potentials satisfy ``L = L_mu(y_1) + L_nu(y_2) + log psi``."""
        one = LawTransforms.at(self.mu, u[0] + 0j)
        left, right = self.mu.cdf(u[0]), self.nu.cdf(-x / one.h.real)
        return np.where(x > 0, left + right - (one.psi.real > 0), left - right + (one.psi.real > 0))

    def edge_at_zero(self) -> Edge | None:
        """What the two laws have at zero decides it."""
        return product_at_zero(self.mu, self.nu)


@dataclass(frozen=True)
class RectangularAddition(FreeConvolution):
    """Sum of n x m matrices, in terms of squared singular values."""

    # variables: the diagonal (a, b) of the subordination of the hermitised matrix, y = a b. Corners of its resolvent,
    # b G(y) and (1 + ratio psi(y))/b, are equal for both laws, and psi add up

    ratio: float = 1.0

    def moments(self) -> RequiredMoments:
        """Of the squared singular values: ``tr A A' B B'`` enters with its partner ``tr A' A B' B``, ratio times it."""
        one, two = self.mu.mean(), self.nu.mean()
        return RequiredMoments(one + two, self.mu.var() + self.nu.var() + 2 * self.ratio * one * two, one + two)

    @property
    def size(self) -> int:
        """Rows and columns."""
        return 2

    @property
    def positive(self) -> bool:
        """Always: these are squares."""
        return True

    def bounds(self) -> tuple[float, float]:
        """The largest singular values add up at most."""
        return 0.0, (np.sqrt(extent(self.mu)[1]) + np.sqrt(extent(self.nu)[1])) ** 2

    def far(self, z: Complex) -> Complex:
        """Both corners are those of the hermitised matrix alone."""
        return np.tile(np.sqrt(z), (2, 1))

    def _partner(self, u: Complex, law: Law) -> tuple[Complex, Complex, LawTransforms]:
        """``h(a, b) = (1/g - a, 1/g' - b)``, its Jacobian, and the law's transforms."""
        a, b = u
        side = LawTransforms.at(law, a * b)
        wide = 1 + self.ratio * side.psi
        bend = self.ratio * side.dpsi / wide**2
        row_a = np.stack([side.dh, a / b * side.dh - side.h / b**2])
        row_b = np.stack([-(b**2) * bend, -self.ratio * side.psi / wide - side.y * bend])
        return np.stack([side.h / b, -b * self.ratio * side.psi / wide]), np.stack([row_a, row_b]), side

    def _both(self, u: Complex, root: Complex) -> tuple[LawTransforms, LawTransforms, Complex]:
        """The two laws at a fixed point, and the second law's variables."""
        h, _, one = self._partner(u, self.mu)
        return one, LawTransforms.at(self.nu, np.prod(root + h, axis=0)), root + h

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """``(a, b) -> x + h(x + h(a, b))`` with ``x = sqrt(z)``."""
        root = np.sqrt(z)
        h, inner, _ = self._partner(u, self.mu)
        partner = root + h
        h_back, outer, _ = self._partner(partner, self.nu)
        error = np.abs(root) + np.abs(h_back) + np.einsum("ijn,jn->in", np.abs(outer), np.abs(root) + np.abs(h))
        return root + h_back - u, np.einsum("ijn,jkn->ikn", outer, inner), 4 * ROUNDING * error

    def cauchy(self, u: Complex, x: Real) -> Complex:
        """``(1 + psi_1 + psi_2)/x``."""
        one, two, _ = self._both(u, np.sqrt(x) + 0j)
        return (1 + one.psi + two.psi) / x

    def count(self, u: Real, x: Real) -> Real:
        """``L = L_1(y_1) + L_2(y_2) + log(g g') - (1/ratio - 1) log[w/(w_1 w_2)]`` with ``w = 1 + ratio psi``."""
        one, _, partner = self._both(u + 0j, np.sqrt(x) + 0j)
        # signs of 1 + psi and 1 + ratio psi, which are g and g' times a root of x: next to zero only these have one
        long, wide = u[1] * one.g.real < 0, (1 + self.ratio * one.psi.real) / u[1] < 0
        turns = 0.0
        for law, (a, b) in ((self.mu, u), (self.nu, partner.real)):
            # arg y runs from 0 to 2 pi as a and b turn negative, and the potential with it
            inside = law.cdf(a * b)
            turns = turns + np.where((a < 0) & (b < 0), 1 + inside, 1 - inside) + (1 / self.ratio - 1) * (b < 0)
        return 1 - (turns - long - wide - (1 / self.ratio - 1) * wide)

    def edge_at_zero(self) -> Edge | None:
        """A finite density of singular values has a square-root singularity in their squares."""
        return Edge.hard(0.0)
