"""Figure 4: at large beta attention is one-hot, and its squared singular values are Poisson.

Three things of a finite matrix are known to first order, and are in the predictions here. With M the mean of the
largest of T standard normal numbers, about ``sqrt(2 log T)``:

- The two largest scores of a row are closer than ``x/beta`` with probability ``M x/beta``, so that a share of rows of
  order ``M/beta`` is split between two keys, as w and 1 - w with ``w = 1/(1 + exp(-x))``. By integration by parts the
  mean of ``sum_j A_ij**2`` is ``1 - M/beta``. A split row joins two keys that have Poisson numbers of other rows, m and
  n, to the block ``[[m + w**2, w (1 - w)], [w (1 - w), n + (1 - w)**2]]`` of ``A'A``.
- Longer keys are chosen more often, so that the numbers of rows are Poisson with random rates of variance t, which adds
  ``t/2`` times the second difference to their probabilities.
- T rows over T keys are binomial, which is the same with ``t = -1/T``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MultipleLocator, NullFormatter
from scipy.special import ndtr
from scipy.stats import poisson

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Study, mean_marks
from bulkedge.lab.studies.claims import Claim, Rival, average, share
from bulkedge.lab.studies.equivalence import setting
from bulkedge.laws import MarchenkoPastur, PoissonLaw
from bulkedge.laws.attention.finite_head import cosine_quadrature, norm_quadrature
from bulkedge.plots.style import COLOURS, histogram, line, marks, panels
from bulkedge.spectra import spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

COUNTS, BIN = 8, 0.1
NEAR = BIN / 2
"""Values so close to an integer are counted as its atom, as in the bins of the paper's histogram."""
ENDS = np.arange(COUNTS * 10 + 1) * BIN - NEAR
"""Ends of bins with an integer in the middle of every tenth; distribution functions are compared there."""


