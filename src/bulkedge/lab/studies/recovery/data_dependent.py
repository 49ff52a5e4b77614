"""Open point (iii): self-attention whose scores do not vanish, so that weights depend on the sequence (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.pooled import PooledDraw, PooledSequences
from bulkedge.ensembles.weights import pool
from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival, average
from bulkedge.lab.studies.recovery.setting import (
    CORRELATION,
    RIVAL,
    attention_weights,
    caption,
    halved,
    measured,
    scatter,
    top,
    versus,
    weights_of,
)
from bulkedge.lab.studies.recovery.uneven import UnevenRows
from bulkedge.plots.style import line, marks, panels
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.visibility import softmax

LENGTH, PREFIX = 20, 8
QUANTITIES = ("location", "overlap", "own_location", "own_overlap", "noise")
SEQUENCES = 4000
"""Sequences of Gaussian scores from which the limit of the weights is taken."""


@dataclass(frozen=True)
class RecoveryDataDependent(Study):
    """Outlier and alignment of self-attention with scores ``tau x_t.x_s/sqrt(d)``, less those of harmonic weights.

    Weights then differ from sequence to sequence. The theory takes them as they are, and the noise of the sequence as
    independent of them, as a cavity argument would; its scores become independent Gaussians. Averaged over the rows of
    attention the weights move little, so that the difference to harmonic weights on the same sequences is shown.
    Quantities are off by order ``d**(-1/2)``: a quarter of the dimension is drawn too. The vocabulary is large, because
    a token that occurs twice has a score of order ``sqrt(d)`` with itself.
    """

    dim: int = parameter(Integers(40, 2000), "dimension of the embeddings; a quarter of it is drawn too", 240, ours=480)
    vocab_ratio: float = parameter(Interval(0.01, 2), "dimension over vocabulary", 0.04, ours=0.04)
    sample_ratio: float = parameter(Interval(0.05, 2), "dimension over samples", 1 / 3, ours=1 / 3)
    signal: float = parameter(Interval(0.1, 10), "length of the signal", 1.3, ours=1.3)
    score_scales: tuple[float, ...] = parameter(
        Each(Interval(0.0, 3)), "factors tau of the scores", (1.0, 2.0), ours=(0.5, 1.0, 1.5, 2.0)
    )
    draws: int = parameter(Integers(4, 1000), "draws of each", 20, ours=40)
    small: ClassVar = {"dim": 120, "score_scales": (2.0,), "draws": 10}

    def model(self) -> PooledSequences:
        """The ensemble with the harmonic weights."""
        correlation = prefix_correlation(LENGTH, PREFIX, CORRELATION)
        sizes = self.dim, 2 * round(self.dim / self.vocab_ratio / 2), round(self.dim / self.sample_ratio)
        return PooledSequences(*sizes, self.signal, weights_of("causal", correlation), correlation)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draws at each score_scale."""
        model = self.model()
        pair = (model, halved(model, 4))
        found = [
            measured(partial(_quantities, score_scale=tau), [pair], self.draws, rng, f"tau = {tau:g}")
            for tau in self.score_scales
        ]
        data: dict[str, Any] = {}
        for number, name in enumerate(QUANTITIES):
            data[name] = (("score_scale", "draw"), np.array([each.plain[0, :, number] for each in found]))
            data[f"limit_{name}"] = (("score_scale", "draw"), np.array([each.limit[0, :, number] for each in found]))
        noise = [_gaussian_scores(tau, rng) for tau in self.score_scales]
        data["gaussian"] = (("score_scale", "batch"), np.array(noise), {"long_name": "kappa of Gaussian scores"})
        data["harmonic"] = ((), model.kappa)
        return xr.Dataset(data, coords={"score_scale": list(self.score_scales)})

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The noise that is kept, and outlier and overlap beside those of harmonic weights."""
        claims = []
        for tau in self.score_scales:
            one = data.sel(score_scale=tau)
            claims.append(
                Claim(
                    statement=f"tau = {tau:g}: mean of |w|**2, beside that of Gaussian scores",
                    place="recovery: Open problem (iii); ours",
                    measured=average(one.limit_noise),
                    predicted=Estimate.of(one.gaussian),
                    rival=Rival("the harmonic weights", float(data.harmonic)),
                )
            )
        last = data.isel(score_scale=-1)
        moved = last.limit_own_location
        claims.append(
            versus(
                f"tau = {self.score_scales[-1]:g}: outlier less that of harmonic weights, and less its prediction",
                "recovery: Open problem (iii); ours",
                last.limit_location - moved,
                0.0,
                ("the harmonic weights", -moved.mean()),
            )
        )
        return claims

    def figure(self, data: xr.Dataset) -> Figure:
        """Noise that is kept, and the outlier less that of harmonic weights, over the score_scale of the scores."""
        figure, grid = panels(1, 2)
        left, right = grid[0]
        gaussian = data.gaussian.rename(batch="draw")
        marks(left, data.score_scale, data.limit_noise.mean("draw"), scatter(data.limit_noise), label="self-attention")
        line(left, data.score_scale, gaussian.mean("draw"), label="Gaussian scores", marker="_", ms=12)
        left.axhline(float(data.harmonic), **RIVAL, label="harmonic weights")
        left.set_ylabel(r"mean of $|w|^2$")
        found, own = data.limit_location, data.limit_own_location
        marks(right, data.score_scale, found.mean("draw"), scatter(found), label="self-attention")
        line(right, data.score_scale, own.mean("draw"), label="independent noise", marker="_", ms=12)
        right.axhline(0.0, **RIVAL, label="harmonic weights")
        right.set_ylabel("shift of the outlier")
        for axes in grid[0]:
            axes.set_xlabel(r"factor $\tau$ of the scores $\tau\,x_t\cdot x_s/\sqrt{d}$")
            axes.legend(loc="upper left")
        caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "signal", "draws")
        return figure


def _gaussian_scores(score_scale: float, rng: np.random.Generator) -> Real:
    """Means of ``|w|**2`` for independent Gaussian scores, in ten batches."""
    scores = np.tril(score_scale * rng.standard_normal((SEQUENCES, LENGTH, LENGTH)), -1)
    seen = np.tri(LENGTH, LENGTH, -1, dtype=bool)
    seen[0, 0] = True
    weights = softmax(scores, seen).mean(axis=-2)
    return np.asarray(np.sum(weights**2, axis=1).reshape(10, -1).mean(axis=1))


def _quantities(model: PooledSequences, rng: np.random.Generator, *, score_scale: float) -> Real:
    """Those named in ``QUANTITIES``, of one draw: all but the last less those of harmonic weights on its sequences."""
    draw = model.draw(rng)
    weights = attention_weights(draw, score_scale * np.sqrt(model.dim))
    found, fixed = (_pooled(model, draw, each) for each in (weights, np.broadcast_to(model.weights, weights.shape)))
    return np.append(found - fixed, np.mean(np.sum(weights**2, axis=1)))


def _pooled(model: PooledSequences, draw: PooledDraw, weights: Real) -> Real:
    """Largest eigenvalue and overlap of a draw pooled with these weights, measured and predicted."""
    value, vector = top(pool(draw.table, draw.tokens, weights))
    kept, noise = np.sum(weights * draw.signs, axis=1) ** 2, np.sum(weights**2, axis=1)
    square = model.signal**2 + model.vocab_ratio
    location, overlap = UnevenRows(kept, noise, square, model.vocab_ratio, model.sample_ratio).spike()
    along = (vector @ draw.mean) ** 2 / model.signal**2
    return np.array([value, along, location, overlap * model.signal**2 / square])
