"""Cauchy transforms of atoms and of panels: by sums over poles, by clusters from afar, exactly from nearby.

**Poles.** Atoms, and Gauss nodes that stand for panels at points away from them.

**Clusters.** From afar, neighbouring panels look like one panel of as many nodes. Panels along the line are joined two
by two, and the pairs again, up to the whole law. A cluster has the nodes of Chebyshev on its stretch of the line, with
the masses that integrate polynomials as its panels do: at a point outside the disc of :data:`APART` half lengths about
it, ``1/(z - t)`` is such a polynomial to rounding error. Each point then sees each part of the law in the largest
cluster that is far enough away: a number of nodes that grows like the logarithm of the number of panels.

**The near field** is exact however close the point is to the panel. The mass of a panel at ``x = location + direction *
length * s**order`` is ``scale * g(s) * s**weight ds``. With ``Z = direction (z - location)/length`` its Cauchy integral
is ``(direction * scale/length) J(Z)``, ``J = int g(s) s**weight/(Z - s**order) ds``. Partial fractions over the roots
of ``s**order = Z`` reduce J to integrals of a polynomial p over ``t - s``. Away from the panel Gauss's rule gives
those. Close to it they are ``p(t) log((t + 1)/(t - 1)) - q(t)`` with ``q(t) = int (p(t) - p(s))/(t - s) ds``, a
polynomial too, whose series is known once and for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev, legendre

from bulkedge.laws.engine.measure.panels import DEGREE, Panels, nodes_and_transform
from bulkedge.support.arrays import BoolArray, Complex, Index, Real

BLOCK = 100_000  # distances from points to nodes that are computed at once: as many as fit into fast memory
SQUARABLE = (1e-70, 1e70)  # distances whose fourth powers, and their inverses, are finite
NODES = 32  # nodes of a cluster, and of a panel
APART = 1.95
"""Half lengths from the middle of a cluster at which its Bernstein radius is 3.6, and ``3.6**-32`` is 1e-18."""
ClusterLevel = tuple[Real, Real, Real, Real]
"""Nodes, masses, centre and reach of the clusters of one level; see :class:`Clusters`."""
GAUSS = 32
"""Gauss nodes on a panel."""
NEAR = 2.3
"""Bernstein radius inside which the Gauss nodes no longer give the integral to 1e-16: ``2.3**-(2 * 32 - 20)``."""
TINY = 1e-150  # stands for a distance of zero
GAUSS_NODES, GAUSS_WEIGHTS = legendre.leggauss(GAUSS)


def pole_sums(z: Complex, locations: Real, weights: Real, hidden: tuple[Index, Index]) -> Complex:
    """G, G', psi and psi' (rows) of atoms, some of which are hidden from some of the points."""
    # in real arithmetic, several times as fast as complex division, where distances can be squared twice
    x, y = z.real[:, None], z.imag[:, None]
    along = x - locations
    if not y.any():
        inverse = np.reciprocal(along, out=along)
        inverse[hidden] = 0.0
        value = inverse @ weights + 0j
        slope = np.multiply(inverse, inverse, out=inverse) @ weights + 0j
        return np.stack([value[:, 0], -slope[:, 0], value[:, 1], -slope[:, 1]])
    along[hidden] = np.inf
    size = np.abs(along)
    if size.min(initial=1.0) + np.abs(y).min() < SQUARABLE[0] or np.abs(z).max() > SQUARABLE[1]:
        divided: Complex = np.asarray(1 / (along + 1j * y), dtype=complex)
        divided[hidden] = 0.0
        g, d_g = divided @ weights, (divided * divided) @ weights
        return np.stack([g[:, 0], -d_g[:, 0], g[:, 1], -d_g[:, 1]])
    # 1/(a + i y) = (a - i y)/(a**2 + y**2), and its square
    above = np.multiply(along, along, out=size)
    above += y * y
    np.reciprocal(above, out=above)
    along[hidden] = 0.0
    along *= above
    above *= y
    value = along @ weights - 1j * (above @ weights)
    slope = -2j * ((along * above) @ weights)
    along *= along
    along -= np.multiply(above, above, out=above)
    slope += along @ weights
    return np.stack([value[:, 0], -slope[:, 0], value[:, 1], -slope[:, 1]])


def atom_transforms(point: Complex, places: Real, weights: Real) -> Complex:
    """G, G', psi and psi' (rows) of atoms, at points of the closed upper half-plane, atoms included."""
    # at an atom G is infinite, G' minus infinity, and psi and psi' have the sign of its location (finite at zero)
    result: Complex = np.empty((4, len(point)), dtype=complex)
    following = np.minimum(np.searchsorted(places, point.real), len(places) - 1)
    (on,) = np.nonzero(places[following] == point)
    block = max(8, BLOCK // len(places))
    for first in range(0, len(point), block):
        here = on[(on >= first) & (on < first + block)]
        seen = point[first : first + block]
        result[:, first : first + block] = pole_sums(seen, places, weights, (here - first, following[here]))
    if len(on):
        at = places[following[on]]
        result[:2, on] = np.array([[np.inf], [-np.inf]])
        result[2:, on[at != 0]] = np.inf * np.sign(at[at != 0]) * np.array([[1.0], [-1.0]])
    return result


@dataclass(frozen=True)
class Clusters:
    """A binary tree of clusters, leaves first and level by level."""

    nodes: Real  # (c, NODES): where the nodes of each cluster are
    masses: Real  # (c, NODES): their masses; those of clusters above the leaves may be negative
    # centre, reach: (c,): discs outside of which a cluster stands for its leaves; of no meaning for the leaves
    # themselves
    centre: Real
    reach: Real
    levels: tuple[int, ...]  # number of clusters on each level, leaves first

    @classmethod
    def of(cls, nodes: Real, masses: Real, centre: Real, reach: Real) -> Clusters:
        """Join leaves, given in their order along the line."""
        parts = [(nodes, masses, centre, reach)]
        low, high = nodes.min(axis=1), nodes.max(axis=1)
        while len(parts[-1][0]) > 1:
            first = np.arange(0, len(low), 2)
            low, high = np.minimum.reduceat(low, first), np.maximum.reduceat(high, first)
            parts.append(_join(parts[-1], low, high))
        all_nodes, all_masses, centres, reaches = (np.concatenate(each) for each in zip(*parts, strict=True))
        return cls(all_nodes, all_masses, centres, reaches, tuple(len(part[0]) for part in parts))

    def transforms(self, z: Complex, hidden: tuple[Index, Index]) -> Complex:
        """G, G', psi and psi' (rows) of the nodes, without the leaves that are hidden from points."""
        point, cluster = np.nonzero(self._visible_clusters(z, hidden))
        nodes, masses, at = self.nodes[cluster], self.masses[cluster], z[point]
        inverse: Any = _inverse(at, nodes) if at.imag.any() else 1 / (at.real[:, None] - nodes)
        weighted = masses * inverse
        rows = [weighted.sum(axis=1), (nodes * weighted).sum(axis=1)]
        weighted *= inverse
        rows[1:1] = [-weighted.sum(axis=1)]
        rows.append(-(nodes * weighted).sum(axis=1))
        result = np.zeros((4, len(z)), dtype=complex)
        first = np.flatnonzero(np.diff(point, prepend=-1))
        if len(first):
            result[:, point[first]] = np.add.reduceat(np.stack(rows), first, axis=1)
        return result

    def _visible_clusters(self, z: Complex, hidden: tuple[Index, Index]) -> BoolArray:
        """Which clusters (columns) points (rows) see: the largest that are far enough away, and leaves elsewhere."""
        apart = z.real[:, None] - self.centre
        far = apart * apart + (z.imag * z.imag)[:, None] > self.reach**2
        far[:, : self.levels[0]] = True
        stop = far.shape[1]
        covered: BoolArray = np.zeros((len(z), 1), dtype=bool)
        for count in self.levels[::-1]:
            level = far[:, stop - count : stop]
            above = np.repeat(covered, 2, axis=1)[:, :count] if stop < far.shape[1] else covered
            # what a larger cluster stands for is not seen again
            covered = level | above
            level &= ~above
            stop -= count
        far[hidden] = False
        return far


def _join(part: ClusterLevel, low: Real, high: Real) -> ClusterLevel:
    """The clusters of a level joined two by two, given the ends of the stretches of the new ones."""
    nodes, masses, centre, reach = part
    count = len(low)
    if len(nodes) % 2:
        # the last one stays alone, beside one without mass
        nodes, masses = np.append(nodes, nodes[-1:], axis=0), np.append(masses, 0 * masses[-1:], axis=0)
        centre, reach = np.append(centre, centre[-1]), np.append(reach, reach[-1])
    t, transform = nodes_and_transform(NODES)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, np.finfo(float).tiny)
    place = np.clip((nodes.reshape(count, -1) - middle[:, None]) / half[:, None], -1.0, 1.0)
    # integrals of Chebyshev polynomials over the parts, and the masses at the nodes that give the same ones
    polynomials = np.cos(np.arccos(place)[:, :, None] * np.arange(NODES))
    moments = np.einsum("cj,cjm->cm", masses.reshape(count, -1), polynomials)
    beyond = np.abs(centre.reshape(count, 2) - middle[:, None]) + reach.reshape(count, 2)
    return (
        middle[:, None] + half[:, None] * t,
        moments @ transform,
        middle,
        np.maximum(APART * half, beyond.max(axis=1)),
    )


def _inverse(z: Complex, nodes: Real) -> Complex:
    """``1/(z - nodes)`` for a row of nodes for each point, in real arithmetic, which is faster than division."""
    along = z.real[:, None] - nodes
    size = along * along + (z.imag * z.imag)[:, None]
    result = np.empty(along.shape, dtype=complex)
    np.divide(along, size, out=result.real)
    np.divide(-z.imag[:, None], size, out=result.imag)
    return result


@dataclass(frozen=True)
class NearField:
    """Cauchy integrals of panels (an entry or row each) at close points; :meth:`of` keeps what no point changes."""

    panels: Panels  # p of them
    ends: Real  # (p,): points of the line at which they stop
    # centre, reach: (p,): discs of the plane outside of which Gauss's rule is good for the panel
    centre: Real
    reach: Real
    # (p,): where the stretch of s that is integrated over begins: at the start of the panel, or at ``-stop`` where g is
    # even about its edge, so that the roots +-s together make one integral. It ends at ``stop``
    low: Real
    roots: Index  # (p,): number of roots of ``s**order = Z`` to sum over
    series: Real  # (p, 4, DEGREE): Chebyshev coefficients of p, p', q and q' on that stretch (:func:`_matrices`)
    gauss: Real  # (p, GAUSS): the values of g at Gauss nodes of the stretch, times the weights
    # weight, lowered: (p,): remainder and quotient of the panel's weight by its order
    weight: Index
    lowered: Index
    totals: Real  # (p, most lowered): ``int g(s) s**(weight + k order) ds``

    @classmethod
    def of(cls, panels: Panels) -> NearField:
        """Prepare the panels."""
        lowered, weight = np.divmod(panels.weight, panels.order)
        s = panels.sites(GAUSS_NODES)
        mass = panels.g(s) * GAUSS_WEIGHTS * ((panels.stop - panels.start) / 2)[:, None]
        steps = range(int(lowered.max(initial=0)))
        totals = [(mass * s ** (weight + step * panels.order)[:, None]).sum(axis=1) for step in steps]
        even = panels.symmetric
        variable = np.where(even[:, None], 2 * GAUSS_NODES**2 - 1, GAUSS_NODES)
        g = np.asarray(chebyshev.chebval(variable, panels.coefficients.T[:, :, None], tensor=False))
        plain, folded = (np.einsum("pk,fkj->pfj", panels.coefficients, each) for each in _matrices())
        centre, reach = _discs(panels)
        return cls(
            panels=panels,
            ends=panels.ends()[1],
            centre=centre,
            reach=reach,
            low=np.where(even, -panels.stop, panels.start),
            roots=np.where(even, 1, panels.order),
            series=np.where(even[:, None, None], folded, plain),
            gauss=g * GAUSS_WEIGHTS,
            weight=weight,
            lowered=lowered,
            totals=np.stack(totals, axis=1) if totals else np.zeros((len(panels), 0)),
        )

    def pairs(self, z: Complex) -> tuple[Index, Index]:
        """Which points of the closed upper half-plane are too close to which panels for Gauss's rule."""
        apart = z.real[:, None] - self.centre
        point, panel = np.nonzero(apart * apart + (z.imag * z.imag)[:, None] <= self.reach**2)
        panels = self.panels
        start, stop = panels.start[panel], panels.stop[panel]
        root = _principal_root(self._to_edge(panel, z[point]), panels.order[panel])
        even = panels.even[panel] & (start == 0)
        close = _bernstein(np.where(even, root / stop, (2 * root - start - stop) / (stop - start))) < NEAR
        return point[close], panel[close]

    def at(self, panel: Index, z: Complex) -> tuple[Complex, Complex]:
        """Cauchy integrals of panels, each at a point of its own, and their derivatives."""
        panels = self.panels
        direction, length = panels.direction[panel], panels.length[panel]
        local, to_stop = self._to_edge(panel, z), _offset(z, self.ends[panel], direction, length)
        value, slope = self._integral(panel, local, to_stop)
        factor = direction * panels.scale[panel] / length
        value, slope = factor * value, factor * slope * direction / length
        left = direction > 0
        return np.where(left, value, np.conj(value)), np.where(left, slope, np.conj(slope))

    def _to_edge(self, panel: Index, z: Complex) -> Complex:
        """Z in the closed upper half-plane, conjugated at right edges; from outside, measured from its location."""
        panels = self.panels
        location, direction = panels.location[panel], panels.direction[panel]
        offset = ((z - location) - panels.remainder[panel]) * direction / panels.length[panel]
        offset = np.where((z == location) | (offset == 0), -TINY, offset)
        return np.where(direction > 0, offset, np.conj(offset)) + 0j

    def _integral(self, panel: Index, local: Complex, to_stop: Complex) -> tuple[Complex, Complex]:
        """J and dJ/dZ, given Z and its offset from the far end of each panel."""
        # weights of the order or more are lowered by s**order/(Z - s**order) = Z/(Z - s**order) - 1: nothing cancels
        order, weight, count = self.panels.order[panel], self.weight[panel], self.roots[panel]
        principal = _principal_root(local, order)
        # one entry for each root of each pair: most calls are for few points, and their cost is that of the calls
        first = np.cumsum(count) - count
        pair = np.repeat(np.arange(len(panel)), count)
        turn = (np.arange(len(pair)) - first[pair]) / order[pair]
        root = principal[pair] * np.where(turn == 0.5, -1.0, np.exp(2j * np.pi * turn))
        each = panel[pair]
        up, down = root - self.low[each], root - self.panels.stop[each]
        # the principal root may be close to an end of the panel. The two panels that meet there must take the same
        # distance from it, so that their logarithms cancel. In the middle of an interval, where they belong to
        # different edges, that is the distance along the line; elsewhere the line may be too coarse for it
        up[first], down[first] = (
            np.where(up[first] == 0, TINY, up[first]),
            np.where(down[first] == 0, TINY, down[first]),
        )
        (middle,) = np.nonzero(self.panels.stop[panel] == 1)
        down[first[middle]] = to_stop[middle] / _geometric(principal[middle], order[middle])
        cauchy, d_cauchy = self._over_stretch(each, up, down)
        power = weight + 1 - order
        factor = root ** power[pair] / order[pair]
        value = np.add.reduceat(factor * cauchy, first)
        slope = (power * value + np.add.reduceat(factor * d_cauchy * root, first)) / (order * local)
        lowered = self.lowered[panel]
        for step in range(int(lowered.max(initial=0))):
            lifted, lifted_slope = local * value - self.totals[panel, step], value + local * slope
            value, slope = np.where(lowered > step, lifted, value), np.where(lowered > step, lifted_slope, slope)
        return value, slope

    def _over_stretch(self, panel: Index, up: Complex, down: Complex) -> tuple[Complex, Complex]:
        """``int g(s)/(root - s) ds`` over stretches and its slope; roots are ``up`` and ``down`` beyond the ends."""
        # rounding of p and q grows like |t + sqrt(t**2 - 1)|**k in the k-th coefficient, which its decay outweighs
        width = self.panels.stop[panel] - self.low[panel]
        t = (up + down) / width
        value, slope = np.empty_like(t), np.empty_like(t)
        near = _bernstein(t) < NEAR
        at, up, down, numbers = t[near], up[near], down[near], panel[near]
        log, log_slope = np.log(up) - np.log(down), (1 / up - 1 / down) * (width[near] / 2)
        folded = self.roots[numbers] < self.panels.order[numbers]
        odd = np.where(folded, at, 1.0)
        p, dp, q, dq = _sums(self.series[numbers], np.where(folded, 2 * at * at - 1, at))
        value[near], slope[near] = p * log - odd * q, p * log_slope + odd * dp * log - dq
        if len(at) < len(t):
            inverse = 1 / (t[~near, None] - GAUSS_NODES)
            weighted = self.gauss[panel[~near]] * inverse
            value[~near], slope[~near] = weighted.sum(axis=1), -(weighted * inverse).sum(axis=1)
        return value, slope * (2 / width)


