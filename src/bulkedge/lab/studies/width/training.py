"""One step of gradient descent (the paper's third open question)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, track
from bulkedge.plots.style import BARS, COLOURS, histogram, marks, panels
from bulkedge.programs import equal_correlations
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.visibility import softmax

QUANTITIES = {
    "moved": "mean square by which a score moves in a step",
    "bent": "mean distance of the output after a step from that of a step along the tangent kernel",
    "tangent": "mean tangent kernel",
    "spread": "variance of the tangent kernel over its squared mean",
}
BLOCK = 2000
"""Layers that are trained at once."""


class GradientStep(NamedTuple):
    """A step of many layers, each with weights of its own; a number for each layer."""

    before: Real
    """Output before the step."""
    after: Real
    tangent: Real
    """Squared gradient of the output in all weights."""
    moved: Real
    """Mean over the keys of the squared change of a score."""


class LayerParameters(NamedTuple):
    """Weights of layers; products with the inputs, whose span is all that gradients reach, in place of matrices.

    ``query``, ``key`` and ``value`` (draws, width, inputs) are columns in an orthonormal basis of the inputs.
    """

    query: Real
    key: Real
    value: Real
    readout: Real


@dataclass(frozen=True)
class WidthTraining(Study):
    """In one step of gradient descent the scores of a wide layer move by order one, and its tangent kernel is random.

    One head, its output at the first input read by a Gaussian vector, in the parametrisation of the tangent kernel
    (weights of variance one, over roots of n), and half the squared distance to a target as loss. Each score is such
    an output itself, so it moves as much as the output does, however wide the layer: training is not lazy. The limit
    needs the scores ``p`` and the reads ``c`` of the values alone: with ``a = softmax(p)``, ``f = a·c``,
    ``g = a (c - f)`` and ``r = f - target``, a step moves ``c`` by ``-2 rate r Gram a`` and ``p`` by
    ``-2 rate r sigma**2 Gram g``. Drawn at widths n and 2n, extrapolated in 1/n.
    """

    inputs: int = parameter(Integers(2, 16), "inputs s", 3, ours=4)
    correlation: float = parameter(*setting.CORRELATION, 0.2, ours=0.2)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 2.0, ours=2.0)
    target: float = parameter(Interval(-10, 10), "target of the output", 1.0, ours=1.0)
    rate: float = parameter(Interval(0.001, 10), "learning rate", 0.25, ours=0.25)
    width: int = parameter(*setting.WIDTH, 64, ours=256)
    draws: int = parameter(Integers(1000, 10**6), "draws at each width", 20_000, ours=50_000)
    small = {"draws": 4000, "width": 16}
    caption = """Moves of scores, outputs and kernels in one step of gradient descent over their limits
    (left), and the tangent kernel of infinitely wide layers (right). Extrapolated points should lie at one and not
    on the dotted values of lazy training, and the kernel should be spread out."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """A step at two widths and in the limit."""
        narrow, wide = (self.measured(self.train(n, rng)) for n in track((self.width, 2 * self.width), "widths"))
        step = self.limit(rng, 20 * self.draws)
        ends = [setting.extrapolate(*both) for both in zip(narrow, wide, strict=True)]
        rows = zip(narrow, wide, ends, self.measured(step), strict=True)
        return dataset(
            found=(("quantity", "where", "statistic"), [setting.pairs(row) for row in rows]),
            still=((), self._still(rng), "mean tangent kernel of values and readout alone"),
            tangent=("draw", step.tangent[: 10 * BLOCK], "tangent kernel in the limit"),
            coords={
                "quantity": list(QUANTITIES),
                "where": ["n", "2n", "extrapolated", "limit"],
                "statistic": list(setting.STATISTIC),
            },
        )

    def measured(self, step: GradientStep) -> list[Estimate]:
        """The quantities of the claims, in their order."""
        spread = setting.kurtosis(step.tangent)
        linear = step.before - self.rate * (step.before - self.target) * step.tangent
        return [
            Estimate.of(step.moved),
            Estimate.of(np.abs(step.after - linear)),
            Estimate.of(step.tangent),
            Estimate(spread.value / 3, spread.error / 3, spread.freedom),
        ]

    @property
    def factor(self) -> Real:
        """Inputs in an orthonormal basis of their span, over the root of n: a row for each input."""
        return np.linalg.cholesky(equal_correlations(self.inputs, self.correlation))

    def train(self, width: int, rng: np.random.Generator) -> GradientStep:
        """Draw layers of a width and take a step with each."""
        steps = []
        for start in range(0, self.draws, BLOCK):
            count = min(BLOCK, self.draws - start)
            query, key, value = rng.standard_normal((3, count, width, self.inputs))
            layer = LayerParameters(query, key, value, rng.standard_normal((count, width)))
            scores, output, gradient = self.backward(layer)
            residual = (output - self.target)[:, None]
            moved = [
                each - self.rate * residual.reshape(-1, *(1,) * (each.ndim - 1)) * slope
                for each, slope in zip(layer, gradient, strict=True)
            ]
            later, after, _ = self.backward(LayerParameters(*moved))
            tangent = sum(np.sum(each.reshape(count, -1) ** 2, axis=1) for each in gradient)
            steps.append(GradientStep(output, after, tangent, np.mean((later - scores) ** 2, axis=1)))
        return GradientStep(*(np.concatenate(each) for each in zip(*steps, strict=True)))

    def backward(self, layer: LayerParameters) -> tuple[Real, Real, LayerParameters]:
        """Scores and output at the first input, and the gradient of the output in the weights."""
        x, root = self.factor, layer.readout.shape[1] ** 0.5
        scale = self.score_variance**0.25
        query = scale * layer.query @ x[0]
        key, value = scale * layer.key @ x.T, layer.value @ x.T
        scores = np.einsum("dn,dnj->dj", query, key) / root
        weights = softmax(scores, axis=1)
        reads = np.einsum("dn,dnj->dj", layer.readout, value) / root
        output = np.sum(weights * reads, axis=1)
        slopes = weights * (reads - output[:, None])
        gradient = LayerParameters(
            scale * np.einsum("dnj,dj,m->dnm", key, slopes, x[0]) / root,
            scale * np.einsum("dn,dj,jm->dnm", query, slopes, x) / root,
            np.einsum("dn,dj,jm->dnm", layer.readout, weights, x) / root,
            np.einsum("dnj,dj->dn", value, weights) / root,
        )
        return scores, output, gradient

    def limit(self, rng: np.random.Generator, draws: int) -> GradientStep:
        """The step of infinitely wide layers, from scores and reads alone."""
        gram = self.factor @ self.factor.T
        scores, reads = (rng.standard_normal((draws, self.inputs)) @ self.factor.T for _ in range(2))
        scores *= self.score_variance**0.5
        weights = softmax(scores, axis=1)
        before = np.sum(weights * reads, axis=1)
        slopes = weights * (reads - before[:, None])
        push = -2 * self.rate * (before - self.target)[:, None]
        change = push * self.score_variance * slopes @ gram
        after = np.sum(softmax(scores + change, axis=1) * (reads + push * weights @ gram), axis=1)
        values = np.einsum("di,ij,dj->d", weights, gram, weights)
        turning = np.einsum("di,ij,dj->d", slopes, gram, slopes)
        return GradientStep(before, after, 2 * values + 2 * self.score_variance * turning, np.mean(change**2, axis=1))

    def _still(self, rng: np.random.Generator) -> float:
        scores = self.score_variance**0.5 * rng.standard_normal((self.draws, self.inputs)) @ self.factor.T
        return float(2 * np.mean(np.sum((softmax(scores, axis=1) @ self.factor) ** 2, axis=1)))

    def statements(self, data: xr.Dataset) -> Claims:
        """Each quantity against its limit, and against a theory of lazy training."""
        rivals = {
            "moved": ("lazy training, scores as they were", 0.0),
            "bent": ("lazy training, a linear step", 0.0),
            "tangent": ("attention that does not learn", float(data.still)),
            "spread": ("a kernel that is not random, as of infinitely many heads", 0.0),
        }
        for quantity, name in QUANTITIES.items():
            measured = setting.from_pair(data.found.sel(quantity=quantity, where="extrapolated"), self.draws - 1)
            predicted = setting.from_pair(data.found.sel(quantity=quantity, where="limit"), 20 * self.draws - 1)
            yield Claim(f"{name}, extrapolated in 1/n", "width: Open question 3", measured, predicted, rivals[quantity])

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.6)
        left, right = grid[0]
        ratio = data.found / data.found.sel(where="limit", statistic="value")
        at = np.arange(data.sizes["quantity"])
        for shift, where, colour in ((-0.2, "n", COLOURS[5]), (0, "2n", COLOURS[2]), (0.2, "extrapolated", COLOURS[0])):
            value, error = (ratio.sel(where=where, statistic=each) for each in ("value", "error"))
            marks(left, at + shift, value, error, label=where, color=colour)
        left.axhline(1, color=COLOURS[1], label="limit")
        still = float(data.still / data.found.sel(quantity="tangent", where="limit", statistic="value"))
        left.hlines([0, 0, still, 0], at - 0.4, at + 0.4, colors=COLOURS[-1], ls=":", lw=1, label="lazy training")
        names = ["scores\nmove", "step is\nbent", "mean\nkernel", "spread of\nkernel"]
        left.set(xticks=at, xticklabels=names, ylabel="over the limit", ylim=(-0.1, 1.75), xlim=(-0.6, 3.6))
        left.legend(loc="upper center", ncols=3, handlelength=1.4)
        histogram(right, *np.histogram(data.tangent, 60, density=True)[::-1], label="limit", color=BARS)
        right.axvline(float(data.tangent.mean()), label="its mean: not random", **setting.RIVAL)
        right.set(xlabel="tangent kernel of the output", ylabel="density")
        right.legend(loc="upper right")
        setting.sizes_title(figure, self, "width", "inputs", "rate", n=f"{self.width} and {2 * self.width}")
        return figure
