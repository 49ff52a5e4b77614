"""Sliding-window attention: each token sees so many tokens about it (ours).

Far from both ends all rows are alike, and the mask is a sum over frequencies: a degree of the exponential, a matrix of
rank N without the mask, is a sum of independent low-rank terms with it, one for each frequency (:func:`stationary`).
Next to the ends rows see fewer tokens, or columns are seen by fewer rows. That changes the law by more than a share of
``width/tokens`` suggests: a window that looks back has about ``width/2`` vanishing singular values, which live at the
ends. So the first and the last windows are solved for place by place (:mod:`bulkedge.laws.engine.window_equations`),
up to MOST_STRETCHES of them, and what lies between is stationary (docs/theory/windows.md).

>>> law = WindowLaw(beta=0.5, head_dim=32, tokens=800, width=100, qk_norm=True)
>>> law.cdf([0.1, 1.0, 10.0]).round(2)
array([0.26, 0.61, 0.93])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.interpolate import PchipInterpolator

from bulkedge.laws.attention.causal_head import FIRST_ROWS, first_row_norms, log_scale_bulk, row_terms
from bulkedge.laws.attention.finite_head import ANY_BETA, accuracy, check_norms, warn_of_deviation
from bulkedge.laws.classical.images import mixed_bulk
from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.masked_density import LogDensity, density
from bulkedge.laws.engine.masked_equations import DEPTHS, SizeGroups
from bulkedge.laws.engine.measure.continuum import resolve
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.engine.window_equations import SMALLEST, WindowProblem
from bulkedge.laws.law import COUNT, LEVEL, BulkDensity, Law
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError

CELLS, FEWEST_CELLS, MOST_CELLS = 72, 12, 32
"""Cells of all windows together, and of one at most; a window has FEWEST_CELLS at least. With 8 windows the
distribution function is off by 0.001 to 0.003, which is 1/cells**2."""
PLACES = 8  # in a cell, over which the variance of rows is averaged
SHALLOW = 16.0  # how far below the variance windows that look to both sides are represented
GRADE = 0.2  # share of the cells' ends that is quadratic: the first rows see few tokens, and differ most
MOST_STRETCHES = 8
"""Windows that are solved for place by place. What is further from both ends than four windows is stationary."""
RESOLVED = 1e-10  # relative error of a resolved density
NARROW = 0.5  # distance of draws times the width of a window, besides what full attention has
PANELS = ((0.0, 2.0, 10), (2.0, 4.0, 6), (4.0, 8.0, 6))
"""Frequencies over pi times the width, and nodes there: what is beyond, 2.5 % of the variance, is noise."""


@dataclass(frozen=True)
class WindowLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - C)``, A attention to a sliding window and C its mean.

    Token i sees the keys j with ``i - width < j - after <= i``: ``width`` of them, ``after`` of which follow it. That
    is the mask ``Mask.window(tokens, width, after)``. With ``after = 0`` tokens look back only, with ``after = (width -
    1)/2`` to both sides evenly. Next to the ends of the sequence tokens see those that there are.

    Values below about ``exp(-80)`` times the variance are shown as an atom at zero: at most a tenth of
    ``width/tokens``. From a quarter of ``width`` after the token on, hardly any are small, and that is ``exp(-16)``.

    >>> law = WindowLaw(beta=0.5, head_dim=32, tokens=800, width=100)
    >>> round(law.mean(), 2), law.ppf([0.5, 0.9]).round(1)
    (2.72, array([0.5, 8.1]))
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - C), A attention to a window and C its mean"

    beta: float = parameter(Interval(0.05, 4.0), "inverse temperature: standard deviation of the scaled scores")
    head_dim: int = parameter(Integers(8, 4096), "dimension d of queries and keys")
    tokens: int = parameter(Integers(64, 10**8), "number of tokens T")
    width: int = parameter(Integers(32, 2**20), "number of keys that a token sees, itself included; at most tokens")
    after: int = parameter(Integers(0, 2**20), "how many of them follow the token; below width", 0)
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)
    head_beta: float = parameter(ANY_BETA, "inverse temperature of heads that the law stands for, if above beta", 1e-3)

    def __post_init__(self) -> None:
        """Check the parameters, and what they are together."""
        super().__post_init__()
        if self.width > self.tokens:
            raise DomainError(f"width = {self.width} is outside its domain: at most tokens = {self.tokens}")
        if self.after >= self.width:
            raise DomainError(f"after = {self.after} is outside its domain: below width = {self.width}")
        check_norms(self.head_dim, qk_norm=self.qk_norm)
        warn_of_deviation(self)

    @property
    def accuracy(self) -> float:
        """Kolmogorov distance that draws were not found to exceed (docs/laws/window.md)."""
        return accuracy(self) + NARROW / self.width

    @property
    def atoms(self) -> PointMasses:
        """What lies below the smallest value represented, at zero."""
        return ((0.0, self._share * _ends(self).below),)

    @property
    def _share(self) -> float:
        """The share of the tokens that is solved for place by place."""
        return min(1.0, MOST_STRETCHES * self.width / self.tokens)

    def _bulk(self) -> BulkDensity | None:
        ends = log_scale_bulk(_ends(self))
        if self._share == 1:
            return ends
        between = bulk_of(stationary(self), ())
        if between is None:
            return ends
        # the ends ask for densities down to exp(-80): from the equations, that costs more work than a law may
        resolved = resolve(*between)

        def density(x: Real) -> tuple[Real, Real]:
            found = resolved.pdf(x)
            return found, RESOLVED * found

        return mixed_bulk([(self._share, ends), (1 - self._share, (between[0], density))])

    def finite_edge(self, n: int, level: float = 0.01, dyson: int = 1) -> float:
        """The value that the largest one of a draw exceeds with probability ``level``.

        Where tokens look back it belongs to the first rows, which see few tokens: as for
        :meth:`CausalHeadLaw.finite_edge`, that is sampled, whatever ``n`` and ``dyson``. Where a few keys follow the
        token it is the edge at least.
        """
        if self.after >= FIRST_ROWS:
            return super().finite_edge(n, level, dyson)
        COUNT.check("n", n)
        level = LEVEL.check("level", level)
        norms = first_row_norms(max(self.beta, self.head_beta), self.after)
        return max(float(self.tokens * np.quantile(norms, 1 - level)), self.edge if self.after else 0.0)

    def reach(self, n: int, level: float, dyson: int = 1) -> float:
        """What the largest of n bulk values exceeds with probability ``level``: :meth:`finite_edge`."""
        return self.finite_edge(n, level, dyson)


@lru_cache(maxsize=64)
def _ends(law: WindowLaw) -> LogDensity:
    """The law of the first and the last windows, all of them if there are few; once in a process."""
    found = density(window_equations(law))
    # rows sum to one, which maps the constant vector to zero
    others = 1 - 1 / min(law.tokens, MOST_STRETCHES * law.width)
    return replace(found, below=1 - others + found.below * others, scale=found.scale * others)


def window_equations(law: WindowLaw, cells: int | None = None) -> WindowProblem:
    """The equations of the first and the last windows."""
    # a window that looks forward is one that looks back, with rows that come later by so many places
    tokens, width = min(law.tokens, MOST_STRETCHES * law.width), law.width
    stretches = int(np.ceil((tokens + law.after) / width))
    cells = cells or int(np.clip(CELLS // stretches, FEWEST_CELLS, MOST_CELLS))
    parts = np.linspace(0, 1, cells + 1)
    stops = width * ((1 - GRADE) * parts + GRADE * parts**2)
    starts = width * np.arange(stretches)[:, None]
    low, high = starts + stops[:-1], starts + stops[1:]
    rows, columns = (
        np.maximum(np.clip(high, first, first + tokens) - np.clip(low, first, first + tokens), SMALLEST * (high - low))
        for first in (law.after, 0)
    )
    # numbers of keys that rows see, themselves included: in the middle of each cell, and at places all over it
    places = low[..., None] + (high - low)[..., None] * np.array([0.5, *(np.arange(PLACES) + 0.5) / PLACES]) + 0.5
    counts = np.clip(np.minimum(places, tokens) - np.maximum(places - width, 0), 1, width).reshape(-1, PLACES + 1)
    terms = row_terms(law.beta, law.head_dim, width, qk_norm=law.qk_norm)
    found = np.maximum(PchipInterpolator(np.log(terms.counts), terms.variances)(np.log(counts[:, 1:])), 0.0)
    # the variance of all rows of a cell, over the keys of the one in its middle
    pulls = law.tokens * (found / counts[:, 1:, None]).mean(axis=1) / counts[:, :1]
    sizes = (SizeGroups(terms.shares[None], squares[None]) for squares in (terms.rows, terms.columns))
    # windows that look to both sides have hardly any values next to zero
    depths = (*DEPTHS, SHALLOW) if 4 * law.after < width else (SHALLOW,)
    return WindowProblem(depths, tokens, rows, columns, pulls, 1 / terms.harmonics, *sizes)


def stationary(law: WindowLaw) -> ProfiledSum:
    """The law far from both ends: each degree as low-rank terms, one for each frequency of the window."""
    # the window multiplies frequency omega by s = sin(omega/2)/(omega/2), and d omega/(2 pi) of all places have it
    terms = row_terms(law.beta, law.head_dim, law.width, qk_norm=law.qk_norm)
    panels = [np.polynomial.legendre.leggauss(count) for _, _, count in PANELS]
    nodes = [(low + high + (high - low) * x) / 2 for (low, high, _), (x, _) in zip(PANELS, panels, strict=True)]
    # omega and -omega are two terms of half the rank, which are one
    share = np.concatenate([(high - low) / 2 * w for (low, high, _), (_, w) in zip(PANELS, panels, strict=True)])
    power = np.sinc(np.concatenate(nodes) / 2) ** 2 * share
    variances, ratios, which = [], [], []
    for k, (variance, harmonics) in enumerate(zip(terms.variances[-1], terms.harmonics, strict=True)):
        if np.isfinite(harmonics):
            variances.append(variance * power)
            ratios.append(harmonics / law.width * share)
            which += [k] * len(share)
        # what is left of a degree, beyond the last frequency, is noise with its sizes
        variances.append([variance * (1 - power.sum()) if np.isfinite(harmonics) else variance])
        ratios.append([np.inf])
        which.append(k)
    scale = law.tokens / law.width
    sides = (Profile(terms.shares, squares[which]) for squares in (terms.rows, terms.columns))
    return ProfiledSum(scale * np.concatenate(variances), np.concatenate(ratios), *sides)
