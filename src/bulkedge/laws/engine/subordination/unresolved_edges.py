"""Stretches between an edge and the bulk next to it, too short to resolve and too light to count."""

from __future__ import annotations

import numpy as np

from bulkedge.laws.engine.measure.panels import Density
from bulkedge.laws.engine.subordination.curve import Curve
from bulkedge.laws.engine.subordination.moment_check import SMALLEST_MASS
from bulkedge.laws.engine.subordination.support import Sliver, Survey
from bulkedge.support.arrays import Real

LONGEST = 200
"""Quadruplings of the distance from an edge at which the density is looked for."""
TOGETHER = 8
"""How many of them are looked at together."""


def bridged(survey: Survey, curve: Curve, x: Real, ends: list[tuple[float, float]]) -> bool:
    """Leave out the stretches between edges and points next to them at which nothing can be proved.

    Next to a hard edge at zero, or where a density starts more slowly than a square root, the height of the variables
    is lost in rounding. If the law has less mass than counts from there to the edge, the power of the distance with
    which the density starts stands for it.
    """
    zero = survey.operation.edge_at_zero()
    places = np.unique(np.append(np.ravel(ends), [] if zero is None else 0.0))
    for place in x.tolist():
        edge = float(places[np.argmin(np.abs(places - place))])
        exponent = zero.exponent if zero is not None and edge == 0 else 0.5
        beyond = [abs(each - edge) for each in places.tolist() if (each - edge) * (place - edge) > 0]
        trials = edge + (place - edge) * 4.0 ** np.arange(1, LONGEST)
        trials = trials[np.abs(trials - edge) < min(beyond, default=0.0) / 4]
        point = _first_light(curve, edge, trials, (1 + exponent) * SMALLEST_MASS)
        if point is None:
            return False
        survey.bridges.append((edge, point, exponent))
    return len(x) > 0


def _first_light(curve: Curve, edge: float, trials: Real, most: float) -> float | None:
    """The first of the points that is in the bulk, if density times distance from the edge is at most so much there."""
    for few in np.split(trials, range(TOGETHER, len(trials), TOGETHER)):
        density = curve.nearby(few)
        inside = np.isfinite(density)
        if inside.any():
            first = int(np.argmax(inside))
            return float(few[first]) if abs(few[first] - edge) * density[first] <= most else None
    return None


def ending(density: Density, slivers: list[Sliver]) -> Density:
    """The same density, continued as a power of the distance between a known point of the bulk and its edge."""

    def continued(x: Real) -> tuple[Real, Real]:
        inner, factor = x.copy(), np.ones(len(x))
        for edge, point, exponent in slivers:
            between = (x - edge) * (x - point) <= 0
            inner[between], factor[between] = point, ((x[between] - edge) / (point - edge)) ** exponent
        value, error = density(inner)
        return factor * value, factor * error

    return continued if slivers else density
