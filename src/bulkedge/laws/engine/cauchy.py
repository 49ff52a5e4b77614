"""Cauchy integrals of polynomials on panels, exact however close the point is to the panel.

The mass of a panel at ``x = location + direction * length * s**order`` is ``scale * g(s) * s**weight ds``. With ``Z =
direction (z - location)/length`` its Cauchy integral is ``(direction * scale/length) J(Z)``, ``J = int g(s)
s**weight/(Z - s**order) ds``. Partial fractions over the roots of ``s**order = Z`` reduce J to integrals of ``T_k(s)/(t
- s)``, which obey a three-term recurrence.
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial import chebyshev, legendre

from bulkedge.arrays import Complex, Index, Mask, Real
from bulkedge.laws.engine.panels import DEGREE, Panels

GAUSS = 32
"""Gauss nodes on a panel."""
NEAR = 2.3
"""Bernstein radius inside which the Gauss nodes no longer give the integral to 1e-16: ``2.3**-(2 * 32 - 20)``."""
TINY = 1e-150
"""Stands for a distance of zero."""
GAUSS_NODES, GAUSS_WEIGHTS = legendre.leggauss(GAUSS)


def is_near(panels: Panels, z: Complex) -> Mask:
    """Which panels (columns) are too close to which points (rows) of the closed upper half-plane for quadrature.

    Gauss's rule converges like the Bernstein radius of the point, in the panel's own variable, to a power.

    Parameters
    ----------
    panels : Panels
        p of them.
    z : complex array of shape (n,)
        Points with imaginary part zero or more.

    Returns
    -------
    bool array of shape (n, p)
        Where :func:`near_field` is needed.
    """
    root = _to_edge(panels, z[:, None]) ** (1 / panels.order)
    straight = (2 * root - panels.start - panels.stop) / (panels.stop - panels.start)
    return _bernstein(np.where(panels.symmetric, root / panels.stop, straight)) < NEAR


def near_field(panels: Panels, z: Complex) -> tuple[Complex, Complex]:
    """Cauchy integral of each panel at one point of its own, and the derivative: ``z`` has a number for each panel.

    Parameters
    ----------
    panels : Panels
        p of them; a panel that is wanted at several points occurs several times.
    z : complex array of shape (p,)
        The point of each panel, in the closed upper half-plane.

    Returns
    -------
    value : complex array of shape (p,)
        ``int dmu(t)/(z - t)`` over the panel; on it, the limit from above.
    slope : complex array of shape (p,)
        Its derivative in z.
    """
    local, to_stop = _to_edge(panels, z), _offset(panels, z, panels.ends()[1])
    value, slope = np.empty_like(local), np.empty_like(local)
    for symmetric in (False, True):
        for order in np.unique(panels.order[panels.symmetric == symmetric]):
            chosen = (panels.symmetric == symmetric) & (panels.order == order)
            value[chosen], slope[chosen] = _panel_integral(panels.take(chosen), local[chosen], to_stop[chosen])
    factor = panels.direction * panels.scale / panels.length
    value, slope = factor * value, factor * slope * panels.direction / panels.length
    left = panels.direction > 0
    return np.where(left, value, np.conj(value)), np.where(left, slope, np.conj(slope))


def _offset(panels: Panels, z: Complex, place: Real) -> Complex:
    """``direction (z - place)/length``, conjugated at right edges so that it stays in the closed upper half-plane."""
    apart = z - place
    offset = np.where(apart == 0, TINY, apart) * (panels.direction / panels.length)
    # a point of the line is approached from above: its imaginary part is zero, not minus zero
    return np.where(panels.direction > 0, offset, np.conj(offset)) + 0j


def _to_edge(panels: Panels, z: Complex) -> Complex:
    """Z, conjugated likewise; from outside, the stored location of an edge stands for the edge, remainder and all."""
    offset = ((z - panels.location) - panels.remainder) * panels.direction / panels.length
    offset = np.where((z == panels.location) | (offset == 0), -TINY, offset)
    return np.where(panels.direction > 0, offset, np.conj(offset)) + 0j


def _panel_integral(panels: Panels, local: Complex, to_stop: Complex) -> tuple[Complex, Complex]:
    """J and dJ/dZ, given Z and its offset from the far end of the panel; the panels share their order and symmetry.

    A weight of at least the order is lowered by ``s**order/(Z - s**order) = Z/(Z - s**order) - 1``, as often as it
    takes: nothing cancels near the edge.
    """
    order, symmetric = int(panels.order[0]), bool(panels.symmetric[0])
    lowered, weight = np.divmod(panels.weight, order)
    principal = local ** (1 / order)
    series, low, high = panels.coefficients, panels.start, panels.stop
    if symmetric:
        # g is even, so the roots +-s together integrate it over [-stop, stop]
        series, low = np.zeros((len(panels), 2 * DEGREE - 1)), -panels.stop
        series[:, ::2] = panels.coefficients
    # one row for each root, all rows at once: most calls are for few points, and their cost is that of the calls
    count = 1 if symmetric else order
    root = principal * np.exp(2j * np.pi * np.arange(count) / order)[:, None]
    up, down = root - low, root - high
    # the principal root may be close to an end of the panel. The two panels that meet there must take the same distance
    # from it, so that their logarithms cancel. In the middle of an interval, where they belong to different edges, that
    # is the distance along the line; elsewhere the line may be too coarse for it
    up[0] = np.where(up[0] == 0, TINY, up[0])
    down[0] = np.where(high == 1, to_stop / _quotient(principal, high, order), np.where(down[0] == 0, TINY, down[0]))
    rows = np.tile(np.arange(len(panels)), count)
    cauchy, d_cauchy = _series_integral(series, rows, up.ravel(), down.ravel(), high - low)
    factor = root ** (weight + 1 - order) / order
    cauchy, d_cauchy = factor * cauchy.reshape(root.shape), factor * d_cauchy.reshape(root.shape) * root
    value = cauchy.sum(axis=0)
    slope = ((weight + 1 - order) * value + d_cauchy.sum(axis=0)) / (order * local)
    if lowered.any():
        s = panels.sites(GAUSS_NODES)
        mass = panels.g(s) * GAUSS_WEIGHTS * ((panels.stop - panels.start) / 2)[:, None]
        for step in range(int(lowered.max())):
            total = (mass * s ** (weight + step * order)[:, None]).sum(axis=1)
            lifted, lifted_slope = local * value - total, value + local * slope
            value, slope = np.where(lowered > step, lifted, value), np.where(lowered > step, lifted_slope, slope)
    return value, slope


def _quotient(root: Complex, end: Real, order: int) -> Complex:
    """``(root**order - end**order)/(root - end)``."""
    return sum((root**k * end ** (order - 1 - k) for k in range(order)), np.zeros_like(root))


def _series_integral(series: Real, rows: Index, up: Complex, down: Complex, width: Real) -> tuple[Complex, Complex]:
    """``int g(s)/(root - s) ds`` of Chebyshev series on panels, and the derivative, at any number of roots.

    The roots lie ``up`` beyond the lower end of a panel and ``down`` beyond its upper one; ``rows`` tells which row of
    the series, and which width, is that of their panel. Close to the panel by recurrence, away from it by quadrature.
    """
    width = width[rows]
    t = (up + down) / width
    value, slope = np.empty_like(t), np.empty_like(t)
    near = _bernstein(t) < NEAR
    log = np.log(up[near]) - np.log(down[near])
    log_slope = np.asarray((1 / up[near] - 1 / down[near]) * (width[near] / 2), dtype=complex)
    value[near], slope[near] = _recurrence(series[rows[near]], t[near], log, log_slope)
    if not near.all():
        away = rows[~near]
        needed, place = np.unique(away, return_inverse=True)
        g = np.asarray(chebyshev.chebval(GAUSS_NODES, series[needed].T))[place] * GAUSS_WEIGHTS
        inverse = 1 / (t[~near, None] - GAUSS_NODES)
        weighted = g * inverse
        value[~near], slope[~near] = weighted.sum(axis=1), -(weighted * inverse).sum(axis=1)
    return value, slope * (2 / width)


def _recurrence(series: Real, t: Complex, log: Complex, log_slope: Complex) -> tuple[Complex, Complex]:
    """``int p(s)/(t - s) ds`` over [-1, 1] and its derivative in t, for rows of Chebyshev coefficients.

    ``Q_k = int T_k(s)/(t-s) ds`` obeys ``Q_{k+1} = 2t Q_k - Q_{k-1} - 2 int T_k`` from ``Q_0 = log((t+1)/(t-1))``. Run
    forwards, its rounding error grows like ``|t + sqrt(t**2 - 1)|**k``, which the decay of the coefficients outweighs.
    """
    # Q and its derivative side by side
    before = np.stack([log, log_slope])
    current = np.stack([t * log - 2, log + t * log_slope])
    twice, columns = 2 * t, np.ascontiguousarray(series.T)
    total = columns[0] * before + columns[1] * current
    for k in range(1, len(columns) - 1):
        following = twice * current
        following -= before
        following[1] += 2 * current[0]
        if k % 2 == 0:
            following[0] -= 4 / (1 - k * k)
        before, current = current, following
        total += columns[k + 1] * current
    return total[0], total[1]


def _bernstein(t: Complex) -> Real:
    """Sum of the semi-axes of the ellipse with foci -1, 1 through t."""
    root = np.sqrt(t - 1) * np.sqrt(t + 1)
    return np.asarray(np.maximum(np.abs(t + root), np.abs(t - root)))


def root_mean_square(z: Complex, g: Complex, g_slope: Complex) -> Real:
    """``sqrt(int 1/|z - t|**2)``: bounds the size of the terms that make up G, and so its rounding error.

    Parameters
    ----------
    z : complex array of shape (n,)
        Points of the closed upper half-plane.
    g, g_slope : complex arrays of shape (n,)
        Cauchy transform there, and its derivative.

    Returns
    -------
    array of shape (n,)
        The root: ``-Im G/Im z`` is the integral off the axis, ``-G'`` on it. Not finite inside the bulk.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.where(z.imag == 0, np.abs(g_slope), np.abs(g.imag / z.imag)))


def weighted_inverses(inverse: Complex, locations: Real, masses: Real) -> Complex:
    """G, G', psi and psi' (rows) of atoms, from the matrix of ``1/(z - location)``, which is overwritten.

    Parameters
    ----------
    inverse : complex array of shape (n, k)
        ``1/(z - location)`` for n points and k atoms.
    locations, masses : arrays of shape (k,)
        The atoms.

    Returns
    -------
    complex array of shape (4, n)
        The rows, with ``G = sum mass/(z - location)`` and ``psi = sum mass location/(z - location)``.
    """
    weights = np.stack([masses, masses * locations], axis=1)
    value = inverse @ weights
    np.multiply(inverse, inverse, out=inverse)
    slope = inverse @ weights
    return np.stack([value[:, 0], -slope[:, 0], value[:, 1], -slope[:, 1]])
