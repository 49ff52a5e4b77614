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
  :meth:`~bulkedge.spectra.curves.SpectralDensity.doubt` says.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.spectra.curves import SpectralDensity, bottom_of, gauss, monotone, refine
from bulkedge.spectra.krylov import SINGLE, Projection
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.threads import thin_products

LARGE = 384  # columns from which on a GPU is asked to decompose a matrix


def density(projection: Projection, size: int) -> SpectralDensity:
    """The distribution that a run knows."""
    values, weights, residuals = ritz(projection)
    if projection.exhausted and len(values) >= size:
        return SpectralDensity(np.sort(values)[-size:], np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool), 0.0, size)
    locked = count_converged(values, weights, residuals, size, projection.noise)
    rest = weights[locked:] / np.maximum(weights[locked:].sum(axis=0), 1e-300)
    remaining = values[locked:]
    if projection.exhausted:  # the measure of the probes itself is known
        order = np.argsort(remaining)
        rule = _merge(remaining[order], rest.mean(axis=1)[order], np.ones(len(order), dtype=bool))
    else:
        # values that have converged have taken a direction of the run each: for the rest so many steps are left
        steps = min(projection.steps, -(-len(remaining) // projection.probes))
        nodes, masses, points = gauss(remaining[None], rest.mean(axis=1)[None], steps)
        rule = _merge(nodes[0], masses[0], points[0])
    found = SpectralDensity(np.sort(values[:locked]), *rule, float(remaining.max(initial=0.0)), size)
    return found if found.points.all() else refine(found)


def _merge(nodes: Real, weights: Real, points: Any) -> tuple[Real, Real, Any]:
    """One node for point masses that rounding has put beside each other, each at the place of the heaviest."""
    close = np.diff(nodes) <= 1e-6 * nodes[-1]
    group = np.append(0, np.cumsum(~(close & points[:-1] & points[1:])))
    heaviest = [np.flatnonzero(group == each)[np.argmax(weights[group == each])] for each in range(group[-1] + 1)]
    return nodes[heaviest], np.bincount(group, weights).astype(float), points[heaviest]


def simulated_deviations(
    found: SpectralDensity, probes: int, steps: int, draws: int, rng: np.random.Generator
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
    # the error of a curve that is held against its own rule is 1.04 to 1.21 times that of one with another's steps
    return places, 1.1 * found.rest * deviations


def _deviations(truth: SpectralDensity, nodes: list[Real], weights: list[Real], points: list[Any]) -> tuple[Real, Real]:
    """Distribution functions that are made of Gauss rules as one was made of its own, minus that one, and where."""
    knots = np.concatenate([[truth.bottom], truth.nodes, [truth.top]])
    places = np.concatenate([np.linspace(*each, 4, endpoint=False) for each in pairwise(knots)])
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


def ritz(projection: Projection) -> tuple[Real, Real, Real]:
    """Singular values of B, what the probes weigh them by, and their residuals."""
    # B v = s u gives the last rows of u from right vectors alone, so B' B is enough, at half the time: it loses values
    # below 1e-8 of the largest, which single precision lost before. It is solved where the run was made (a GPU)
    rows = sum(len(each) for each in projection.diagonal)
    last = projection.coupling.shape[1] if projection.coupling.size else 0
    squared = projection.unit > SINGLE and rows > 0
    values, first, leaving = (_by_squares if squared else _by_values)(projection, last)
    residuals = np.zeros(len(values))
    if last:
        residuals = np.linalg.norm(projection.coupling @ leaving, axis=0)
        if squared:  # left vectors of what is only rounding are not known, but their length is
            residuals[values <= projection.rounding] = np.linalg.norm(projection.coupling, 2)
    # right vectors without a left one are in the kernel of B
    values[rows:] = residuals[rows:] = 0.0
    return values, first.T**2, residuals


def _by_values(projection: Projection, last: int) -> tuple[Real, Real, Real]:
    """Singular values, first rows of right vectors, and last rows of left ones, from B itself."""
    left, found, right = np.linalg.svd(projection.matrix)
    columns = len(right)
    values, leaving = np.zeros(columns), np.zeros((last, columns))
    values[: len(found)] = found
    shared = min(columns, len(left))
    leaving[:, :shared] = left[len(left) - last :, :shared]
    return values, right[:, : projection.probes].T, leaving


def _by_squares(projection: Projection, last: int) -> tuple[Real, Real, Real]:
    """The same from ``B' B``; left vectors of values that are only rounding are not vectors of length one."""
    probes, ending = projection.probes, projection.diagonal[-1]
    squares, vectors = _eigen(projection)
    start, xp = vectors.shape[0] - ending.shape[1], array_namespace(vectors)
    # one transfer of what is used
    used = as_numpy(xp.concat([squares[None, :], vectors[:probes], vectors[start:]], axis=0))[:, ::-1]
    values = np.sqrt(np.maximum(used[0], 0.0))
    # of the last rows of B only the last block of columns has entries
    leaving = ending[:last] @ used[1 + probes :] / np.maximum(values, max(projection.rounding, 1e-300))
    return values, used[1 : 1 + probes], leaving


def _eigen(projection: Projection) -> tuple[Any, Any]:
    """Eigenvalues of ``B' B`` in increasing order, and its vectors as columns: on a GPU if the run was made there."""
    if _on_gpu(projection) and projection.steps * projection.probes >= LARGE:
        matrix = _dense_squares(projection)
        return array_namespace(matrix).linalg.eigh(matrix)
    diagonal, below = _squares(projection)
    columns = np.cumsum([0, *(len(each) for each in diagonal)])
    dense = np.zeros((columns[-1], columns[-1]))
    for j, block in enumerate(diagonal):
        own = slice(columns[j], columns[j + 1])
        dense[own, own] = block
        if j:
            dense[own, columns[j - 1] : columns[j]] = below[j - 1]
    with thin_products():
        # only what is on and below the diagonal is read
        return np.linalg.eigh(dense)


def _squares(projection: Projection) -> tuple[list[Real], list[Real]]:
    """``B' B``, which is block tridiagonal: the blocks on its diagonal, and those below."""
    pairs = zip(projection.off_diagonal[:-1], projection.diagonal[:-1], strict=True)
    below: list[Real] = [between @ block for between, block in pairs]
    diagonal: list[Real] = [block.T @ block for block in projection.diagonal]
    for j in range(1, projection.steps):
        diagonal[j] += projection.off_diagonal[j - 1] @ projection.off_diagonal[j - 1].T
    return diagonal, below


def _dense_squares(projection: Projection) -> Any:
    """``B' B`` in double precision on the device of the run: blocks travel there, and not the zeros between them."""
    (diagonal, below), steps, probes = _squares(projection), projection.steps, projection.probes
    xp, place = array_namespace(projection.like), device(projection.like)
    blocks = xp.asarray(np.stack(diagonal + below), dtype=xp.float64, device=place)
    matrix = xp.zeros((steps, probes, steps, probes), dtype=xp.float64, device=place)
    index = xp.arange(steps, device=place)
    matrix[index, :, index, :] = blocks[:steps]
    matrix[index[1:], :, index[:-1], :] = blocks[steps:]
    matrix[index[:-1], :, index[1:], :] = xp.matrix_transpose(blocks[steps:])
    return xp.reshape(matrix, (steps * probes, steps * probes))


def _on_gpu(projection: Projection) -> bool:
    """Whether a run was made on a GPU, in blocks of one width."""
    square = projection.probes, projection.probes
    regular = all(each.shape == square for each in projection.diagonal)
    return regular and getattr(device(projection.like), "type", "cpu") == "cuda"


def count_converged(values: Real, weights: Real, residuals: Real, size: int, noise: float = 0.0) -> int:
    """How many of the largest values are known one by one."""
    # the next value has not converged: it may be as much larger as its residual says
    gaps = values[:-1] - values[1:] - residuals[1:]
    worst = np.sqrt(np.cumsum(residuals[:-1] ** 2)) + noise
    # largest angle between locked Ritz vectors and singular vectors: weights are then wrong by its square
    known = np.flatnonzero((worst <= 0.01 * gaps) & (gaps > 0))
    share = np.arange(1, len(values)) / size
    # equal values in greater number than there are probes are found as many times as there are probes only: then the
    # probes' weight of locked values is more than four deviations from their number over the size
    spread = np.sqrt(2 * share * np.maximum(1 - share, 0) / (size * weights.shape[1]))
    plausible = np.abs(np.cumsum(weights.mean(axis=1))[:-1] - share) <= 4 * spread + 1e-12
    # a value found fewer times than it is there has too much weight: nothing below it is counted right
    wrong = known[~plausible[known]]
    known = known[known < wrong[0]] if wrong.size else known
    return int(known[-1]) + 1 if known.size else 0
