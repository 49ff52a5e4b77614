"""Every law of bulkedge against the spectrum of a finite random matrix; ``make demo`` runs this.

Writes one picture and one page into the folder named on the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib as mpl
import numpy as np

import bulkedge as be

mpl.use("Agg")
import matplotlib.pyplot as plt

BULK, LAW, OUTLIER = "#9db8d2", "#b3202c", "#222222"
SIZE = 1000


@dataclass(frozen=True)
class Exhibit:
    """A law beside a matrix that should follow it."""

    name: str
    title: str
    law: be.Law
    draw: Callable[[np.random.Generator], be.Spectrum]


def of_ensemble(name: str, title: str, model: be.Ensemble) -> Exhibit:
    """An ensemble brings its own law."""
    return Exhibit(name, title, model.law(), model.spectrum)


def singular_values(rng: np.random.Generator) -> be.Spectrum:
    """Singular values of a square Gaussian matrix."""
    return be.spectrum(rng.standard_normal((SIZE, SIZE)) / np.sqrt(SIZE))


def low_rank_and_noise(rng: np.random.Generator) -> be.Spectrum:
    """The singular values of a low-rank term plus noise, with both signs: the eigenvalues of its symmetric dilation."""
    model = be.GaussianSum(SIZE, (1.0, 0.1), (0.3, np.inf)).sample(rng)
    zero = np.zeros_like(model)
    return be.spectrum(np.block([[zero, model], [model.T, zero]]), kind="eigen")


def softmax_attention(rng: np.random.Generator) -> be.Spectrum:
    """The squared singular values of an attention matrix at initialisation, without its constant part."""
    query, key = rng.standard_normal((2, SIZE, SIZE))
    weights = np.exp(query @ key.T / np.sqrt(SIZE))
    attention = weights / weights.sum(axis=1, keepdims=True)
    return be.spectrum(np.sqrt(SIZE) * (attention - 1 / SIZE)).squared()


def one_hot_attention(rng: np.random.Generator) -> be.Spectrum:
    """The squared singular values of attention so sharp that every token attends to one token."""
    attention = np.zeros((SIZE, SIZE))
    attention[np.arange(SIZE), rng.integers(0, SIZE, SIZE)] = 1.0
    return be.spectrum(attention).squared()


def signs_and_noise(rng: np.random.Generator) -> be.Spectrum:
    """A Wigner matrix plus a diagonal of signs."""
    signs = np.repeat([-1.0, 1.0], SIZE // 2)
    return be.spectrum(be.Wigner(SIZE, 0.5).sample(rng) + np.diag(signs), kind="eigen")


def two_scales(rng: np.random.Generator) -> be.Spectrum:
    """A sample covariance whose population has two eigenvalues, 1 and 5."""
    data = rng.standard_normal((2 * SIZE, SIZE)) * np.sqrt(np.repeat([1.0, 5.0], SIZE // 2))
    return be.spectrum(data / np.sqrt(2 * SIZE)).squared()


def frame_and_noise(rng: np.random.Generator) -> be.Spectrum:
    """A wide matrix with orthonormal rows, times 1.5, plus a Gaussian one."""
    noise = rng.standard_normal((SIZE // 2, SIZE)) / np.sqrt(SIZE)
    frame = np.linalg.qr(rng.standard_normal((SIZE, SIZE // 2)))[0].T
    return be.spectrum(1.5 * frame + noise)


GALLERY = [
    of_ensemble("semicircle", "Semicircle", be.Wigner(SIZE)),
    Exhibit("quarter_circle", "QuarterCircle", be.QuarterCircle(), singular_values),
    of_ensemble("marchenko_pastur", "MarchenkoPastur, ratio 1/2", be.Wishart(SIZE, 2 * SIZE)),
    of_ensemble("product", "ProductLaw, ratios 0.5, 0.3", be.GaussianProduct(SIZE, (0.5, 0.3))),
    of_ensemble("fuss_catalan", "FussCatalan, order 2", be.GaussianProduct(SIZE, (1.0, 1.0))),
    Exhibit("sum", "SumLaw: rank 0.3 ℓ plus noise", be.SumLaw((1.0, 0.1), (0.3, np.inf)), low_rank_and_noise),
    Exhibit("attention", "AttentionLaw, β = 1, d = ℓ", be.AttentionLaw(1.0, 1.0), softmax_attention),
    Exhibit("poisson", "PoissonLaw: one-hot attention", be.PoissonLaw(1.0), one_hot_attention),
    Exhibit(
        "free_add",
        "free_add: ½(δ₋₁+δ₁) ⊞ Semicircle",
        be.free_add(be.Semicircle(0.5), be.EmpiricalLaw([-1.0, 1.0])),
        signs_and_noise,
    ),
    Exhibit(
        "free_mul",
        "free_mul: ½(δ₁+δ₅) ⊠ MP(½)",
        be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(0.5)),
        two_scales,
    ),
    Exhibit(
        "rectangular_add",
        "rectangular_add: frame + noise",
        be.rectangular_add(be.EmpiricalLaw([1.5]), be.MarchenkoPastur(0.5).sqrt(), 0.5),
        frame_and_noise,
    ),
]


def draw(exhibit: Exhibit, axes: plt.Axes, rng: np.random.Generator) -> be.Comparison:
    """Histogram and density, or bars and probabilities where the law is made of atoms; outliers as ticks."""
    law, spectrum = exhibit.law, exhibit.draw(rng)
    comparison = be.compare(spectrum, law)
    inside = spectrum.values[spectrum.values <= comparison.finite_edge]
    if law.support:
        low, high = law.support[0][0], law.support[-1][1]
        margin = (high - low) / 25
        x = np.linspace(low - margin, high + margin, 2000)
        density = law.pdf(x)
        ceiling = 1.25 * np.quantile(density, 0.98)
        axes.hist(inside, bins=60, range=(low, high), weights=np.full(len(inside), 60 / (high - low) / spectrum.size),
                  color=BULK, label=f"{spectrum.size} values")  # fmt: skip
        axes.plot(x, density, color=LAW, lw=1.6, label="law")
        axes.set_ylim(0, ceiling)
    else:
        counts, masses = np.unique(np.round(inside), return_counts=True)
        axes.bar(counts, masses / spectrum.size, width=0.5, color=BULK, label=f"{spectrum.size} values")
        places, weights = np.array([atom for atom in law.atoms if atom[1] > 1e-4]).T
        axes.plot(places, weights, "o", color=LAW, ms=4, label="law")
    for value in comparison.outliers:
        axes.axvline(value, ymax=0.08, color=OUTLIER, lw=1.2)
    axes.set_title(exhibit.title, fontsize=10)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False)
    return comparison


def draw_tracy_widom(axes: plt.Axes, rng: np.random.Generator) -> None:
    """The largest eigenvalue of many small Wigner matrices."""
    n, law = 100, be.TracyWidom(1)
    tops = [be.Wigner(n).spectrum(rng).values[-1] for _ in range(1500)]
    x = np.linspace(-5, 4, 400)
    axes.hist(n ** (2 / 3) * (np.array(tops) - 2), bins=45, range=(-5, 4), density=True, color=BULK,
              label="1500 largest values, n = 100")  # fmt: skip
    axes.plot(x, law.pdf(x), color=LAW, lw=1.6, label="law")
    axes.set_ylim(0, 0.46)
    axes.set_title("TracyWidom, β = 1", fontsize=10)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False, loc="upper right")


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>bulkedge: laws against simulated spectra</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;color:#222}}
img{{width:100%}} td,th{{padding:.25em 1.2em .25em 0;text-align:left}}</style>
<h1>bulkedge: laws against simulated spectra</h1>
<p>Bars are one draw of a finite matrix, lines are the limiting law; nothing was fitted. The Kolmogorov distance of the
two is of the order of one over the number of values; outliers lie beyond what the largest of as many bulk values
exceeds with probability 0.01.</p>
<img src="gallery.png" alt="Twelve laws, each drawn over a histogram of simulated values">
<table><tr><th>law</th><th>Kolmogorov distance</th><th>edge of the law</th><th>outliers</th></tr>
{rows}
</table></html>
"""


def main(folder: Path) -> None:
    """Draw the gallery."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    figure, grid = plt.subplots(3, 4, figsize=(15, 9.6), constrained_layout=True)
    rows = []
    for exhibit, axes in zip(GALLERY, grid.flat, strict=False):
        result = draw(exhibit, axes, rng)
        print(f"{exhibit.title:36s} Kolmogorov distance {result.ks:.4f}, {len(result.outliers)} outliers", flush=True)
        outliers = ", ".join(f"{value:.3g}" for value in result.outliers) or "none"
        cells = (exhibit.title, f"{result.ks:.4f}", f"{exhibit.law.edge:.6g}", outliers)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    draw_tracy_widom(grid.flat[-1], rng)
    figure.savefig(folder / "gallery.png", dpi=110)
    page = folder / "index.html"
    page.write_text(PAGE.format(rows="\n".join(rows)), encoding="utf-8")
    print(f"the page is {page}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo"))
