"""The outlier where sequences have weights of their own (ours): what the studies of the paper's open points predict.

Row i is ``a_i m + sqrt(kappa_i) eta_i``: its weights keep ``a_i = w_i.xi_i`` of the half difference m of the class
means, and ``kappa_i = |w_i|**2`` of the noise, which has the law MP(delta) given the table. If the weights do not know
the directions of the noise, its sample covariance has the resolvent ``(z - t S)**-1`` in deterministic equivalents, and
in the space of samples ``1/(z (1 - e kappa_i))``, with ``t = mean kappa/(1 - e kappa)``, ``e = tr S (z - t S)**-1/N``.
The outlier is where ``|m|**2 g(z) h(z) = 1``, ``g = tr (z - t S)**-1/d`` and ``h = mean a**2/(1 - e kappa)``. With
``z/t = (1 + x)(x + delta)/x`` these are explicit in x but for t:

``g = 1/(t (x + delta))``, ``e = gamma/(t x)``, and ``mean kappa/(t - gamma kappa/x) = 1``.

For weights that are the same everywhere ``t = kappa (1 + gamma/x)``, which gives the outlier of Theorem 3.

>>> import numpy as np
>>> from bulkedge.ensembles.pooled import PooledSequences
>>> from bulkedge.recovery import causal_weights, prefix_correlation
>>> model = PooledSequences(1000, 2000, 3000, 1.3, causal_weights(10), prefix_correlation(10, 4, 0.6))
>>> same = UnevenRows(np.full(5, model.alpha), np.full(5, model.kappa), 1.3**2 + 0.5, 0.5, 1 / 3)
>>> [round(each, 4) for each in same.spike()]
[1.3866, 0.873]
>>> found = model.alignment()
>>> round(float(model.sample_spike().location), 4), round(found.sample * found.population, 4)
(1.3866, 0.873)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from bulkedge.support.arrays import Real
from bulkedge.support.errors import UnresolvedError

STEP = 1e-5
"""Relative step of the derivative in x, whose error is of its square."""

HIDDEN = "the signal is below the threshold: no outlier leaves the bulk. Take a stronger one"


@dataclass(frozen=True, eq=False)
class UnevenRows:
    """Rows that keep different parts of signal and noise.

    Attributes
    ----------
    squares, noises : arrays of shape (rows,)
        ``a_i**2`` and ``kappa_i`` of each row, or of a sample of rows.
    length : float
        ``|m|**2``, squared length of half the difference of the class means.
    vocab_ratio, sample_ratio : float
        ``delta = d/V`` and ``gamma = d/N``.
    """

    squares: Real
    noises: Real
    length: float
    vocab_ratio: float
    sample_ratio: float

    def spike(self) -> tuple[float, float]:
        """Where the outlier is, and the squared overlap of its eigenvector with m."""
        alike = float(np.mean(self.squares) / np.mean(self.noises)) * self.length
        high = 4 * (alike + 1) * float(np.max(self.noises) / np.mean(self.noises))
        # the outlier is the largest solution: walk down to the first place where the condition is met
        low = next((each for each in np.geomspace(high, 1e-3, 60) if self._condition(each) > 1), None)
        if low is None or low == high:
            raise UnresolvedError(HIDDEN)
        x = float(brentq(lambda each: self._condition(each) - 1, low, high, xtol=1e-13))
        ahead, behind = (self._parts(x * (1 + sign * STEP)) for sign in (1, -1))
        _, g, h, z = self._parts(x)
        slope = (ahead[1] * ahead[2] - behind[1] * behind[2]) / (ahead[3] - behind[3])
        if not (ahead[3] > behind[3] and slope < 0):
            raise UnresolvedError(HIDDEN)
        return float(z), float(-(g**2) * h / slope)

    def _condition(self, x: float) -> float:
        _, g, h, _ = self._parts(x)
        return self.length * g * h

    def _parts(self, x: float) -> tuple[float, float, float, float]:
        """``t``, ``g``, ``h`` and ``z`` at x."""
        pull = self.sample_ratio / x * self.noises
        least, mean = float(pull.max()), float(np.mean(self.noises))
        # the mean of kappa/(t - pull) falls from infinity to below one on the way to the mean of kappa above the pole
        t = float(
            brentq(
                lambda each: float(np.mean(self.noises / (each - pull))) - 1,
                least * (1 + 1e-12) + 1e-300,
                least + mean * (1 + 1e-9),
                xtol=1e-15 * (least + mean),
            )
        )
        g = 1 / (t * (x + self.vocab_ratio))
        h = float(np.mean(self.squares / (1 - pull / t)))
        return t, g, h, t * (1 + x) * (x + self.vocab_ratio) / x
