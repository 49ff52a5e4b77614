"""Gauss rules of discrete measures, and monotone curves through points: for many at once.

>>> import numpy as np
>>> nodes, weights, points = gauss(np.linspace(0, 1, 500)[None], np.ones((1, 500)), 3)
>>> float(np.round(weights[0] @ nodes[0] ** 8, 3)), points[0].tolist()           # the integral of x**8 is 1/9
(0.112, [False, False, False])
>>> monotone(np.array([0.0, 1.0, 4.0]), np.array([0.0, 0.5, 1.0]), np.array([-1.0, 1.0, 2.0, 5.0])).round(2).tolist()
[0.0, 0.5, 0.75, 1.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal

from bulkedge.support.arrays import Real

POINT = 1e-7
"""Residual of a node, relative to the largest, up to which it is a point mass."""
ZERO = 1e-13
"""Squared value, relative to the largest, below which a node is at zero."""
DECOUPLED = 1e-13
"""Element of a Jacobi matrix, relative to the largest value, at which it ends."""
TOGETHER = 1e-13
"""Distance of places, relative to the last, up to which they are one."""


def gauss(values: Real, weights: Real, steps: int) -> tuple[list[Real], list[Real], list[Any]]:
    """Gauss rules, in the squared value, of discrete measures: Lanczos steps, fully orthogonalised, all at once."""
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
    rules = _rules(diagonal, beside)
    # squares are known to the rounding of the largest
    nodes = [np.sqrt(top * np.where(rule[0] < ZERO, 0.0, rule[0])) for rule in rules]
    return nodes, [rule[1] for rule in rules], [rule[2] for rule in rules]


def _rules(diagonal: Real, beside: Real) -> list[tuple[Real, Real, Any]]:
    """Nodes, weights and which are point masses, of Jacobi matrices, each cut where it decouples."""
    rules = []
    for each, off in zip(diagonal, beside, strict=True):
        small = np.flatnonzero(off <= DECOUPLED)
        count = int(small[0]) + 1 if small.size else len(each)
        nodes, vectors = eigh_tridiagonal(each[:count], off[: count - 1], check_finite=False)
        rules.append((nodes, vectors[0] ** 2, off[count - 1] * np.abs(vectors[-1]) <= POINT))
    return rules


def monotone(places: Real, levels: Real, x: Real) -> Real:
    """Monotone cubic curves through points (Fritsch and Butland 1984), constant beyond them."""
    if places.shape[-1] == 1:
        return np.broadcast_to(levels, x.shape).copy()
    widths = np.maximum(np.diff(places, axis=-1), TOGETHER * np.maximum(places[..., -1:], 1e-280))
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
    for end, beside in ((0, 1), (-1, -2)):
        here, next_ = widths[..., end], widths[..., beside]
        rise = rises[..., end]
        slope = ((2 * here + next_) * rise - here * rises[..., beside]) / (here + next_)
        slopes[..., end] = np.clip(slope, 0, 3 * rise)
    return slopes
