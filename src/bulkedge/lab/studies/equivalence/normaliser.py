"""Lemma 4.1: the row normalisers concentrate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.special import ndtri

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, exponent, mean_marks, track
from bulkedge.plots.style import COLOURS, line, panels, plain_ticks
from bulkedge.support.domains import Integers, Interval, parameter


@dataclass(frozen=True)
class EquivalenceNormaliser(Study):
    """Row normalisers concentrate at the scale ``d**(-1/2)``, on average over rows and uniformly.

    The mean square of ``Z_i/(T exp(beta**2/2)) - 1`` is known at any size: given its query, a row has independent
    log-normal weights, and the query's squared norm is a chi-square variable. Head dimension and tokens are equal.
    """

    first: int = parameter(Integers(32, 1000), "smallest number of tokens, and head dimension", 64, ours=64)
    sizes: int = parameter(Integers(3, 12), "how many sizes, each twice the one before", 5, ours=7)
    beta: float = parameter(Interval(0.05, 1), "inverse temperature", 0.5, ours=0.5)
    draws: int = parameter(Integers(3, 1000), "draws of each size", 32, ours=32)
    small = {"sizes": 4}
    caption = """Relative deviation of a row's normaliser from its mean over tokens: root mean square and
    the largest of all rows. The circles should follow the exact orange line, whose slope is steeper than that of
    the dashed rival."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Mean square and largest deviation of ``Z_i/T`` from ``exp(beta**2/2)``, relative, over the rows of a draw."""
        tokens = self.first * 2 ** np.arange(self.sizes)
        square, most = np.empty((2, self.sizes, self.draws))
        for k in track(list(range(self.sizes)), "sizes"):
            model = SoftmaxAttention(int(tokens[k]), int(tokens[k]), self.beta)
            for draw in range(self.draws):
                ratio = model.normalisers(model.scores(rng)) / np.exp(self.beta**2 / 2) - 1
                square[k, draw], most[k, draw] = np.mean(ratio**2), np.abs(ratio).max()
        return dataset(
            square=(("tokens", "draw"), square, "mean square over rows"),
            most=(("tokens", "draw"), most, "largest over rows"),
            predicted=("tokens", [mean_square(self.beta, each, each) for each in tokens.tolist()]),
            coords={"tokens": tokens},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """The exponents, of the typical and of the largest deviation, and the constant."""

        def of_mean(draws: Real) -> float:
            return exponent(data.tokens, draws.mean(axis=0))

        exact = exponent(data.tokens, data.predicted) / 2
        plain = np.expm1(self.beta**2) / data.tokens / data.predicted
        spread, shift = self._extremes(data.tokens.values)
        typical = Estimate.jackknife(lambda some: of_mean(some) / 2, data.square.values.T)
        text = "exponent in T of the root mean square deviation of the normalisers"
        rival = "concentration at the scale d^(-1/4) only", -0.25
        reason = "derived: the exact mean square has this exponent over these sizes"
        yield Claim(text, "equivalence: Lemma 4.1", typical, -0.5, rival, finite_size=abs(exact + 0.5), reason=reason)
        text = "exponent in T of the largest deviation among all rows"
        measured = Estimate.jackknife(of_mean, data.most.values.T)
        rival = "concentration at the scale d^(-1/4) only", -0.25
        reason = "derived: log-normal weights are skewed, which the largest deviation feels by order T**(-1/2)"
        yield Claim(text, "equivalence: Lemma 4.1", measured, -0.5 + spread, rival, shift, reason)
        text = "mean square deviation over its exact value, about (theta_1 + beta^4/2)/T, mean over sizes"
        rival = "theta_1/T, without the norms of queries", plain.mean()
        yield Claim(text, "equivalence: Lemma 4.1; ours", data.square / data.predicted, 1.0, rival)

    def _extremes(self, tokens: Real) -> tuple[float, float]:
        """What the largest of T Gaussian deviations adds to the exponent, the d^delta of the lemma, and their skewness.

        The median of the largest of T absolute values, in standard deviations, grows like ``sqrt(2 log T)``. Skewness g
        raises a quantile m by ``g (m**2 - 1)/6`` (Cornish and Fisher); that of a mean of T log-normal weights is
        ``(exp(beta**2) + 2) sqrt(exp(beta**2) - 1)/sqrt(T)``, and falls over the sizes.
        """
        most = ndtri(1 - np.log(2) / (2 * tokens))
        variance = np.expm1(self.beta**2)
        skewness = (variance + 3) * np.sqrt(variance / tokens)
        raised = np.log1p(skewness * (most**2 - 1) / (6 * most))
        logs = np.log(tokens)
        return exponent(tokens, most), abs(float(np.polyfit(logs, raised, 1)[0]))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 1, height=3.0)
        axes = grid[0, 0]
        typical = data.square**0.5
        look = {"label": "largest of all rows", "fmt": "s", "color": COLOURS[3]}
        mean_marks(axes, data.tokens, data.most, **look)
        mean_marks(axes, data.tokens, typical, label="root mean square")
        root = data.predicted.values**0.5
        line(axes, data.tokens, root, label=r"exact, about $\sqrt{(\theta_1+\beta^4/2)/T}$")
        tokens = data.tokens.values
        rival = root[0] * (tokens / tokens[0]) ** -0.25
        line(axes, tokens, rival, label=r"rival: $T^{-1/4}$", color=COLOURS[2], ls="--")
        axes.set(
            xscale="log", yscale="log", xlabel=r"tokens $T$ (= head dimension)", ylabel="relative deviation of $Z_i$"
        )
        axes.set(title=f"β = {self.beta:g}, {data.sizes['draw']} draws", ylim=(0.6 * root[-1], 4 * root[0]))
        plain_ticks(axes.xaxis, tokens)
        plain_ticks(
            axes.yaxis, [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if 0.6 * root[-1] < tick < 4 * root[0]]
        )
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return figure


def mean_square(beta: float, tokens: int, head_dim: int) -> float:
    """``E (Z_i/(T exp(beta**2/2)) - 1)**2``, exactly."""

    def moment(factor: float) -> float:
        return float((1 - 2 * factor * beta**2 / head_dim) ** (-head_dim / 2))

    mean = moment(0.5) * np.exp(-(beta**2) / 2)
    square = (moment(1.0) + (moment(2.0) - moment(1.0)) / tokens) * np.exp(-(beta**2))
    return float(square - 2 * mean + 1)
