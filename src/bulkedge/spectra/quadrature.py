"""The distribution of singular values that a run of Golub-Kahan steps knows: quadrature, and its error.

The first block V_1 of a run is a random orthonormal frame of p probes. Its spectral measure, the mean over probes of
``sum_i (u_i . v)**2 delta(s_i)``, has the spectrum of the matrix as its mean, and s block steps know its integrals of
polynomials in the squared value up to degree 2s - 1. Three things make a distribution function of that:

* **Locking.** Large values that have converged are known one by one: each has the weight 1/n, not the random weight the
  probes give it, and the rest of every probe is a probe of the rest of the matrix. A Ritz space counts as converged if
  the angle to the true space, at most residual over gap (Davis and Kahan 1970), is small.
* **One Gauss rule** for the rest, from the many nodes of the run, with the same integrals. k values that have converged
  have taken k of the p s directions, so that ``s - k/p`` steps are left for the rest, and its rule has so many nodes:
  with s of them it would be that of the many nodes, which are not the spectrum. The distribution function passes
  through each of its steps, and a monotone curve through the places where it does is far better than the steps
  themselves (:mod:`bulkedge.spectra.curves`). A node that has converged to a point mass keeps its step.
* **An honest error.** The squared coordinates of a random frame have a known law, whatever the matrix: sums of m of
  them are Gamma numbers of shape p m/2 over their total. So the sampling error can be simulated: the estimated
  distribution is taken as the truth, weights are drawn, and the same two steps applied to them. A rule of m nodes knows
  integrals up to degree 2m - 1, whose covariances are integrals of degree 4m - 2: 2m atoms stand for all values. What
  such draws do not know, features that no polynomial of that degree sees, shows as a difference between the run and its
  first steps, which is added to the draws place by place, and close to zero as
  :meth:`~bulkedge.spectra.curves.Density.doubt` says.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from bulkedge.spectra.curves import Density, bottom_of, refined
from bulkedge.spectra.krylov import Projection
from bulkedge.spectra.ritz import converged, ritz
from bulkedge.spectra.rules import gauss, monotone
from bulkedge.support.arrays import Real

OWN_CURVES = 1.1
"""Error of a curve that is held against its own rule, over that of one with the steps of another: 1.04 to 1.21."""
BETWEEN = 4
"""Places between two nodes at which curves are compared."""
BESIDE = 1e-6
"""Distance of point masses, relative to the largest value, up to which they are one."""


def density(projection: Projection, size: int) -> Density:
    """The distribution that a run knows."""
    values, weights, residuals = ritz(projection)
    if projection.exhausted and len(values) >= size:
        return Density(np.sort(values)[-size:], np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool), 0.0, size)
    locked = converged(values, weights, residuals, size, projection.noise)
    rest = weights[locked:] / np.maximum(weights[locked:].sum(axis=0), 1e-300)
    remaining = values[locked:]
    if projection.exhausted:  # the measure of the probes itself is known
        order = np.argsort(remaining)
        rule = _merged(remaining[order], rest.mean(axis=1)[order], np.ones(len(order), dtype=bool))
    else:
        # values that have converged have taken a direction of the run each: for the rest so many steps are left
        steps = min(projection.steps, -(-len(remaining) // projection.probes))
        nodes, masses, points = gauss(remaining[None], rest.mean(axis=1)[None], steps)
        rule = _merged(nodes[0], masses[0], points[0])
    found = Density(np.sort(values[:locked]), *rule, float(remaining.max(initial=0.0)), size)
    return found if found.points.all() else refined(found)


def _merged(nodes: Real, weights: Real, points: Any) -> tuple[Real, Real, Any]:
    """One node for point masses that rounding has put beside each other, each at the place of the heaviest."""
    close = np.diff(nodes) <= BESIDE * nodes[-1]
    group = np.append(0, np.cumsum(~(close & points[:-1] & points[1:])))
    heaviest = [np.flatnonzero(group == each)[np.argmax(weights[group == each])] for each in range(group[-1] + 1)]
    return nodes[heaviest], np.bincount(group, weights).astype(float), points[heaviest]


def simulated_deviations(
    found: Density, probes: int, steps: int, draws: int, rng: np.random.Generator
) -> tuple[Real, Real]:
    """By how much, and where, distribution functions of frames of random probes would differ from the estimated one."""
    remaining = found.size - len(found.locked)
    if remaining <= probes or not len(found.nodes):
        return np.zeros(0), np.zeros((draws, 0))
    rest = replace(found, locked=np.zeros(0), size=remaining)
    values, shares = found.nodes, found.weights
    if not found.points.all():
        # rules of s nodes know integrals up to degree 2s - 1, whose covariances are integrals of degree 4s - 2
        points, masses = rest.atoms()
        values, shares, _ = (each[0] for each in gauss(points[None], masses[None], 2 * len(found.nodes)))
    # a frame of as many probes as dimensions knows the trace exactly
    shape = shares * remaining * probes / 2 / (1 - probes / remaining)
    weights = rng.gamma(np.broadcast_to(shape, (draws, len(shape))))
    weights /= weights.sum(axis=1, keepdims=True)
    if found.points.all():
        return values, found.rest * np.cumsum(weights - shares, axis=1)
    places, deviations = _deviations(rest, *gauss(values[None], weights, min(steps, len(found.nodes))))
    return places, OWN_CURVES * found.rest * deviations


def _deviations(truth: Density, nodes: list[Real], weights: list[Real], points: list[Any]) -> tuple[Real, Real]:
    """Distribution functions that are made of Gauss rules as one was made of its own, less that one, and where."""
    knots = np.concatenate([[truth.bottom], truth.nodes, [truth.top]])
    places = np.concatenate([np.linspace(*each, BETWEEN, endpoint=False) for each in pairwise(knots)])
    # point masses are compared on either side
    jumps, aside = truth.nodes[truth.points], 1e-5 * truth.top
    places = np.concatenate([places, jumps - aside, jumps + aside])
    exact, count = truth.cdf(places), len(truth.nodes)
    passed = np.full(count, 0.5) if truth.passed is None else truth.passed
    bottoms = [bottom_of(*each) for each in zip(nodes, points, strict=True)]
    if any(len(each) < count or which.any() for each, which in zip(nodes, points, strict=True)):
        made = [
            replace(truth, nodes=x, weights=w, points=p, passed=passed if len(x) == count else None, bottom=low)
            for x, w, p, low in zip(nodes, weights, points, bottoms, strict=True)
        ]
        return places, np.array([each.cdf(places) - exact for each in made])
    masses, low = np.array(weights), np.array(bottoms)[:, None]
    levels = np.cumsum(masses, axis=1) - masses * (1 - passed)
    at = np.concatenate([low, nodes, np.maximum(np.array(nodes)[:, -1:], truth.top)], axis=1)
    levels = np.concatenate([np.zeros_like(low), levels, np.ones_like(low)], axis=1)
    return places, monotone(at, levels, np.broadcast_to(places, (len(low), len(places)))) - exact
