"""Figure 4: at large beta attention is one-hot, and its squared singular values are Poisson.

At finite beta a share of rows of order ``M/beta`` is split between two keys, M the mean of the largest of T standard
normal numbers: the two largest scores are closer than ``x/beta`` with probability ``M x/beta``, and weigh w and 1 - w
with ``w = 1/(1 + exp(-x))``. By integration by parts the mean of ``sum_j A_ij**2`` is ``1 - M/beta``. What it does to
the spectrum:

- To first order a split row joins two keys that have Poisson numbers of other rows, m and n, to the block
  ``[[m + w**2, w (1 - w)], [w (1 - w), n + (1 - w)**2]]`` of ``A'A``. That is the limit of large beta.
- At beta = 50 and 300 tokens a quarter of the atom at 2 belongs to the next orders. The cavity equations of
  :class:`~bulkedge.laws.SharpHeadLaw` have them all, for keys that are all alike.
- Longer keys are chosen more often: the numbers of rows are Poisson with random rates of variance t; T rows over
  T keys are binomial, which is the same with ``t = -1/T``. The graph of the cavity equations has such rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr
from scipy.stats import poisson

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, average, dataset, follows, mean_marks, track
from bulkedge.lab.studies.equivalence import TOKENS, plain_logarithms
from bulkedge.laws import MarchenkoPastur, PoissonLaw
from bulkedge.laws.attention.finite_head import cosine_quadrature, norm_quadrature
from bulkedge.laws.attention.sharp_head import TOLERANCE, sharp_graph
from bulkedge.laws.engine.cavity import Cavity, HalfCircle
from bulkedge.plots.style import COLOURS, histogram, line, marks, panels, plain_ticks
from bulkedge.spectra import spectrum
from bulkedge.support.domains import Each, Integers, Interval, parameter

POISSON = "equivalence: Figure 4, Open question 1"
COUNTS, BIN = 8, 0.1
NEAR = BIN / 2
"""Values so close to an integer are counted as its atom, as in the bins of the paper's histogram."""
ENDS = np.arange(COUNTS * 10 + 1) * BIN - NEAR
"""Ends of bins with an integer in the middle of every tenth; distribution functions are compared there."""
STREAMS, SOBOL = 3, 0.0025
"""Graphs of which the distribution function is the mean, and by how much that depends on their points."""


