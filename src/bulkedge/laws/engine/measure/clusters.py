"""Cauchy transforms of many nodes by clusters: from afar, neighbouring panels look like one panel of as many nodes.

Panels along the line are joined two by two, and the pairs again, up to the whole law. A cluster has the nodes of
Chebyshev on its stretch of the line, with the masses that integrate polynomials as its panels do: at a point outside
the disc of :data:`APART` half lengths about it, ``1/(z - t)`` is such a polynomial to rounding error. Each point then
sees each part of the law in the largest cluster that is far enough away: a number of nodes that grows like the
logarithm of the number of panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bulkedge.laws.engine.measure.panels import nodes_and_transform
from bulkedge.support.arrays import Complex, Index, Mask, Real

NODES = 32
"""Nodes of a cluster, and of a panel."""
APART = 1.95
"""Half lengths from the middle of a cluster at which its Bernstein radius is 3.6, and ``3.6**-32`` is 1e-18."""


Part = tuple[Real, Real, Real, Real]
"""Nodes, masses, centre and reach of the clusters of one level; see :class:`Clusters`."""


@dataclass(frozen=True)
class Clusters:
    """A binary tree of clusters, leaves first and level by level.

    Attributes
    ----------
    nodes : array of shape (c, NODES)
        Where the nodes of each cluster are.
    masses : array of shape (c, NODES)
        Their masses; those of clusters above the leaves may be negative.
    centre, reach : arrays of shape (c,)
        Discs outside of which a cluster stands for its leaves; of no meaning for the leaves themselves.
    levels : tuple of int
        Number of clusters on each level, leaves first.
    """

    nodes: Real
    masses: Real
    centre: Real
    reach: Real
    levels: tuple[int, ...]

    @classmethod
    def of(cls, nodes: Real, masses: Real, centre: Real, reach: Real) -> Clusters:
        """Join leaves, given in their order along the line."""
        parts = [(nodes, masses, centre, reach)]
        low, high = nodes.min(axis=1), nodes.max(axis=1)
        while len(parts[-1][0]) > 1:
            first = np.arange(0, len(low), 2)
            low, high = np.minimum.reduceat(low, first), np.maximum.reduceat(high, first)
            parts.append(_joined(parts[-1], low, high))
        all_nodes, all_masses, centres, reaches = (np.concatenate(each) for each in zip(*parts, strict=True))
        return cls(all_nodes, all_masses, centres, reaches, tuple(len(part[0]) for part in parts))

    def transforms(self, z: Complex, hidden: tuple[Index, Index]) -> Complex:
        """G, G', psi and psi' (rows) of the nodes, without the leaves that are hidden from points."""
        point, cluster = np.nonzero(self._seen(z, hidden))
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

    def _seen(self, z: Complex, hidden: tuple[Index, Index]) -> Mask:
        """Which clusters (columns) points (rows) see: the largest that are far enough away, and leaves elsewhere."""
        apart = z.real[:, None] - self.centre
        far = apart * apart + (z.imag * z.imag)[:, None] > self.reach**2
        far[:, : self.levels[0]] = True
        stop = far.shape[1]
        covered: Mask = np.zeros((len(z), 1), dtype=bool)
        for count in self.levels[::-1]:
            level = far[:, stop - count : stop]
            above = np.repeat(covered, 2, axis=1)[:, :count] if stop < far.shape[1] else covered
            # what a larger cluster stands for is not seen again
            covered = level | above
            level &= ~above
            stop -= count
        far[hidden] = False
        return far


def _joined(part: Part, low: Real, high: Real) -> Part:
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
