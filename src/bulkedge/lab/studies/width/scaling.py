"""Scores over n instead of the root of n: attention that does not attend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Study, dataset, exponent, track
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.programs import HeadMixture, dot, equal_correlations, linear, scalar, softmax
from bulkedge.programs.graph import Traced, trace
from bulkedge.programs.mixture import chi_square_rule
from bulkedge.support.domains import Each, Integers, parameter

SCALINGS = ("sqrt", "linear")


@dataclass(frozen=True)
class WidthScaling(Study):
    """Variance of a coordinate given its scores: random if these are over sqrt(n), constant if over n.

    Its spread is what makes the law of a coordinate non-Gaussian. Given the query the scores are Gaussian at any width,
    so mean and spread are known there.
    """

    inputs: int = parameter(*setting.INPUTS, 4, ours=4)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 4.0, ours=4.0)
    widths: tuple[int, ...] = parameter(Each(Integers(8, 8192)), "widths n", (16, 64, 256), paper=(16, 64, 256, 1024))
    draws: int = parameter(Integers(100, 10**7), "draws at each width", 4000, ours=20_000)
    small = {"draws": 500, "widths": (16, 64)}
    caption = """Quantiles of the variance given the scores over the width for both scalings, and the
    excess kurtosis they lead to. Over √n the bands keep their width; over n they close, and the kurtosis falls to
    zero."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw attention weights of the first input, and what variance they give."""
        gram = equal_correlations(self.inputs)
        found = np.empty((len(SCALINGS), len(self.widths), self.draws))
        moments = np.empty((len(SCALINGS), len(self.widths), 2))
        for k, width in track(list(enumerate(self.widths)), "widths"):
            for j, scaling in enumerate(SCALINGS):
                weights = trace(partial(self._attention, scaling=scaling), gram).finite(width, rng, self.draws)
                found[j, k] = np.einsum("di,ij,dj->d", weights[:, 0], gram, weights[:, 0])
                moments[j, k] = self._moments(width, scaling)
        mixture = HeadMixture(gram, 1, 0, self.score_variance)
        return dataset(
            variance=(("scaling", "width", "draw"), found, "variance given the scores"),
            moments=(("scaling", "width", "order"), moments, "its first two moments, exact"),
            kurtosis=((), mixture.excess_kurtosis(), "excess kurtosis of the limit"),
            mean=((), mixture.variance(), "variance of the limit"),
            uniform=((), gram.mean(), "variance under uniform attention"),
            coords={"scaling": list(SCALINGS), "width": list(self.widths), "order": [1, 2]},
        )

    def _moments(self, width: int, scaling: str) -> list[float]:
        """``E k`` and ``E k**2`` at this width, by quadrature over the scores and the length of the query."""
        mixture = HeadMixture(equal_correlations(self.inputs), 1, 0, self.score_variance)
        scale = self.score_variance / (1 if scaling == "sqrt" else width)
        total = np.zeros(2)
        for length, mass in zip(*chi_square_rule(width), strict=True):
            values, weights, _ = mixture.kernel_values(scale * length)
            total += mass * np.array([weights @ values, weights @ values**2])
        return total.tolist()

    def _attention(self, x: Traced, scaling: str) -> Traced:
        deviation = self.score_variance**0.5
        query, key = linear(x, variance=deviation), linear(x, variance=deviation)
        return scalar(softmax, dot(query, key, "sqrt" if scaling == "sqrt" else "linear"))

    def statements(self, data: xr.Dataset) -> Claims:
        """Mean and spread at the largest width, and how the spread falls."""
        first, second = (data.moments.sel(order=order) for order in (1, 2))
        exact = 3 * (second / first**2 - 1)
        widest = data.width.values[-1]
        found = {name: [setting.kurtosis(row) for row in data.variance.sel(scaling=name).values] for name in SCALINGS}
        small = data.variance.sel(scaling="linear", width=widest).values
        text = f"excess kurtosis with scores over the root of n, width {widest}"
        place = "width: Theorem 3.1, Scaling 1/n"
        gaussian = "a Gaussian's, as with scores over n", 0.0
        yield Claim(text, place, found["sqrt"][-1], exact.sel(scaling="sqrt", width=widest), gaussian)
        text = f"excess kurtosis with scores over n, width {widest}"
        rival = "as with scores over the root of n", data.kurtosis
        yield Claim(text, "width: Scaling 1/n", found["linear"][-1], exact.sel(scaling="linear", width=widest), rival)
        text = f"variance with scores over n, width {widest}: near that of uniform attention"
        rival = "as with scores over the root of n", data["mean"]
        yield Claim(text, "width: Scaling 1/n", small, first.sel(scaling="linear", width=widest), rival)
        if len(self.widths) > 1:
            text = "exponent in the width of the excess kurtosis with scores over n"
            predicted = exponent(data.width, exact.sel(scaling="linear"))
            rival = "one over n, as scores themselves fall", -1.0
            yield Claim(text, "width: Scaling 1/n", setting.slope(data.width, found["linear"]), predicted, rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 3, width=2.5)
        titles = {"sqrt": r"scores $q\cdot k/\sqrt{n}$", "linear": r"scores $q\cdot k/n$"}
        last = grid[0, 2]
        for axes, name, colour in zip(grid[0], titles, (COLOURS[0], COLOURS[2]), strict=False):
            one = data.variance.sel(scaling=name)
            for low, high, alpha in ((0.05, 0.95, 0.25), (0.25, 0.75, 0.45)):
                bounds = one.quantile([low, high], dim="draw")
                label = f"{low:.0%} to {high:.0%}"
                axes.fill_between(data.width, bounds[0], bounds[1], color=COLOURS[0], alpha=alpha, lw=0, label=label)
            mean = Estimate.of(one.values, axis=1)
            marks(axes, data.width, mean.value, mean.error, label="mean")
            level = data["mean"] if name == "sqrt" else data.uniform
            axes.axhline(float(level), color=COLOURS[1], label="limit of the mean")
            setting.log_axes(axes, data.width.values, y=False)
            axes.set(xlabel="width n", title=titles[name], ylim=(0.0, 1.05))
            found = [setting.kurtosis(row) for row in one.values]
            marks(
                last, data.width, [e.value for e in found], [e.error for e in found], label=titles[name], color=colour
            )
            first, second = (data.moments.sel(scaling=name, order=order) for order in (1, 2))
            line(last, data.width, 3 * (second / first**2 - 1), label="exact" if name == "linear" else "")
        start = float(setting.kurtosis(data.variance.sel(scaling="linear").values[0]).value)
        line(last, data.width, start * float(data.width[0]) / data.width, label=r"$n^{-1}$", **setting.RIVAL)
        setting.log_axes(last, data.width.values)
        last.set(
            xlabel="width n",
            title="excess kurtosis",
            ylim=(min(2e-6, float(setting.kurtosis(data.variance.values[1, -1]).value) / 100), 5),
        )
        grid[0, 0].set_ylabel("variance given the scores")
        grid[0, 1].legend(loc="upper right")
        last.legend(loc="lower left", handlelength=1.4)
        setting.sizes_title(figure, self, "inputs", "score_variance")
        return figure
