"""Causal attention: a law of its own, and a mean with a family of outliers (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Claim, Claims, Study, dataset, follows, mean_marks, track
from bulkedge.lab.studies.equivalence import UNKNOWN, doubling_axis, plain_logarithms
from bulkedge.laws import CausalHeadLaw, CausalLaw, FiniteHeadLaw
from bulkedge.laws.attention.causal_head import mean_values
from bulkedge.plots.style import COLOURS, histogram, line, panels, plain_ticks
from bulkedge.spectra import spectrum
from bulkedge.support.domains import Choice, Each, Integers, Interval, parameter
from bulkedge.visibility import prefix_mean_values

SHOWN, BINS = 8, 40
CLAIMED = 3
"""Singular values of the mean that are claimed together."""
LAWS = ("causal head", "independent scores", "without a mask")
LEVELS = np.array([0.15, 0.3, 0.5, 0.7, 0.9])
"""Levels of the law of independent scores at whose quantiles distribution functions are compared."""


@dataclass(frozen=True)
class EquivalenceCausal(Study):
    """Causal attention follows the law of causal heads, not that of independent scores; its mean makes outliers.

    The law of independent scores holds where the head dimension exceeds the tokens; at the size of real heads the
    scores have low rank, which the distribution of causal heads knows. The mean is the Cesaro matrix, whose singular
    values are those of causal attention up to a shift by the fluctuations of the first rows.
    """

    tokens: int = parameter(Integers(64, 10_000), "tokens", 300, ours=1000)
    head_dims: tuple[int, ...] = parameter(
        Each(Integers(32, 4096), most=10), "head dimensions, in any order", (32, 128, 1200), ours=(32, 128, 512, 4096)
    )
    beta: float = parameter(Interval(0.05, 1), "inverse temperature", 0.6, ours=0.6)
    qk_norm: bool = parameter(
        Choice((False, True)), "whether queries and keys are normalised", default=True, ours=False
    )
    draws: int = parameter(Integers(2, 100), "draws", 24, ours=24)
    small = {"tokens": 100, "head_dims": (32, 400), "draws": 8}
    caption = """The bulk of causal attention with three laws, its distance to two of them over the head
    dimension, and the largest singular values and norm of its mean. Compare bars and orange line in the first
    panel, and see in the second how far independent scores are off for narrow heads."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Distribution functions and densities for each head dimension, and largest values for the largest."""
        dims = sorted(set(self.head_dims))
        independent = CausalLaw(np.expm1(self.beta**2))
        places = independent.ppf(LEVELS)
        bins, shown = np.linspace(-8, 4, BINS + 1), np.linspace(-8, 4, 300)
        parts = []
        for dim in track(dims, "head dimensions"):
            model = SoftmaxAttention(self.tokens, dim, self.beta, self.qk_norm, mask="causal")
            found = [model.spectrum(rng).values for _ in range(self.draws)]
            head = self.beta, dim, self.tokens, self.qk_norm
            law, dense = CausalHeadLaw(*head), FiniteHeadLaw(*head)
            logs = np.log10(np.maximum(found, 1e-300))
            densities = [each.pdf(10**shown) * 10**shown * np.log(10) for each in (law, independent, dense)]
            parts.append(
                dataset(
                    mass=(("draw", "level"), [np.searchsorted(each, places, side="right") for each in found]),
                    heads=("level", law.cdf(places), "that of causal heads"),
                    dense=("level", dense.cdf(places), "that of the head without a mask"),
                    simulation=(("draw", "bin"), [np.histogram(row, bins)[0] for row in logs]),
                    density=(("law", "point"), densities),
                )
            )
        bulk = xr.concat(parts, dim=xr.Variable("head_dim", dims))
        bulk["mass"] = bulk.mass / self.tokens
        bulk["simulation"] = bulk.simulation / self.tokens / (bins[1] - bins[0])
        bulk = bulk.assign_coords(level=LEVELS, law=list(LAWS), point=shown, bin_edge=bins)
        return bulk.merge(self._largest(model, rng))

    def _largest(self, model: SoftmaxAttention, rng: np.random.Generator) -> xr.Dataset:
        # so many times more draws for the singular values of the mean, which fluctuate with the first rows
        top = [spectrum(model.sample(rng)).values[: -SHOWN - 1 : -1] for _ in range(6 * self.draws)]
        sizes, mean = 2 ** np.arange(4, 17), mean_values(self.tokens, self.beta, SHOWN)
        norms = [prefix_mean_values(size, 1)[0] for size in sizes.tolist()]
        return dataset(
            value=(("sample", "rank"), np.array(top), "singular value of A"),
            mean=("rank", mean.bare, "that of the Cesaro matrix"),
            shift=("rank", mean.shift, "its mean shift by the fluctuations of rows"),
            next=("rank", mean.error, "what the shift is off by at most"),
            norm=("tokens", norms, "norm of the Cesaro matrix"),
            coords={"rank": np.arange(1, SHOWN + 1), "tokens": sizes},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """The bulk for small and for large heads, and the first values of the mean."""
        for dim in data.head_dim.values.tolist():
            one = data.sel(head_dim=dim)
            rivals = [("the head without a mask", one.dense.values)]
            # head dimensions a token from which scores are as good as independent: there that law is no rival
            if dim < 4 * self.tokens:
                rivals.append(("the law of independent scores", LEVELS))
            for name, rival in rivals:
                text = f"share of {name} in the bulk, head dimension {dim}"
                reason = "derived: rank of what no law knows over T, as the zero of the constant vector"
                off = UNKNOWN / self.tokens
                yield follows(text, "ours", one.mass, one["heads"], (name, rival), off, reason)
        first = data.sel(rank=slice(None, CLAIMED))
        reason = "derived: orders beyond the second in the fluctuations of rows"
        text = "largest singular value of causal attention"
        predicted = (data["mean"] + data["shift"]).sel(rank=1)
        unmasked = "one, as without a mask", 1.0
        finite_size = float(data.next.sel(rank=1))
        yield Claim(text, "ours", data.value.sel(rank=1), predicted, unmasked, finite_size, reason)
        text = f"mean of its first {CLAIMED} singular values: the Cesaro matrix's, shifted by fluctuations"
        predicted = (first["mean"] + first["shift"]).mean()
        cesaro = "those of the Cesaro matrix alone", first["mean"].mean()
        finite_size = float(first.next.mean())
        yield Claim(text, "ours", first.value.mean("rank"), predicted, cesaro, finite_size, reason)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(2, 2, height=2.4)
        (bulk, distance), (top, norm) = grid
        first = data.isel(head_dim=0)
        histogram(bulk, 10**data.bin_edge, first.simulation.mean("draw"))
        for name, colour in zip(LAWS, COLOURS[1:], strict=False):
            line(bulk, 10**data.point, first.density.sel(law=name), label=name, color=colour, lw=1.0)
        bulk.set(xscale="log", xlabel="squared singular value", ylabel="density, per decade")
        bulk.set_ylim(0, 2.4 * float(first.simulation.mean("draw").max()))
        bulk.set_title(f"head dimension {int(data.head_dim[0])}")
        independent = np.abs(data.mass - data.level).max("level")
        heads = np.abs(data.mass - data["heads"]).max("level")
        mean_marks(distance, data.head_dim, independent, label="to the law of independent scores")
        mean_marks(distance, data.head_dim, heads, label="to that of causal heads", fmt="s", color=COLOURS[2])
        distance.set(xscale="log", yscale="log", xlabel="head dimension", ylim=(None, 4 * float(independent.max())))
        distance.set_ylabel("largest difference at five levels")
        plain_ticks(distance.xaxis, data.head_dim)
        plain_logarithms(distance.yaxis)
        line(top, data["rank"], data["mean"] + data["shift"], label="with fluctuations", marker="_", ms=9)
        line(top, data["rank"], data["mean"], label="Cesàro matrix", color=COLOURS[2], lw=0.9, ls="--")
        mean_marks(top, data["rank"], data.value.rename(sample="draw"), label="causal attention")
        top.set(xlabel="rank", ylabel="singular value", xticks=data["rank"].values)
        line(norm, data.tokens, data["norm"], label="norm of the Cesàro matrix")
        norm.axhline(2.0, color=COLOURS[-1], ls=":", lw=0.9, label="limit")
        doubling_axis(norm, data.tokens[::4])
        norm.set(xlabel="tokens", ylabel="largest singular value")
        for axes, place in zip(grid.flat, ("upper left", "upper right", "upper right", "lower right"), strict=True):
            axes.legend(loc=place)
        figure.suptitle(f"{self.tokens} tokens, β = {self.beta:g}, {self.draws} draws")
        return figure
