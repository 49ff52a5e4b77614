"""Laws of heads between those of the table: their quantiles, as polynomials in beta and in the spread of popularity."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import NamedTuple

import numpy as np

from bulkedge.lab.explore.grid import BETAS, SPREADS, Shape, levels
from bulkedge.support.arrays import Real

ACCURACY, SHOWN_FROM = 0.02, 1e-6
"""Kolmogorov distance that interpolated laws keep from the laws themselves (a test draws some and measures it), and the
value from which on: causal heads have smaller ones, which no figure shows."""
LARGEST = 0.4
"""How far the largest value, at the share of half a value, may be from that of the law, relative to it: 2 % for most
heads, 15 % with popular keys, and this much for causal heads of many tokens, whose edge is thin."""
INTERPOLATED = (
    f"Interpolated from a table of laws: within {ACCURACY:g} of the law's distribution function, its largest value "
    f"within {LARGEST:.0%}. The law itself follows."
)
"""What the page says of it."""


class Quantiles(NamedTuple):
    """A distribution by some of its quantiles."""

    levels: Real
    values: Real

    def cdf(self, x: Real) -> Real:
        """Share of values below points, linear in the logarithm between quantiles."""
        return np.interp(np.log(x), np.log(self.values), self.levels, left=0.0, right=1.0)

    def density(self) -> tuple[Real, Real]:
        """Density by the natural logarithm of the value, at points between the quantiles."""
        logs = np.log(self.values)
        steps = np.maximum(np.diff(logs), 1e-9)
        return np.exp((logs[1:] + logs[:-1]) / 2), np.diff(self.levels) / steps


@cache
def table() -> dict[str, Real]:
    """The table: logarithms of quantiles by the name of the shape, with axes (spread, beta, level)."""
    stored = files("bulkedge.lab.explore").joinpath("tables", "heads.npz").read_bytes()
    with np.load(BytesIO(stored), allow_pickle=False) as found:
        return {name: found[name].astype(float) for name in found.files}


def quantiles(shape: Shape, beta: float, spread: float) -> Quantiles | None:
    """A law of heads, interpolated."""
    logs = table().get("-".join(str(int(each)) for each in shape))
    if logs is None:
        return None
    logs = logs if spread else logs[:1]
    along_beta = np.tensordot(lagrange(np.array(BETAS), beta), logs, axes=(0, 1))
    squares = np.array(SPREADS[: len(logs)]) ** 2
    found = lagrange(squares, spread**2) @ along_beta
    if not np.all(np.isfinite(found)):
        return None
    return Quantiles(levels(shape.head_dim, shape.tokens), np.exp(np.maximum.accumulate(found)))


def lagrange(nodes: Real, x: float) -> Real:
    """Weights of the polynomial through given nodes, at a point.

    Examples
    --------
    >>> lagrange(np.array([0.0, 1.0, 2.0]), 1.5).round(3).tolist()
    [-0.125, 0.75, 0.375]
    """
    apart = np.where(np.eye(len(nodes), dtype=bool), 1.0, nodes[:, None] - nodes)
    reach = np.where(np.eye(len(nodes), dtype=bool), 1.0, x - nodes[None, :])
    return np.prod(reach / apart, axis=1)
