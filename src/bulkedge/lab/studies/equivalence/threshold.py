"""Where the linear model ends: its threshold in beta, located over three decades of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, exponent, mean_marks, track
from bulkedge.lab.studies.equivalence.top import largest
from bulkedge.laws import AttentionLaw
from bulkedge.laws.attention.perron import perron
from bulkedge.plots.style import COLOURS, line, marks, panels, plain_ticks
from bulkedge.support.domains import Integers, parameter
from bulkedge.visibility import softmax

SMALLEST = 64
GRID = np.linspace(0.55, 1.05, 11)
"""Values of beta at which matrices are drawn, over ``sqrt(log T)``; thresholds are read off between them."""
HALF = 0.5
"""The linear model has failed where it predicts twice what is there."""


@dataclass(frozen=True)
class EquivalenceThreshold(Study):
    """Beyond a beta that grows like the root of log T, the linear model predicts more than twice the true bulk.

    Two thresholds: of the mean of the squared singular values, which the linear model says to be ``exp(beta**2) - 1``,
    and of the second one, which it says to be at the edge. The first needs rows only, and those of attention given
    their queries are independent Gaussian scores, so that it is followed to many tokens. Head dimension and tokens are
    equal.
    """

    fourfold: int = parameter(Integers(2, 8), "how often the tokens are multiplied by four, for the mean", 4, ours=6)
    rows: int = parameter(Integers(8, 10_000), "rows of attention in a draw, for the mean", 100, ours=100)
    doublings: int = parameter(Integers(2, 6), "how often the tokens are doubled, for the second value", 3, ours=5)
    draws: int = parameter(Integers(3, 1000), "draws of each size", 10, ours=12)
    small = {"fourfold": 2, "doublings": 2, "draws": 12}
    caption = """The mean squared singular value over that of the linear model as β grows (left), and the
    β at which it is one half over tokens (right). On the right the circles should follow the solid orange line and
    neither rival."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both over their predictions, at values of beta around each threshold."""
        long = SMALLEST * 4 ** np.arange(self.fourfold + 1)
        short = SMALLEST * 2 ** np.arange(self.doublings + 1)
        means = [[self._means(tokens, rng) for _ in range(self.draws)] for tokens in track(long.tolist(), "rows")]
        seconds = [[_seconds(tokens, rng) for _ in range(self.draws)] for tokens in track(short.tolist(), "matrices")]
        located = [_located(each, np.log(tokens)) for each, tokens in ((means, long), (seconds, short))]
        return dataset(
            mean=(("tokens", "draw", "grid"), means, "mean squared singular value"),
            second=(("short", "draw", "grid"), seconds, "second value over the edge"),
            threshold_mean=("tokens", located[0].value),
            threshold_mean_error=("tokens", located[0].error),
            threshold_second=("short", located[1].value),
            threshold_second_error=("short", located[1].error),
            predicted=("tokens", [mean_threshold(tokens) for tokens in long.tolist()]),
            carried=("short", [_edge_reaches(2 * tokens) for tokens in short.tolist()]),
            coords={"tokens": long, "short": short, "grid": GRID},
        )

    def _means(self, tokens: int, rng: np.random.Generator) -> Real:
        """``(T sum_j A_ij**2 - 1)/(exp(beta**2) - 1)``, averaged over rows i: one where the linear model holds."""
        betas, sums = GRID * np.sqrt(np.log(tokens)), np.zeros(len(GRID))
        for norm in np.sqrt(rng.chisquare(tokens, size=self.rows) / tokens).tolist():
            scores = norm * rng.standard_normal((1, tokens))
            sums += [float(np.sum(softmax(beta * scores, None) ** 2)) for beta in betas.tolist()]
        return np.asarray((tokens * sums / self.rows - 1) / np.expm1(betas**2))

    # -- claims --------------------------------------------------------------------------------------------------------

    def statements(self, data: xr.Dataset) -> Claims:
        """Exponents of log T and the constant of the mean; where the second value is, at the most tokens."""
        logs = np.log(data.tokens.values)
        draws = data["mean"].transpose("draw", "tokens", "grid").values
        exact = exponent(logs, data.predicted)
        found = Estimate.jackknife(lambda some: exponent(logs, _thresholds(some, logs)), draws)
        last = Estimate.jackknife(lambda some: _thresholds(some, logs)[-1] / np.sqrt(logs[-1]), draws)
        place = "equivalence: Threshold, Figure 3"
        text = "threshold of the mean: its exponent in log T"
        rival = "the same beta for all T", 0.0
        reason = "derived: the exact mean of a row's sum of squares has this exponent over these sizes"
        yield Claim(text, place, found, 0.5, rival, finite_size=abs(exact - 0.5), reason=reason)
        text = "threshold of the mean: its exponent in log T, that of the exact mean of a row"
        yield Claim(text, place, found, exact, ("beta of order log T", 1.0))
        text = f"threshold of the mean at {int(data.tokens[-1])} tokens, over sqrt(log T)"
        rival = "as at the fewest tokens", float(data.predicted[0]) / np.sqrt(logs[-1])
        yield Claim(text, place, last, float(data.predicted[-1]) / np.sqrt(logs[-1]), rival)
        yield self._of_second(data)

    def _of_second(self, data: xr.Dataset) -> Claim:
        """There rows are nearly one-hot, and the second value of A is near one: the edge predicts two."""
        logs, carried = np.log(data.short.values), data.carried.values
        draws = data.second.transpose("draw", "short", "grid").values
        half, whole = (Estimate.jackknife(lambda some: float(_thresholds(some, logs)[k] / carried[k]), draws)  # noqa: B023
                       for k in (-2, -1))  # fmt: skip
        text = f"threshold of the second value at {int(data.short[-1])} tokens, over where the edge is 2 T"
        rival = "the same beta for all T", float(carried[0] / carried[-1])
        finite_size = abs(whole.value - half.value)
        reason = "shown: what half as many tokens differ by, for a rate of 1/T"
        return Claim(text, "equivalence: Threshold, Figure 3", whole, 1.0, rival, finite_size, reason)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.7)
        left, right = grid[0]
        for k, tokens in enumerate(data.tokens.values.tolist()):
            one = data["mean"].sel(tokens=tokens)
            look: dict[str, Any] = {"fmt": "osD^vP*Xp"[k % 9] + "-", "lw": 0.8, "color": COLOURS[k % len(COLOURS)]}
            betas = data.grid * np.sqrt(np.log(tokens))
            mean_marks(left, betas, one, label=rf"$T$ = {tokens}", **look)
        left.axhline(0.5, color="0.5", ls=":", lw=0.9)
        left.set(xlabel="β", ylabel="mean over the linear model's", ylim=(0, 1.25))
        left.legend(loc="upper right", ncols=2, columnspacing=0.8, handlelength=1.2)
        logs = np.log(data.tokens.values)
        marks(right, data.tokens, data.threshold_mean, data.threshold_mean_error, label="of the mean")
        line(right, data.tokens, data.predicted, label="exact mean of a row")
        marks(right, data.short, data.threshold_second, data.threshold_second_error, label="of the second value",
              fmt="s", color=COLOURS[3])  # fmt: skip
        line(right, data.short, data.carried, label=r"edge of the law = $2T$", color=COLOURS[4])
        start = float(data.predicted[0])
        line(
            right, data.tokens, start * logs / logs[0], label=r"rival: $\beta\propto\log T$", color=COLOURS[2], ls="--"
        )
        line(right, data.tokens, np.full(len(logs), start), label="rival: constant β", color=COLOURS[-1], ls=":")
        right.set(xscale="log", xlabel=r"tokens $T$ (= head dimension)", ylabel="threshold in β")
        right.set_ylim(0.8 * start, 1.1 * start * float(logs[-1] / logs[0]))
        plain_ticks(right.xaxis, data.tokens.values[:: max(1, len(logs) // 4)])
        right.legend(loc="upper left")
        figure.suptitle(f"{data.sizes['draw']} draws, of {self.rows} rows or of whole matrices", fontsize=8)
        return figure


def mean_threshold(tokens: int) -> float:
    """The beta at which the mean squared singular value is half of what the linear model says."""

    def excess(beta: float) -> float:
        found = perron(beta, tokens, tokens)
        rows = found.spread - (1 - 1 / tokens) * found.tilt
        return float(tokens * rows / np.expm1(beta**2) - HALF)

    return float(brentq(excess, 0.3 * np.sqrt(np.log(tokens)), 1.2 * np.sqrt(np.log(tokens)), xtol=1e-4))


def _seconds(tokens: int, rng: np.random.Generator) -> Real:
    """``T s_2(A)**2`` over the edge of the linear model."""
    scores = SoftmaxAttention(tokens, tokens, 1.0).scores(rng)
    betas = (GRID * np.sqrt(np.log(tokens))).tolist()
    values = [largest(softmax(beta * scores, None), 2)[1] for beta in betas]
    return np.array([tokens * value / AttentionLaw(beta, 1.0).edge for value, beta in zip(values, betas, strict=True)])


def _edge_reaches(value: float) -> float:
    """The beta at which the edge of the linear model reaches a value."""
    return float(brentq(lambda beta: np.log(AttentionLaw(beta, 1.0).edge / value), 0.5, 6.0, xtol=1e-6))


def _thresholds(draws: Real, logs: Real) -> Real:
    """Where the mean over draws, of shape (draw, size, grid), falls below one half, between points of the grid."""
    found = []
    for curve, log in zip(np.log(draws.mean(axis=0) / HALF), logs, strict=True):
        after = int(np.argmax(curve < 0))
        part = curve[after - 1] / (curve[after - 1] - curve[after]) if after else np.nan
        found.append(np.sqrt(log) * (GRID[after - 1] + part * (GRID[after] - GRID[after - 1])))
    return np.array(found)


def _located(values: ArrayLike, logs: Real) -> Estimate:
    """Thresholds of all sizes, from values of shape (size, draw, grid), with their errors."""
    draws = np.swapaxes(np.asarray(values), 0, 1)
    each = [
        Estimate.jackknife(lambda some: float(_thresholds(some, log)[0]), draws[:, [k]])  # noqa: B023
        for k, log in enumerate(logs[:, None])
    ]
    return Estimate(np.array([one.value for one in each]), np.array([one.error for one in each]))