@dataclass(frozen=True)
class EquivalencePoisson(Study):
    """Squared singular values of attention at very large beta gather at integers, as the Poisson law has them.

    What is left between the integers falls as one over beta.
    """

    tokens: int = parameter(*setting.TOKENS, 300, paper=1000)
    head_dim: int = parameter(Integers(16, 10_000), "head dimension", 300, paper=1000)
    beta: float = parameter(Interval(10, 1000), "inverse temperature", 50.0, paper=50.0)
    betas: tuple[float, ...] = parameter(
        Each(Interval(10, 1000)),
        "values of beta for the limit",
        (100.0, 200.0, 400.0, 800.0),
        ours=(100.0, 200.0, 400.0, 800.0),
    )
    draws: int = parameter(Integers(2, 100), "draws", 16, paper=10)
    small: ClassVar = {"tokens": 150, "head_dim": 150, "draws": 12}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Squared singular values of A itself."""
        values = self._values(self.beta, rng)
        apart = [[_apart(row).mean() for row in self._values(beta, rng)] for beta in track(self.betas, "beta")]
        law, dense = PoissonLaw(1.0), MarchenkoPastur(1.0)
        levels = 1 - (np.arange(self.tokens) + 0.5) / self.tokens
        masses = np.array([np.searchsorted(row, ENDS, side="right") / self.tokens for row in values])
        return xr.Dataset(
            {
                "sorted": (("draw", "rank"), values[:, ::-1], {"long_name": "squared singular value"}),
                "quantile": ("rank", law.ppf(levels), {"long_name": "Poisson quantile"}),
                "dense_quantile": ("rank", dense.ppf(levels), {"long_name": "Marchenko-Pastur quantile"}),
                "mass": (("draw", "end"), masses, {"long_name": "distribution function"}),
                "poisson": ("end", law.cdf(ENDS)),
                "predicted": ("end", self.predicted(self.beta), {"long_name": "Poisson, to first order"}),
                "dense": ("end", dense.cdf(ENDS), {"long_name": "Marchenko-Pastur"}),
                "apart": (("beta", "draw"), apart, {"long_name": "share of values away from integers"}),
                "largest": ((), self.largest(), {"long_name": "M, the mean of the largest score of a row"}),
                "split": ((), _away(), {"long_name": "the same for each row that is split, to first order"}),
            },
            coords={"end": ENDS, "beta": list(self.betas)},
        )

    def _values(self, beta: float, rng: np.random.Generator) -> Real:
        model = SoftmaxAttention(self.tokens, self.head_dim, beta)
        return np.array([spectrum(model.sample(rng)).squared().values for _ in range(self.draws)])

    def predicted(self, beta: float) -> Real:
        """The distribution function at the ends of the bins, to first order in what a finite matrix has besides."""
        counts = np.arange(40)
        atoms = poisson.pmf(counts, 1.0)
        second = atoms - 2 * np.append(0, atoms[:-1]) + np.append([0, 0], atoms[:-2])
        atoms = atoms + (self.popularity() - 1 / self.tokens) / 2 * second
        return np.asarray(atoms @ (counts[:, None] <= ENDS) + self.largest() / beta * _moved())

    def largest(self) -> float:
        """Mean M of the largest of T standard normal numbers, times ``E 1/r`` for the norm r of a query."""
        x = np.linspace(-10, 10, 20_001)
        highest = float(np.diff(ndtr(x) ** self.tokens) @ (x[1:] + x[:-1]) / 2)
        norms, weights = norm_quadrature(self.head_dim, self.tokens, 16)
        return highest * float(weights @ (1 / norms))

    def popularity(self) -> float:
        """``E (T p)**2 - 1`` over keys, p the probability that a key of given norm has the largest score of a row."""
        norms, weights = norm_quadrature(self.head_dim, self.tokens, 16)
        cosine, mass = cosine_quadrature(self.head_dim, 400)
        wins = mass @ ndtr(self.head_dim**0.5 * np.outer(cosine, norms)) ** (self.tokens - 1)
        return float(weights @ wins**2 / (weights @ wins) ** 2 - 1)

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The law against that of dense matrices, its atoms, its mean, and the limit of large beta."""
        split = self.largest() / self.beta
        direction = (data.dense - data.predicted).values
        # Q/2 rows for each key are split visibly and have two ends: a key has Q of them, and Q**2/2 pairs of them
        second = (float(data.split) * split) ** 2 / 2
        reason = "the next order: Q**2/2 pairs of split rows share a key, Q being the share of values that are moved"
        claims = [
            Claim(
                statement="share of the Marchenko-Pastur law in the distribution function",
                place="equivalence: Figure 4",
                measured=share(data.mass, data.predicted, data.dense),
                predicted=0.0,
                rival=Rival("the law of dense matrices", 1.0),
                finite_size=second * np.abs(direction).sum() / (direction @ direction),
                reason=reason,
            ),
            Claim(
                statement="mean squared singular value: 1 - M/beta, M the mean of the largest of T scores",
                place="equivalence: Figure 4",
                measured=Estimate.of(data.sorted.mean("rank")),
                predicted=1 - split,
                rival=Rival("rows that are exactly one-hot", 1.0),
                finite_size=split**3,
                reason="the next order of the expansion in M/beta",
            ),
        ]
        return claims + [self._atom(data, count, second, reason) for count in (0, 1, 2)] + self._limit(data)

    def _atom(self, data: xr.Dataset, count: int, finite_size: float, reason: str) -> Claim:
        """The share of values in the bin around an integer."""
        low, high = 10 * count, 10 * count + 1
        theory, dense = (float(each[high] - each[low]) for each in (data.predicted, data.dense))
        return Claim(
            statement=f"share of squared singular values within {NEAR:g} of {count}",
            place="equivalence: Figure 4",
            measured=Estimate.of(data.mass[:, high] - data.mass[:, low]),
            predicted=theory,
            rival=Rival("Marchenko-Pastur", dense),
            finite_size=finite_size,
            reason=reason,
        )

    def _limit(self, data: xr.Dataset) -> list[Claim]:
        betas, place = np.array(self.betas), "equivalence: Figure 4, Open question 1"
        order = self.largest() / betas
        next_order = float(data.split) * order
        apart = average(data.apart / xr.DataArray(order, dims="beta"))
        if apart.error == 0:  # not one value between integers: the error is that of the number that was expected
            apart = Estimate(apart.value, float(np.sqrt(data.split / order / data.sizes["rank"] / self.draws).mean()))
        claims = [
            Claim(
                statement=f"share of values farther than {NEAR:g} from integers, over M/beta, mean over beta",
                place=place,
                measured=apart,
                predicted=float(data.split),
                rival=Rival("a spectrum of Poisson atoms alone", 0.0),
                finite_size=float(data.split * next_order.mean()),
                reason="the next order: each of Q**2/2 pairs of split rows that share a key makes up to two less",
            )
        ]
        logs = np.log(betas)
        if len(set(self.betas)) > 1 and float(data.apart.mean("draw").min()) > 0:
            weights = (logs - logs.mean()) / np.sum((logs - logs.mean()) ** 2)
            claims.append(
                Claim(
                    statement="power of beta with which values leave the space between integers",
                    place=place,
                    measured=Estimate.jackknife(
                        lambda draws: float(np.log(draws.mean(axis=0)) @ weights), data.apart.transpose("draw", "beta")
                    ),
                    predicted=-1.0,
                    rival=Rival("no convergence to the Poisson law", 0.0),
                    finite_size=float(abs(weights @ next_order)),
                    reason="the next order, relative Q with Q the share at each beta",
                )
            )
        return claims

    def figure(self, data: xr.Dataset) -> Figure:
        """Histogram with bins of 0.1 around the atoms, sorted values over quantiles, and the mass between integers."""
        figure, grid = panels(1, 3, width=2.7, height=2.5)
        left, middle, right = grid[0]
        histogram(left, data.end, np.diff(data.mass.mean("draw")))
        # every tenth bin has an integer in its middle: if all values are there, its bar is as high as the atom
        atoms = np.diff(data.poisson)[::10]
        line(left, np.arange(len(atoms)), atoms, label="Poisson(1), β = ∞", ls="", marker="o", ms=4, mfc="none")
        histogram(
            left, data.end, np.diff(data.predicted), label="to first order in 1/β", fill=False, color=COLOURS[1], lw=0.7
        )
        stairs = {"fill": False, "color": COLOURS[2], "lw": 0.9, "zorder": 2}
        histogram(left, data.end, np.diff(data.dense), label="Marchenko–Pastur", **stairs)
        left.set(xlabel="squared singular value", ylabel="share of a bin of 0.1", xlim=(-0.3, 6.3))
        left.xaxis.set_major_locator(MultipleLocator(1))
        rank = np.arange(1, data.sizes["rank"] + 1)
        every = slice(None, None, max(1, len(rank) // 60))
        marks(middle, rank[every], data.sorted.mean("draw")[every], data.sorted.std("draw", ddof=1)[every], ms=2)
        line(middle, rank, data["quantile"], label="Poisson(1) quantiles", lw=1.0)
        line(middle, rank, data.dense_quantile, label="Marchenko–Pastur", color=COLOURS[2], lw=0.9, zorder=2)
        middle.set(xlabel="rank", ylabel="squared singular value")
        fine = np.geomspace(float(data.beta.min()), float(data.beta.max()), 50)
        line(right, fine, float(data.split * data.largest) / fine, label=r"first order, $\propto 1/\beta$")
        mean_marks(right, data.beta, data.apart)
        right.set(xscale="log", yscale="log", xlabel="β", ylabel="share of values between integers")
        right.xaxis.set_major_locator(FixedLocator(data.beta.values.tolist()))
        right.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        right.xaxis.set_minor_formatter(NullFormatter())
        setting.plain_logarithms(right.yaxis)
        for axes in grid[0]:
            axes.legend(loc="upper right")
        figure.suptitle(
            f"{self.tokens} tokens, {self.head_dim} dimensions, {self.draws} draws; left and middle: β = {self.beta:g}"
        )
        return figure


def _apart(values: Real) -> Any:
    return np.abs(values - np.round(values)) > NEAR


@cache
def _blocks() -> tuple[Real, Real, Real]:
    """Eigenvalues of the block of two keys that share a row, those of a row that is not shared, and their weights.

    Shapes are (x, m, n, 2) for both kinds of values and (x, m, n) for the weights, which sum to the length of the
    interval of x: the closeness of the two scores, times beta.
    """
    x, others = (np.arange(400) + 0.5) / 20, np.arange(12)
    w, m, n = np.meshgrid(1 / (1 + np.exp(-x)), others, others, indexing="ij")
    first, second, joint = m + w**2, n + (1 - w) ** 2, w * (1 - w)
    middle, half = (first + second) / 2, np.sqrt((first - second) ** 2 / 4 + joint**2)
    probability = poisson.pmf(m, 1.0) * poisson.pmf(n, 1.0) / 20
    return np.stack([middle - half, middle + half], -1), np.stack([m + 1.0, n + 0.0], -1), probability


def _moved() -> Real:
    """What split rows do to the distribution function at the ends of the bins, over ``M/beta``."""
    split, whole, probability = _blocks()
    return np.array([np.sum(probability * ((split <= end).sum(-1) - (whole <= end).sum(-1))) for end in ENDS])


def _away() -> float:
    """How many values away from integers they make, over ``M/beta``."""
    split, _, probability = _blocks()
    return float(np.sum(probability * _apart(split).sum(-1)))