@cache
def _matrices() -> tuple[Real, Real]:
    """Matrices from the coefficients of p to those of p, p', q and q', each ``(4, DEGREE, DEGREE)``."""
    # first for p = sum c_k T_k(t), with q_{k+1} = 2t q_k - q_{k-1} + 2 int T_k; then for p = sum c_k T_k(2 t**2 - 1),
    # where p' and q are t times their series. Triangular, so small high coefficients keep their accuracy
    size = 2 * DEGREE
    q = np.zeros((size, size))
    q[1, 0] = 2.0
    for k in range(1, size - 1):
        # 2t T_j is the sum of T_{j+1} and T_{|j-1|}
        q[k + 1, 1:] += q[k, :-1]
        q[k + 1, 1] += q[k, 0]
        q[k + 1, :-1] += q[k, 1:]
        q[k + 1] -= q[k - 1]
        q[k + 1, 0] += 4 / (1 - k * k) if k % 2 == 0 else 0.0

    def slope(matrix: Real) -> Real:
        return np.pad(chebyshev.chebder(matrix, axis=1), ((0, 0), (0, 1)))

    one, q_plain = np.eye(DEGREE), q[:DEGREE, :DEGREE]
    # t T_j(2 t**2 - 1) is half the sum of T_{2j+1} and T_{2j-1}: back substitution from the highest degree
    odd, q_even = q[::2, 1::2], np.zeros((DEGREE, DEGREE))
    for j in range(DEGREE - 1, 0, -1):
        q_even[:, j] = 2 * odd[:, j] - (q_even[:, j + 1] if j + 1 < DEGREE else 0.0)
    q_even[:, 0] = odd[:, 0] - q_even[:, 1] / 2
    plain = np.stack([one, slope(one), q_plain, slope(q_plain)])
    return plain, np.stack([one, 4 * slope(one), q_even, slope(q)[::2, ::2]])


