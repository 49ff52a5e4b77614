"""Islands far from zero in coordinates of their own, where numbers are as fine as the island needs.

The free sum of atoms and a narrow law has islands beside the atoms. The edges of an island, and most of its mass, may
be closer to the atom than a few rounding errors of its location. But sums commute with shifts: the law of the distance
from the atom is the sum with all atoms moved, and next to zero numbers are dense.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bulkedge.laws.engine.measure.edges import Edge, Interval
from bulkedge.laws.engine.measure.panels import BesideEdges, Density
from bulkedge.laws.engine.subordination.inversion import Inversion
from bulkedge.laws.engine.subordination.problem import Moments, Problem
from bulkedge.laws.engine.subordination.support import Survey
from bulkedge.support.arrays import Complex, Mask, Real

Bulk = tuple[list[Interval], Density]


@dataclass(frozen=True)
class Zone(Problem):
    """A part of the line between two gaps, of a law that is seen at every scale next to zero.

    Attributes
    ----------
    problem : Problem
        The law.
    low, high : float
        Points in gaps, below and above zero.
    """

    problem: Problem
    low: float
    high: float

    @property
    def size(self) -> int:
        """That of the law."""
        return self.problem.size

    @property
    def graded(self) -> bool:
        """That is what it is for."""
        return True

    @property
    def smallest(self) -> float:
        """Distances from zero, in units of the zone, below which nothing is looked for."""
        return 1e-22

    @property
    def margin(self) -> float:
        """The bounds are in gaps already."""
        return 0.0

    def moments(self) -> Moments | None:
        """Those of the whole law."""
        return self.problem.moments()

    @property
    def light_islands(self) -> bool:
        """As for the law."""
        return self.problem.light_islands

    def inversion(self) -> Inversion | None:
        """As for the law."""
        return self.problem.inversion()

    def bounds(self) -> tuple[float, float]:
        """The two points."""
        return self.low, self.high

    def far(self, z: Complex) -> Complex:
        """As for the law."""
        return self.problem.far(z)

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """As for the law."""
        return self.problem.step(u, z)

    def work(self, points: int) -> float:
        """As for the law."""
        return self.problem.work(points)

    def cauchy(self, u: Complex, x: Real) -> Complex:
        """As for the law."""
        return self.problem.cauchy(u, x)

    def count(self, u: Real, x: Real) -> Real:
        """As for the law."""
        return self.problem.count(u, x)

    def edge_at_zero(self) -> Edge | None:
        """As for the law."""
        return self.problem.edge_at_zero()


@dataclass(frozen=True)
class Chart:
    """The bulk of a part of the line, in terms of the distance from a place.

    Attributes
    ----------
    centre : Fraction
        The place.
    low, high : float
        The part, in terms of points of the line.
    bulk : tuple
        Edges and density, in terms of the distance.
    """

    centre: Fraction
    low: float
    high: float
    bulk: Bulk

    def holds(self, pair: Interval) -> bool:
        """Whether an interval lies in the part."""
        # where an edge was not found, the point in the gap next to it stands for it, which may be the end of the part
        return self.low <= pair[0].location and pair[1].location <= self.high

    def intervals(self) -> list[Interval]:
        """The intervals in terms of points of the line, with what their rounding leaves out."""
        return [
            (left.moved(self.centre + left.exact), right.moved(self.centre + right.exact))
            for left, right in self.bulk[0]
        ]


def doubtful(survey: Survey, missed: Mask) -> list[tuple[float, float]]:
    """Stretches between points in gaps that hold mass which was not found."""
    low, high = survey.runs()
    hidden = np.flatnonzero(survey.hidden)
    first, last = np.append(low[missed], hidden), np.append(high[missed], hidden + 1)
    return list(zip(survey.x[first].tolist(), survey.x[last].tolist(), strict=True))


def about(survey: Survey, x: Real) -> Mask:
    """Which of the intervals that the survey found some of the points are in, or next to."""
    low, high = survey.runs()
    return np.asarray(np.any((x >= survey.x[low][:, None]) & (x <= survey.x[high][:, None]), axis=1))


def surroundings(survey: Survey, stretch: tuple[float, float], place: float) -> tuple[float, float]:
    """Points in gaps between which a place and a stretch lie, as close to them as points are known."""
    gaps = survey.x[~survey.inside & np.isfinite(survey.state[0])]
    before = np.searchsorted(gaps, min(place, stretch[0]), side="left") - (place <= stretch[0])
    after = np.searchsorted(gaps, max(place, stretch[1]), side="left") + (place == stretch[1])
    return float(gaps[max(before, 0)]), float(gaps[min(after, len(gaps) - 1)])


def overlaid(intervals: list[Interval], density: Density, charts: list[Chart]) -> Bulk:
    """A bulk of which some parts are replaced by what is known of them from nearby."""
    kept = [pair for pair in intervals if not any(chart.holds(pair) for chart in charts)]
    known = _places(charts)

    def at(x: Real) -> tuple[Real, Real]:
        value, error, rest = np.zeros(len(x)), np.zeros(len(x)), np.ones(len(x), dtype=bool)
        for chart in charts:
            within = (x > chart.low) & (x < chart.high)
            rest &= ~within
            if within.any():
                value[within], error[within] = chart.bulk[1](x[within] - float(chart.centre))
        if rest.any():
            value[rest], error[rest] = density(x[rest])
        return value, error

    def beside(location: Real, direction: Real, distance: Real) -> tuple[Real, Real, Mask]:
        value, error, exact = np.zeros(len(location)), np.zeros(len(location)), np.zeros(len(location), dtype=bool)
        for (place, side), (chart, here) in known.items():
            chosen = (location == place) & (direction == side)
            exact |= chosen
            if chosen.any():
                value[chosen], error[chosen] = chart.bulk[1](here + side * distance[chosen])
        if not exact.all():
            value[~exact], error[~exact] = density((location + direction * distance)[~exact])
        return value, error, exact

    everything = kept + [pair for chart in charts for pair in chart.intervals()]
    return sorted(everything, key=lambda pair: pair[0].exact), BesideEdges(at, beside)


def _places(charts: list[Chart]) -> dict[tuple[float, float], tuple[Chart, float]]:
    """Where each edge is in its chart, by its location and the direction from it into its interval."""
    return {
        (edge.location, direction): (chart, here.location)
        for chart in charts
        for local, pair in zip(chart.bulk[0], chart.intervals(), strict=True)
        for here, edge, direction in zip(local, pair, (1.0, -1.0), strict=True)
    }
