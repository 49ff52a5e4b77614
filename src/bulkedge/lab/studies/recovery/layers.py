"""Open point (iv), layers: self-attention on what self-attention made (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.ensembles.weights import earlier_positions, pool
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, follows, mean_marks
from bulkedge.plots.style import COLOURS, line, panels, shared_legend
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.visibility import softmax

LENGTH, PREFIX, DEPTH = 40, 20, 3
SHOWN = 15
"""First positions, on which nearly all the weight is."""


@dataclass(frozen=True)
class RecoveryLayers(Study):
    """Weights of one, two and three layers of causal self-attention without parameters, and the outlier of two.

    Scores of the first layer vanish as D grows. Its outputs share tokens, so that their products do not vanish: with B
    the weights of the layers below, scores tend to ``tau B B'``. The weights are again the same for all sequences. In
    the second layer these scores do not depend on the key, and attention is uniform again; in the third it is not.
    """

    dim: int = parameter(*setting.DIM, 100, ours=400)
    vocab_ratio: float = parameter(Interval(0.02, 2), "dimension over vocabulary", 0.25, ours=0.25)
    sample_ratio: float = parameter(*setting.SAMPLE_RATIO, 1 / 3, ours=1 / 3)
    signal: float = parameter(*setting.SIGNAL_LENGTH, 1.0, ours=1.0)
    score_scale: float = parameter(Interval(0.01, 10), "factor tau of the scores", 3.0, ours=3.0)
    draws: int = parameter(Integers(4, 1000), "draws", 40, ours=30)
    small = {"dim": 60, "draws": 12}
    caption = """Mean weights over position after one, two and three layers of self-attention (left), and
    over those of uniform attention (right). Points should follow their lines, and only the third layer leaves the
    ratio of one."""

    def model(self, depth: int = 2) -> PooledSequences:
        """The ensemble with the limit of the weights."""
        correlation = prefix_correlation(LENGTH, PREFIX, setting.CORRELATION)
        sizes = self.dim, 2 * round(self.dim / self.vocab_ratio / 2), round(self.dim / self.sample_ratio)
        return PooledSequences(*sizes, self.signal, limit_weights(LENGTH, self.score_scale)[depth - 1], correlation)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Layers on drawn sequences."""
        models = self.model(1), self.model(2)
        found = setting.draw_pairs(
            lambda each, rng: _quantities(each, self.score_scale, rng),
            setting.with_halves(models[1:]), self.draws, rng, "draws",
        )  # fmt: skip
        shape = (self.draws, DEPTH, LENGTH)
        dims = "draw", "depth", "position"
        return dataset(
            weights=(dims, found.limit[0, :, 2:].reshape(shape)),
            plain_weights=(dims, found.plain[0, :, 2:].reshape(shape), "mean weight"),
            limit=(dims[1:], limit_weights(LENGTH, self.score_scale)),
            without=(dims[1:], limit_weights(LENGTH, 0.0), "the same without scores"),
            location=("draw", found.limit[0, :, 0]),
            overlap=("draw", found.limit[0, :, 1]),
            predicted_location=("layers", [float(each.sample_spike().location) for each in models]),
            predicted_overlap=("layers", [each.alignment().total for each in models]),
            coords={"position": np.arange(1, LENGTH + 1), "depth": np.arange(1, DEPTH + 1), "layers": [1, 2]},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """The weights, and the outlier."""
        one, two, three = (data.sel(depth=each) for each in (1, 2, 3))
        place = "recovery: Open problem (iv); ours"
        text = "share of one layer's harmonic weights in those of two layers"
        yield follows(text, place, two.weights, two.limit, ("one layer", one.limit))
        text = "share of uniform attention, three times, in the weights of three layers"
        yield follows(text, place, three.weights, three.limit, ("scores vanish in all layers", three.without))
        rival = "one layer", data.predicted_location.sel(layers=1)
        yield Claim("two layers: outlier", place, data.location, data.predicted_location.sel(layers=2), rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        left, right = grid[0]
        for depth, symbol in zip(data.depth.values.tolist(), "os^", strict=True):
            one, colour = data.sel(depth=depth, position=slice(1, SHOWN)), COLOURS[depth - 1]
            found, share = one.plain_weights, one.plain_weights / one.without
            look = {"color": colour, "fmt": symbol}
            line(left, one.position, one.limit, label=f"limit, layers: {depth}", color=colour)
            mean_marks(left, one.position, found, label=f"self-attention, layers: {depth}", **look)
            line(right, one.position, one.limit / one.without, label="", color=colour)
            mean_marks(right, one.position, share, label="", **look)
        left.set(ylabel="mean weight", yscale="log")
        right.set(ylabel="ratio to uniform")
        for axes in grid[0]:
            axes.set_xlabel("position")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        shared_legend(figure, [left], 3)
        setting.caption(figure, self, "dim", "vocab_ratio", "signal", "score_scale", "draws")
        return figure


def limit_weights(length: int, score_scale: float) -> Real:
    """Weights of layers of causal self-attention as the dimension grows, averaged over rows."""
    return layer_weights(np.eye(length), score_scale, np.zeros((length, length)))


def layer_weights(products: Real, score_scale: float, scores: Real) -> Real:
    """Weights of one, two and three layers of causal self-attention, averaged over rows."""
    length = products.shape[-1]
    seen = earlier_positions(length)
    kept, found = softmax(scores, seen), []
    for _ in range(DEPTH):
        found.append(kept.mean(axis=-2))
        kept = softmax(score_scale * kept @ products @ np.swapaxes(kept, -1, -2), seen) @ kept
    return np.stack(found, axis=-2)


def _quantities(model: PooledSequences, score_scale: float, rng: np.random.Generator) -> Real:
    """Largest eigenvalue and overlap with two layers, and the mean weights of all depths."""
    draw = model.draw(rng)
    found = []
    for block in np.array_split(draw.tokens, max(1, model.samples // setting.BLOCK)):
        embedded = draw.table[block]
        products = embedded @ np.swapaxes(embedded, -1, -2) / model.dim
        found.append(layer_weights(products, score_scale, score_scale * products))
    weights = np.concatenate(found)
    value, vector = setting.top(pool(draw.table, draw.tokens, weights[:, 1]))
    return np.array([value, (vector @ draw.mean) ** 2 / model.signal**2, *weights.mean(axis=0).ravel()])
