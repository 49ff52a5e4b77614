"""Relative positions in the scores: what the paper leaves out, and its limit takes in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, track
from bulkedge.plots.style import COLOURS, marks, panels
from bulkedge.programs import equal_correlations
from bulkedge.programs.activations import cholesky, lattice
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.visibility import softmax

KINDS = {"bias": "a bias", "vectors": "relative vectors", "rotary": "rotations"}
BASE = 10_000.0
"""Slowest wavelength of rotary encodings, over two pi (Su et al. 2021)."""
QUANTITIES = {"kernel": "variance of a coordinate", "kurtosis": "excess kurtosis of a coordinate"}


@dataclass(frozen=True)
class WidthPositions(Study):
    """With relative positions in the scores the limit is the same mixture; only the law of the scores changes.

    The first input attends to inputs at equal distances. Biases move the mean of its scores (Press et al. 2022);
    Gaussian vectors added to the keys (Shaw et al. 2018) add their variance to each; rotations (Su et al. 2021)
    multiply the covariance of two scores by the mean of ``cos(theta distance)`` over the frequencies. Drawn at widths n
    and 2n, extrapolated in 1/n.
    """

    inputs: int = parameter(Integers(2, 4), "inputs s", 3, ours=4)
    correlation: float = parameter(Interval(0, 0.95), "correlation of the inputs", 0.6, ours=0.6)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 4.0, ours=4.0)
    bias: float = parameter(Interval(0, 10), "bias against each further input", 1.0, ours=1.0)
    vectors: float = parameter(Interval(0, 10), "variance of relative vectors, over that of keys", 0.5, ours=0.5)
    distance: int = parameter(Integers(1, 10_000), "positions from one input to the next, for rotations", 64, ours=64)
    width: int = parameter(*setting.WIDTH, 64, ours=256)
    draws: int = parameter(Integers(1000, 10**6), "draws at each width", 20_000, ours=100_000)
    small = {"draws": 10_000, "width": 32}
    caption = """Variance and excess kurtosis of a coordinate for three kinds of relative positions, at
    two widths and extrapolated. Extrapolated points should lie on the orange bars and off the dotted line, which
    has no positions."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Kernels of one head with each kind of positions, drawn and by quadrature."""
        drawn, theory = [], []
        for kind in track(tuple(KINDS), "positions"):
            found = []
            for width in (self.width, 2 * self.width):
                given = self._layer(kind, width, rng)
                found.append([Estimate.of(given), setting.kurtosis(given)])
            drawn.append(
                [
                    setting.pairs([narrow, wide, setting.extrapolate(narrow, wide)])
                    for narrow, wide in zip(*found, strict=True)
                ]
            )
            theory.append(kernel_moments(self.gram, *self._scores(kind)))
        none = kernel_moments(self.gram, self.score_variance * self.gram, np.zeros(self.inputs))
        return dataset(
            drawn=(("kind", "quantity", "where", "statistic"), drawn),
            theory=(("kind", "quantity"), theory, "limit"),
            without=("quantity", none, "limit without positions"),
            coords={
                "kind": list(KINDS),
                "quantity": list(QUANTITIES),
                "where": ["n", "2n", "extrapolated"],
                "statistic": list(setting.STATISTIC),
            },
        )

    @property
    def gram(self) -> Real:
        """Gram matrix of the inputs."""
        return equal_correlations(self.inputs, self.correlation)

    def _scores(self, kind: str) -> tuple[Real, Real]:
        """Covariance and mean of the scores of the first input, in the limit."""
        covariance: Real = self.score_variance * self.gram
        mean: Real = np.zeros(self.inputs)
        if kind == "bias":
            mean = -self.bias * np.arange(self.inputs)
        if kind == "vectors":
            covariance = covariance + self.score_variance * self.vectors * np.eye(self.inputs)
        if kind == "rotary":
            apart = self.distance * np.subtract.outer(np.arange(self.inputs), np.arange(self.inputs))
            frequency = BASE ** -((np.arange(4096) + 0.5) / 4096)
            covariance = covariance * np.cos(apart[..., None] * frequency).mean(axis=-1)
        return covariance, mean

    def _layer(self, kind: str, width: int, rng: np.random.Generator) -> Real:
        """Variance of a coordinate at the first input given all but the last weight, at width n."""
        factor = np.linalg.cholesky(self.gram)
        found = []
        for count in [2000] * (self.draws // 2000) + [self.draws % 2000] * (self.draws % 2000 > 0):
            query = rng.standard_normal((count, 1, width))
            keys: Real = factor @ rng.standard_normal((count, self.inputs, width))
            values = factor @ rng.standard_normal((count, self.inputs, width))
            if kind == "vectors":
                keys += self.vectors**0.5 * rng.standard_normal(keys.shape)
            if kind == "rotary":
                keys = rotate(keys, self.distance * np.arange(self.inputs, dtype=float))
            scores = self.score_variance**0.5 * np.sum(query * keys, axis=2) / width**0.5
            if kind == "bias":
                scores -= self.bias * np.arange(self.inputs)
            attended = softmax(scores, axis=1)[:, None, :] @ values
            found.append(np.mean(attended[:, 0] ** 2, axis=1))
        return np.concatenate(found)

    def statements(self, data: xr.Dataset) -> Claims:
        """Variance and kurtosis of a coordinate for each kind."""
        rivals = {
            "kernel": ("as without positions", float(data.without.sel(quantity="kernel"))),
            "kurtosis": ("a Gaussian's", 0.0),
        }
        for kind, what in KINDS.items():
            for quantity, name in QUANTITIES.items():
                pair = data.drawn.sel(kind=kind, quantity=quantity, where="extrapolated")
                measured = setting.from_pair(pair, self.draws - 1)
                predicted = data.theory.sel(kind=kind, quantity=quantity)
                text = f"{name}, scores with {what}"
                yield Claim(text, "width: Relative positions", measured, predicted, rivals[quantity])

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        titles = {"kernel": "variance of a coordinate", "kurtosis": "excess kurtosis"}
        at = np.arange(data.sizes["kind"])
        for axes, quantity in zip(grid[0], titles, strict=True):
            one = data.sel(quantity=quantity)
            places = (-0.2, "n", COLOURS[5]), (0, "2n", COLOURS[2]), (0.2, "extrapolated", COLOURS[0])
            for shift, where, colour in places:
                value, error = (one.drawn.sel(where=where, statistic=each) for each in ("value", "error"))
                marks(axes, at + shift, value, error, label=where, color=colour)
            axes.hlines(one.theory, at - 0.35, at + 0.35, color=COLOURS[1], label="limit")
            axes.axhline(float(one.without), label="no positions", **setting.RIVAL)
            axes.set(
                xticks=at, xticklabels=data.kind.values.tolist(), title=titles[quantity], xlim=(-0.5, len(at) - 0.5)
            )
        grid[0, 1].set_ylim(0, None)
        low, high = grid[0, 0].get_ylim()
        grid[0, 0].set_ylim(low, high + 0.5 * (high - low))
        grid[0, 0].legend(loc="upper center", ncols=2)
        setting.sizes_title(figure, self, "width", "inputs", n=f"{self.width} and {2 * self.width}")
        return figure


def rotate(keys: Real, positions: Real) -> Real:
    """Keys as a query at position zero sees them through rotary encodings."""
    half = keys.shape[2] // 2
    angle = positions[:, None] * BASE ** -((np.arange(half) + 0.5) / half)
    first, second, rest = np.split(keys, [half, 2 * half], axis=2)
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.concatenate([cosine * first - sine * second, sine * first + cosine * second, rest], axis=2)


def kernel_moments(gram: Real, covariance: Real, mean: Real) -> list[float]:
    """Variance and excess kurtosis of a coordinate, for Gaussian scores of any law."""
    size = len(gram) - 1
    nodes, weights, _ = lattice(size)
    apart = np.hstack([np.eye(size), -np.ones((size, 1))])
    factor = cholesky((apart @ covariance @ apart.T)[:, :, None])[:, :, 0]
    differences = factor @ nodes.T + (apart @ mean)[:, None]
    attention = softmax(np.vstack([differences, np.zeros(len(nodes))]), axis=0)
    kernel = np.sum(attention * (gram @ attention), axis=0)
    first, second = float(weights @ kernel), float(weights @ kernel**2)
    return [first, 3 * (second / first**2 - 1)]
