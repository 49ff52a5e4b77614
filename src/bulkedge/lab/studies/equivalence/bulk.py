"""Figure 1: from attention to its linear model, step by step, and why the bulk is not Marchenko-Pastur's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention, Stages, taylor, taylor_degree
from bulkedge.inference.comparison import compare
from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival, share
from bulkedge.lab.studies.equivalence import setting
from bulkedge.laws import AttentionLaw, MarchenkoPastur, SumLaw
from bulkedge.laws.law import Law
from bulkedge.laws.units import Unit
from bulkedge.plots.style import COLOURS, histogram, line, marks, panels
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

BINS, POINTS, LEVELS = 50, 400, 200
REMOVED = 3
"""Largest values left out of the bulk, as in the paper."""
SCALES = np.linspace(0.6, 1.1, 21)
"""Scales at which Marchenko-Pastur is tried, over that of the law's mean; the best one was between 0.75 and 0.95."""
BEYOND_EDGE = 0.1695
"""Expected number of values beyond a soft edge of real matrices: the integral of the Airy density of Dyson index 1."""
HALVINGS = (4, 2, 1)
"""Sizes at which the stages are compared with each other: tokens and head dimension over these."""
STAGES = {
    "attention": r"$\sqrt{T}\,A^\perp$",
    "fixed_normaliser": "$Y$: fixed normaliser",
    "entrywise": "$Y^f$: entrywise",
    "taylor": "$Y^Q$: Taylor",
    "taylor_linear": r"$Y^Q_\mathrm{lin}$: its linear model",
    "linear": r"$Y^f_\mathrm{lin}$: linear model",
}


