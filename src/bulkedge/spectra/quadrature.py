"""The distribution of singular values that a run of Golub-Kahan steps knows: quadrature, and its error.

The first block V_1 of a run is a random orthonormal frame of p probes. Its spectral measure, the mean over probes of
``sum_i (u_i . v)**2 delta(s_i)``, has the spectrum of the matrix as its mean, and s block steps know its integrals of
polynomials in the squared value up to degree 2s - 1. Three things make a distribution function of that:

* **Locking.** Large values that have converged are known one by one: each has the weight 1/n, not the random weight the
  probes give it, and the rest of every probe is a probe of the rest of the matrix. A Ritz space counts as converged if
  the angle to the true space, at most residual over gap (Davis and Kahan 1970), is small.
* **One Gauss rule** of s nodes for the rest, from the many nodes of the run: it has the same integrals up to degree
  2s - 1. By the inequalities of Chebyshev, Markov and Stieltjes the distribution function passes through each of its
  steps, so the middle of each step is the best guess, and a monotone interpolant through the middles is far better than
  the steps themselves. A node that has converged to a point mass keeps its step.
* **An honest error.** The squared coordinates of a random frame have a known law, whatever the matrix: sums of m of
  them are Gamma numbers of shape p m/2 over their total. So the sampling error can be simulated: the estimated
  distribution is taken as the truth, weights are drawn, and the same two steps applied to them. What such draws do not
  know, features that no polynomial of that degree sees, shows as a difference between the run and its first steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.linalg import eigh_tridiagonal

from bulkedge.arrays import Real
from bulkedge.spectra.krylov import Projection
from bulkedge.spectra.ritz import converged, ritz

POINT = 1e-7
"""Residual of a node, relative to the largest, up to which it is a point mass."""
ZERO = 1e-13
"""Squared value, relative to the largest, below which a node is at zero."""
BENDS = (0.4, 0.5), (0.5, 1.25)
"""Error close to zero over what the bend of the first two nodes suggests. Tuned: measured at 0.25 to 0.46 for full
attention (16 to 64 dimensions, beta 0.5 to 2), whose bend is below 0.45 when it is small enough to matter, and at 0.55
to 1.12 for causal attention and logarithmic spectra, whose bend stays above 0.48."""
BESIDE = 1e-6
"""Distance of point masses, relative to the largest value, up to which they are one."""
ATOMS = 500
"""Points that stand for the rest in simulated errors."""


@dataclass(frozen=True)
class Density:
    """A distribution of singular values: some known one by one, points of mass, and a continuous rest.

    Attributes
    ----------
    locked : array of shape (k,)
        The largest values, in increasing order, each of weight ``1/size``.
    nodes, weights : arrays of shape (nodes,)
        Gauss rule of the rest, in increasing order; weights sum to one.
    points : array of bool of shape (nodes,)
        Which nodes are point masses.
    top : float
        Right end of the rest.
    size : int
        Number of singular values.
    """

    locked: Real
    nodes: Real
    weights: Real
    points: Any
    top: float
    size: int

    @property
    def rest(self) -> float:
        """Share of the values that are not locked."""
        return 1 - len(self.locked) / self.size

    @cached_property
    def _pieces(self) -> list[tuple[Real, Real]]:
        """Continuous pieces between point masses: places, and the distribution function of the rest at them."""
        upto = np.concatenate([[0.0], np.cumsum(self.weights)])
        pieces, places, levels = [], [0.0], [0.0]
        for k, (node, point) in enumerate(zip(self.nodes, self.points, strict=True)):
            places.append(float(node))
            if point:
                levels.append(float(upto[k]))
                pieces.append((np.array(places), np.array(levels)))
                places, levels = [float(node)], [float(upto[k + 1])]
            else:
                levels.append(float(upto[k] + upto[k + 1]) / 2)
        places.append(max(self.top, places[-1]))
        levels.append(1.0)
        pieces.append((np.array(places), np.array(levels)))
        return pieces

    @property
    def at_zero(self) -> float:
        """What is not known about values below the second node: about the error of the distribution function there.

        Polynomials see how many values are close to zero, and not where they are. If singular values have a density at
        zero, as those of square matrices of independent entries, the curve through the first two nodes is straight, and
        little is unknown; if it bends, values pile up at zero, on a scale of their own, as those of causal attention.
        """
        if not self.nodes.size or self.points[0]:
            return 0.0
        if len(self.nodes) < 3 or self.points[1]:
            return self.rest * float(self.weights[0])
        first = self.weights[0] / 2 / max(self.nodes[0], 1e-300)
        second = (self.weights[0] + self.weights[1]) / 2 / max(self.nodes[1] - self.nodes[0], 1e-300)
        bend = max(1 - second / first, 0.0)
        return self.rest * float(self.weights[0] / 2 * bend * np.interp(bend, *BENDS))

    def cdf(self, x: Real) -> Real:
        """Share of the values at or below x.

        Parameters
        ----------
        x : array
            Points, of any shape.

        Returns
        -------
        array
            Between 0 and 1, of the same shape.
        """
        x = np.asarray(x, dtype=float)
        level = np.zeros(x.shape)
        for k, (places, levels) in enumerate(self._pieces):
            inside = x >= places[0] if k else x >= 0
            level[inside] = _monotone(places, levels, x[inside])
        return self.rest * level + np.searchsorted(self.locked, x, side="right") / self.size

    def quantiles(self, count: int) -> tuple[Real, Real]:
        """The whole distribution as values with weights: locked values, point masses, and quantiles of the rest.

        Parameters
        ----------
        count : int
            How many quantiles stand for the continuous rest.

        Returns
        -------
        values, weights : arrays
            In increasing order; weights sum to one.
        """
        values, weights = [self.locked], [np.full(len(self.locked), 1 / self.size)]
        values.append(self.nodes[self.points])
        weights.append(self.rest * self.weights[self.points])
        for places, levels in self._pieces:
            mass = levels[-1] - levels[0]
            number = int(np.ceil(count * mass))
            if mass > 1e-12 and number:
                middle = levels[0] + (np.arange(number) + 0.5) / number * mass
                fine = np.unique(np.concatenate([np.linspace(*ends, 9) for ends in pairwise(places)]))
                values.append(np.interp(middle, _monotone(places, levels, fine), fine))
                weights.append(np.full(number, self.rest * mass / number))
        value, weight = np.concatenate(values), np.concatenate(weights)
        order = np.argsort(value, kind="stable")
        kept = order[weight[order] > 0]
        return value[kept], weight[kept] / weight[kept].sum()


def _monotone(places: Real, levels: Real, x: Real) -> Real:
    """A monotone curve through points whose places may coincide; constant beyond them."""
    apart = np.append(True, np.diff(places) > 1e-13 * max(places[-1], 1e-300))
    # of coinciding places the last level counts
    last = np.append(np.flatnonzero(apart)[1:] - 1, len(places) - 1)
    at, level = places[apart], levels[last]
    if len(at) == 1:
        return np.full(x.shape, level[-1])
    return np.asarray(PchipInterpolator(at, level)(np.clip(x, at[0], at[-1])))


def density(projection: Projection, size: int) -> Density:
    """The distribution that a run knows.

    Parameters
    ----------
    projection : Projection
        B, from a run that was started with a random orthonormal frame.
    size : int
        Dimension of the space of the probes, the number of singular values.

    Returns
    -------
    Density
        Locked values and a Gauss rule of the rest.
    """
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
        nodes, masses, points = gauss(remaining[None], rest.mean(axis=1)[None], projection.steps)
        rule = _merged(nodes[0], masses[0], points[0])
    return Density(np.sort(values[:locked]), *rule, float(remaining.max(initial=0.0)), size)


def _merged(nodes: Real, weights: Real, points: Any) -> tuple[Real, Real, Any]:
    """One node for point masses that rounding has put beside each other, each at the place of the heaviest."""
    close = np.diff(nodes) <= BESIDE * nodes[-1]
    group = np.append(0, np.cumsum(~(close & points[:-1] & points[1:])))
    heaviest = [np.flatnonzero(group == each)[np.argmax(weights[group == each])] for each in range(group[-1] + 1)]
    return nodes[heaviest], np.bincount(group, weights).astype(float), points[heaviest]


def gauss(values: Real, weights: Real, steps: int) -> tuple[list[Real], list[Real], list[Any]]:
    """Gauss rules, in the squared value, of discrete measures: Lanczos steps with full orthogonalisation, all at once.

    Parameters
    ----------
    values : array of shape (measures or 1, atoms)
        Where the atoms are.
    weights : array of shape (measures, atoms)
        Their masses, which sum to one.
    steps : int
        Nodes of each rule; fewer where a measure has fewer atoms.

    Returns
    -------
    nodes, weights : lists of arrays
        The rule of each measure, with nodes in the unit of the values, in increasing order.
    points : list of arrays of bool
        Which nodes have converged to an atom of the measure.
    """
    squares = values**2
    top = max(float(squares.max(initial=0.0)), 1e-300)
    squares = squares / top
    first = np.sqrt(np.maximum(weights, 0) / weights.sum(axis=-1, keepdims=True))
    basis = np.empty((len(weights), steps, squares.shape[-1]))
    basis[:, 0] = first
    diagonal, beside = np.empty((2, len(weights), steps))
    for step in range(steps):
        image = squares * basis[:, step]
        diagonal[:, step] = np.sum(basis[:, step] * image, axis=-1)
        known = basis[:, : step + 1]
        for _ in range(2):
            image -= ((known @ image[..., None]).swapaxes(-1, -2) @ known)[..., 0, :]
        beside[:, step] = np.linalg.norm(image, axis=-1)
        if step + 1 < steps:
            basis[:, step + 1] = image / np.maximum(beside[:, step], 1e-300)[:, None]
    rules = [_rule(each, off) for each, off in zip(diagonal, beside, strict=True)]
    # squares are known to the rounding of the largest
    nodes = [np.sqrt(top * np.where(rule[0] < ZERO, 0.0, rule[0])) for rule in rules]
    return nodes, [rule[1] for rule in rules], [rule[2] for rule in rules]


def _rule(diagonal: Real, beside: Real) -> tuple[Real, Real, Any]:
    """Nodes, weights and which are point masses, of one Jacobi matrix, cut where it decouples."""
    small = np.flatnonzero(beside <= 1e-13)
    count = int(small[0]) + 1 if small.size else len(diagonal)
    nodes, vectors = eigh_tridiagonal(diagonal[:count], beside[: count - 1])
    residual = beside[count - 1] * np.abs(vectors[-1])
    return nodes, vectors[0] ** 2, residual <= POINT


def simulated_errors(found: Density, probes: int, steps: int, draws: int, rng: np.random.Generator) -> Real:
    """Kolmogorov distances that frames of random probes would show, if the estimated distribution were the truth.

    Parameters
    ----------
    found : Density
        The estimated distribution.
    probes : int
        Probes of the frame.
    steps : int
        Nodes of the Gauss rule.
    draws : int
        How many frames.
    rng : numpy.random.Generator
        Draws their weights.

    Returns
    -------
    array of shape (draws,)
        Distances; their quantile at a level is the error at that confidence.
    """
    remaining = found.size - len(found.locked)
    if remaining <= probes or not len(found.nodes):
        return np.zeros(draws)
    values, shares = Density(np.zeros(0), found.nodes, found.weights, found.points, found.top, remaining).quantiles(
        min(ATOMS, remaining)
    )
    # a frame of as many probes as dimensions knows the trace exactly
    shape = shares * remaining * probes / 2 / (1 - probes / remaining)
    weights = rng.gamma(np.broadcast_to(shape, (draws, len(shape))))
    weights /= weights.sum(axis=1, keepdims=True)
    if found.points.all():
        return found.rest * np.abs(np.cumsum(weights - shares, axis=1)).max(axis=1)
    nodes, masses, points = gauss(values[None], weights, steps)
    upto = np.cumsum(shares)
    # point masses are compared on either side, quantiles in the middle of their step
    jump = np.isin(values, found.nodes[found.points])
    aside = 1e-5 * max(found.top, values[-1])
    places = np.concatenate([values[~jump], values[jump] - aside, values[jump] + aside])
    truth = np.concatenate([(upto - shares / 2)[~jump], (upto - shares)[jump], upto[jump]])
    drawn = (Density(np.zeros(0), *each, found.top, remaining) for each in zip(nodes, masses, points, strict=True))
    return np.array([found.rest * np.max(np.abs(each.cdf(places) - truth)) for each in drawn])
