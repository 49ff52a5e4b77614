"""What several studies of *equivalence* share: two laws in one distribution function, and entries that no law knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator
from scipy.special import ndtr

from bulkedge.lab.studies.base import Real, Study
from bulkedge.laws.distribution import Distribution
from bulkedge.spectra import Spectrum
from bulkedge.support.domains import Integers

LEVELS = (np.arange(40) + 0.5) / 40
"""Quantiles of each of two laws at which distribution functions are compared."""
UNKNOWN = 2.0
"""Values that no law here knows: the zero of the constant vector, which row sums of one make, and the value of the term
of rank one that the norms of keys make (``equivalence/rank-one``)."""
# domain and words of parameters that several studies declare
DRAWS = Integers(2, 1000), "draws"
TOKENS = Integers(100, 10_000), "tokens"


class Shares(NamedTuple):
    """How much of a rival's law is in measured distribution functions."""

    draws: Real
    """0 for the law, 1 for the rival, by projection on the difference of the two."""
    response: float
    """By how much the share moves at most if the distribution function moves by one, at every point."""


def shares(found: Sequence[Spectrum], law: Distribution, rival: Distribution) -> Shares:
    """Project the distribution functions of spectra on the difference of two laws."""
    points = np.sort(np.concatenate([law.ppf(LEVELS), rival.ppf(LEVELS)]))
    theory = law.cdf(points)
    direction = rival.cdf(points) - theory
    square = float(direction @ direction)
    masses = np.array([np.searchsorted(each.values, points, side="right") / each.size for each in found])
    return Shares(np.asarray((masses - theory) @ direction / square), float(np.abs(direction).sum()) / square)


def large_entries(beta: float, tokens: int) -> float:
    """Expected number of entries of ``sqrt(T) (A - uu')`` whose square exceeds the variance of a row, theta_1."""
    cut = (np.log1p(np.sqrt(np.expm1(beta**2) * tokens)) + beta**2 / 2) / beta
    return float(tokens**2 * ndtr(-cut))


def doubling_axis(axes: Axes, values: Any) -> None:
    """A logarithmic axis whose ticks are the values themselves."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(np.asarray(values, dtype=float).tolist()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.xaxis.set_minor_locator(NullLocator())


def plain_logarithms(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 of every decade, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def sizes_title(study: Study) -> str:
    """Tokens, head dimension and beta of a study, for a title."""
    known = {"tokens": r"$T$", "head_dim": "d", "beta": "β"}
    return ", ".join(f"{sign} = {getattr(study, name):g}" for name, sign in known.items() if hasattr(study, name))
