"""Scores: jointly Gaussian with a covariance that factorises, and all that the output depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, follows
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.programs import HeadMixture, dot, equal_correlations, linear, scalar, softmax
from bulkedge.programs.graph import Traced, trace
from bulkedge.support.domains import Integers, parameter


@dataclass(frozen=True)
class WidthScores(Study):
    """Scores of all pairs of inputs have the covariance of a Kronecker product, and given them the output is Gaussian.

    Both hold at any width but for the fourth cumulant of the output given the scores, ``6/n``: what was attended to has
    n coordinates.
    """

    inputs: int = parameter(*setting.INPUTS, 3, ours=4)
    correlation: float = parameter(*setting.CORRELATION, 0.5, ours=0.5)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 4.0, ours=4.0)
    width: int = parameter(*setting.WIDTH, 64, paper=256)
    draws: int = parameter(Integers(100, 10**6), "draws", 40_000, ours=100_000)
    small = {"draws": 4000, "width": 16}
    caption = """Covariances of pairs of scores against the predicted ones (left), and the excess kurtosis
    of an output with and without its random deviation (right). Points should lie on the line, and the kurtosis
    should vanish once the output is divided by its deviation given the scores."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Scores and outputs of one head."""
        gram = equal_correlations(self.inputs, self.correlation)
        scores, kernel = trace(self._head, gram).finite(self.width, rng, self.draws)
        flat = scores.reshape(self.draws, -1)
        found = [group.T @ group / len(group) for group in np.array_split(flat, setting.BATCHES)]
        attention = np.exp(scores[:, 0] - scores[:, 0].max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        given = np.einsum("di,ij,dj->d", attention, gram, attention)
        mixture = HeadMixture(gram, 1, 0, self.score_variance)
        excess = [setting.kurtosis(kernel[:, 0, 0]), setting.kurtosis(kernel[:, 0, 0] / given)]
        return dataset(
            covariance=(("batch", "first", "second"), found, "covariance of two scores"),
            predicted=(("first", "second"), self.score_variance * np.kron(gram, gram)),
            excess=(("given", "statistic"), setting.pairs(excess), "excess kurtosis of a coordinate"),
            expected=("given", [mixture.excess_kurtosis(self.width), 6 / self.width]),
            coords={"given": ["nothing", "scores"], "statistic": list(setting.STATISTIC)},
        )

    def _head(self, x: Traced) -> tuple[Traced, Traced]:
        query, key = (linear(x, variance=self.score_variance**0.5) for _ in range(2))
        scores = dot(query, key)
        attended = scalar(softmax, scores) @ linear(x)
        return scores, dot(attended, attended, "linear")

    def statements(self, data: xr.Dataset) -> Claims:
        """The covariance of scores, and the output before and after division by what the scores say."""
        theory = data.predicted.values
        alone, given = (
            setting.from_pair(data.excess.sel(given=name), self.draws - 1) for name in ("nothing", "scores")
        )
        expected = dict(zip(("nothing", "scores"), data.expected.values.tolist(), strict=True))
        text = "share of independent scores in the covariance of all pairs of scores"
        place = "width: Theorem 3.1, Netsor with dot products"
        rival = "independent scores", np.diag(np.diag(theory)).ravel()
        yield follows(text, place, _flat(data.covariance.values), theory.ravel(), rival)
        text = "excess kurtosis of a coordinate"
        yield Claim(text, "width: Theorem 3.1", alone, expected["nothing"], ("a Gaussian's", 0.0))
        text = "excess kurtosis of a coordinate over its deviation given the scores"
        rival = "as without the scores", expected["nothing"]
        yield Claim(text, "width: Theorem 3.1", given, expected["scores"], rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        left, right = grid[0]
        found = Estimate.of(data.covariance.values.reshape(data.sizes["batch"], -1))
        theory = data.predicted.values
        marks(left, theory.ravel(), found.value, found.error, label="drawn")
        ends = np.array([theory.min(), theory.max()])
        line(left, ends, ends, label="Kronecker product")
        apart = theory[~np.eye(len(theory), dtype=bool)]
        left.plot(np.unique(apart), 0 * np.unique(apart), "x", ms=4, color=COLOURS[-1], label="independent scores")
        left.set(xlabel="predicted covariance of two scores", ylabel="drawn", ylim=(-0.4, None))
        value, error = (data.excess.sel(statistic=name) for name in ("value", "error"))
        marks(right, [0, 1], value, error, label="drawn")
        right.plot([0, 1], data.expected, "_", ms=16, color=COLOURS[1], label="exact")
        right.axhline(0, label="Gaussian", **setting.RIVAL)
        right.set(xticks=[0, 1], xticklabels=["alone", "over its deviation\ngiven the scores"], xlim=(-0.5, 1.5))
        right.set(ylabel="excess kurtosis", ylim=(-0.01, None))
        for axes in grid[0]:
            axes.legend(loc="upper left" if axes is left else "center left")
        setting.sizes_title(figure, self, "width", "inputs")
        return figure


def _flat(curves: Real) -> Real:
    return curves.reshape(len(curves), -1)