def _sums(series: Real, t: Complex) -> Complex:
    """Chebyshev series ``(k, f, DEGREE)``, f of them at each of k points of the plane, as ``(f, k)``."""
    outer = t + np.sqrt(t - 1) * np.sqrt(t + 1)
    powers = np.ones((len(t), DEGREE), dtype=complex)
    powers[:, 1:] = outer[:, None]
    np.multiply.accumulate(powers, axis=1, out=powers)
    polynomials = (powers + 1 / powers) / 2
    # real matrices times pairs of real numbers, one product for each point
    both = series @ polynomials.view(float).reshape(len(t), DEGREE, 2)
    return np.ascontiguousarray(both).view(complex)[:, :, 0].T


def _discs(panels: Panels) -> tuple[Real, Real]:
    """Centres and radii of discs that contain every point closer to a panel than :data:`NEAR`, in its own variable."""
    # powers of s stretch the ellipse around the panel most at its right end; the radius is a tenth more
    end = (NEAR + 1 / NEAR) / 2
    start, stop, order = panels.start, panels.stop, panels.order
    s = np.where(panels.symmetric, stop * end, (start + stop + (stop - start) * end) / 2)
    middle = (start**order + stop**order) / 2
    reach = 1.1 * (s**order - middle)
    return panels.location + panels.remainder + panels.direction * panels.length * middle, panels.length * reach


