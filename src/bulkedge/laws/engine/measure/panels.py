"""Densities between edges as Chebyshev polynomials on panels.

Each half of each support interval belongs to its edge: with ``delta`` the distance to it and ``length`` half the
interval, the density is ``delta**exponent * g(s)``, ``s = (delta/length)**(1/order)``. :func:`fit` samples ``g`` on
panels of ``s`` and halves those that have not converged, so any structure, at any scale, costs a number of panels
proportional to the logarithm of the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from bulkedge.laws.engine.measure.edges import Interval
from bulkedge.support.arrays import EPS, Index, Mask, Real
from bulkedge.support.errors import UnresolvedError

DEGREE = 20
"""Chebyshev coefficients of ``g`` on a panel."""
TOLERANCE = 1e-13
"""A panel has converged when its last three coefficients are below this fraction of its largest one."""
NEGLIGIBLE = 1e-17
"""A panel with less mass than this counts as converged: it does not change any integral."""
MOST_HALVINGS = 400
MOST_PANELS = 1000
MOST_SAMPLED = 3000
"""Panels that may be sampled in all, halved ones included, before the density counts as unresolved."""

REMEDY = "move the parameters a little, or replace a law by EmpiricalLaw(law.ppf((arange(n) + 0.5)/n)), n about 100"
"""What to do about a free convolution that is refused, for whatever reason."""

Density = Callable[[Real], tuple[Real, Real]]
"""Maps points strictly inside the support to the density there and a bound on its rounding error."""


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
    """Panels of the variable ``s`` of the module; every attribute has one entry, or one row, for each panel.

    Attributes
    ----------
    location, remainder, order, exponent, weight, even
        The edge that the panel belongs to: see :class:`~bulkedge.laws.engine.measure.edges.Edge`.
    direction : array
        One for a left edge, minus one for a right one: x is ``location + direction * length * s**order``.
    length, middle : arrays
        Half the length of the support interval, and its middle, where ``s = 1``.
    start, stop : arrays
        The panel's ends in s.
    coefficients : array of shape (panels, DEGREE)
        Chebyshev coefficients of g.
    """

    location: Real
    remainder: Real
    direction: Real
    length: Real
    middle: Real
    order: NDArray[np.int64]
    exponent: Real
    weight: NDArray[np.int64]
    even: Mask
    start: Real
    stop: Real
    coefficients: Real

    @classmethod
    def halves(cls, intervals: Sequence[Interval]) -> Panels:
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

    def take(self, index: Index | Mask) -> Panels:
        """The panels with the given numbers, or those where the mask is true."""
        return Panels(*(getattr(self, each.name)[index] for each in fields(self)))

    def replaced(self, **columns: Any) -> Panels:
        """The same panels with some columns exchanged."""
        return Panels(**(vars(self) | columns))

    @property
    def symmetric(self) -> Mask:
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


def fit(intervals: Sequence[Interval], density: Density) -> Panels:
    """Represent a density between known edges, on panels that are halved until they converge."""
    pending, done, sampled = Panels.halves(intervals), [], 0
    limit = MOST_PANELS + 100 * len(pending)
    before = np.full(len(pending), np.inf)
    for _ in range(MOST_HALVINGS):
        fitted, tail, rounding = _sampled(pending, density)
        sampled += len(pending)
        # where rounding explains the tail, halve until that no longer shrinks it: a half may be free of the rounding
        converged = (tail <= TOLERANCE) | ((tail <= rounding) & (tail >= before / 8)) | (fitted.mass_bound < NEGLIGIBLE)
        done.append(fitted.take(converged))
        if converged.all():
            return Panels.stack(done)
        coarse, before = fitted.take(~converged), np.tile(tail[~converged], 2)
        middle = (coarse.start + coarse.stop) / 2
        pending = Panels.stack([coarse.replaced(stop=middle), coarse.replaced(start=middle)])
        if len(pending) > limit or sampled > MOST_SAMPLED + limit:
            break
    where = pending.position(pending.sites(np.zeros(1)))[:3, 0]
    raise UnresolvedDensityError(
        f"the density is not resolved near x = {where}: {len(pending)} panels do not converge. It may be singular "
        "there in a way that its edges do not tell of: move the parameters a little"
    )


def _sampled(panels: Panels, density: Density) -> tuple[Panels, Real, Real]:
    """Sample the density on every panel; return the fitted panels, the size of their last coefficients and of rounding.

    Both sizes are relative to the largest coefficient.
    """
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
