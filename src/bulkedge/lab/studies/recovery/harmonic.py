"""Lemma 1 and Proposition 2: causal self-attention with scores scaled by 1/d pools with the harmonic weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bulkedge.ensembles.correlations import draw_signs, prefix_correlation
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.ensembles.weights import (
    causal_weights,
    harmonic,
    mean_weights,
    self_attention_spread,
    self_attention_weights,
)
from bulkedge.lab.studies.base import (
    Claim,
    Claims,
    Estimate,
    Real,
    Study,
    dataset,
    difference,
    follows,
    mean_marks,
    standard_error,
    track,
)
from bulkedge.lab.studies.recovery import CORRELATION, LENGTH, LONG_PREFIX, RIVAL, caption, correlations
from bulkedge.plots.style import COLOURS, line, marks, panels, plain_ticks
from bulkedge.support.domains import Each, Integers, Interval, parameter

LENGTHS, SIGNS = (80, 1280), 10_000
"""Lengths between which the lead of causal weights is compared (ten prefixes, where it is largest, and far beyond), and
the sequences of signs that are drawn for each length."""
NEXT = "fitted: at 50 dimensions squares are 1.7/d and 0.8/d +- 0.3/d below their leading order"
TICKS = (0.002, 0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True)
class RecoveryHarmonic(Study):
    """Weights of causal self-attention on drawn sequences, and their distance to the harmonic weights as D grows.

    The distance falls as d**(-1/2), as the lemma has it; a good part of its square is due to tokens that occur twice
    in a sequence, whose score does not vanish. A draw is a table with its sequences. Harmonic weights keep more of the
    signal than the mean, and the text has their lead grow with the length for a fixed prefix; from ten prefixes on it
    shrinks, and it vanishes in the end.
    """

    dims: tuple[int, ...] = parameter(
        Each(Integers(10, 5000)), "dimensions", (50, 100, 200, 400), ours=(100, 200, 400, 800, 1600)
    )
    vocab_ratio: float = parameter(Interval(0.01, 2), "dimension over vocabulary", 0.5, ours=0.5)
    signal: float = parameter(Interval(0, 10), "length of the signal", 1.0, ours=1.0)
    score_scale: float = parameter(Interval(0.01, 3), "factor tau of the scores", 1.0, ours=1.0)
    sequences: int = parameter(Integers(20, 10**6), "sequences of each table", 300, ours=1000)
    draws: int = parameter(Integers(4, 1000), "tables", 16, ours=20)
    small = {"dims": (50, 100, 200), "draws": 8}
    caption = """Mean weights of self-attention over position (left), and their distance to harmonic
    weights over the dimension (right). At both sizes the points lie on the solid line and not on the dotted one,
    and on the right they fall along the predicted lines."""

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
            # rows of a table in which no token occurs twice
            predicted.append(
                [self_attention_spread(correlation, dim, size, self.score_scale) ** 2 for size in (vocab, (10**9))]
            )
        return dataset(
            weights=(("dim", "draw", "position"), np.array(weights), "mean weight"),
            limit=("position", limit, "harmonic weight"),
            with_itself=("position", (numbers[-1] - numbers[:-1]) / LENGTH, "self in the mask"),
            square=(("dim", "draw", "tokens"), np.array(squares), "mean squared distance"),
            predicted=(("dim", "tokens"), np.array(predicted), "its leading order"),
            kept=(("batch", "length", "weighting"), self._kept(rng), "alpha/kappa of drawn signs"),
            coords={
                "dim": list(self.dims),
                "position": np.arange(1, LENGTH + 1),
                "tokens": ["all", "distinct"],
                "length": list(LENGTHS),
                "weighting": ["causal", "mean"],
            },
        )

    def _kept(self, rng: np.random.Generator) -> Real:
        """Means of ``(w.xi)**2/kappa`` over drawn signs, of batches x lengths x weightings."""
        found = []
        for length in LENGTHS:
            matrix, weights = _poolings(length)
            signs = draw_signs(matrix, SIGNS, rng)
            kept = (signs @ weights.T) ** 2 / np.sum(weights**2, axis=1)
            found.append([batch.mean(axis=0) for batch in np.array_split(kept, 20)])
        return np.swapaxes(found, 0, 1)

    def _draw(self, dim: int, vocab: int, rng: np.random.Generator) -> tuple[Real, Real]:
        """Weights of each sequence of a table, and whether its tokens are all distinct."""
        model = PooledSequences(dim, vocab, self.sequences, self.signal, mean_weights(LENGTH), correlations()["prefix"])
        draw = model.draw(rng)
        apart = np.all(np.diff(np.sort(draw.tokens, axis=1), axis=1) > 0, axis=1)
        return self_attention_weights(draw.table[draw.tokens], self.score_scale), apart

    def statements(self, data: xr.Dataset) -> Claims:
        """The weights, the rate, and the distance at the largest dimension."""
        largest = data.isel(dim=-1)
        distance = data.square.sel(tokens="all").transpose("draw", "dim").values
        logs = np.log(data.dim.values)
        curves = 2 * largest.weights - data.weights.isel(dim=-2)  # free of the order 1/d, as dimensions double
        text = f"mean squared distance at D = {self.dims[-1]}"
        words = "share of attention that sees itself in the mean weights over the positions"
        rival = "uniform attention whose mask has the diagonal", data.with_itself
        yield follows(words, "recovery: Proposition 2, Lemma 1", curves.values, data.limit, rival)
        words = "share of mean pooling in the mean weights over the positions"
        rival = "mean pooling", np.full(LENGTH, 1 / LENGTH)
        yield follows(words, "recovery: Proposition 2", curves.values, data.limit, rival)
        # the square is off by 2/d at most, that of the smallest dimension by so much more
        words, bound = "slope of log distance over log d", 1 / self.dims[0] / float(np.ptp(logs))
        measured = Estimate.jackknife(lambda draws: _slope(logs, np.mean(draws, axis=0)), distance)
        predicted = _slope(logs, data.predicted.sel(tokens="all").values)
        reason = f"{NEXT}, here at the smallest dimension"
        yield Claim(words, "recovery: Lemma 1", measured, predicted, ("a distance of order 1/d", -1.0), bound, reason)
        yield self._distance(largest, "all", f"{text}, all tokens", "distinct", "without tokens that occur twice")
        yield self._distance(largest, "distinct", f"{text}, distinct tokens", "all", "with tokens that occur twice")
        yield self._lead(data)

    def _lead(self, data: xr.Dataset) -> Claim:
        """Alpha over kappa of causal over mean weights; lengths have draws of their own."""
        logs = []
        for length in LENGTHS:
            batches = data.kept.sel(length=length).transpose("batch", "weighting").values
            logs.append(Estimate.jackknife(lambda each: float(np.log(np.divide(*np.mean(each, axis=0)))), batches))
        kept = [np.einsum("ki,ij,kj->k", w, r, w) / np.sum(w**2, axis=1) for r, w in map(_poolings, LENGTHS)]
        text = f"log of alpha/kappa of causal over mean weights: its change from {LENGTHS[0]} to {LENGTHS[1]} positions"
        predicted = float(np.log(np.divide(*kept[1]) / np.divide(*kept[0])))
        rival = "as printed, a lead that grows with the length: zero at least", 0.0
        return Claim(text, "recovery: not Figure 5(b)", difference(logs[1], logs[0]), predicted, rival)

    def _distance(self, data: xr.Dataset, tokens: str, statement: str, rival: str, name: str) -> Claim:
        predicted = float(data.predicted.sel(tokens=tokens))
        place = "recovery: Lemma 1" + ("; ours" if tokens == "all" else "")
        other = name, data.predicted.sel(tokens=rival)
        finite_size = 2 / self.dims[-1] * predicted
        return Claim(statement, place, data.square.sel(tokens=tokens), predicted, other, finite_size, NEXT)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.5)
        left, right = grid[0]
        line(left, data.position, data.limit, label="harmonic weights")
        line(left, data.position, data.with_itself, label="with the diagonal", **RIVAL)
        small: Any = {"color": COLOURS[3], "fmt": "s", "ms": 7, "mfc": "none"}  # seen around the other
        for dim, look in ((data.dim[0], small), (data.dim[-1], {"color": COLOURS[0], "fmt": "o"})):
            found = data.weights.sel(dim=dim)
            look["label"] = f"self-attention, D = {int(dim)}"
            mean_marks(left, data.position, found, **look)
        left.set(xlabel="position", ylabel="mean weight")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        for tokens, colour, symbol in (("all", COLOURS[0], "o"), ("distinct", COLOURS[2], "s")):
            one = data.sel(tokens=tokens)
            line(right, one.dim, np.sqrt(one.predicted), label=f"{tokens} tokens, theory", color=colour)
            root = np.sqrt(one.square.mean("draw"))
            look = {"label": f"{tokens} tokens", "color": colour, "fmt": symbol}
            marks(right, one.dim, root, standard_error(one.square) / (2 * root), **look)
        right.set(xscale="log", yscale="log", xlabel="dimension D", ylabel="distance to harmonic weights")
        plain_ticks(right.xaxis, data.dim)
        plain_ticks(right.yaxis, TICKS)
        right.set_ylim(0.9 * float(np.sqrt(data.predicted.min())), 1.1 * float(np.sqrt(data.predicted.max())))
        left.legend(loc="upper right")
        right.legend(loc="lower left")
        caption(figure, self, "vocab_ratio", "signal", "score_scale", "sequences", "draws")
        return figure


def _poolings(length: int) -> tuple[Real, Real]:
    """Correlations of a short prefix at a length, and causal and mean weights there."""
    matrix = prefix_correlation(length, LONG_PREFIX, CORRELATION)
    return matrix, np.array([causal_weights(length), mean_weights(length)])


def _squares(away: Real, apart: Real) -> tuple[float, float]:
    """Mean squared distances, of all sequences and of those whose tokens are distinct."""
    squares = np.sum(away**2, axis=1)
    return float(squares.mean()), float(squares[apart].mean())


def _slope(logs: Real, squares: Real) -> float:
    return float(np.polyfit(logs, np.log(squares) / 2, 1)[0])
