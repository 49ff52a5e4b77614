"""Distributions of singular values that are made of Gauss rules: the curve through one, and what it leaves open.

A Gauss rule of s nodes has the integrals of polynomials up to degree 2s - 1 that the distribution has. By the
inequalities of Chebyshev, Markov and Stieltjes the distribution function passes through each of its steps. Where in its
step? Nearly in the middle, if it is smooth on the scale of the nodes, and elsewhere at the ends: close to zero, where
the values of attention bend, or at the lower edge of a Wishart matrix. But a curve has a Gauss rule too, and where it
passes through the steps of that is known. So the curve through the middles says where to pass, the curve through those
places says it better, and the limit is a curve that has, nearly, the rule itself (:func:`refine`).

Ten nodes of 400 values of a Wishart matrix, with middles and without:

>>> import numpy as np
>>> values = np.linalg.svd(np.random.default_rng(0).standard_normal((800, 400)) / 20, compute_uv=False)[::-1]
>>> rule = [each[0] for each in gauss(values[None], np.ones((1, 400)), 10)]
>>> exact, middles = (np.arange(400) + 0.5) / 400, SpectralDensity(np.zeros(0), *rule, values[-1], 400)
>>> [round(float(np.abs(each.cdf(values) - exact).max()), 3) for each in (middles, refine(middles))]
[0.024, 0.006]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal

from bulkedge.support.arrays import Real

FALLING = (0.8, 0.95), (1.0, 2.5)
"""Bend close to zero over that of fewer steps, and the error there over the distance of their curves."""
BENDS = (0.4, 0.5), (0.0, 0.6)
"""Bend close to zero, and the error there over the bend times the share of values below the first node, at most."""
GROWING = (0.95, 1.05), (0.0, 1.1)
"""Bend close to zero over that of fewer steps, and the least factor in the same place. The bend that an atom at zero
makes grows with the steps, and its mass is that product; a tenth more is for the scatter of both."""
GAP = 1.2
"""Error where a spectrum begins above zero and the curve does not, over what the curve's own first node says of it: 0.8
to 1.2 for Wishart matrices of ratios 0.8 to 0.99 and equidistant numbers from 0.01 or 0.05 to 1."""
MISFIT = 10.0
"""Error close to zero over the misfit. This, FALLING and BENDS are tuned, on full and causal attention (16 to 64
dimensions, beta 0.5 to 3), products of square matrices, powers of equidistant numbers and numbers over 1.5 to 10
decades: with 8 in place of 10, after 8 to 40 steps, 0.8 to 20 times the error was stated, if it is more than that of
sampling. This one was raised, and GAP set, by spectra of ``tests/spectra/test_held_out.py``, which has others too."""
POINT, ROUNDING = 1e-7, 1e-13
"""Residual of a node, relative to the largest value, up to which it is a point mass; and what is nothing beside it: a
squared value, an element of a Jacobi matrix, the distance of two places."""


def gauss(values: Real, weights: Real, steps: int) -> tuple[list[Real], list[Real], list[Any]]:
    """Gauss rules, in the squared value, of discrete measures: Lanczos steps, fully orthogonalised, all at once."""
    squares = values**2
    top = max(float(squares.max(initial=0.0)), 1e-300)
    squares = squares / top
    first = np.sqrt(np.maximum(weights, 0) / weights.sum(axis=-1, keepdims=True))
    basis = np.empty((len(weights), steps, squares.shape[-1]))
    basis[:, 0] = first
    diagonal, off_diagonal = np.empty((2, len(weights), steps))
    for step in range(steps):
        image = squares * basis[:, step]
        diagonal[:, step] = np.sum(basis[:, step] * image, axis=-1)
        known = basis[:, : step + 1]
        for _ in range(2):
            image -= ((known @ image[..., None]).swapaxes(-1, -2) @ known)[..., 0, :]
        off_diagonal[:, step] = np.linalg.norm(image, axis=-1)
        if step + 1 < steps:
            basis[:, step + 1] = image / np.maximum(off_diagonal[:, step], 1e-300)[:, None]
    rules = _rules(diagonal, off_diagonal)
    # squares are known to the rounding of the largest
    nodes = [np.sqrt(top * np.where(rule[0] < ROUNDING, 0.0, rule[0])) for rule in rules]
    return nodes, [rule[1] for rule in rules], [rule[2] for rule in rules]


def _rules(diagonal: Real, off_diagonal: Real) -> list[tuple[Real, Real, Any]]:
    """Nodes, weights and which are point masses, of Jacobi matrices, each cut where it decouples."""
    rules = []
    for each, off in zip(diagonal, off_diagonal, strict=True):
        small = np.flatnonzero(off <= ROUNDING)
        count = int(small[0]) + 1 if small.size else len(each)
        nodes, vectors = eigh_tridiagonal(each[:count], off[: count - 1], check_finite=False)
        rules.append((nodes, vectors[0] ** 2, off[count - 1] * np.abs(vectors[-1]) <= POINT))
    return rules


def monotone(places: Real, levels: Real, x: Real) -> Real:
    """Monotone cubic curves through points (Fritsch and Butland 1984), constant beyond them."""
    if places.shape[-1] == 1:
        return np.broadcast_to(levels, x.shape).copy()
    widths = np.maximum(np.diff(places, axis=-1), ROUNDING * np.maximum(places[..., -1:], 1e-280))
    rises = np.diff(levels, axis=-1) / widths
    slopes = _slopes(widths, rises)
    x = np.clip(x, places[..., :1], places[..., -1:])
    last = places.shape[-1] - 2
    if places.ndim == 1:
        at = np.clip(np.searchsorted(places, x, side="right") - 1, 0, last)
    else:
        at = np.clip(np.sum(places[..., None, :] <= x[..., None], axis=-1) - 1, 0, last)
    take = (lambda of: of[at]) if places.ndim == 1 else (lambda of: np.take_along_axis(of, at, axis=-1))
    width, left, right = take(widths), take(slopes[..., :-1]), take(slopes[..., 1:])
    t = np.minimum((x - take(places[..., :-1])) / width, 1.0)
    rise, level = take(np.diff(levels, axis=-1)), take(levels[..., :-1])
    curve = (3 - 2 * t) * t**2 * rise + width * t * (1 - t) * ((1 - t) * left - t * right)
    return level + np.clip(curve, 0, rise)


def _slopes(widths: Real, rises: Real) -> Real:
    """Slopes at the points: weighted harmonic means of those of the pieces; at the ends of a parabola, if monotone."""
    if widths.shape[-1] == 1:
        return np.concatenate([rises, rises], axis=-1)
    slopes = np.empty((*widths.shape[:-1], widths.shape[-1] + 1))
    before, after = widths[..., :-1], widths[..., 1:]
    first, second = 2 * after + before, after + 2 * before
    low, high = rises[..., :-1], rises[..., 1:]
    mixed = first * high + second * low
    slopes[..., 1:-1] = np.where(mixed > 0, (first + second) * low * high / np.where(mixed > 0, mixed, 1.0), 0.0)
    for end, inner in ((0, 1), (-1, -2)):
        here, next_ = widths[..., end], widths[..., inner]
        rise = rises[..., end]
        slope = ((2 * here + next_) * rise - here * rises[..., inner]) / (here + next_)
        slopes[..., end] = np.clip(slope, 0, 3 * rise)
    return slopes


@dataclass(frozen=True)
class SpectralDensity:
    """A distribution of singular values: some known one by one, points of mass, and a continuous rest."""

    locked: Real  # (k,): the largest values, in increasing order, each of weight ``1/size``
    nodes: Real  # (nodes,): gauss rule of the rest, in increasing order; weights sum to one
    weights: Real
    points: Any  # (nodes,): which nodes are point masses
    top: float  # right end of the rest
    size: int  # number of singular values
    # (nodes,): where in the step of each node the distribution function passes through it: 0 at its foot, 1 at its
    # head, and in the middle by default
    passed: Real | None = None
    bottom: float = 0.0  # left end of the rest
    misfit: float = 0.0  # by how much, at zero, the curve differs from one that has this Gauss rule
    # share of the values that the curve has where the spectrum seems to have none, just above its left end
    gap: float = 0.0

    @property
    def rest(self) -> float:
        """Share of the values that are not locked."""
        return 1 - len(self.locked) / self.size

    @cached_property
    def levels(self) -> Real:
        """Distribution function of the rest at its nodes."""
        return np.cumsum(self.weights) - self.weights * (1 - (0.5 if self.passed is None else self.passed))

    @cached_property
    def _pieces(self) -> list[tuple[Real, Real]]:
        """Continuous pieces between point masses: places, and the distribution function of the rest at them."""
        upto = np.concatenate([[0.0], np.cumsum(self.weights)])
        pieces, places, levels = [], [self.bottom], [0.0]
        for k, (node, point) in enumerate(zip(self.nodes, self.points, strict=True)):
            places.append(float(node))
            if point:
                levels.append(float(upto[k]))
                pieces.append((np.array(places), np.array(levels)))
                places, levels = [float(node)], [float(upto[k + 1])]
            else:
                levels.append(float(self.levels[k]))
        places.append(max(self.top, places[-1]))
        levels.append(1.0)
        pieces.append((np.array(places), np.array(levels)))
        return pieces

    @property
    def bend(self) -> float:
        """How much less steep the curve is from the first node to the second than up to the first, from 0 to 1."""
        return max(self._signed_bend, 0.0) if self.bottom == 0 else 0.0

    @property
    def _signed_bend(self) -> float:
        """The same from the left end of the curve, and negative where it is steeper beyond the first node."""
        if len(self.nodes) < 2 or self.points[:2].any():
            return 0.0
        (first, second), (low, high) = self.nodes[:2] - self.bottom, self.levels[:2]
        return float(1 - (high - low) / (second - first) * first / low)

    def doubt(self, before: SpectralDensity, apart: float) -> float:
        """The part of the error from values below the second node, which only more steps can resolve."""
        # with a density at zero the curve is straight there; a bend means values piled up on a scale of their own,
        # which stays long if it stays with more steps (causal attention): the error is above the distance then
        if len(self.nodes) < 3:
            return 0.0 if self.points[:1].any() else self.rest * float(self.weights[:1].sum())
        falling = self.bend / before.bend if before.bend > 0 else float(self.bend > 0)
        # of a constant density that begins at zero with an atom, or above zero, the share of the atom, or of what the
        # curve has in the gap, is the bend times the level at the first node
        factor = max(float(np.interp(self.bend, *BENDS)), float(np.interp(falling, *GROWING)))
        atom, gap = factor * self.bend, max(-self._signed_bend, 0.0)
        seen = max(atom * float(self.levels[0]), MISFIT * self.misfit, GAP * min(self.gap, gap * float(self.levels[0])))
        return max(float(np.interp(falling, *FALLING)) * apart, self.rest * seen)

    def cdf(self, x: Real) -> Real:
        """Share of the values at or below x."""
        x = np.asarray(x, dtype=float)
        level = np.zeros(x.shape)
        for k, (places, levels) in enumerate(self._pieces):
            inside = x >= places[0] if k else x >= 0
            level[inside] = monotone(places, levels, x[inside])
        return self.rest * level + np.searchsorted(self.locked, x, side="right") / self.size

    def quantiles(self, count: int) -> tuple[Real, Real]:
        """The whole distribution as values with weights: locked values, point masses, and quantiles of the rest."""
        values, weights = [self.locked], [np.full(len(self.locked), 1 / self.size)]
        values.append(self.nodes[self.points])
        weights.append(self.rest * self.weights[self.points])
        for places, levels in self._pieces:
            mass = levels[-1] - levels[0]
            number = int(np.ceil(count * mass))
            if mass > 1e-12 and number:
                middle = levels[0] + (np.arange(number) + 0.5) / number * mass
                fine = np.unique(np.concatenate([np.linspace(*ends, 9) for ends in pairwise(places)]))
                values.append(np.interp(middle, monotone(places, levels, fine), fine))
                weights.append(np.full(number, self.rest * mass / number))
        value, weight = np.concatenate(values), np.concatenate(weights)
        order = np.argsort(value, kind="stable")
        kept = order[weight[order] > 0]
        return value[kept], weight[kept] / weight[kept].sum()

    def atoms(self) -> tuple[Real, Real]:
        """The rest as values with weights: its point masses, and sixteen between two nodes."""
        values, weights = [self.nodes[self.points]], [self.weights[self.points]]
        for places, levels in self._pieces:
            ends = np.unique(np.concatenate([np.linspace(*each, 17) for each in pairwise(places)]))
            # the root of the mean square between two places
            values.append(np.sqrt((ends[1:] ** 2 + ends[1:] * ends[:-1] + ends[:-1] ** 2) / 3))
            weights.append(np.diff(monotone(places, levels, ends)))
        value, weight = np.concatenate(values), np.concatenate(weights)
        return value[weight > 0], weight[weight > 0] / weight.sum()


def bottom_of(nodes: Real, points: Any) -> float:
    """Left end of a measure with a Gauss rule, or zero if it may come down to that."""
    # squared nodes go as 1, 4, 9 from a soft end and 1, 9, 25 from a density of values at zero: no overestimate
    if len(nodes) < 3 or points[:2].any():
        return 0.0
    return float(max(nodes[0] ** 2 - (nodes[1] ** 2 - nodes[0] ** 2) / 3, 0.0)) ** 0.5


def refine(found: SpectralDensity) -> SpectralDensity:
    """The same rule with a curve that has it: where the function passes through each step is what the curve says."""
    # repeated, as a better curve says it better; a step far from its own, as in gaps, keeps its middle
    found = replace(found, bottom=bottom_of(found.nodes, found.points))
    steps, middles = len(found.nodes), np.cumsum(found.weights) - found.weights / 2
    # how often the curve is held against itself; each time brings it about three times closer to its limit
    for _ in range(4):
        values, masses = found.atoms()
        nodes, weights, _ = (each[0] for each in gauss(values[None], masses[None], steps))
        if len(nodes) < steps:
            return replace(found, passed=None)
        foot = np.cumsum(weights) - weights
        level = replace(found, locked=np.zeros(0)).cdf(nodes)
        passed = np.clip((level - foot) / np.maximum(weights, 1e-300), 0, 1)
        away = np.abs(foot + weights / 2 - middles) / np.maximum(np.minimum(weights, found.weights), 1e-300)
        alike = np.clip(2 - 2 * away, 0, 1)
        differences = level - found.levels
        misfit, gap = _misfit(differences, found.points), _gap(differences, found)
        where = np.where(found.points, 0.5, 0.5 + alike * (passed - 0.5))
        found = replace(found, passed=where, misfit=misfit, gap=gap)
    return found


def _misfit(differences: Real, points: Any) -> float:
    """What the differences at nodes are at zero, by the first two; nothing if they have come from further away."""
    if len(points) < 3 or points[:2].any():
        return 0.0
    first, second, third = differences[:3]
    return float(abs(2 * first - second) * max(1 - abs(third) / max(abs(first), 1e-300), 0.0))


def _gap(differences: Real, found: SpectralDensity) -> float:
    """Share of the values that a curve has below the smallest value of the spectrum, by its own first node."""
    # with a share L below the first node x and a spectrum from e, the curve is too low at its node by L (e/x)**2;
    # the shift in first order is taken up there, and what came from further up (third node) does not count
    if len(found.nodes) < 3 or found.points[:2].any():
        return 0.0
    low, far = max(-float(differences[0]), 1e-300), abs(float(differences[2]))
    return float(found.levels[0] * low * np.clip(2 - 2 * far / low, 0, 1)) ** 0.5