def _offset(z: Complex, place: Real, direction: Real, length: Real) -> Complex:
    """``direction (z - place)/length``, conjugated at right edges so that it stays in the closed upper half-plane."""
    apart = z - place
    offset = np.where(apart == 0, TINY, apart) * (direction / length)
    # a point of the line is approached from above: its imaginary part is zero, not minus zero
    return np.where(direction > 0, offset, np.conj(offset)) + 0j


def _principal_root(base: Complex, order: Index) -> Complex:
    """Principal roots, without the slow general power for the usual orders."""
    root = np.where(order == 1, base, np.sqrt(base))
    (rest,) = np.nonzero(order > 2)
    if len(rest):
        root[rest] = base[rest] ** (1 / order[rest])
    return root


def _geometric(root: Complex, order: Index) -> Complex:
    """``(root**order - 1)/(root - 1)``."""
    total, power = np.ones_like(root), root.copy()
    for k in range(1, int(order.max(initial=1))):
        total = total + np.where(order > k, power, 0.0)
        power = power * root
    return total


def _bernstein(t: Complex) -> Real:
    """Sum of the semi-axes of the ellipse with foci -1, 1 through t."""
    root = np.sqrt(t - 1) * np.sqrt(t + 1)
    return np.asarray(np.maximum(np.abs(t + root), np.abs(t - root)))


def root_mean_square(z: Complex, g: Complex, g_slope: Complex) -> Real:
    """``sqrt(int 1/|z - t|**2)``: bounds the size of the terms that make up G, and so its rounding error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.where(z.imag == 0, np.abs(g_slope), np.abs(g.imag / z.imag)))
