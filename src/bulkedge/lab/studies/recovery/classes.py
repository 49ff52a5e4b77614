"""Open points (i) and (v): several classes, and noise that is not isotropic (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.mixture import WHITE, PooledMixture
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Study, dataset, mean_marks
from bulkedge.laws import EmpiricalLaw
from bulkedge.laws.law import Law
from bulkedge.plots.style import COLOURS, panels, shared_legend
from bulkedge.support.domains import Integers, parameter

LENGTH, PREFIX = 20, 8
SHARES, MEANS = (0.2, 0.3, 0.5), (16.0, 6.0, 3.0)
"""Shares of the three classes in the table, and squared lengths of their means, which are orthogonal."""
COLOURED = EmpiricalLaw([0.1, 3.25], [5 / 7, 2 / 7])
NOISES: dict[str, Law] = {"white": WHITE, "coloured": COLOURED, "quiet axes": COLOURED, "loud axes": COLOURED}
"""Laws of the eigenvalues of the noise's covariance, of mean one; class means have random directions, or lie along the
quietest or the loudest axes of the noise."""


@dataclass(frozen=True)
class RecoveryClasses(Study):
    """Three classes of different sizes: two outliers between them, in white noise and in noise of two variances.

    Theory is that of ``PooledMixture``: an outlier is where a matrix of the size of the number of classes has the
    eigenvalue one. Means that lie along axes of the noise see it through ``mu'(z - Q)**-1 mu`` and not its trace.
    """

    dim: int = parameter(*setting.DIM, 120, ours=400)
    vocab_ratio: float = parameter(*setting.VOCAB_RATIO, 0.5, ours=0.5)
    sample_ratio: float = parameter(*setting.SAMPLE_RATIO, 0.4, ours=0.4)
    draws: int = parameter(Integers(4, 1000), "draws of each noise", 500, ours=120)
    small = {"dim": 80, "draws": 40}
    caption = """Eigenvalue and squared overlap of the two outliers that three classes make, in white and
    in coloured noise, and with means along axes of the coloured noise. Each point should lie on the bar of its colour,
    and both outliers above the dotted edge."""

    def model(self, noise: str, part: float = 1.0) -> PooledMixture:
        """The ensemble."""
        correlation = prefix_correlation(LENGTH, PREFIX, setting.CORRELATION)
        dim = round(part * self.dim)
        sizes = tuple(round(share * dim / self.vocab_ratio) for share in SHARES)
        weights = setting.weights_of("causal", correlation)
        samples = round(dim / self.sample_ratio)
        means = None
        if noise.endswith("axes"):
            axes = np.arange(3) if noise.startswith("quiet") else dim - 1 - np.arange(3)
            means = np.sqrt(MEANS)[:, None] * np.eye(dim)[axes]
        return PooledMixture(dim, sizes, samples, np.diag(MEANS), weights, correlation, NOISES[noise], means)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Top two eigenvalues and their overlaps with the span of the class means."""
        parts = []
        for noise in NOISES:
            model = self.model(noise)
            pair = model, self.model(noise, 0.5)
            found = setting.draw_pairs(lambda each, rng: each.leading(rng).ravel(), [pair], self.draws, rng, noise)
            theory = np.array([each[:2] for each in model.spikes()])
            plain, limit = (each[0].reshape(-1, 2, 2) for each in found)
            dims = "draw", "rank"
            parts.append(
                dataset(
                    location=(dims, plain[..., 0], "eigenvalue"),
                    overlap=(dims, plain[..., 1], "squared length within the class means"),
                    limit_location=(dims, limit[..., 0]),
                    limit_overlap=(dims, limit[..., 1]),
                    predicted_location=("rank", theory[:, 0]),
                    predicted_overlap=("rank", theory[:, 1]),
                    edge=((), float(model.law().edge)),
                )
            )
        return xr.concat(parts, dim=xr.Variable("noise", list(NOISES))).assign_coords(rank=[1, 2])

    def statements(self, data: xr.Dataset) -> Claims:
        """Two outliers, not one; and the colour of the noise."""
        white, coloured = (data.sel(noise=each) for each in ("white", "coloured"))
        two = "two classes, and one outlier: the edge"
        text = "three classes: second eigenvalue"
        place = "recovery: Open problem (i); ours"
        rival = two, white.edge
        yield Claim(text, place, white.limit_location.sel(rank=2), white.predicted_location.sel(rank=2), rival)
        text = "three classes: squared length of the second eigenvector within the class means"
        place = "recovery: Open problem (i); ours"
        rival = "two classes, and one direction", 0.0
        yield Claim(text, place, white.limit_overlap.sel(rank=2), white.predicted_overlap.sel(rank=2), rival)
        for name, meaning in (("location", "eigenvalue"), ("overlap", "squared length within the class means")):
            text = f"noise of two variances: {meaning}, first and second eigenvector"
            place = "recovery: Open problem (v); ours"
            rival = "isotropic noise of the same mean", white[f"predicted_{name}"]
            yield Claim(text, place, coloured[f"limit_{name}"].mean("rank"), coloured[f"predicted_{name}"], rival)

        for noise in ("quiet axes", "loud axes"):
            one = data.sel(noise=noise)
            for name, meaning in (("location", "eigenvalue"), ("overlap", "squared length within the class means")):
                text = f"means along the {noise} of the noise: {meaning}, first and second eigenvector"
                rival = "the trace: means in random directions", coloured[f"predicted_{name}"]
                place = "recovery: Open problem (v); ours"
                yield Claim(text, place, one[f"limit_{name}"].mean("rank"), one[f"predicted_{name}"], rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        for axes, (name, label) in zip(grid[0], setting.NAMES.items(), strict=True):
            for number, noise in enumerate(data.noise.values.tolist()):
                one, colour = data.sel(noise=noise), COLOURS[number]
                shifted = one["rank"] + 0.06 * (2 * number - 3)
                mean_marks(axes, shifted, one[name], label=f"{noise}", color=colour)
                theory = one[f"predicted_{name}"]
                axes.scatter(shifted, theory, marker="_", s=250, color=colour, label=f"{noise}, theory")
                if name == "location" and number < 2:  # all coloured ones share their bulk
                    axes.axhline(float(one.edge), color=colour, ls=":", lw=1, label=f"{noise}, edge")
            axes.set(xlabel="outlier", ylabel=label.replace("largest ", ""), xlim=(0.5, 2.5), ylim=(0, None))
            axes.set_xticks([1, 2])
        grid[0, 1].set_ylim(0, 1.03)
        shared_legend(figure, [grid[0, 0]], 3)
        setting.caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "draws")
        return figure