@dataclass(frozen=True)
class EquivalenceBulk(Study):
    """Attention and the six matrices of the proof share one bulk, which is not that of Marchenko and Pastur."""

    tokens: int = parameter(*setting.TOKENS, 500, paper=1000)
    head_dim: int = parameter(Integers(128, 10_000), "head dimension", 500, paper=1000)
    beta: float = parameter(Interval(0.05, 2), "inverse temperature", 1.0, paper=1.0)
    draws: int = parameter(*setting.DRAWS, 12, paper=10)
    small: ClassVar = {"tokens": 200, "head_dim": 200, "draws": 8}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw the matrices at the full, half and fourth size, and compare the largest ones with the laws."""
        smaller = [self._values(self.tokens // by, self.head_dim // by, rng) for by in HALVINGS]
        values = smaller[-1]
        law, _, rival = self._laws()
        x = np.linspace(0, 1.05 * law.edge, POINTS)[1:]
        bins = np.linspace(0, law.edge, BINS + 1)
        levels = (np.arange(self.tokens)[::-1] + 0.5) / self.tokens
        curves = xr.Dataset(
            {
                "quantile": ("rank", law.ppf(levels)),
                "rival_quantile": ("rank", rival.ppf(levels)),
                "bin_edge": ("end", bins),
                "x": ("point", x),
                "theory": ("point", law.pdf(x)),
                "rival": ("point", rival.pdf(x)),
            }
        )
        parts = (self._pictures(values, bins), self._distances(values), self._apart(smaller))
        return xr.merge([curves, *parts])

    def _laws(self) -> tuple[Law, Law, Law]:
        """The paper's law, the one of this size, and Marchenko-Pastur of the paper's mean."""
        law = AttentionLaw(self.beta, self.head_dim / self.tokens)
        finite = SoftmaxAttention(self.tokens, self.head_dim, self.beta).law("finite head")
        return law, finite, MarchenkoPastur(1.0, law.mean())

    def _values(self, tokens: int, head_dim: int, rng: np.random.Generator) -> xr.DataArray:
        """Squared singular values of ``sqrt(T) A`` and of the six matrices of the proof, increasing."""
        model = SoftmaxAttention(tokens, head_dim, self.beta)
        found = []
        for _ in track(range(self.draws), f"{tokens} tokens"):
            stages = model.stages(rng)
            whole = stages.attention + tokens**-0.5
            found.append([spectrum(matrix).squared().values for matrix in (whole, *stages)])
        return xr.DataArray(found, dims=("draw", "stage", "rank"), coords={"stage": ["whole", *Stages._fields]})

    def _pictures(self, values: xr.DataArray, bins: Real) -> xr.Dataset:
        density = [
            np.histogram(one[:, :-REMOVED], bins)[0] / np.diff(bins) / one.size
            for one in values.transpose("stage", "draw", "rank").values
        ]
        ordered = values.isel(rank=slice(None, None, -1))
        return xr.Dataset(
            {
                "sorted": ordered.mean("draw").assign_attrs(long_name="squared singular value"),
                "simulation": (("stage", "bin"), density),
            }
        )

    def _distances(self, values: xr.DataArray) -> xr.Dataset:
        """Kolmogorov distances of the bulks, distribution functions at quantiles, and values beyond 4 theta_1."""
        law, finite, rival = self._laws()
        scaled = [rival.scaled(scale) for scale in SCALES.tolist()]
        bulk = values.isel(rank=slice(None, -REMOVED)).values
        distances = [
            [[_distance(row, law), _distance(row, finite), _distance(row, rival)] for row in stages] for stages in bulk
        ]
        attention = values.sel(stage="attention").values
        nearest = [min(_distance(row[:-REMOVED], each) for each in scaled) for row in attention]
        at = law.ppf((np.arange(LEVELS) + 0.5) / LEVELS)
        empirical = [[np.searchsorted(row, at) / self.tokens for row in stages] for stages in values.values]
        return xr.Dataset(
            {
                "kolmogorov": (("draw", "stage", "law"), distances, {"long_name": "Kolmogorov distance"}),
                "nearest": (
                    "draw",
                    nearest,
                    {"long_name": "distance of attention to the nearest Marchenko-Pastur law"},
                ),
                "empirical": (("draw", "stage", "level"), empirical, {"long_name": "distribution function at x"}),
                "level_x": ("level", at),
                "beyond": (values > 4 * law.mean()).sum("rank").assign_attrs(long_name="values beyond 4 theta_1"),
            },
            coords={"law": ["theory", "finite head", "rival"]},
        )

    def _apart(self, sizes: list[xr.DataArray]) -> xr.Dataset:
        """Kolmogorov distance of the values of each stage to those of attention, from the same scores, over tokens."""
        stages = sizes[0].stage.values.tolist()[2:]
        apart = [
            [
                [
                    _distance(draw.sel(stage=stage).values, _steps(draw.sel(stage="attention").values))
                    for stage in stages
                ]
                for draw in values
            ]
            for values in sizes
        ]
        return xr.Dataset(
            {"apart": (("tokens", "draw", "step"), apart, {"long_name": "Kolmogorov distance to attention"})},
            coords={"step": stages, "tokens": [self.tokens // by for by in HALVINGS]},
        )

    # -- claims --------------------------------------------------------------------------------------------------------

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """None of Marchenko-Pastur in any stage, an edge beyond its own, and stages that come together."""
        return [*self._rejections(data), *self._edges(data), *self._steps(data)]

    def _shares(self, data: xr.Dataset, stage: str, theory: Law) -> tuple[Estimate, float]:
        """Share of Marchenko-Pastur in a stage, and what corrections of order 1/n may add to it."""
        rival = MarchenkoPastur(1.0, theory.mean())
        at = data.level_x.values
        predicted, other = theory.cdf(at), rival.cdf(at)
        direction = np.abs(other - predicted)
        found = share(data.empirical.sel(stage=stage).values, predicted, other)
        # rows of attention sum to one, which fixes one value; linear models have no such constraint
        moved = 0.5 if stage.endswith("linear") else 1.5
        return found, moved / self.tokens * float(direction.sum() / (direction @ direction))

    def _rejections(self, data: xr.Dataset) -> list[Claim]:
        law, finite, _ = self._laws()
        order = "real matrices move the distribution function by at most 1/(2n), the value that row sums fix by 1/n"
        claims = []
        exact = {"whole": finite, "attention": finite, "taylor_linear": self._taylor_law(), "linear": law}
        for stage in data.stage.values.tolist():
            measured, shift = self._shares(data, stage, exact.get(stage, law))
            whose = "the finite-head law" if exact.get(stage) is finite else "the law"
            claims.append(
                Claim(
                    statement=f"{NAMES[stage]}: share of Marchenko-Pastur in its values (0 is {whose})",
                    place=PLACES[stage],
                    measured=measured,
                    predicted=0.0,
                    rival=Rival("Marchenko-Pastur of the same mean", 1.0),
                    finite_size=shift,
                    reason=order,
                    relation="=" if stage in exact else "<=",
                )
            )
        distances = data.kolmogorov.sel(stage="attention")
        pairs = {
            "Marchenko-Pastur of the same mean than from the law": distances.sel(law="rival")
            - distances.sel(law="theory"),
            "the nearest Marchenko-Pastur law of any scale than from the finite-head law": data.nearest
            - distances.sel(law="finite head"),
        }
        for words, difference in pairs.items():
            claims.append(
                Claim(
                    statement=f"attention: by how much it is farther from {words} (Kolmogorov distance)",
                    place="equivalence: Figure 1",
                    measured=Estimate.of(difference),
                    predicted=0.0,
                    rival=Rival("no farther", 0.0),
                    relation=">=",
                )
            )
        return claims

    def _taylor_law(self) -> Law:
        """Of the linear model of the Taylor polynomial, whose coefficients differ from those of the exponential."""
        polynomial = taylor(self.beta, taylor_degree(self.head_dim))
        signal = polynomial.slope**2
        return SumLaw((signal, polynomial.variance - signal), (self.head_dim / self.tokens, np.inf)).squared()

    def _edges(self, data: xr.Dataset) -> list[Claim]:
        law, finite, _ = self._laws()
        rival = Rival("Marchenko-Pastur, whose edge this is", BEYOND_EDGE)
        edge = 4 * law.mean()
        return [
            Claim(
                statement="linear model: values beyond 4 (exp(beta^2) - 1)",
                place="equivalence: Figure 1, Edge bound",
                measured=_counted(data.beyond.sel(stage="linear")),
                predicted=self.tokens * float(1 - law.cdf(edge)),
                rival=rival,
                finite_size=0.5,
                reason="the 1/n correction of real matrices moves at most half a value",
            ),
            Claim(
                statement="attention: values beyond 4 (exp(beta^2) - 1) are at least those of its bulk",
                place="equivalence: Figure 1, Edge bound",
                measured=_counted(data.beyond.sel(stage="attention")),
                predicted=self.tokens * float(1 - finite.cdf(edge)),
                rival=rival,
                finite_size=0.5,
                reason="the 1/n correction of real matrices moves at most half a value",
                relation=">=",
            ),
        ]

    def _steps(self, data: xr.Dataset) -> list[Claim]:
        x = np.log(data.tokens.values)

        def exponent(draws: Real) -> float:
            return float(np.polyfit(x, np.log(draws.mean(axis=0)), 1)[0])

        return [
            Claim(
                statement=f"{NAMES[step]}: exponent in T with which its values approach those of attention",
                place=PLACES[step],
                measured=Estimate.jackknife(exponent, data.apart.sel(step=step).transpose("draw", "tokens").values),
                predicted=-0.5,
                rival=Rival("another limit", 0.0),
                relation="<=",
            )
            for step in data.step.values.tolist()
        ]

    def figure(self, data: xr.Dataset) -> Figure:
        """Histograms on top, sorted values below, a column for each stage; attention itself in all of them."""
        names = [name for name in data.stage.values.tolist() if name != "whole"]
        figure, grid = panels(2, len(names), width=1.75, height=1.9)
        rank = np.arange(1, data.sizes["rank"] + 1)
        shown = slice(3, None, max(1, len(rank) // 60))
        whole = data.sel(stage="whole")
        for column, name in enumerate(names):
            top, below = grid[:, column]
            one = data.sel(stage=name)
            histogram(top, data.bin_edge, one.simulation, label="stage of the proof")
            histogram(top, data.bin_edge, whole.simulation, label=r"$\sqrt{T}\,A$", fill=False, color="black", lw=0.7)
            line(top, data.x, data.theory, label="law")
            line(top, data.x, data.rival, label="Marchenko–Pastur", color=COLOURS[2], ls="--")
            top.set(ylim=(0, 0.45), title=STAGES[name], xlabel="squared singular value")
            marks(below, rank[shown], one.sorted[shown], ms=2, label="stage of the proof")
            line(below, rank[3:], whole.sorted[3:], label=r"$\sqrt{T}\,A$", color="black", lw=0.7)
            line(below, rank, data["quantile"], label="law", lw=0.9, zorder=4)
            line(
                below, rank, data.rival_quantile, label="Marchenko–Pastur", color=COLOURS[2], ls="--", lw=0.9, zorder=4
            )
            below.set(xlabel="rank", ylim=(0, 1.3 * float(data["quantile"][0])))
            for axes in (top, below):
                axes.tick_params(labelleft=column == 0)
        grid[0, 0].set_ylabel("density")
        grid[1, 0].set_ylabel("squared singular value")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.suptitle(f"{setting.sizes_title(self)}, {self.draws} draws, three largest values removed", fontsize=8)
        return figure


NAMES = {
    "whole": "sqrt(T) A",
    "attention": "attention",
    "fixed_normaliser": "fixed normaliser",
    "entrywise": "entrywise",
    "taylor": "Taylor polynomial",
    "taylor_linear": "linear model of the polynomial",
    "linear": "linear model",
}
PLACES = {
    "whole": "equivalence: Figure 1",
    "attention": "equivalence: Theorem 3.2, Figure 1",
    "fixed_normaliser": "equivalence: Figure 1",
    "entrywise": "equivalence: Figure 1",
    "taylor": "equivalence: Figure 1, Lemma 4.4",
    "taylor_linear": "equivalence: Figure 1, Lemma 4.5",
    "linear": "equivalence: Theorem 3.2, Figure 1",
}


def _counted(numbers: xr.DataArray) -> Estimate:
    """Mean of whole numbers, which may all be the same: their rounding, a twelfth in variance, is part of the error."""
    found = Estimate.of(numbers)
    return Estimate(found.value, float(np.hypot(found.error, (12 * numbers.size) ** -0.5)), found.freedom)


def _steps(values: Real) -> Spectrum:
    return Spectrum.of(values, Unit.SQUARED)


def _distance(values: Real, law: Law | Spectrum) -> float:
    """Kolmogorov distance, outliers of the law left aside."""
    return float(compare(_steps(values), law).ks)
