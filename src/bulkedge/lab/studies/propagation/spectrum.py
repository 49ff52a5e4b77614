"""*propagation*, Figure 1: random Markov matrices have one outlier and the bulk of a Gaussian matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bulkedge.ensembles.markov import Entries, RandomMarkov, without_gap
from bulkedge.heads.softmax import softmax_of_gaussians
from bulkedge.inference.comparison import compare, separation
from bulkedge.lab.studies.base import Study, mean_marks
from bulkedge.lab.studies.claims import Claim, Rival, average
from bulkedge.lab.studies.propagation.setting import RIGID, decades, rigidity, sizes_axis
from bulkedge.laws import FussCatalan, QuarterCircle, TracyWidom
from bulkedge.plots.style import COLOURS, histogram, line, panels
from bulkedge.spectra import spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

VARIANCES: dict[Entries, float] = {"lognormal": 1.0, "exponential": 1.0, "uniform": 1 / 3}
FOURTH: dict[Entries, float] = {"lognormal": 41.0, "exponential": 9.0, "uniform": 1.8}
"""Fourth central moment over the squared variance, which sets how fast the limit comes."""
SHRINK = (8, 4, 2)
"""The part on the size of the gap has tokens divided by these, too."""


@dataclass(frozen=True)
class PropagationSpectrum(Study):
    """Eigenvalues and singular values of random Markov matrices: one outlier at one, and a bulk of size 1/sqrt(T).

    The bulk is that of an i.i.d. matrix, a disc for eigenvalues and a quarter circle for singular values, whatever the
    entries. The gap between the two largest singular values widens with the number of tokens.
    """

    tokens: int = parameter(Integers(80, 5000), "number of tokens T", 300, ours=1000)
    draws: int = parameter(Integers(4, 100), "matrices of each kind", 10, ours=12)
    bins: int = parameter(Integers(5, 200), "bins of the bulk's histogram", 25, ours=50)
    small: ClassVar = {"tokens": 160, "draws": 8}

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
        return xr.Dataset(
            {
                "value": (("draw", "rank"), values[:, ::-1], {"long_name": "singular values of A"}),
                "second": ("draw", root * values[:, -2], {"long_name": "second, times sqrt(T)/sigma"}),
                "distance": ("draw", distances, {"long_name": "Kolmogorov distance of the squared bulk"}),
                "simulation": ("bin", counts / (values[:, :-1].size * np.diff(edges))),
                "eigen_real": ("rank", eigen[0].real),
                "eigen_imag": ("rank", eigen[0].imag),
                "radius": ("draw", root * np.sort(np.abs(eigen), axis=1)[:, -2]),
                "top_two": (("size", "place", "draw"), self._gap(model, values, rng)),
            }
        )

    def _gap(self, model: RandomMarkov, values: Real, rng: np.random.Generator) -> Real:
        """The two largest singular values of smaller matrices, and of these."""
        smaller = [RandomMarkov(self.tokens // part, model.variance, model.entries) for part in SHRINK]
        found = [[spectrum(each.sample(rng)).values[:-3:-1] for _ in range(self.draws)] for each in smaller]
        return np.moveaxis(np.array([*found, values[:, :-3:-1]]), 1, 2)

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The outlier, the edge and the bulk, for every kind of entries; how the gap widens."""
        claims = [claim for name in VARIANCES for claim in self._claims(name, data.sel(entries=name))]
        light = np.log(data.top_two.sel(entries=["exponential", "uniform"]).isel(place=1, size=[0, -1], drop=True))
        span = np.log(data["size"].values[-1] / data["size"].values[0])
        sizes = [self.tokens // SHRINK[0], self.tokens]
        expected = np.log(edge_at(sizes[1]) / edge_at(sizes[0])) / span - 0.5
        return [
            *claims,
            Claim(
                statement="exponent of T in the second singular value, whose limit is -1/2 (light tails)",
                place="propagation: Theorem 2, Figure 1",
                measured=average(light.isel(size=1) / span - light.isel(size=0) / span),
                predicted=float(expected),
                rival=Rival("-1, as the entries", -1.0),
                finite_size=np.mean([FOURTH["exponential"], FOURTH["uniform"]]) / sizes[0] / span,
                reason="kurtosis/T at the smallest size, from rows and columns of unequal variance",
            ),
        ]

    def _claims(self, name: Entries, one: xr.Dataset) -> list[Claim]:
        model = RandomMarkov(self.tokens, VARIANCES[name], name)
        slack = FOURTH[name] / self.tokens
        return [
            Claim(
                statement=f"{name}: T s_1^2 = T + sigma^2, so s_1 tends to one",
                place="propagation: Theorem 2, Figure 1, Lemma 2",
                measured=Estimate.of(self.tokens * one.value.isel(rank=0) ** 2),
                predicted=model.outlier(),
                rival=Rival("one exactly, as the eigenvalue", self.tokens),
                finite_size=slack * model.variance,
                reason="the variance of the row sums takes a share of order kurtosis/T off sigma^2",
            ),
            Claim(
                statement=f"{name}: second singular value times sqrt(T)/sigma, whose limit is 2",
                place="propagation: Theorem 2, Figure 1, Lemma 2",
                measured=Estimate.of(one.second),
                predicted=edge_at(self.tokens) * finite_share(model) ** 0.5,
                rival=Rival("the disc's radius", 1.0),
                finite_size=slack,
                reason="kurtosis/T, from rows and columns of unequal variance and single large entries",
            ),
            Claim(
                statement=f"{name}: second largest modulus of an eigenvalue times sqrt(T)/sigma",
                place="propagation: Theorem 2, Figure 1",
                measured=Estimate.of(one.radius),
                predicted=1.0,
                rival=Rival("as the singular values", 2.0),
                finite_size=float(np.sqrt(np.log(self.tokens) / (4 * self.tokens))) + slack / 2,
                reason="the radius of an i.i.d. matrix exceeds one by sqrt(log T/(4 T)) at most; half of kurtosis/T",
            ),
            Claim(
                statement=f"{name}: Kolmogorov distance of the bulk from the quarter circle",
                place="propagation: Lemma 3, Figure 1",
                measured=Estimate.of(one.distance),
                predicted=0.0,
                rival=Rival("the product of two matrices", float(one.separation)),
                finite_size=rigidity(self.tokens) + slack / 6,
                reason=f"{RIGID}; kurtosis/(6 T) from rows and columns of unequal variance",
                relation="<=",
            ),
        ]

    def figure(self, data: xr.Dataset) -> Figure:
        """Eigenvalues and singular values with outliers, and how the gap widens; a row for each law of entries."""
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
    """Mean largest singular value of a Gaussian T x (T - 1) matrix over sqrt(T): 2, less its fluctuation's mean."""
    long, short = np.sqrt(tokens - 0.5), np.sqrt(tokens - 1.5)
    scale = (long + short) * (1 / long + 1 / short) ** (1 / 3)
    return float(np.sqrt(((long + short) ** 2 + TracyWidom(1).mean() * scale) / tokens))


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
