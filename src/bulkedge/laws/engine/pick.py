"""Laws whose inverse map is explicit: ``z(u) = u + N(u)``, with ``-N`` a Pick function.

This form covers every free sum with a freely infinitely divisible law (Semicircle, MarchenkoPastur, SumLaw) and every free
product with a Marchenko-Pastur law; ``u`` is the subordination variable. It makes the analysis one-dimensional:

* off the barriers (the support of the measure of N) the slope ``z'(u)`` is concave, so between two barriers it is positive on
  at most one interval. The images of those intervals are exactly the complement of the support; their ends are the edges;
* at x inside the support, u is the fixed point of ``u -> x - N(u)``, a self-map of the upper half-plane.

References: Biane (1997) for sums with a semicircle, Silverstein and Choi (1995) for products with Marchenko-Pastur.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from bulkedge.arrays import EPS, Complex, Real
from bulkedge.laws.engine.curve import Curve
from bulkedge.laws.engine.edges import Edge, Interval
from bulkedge.laws.engine.panels import Density

CUSP = 1e-10
"""Two intervals closer than this slope touch: the gap, of width ~ CUSP**1.5, is below double precision."""


@dataclass(frozen=True)
class PickMap:
    """The inverse map ``z(u) = u + N(u)`` and how to read the Cauchy transform off it.

    Attributes
    ----------
    evaluate : callable
        ``evaluate(u)`` returns ``z(u)`` and ``z'(u)``.
    barriers : array of shape (k, 2)
        Disjoint closed intervals (points: equal ends), increasing, outside which N is analytic and real.
    weights : array of shape (k,)
        Mass of the measure of N in each barrier that is a point; zero where unknown. It only saves work.
    cauchy : callable
        ``cauchy(u, x)`` is the Cauchy transform of the law at ``x = z(u)``.
    poles : array
        Real u at which it is infinite.
    exact : callable, optional
        ``z`` in exact arithmetic, where N is a short rational function.
    touching : Edge, optional
        The edge that the law has at a barrier which the map reaches with positive slope.
    multiplicative : bool
        The law is positive and ``evaluate`` has small *relative* error; then ``u -> x u/z(u)`` is iterated instead, also a
        self-map, which keeps that accuracy down to x = 0.
    """

    evaluate: Callable[[Complex], tuple[Complex, Complex]]
    barriers: Real
    weights: Real
    cauchy: Callable[[Complex, Real], Complex]
    poles: Real
    exact: Callable[[Fraction], Fraction] | None = None
    touching: Edge | None = None
    multiplicative: bool = False

    def slope(self, u: float) -> float:
        """``z'(u)`` for real u off the barriers; ``-inf`` on them."""
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = float(self.evaluate(np.array([u + 0j]))[1][0].real)
        return slope if np.isfinite(slope) else -1e300

    def bulk(self) -> tuple[list[Interval], Density]:
        """Edges first, then the density between them."""
        gaps = self._gaps()
        critical = list(zip(gaps[:-1, 1], gaps[1:, 0], strict=True))
        ends = [(self._edge(a, gaps[k]), self._edge(b, gaps[k + 1])) for k, (a, b) in enumerate(critical)]
        noise = 0.0 if self.multiplicative else 16 * EPS * max(abs(edge.location) for pair in ends for edge in pair)
        # half circles: exact for the semicircle law, a fair start for the others
        turn = np.linspace(0, np.pi, 17)
        x = [(left.location + right.location - (right.location - left.location) * np.cos(turn)) / 2 for left, right in ends]
        u = [(a + b - (b - a) * np.exp(-1j * turn)) / 2 for a, b in critical]
        curve = Curve(self._step, lambda u, x: self.cauchy(u[0], x), np.concatenate(x), np.concatenate(u)[None], noise)
        return ends, curve.density

    def _step(self, u: Complex, z: Complex) -> tuple[Complex, Complex]:
        """The self-map whose fixed point is the subordination variable, and its derivative."""
        value, slope = self.evaluate(u[0])
        if self.multiplicative:
            image = z * u[0] / value
            return image[None], (image * (1 / u[0] - slope / value))[None, None]
        return (u[0] + (z - value))[None], (1 - slope)[None, None]

    def _edge(self, u: float, gap: Real) -> Edge:
        """The edge at the critical point u, which ends the given gap."""
        if self.touching is not None and np.any(self.barriers == u):
            return self.touching
        touch = gap[0] == gap[1]
        # the place of a maximum is known to the root of the rounding error, that of a zero to the rounding error
        slack = (1e-6 if touch else 1e-12) * np.abs(self.barriers - u).min()
        pole = self.poles[np.abs(self.poles - u) <= slack]
        u = float(pole[0]) if len(pole) else u
        location = float(self.evaluate(np.array([u + 0j]))[0][0].real)
        if touch:
            return Edge.cusp(location, -1 / 3 if len(pole) else 1 / 3)
        if len(pole):
            return Edge.hard(location)
        return Edge.soft(location) if self.exact is None else Edge.exactly_soft(self.exact(Fraction(u)))

    def _gaps(self) -> Real:
        """Intervals of u on which the map increases, left to right; the outermost reach to infinity."""
        first, last = float(self.barriers[0, 0]), float(self.barriers[-1, 1])
        reach = 1.0 + float(np.abs(self.barriers).max())
        left = _rise(lambda v: self.slope(first - reach * np.exp(v)), -80.0, 80.0)
        right = _rise(lambda v: self.slope(last + reach * np.exp(v)), -80.0, 80.0)
        outer = (-np.inf, first - reach * np.exp(left) if left > -80 else first)
        return np.array([outer, *self._inner_gaps(), (last + reach * np.exp(right), np.inf)])

    def _inner_gaps(self) -> list[tuple[float, float]]:
        low, high = self.barriers[:-1, 1], self.barriers[1:, 0]
        # slope <= 1 - w1/(u-low)**2 - w2/(high-u)**2, whose maximum over u is 1 - (w1**(1/3) + w2**(1/3))**3/(high-low)**2
        pair = (np.cbrt(self.weights[:-1]) + np.cbrt(self.weights[1:])) ** 3
        possible = pair < (high - low) ** 2 * (1 + CUSP)
        candidates = (self._gap_between(a, b) for a, b in zip(low[possible], high[possible], strict=True))
        return [gap for gap in candidates if gap is not None]

    def _gap_between(self, low: float, high: float) -> tuple[float, float] | None:
        def place(v: float) -> float:
            width = (high - low) / (1 + np.exp(abs(v)))
            return float(low + width if v < 0 else high - width)

        top = minimize_scalar(lambda v: -self.slope(place(v)), bounds=(-36, 36), method="bounded", options={"xatol": 1e-9})
        if -top.fun < -CUSP:
            return None
        if -top.fun < CUSP:
            return place(top.x), place(top.x)
        ends = (_rise(lambda v: self.slope(place(v)), end, top.x) for end in (-36.0, 36.0))
        left, right = (place(v) for v in ends)
        return left, right


def _rise(function: Callable[[float], float], negative: float, positive: float) -> float:
    """Where a function turns positive on the way from ``negative`` to ``positive``; ``negative`` if it is so already there."""
    if function(negative) >= 0:
        return negative
    return float(brentq(function, negative, positive, xtol=1e-15, rtol=8 * EPS))


def sorted_barriers(
    support: tuple[tuple[float, float], ...], points: Real, weights: Real
) -> tuple[Real, Real]:
    """Intervals and weighted points as disjoint barriers in increasing order, with their weights."""
    intervals = np.array(support, dtype=float).reshape(-1, 2)
    ends = np.concatenate([intervals, np.stack([points, points], axis=1)])
    masses = np.concatenate([np.zeros(len(intervals)), weights])
    order = np.lexsort((-ends[:, 1], ends[:, 0]))
    ends, masses = ends[order], masses[order]
    # a point inside an interval, or at its end, is no barrier of its own
    reached = np.maximum.accumulate(ends[:, 1])
    first = np.append(True, ends[1:, 0] > reached[:-1])
    return ends[first], masses[first]
