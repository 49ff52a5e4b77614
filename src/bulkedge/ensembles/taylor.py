"""The exponential of attention's scores as a polynomial (*equivalence*, section 4).

>>> polynomial = taylor(beta=1.0, degree=30)
>>> round(polynomial.variance, 6), round(polynomial.slope, 6)    # of exp(x - 1/2) they are e - 1 and 1
(1.718282, 1.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Taylor:
    """A centred polynomial, with its variance and mean slope for a standard Gaussian."""

    coefficients: tuple[float, ...]
    variance: float
    slope: float

    def __call__(self, x: Any) -> Any:
        """Evaluate, by Horner's rule."""
        total = 0.0 * x + self.coefficients[-1]
        for each in self.coefficients[-2::-1]:
            total = total * x + each
        return total


def taylor(beta: float, degree: int) -> Taylor:
    """The Taylor polynomial of ``f(x) = exp(beta x - beta**2/2) - 1``, centred (*equivalence*, section 4)."""
    steps = np.cumprod(np.append(1.0, beta / np.arange(1, degree + 1)))
    raw = np.exp(-(beta**2) / 2) * steps
    nodes, weights = np.polynomial.hermite_e.hermegauss(degree + 2)
    weights = weights / weights.sum()
    values = np.polynomial.polynomial.polyval(nodes, raw)
    mean = float(weights @ values)
    slope = float(weights @ np.polynomial.polynomial.polyval(nodes, np.polynomial.polynomial.polyder(raw)))
    return Taylor((float(raw[0]) - mean, *raw[1:].tolist()), float(weights @ (values - mean) ** 2), slope)


def taylor_degree(dim: int, constant: float = 2.0) -> int:
    """``ceil(c log d/log log d)``, the degree that *equivalence* takes."""
    return int(np.ceil(constant * np.log(dim) / np.log(np.log(max(dim, 16)))))
