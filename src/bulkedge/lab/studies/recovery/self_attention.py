"""Section 5: the theorems with the weights that causal self-attention has on each sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.ensembles.weights import pool
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, follows
from bulkedge.lab.studies.recovery.population import population_covariance
from bulkedge.laws import MarchenkoPastur
from bulkedge.plots.style import THEORY, histogram, line, marks, panels
from bulkedge.support.domains import Integers, Interval, parameter

BINS, POINTS, LEVELS = 40, 300, np.linspace(0.05, 0.95, 19)
QUANTITIES = ("location", "overlap", "optimal", "variance")


@dataclass(frozen=True)
class RecoverySelfAttention(Study):
    """Bulk, outlier and alignment of sequences that are pooled by self-attention of their own tokens.

    The weights are the softmax of scores ``tau x_t.x_s/d``, drawn anew for each sequence; the lines are those of the
    harmonic weights to which they tend (Lemma 1).
    """

    dim: int = parameter(*setting.DIM, 100, ours=400)
    vocab: int = parameter(Integers(40, 10_000), "rows of the table, even", 200, ours=800)
    samples: int = parameter(Integers(40, 10_000), "sequences", 300, ours=1200)
    signal: float = parameter(*setting.SIGNAL_LENGTH, 1.0, ours=1.0)
    score_scale: float = parameter(Interval(0.01, 3), "factor tau of the scores", 1.0, ours=1.0)
    draws: int = parameter(Integers(4, 1000), "draws", 200, ours=60)
    small = {"dim": 60, "vocab": 120, "samples": 180, "draws": 20}
    caption = """Eigenvalues of sequences pooled by self-attention with the laws of harmonic and of mean
    weights, and the largest value of each draw. Bars and dots should follow the orange law and its outlier, not the
    dotted ones."""

    def model(self, weighting: str) -> PooledSequences:
        """The ensemble with fixed weights."""
        correlation = prefix_correlation(setting.LONG, setting.LONG_PREFIX, setting.CORRELATION)
        sizes = self.dim, self.vocab, self.samples
        return PooledSequences(*sizes, self.signal, setting.weights_of(weighting, correlation), correlation)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Pool draws with their own weights."""
        causal, mean, optimal = (self.model(each) for each in ("causal", "mean", "optimal"))
        law, values = causal.bulk(), list[Real]()
        places = law.ppf(LEVELS)

        def quantities(model: PooledSequences, rng: np.random.Generator) -> Real:
            draw = model.draw(rng)
            rows = pool(draw.table, draw.tokens, setting.attention_weights(draw, self.score_scale))
            found = np.linalg.eigvalsh(rows.T @ rows / model.samples)
            if model is causal:
                values.append(found)
            population, half = population_covariance(draw, model)
            best = setting.top(pool(draw.table, draw.tokens, optimal.weights))[1]
            unit, (value, vector) = draw.mean / np.linalg.norm(draw.mean), setting.top(rows)
            variance = np.mean((rows @ half) ** 2) / (half @ population @ half)
            below = np.searchsorted(found[:-1], places, side="right") / (model.dim - 1)
            return np.array([value, (vector @ unit) ** 2, (best @ unit) ** 2, variance, *below])

        found = setting.draw_pairs(quantities, setting.with_halves([causal]), self.draws, rng, "draws")
        return self._describe((causal, mean, optimal), np.array(values), found.limit[0])

    def _describe(self, models: tuple[PooledSequences, ...], values: Real, limit: Real) -> xr.Dataset:
        causal, mean, _ = models
        law, matched = causal.bulk(), MarchenkoPastur(causal.vocab_ratio + causal.sample_ratio, causal.kappa)
        last = 1.1 * max(law.edge, float(causal.sample_spike().location))
        bins, x = np.linspace(0, last, BINS + 1), np.linspace(0, 1.02 * law.edge, POINTS)[1:]
        flat = replace(causal, weights=mean.weights)
        square = self.signal**2 + causal.vocab_ratio
        along = [each.kappa + each.alpha * square for each in (flat, causal)]
        data = {name: ("draw", limit[:, number]) for number, name in enumerate(QUANTITIES)}
        return xr.Dataset(
            data
            | {
                "simulation": ("bin", np.histogram(values, bins)[0] / np.diff(bins) / values.size),
                "bin_edge": ("end", bins),
                "x": ("point", x),
                "theory": ("point", law.pdf(x)),
                "flat_theory": ("point", flat.bulk().pdf(x), {"long_name": "law of mean pooling"}),
                "below": (("draw", "level"), limit[:, len(QUANTITIES) :]),
                "matched_level": ("level", matched.cdf(law.ppf(LEVELS))),
                "largest": ("draw", values[:, -1]),
                "outlier": ("weighting", [float(each.sample_spike().location) for each in models]),
                "alignment": ("weighting", [each.alignment().total for each in models]),
                "along": ((), along[0] / along[1], {"long_name": "variance along the class means, mean over causal"}),
            },
            coords={"level": LEVELS, "weighting": ["causal", "mean", "optimal"]},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Each theorem, with mean pooling as the rival where there is no nearer one."""
        outlier, alignment = data.outlier, data.alignment
        gain = alignment.sel(weighting="optimal") - alignment.sel(weighting="causal")
        flat = "mean pooling"
        text = "share of Marchenko-Pastur in the bulk of sequences pooled by self-attention"
        rival = "Marchenko-Pastur of this mean and variance", data.matched_level
        yield follows(text, "recovery: Theorem 1, Lemma 1", data.below, data.level, rival)
        text = "variance of rows along the class means, over that of the population with harmonic weights"
        yield Claim(text, "recovery: Equation 3, Theorem 2, Lemma 1", data.variance, 1.0, (flat, data.along))
        text = "outlier of sequences pooled by self-attention"
        rival = flat, outlier.sel(weighting="mean")
        yield Claim(text, "recovery: Theorem 3, Lemma 1", data.location, outlier.sel(weighting="causal"), rival)
        text = "alignment of sequences pooled by self-attention"
        place = "recovery: Theorem 4, Equation 8, Lemma 1"
        rival = flat, alignment.sel(weighting="mean")
        yield Claim(text, place, data.overlap, alignment.sel(weighting="causal"), rival)
        text = "alignment of optimal weights minus that of self-attention"
        rival = "self-attention is optimal", 0.0
        yield Claim(text, "recovery: Theorem 5, Lemma 1", data.optimal - data.overlap, gain, rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 1, width=4.6, height=2.8)
        axes = grid[0, 0]
        height = 1.6 * float(np.quantile(data.theory, 0.97))
        histogram(axes, data.bin_edge, data.simulation, label="simulation")
        line(axes, data.x, data.theory, label="harmonic weights")
        line(axes, data.x, data.flat_theory, label="mean pooling", **setting.RIVAL)
        for weighting, look in (("causal", {"color": THEORY, "ls": "--"}), ("mean", setting.RIVAL)):
            axes.axvline(float(data.outlier.sel(weighting=weighting)), **({"lw": 1} | look))
        marks(axes, data.largest, np.full(data.sizes["draw"], 0.05 * height), label="largest eigenvalues", ms=2)
        axes.set(ylim=(0, height), xlabel=r"eigenvalue of $Y^{\top}Y/N$", ylabel="density")
        axes.legend(title="vertical: outliers", title_fontsize=7)
        setting.caption(figure, self, "dim", "vocab", "samples", "signal", "score_scale", "draws")
        return figure
