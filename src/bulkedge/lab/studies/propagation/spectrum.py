"""*propagation*, Figure 1: random Markov matrices have one outlier and the bulk of a Gaussian matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.ensembles.markov import Entries, RandomMarkov, without_gap
from bulkedge.heads.softmax import softmax_of_gaussians
from bulkedge.inference.comparison import compare, separation
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, mean_marks, track
from bulkedge.lab.studies.propagation import POSITIVE, RIGID, decades, rigidity, sizes_axis
from bulkedge.laws import FussCatalan, QuarterCircle, TracyWidom
from bulkedge.plots.style import COLOURS, histogram, line, panels
from bulkedge.spectra import spectrum
from bulkedge.support.domains import Integers, parameter

VARIANCES: dict[Entries, float] = {"lognormal": 1.0, "exponential": 1.0, "uniform": 1 / 3}
FOURTH: dict[Entries, float] = {"lognormal": 41.0, "exponential": 9.0, "uniform": 1.8}
"""Fourth central moment over the squared variance, which sets how fast the limit comes."""
BEYOND: dict[Entries, float] = {"lognormal": 9.0, "exponential": 3.0, "uniform": 1.0}
"""By how much the second singular value may be off its expectation, over 1/T: columns are of unequal variance."""
BEYOND_REASON = "fitted: at 100 and 160 tokens it is off by 2.6/T (exponential), 0.6/T (uniform), 0.02 (lognormal)"
WIDE = 4096
"""Head dimension whose scores are as good as independent, up to some thousand tokens."""
SHRINK = (8, 4, 2)
"""The part on the size of the gap has tokens divided by these, too."""


@dataclass(frozen=True)
class PropagationSpectrum(Study):
    """Eigenvalues and singular values of random Markov matrices: one outlier at one, and a bulk of size 1/sqrt(T).

    The bulk is that of an i.i.d. matrix, a disc for eigenvalues and a quarter circle for singular values, whatever the
    entries. The gap between the two largest singular values widens with the number of tokens.
    """

    tokens: int = parameter(Integers(80, 5000), "number of tokens T", 300, ours=1000)
    draws: int = parameter(Integers(4, 100), "matrices of each kind", 20, ours=24)
    bins: int = parameter(Integers(5, 200), "bins of the bulk's histogram", 25, ours=50)
    small = {"tokens": 160, "draws": 8}
    caption = """Eigenvalues and singular values of random Markov matrices with three laws of entries, and
    their two largest values over tokens. One value stays at one and the bulk shrinks, so that the gap widens in the
    last column."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Matrices with entries of each kind, and smaller ones."""
        x = np.linspace(0, 2.2, 221)
        edges = np.linspace(0, 2.5, self.bins + 1)
        models = {name: RandomMarkov(self.tokens, power, name) for name, power in VARIANCES.items()}
        parts = [self._measure(model, edges, rng) for model in track(list(models.values()), "entries")]
        law = QuarterCircle()
        return (
            xr.concat(parts, dim=xr.Variable("entries", list(VARIANCES)))
            .assign(
                theory=("x", law.pdf(x)),
                separation=((), separation(law.squared(), FussCatalan(2))),
                shape=("entries", list(VARIANCES.values()), {"long_name": "variance of an entry"}),
            )
            .assign_coords(x=x, bin_edge=edges, size=[*(self.tokens // part for part in SHRINK), self.tokens])
        )

    def _measure(self, model: RandomMarkov, edges: Real, rng: np.random.Generator) -> xr.Dataset:
        root = np.sqrt(self.tokens / model.variance)
        matrices = [model.sample(rng) for _ in range(self.draws)]
        values = np.array([spectrum(each).values for each in matrices])
        eigen = np.array([np.linalg.eigvals(each) for each in matrices])
        law = QuarterCircle(model.variance * finite_share(model)).squared()
        distances = [compare(spectrum(np.sqrt(self.tokens) * without_gap(each)).squared(), law).ks for each in matrices]
        counts, _ = np.histogram(root * values[:, :-1], edges)
        return dataset(
            value=(("draw", "rank"), values[:, ::-1], "singular values of A"),
            second=("draw", root * values[:, -2], "second, times sqrt(T)/sigma"),
            expected=((), expected_second(model), "what is expected of it"),
            distance=("draw", distances, "Kolmogorov distance of the squared bulk"),
            simulation=("bin", counts / (values[:, :-1].size * np.diff(edges))),
            eigen_real=("rank", eigen[0].real),
            eigen_imag=("rank", eigen[0].imag),
            radius=("draw", root * np.sort(np.abs(eigen), axis=1)[:, -2]),
            top_two=(("size", "place", "draw"), self._gap(model, values, rng)),
        )

    def _gap(self, model: RandomMarkov, values: Real, rng: np.random.Generator) -> Real:
        """The two largest singular values of smaller matrices, and of these."""
        smaller = [RandomMarkov(self.tokens // part, model.variance, model.entries) for part in SHRINK]
        found = [[spectrum(each.sample(rng)).values[:-3:-1] for _ in range(self.draws)] for each in smaller]
        return np.moveaxis(np.array([*found, values[:, :-3:-1]]), 1, 2)

    def statements(self, data: xr.Dataset) -> Claims:
        """The outlier, the edge and the bulk, for every kind of entries; how the gap widens."""
        for name, variance in VARIANCES.items():
            one, model = data.sel(entries=name), RandomMarkov(self.tokens, variance, name)
            slack, kept = FOURTH[name] / self.tokens, 3 * model.variance / self.tokens
            text = f"{name}: T s_1^2 = T + sigma^2, so s_1 tends to one"
            place = "propagation: Theorem 2, Figure 1, Lemma 2"
            largest, exactly = (
                self.tokens * one.value.isel(rank=0) ** 2,
                ("one exactly, as the eigenvalue", self.tokens),
            )
            reason = "fitted: at 100 and 160 tokens it is off by 3/T of sigma^2 at most"
            yield Claim(text, place, largest, model.outlier(), exactly, kept, reason)
            text = f"{name}: second singular value times sqrt(T)/sigma, whose limit is 2"
            rival = "the disc's radius", 1.0
            yield Claim(text, place, one.second, one.expected, rival, BEYOND[name] / self.tokens, BEYOND_REASON)
            text = f"{name}: second largest modulus of an eigenvalue times sqrt(T)/sigma"
            rival = "as the singular values", 2.0
            finite_size = float(np.sqrt(np.log(self.tokens) / (4 * self.tokens)))
            reason = "derived: the radius of an i.i.d. matrix is 1 + sqrt(log T/(4 T)) at most (Rider 2003)"
            yield Claim(text, "propagation: Theorem 2, Figure 1", one.radius, 1.0, rival, finite_size, reason)
            text = f"{name}: Kolmogorov distance of the bulk from the quarter circle, at most that of a draw"
            place = "propagation: Lemma 3, Figure 1"
            rival = "the product of two matrices", one.separation
            finite_size = rigidity(self.tokens) + slack / 6
            reason = f"{RIGID}; kurtosis/(6 T) from rows and columns of unequal variance"
            yield Claim(text, place, one.distance, 0.0, rival, finite_size, reason, relation="<=", one_sided=POSITIVE)
        for name in ("exponential", "uniform"):
            bulk = data.value.sel(entries=name).isel(rank=slice(1, None)) ** 2
            text = f"{name}: mean square over squared mean of the squared bulk, whose limit is 2"
            measured = (bulk**2).mean("rank") / bulk.mean("rank") ** 2
            reason = "derived: free entries have 2 + (kurtosis - 2)/T, and rows that sum to one less"
            rival = "the product of two matrices", 3.0
            finite_size = FOURTH[name] / self.tokens
            yield Claim(text, "propagation: Lemma 3, Figure 1", measured, 2.0, rival, finite_size, reason)
        light = np.log(data.top_two.sel(entries=["exponential", "uniform"]).isel(place=1, size=[0, -1], drop=True))
        span = np.log(data["size"].values[-1] / data["size"].values[0])
        sizes = [self.tokens // SHRINK[0], self.tokens]
        expected = np.log(edge_at(sizes[1]) / edge_at(sizes[0])) / span - 0.5
        text = "exponent of T in the second singular value, whose limit is -1/2 (light tails)"
        place = "propagation: Theorem 2, Figure 1"
        measured = light.isel(size=1) / span - light.isel(size=0) / span
        finite_size = (BEYOND["exponential"] + BEYOND["uniform"]) / 4 / sizes[0] / span
        rival = "-1, as the entries", -1.0
        yield Claim(text, place, measured, expected, rival, finite_size, f"{BEYOND_REASON}, here at the smallest size")

    def figure(self, data: xr.Dataset) -> Figure:
        names = data.entries.values.tolist()
        figure, grid = panels(len(names), 4, width=2.2, height=1.9)
        tokens = data.sizes["rank"]
        for row, name in zip(grid, names, strict=True):
            one = data.sel(entries=name)
            _plane(row[0], one, tokens)
            _all_values(row[1], one, tokens)
            histogram(row[2], data.bin_edge, one.simulation)
            line(row[2], data.x, data.theory, label="quarter circle")
            row[2].set(xlabel=r"bulk: $\sqrt{T} s_k/\sigma$, $k \geq 2$", ylim=(0, 0.95), ylabel="density")
            _gap(row[3], one)
            row[0].set_ylabel(f"{name} entries\nimaginary part")
        grid[0, 2].legend(loc="upper right", fontsize=6)
        figure.suptitle(f"random Markov matrices, T = {tokens}, {data.sizes['draw']} draws", fontsize=8)
        return figure


def edge_at(tokens: int) -> float:
    """Mean largest singular value of a Gaussian T x (T - 1) matrix over sqrt(T): 2, minus its fluctuation's mean."""
    long, short = np.sqrt(tokens - 0.5), np.sqrt(tokens - 1.5)
    scale = (long + short) * (1 / long + 1 / short) ** (1 / 3)
    return float(np.sqrt(((long + short) ** 2 + TracyWidom(1).mean() * scale) / tokens))


def expected_second(model: RandomMarkov) -> float:
    """Second singular value times sqrt(T)/sigma: at the edge, or where single large entries push it."""
    if model.entries == "lognormal":
        beta = float(np.sqrt(np.log1p(model.variance)))
        return float(np.sqrt(SoftmaxAttention(model.tokens, WIDE, beta).median_second() / model.variance))
    return edge_at(model.tokens) * finite_share(model) ** 0.5


def finite_share(model: RandomMarkov) -> float:
    """Variance of the entries of ``T A`` over that before rows were normalised."""
    if model.entries == "exponential":
        return (model.tokens - 1) / (model.tokens + 1)
    if model.entries == "uniform":
        return 1.0
    row = softmax_of_gaussians(float(np.sqrt(np.log1p(model.variance))), model.tokens)
    return (model.tokens * row.participation - 1) / model.variance


def _plane(axes: Axes, one: xr.Dataset, tokens: int) -> None:
    circle = np.exp(2j * np.pi * np.linspace(0, 1, 200)) * float(np.sqrt(one["shape"] / tokens))
    axes.plot(one.eigen_real, one.eigen_imag, ".", ms=1.5, color=COLOURS[0])
    line(axes, circle.real, circle.imag, label=r"$\sigma/\sqrt{T}$", lw=1)
    axes.annotate("outlier", (1, 0), (0.72, 0.1), fontsize=6, arrowprops={"arrowstyle": "->", "lw": 0.6})
    axes.set(aspect="equal", xlim=(-0.25, 1.1), ylim=(-0.35, 0.35), xlabel=r"eigenvalues $\lambda_k$")


def _all_values(axes: Axes, one: xr.Dataset, tokens: int) -> None:
    """Density of all singular values of A; its largest is a bar of its own."""
    edges = np.linspace(0, 1.1, 111)
    found = np.histogram(one.value.values, edges)[0] / one.value.size / np.diff(edges)
    histogram(axes, edges, np.maximum(found, 1e-3), baseline=1e-3)
    axes.axvline(2 * float(np.sqrt(one["shape"] / tokens)), color=COLOURS[1], lw=1, label=r"$2\sigma/\sqrt{T}$")
    axes.annotate("outlier", (1, 0.5), (0.6, 3), fontsize=6, arrowprops={"arrowstyle": "->", "lw": 0.6})
    decades(axes)
    axes.set(xlabel="all singular values $s_k$", ylim=(0.1, 30), ylabel="density")
    axes.legend(loc="upper right", fontsize=6)


def _gap(axes: Axes, one: xr.Dataset) -> None:
    """The two largest singular values over T."""
    line(axes, one["size"], np.ones(one.sizes["size"]), label="1")
    line(axes, one["size"], 2 * np.sqrt(one["shape"] / one["size"]), label=r"$2\sigma/\sqrt{T}$", ls="--")
    for place, label, symbol in ((0, "$s_1$", "o"), (1, "$s_2$", "s")):
        values = one.top_two.isel(place=place)
        mean_marks(axes, one["size"], values, label=label, fmt=symbol)
    decades(axes)
    axes.set_ylim(0.02, 3)
    sizes_axis(axes, one["size"])
    axes.set_ylabel("largest two")
    axes.legend(loc="lower left", fontsize=6, ncols=2)
