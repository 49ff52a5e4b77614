"""Sequences that grow with the width (the paper's second open question)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, exponent, track
from bulkedge.plots.style import line, marks, panels
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.visibility import softmax

BLOCK = 2**21
"""Random numbers drawn at once."""


@dataclass(frozen=True)
class WidthSequence(Study):
    """With s = n inputs the output tends to a Gaussian, with more kurtosis than the paper's limit for s inputs.

    Inputs are orthogonal, so that attention averages over many independent tokens: ``s k`` tends to ``exp(sigma**2)``
    and a coordinate to a Gaussian. Of the excess kurtosis, of order 1/n, the limit of infinite width at fixed s has
    only the part of attention over s tokens, ``3 C/s`` with ``C = e**(4v) - 4 e**(2v) + 4 e**v - 1``, ``v = sigma**2``.
    The lengths of query and values add ``6 (v**2 + 1)/n``, which is as large if s grows as n does: the two limits do
    not commute.
    """

    score_variance: float = parameter(Interval(0.01, 1), "variance of a score", 0.25, ours=0.25)
    widths: tuple[int, ...] = parameter(
        Each(Integers(8, 1024)), "widths n, and as many inputs", (16, 32, 64, 128), ours=(16, 32, 64, 128, 256)
    )
    draws: int = parameter(Integers(100, 10**6), "draws at each width", 2000, ours=10_000)
    small = {"draws": 500, "widths": (16, 32)}
    caption = """Excess kurtosis and scaled variance of a coordinate with as many inputs as the width.
    Points should follow the solid line, well above the dotted limit that the paper gives for a fixed number of
    inputs."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Variance of a coordinate at one position, given all but the last weight, with weights as whole matrices."""
        rows: dict[str, list[Estimate]] = {name: [] for name in ("kurtosis", "kernel", "exact", "fixed")}
        for width in track(self.widths, "widths"):
            given = self._layer(width, rng)
            rows["kurtosis"].append(setting.kurtosis(given))
            rows["kernel"].append(Estimate.of(width * given))
            for name, value in self._predicted(width, rng).items():
                rows[name].append(value)
        names = {
            "kurtosis": "excess kurtosis with n inputs at width n",
            "kernel": "s times the variance of a coordinate",
            "exact": "excess kurtosis, from the law of the scores given the query",
            "fixed": "excess kurtosis of the limit of infinite width for as many inputs",
        }
        return xr.Dataset(
            {
                key: (("width", "statistic"), setting.pairs(rows[key]), {"long_name": name})
                for key, name in names.items()
            },
            coords={"width": list(self.widths), "statistic": list(setting.STATISTIC)},
        )

    def _layer(self, width: int, rng: np.random.Generator) -> Real:
        """Squared norms over n of what one position attends to; weights on orthogonal inputs are Gaussian matrices."""
        found = []
        left = self.draws
        while left > 0:
            count = min(left, max(1, BLOCK // width**2))
            query = rng.standard_normal((count, width, 1))
            scores = (rng.standard_normal((count, width, width)) @ query)[..., 0] * (self.score_variance / width) ** 0.5
            attended = softmax(scores, axis=-1)[:, None, :] @ rng.standard_normal((count, width, width))
            found.append(np.mean(attended[:, 0] ** 2, axis=1))
            left -= count
        return np.concatenate(found)

    def _predicted(self, width: int, rng: np.random.Generator) -> dict[str, Estimate]:
        """Excess kurtosis from draws of scores: given a query of random length, or of the limit, where it has none."""
        found = {}
        for name in ("exact", "fixed"):
            lengths = rng.chisquare(width, 20 * self.draws) / width if name == "exact" else np.ones(20 * self.draws)
            kernel = []
            for part in np.array_split(lengths, max(1, len(lengths) * width // BLOCK)):
                scores = rng.standard_normal((len(part), width)) * np.sqrt(self.score_variance * part)[:, None]
                kernel.append(np.sum(softmax(scores, axis=1) ** 2, axis=1))
            k = setting.kurtosis(np.concatenate(kernel))
            more = 2 / width if name == "exact" else 0.0  # what was attended to has n coordinates
            found[name] = Estimate(k.value + more * (k.value + 3), (1 + more) * k.error, k.freedom)
        return found

    def statements(self, data: xr.Dataset) -> Claims:
        """Kurtosis at each width, its rate and what is left of it in the joint limit."""
        widest = self.widths[-1]
        found = [setting.from_pair(data.kurtosis.sel(width=width), self.draws - 1) for width in self.widths]
        for width, value in zip(self.widths, found, strict=True):
            text = f"excess kurtosis with {width} inputs at width {width}"
            predicted = setting.from_pair(data.exact.sel(width=width), 20 * self.draws - 1)
            rival = "the limit for as many inputs", data.fixed.sel(width=width, statistic="value")
            yield Claim(text, "width: Open question 2", value, predicted, rival)
        if len(self.widths) > 1:
            exact = data.exact.sel(statistic="value")
            text = "exponent of the excess kurtosis in the width, with as many inputs"
            measured, rival = setting.slope(self.widths, found), ("none, as with a fixed number of inputs", 0.0)
            yield Claim(text, "width: Open question 2", measured, exponent(data.width, exact), rival)
        text = f"s times the variance of a coordinate, {widest} inputs at width {widest}"
        measured = setting.from_pair(data.kernel.sel(width=widest), self.draws - 1)
        rival = "uniform attention", 1.0
        yield Claim(text, "width: Open question 2", measured, scaled_kernel(self.score_variance, widest), rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.6)
        left, right = grid[0]
        variance = self.score_variance
        for axes, name in ((left, "kurtosis"), (right, "kernel")):
            value, error = (data[name].sel(statistic=each) for each in ("value", "error"))
            marks(axes, data.width, value, error, label="drawn")
        line(left, data.width, data.exact.sel(statistic="value"), label="scores given the query", lw=2.5)
        line(left, data.width, joint_limit(variance) / data.width, label="joint limit", **setting.GREEN)
        line(left, data.width, data.fixed.sel(statistic="value"), label="infinite width, s inputs", **setting.RIVAL)
        line(right, data.width, [scaled_kernel(variance, width) for width in data.width.values], label="to order 1/s")
        right.axhline(np.exp(variance), label="joint limit", **setting.GREEN)
        right.axhline(1, label="uniform attention", **setting.RIVAL)
        setting.log_axes(left, data.width.values)
        setting.log_axes(right, data.width.values, y=False)
        left.set(
            xlabel="width n = inputs s",
            ylabel="excess kurtosis",
            ylim=(float(data.fixed.sel(statistic="value").min()) / 20, None),
        )
        right.set(xlabel="width n = inputs s", ylabel="s × variance of a coordinate", ylim=(0.95, 1.4))
        left.legend(loc="lower left", handlelength=1.4)
        right.legend(loc="center right")
        setting.sizes_title(figure, self, "score_variance")
        return figure


def joint_limit(score_variance: float, ratio: float = 1.0) -> float:
    """``n`` times the excess kurtosis of a coordinate as width n and inputs s grow together."""
    attention = np.exp(4 * score_variance) - 4 * np.exp(2 * score_variance) + 4 * np.exp(score_variance) - 1
    return float(3 * (attention / ratio + 2 * score_variance**2 + 2))


def scaled_kernel(score_variance: float, width: int) -> float:
    """``s`` times the variance of a coordinate, to order 1/s, with as many inputs as the width."""
    ratio = 3 * np.exp(score_variance) - 2 * np.exp(2 * score_variance) - 1
    return float(np.exp(score_variance) * (1 + (ratio + score_variance**2) / width))
