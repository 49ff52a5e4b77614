"""Multipliers of fixed points: whether the eigenvalues of many small matrices are below one."""

from __future__ import annotations

from typing import Any

import numpy as np

from bulkedge.support.arrays import Complex, Mask, Real

SQUARINGS = 5
"""Squarings of a matrix that are tried before its eigenvalues are computed: a power of norm below one proves enough."""


def contracts(jacobian: Complex) -> Mask:
    """Whether the eigenvalues of matrices given as ``(d, d, n)`` all have modulus below one."""
    if len(jacobian) <= 2:
        return spectral_radius(jacobian) < 1
    # in a gap the variables are real
    power: Any = np.moveaxis(jacobian.real if not np.any(jacobian.imag) else jacobian, -1, 0)
    proved = np.zeros(jacobian.shape[-1], dtype=bool)
    for _ in range(SQUARINGS):
        proved |= np.sqrt((np.abs(power) ** 2).sum(axis=(1, 2))) < 1
        if proved.all():
            return proved
        power = power @ power
    proved[~proved] = spectral_radius(jacobian[..., ~proved]) < 1
    return proved


def spectral_radius(jacobian: Complex) -> Real:
    """Largest modulus of the eigenvalues of matrices given as ``(d, d, n)``."""
    if len(jacobian) == 1:
        return np.abs(jacobian[0, 0])
    if len(jacobian) > 2:
        finite = np.where(np.isfinite(jacobian), jacobian, 1e300)
        return np.abs(np.linalg.eigvals(np.moveaxis(finite, -1, 0))).max(axis=1, initial=0.0)
    (a, b), (c, d) = jacobian
    split = np.sqrt((a - d) ** 2 / 4 + b * c)
    return np.maximum(np.abs((a + d) / 2 + split), np.abs((a + d) / 2 - split))