@dataclass(frozen=True)
class EquivalencePoisson(Study):
    """At very large beta the squared singular values of attention gather at integers and follow the Poisson law.

    What is left between the integers falls as one over beta.
    """

    tokens: int = parameter(*TOKENS, 300, paper=1000)
    head_dim: int = parameter(Integers(16, 10_000), "head dimension", 300, paper=1000)
    beta: float = parameter(Interval(10, 1000), "inverse temperature", 50.0, paper=50.0)
    betas: tuple[float, ...] = parameter(
        Each(Interval(10, 1000)),
        "values of beta for the limit",
        (100.0, 200.0, 400.0, 800.0),
        ours=(100.0, 200.0, 400.0, 800.0),
    )
    draws: int = parameter(Integers(2, 100), "draws", 16, paper=10)
    small = {"tokens": 150, "head_dim": 150, "draws": 12}
    caption = """Squared singular values at very large β as a histogram (left), sorted (middle), and the
    share that lies between integers over β (right). Values should gather at the integers with the Poisson weights,
    and the share between them should fall like the line of first order."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Squared singular values of A itself."""
        values = self._values(self.beta, rng)
        apart = [[_apart(row).mean() for row in self._values(beta, rng)] for beta in track(self.betas, "beta")]
        law, dense = PoissonLaw(1.0), MarchenkoPastur(1.0)
        levels = 1 - (np.arange(self.tokens) + 0.5) / self.tokens
        masses = np.array([np.searchsorted(row, ENDS, side="right") / self.tokens for row in values])
        return dataset(
            sorted=(("draw", "rank"), values[:, ::-1], "squared singular value"),
            quantile=("rank", law.ppf(levels), "Poisson quantile"),
            dense_quantile=("rank", dense.ppf(levels), "Marchenko-Pastur quantile"),
            mass=(("draw", "end"), masses, "distribution function"),
            poisson=("end", law.cdf(ENDS)),
            predicted=("end", self.predicted(self.beta), "cavity equations"),
            dense=("end", dense.cdf(ENDS), "Marchenko-Pastur"),
            apart=(("beta", "draw"), apart, "share of values away from integers"),
            largest=((), self.largest(), "M, the mean of the largest score of a row"),
            split=((), _away(), "the same for each row that is split, to first order"),
            coords={"end": ENDS, "beta": list(self.betas)},
        )

    def _values(self, beta: float, rng: np.random.Generator) -> Real:
        model = SoftmaxAttention(self.tokens, self.head_dim, beta)
        return np.array([spectrum(model.sample(rng)).squared().values for _ in range(self.draws)])

    def predicted(self, beta: float) -> Real:
        """The distribution function at the ends of the bins, by the cavity equations, for keys of uneven popularity."""
        return _cavity(beta / self.inverse_norm(), self.tokens, self.popularity() - 1 / self.tokens)

    def inverse_norm(self) -> float:
        """``E 1/r`` for the norm r of a query: rows have beta times r."""
        norms, weights = norm_quadrature(self.head_dim, self.tokens, 16)
        return float(weights @ (1 / norms))

    def largest(self) -> float:
        """Mean M of the largest of T standard normal numbers, times ``E 1/r`` for the norm r of a query."""
        x = np.linspace(-10, 10, 20_001)
        highest = float(np.diff(ndtr(x) ** self.tokens) @ (x[1:] + x[:-1]) / 2)
        return highest * self.inverse_norm()

    def popularity(self) -> float:
        """``E (T p)**2 - 1`` over keys, p the probability that a key of given norm has the largest score of a row."""
        norms, weights = norm_quadrature(self.head_dim, self.tokens, 16)
        cosine, mass = cosine_quadrature(self.head_dim, 400)
        wins = mass @ ndtr(self.head_dim**0.5 * np.outer(cosine, norms)) ** (self.tokens - 1)
        return float(weights @ wins**2 / (weights @ wins) ** 2 - 1)

    def statements(self, data: xr.Dataset) -> Claims:
        """The law against that of dense matrices, its atoms, its mean, and the limit of large beta."""
        split = self.largest() / self.beta
        accuracy = SOBOL + 1 / self.tokens
        reason = (
            f"fitted: other points of the graph move its distribution function by {SOBOL:g}, at any size and beta, and "
            "the term of rank one that the law leaves out moves one value in T"
        )
        text = "share of the Marchenko-Pastur law in the distribution function"
        rival = "the law of dense matrices", data.dense
        yield follows(text, "equivalence: Figure 4", data.mass, data.predicted, rival, accuracy, reason)
        text = "mean squared singular value: 1 - M/beta, M the mean of the largest of T scores"
        one_hot = "rows that are exactly one-hot", 1.0
        order = "derived: the next order of the expansion in M/beta"
        yield Claim(text, "equivalence: Figure 4", data.sorted.mean("rank"), 1 - split, one_hot, split**3, order)
        for count in (0, 1, 2):
            # the share of values in the bin around an integer
            low, high = 10 * count, 10 * count + 1
            theory, dense = (float(each[high] - each[low]) for each in (data.predicted, data.dense))
            text, place = f"share of squared singular values within {NEAR:g} of {count}", POISSON
            measured = data.mass[:, high] - data.mass[:, low]
            rival = "Marchenko-Pastur", dense
            yield Claim(text, place, measured, theory, rival, accuracy, reason)
        yield from self._limit(data)

    def _limit(self, data: xr.Dataset) -> Claims:
        betas, place = np.array(self.betas), POISSON
        order = self.largest() / betas
        next_order = float(data.split) * order
        apart = average(data.apart / xr.DataArray(order, dims="beta"))
        if apart.error == 0:  # not one value between integers: the error is that of the number that was expected
            apart = Estimate(apart.value, float(np.sqrt(data.split / order / data.sizes["rank"] / self.draws).mean()))
        text = f"share of values farther than {NEAR:g} from integers, over M/beta, mean over beta"
        rival = "a spectrum of Poisson atoms alone", 0.0
        finite_size = float(data.split * next_order.mean())
        reason = "derived: the next order: each of Q**2/2 pairs of split rows that share a key makes up to two less"
        yield Claim(text, place, apart, data.split, rival, finite_size, reason)
        logs = np.log(betas)
        if len(set(self.betas)) > 1 and float(data.apart.mean("draw").min()) > 0:
            weights = (logs - logs.mean()) / np.sum((logs - logs.mean()) ** 2)
            text = "power of beta with which values leave the space between integers"
            draws = data.apart.transpose("draw", "beta")
            measured = Estimate.jackknife(lambda some: float(np.log(some.mean(axis=0)) @ weights), draws)
            rival = "no convergence to the Poisson law", 0.0
            finite_size = float(abs(weights @ next_order))
            reason = "derived: the next order, relative Q with Q the share at each beta"
            yield Claim(text, place, measured, -1.0, rival, finite_size, reason)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 3, width=2.7, height=2.5)
        left, middle, right = grid[0]
        histogram(left, data.end, np.diff(data.mass.mean("draw")))
        # every tenth bin has an integer in its middle: if all values are there, its bar is as high as the atom
        atoms = np.diff(data.poisson)[::10]
        line(left, np.arange(len(atoms)), atoms, label="Poisson(1), β = ∞", ls="", marker="o", ms=4, mfc="none")
        histogram(left, data.end, np.diff(data.predicted), label="at this β", fill=False, color=COLOURS[1], lw=0.7)
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
        plain_ticks(right.xaxis, data.beta)
        plain_logarithms(right.yaxis)
        for axes in grid[0]:
            axes.legend(loc="upper right")
        figure.suptitle(
            f"{self.tokens} tokens, {self.head_dim} dimensions, {self.draws} draws; left and middle: β = {self.beta:g}"
        )
        return figure


