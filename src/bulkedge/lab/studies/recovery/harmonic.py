"""Lemma 1 and Proposition 2: causal self-attention with scores scaled by 1/d pools with the harmonic weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.ensembles.weights import (
    causal_weights,
    harmonic,
    mean_weights,
    self_attention_spread,
    self_attention_weights,
)
from bulkedge.lab.studies.base import Study, mean_marks, standard_error
from bulkedge.lab.studies.claims import Claim, Rival, share
from bulkedge.lab.studies.recovery.setting import LENGTH, RIVAL, caption, correlations
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

UNLIMITED = 10**12
"""Rows of a table in which no token occurs twice."""
TICKS = (0.002, 0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True)
class RecoveryHarmonic(Study):
    """Weights of causal self-attention on drawn sequences, and their distance to the harmonic weights as d grows.

    The distance falls as d**(-1/2), as the lemma has it; a good part of its square is due to tokens that occur twice
    in a sequence, whose score does not vanish. A draw is a table with its sequences.
    """

    dims: tuple[int, ...] = parameter(
        Each(Integers(10, 5000)), "dimensions", (50, 100, 200, 400), ours=(100, 200, 400, 800, 1600)
    )
    vocab_ratio: float = parameter(Interval(0.01, 2), "dimension over vocabulary", 0.5, ours=0.5)
    signal: float = parameter(Interval(0, 10), "length of the signal", 1.0, ours=1.0)
    score_scale: float = parameter(Interval(0.01, 3), "factor tau of the scores", 1.0, ours=1.0)
    sequences: int = parameter(Integers(20, 10**6), "sequences of each table", 300, ours=1000)
    draws: int = parameter(Integers(4, 1000), "tables", 16, ours=20)
    small: ClassVar = {"dims": (50, 100, 200), "draws": 8}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Weights and squared distances at each dimension."""
        correlation, limit = correlations()["prefix"], causal_weights(LENGTH)
        numbers = harmonic(LENGTH)
        weights, squares, predicted = [], [], []
        for dim in track(self.dims, "dimensions"):
            vocab = 2 * round(dim / self.vocab_ratio / 2)
            found = [self._draw(dim, vocab, rng) for _ in range(self.draws)]
            weights.append([each.mean(axis=0) for each, _ in found])
            squares.append([_squares(each - limit, apart) for each, apart in found])
            predicted.append(
                [self_attention_spread(correlation, dim, size, self.score_scale) ** 2 for size in (vocab, UNLIMITED)]
            )
        return xr.Dataset(
            {
                "weights": (("dim", "draw", "position"), np.array(weights), {"long_name": "mean weight"}),
                "limit": ("position", limit, {"long_name": "harmonic weight"}),
                "with_itself": ("position", (numbers[-1] - numbers[:-1]) / LENGTH, {"long_name": "self in the mask"}),
                "square": (("dim", "draw", "tokens"), np.array(squares), {"long_name": "mean squared distance"}),
                "predicted": (("dim", "tokens"), np.array(predicted), {"long_name": "its leading order"}),
            },
            coords={"dim": list(self.dims), "position": np.arange(1, LENGTH + 1), "tokens": ["all", "distinct"]},
        )

    def _draw(self, dim: int, vocab: int, rng: np.random.Generator) -> tuple[Real, Real]:
        """Weights of each sequence of a table, and whether its tokens are all distinct."""
        model = PooledSequences(dim, vocab, self.sequences, self.signal, mean_weights(LENGTH), correlations()["prefix"])
        draw = model.draw(rng)
        apart = np.all(np.diff(np.sort(draw.tokens, axis=1), axis=1) > 0, axis=1)
        return self_attention_weights(draw.table[draw.tokens], self.score_scale), apart

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The weights, the rate, and the distance at the largest dimension."""
        largest = data.isel(dim=-1)
        distance = data.square.sel(tokens="all").transpose("draw", "dim").values
        logs = np.log(data.dim.values)
        curves = 2 * largest.weights - data.weights.isel(dim=-2)  # free of the order 1/d, as dimensions double
        text = f"mean squared distance at d = {self.dims[-1]}"
        return [
            Claim(
                statement="share of attention that sees itself in the mean weights over the positions",
                place="recovery: Proposition 2, Lemma 1",
                measured=share(curves.values, data.limit, data.with_itself),
                predicted=0.0,
                rival=Rival("uniform attention whose mask has the diagonal", 1.0),
            ),
            Claim(
                statement="share of mean pooling in the mean weights over the positions",
                place="recovery: Proposition 2",
                measured=share(curves.values, data.limit, np.full(LENGTH, 1 / LENGTH)),
                predicted=0.0,
                rival=Rival("mean pooling", 1.0),
            ),
            Claim(
                statement="slope of log distance over log d",
                place="recovery: Lemma 1",
                measured=Estimate.jackknife(lambda draws: _slope(logs, np.mean(draws, axis=0)), distance),
                predicted=_slope(logs, data.predicted.sel(tokens="all").values),
                rival=Rival("a distance of order 1/d", -1.0),
                finite_size=2 / self.dims[0],
                reason="the next order, 1/d of the distance at the smallest dimension",
            ),
            self._distance(largest, "all", f"{text}, all tokens", "distinct", "without tokens that occur twice"),
            self._distance(largest, "distinct", f"{text}, distinct tokens", "all", "with tokens that occur twice"),
        ]

    def _distance(self, data: xr.Dataset, tokens: str, statement: str, rival: str, name: str) -> Claim:
        predicted = float(data.predicted.sel(tokens=tokens))
        return Claim(
            statement=statement,
            place="recovery: Lemma 1" + ("; ours" if tokens == "all" else ""),
            measured=Estimate.of(data.square.sel(tokens=tokens)),
            predicted=predicted,
            rival=Rival(name, float(data.predicted.sel(tokens=rival))),
            finite_size=10 / self.dims[-1] * predicted,
            reason="the next order of the softmax: 3 tau**2 and 4 |mu|**2 over d, and others of their size",
        )

    def figure(self, data: xr.Dataset) -> Figure:
        """Mean weights over position, and their distance to the limit over d."""
        figure, grid = panels(1, 2, height=2.5)
        left, right = grid[0]
        line(left, data.position, data.limit, label="harmonic weights")
        line(left, data.position, data.with_itself, label="with the diagonal", **RIVAL)
        for dim, colour, symbol in zip((data.dim[0], data.dim[-1]), (COLOURS[3], COLOURS[0]), "so", strict=True):
            found = data.weights.sel(dim=dim)
            look = {"label": f"self-attention, d = {int(dim)}", "color": colour, "fmt": symbol}
            mean_marks(left, data.position, found, **look)
        left.set(xlabel="position", ylabel="mean weight")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        for tokens, colour, symbol in (("all", COLOURS[0], "o"), ("distinct", COLOURS[2], "s")):
            one = data.sel(tokens=tokens)
            line(right, one.dim, np.sqrt(one.predicted), label=f"{tokens} tokens, theory", color=colour)
            root = np.sqrt(one.square.mean("draw"))
            look = {"label": f"{tokens} tokens", "color": colour, "fmt": symbol}
            marks(right, one.dim, root, standard_error(one.square) / (2 * root), **look)
        right.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="distance to harmonic weights")
        right.set_xticks(data.dim.values, [str(each) for each in data.dim.values.tolist()])
        right.set_xticks([], minor=True)
        right.set_yticks(TICKS, [f"{each:g}" for each in TICKS])
        right.yaxis.set_minor_formatter(NullFormatter())
        right.set_ylim(0.9 * float(np.sqrt(data.predicted.min())), 1.1 * float(np.sqrt(data.predicted.max())))
        left.legend(loc="upper right")
        right.legend(loc="lower left")
        caption(figure, self, "vocab_ratio", "signal", "score_scale", "sequences", "draws")
        return figure


def _squares(away: Real, apart: Real) -> tuple[float, float]:
    """Mean squared distances, of all sequences and of those whose tokens are distinct."""
    squares = np.sum(away**2, axis=1)
    return float(squares.mean()), float(squares[apart].mean())


def _slope(logs: Real, squares: Real) -> float:
    return float(np.polyfit(logs, np.log(squares) / 2, 1)[0])
