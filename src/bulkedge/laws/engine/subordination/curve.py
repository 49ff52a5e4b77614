"""The curve above the bulk: subordination variables as functions of x, and the density they give.

The variables at x are the fixed point of a self-map of the upper half-plane
(:mod:`bulkedge.laws.engine.subordination.fixed_point`); the curve remembers the points it has solved, so that each new
one starts from its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np

from bulkedge.laws.engine.subordination.fixed_point import BranchError, bulk_fixed_point, from_above, spread
from bulkedge.laws.engine.subordination.newton import Step
from bulkedge.support.arrays import EPS, Complex, Index, Mask, Real

TRIES = 25
"""Steps of Newton's method from known points; points that need more are proved otherwise, or lie in a gap."""
SMOOTH = 0.1
"""How far apart, in units of the height, the line and the cubic through known points may be for the cubic to count."""
Far = Callable[[Complex], Complex]
Prove = Callable[[Real], tuple[Complex, Mask]]


class Curve:
    """Density of a law over its support, from the fixed-point problem at each x."""

    prove: Prove | None = None
    """Fixed points on either side of edges, and which are proved; by default, by descent from far above the axis."""

    def __init__(
        self, step: Step, cauchy: Callable[[Complex, Real], Complex], x: Real, u: Complex, far: Far = np.atleast_2d
    ) -> None:
        self.step, self.cauchy, self.far = step, cauchy, far
        self.x, self.u = x, u

    def include(self, x: Real, u: Complex) -> None:
        """Take in points of the bulk with their variables, from which others may start."""
        fresh = ~np.isin(x, self.x)
        self.x, self.u = np.append(self.x, x[fresh]), np.concatenate([self.u, u[:, fresh]], axis=1)

    def density(self, x: Real) -> tuple[Real, Real]:
        """Density and a bound on its rounding error at points of the bulk."""
        iterations = 60 if self.prove is None else TRIES
        u, proved = bulk_fixed_point(self.step, x, self._start(x), iterations=iterations)
        if not proved.all():
            u[:, ~proved] = self._searched(x[~proved])
        self.x, self.u = np.concatenate([self.x, x]), np.concatenate([self.u, u], axis=1)
        density = -self.cauchy(u, x).imag / np.pi
        # rounding error of u, in units of its height above the real axis
        error = (spread(self.step, u, x) / u.imag).max(axis=0)
        return density, density * (8 * error + 4 * EPS)

    def _searched(self, x: Real) -> Complex:
        """Fixed points above points x that Newton's method does not reach from the known ones."""
        if self.prove is None:
            return from_above(self.step, x, self.far)
        u, decided = self.prove(x)
        outside = ~decided | ~np.all(u.imag > 0, axis=0)
        if outside.any():
            raise BranchError("no solution in the upper half-plane", x[outside])
        return u

    def nearby(self, x: Real) -> Real:
        """Density at points close to known ones."""
        u, proved = bulk_fixed_point(self.step, x, self._start(x))
        self.include(x[proved], u[:, proved])
        return np.where(proved, -self.cauchy(u, x).imag / np.pi, np.nan)

    def _start(self, x: Real) -> Complex:
        """Where Newton's method starts: between the known points, and above the axis.

        On the line through the two neighbours, or on the cubic through four of them where it is close to that line.
        """
        order = np.argsort(self.x, kind="stable")
        places = self.x[order]
        after = np.clip(np.searchsorted(places, x), 1, max(len(places) - 1, 1))
        index = np.stack([after - 1, np.minimum(after, len(places) - 1)])
        start = self._between(x, places, order, index)
        if len(places) >= 4:
            wide = np.clip(after - 2, 0, len(places) - 4) + np.arange(4)[:, None]
            better = self._between(x, places, order, wide)
            near = np.all(np.abs(better - start) < SMOOTH * start.imag, axis=0)
            start = np.where(near, better, start)
        return np.asarray(start.real + 1j * np.maximum(start.imag, 1e-8 * np.abs(start)))

    def _between(self, x: Real, places: Real, order: Index, index: Index) -> Complex:
        """Lagrange's polynomial through the known points ``index``, of shape (k, n), at points between them."""
        inside = np.clip(x, places[0], places[-1])
        nodes = places[index]
        weights = np.ones(index.shape)
        for one, other in permutations(range(len(index)), 2):
            apart = nodes[one] - nodes[other]
            # a point that is known twice counts once
            weights[one] *= np.divide(inside - nodes[other], apart, out=np.full(len(x), 0.5), where=apart != 0)
        return np.asarray(np.einsum("kn,dkn->dn", weights, self.u[:, order[index]]))
