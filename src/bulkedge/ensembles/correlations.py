"""Correlations of the signs along a sequence, and balanced signs that have them.

``prefix_correlation``, ``spiked_correlation`` and ``autoregressive_correlation`` give the matrix ``R``; ``draw_signs``
gives +-1 with ``E[xi_t xi_s] = R_ts`` and mean zero, exactly, by one of two constructions:

* ``R_ts = a_t a_s`` off the diagonal: ``xi_t = eta b_t``, a common balanced sign times independent ones of mean a_t;
* ``sin(pi R/2)`` positive semidefinite: signs of Gaussian variables with that covariance, since
  ``E[sign(g) sign(h)] = (2/pi) arcsin(corr(g, h))``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Integers, Interval, SymmetricMatrix, shown
from bulkedge.support.errors import DomainError
from bulkedge.support.random import numpy_generator

TOLERANCE = 1e-9
"""Rounding up to which a correlation matrix is of product form, or the one of Gaussian variables semidefinite."""
LENGTH, SAMPLES = Integers(1, 100_000), Integers(1, 10**9)


CORRELATION = SymmetricMatrix(unit_diagonal=True)


def prefix_correlation(length: int, prefix: int, correlation: float) -> Real:
    """The first ``prefix`` positions are correlated with each other, the rest are independent (*recovery*, section 4).

    Parameters
    ----------
    length : int
        Number L of positions.
    prefix : int
        How many of them are correlated.
    correlation : float
        Of any two of these, from 0 to 1.

    Returns
    -------
    array of shape (length, length)
        The correlation matrix R.

    Examples
    --------
    >>> prefix_correlation(3, prefix=2, correlation=0.5)
    array([[1. , 0.5, 0. ],
           [0.5, 1. , 0. ],
           [0. , 0. , 1. ]])
    """
    length = LENGTH.check("length", length)
    prefix = Integers(1, length).check("prefix", prefix)
    correlation = Interval(0, 1).check("correlation", correlation)
    matrix = np.eye(length)
    matrix[:prefix, :prefix] = correlation
    np.fill_diagonal(matrix, 1.0)
    return matrix


def spiked_correlation(length: int, direction: ArrayLike, strength: float) -> Real:
    """``I + strength v v'`` scaled to unit diagonal, v the unit vector along ``direction`` (*recovery*, Figures 2, 4b).

    Parameters
    ----------
    length : int
        Number L of positions.
    direction : array_like of shape (length,)
        Direction of v, not zero.
    strength : float
        Of the spike, zero or more.

    Returns
    -------
    array of shape (length, length)
        The correlation matrix R.

    Examples
    --------
    >>> spiked_correlation(2, [1.0, -1.0], 2.0).round(12).tolist()
    [[1.0, -0.5], [-0.5, 1.0]]
    """
    length = LENGTH.check("length", length)
    strength = Interval(0, 1e12).check("strength", strength)
    vector = FINITE.check("direction", direction)
    if vector.shape != (length,) or not np.any(vector):
        raise DomainError(f"direction must be a vector of length {length} other than zero; got {shown(direction)}")
    spike = np.sqrt(strength) * vector / np.linalg.norm(vector)
    loading = spike / np.sqrt(1 + spike**2)
    matrix = np.outer(loading, loading)
    np.fill_diagonal(matrix, 1.0)
    return np.asarray(matrix)


def autoregressive_correlation(length: int, correlation: float) -> Real:
    """``R_ts = correlation**|t - s|``: a sign flips from one position to the next with the same probability.

    Parameters
    ----------
    length : int
        Number L of positions.
    correlation : float
        Of neighbours.

    Returns
    -------
    array of shape (length, length)
        The correlation matrix R.

    Examples
    --------
    >>> autoregressive_correlation(3, 0.5)[0].tolist()
    [1.0, 0.5, 0.25]
    """
    positions = np.arange(LENGTH.check("length", length))
    correlation = Interval(-1, 1).check("correlation", correlation)
    return np.asarray(correlation ** np.abs(positions[:, None] - positions).astype(float))


def draw_signs(correlation: ArrayLike, samples: int, rng: np.random.Generator) -> Real:
    """Balanced signs with a given correlation, a row for each sample.

    Parameters
    ----------
    correlation : array_like of shape (L, L)
        Correlation matrix R.
    samples : int
        How many rows.
    rng : numpy.random.Generator
        Source of all randomness.

    Returns
    -------
    array of shape (samples, L)
        Entries 1 and -1.

    Examples
    --------
    >>> draw_signs(prefix_correlation(3, 3, 1.0), 2, np.random.default_rng(0)).tolist()
    [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]
    """
    matrix = CORRELATION.check("correlation", correlation)
    samples, rng = SAMPLES.check("samples", samples), numpy_generator(rng)
    loading = product_loading(matrix)
    if loading is not None:
        common = rng.integers(0, 2, (samples, 1), dtype=np.int8)
        own = rng.random((samples, len(matrix))) < (1 + loading) / 2
        return np.where(own == common, 1.0, -1.0)
    values, vectors = np.linalg.eigh(np.sin(np.pi / 2 * matrix))
    if values[0] < -TOLERANCE * len(matrix):
        raise DomainError(
            "correlation is neither of product form a_t a_s off the diagonal, nor is sin(pi R/2) positive semidefinite "
            f"(its lowest eigenvalue is {values[0]:.3g}): no construction here gives signs with this correlation. "
            "Correlations closer to zero have one"
        )
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.where(rng.standard_normal((samples, len(matrix))) @ root.T > 0, 1.0, -1.0)


def product_loading(correlation: Real) -> Real | None:
    """The vector a with ``R_ts = a_t a_s`` off the diagonal and ``|a_t| <= 1``, if there is one."""
    off = correlation - np.diag(np.diagonal(correlation))
    first, second = np.unravel_index(np.argmax(np.abs(off)), off.shape)
    if abs(off[first, second]) <= TOLERANCE:
        return np.zeros(len(off))
    # a_first**2 = R_12 R_1k/R_2k for the third position that shares most with both; a lone pair may split evenly
    third = int(np.argmax(np.minimum(np.abs(off[first]), np.abs(off[second]))))
    if min(abs(off[first, third]), abs(off[second, third])) > TOLERANCE:
        square = off[first, second] * off[first, third] / off[second, third]
    else:
        square = abs(off[first, second])
    if not 0 < square <= 1 + TOLERANCE:
        return None
    loading = off[first] / np.sqrt(square)
    loading[first] = np.sqrt(square)
    rebuilt = np.outer(loading, loading)
    np.fill_diagonal(rebuilt, 0.0)
    if np.abs(rebuilt - off).max() > 10 * TOLERANCE or np.abs(loading).max() > 1 + TOLERANCE:
        return None
    return np.clip(loading, -1.0, 1.0)
