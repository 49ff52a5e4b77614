"""What the studies of *width* share: kernels of a layer as its output projection sees them, and their kurtosis.

The last weight of a layer is Gaussian at any width, so a coordinate of the output is Gaussian *given* the Gram matrix
of what the heads attended to. Means over that last weight are taken exactly, and only the Gram matrix is drawn: nothing
is assumed, and much less is left to chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.special import ndtr

from bulkedge.lab.studies.base import Estimate, Real
from bulkedge.plots.style import COLOURS, plain_ticks
from bulkedge.programs import dot, linear, scalar, softmax
from bulkedge.programs.graph import Program, Traced, trace
from bulkedge.support.domains import Integers, Interval

BATCHES = 25
"""Groups of draws over which curves are averaged; errors come from how the groups scatter."""
STATISTIC = ("value", "error")
RIVAL: Any = {"color": COLOURS[-1], "ls": ":", "lw": 1}
GREEN: Any = {"color": COLOURS[2], "ls": "--"}
# domain and words of parameters that several studies declare
CORRELATION = Interval(0, 0.9), "correlation of the inputs"
INPUTS = Integers(2, 5), "inputs s"
SCORE_VARIANCE = Interval(0.01, 20), "variance of a score"
WIDTH = Integers(8, 4096), "width n"


def before_projection(gram: Any, heads: int, score_variance: float, share: Fraction | int = 1) -> Program:
    """The program of the Gram matrices of the heads' outputs, before they are projected."""
    return trace(partial(_attended, heads=heads, score_variance=score_variance, share=share), gram)


def _attended(x: Traced, heads: int, score_variance: float, share: Fraction | int) -> Traced:
    query, key = (linear(x, share, score_variance**0.5, heads) for _ in range(2))
    attended = scalar(softmax, dot(query, key)) @ linear(x, share, copies=heads)
    return dot(attended, attended, "linear")


def over_heads(drawn: Real) -> Real:
    """Kernels of a layer from those of its heads."""
    return drawn if drawn.ndim == 3 else np.asarray(drawn.mean(axis=1))


def kurtosis(variances: Real) -> Estimate:
    """Excess kurtosis of a scale mixture of Gaussians, ``3 Var/mean**2``."""
    first, second = float(np.mean(variances)), float(np.mean(variances**2))
    ratio = second / first**2
    influence = 3 * (variances**2 / first**2 - 2 * ratio * variances / first)
    return Estimate(3 * (ratio - 1), Estimate.of(influence).error, len(variances) - 1.0)


def excess(draws: Real) -> Estimate:
    """Excess kurtosis of numbers of mean zero."""
    found = kurtosis(draws**2)
    return Estimate(found.value / 3 - 2, found.error / 3, found.freedom)


def distribution_function(variances: Real, points: Real) -> Real:
    """``P(y <= x)`` of a coordinate, batch by batch, from its variances given all but the last weight."""
    groups = np.array_split(np.sqrt(variances), BATCHES)
    return np.array([np.mean(ndtr(points / group[:, None]), axis=0) for group in groups])


def pairs(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Values and errors of estimates, for a variable with the dimension ``statistic``."""
    return [[float(each.value), float(each.error)] for each in estimates]


def from_pair(pair: xr.DataArray, freedom: float) -> Estimate:
    """An estimate from a variable with the dimension ``statistic`` alone."""
    return Estimate(float(pair.sel(statistic="value")), float(pair.sel(statistic="error")), freedom)


def slope(x: Any, estimates: Sequence[Estimate]) -> Estimate:
    """Exponent of a power law through independent estimates: least squares of logarithms."""
    logs = np.log(np.asarray(x, dtype=float))
    weights = (logs - logs.mean()) / np.sum((logs - logs.mean()) ** 2)
    values, errors = (np.array([getattr(each, name) for each in estimates]) for name in STATISTIC)
    error = float(np.sqrt(np.sum((weights * errors / values) ** 2)))
    return Estimate(float(weights @ np.log(values)), error, min(each.freedom for each in estimates))


def extrapolate(narrow: Estimate, wide: Estimate) -> Estimate:
    """From widths n and 2n to infinity, where the first correction is of order 1/n."""
    error = float(np.hypot(2 * wide.error, narrow.error))
    return Estimate(2 * wide.value - narrow.value, error, min(narrow.freedom, wide.freedom))


def sizes_title(figure: Figure, study: Any, *names: str, **more: object) -> None:
    """Parameters of a study, over the panels."""
    signs = {"width": "n", "inputs": "s", "heads": "H", "score_variance": "score variance", "rate": "rate"}
    known = {signs[name]: getattr(study, name) for name in names} | more
    parts = [f"{sign} = {value}" for sign, value in known.items()] + [f"{study.draws:,} draws"]
    figure.suptitle(", ".join(parts), fontsize=7)


def log_axes(axes: Any, x: Any, *, y: bool = True) -> None:
    """Logarithmic axes: a tick at each x, and no labels between powers of ten."""
    axes.set_xscale("log", base=2)
    plain_ticks(axes.xaxis, x)
    if y:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())


def plural(heads_: int) -> str:
    """A number of heads in words."""
    return f"{heads_} head{'s' if heads_ > 1 else ''}"
