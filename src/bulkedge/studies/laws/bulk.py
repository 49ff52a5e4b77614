"""Every law against the spectrum of a finite random matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from bulkedge.comparison import compare
from bulkedge.domains import Integers, parameter
from bulkedge.ensembles import GaussianProduct, GaussianSum, Wigner, Wishart
from bulkedge.laws import (
    AttentionLaw,
    EmpiricalLaw,
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
from bulkedge.laws.units import Unit
from bulkedge.progress import track
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim

BINS, POINTS = 60, 800
BLOCKS = ((1.0, 0.05), (0.05, 4.0))
RIGID = 8, "a rigid spectrum: the number of values below any point errs by about log n / 2, so 8/n"
HEAVY = 30, "twice the 14/n measured for an i.i.d. log-normal Markov matrix, whose tails attention shares: 30/n"


@dataclass(frozen=True)
class Exhibit:
    """A law beside a matrix that should follow it, and the Kolmogorov distance, times n, that may be between them."""

    label: str
    place: str
    law: Law
    draw: Callable[[np.random.Generator], Spectrum]
    bound: tuple[float, str] = RIGID


def exhibits(n: int) -> dict[str, Exhibit]:
    """The laws that are shown, each beside a random matrix of about n rows that should follow it.

    Parameters
    ----------
    n : int
        Rows of the matrices; some have a few more or fewer.

    Returns
    -------
    dict of str to Exhibit
        Each with its law, a function that draws a spectrum, and the distance that may be between them.
    """
    wigner, wishart = Wigner(n), Wishart(n, 2 * n)
    pair, square = GaussianProduct(n, (0.5, 0.3)), GaussianProduct(n, (1.0, 1.0))
    signs, scales = EmpiricalLaw([-1.0, 1.0]), EmpiricalLaw([1.0, 5.0])
    half = MarchenkoPastur(0.5)
    counts = 1.95 * np.sqrt(n), "99.9 % quantile of the Kolmogorov statistic: the counts are nearly independent"
    return {
        "semicircle": Exhibit("Semicircle", "Wigner 1958", wigner.law(), wigner.spectrum),
        "quarter_circle": Exhibit(
            "QuarterCircle", "propagation, Lemma 3", QuarterCircle(), lambda rng: _singular_values(n, rng)
        ),
        "marchenko_pastur": Exhibit(
            "MarchenkoPastur, ratio 1/2", "Marchenko and Pastur 1967", wishart.law(), wishart.spectrum
        ),
        "product": Exhibit("ProductLaw, ratios 0.5, 0.3", "recovery, Theorem 1", pair.law(), pair.spectrum),
        "fuss_catalan": Exhibit("FussCatalan, order 2", "propagation, Theorem 7", square.law(), square.spectrum),
        "sum": Exhibit(
            "SumLaw, rank 0.3 n + noise",
            "equivalence, linear model",
            SumLaw((1.0, 0.1), (0.3, np.inf)),
            lambda rng: _low_rank_and_noise(n, rng),
        ),
        "attention": Exhibit(
            "AttentionLaw, β = 1, d = ℓ",
            "equivalence, Theorem 3.2",
            AttentionLaw(1.0, 1.0),
            lambda rng: _softmax_attention(n, rng),
            HEAVY,
        ),
        "profile": Exhibit(
            "ProfileLaw, two by two blocks",
            "Ajanki, Erdős and Krüger 2017",
            ProfileLaw(BLOCKS),
            lambda rng: _blocks(n, rng),
        ),
        "poisson": Exhibit(
            "PoissonLaw, one-hot attention",
            "equivalence, Figure 4",
            PoissonLaw(1.0),
            lambda rng: _one_hot_attention(n, rng),
            counts,
        ),
        "free_add": Exhibit(
            "free_add, ½(δ₋₁+δ₁) ⊞ SC(½)",
            "Biane 1997",
            free_add(Semicircle(0.5), signs),
            lambda rng: _signs_and_noise(n, rng),
        ),
        "free_mul": Exhibit(
            "free_mul, ½(δ₁+δ₅) ⊠ MP(½)", "Silverstein 1995", free_mul(scales, half), lambda rng: _two_scales(n, rng)
        ),
        "rectangular_add": Exhibit(
            "rectangular_add, frame + noise",
            "Benaych-Georges 2009",
            rectangular_add(EmpiricalLaw([1.5]), half.sqrt(), 0.5),
            lambda rng: _frame_and_noise(n, rng),
        ),
    }


@dataclass(frozen=True)
class Bulk(Study):
    """Every law of the package, drawn over one draw of a finite matrix that should follow it; nothing is fitted."""

    size: int = parameter(Integers(50, 20_000), "rows of the matrices", 600, paper=2000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw one spectrum for each law, and compare."""
        gallery = exhibits(self.size)
        parts = [_measure(gallery[name], rng) for name in track(list(gallery), "laws")]
        return xr.concat(parts, dim=xr.Variable("law", list(gallery)))

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Kolmogorov distances."""
        return [
            Claim(
                statement=f"{exhibit.label}: Kolmogorov distance",
                place=exhibit.place,
                predicted=exhibit.bound[0] / float(data["count"].sel(law=name)),
                measured=float(data.kolmogorov.sel(law=name)),
                error=0.0,
                tolerance=0.0,
                reason=exhibit.bound[1],
                relation="<=",
            )
            for name, exhibit in exhibits(self.size).items()
        ]


def _measure(exhibit: Exhibit, rng: np.random.Generator) -> xr.Dataset:
    law, found = exhibit.law, exhibit.draw(rng)
    comparison = compare(found, law)
    if law.support:
        low, high = law.support[0][0], law.support[-1][1]
        x = np.linspace(low - (high - low) / 25, high + (high - low) / 25, POINTS)
        curve, bins = law.pdf(x), np.linspace(low, high, BINS + 1)
    else:
        # an atom of mass m is a bin of unit width and density m
        x, bins = np.arange(float(POINTS)), np.arange(BINS + 1.0) - 0.5
        curve = np.array([dict(law.atoms).get(place, 0.0) for place in x.tolist()])
    density = np.histogram(found.values, bins)[0] / np.diff(bins) / found.size
    return xr.Dataset(
        {
            "x": ("point", x, {"long_name": "value"}),
            "theory": ("point", curve, {"long_name": "density of the law"}),
            "bin_edge": ("end", bins, {"long_name": "ends of the bins"}),
            "simulation": ("bin", density, {"long_name": "density of the values"}),
            "kolmogorov": ((), comparison.ks, {"long_name": "Kolmogorov distance"}),
            "outliers": ((), len(comparison.outliers), {"long_name": "values beyond the finite edge, level 0.01"}),
            "count": ((), found.size, {"long_name": "number of values"}),
            "atomic": ((), not law.support, {"long_name": "whether the law is made of atoms"}),
        }
    )


def _singular_values(n: int, rng: np.random.Generator) -> Spectrum:
    """Singular values of a square Gaussian matrix."""
    return spectrum(rng.standard_normal((n, n)) / np.sqrt(n))


def _low_rank_and_noise(n: int, rng: np.random.Generator) -> Spectrum:
    """Singular values of a low-rank term plus noise, with both signs: the eigenvalues of its symmetric dilation."""
    model = GaussianSum(n, (1.0, 0.1), (0.3, np.inf)).sample(rng)
    zero = np.zeros_like(model)
    found = spectrum(np.block([[zero, model], [model.T, zero]]), kind="eigen")
    return replace(found, unit=Unit.SYMMETRISED)


def _softmax_attention(n: int, rng: np.random.Generator) -> Spectrum:
    """Squared singular values of an attention matrix at initialisation, without its constant part."""
    query, key = rng.standard_normal((2, n, n))
    weights = np.exp(query @ key.T / np.sqrt(n))
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
