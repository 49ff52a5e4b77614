"""Points at which the Cauchy transform of a law takes a value: the inverse K of G.

On the branch that is ``1/w + mean + ...`` at small w it is real beyond the outer edges (:func:`beyond_edges`), and
elsewhere it is followed along the ray from zero (:func:`along_ray`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq

from bulkedge.laws.engine.measure.crossings import CLOSEST
from bulkedge.support.arrays import EPS
from bulkedge.support.errors import DomainError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law


def beyond_edges(law: Law, w: float) -> float:
    """The real point beyond the outer edges of a law at which its Cauchy transform equals w."""
    low, high = law.edge_cauchy
    if not (low < w < high and w != 0):
        raise DomainError(f"w = {w!r} is outside its domain ({low:.6g}, {high:.6g}) without 0")
    start, sign = (law.edge, 1.0) if w > 0 else (law.lower_edge, -1.0)

    # |G| is at most one over the distance to the law, so the point is within 1/|w| of it
    def miss(v: float) -> float:
        value = float(law.cauchy(start + np.exp(v) / w).real)
        return sign * (value - w) if np.isfinite(value) else 1e300

    if miss(1e-9) > 0:  # so close to an atom that no number lies between
        return start
    return float(start + np.exp(brentq(miss, CLOSEST, 1e-9, xtol=1e-15, rtol=8 * EPS)) / w)


def along_ray(law: Law, w: complex) -> complex:
    """Newton continuation of ``G(z) = w`` along the ray from zero, where ``z = 1/w + mean``."""
    spread = max(abs(law.edge - law.mean()), abs(law.lower_edge - law.mean()))
    share = 0.05 / max(abs(w) * spread, 0.05)
    z = 1 / (share * w) + law.mean() if w else complex(np.nan)
    while np.isfinite(z):
        for _ in range(50):
            value, slope, _, _ = law.transforms(np.array([z]))
            with np.errstate(divide="ignore", invalid="ignore"):  # a vanishing slope ends the search below
                step = complex((share * w - value[0]) / slope[0])
            z += step
            if abs(step) <= 1e-14 * abs(z):
                break
        if (z.imag > 0) != (w.imag < 0):
            break
        if share == 1:
            return z
        share = min(1.0, 1.1 * share)
    raise DomainError(f"w = {w!r} is outside the image of the Cauchy transform along the ray from zero")
