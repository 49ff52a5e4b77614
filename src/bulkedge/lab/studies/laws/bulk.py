"""Every law against the spectra of finite random matrices, and against a rival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.special import ndtr

from bulkedge.ensembles import GaussianProduct, GaussianSum, Wigner, Wishart
from bulkedge.lab.studies.base import Claims, Real, Study, dataset, follows, track
from bulkedge.laws import (
    AttentionLaw,
    EmpiricalLaw,
    FreeLogNormal,
    Law,
    MarchenkoPastur,
    PoissonLaw,
    ProfileLaw,
    QuarterCircle,
    Semicircle,
    SumLaw,
    free_add,
    free_mul,
    rectangular_add,
)
from bulkedge.laws.distribution import Unit
from bulkedge.plots.style import histogram, line, panels
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.domains import Integers, parameter

BINS, POINTS, LEVELS = 60, 800, 200
BLOCKS = ((1.0, 0.05), (0.05, 4.0))
BETA = 0.5
"""Of the attention matrices; their finite-size correction is small and known there."""
REAL = (
    0.5,
    "derived: the mean number of eigenvalues of a real matrix below a point is at most 1/2 off: 1/4 at each soft edge",
)
HEAVY = (
    3.0,
    (
        "derived: the normaliser lowers the values by 2/n of themselves, which moves at most 1 below any point, "
        "and two values may stand beyond the bulk"
    ),
)
FACTORS = 64
STEPS = (
    3.5,
    f"derived: {FACTORS} factors move the distribution function by 0.003, 3 of 1000 values, and real matrices by 1/2",
)
DistributionFunction = Callable[[Real], Real]


@dataclass(frozen=True)
class Exhibit:
    """A law beside a matrix that should follow it, and beside a rival.

    ``bias`` says by how many values the mean count below a point may differ from n times the law, and why.
    """

    label: str
    place: str
    law: Law
    draw: Callable[[np.random.Generator], Spectrum]
    rival: str
    rival_cdf: DistributionFunction
    bias: tuple[float, str] = REAL


def exhibits(n: int) -> dict[str, Exhibit]:
    """The laws that are shown, each beside a random matrix of about n rows that should follow it."""
    return _gaussian(n) | _attention(n) | _free(n)


def _gaussian(n: int) -> dict[str, Exhibit]:
    """Gaussian matrices and their products; Marchenko-Pastur laws of the same mean and variance are the rivals."""
    wigner, wishart = Wigner(n), Wishart(n, 2 * n)
    pair, square = GaussianProduct(n, (0.5, 0.3)), GaussianProduct(n, (1.0, 1.0))
    two = SumLaw((1.0, 0.1), (0.3, np.inf))
    return {
        "semicircle": Exhibit(
            "Semicircle",
            "laws: Wigner 1958",
            wigner.law(),
            wigner.spectrum,
            "a normal law",
            lambda x: np.asarray(ndtr(x)),
        ),
        "quarter_circle": Exhibit(
            "QuarterCircle",
            "laws: Marchenko and Pastur 1967",
            QuarterCircle(),
            lambda rng: _singular_values(n, rng),
            "the law of the squares",
            MarchenkoPastur(1.0).cdf,
        ),
        "marchenko_pastur": Exhibit(
            "MarchenkoPastur, ratio 1/2",
            "laws: Marchenko and Pastur 1967",
            wishart.law(),
            wishart.spectrum,
            "a semicircle of that variance",
            lambda x: Semicircle(0.5).cdf(x - 1),
        ),
        "product": Exhibit(
            "ProductLaw, ratios 0.5, 0.3",
            "recovery: Theorem 1",
            pair.law(),
            pair.spectrum,
            "one factor of the same variance",
            MarchenkoPastur(0.8).cdf,
        ),
        "fuss_catalan": Exhibit(
            "FussCatalan, order 2",
            "laws: Banica, Belinschi, Capitaine and Collins 2011",
            square.law(),
            square.spectrum,
            "one factor of the same variance",
            MarchenkoPastur(2.0).cdf,
        ),
        "log_normal": Exhibit(
            "FreeLogNormal, variance 1",
            "laws: Biane 1997",
            FreeLogNormal(1.0),
            lambda rng: _many_factors(n, rng),
            "one factor of the same variance",
            MarchenkoPastur(1.0).cdf,
            STEPS,
        ),
        "sum": Exhibit(
            "SumLaw, rank 0.3 n + noise",
            "ours",
            two,
            lambda rng: _low_rank_and_noise(n, rng),
            "noise of the same variance",
            Semicircle(1.1).cdf,
        ),
    }


def _attention(n: int) -> dict[str, Exhibit]:
    """Attention, and matrices whose entries have variances of their own; flat noise is the rival."""
    blocks, attention = ProfileLaw(BLOCKS), AttentionLaw(BETA, 1.0)
    counts = 0.5, "derived: binomial counts of n tokens are Poisson up to 1/(2n)"
    return {
        "attention": Exhibit(
            f"AttentionLaw, β = {BETA:g}, d = T",
            "equivalence: Theorem 3.2",
            attention,
            lambda rng: _softmax_attention(n, rng),
            "independent entries",
            MarchenkoPastur(1.0, attention.mean()).cdf,
            HEAVY,
        ),
        "profile": Exhibit(
            "ProfileLaw, two by two blocks",
            "laws: Ajanki, Erdős and Krüger 2017",
            blocks,
            lambda rng: _blocks(n, rng),
            "one variance for all entries",
            MarchenkoPastur(1.0, blocks.mean()).cdf,
        ),
        "poisson": Exhibit(
            "PoissonLaw, one-hot attention",
            "ours",
            PoissonLaw(1.0),
            lambda rng: _one_hot_attention(n, rng),
            "Gaussian entries",
            MarchenkoPastur(1.0).cdf,
            counts,
        ),
    }


def _free(n: int) -> dict[str, Exhibit]:
    """Free sums and products; the classical ones, of values that add or multiply in pairs, are the rivals."""
    half, noise = MarchenkoPastur(0.5), Semicircle(0.5)
    return {
        "free_add": Exhibit(
            "free_add, ½(δ₋₁+δ₁) ⊞ SC(½)",
            "laws: Biane 1997",
            free_add(noise, EmpiricalLaw([-1.0, 1.0])),
            lambda rng: _signs_and_noise(n, rng),
            "the classical sum",
            lambda x: (noise.cdf(x - 1) + noise.cdf(x + 1)) / 2,
        ),
        "free_mul": Exhibit(
            "free_mul, ½(δ₁+δ₅) ⊠ MP(½)",
            "laws: Silverstein 1995",
            free_mul(EmpiricalLaw([1.0, 5.0]), half),
            lambda rng: _two_scales(n, rng),
            "the classical product",
            lambda x: (half.cdf(x) + half.cdf(x / 5)) / 2,
        ),
        "rectangular_add": Exhibit(
            "rectangular_add, frame + noise",
            "laws: Benaych-Georges 2009",
            rectangular_add(EmpiricalLaw([1.5]), half.sqrt(), 0.5),
            lambda rng: _frame_and_noise(n, rng),
            "a fixed shift of the squares",
            lambda x: half.cdf(x**2 - 1.5**2),
        ),
    }


@dataclass(frozen=True)
class LawsBulk(Study):
    """Every law of the package, drawn over the spectrum of a finite matrix that should follow it; nothing is fitted."""

    size: int = parameter(Integers(50, 20_000), "rows of the matrices", 300, ours=1000)
    draws: int = parameter(Integers(2, 1000), "matrices for each law", 20, ours=20)
    small = {"size": 100, "draws": 6}
    caption = """Every law of the package over the spectrum of simulated matrices, with a rival of the
    same scale. The bars should fill the area under the orange line, with nothing fitted, and the dotted rival
    should miss them."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw spectra for each law, and count the values below its quantiles."""
        shown = exhibits(self.size)
        parts = [_measure(shown[name], self.draws, rng) for name in track(list(shown), "laws")]
        return xr.concat(parts, dim=xr.Variable("law", list(shown)))

    def statements(self, data: xr.Dataset) -> Claims:
        """How much of the rival is in the distribution functions that were found."""
        for name, exhibit in exhibits(self.size).items():
            one = data.sel(law=name)
            count, reason = exhibit.bias
            text = f"{exhibit.label}: share of the rival in the distribution function"
            rival = exhibit.rival, one.rival_cdf
            yield follows(text, exhibit.place, one.found, one.cdf, rival, count / float(one["count"]), reason)

    def figure(self, data: xr.Dataset) -> Figure:
        names = data.law.values.tolist()
        figure, grid = panels(-(-len(names) // 3), 3, height=1.9, width=2.4)
        labels = exhibits(100)
        for unused in grid.flat[len(names) :]:
            unused.set_visible(False)
        for name, axes in zip(names, grid.flat, strict=False):
            law_panel(axes, data.sel(law=name))
            axes.set_title(f"{labels[name].label}\nrival: {labels[name].rival}")
        for axes in grid[:, 0]:
            axes.set_ylabel("density")
        for axes in grid[-1]:
            axes.set_xlabel("value")
        figure.suptitle(f"{data.sizes['draw']} draws of each matrix, {self.size} rows", fontsize="medium")
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure


def _measure(exhibit: Exhibit, draws: int, rng: np.random.Generator) -> xr.Dataset:
    law, spectra = exhibit.law, [exhibit.draw(rng) for _ in range(draws)]
    places, below = _quantiles(law)
    found = [np.searchsorted(each.values, places, side="right") / each.size for each in spectra]
    x, bins, curve = _curve(law)
    half = (x[1] - x[0]) / 2
    rival = (exhibit.rival_cdf(x + half) - exhibit.rival_cdf(x - half)) / (2 * half)
    values = np.concatenate([each.values for each in spectra])
    density = np.histogram(values, bins)[0] / np.diff(bins) / values.size
    return dataset(
        x=("point", x, "value"),
        theory=("point", curve, "density of the law"),
        rival=("point", rival, "density of the rival"),
        bin_edge=("end", bins, "ends of the bins"),
        simulation=("bin", density, "density of the values of all draws"),
        found=(("draw", "quantile"), found, "share of the values below quantiles of the law"),
        cdf=("quantile", below, "distribution function of the law there"),
        rival_cdf=("quantile", exhibit.rival_cdf(places), "that of the rival"),
        count=((), spectra[0].size, "number of values of one draw"),
        atomic=((), not law.support, "whether the law is made of atoms"),
    )


def _quantiles(law: Law) -> tuple[Real, Real]:
    """Where distribution functions are compared, and that of the law there."""
    places = law.ppf((np.arange(LEVELS) + 0.5) / LEVELS)
    if not law.support:
        places = places + 0.5  # half-way between whole numbers rounding does not decide what lies below
    return places, law.cdf(places)


def _curve(law: Law) -> tuple[Real, Real, Real]:
    """Points, bins, and the density at the points."""
    if law.support:
        low, high = law.support[0][0], law.support[-1][1]
        x = np.linspace(low - (high - low) / 25, high + (high - low) / 25, POINTS)
        return x, np.linspace(low, high, BINS + 1), law.pdf(x)
    # an atom of mass m is a bin of unit width and density m
    x = np.arange(float(POINTS))
    atoms = dict(law.atoms)
    return x, np.arange(BINS + 1.0) - 0.5, np.array([atoms.get(place, 0.0) for place in x.tolist()])


def _singular_values(n: int, rng: np.random.Generator) -> Spectrum:
    """Singular values of a square Gaussian matrix."""
    return spectrum(rng.standard_normal((n, n)) / np.sqrt(n))


def _low_rank_and_noise(n: int, rng: np.random.Generator) -> Spectrum:
    """Singular values of a low-rank term plus noise, with both signs: the eigenvalues of its symmetric dilation."""
    model = GaussianSum(n, (1.0, 0.1), (0.3, np.inf)).sample(rng)
    zero = np.zeros_like(model)
    found = spectrum(np.block([[zero, model], [model.T, zero]]), kind="eigen")
    return replace(found, unit=Unit.SYMMETRISED)


def _many_factors(n: int, rng: np.random.Generator) -> Spectrum:
    """Squared singular values of a product of factors a + b K, each with the variance ``1/FACTORS``."""
    product, branch = np.eye(n), 1 / (2 * FACTORS)
    for _ in range(FACTORS):
        product = np.sqrt(1 - branch) * product + np.sqrt(branch / n) * rng.standard_normal((n, n)) @ product
    return spectrum(product).squared()


def _softmax_attention(n: int, rng: np.random.Generator) -> Spectrum:
    """Squared singular values of an attention matrix at initialisation, without its constant part."""
    query, key = rng.standard_normal((2, n, n))
    weights = np.exp(BETA * query @ key.T / np.sqrt(n))
    attention = weights / weights.sum(axis=1, keepdims=True)
    return spectrum(np.sqrt(n) * (attention - 1 / n)).squared()


def _blocks(n: int, rng: np.random.Generator) -> Spectrum:
    """Squared singular values of a Gaussian matrix with four blocks, each of its own variance."""
    block = (2 * np.arange(n)) // n
    return spectrum(rng.standard_normal((n, n)) * np.sqrt(np.array(BLOCKS)[np.ix_(block, block)] / n)).squared()


def _one_hot_attention(n: int, rng: np.random.Generator) -> Spectrum:
    """Squared singular values of attention so sharp that every token attends to one token."""
    attention = np.zeros((n, n))
    attention[np.arange(n), rng.integers(0, n, n)] = 1.0
    return spectrum(attention).squared()


def _signs_and_noise(n: int, rng: np.random.Generator) -> Spectrum:
    """A Wigner matrix plus a diagonal of signs."""
    signs = np.where(np.arange(n) < n // 2, -1.0, 1.0)
    return spectrum(Wigner(n, 0.5).sample(rng) + np.diag(signs), kind="eigen")


def _two_scales(n: int, rng: np.random.Generator) -> Spectrum:
    """A sample covariance whose population has two eigenvalues, 1 and 5."""
    scales = np.where(np.arange(n) < n // 2, 1.0, 5.0)
    return spectrum(rng.standard_normal((2 * n, n)) * np.sqrt(scales / (2 * n))).squared()


def _frame_and_noise(n: int, rng: np.random.Generator) -> Spectrum:
    """A wide matrix with orthonormal rows, times 1.5, plus a Gaussian one."""
    rows = n // 2
    frame = np.linalg.qr(rng.standard_normal((2 * rows, rows)))[0].T
    return spectrum(1.5 * frame + rng.standard_normal((rows, 2 * rows)) / np.sqrt(2 * rows))


def law_panel(axes: Axes, data: xr.Dataset) -> None:
    """Draw the densities of one law and its rival over the histogram of the draws."""
    shown = data.theory > 1e-4 * data.theory.max()
    histogram(axes, data.bin_edge, data.simulation, label="simulation")
    if data.atomic:
        line(axes, data.x[shown], data.rival[shown], label="rival", ls="none", marker="_", ms=6, color="black")
        line(axes, data.x[shown], data.theory[shown], label="law", ls="none", marker="o", ms=3)
        axes.set_xlim(-0.7, float(data.x[shown].max()) + 0.7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        line(axes, data.x, data.rival, label="rival", color="black", ls=":", lw=1)
        line(axes, data.x, data.theory, label="law")
        axes.set_ylim(0, 1.35 * float(np.quantile(data.theory, 0.98)))
