"""Mixtures: the spectrum of a matrix of blocks beside each other is the union of theirs.

>>> from bulkedge.laws.classical.product import MarchenkoPastur
>>> law = MixtureLaw((MarchenkoPastur(0.5), MarchenkoPastur(0.5).scaled(10.0)), (0.75, 0.25))
>>> round(law.mean(), 10), len(law.support)
(3.25, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bulkedge.laws.classical.images import merge_atoms
from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import Real


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
