"""Figure 1: from attention to its linear model, step by step, and why the bulk is not Marchenko-Pastur's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention, Stages, taylor, taylor_degree
from bulkedge.inference.comparison import compare
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, exponent, share, sign, track
from bulkedge.lab.studies.equivalence import DRAWS, TOKENS, sizes_title
from bulkedge.laws import AttentionLaw, MarchenkoPastur, SumLaw
from bulkedge.laws.distribution import Unit
from bulkedge.laws.law import Law
from bulkedge.plots.style import COLOURS, histogram, line, marks, panels
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.domains import Integers, Interval, parameter

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

    tokens: int = parameter(*TOKENS, 500, paper=1000)
    head_dim: int = parameter(Integers(128, 10_000), "head dimension", 500, paper=1000)
    beta: float = parameter(Interval(0.05, 2), "inverse temperature", 1.0, paper=1.0)
    draws: int = parameter(*DRAWS, 16, paper=10)
    small = {"tokens": 200, "head_dim": 200, "draws": 8}
    caption = """Squared singular values of attention and of each matrix in the proof as densities (top)
    and sorted (bottom), with the law and with Marchenko–Pastur. All six columns should follow the orange law, and
    the dashed rival should miss each of them in the same places."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw the matrices at the full, half and fourth size, and compare the largest ones with the laws."""
        smaller, cycles = zip(
            *(self._values(self.tokens // by, self.head_dim // by, rng) for by in HALVINGS), strict=True
        )
        values = smaller[-1]
        law, _, rival = self._laws()
        x = np.linspace(0, 1.05 * law.edge, POINTS)[1:]
        bins = np.linspace(0, law.edge, BINS + 1)
        levels = (np.arange(self.tokens)[::-1] + 0.5) / self.tokens
        curves = dataset(
            quantile=("rank", law.ppf(levels)),
            rival_quantile=("rank", rival.ppf(levels)),
            bin_edge=("end", bins),
            cycles=xr.concat(cycles, dim="tokens"),
            x=("point", x),
            theory=("point", law.pdf(x)),
            rival=("point", rival.pdf(x)),
        )
        parts = (
            self._pictures(values, bins),
            self._distances(values),
            self._apart(list(smaller)),
            self._approach(list(smaller)),
        )
        return xr.merge([curves, *parts])

    def _laws(self) -> tuple[Law, Law, Law]:
        """The paper's law, the one of this size, and Marchenko-Pastur of the paper's mean."""
        law = AttentionLaw(self.beta, self.head_dim / self.tokens)
        finite = SoftmaxAttention(self.tokens, self.head_dim, self.beta).law("finite head")
        return law, finite, MarchenkoPastur(1.0, law.mean())

    def _values(self, tokens: int, head_dim: int, rng: np.random.Generator) -> tuple[xr.DataArray, xr.DataArray]:
        """Squared singular values of ``sqrt(T) A`` and the six matrices of the proof, increasing; and their cycles."""
        model = SoftmaxAttention(tokens, head_dim, self.beta)
        found, cycles = [], []
        for _ in track(range(self.draws), f"{tokens} tokens"):
            stages = model.stages(rng)
            whole = stages.attention + tokens**-0.5
            found.append([spectrum(matrix).squared().values for matrix in (whole, *stages)])
            cycles.append([squared_signal(matrix, head_dim) for matrix in (whole, *stages)])
        coords = {"stage": ["whole", *Stages._fields]}
        return xr.DataArray(found, coords, ("draw", "stage", "rank")), xr.DataArray(cycles, coords, ("draw", "stage"))

    def _pictures(self, values: xr.DataArray, bins: Real) -> xr.Dataset:
        density = [
            np.histogram(one[:, :-REMOVED], bins)[0] / np.diff(bins) / one.size
            for one in values.transpose("stage", "draw", "rank").values
        ]
        ordered = values.isel(rank=slice(None, None, -1))
        return dataset(
            sorted=ordered.mean("draw").assign_attrs(long_name="squared singular value"),
            simulation=(("stage", "bin"), density),
        )

    def _distances(self, values: xr.DataArray) -> xr.Dataset:
        """Kolmogorov distances of the bulks, distribution functions at quantiles, and values beyond 4 theta_1."""
        law, finite, rival = self._laws()
        scaled = [rival.scaled(scale) for scale in SCALES.tolist()]
        attention = values.sel(stage="attention").values[:, :-REMOVED]
        nearest = [min(_distance(row, each) for each in scaled) for row in attention]
        at = law.ppf((np.arange(LEVELS) + 0.5) / LEVELS)
        empirical = [[np.searchsorted(row, at) / self.tokens for row in stages] for stages in values.values]
        return dataset(
            kolmogorov=("draw", [_distance(row, finite) for row in attention], "that to the finite-head law"),
            nearest=("draw", nearest, "distance of attention to the nearest Marchenko-Pastur law"),
            empirical=(("draw", "stage", "level"), empirical, "distribution function at x"),
            level_x=("level", at),
            beyond=(values > 4 * law.mean()).sum("rank").assign_attrs(long_name="values beyond 4 theta_1"),
        )

    def _apart(self, sizes: list[xr.DataArray]) -> xr.Dataset:
        """Kolmogorov distance of the values of each stage to those of attention, from the same scores, over tokens."""
        stages = sizes[0].stage.values.tolist()[2:]

        def distances(draw: xr.DataArray) -> list[float]:
            steps = _steps(draw.sel(stage="attention").values)
            return [_distance(draw.sel(stage=stage).values, steps) for stage in stages]

        apart = [[distances(draw) for draw in values] for values in sizes]
        return dataset(
            apart=(("tokens", "draw", "step"), apart, "Kolmogorov distance to attention"),
            coords={"step": stages, "tokens": [self.tokens // by for by in HALVINGS]},
        )

    def _approach(self, sizes: list[xr.DataArray]) -> xr.Dataset:
        """Share of Marchenko-Pastur in attention against the paper's law, whose limit is zero, at each size."""
        law, _, rival = self._laws()
        at = law.ppf((np.arange(LEVELS) + 0.5) / LEVELS)
        predicted = law.cdf(at)
        direction = rival.cdf(at) - predicted
        found, finite = [], []
        for by, values in zip(HALVINGS, sizes, strict=True):
            tokens = self.tokens // by
            rows = values.sel(stage="attention").values
            masses = np.array([np.searchsorted(row, at) / tokens for row in rows])
            own = SoftmaxAttention(tokens, self.head_dim // by, self.beta).law("finite head").cdf(at)
            found.append((masses - predicted) @ direction / (direction @ direction))
            finite.append(float((own - predicted) @ direction / (direction @ direction)))
        return dataset(
            approach=(("tokens", "draw"), found, "share of Marchenko-Pastur against the paper's law"),
            approach_law=("tokens", finite, "the same of the finite-head law"),
        )

    # -- claims --------------------------------------------------------------------------------------------------------

    def statements(self, data: xr.Dataset) -> Claims:
        """None of Marchenko-Pastur in any stage, an edge beyond its own, and stages that come together."""
        yield from self._rejections(data)
        # the coefficient of the linear part, which no comparison of a law with an ensemble of its own can tell
        head_ratio = self.head_dim / self.tokens
        found = {
            name: [_root(data.cycles.sel(stage=name).isel(tokens=k)) for k in (-2, -1)]
            for name in ("entrywise", "linear", "attention")
        }
        half, whole = found["attention"]
        allowed = {
            "entrywise": (
                abs(finite_signal(self.beta, self.head_dim) - self.beta**2),
                "derived: the exact mean over the cycles of the entrywise matrix at this size",
            ),
            "linear": (0.0, ""),
            "attention": (
                abs(whole.value - half.value) / (2**0.5 - 1),
                "shown: what half as many tokens differ by, for a rate of T^(-1/2)",
            ),
        }
        for stage, (finite_size, reason) in allowed.items():
            text = f"{NAMES[stage]}: theta_2, the root of the mean over cycles of four entries"
            predicted = signal_of(self._laws()[0], head_ratio)
            rival = "the mean square of the slope, beta^2 exp(beta^2)", self.beta**2 * np.exp(self.beta**2)
            yield Claim(text, "equivalence: Theorem 3.2", found[stage][1], predicted, rival, finite_size, reason)
        yield self._rate(data)
        yield from self._edges(data)
        yield from self._steps(data)

    def _shares(self, data: xr.Dataset, stage: str, theory: Law) -> tuple[Estimate, float]:
        """Share of Marchenko-Pastur in a stage, and what corrections of order 1/n may add to it."""
        rival = MarchenkoPastur(1.0, theory.mean())
        at = data.level_x.values
        predicted, other = theory.cdf(at), rival.cdf(at)
        direction = np.abs(other - predicted)
        found = share(data.empirical.sel(stage=stage).values, predicted, other)
        # rows of attention sum to one, which fixes one value; without a normaliser the norms of queries are one more
        moved = 0.5 if stage.endswith("linear") else 1.5 if stage in ("whole", "attention") else 2.5
        return found, moved / self.tokens * float(direction.sum() / (direction @ direction))

    def _rejections(self, data: xr.Dataset) -> Claims:
        law, finite, _ = self._laws()
        order = (
            "derived: real matrices move the distribution function by at most 1/(2n), and by 1/n each the value that "
            "row sums fix and, without a normaliser, that of the norms of queries"
        )
        own = {"taylor_linear": self._taylor_law(), "linear": law}
        for stage in data.stage.values.tolist():
            measured, shift = self._shares(data, stage, own.get(stage, finite))
            whose = "the law" if stage in own else "the finite-head law"
            text = f"{NAMES[stage]}: share of Marchenko-Pastur in its values (0 is {whose})"
            rival = "Marchenko-Pastur of the same mean", 1.0
            yield Claim(text, PLACES[stage], measured, 0.0, rival, finite_size=shift, reason=order)
        measured, shift = self._shares(data, "attention", law)
        at = data.level_x.values
        number = share([finite.cdf(at)] * 2, law.cdf(at), MarchenkoPastur(1.0, law.mean()).cdf(at)).value
        text = "attention: share of Marchenko-Pastur in a mixture with the paper's law, whose limit is 0, at this size"
        place = "equivalence: Theorem 3.2, Figure 1"
        rival = "the paper's law holds at this size", 0.0
        yield Claim(text, place, measured, number, rival, finite_size=shift, reason=order)
        yield sign(
            "attention: by how much it is farther from the nearest Marchenko-Pastur law of any scale than from the "
            "finite-head law (Kolmogorov distance)",
            "equivalence: Figure 1",
            data.nearest - data.kolmogorov,
            "no farther",
        )

    def _taylor_law(self) -> Law:
        """Of the linear model of the Taylor polynomial, whose coefficients differ from those of the exponential."""
        polynomial = taylor(self.beta, taylor_degree(self.head_dim))
        signal = polynomial.slope**2
        return SumLaw((signal, polynomial.variance - signal), (self.head_dim / self.tokens, np.inf)).squared()

    def _edges(self, data: xr.Dataset) -> Claims:
        law, finite, _ = self._laws()
        rival = ("Marchenko-Pastur, whose edge this is", BEYOND_EDGE)
        edge = 4 * law.mean()
        text = "linear model: values beyond 4 (exp(beta^2) - 1)"
        place = "equivalence: Figure 1, Edge bound"
        measured = _counted(data.beyond.sel(stage="linear"))
        reason = "derived: the 1/n correction of real matrices moves at most half a value"
        predicted = self.tokens * float(1 - law.cdf(edge))
        yield Claim(text, place, measured, predicted, rival, finite_size=0.5, reason=reason)
        yield Claim(
            "attention: values beyond 4 (exp(beta^2) - 1) are at least those of its bulk",
            "equivalence: Figure 1, Edge bound",
            _counted(data.beyond.sel(stage="attention")),
            self.tokens * float(1 - finite.cdf(edge)),
            rival,
            finite_size=0.5,
            reason="derived: the 1/n correction of real matrices moves at most half a value",
            relation=">=",
            one_sided="single large entries leave the bulk too, and the law does not count them",
        )

    def _rate(self, data: xr.Dataset) -> Claim:
        """How fast attention comes to the paper's law."""
        draws = data.approach.transpose("draw", "tokens").values
        finite = exponent(data.tokens, np.abs(data.approach_law))
        text = "attention: exponent in T with which its share against the paper's law vanishes: the finite-head law's"
        place = "equivalence: Theorem 3.2, Figure 1"
        measured = Estimate.jackknife(lambda some: exponent(data.tokens, np.abs(some.mean(axis=0))), draws)
        return Claim(text, place, measured, finite, ("another limit than the paper's law", 0.0))

    def _steps(self, data: xr.Dataset) -> Claims:
        for step in data.step.values.tolist():
            text = f"{NAMES[step]}: exponent in T with which its values approach those of attention, at most -1/2"
            draws = data.apart.sel(step=step).transpose("draw", "tokens").values
            measured = Estimate.jackknife(lambda some: exponent(data.tokens, some.mean(axis=0)), draws)
            one_sided = "the lemmas bound an error by this order, and it may fall faster"
            yield Claim(text, PLACES[step], measured, -0.5, ("another limit", 0.0), relation="<=", one_sided=one_sided)

    def figure(self, data: xr.Dataset) -> Figure:
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
        figure.suptitle(f"{sizes_title(self)}, {self.draws} draws, three largest values removed", fontsize=8)
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


def _root(squares: xr.DataArray) -> Estimate:
    """The root of a mean over draws."""
    return Estimate.jackknife(lambda draws: float(np.sqrt(np.mean(draws))), squares.values)


def _counted(numbers: xr.DataArray) -> Estimate:
    """Mean of whole numbers, which may all be the same: their rounding, a twelfth in variance, is part of the error."""
    found = Estimate.of(numbers)
    return Estimate(found.value, float(np.hypot(found.error, (12 * numbers.size) ** -0.5)), found.freedom)


def _steps(values: Real) -> Spectrum:
    return Spectrum.of(values, Unit.SQUARED)


def _distance(values: Real, law: Law | Spectrum) -> float:
    """Kolmogorov distance, outliers of the law left aside."""
    return float(compare(_steps(values), law).ks)


def squared_signal(matrix: Real, head_dim: int) -> float:
    """``theta_2**2`` of a matrix, whatever its law: d times the mean of ``T**2 Y_ij Y_kj Y_km Y_im`` over its cycles.

    Rows i and k, and columns j and m, are different, so that noise without structure has the mean zero.
    """
    square, gram = matrix**2, matrix @ matrix.T
    cycles = np.sum(gram**2) - np.sum(np.diag(gram) ** 2) - np.sum(square.sum(axis=0) ** 2) + np.sum(square**2)
    return float(cycles * head_dim / (len(matrix) - 1) ** 2)


def signal_of(law: Law, head_ratio: float) -> float:
    """``theta_2`` of a law of a linear model, from its second moment ``2 theta_1**2 + theta_2**2 T/d``."""
    return float(np.sqrt((law.moment(2) - 2 * law.mean() ** 2) * head_ratio))


def finite_signal(beta: float, head_dim: int) -> float:
    """The root of the mean of :func:`squared_signal` for the entrywise matrix, exactly at any size.

    Given two keys the mean over a query of ``f(s_j) f(s_m)`` is ``exp(-beta**2 + h |k + m|**2) - exp(-beta**2/2)
    (exp(h |k|**2) + exp(h |m|**2)) + 1``, ``h = beta**2/(2 d)``, whose square has a Gaussian mean.
    """
    h, whole, half = beta**2 / 2 / head_dim, np.exp(-(beta**2)), np.exp(-(beta**2) / 2)

    def mean(a: float, b: float, c: float) -> float:
        """Of ``exp(h (a |k|**2 + b |m|**2 + 2 c k.m))``."""
        return float(((1 - 2 * h * a) * (1 - 2 * h * b) - 4 * (h * c) ** 2) ** (-head_dim / 2))

    squares = whole**2 * mean(2, 2, 2) + half**2 * 2 * (mean(2, 0, 0) + mean(1, 1, 0)) + 1
    mixed = whole * mean(1, 1, 1) - 2 * half * mean(1, 0, 0) - 2 * whole * half * mean(2, 1, 1)
    return float(np.sqrt(head_dim * (squares + 2 * mixed)))