def _apart(values: Real) -> Any:
    return np.abs(values - np.round(values)) > NEAR


@cache
def _cavity(beta: float, tokens: int, uneven: float) -> Real:
    """The distribution function at the ends of the bins: solved for beside each integer, and monotone between."""
    graphs = [sharp_graph(beta, tokens, stream, uneven=uneven) for stream in range(STREAMS)]
    cavities, circle = [Cavity(each, TOLERANCE) for each in graphs], HalfCircle.nodes(12)
    at = np.array([k for k in range(1, len(ENDS)) if k % 10 in (0, 1, 3, 5, 8)])
    masses = [np.mean([each.mass(tokens * end, circle) for each in cavities]) for end in ENDS[at].tolist()]
    between = PchipInterpolator(ENDS[at], np.maximum.accumulate(np.clip(masses, 0.0, 1.0)))
    return np.append(0.0, between(ENDS[1:]))


def _away() -> float:
    """How many values away from integers split rows make, over ``M/beta``."""
    x, others = (np.arange(400) + 0.5) / 20, np.arange(12)
    w, m, n = np.meshgrid(1 / (1 + np.exp(-x)), others, others, indexing="ij")
    first, second, joint = m + w**2, n + (1 - w) ** 2, w * (1 - w)
    middle, half = (first + second) / 2, np.sqrt((first - second) ** 2 / 4 + joint**2)
    probability = poisson.pmf(m, 1.0) * poisson.pmf(n, 1.0) / 20
    return float(np.sum(probability * (_apart(middle - half).astype(float) + _apart(middle + half))))
