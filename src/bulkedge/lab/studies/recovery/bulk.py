"""Figure 3: the bulk and the outlier, for two poolings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.pooled import NOISE, Noise, PooledSequences, Table
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, follows
from bulkedge.laws import MarchenkoPastur, TracyWidom
from bulkedge.plots.style import THEORY, histogram, line, marks, panels, shared_legend
from bulkedge.support.domains import Integers, parameter

BINS, POINTS, LEVELS = 60, 400, np.linspace(0.05, 0.95, 37)
SHOWN = ("mean", "causal")


@dataclass(frozen=True)
class RecoveryBulk(Study):
    """Eigenvalues of the covariance of pooled sequences: causal weights widen the bulk and separate the outlier.

    The rival of the bulk is the Marchenko-Pastur law of the same mean and variance. Where the bulk ends is seen
    without a signal, in a table whose class means are exact. Sequences are long enough that tokens hardly repeat: with
    ten positions, causal weights have half of the noise on the first, and the bulk is measurably not the free product.
    """

    dim: int = parameter(Integers(40, 10_000), "dimension of the embeddings; half of it is drawn too", 160, ours=1000)
    vocab: int = parameter(Integers(40, 100_000), "rows of the table, even", 320, ours=2000)
    samples: int = parameter(Integers(40, 100_000), "sequences", 480, ours=3000)
    signal: float = parameter(*setting.SIGNAL_LENGTH, 1.3, ours=1.3)
    length: int = parameter(Integers(4, 500), "positions", setting.LONG, ours=setting.LONG)
    prefix: int = parameter(
        Integers(2, 500), "those that are correlated", setting.LONG_PREFIX, ours=setting.LONG_PREFIX
    )
    table: Table = parameter(*setting.TABLE_MEANS, "finite", ours="finite")
    noise: Noise = parameter(NOISE, "entries of the noise", "gaussian", ours="gaussian")
    draws: int = parameter(Integers(4, 1000), "draws", 60, ours=40)
    small = {"dim": 80, "vocab": 160, "samples": 240, "draws": 30}
    caption = """Eigenvalues of the covariance of pooled sequences with the law of Theorem 1, for mean and
    causal weights, and the largest one of each draw. The dots should gather at the orange dashed line, and causal
    weights should both widen the bulk and move the outlier away from it."""

    def model(self, weighting: str) -> PooledSequences:
        """The ensemble of the study, pooled with these weights."""
        correlation = prefix_correlation(self.length, self.prefix, setting.CORRELATION)
        sizes = self.dim, self.vocab, self.samples
        weights = setting.weights_of(weighting, correlation)
        return PooledSequences(*sizes, self.signal, weights, correlation, self.table, noise=self.noise)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Eigenvalues of all draws."""
        parts = [self._measure(self.model(weighting), weighting, rng) for weighting in SHOWN]
        return xr.concat(parts, dim=xr.Variable("weighting", list(SHOWN)))

    def _measure(self, model: PooledSequences, label: str, rng: np.random.Generator) -> xr.Dataset:
        law = model.bulk()
        places, values = law.ppf(LEVELS), []

        def quantities(drawn: PooledSequences, rng: np.random.Generator) -> Real:
            found = drawn.spectrum(rng).values
            if drawn is model:
                values.append(found)
            share_below = np.searchsorted(found[:-1], places, side="right") / (drawn.dim - 1)
            return np.append(share_below, found[-1])

        drawn = setting.draw_pairs(quantities, setting.with_halves([model]), self.draws, rng, label)
        silent = replace(model, signal=0.0, table="additive")
        edges = setting.draw_pairs(
            lambda drawn, rng: [drawn.leading(rng)[0]], setting.with_halves([silent]), self.draws, rng, label
        )
        return self._describe(model, np.array(values), drawn, edges)

    def _describe(
        self, model: PooledSequences, values: Real, drawn: setting.Extrapolation, edges: setting.Extrapolation
    ) -> xr.Dataset:
        law, kappa = model.bulk(), model.kappa
        matched = MarchenkoPastur(model.vocab_ratio + model.sample_ratio, kappa)
        bins, x = np.linspace(0, 1.02 * law.edge, BINS + 1), np.linspace(0, 1.02 * law.edge, POINTS)[1:]
        rival = replace(model, table=setting.other(self.table)[0])
        unit = law.edge_scale * self.dim ** (-2 / 3)
        return dataset(
            simulation=("bin", np.histogram(values, bins)[0] / np.diff(bins) / values.size),
            bin_edge=("end", bins),
            x=("point", x),
            theory=("point", law.pdf(x)),
            rival_theory=("point", matched.pdf(x)),
            below=(("draw", "level"), drawn.limit[0, :, :-1], "share of the eigenvalues below"),
            rival_level=("level", matched.cdf(law.ppf(LEVELS)), "the same for Marchenko-Pastur"),
            largest=("draw", drawn.plain[0, :, -1], "largest eigenvalue"),
            limit=("draw", drawn.limit[0, :, -1], "the same without its term of order 1/d"),
            outlier=((), model.sample_spike().location, "predicted outlier"),
            rival_outlier=((), rival.sample_spike().location, "that of the other table"),
            edge=((), law.edge),
            end=("draw", edges.limit[0, :, 0], "largest eigenvalue without a signal, without its term of order 1/d"),
            # twice the mean of the Tracy-Widom law at d, minus that at d/2
            shift=((), (2 - 2 ** (2 / 3)) * TracyWidom(1).mean() * unit, "what is left of that law's mean"),
            rival_edge=((), matched.edge, "edge of Marchenko-Pastur"),
            kappa=((), kappa),
            coords={"level": LEVELS},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Bulk, its edge and the outlier for both, how much wider and how much further apart."""
        for weighting in SHOWN:
            one = data.sel(weighting=weighting)
            shift = float(one["shift"])
            text = f"{weighting} weights: share of Marchenko-Pastur in the bulk"
            place = "recovery: Theorem 1, Figure 3"
            against = "Marchenko-Pastur of this mean and variance", one.rival_level
            yield follows(text, place, one.below.transpose("draw", "level"), one.level, against)
            yield Claim(
                f"{weighting} weights: mean largest eigenvalue without a signal, without its term of order 1/d",
                "recovery: Proposition 1",
                one.end,
                float(one.edge) + shift,
                ("the edge of that Marchenko-Pastur law", float(one.rival_edge) + shift),
            )
            text = f"{weighting} weights: outlier"
            place = "recovery: Theorem 3, Figure 3"
            yield Claim(text, place, one.limit, one.outlier, (setting.other(self.table)[1], one.rival_outlier))
        parted, predicted, rival = (
            data[name].sel(weighting="causal") / data.edge.sel(weighting="causal")
            - data[name].sel(weighting="mean") / data.edge.sel(weighting="mean")
            for name in ("limit", "outlier", "rival_outlier")
        )
        text = "outlier over edge, causal minus mean weights"
        yield Claim(text, "recovery: Figure 3", parted, predicted, ("no gain", 0.0 * rival))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, data.sizes["weighting"])
        exact = "exact class means" if self.table == "finite" else "noisy class means"
        for axes, weighting in zip(grid[0], data.weighting.values.tolist(), strict=True):
            one = data.sel(weighting=weighting)
            histogram(axes, one.bin_edge, one.simulation, label="simulation")
            line(axes, one.x, one.theory, label="Theorem 1")
            line(axes, one.x, one.rival_theory, label="Marchenko-Pastur", **setting.RIVAL)
            height = 1.25 * float(np.quantile(one.theory, 0.97))
            axes.axvline(float(one.outlier), color=THEORY, ls="--", lw=1, label="outlier, theory")
            axes.axvline(float(one.rival_outlier), **setting.RIVAL, dashes=(4, 2), label=f"outlier, {exact}")
            marks(axes, one.largest, np.full(one.sizes["draw"], 0.06 * height), label="largest eigenvalues", ms=2)
            last = 1.05 * float(max(one.largest.max(), one.outlier))
            title = rf"{weighting} weights, $\kappa$ = {float(one.kappa):.3f}"
            axes.set(xlim=(0, last), ylim=(0, height), xlabel=r"eigenvalue of $Y^{\top}Y/N$", title=title)
        grid[0, 0].set_ylabel("density")
        shared_legend(figure, [grid[0, 0]], 3)
        setting.caption(figure, self, "dim", "vocab", "samples", "signal", "length", "prefix", "draws")
        return figure
