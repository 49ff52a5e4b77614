"""Sums over poles: the Cauchy transforms of many atoms, and of Gauss nodes that stand for panels, at many points."""

from __future__ import annotations

import numpy as np

from bulkedge.support.arrays import Complex, Index, Real

BLOCK = 100_000
"""Distances from points to nodes that are computed at once: as many as fit into fast memory."""
SQUARABLE = (1e-70, 1e70)
"""Distances whose fourth powers, and their inverses, are finite."""


def weighted_inverses(inverse: Complex, locations: Real, masses: Real) -> Complex:
    """G, G', psi and psi' (rows) of atoms, from the matrix of ``1/(z - location)``, which is overwritten."""
    weights = np.stack([masses, masses * locations], axis=1)
    value = inverse @ weights
    np.multiply(inverse, inverse, out=inverse)
    slope = inverse @ weights
    return np.stack([value[:, 0], -slope[:, 0], value[:, 1], -slope[:, 1]])


def pole_sums(z: Complex, locations: Real, weights: Real, hidden: tuple[Index, Index]) -> Complex:
    """G, G', psi and psi' (rows) of atoms, some of which are hidden from some of the points.

    In real arithmetic, which is several times as fast as complex division, where distances can be squared twice.
    """
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
    """G, G', psi and psi' (rows) of atoms, at points of the closed upper half-plane, atoms included.

    At an atom G is infinite and G' minus infinity; psi and psi' have the sign of its location, and are finite at an
    atom at zero, which has no part in them.
    """
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
