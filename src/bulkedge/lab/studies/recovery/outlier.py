"""Theorems 3 and 4: which root of equation 7 the outlier is, and how its eigenvector turns from the population's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.linalg import eigh

from bulkedge.ensembles.pooled import PooledSequences, Table, critical_strength
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, follows, mean_marks
from bulkedge.lab.studies.recovery.population import RecoveryPopulation, population_covariance
from bulkedge.plots.style import line, panels
from bulkedge.support.domains import Integers, Interval, parameter

WEAKEST, STRONGEST = 1.5, 3.0
"""Strengths omega, in thresholds of the sample."""


@dataclass(frozen=True)
class RecoveryOutlier(Study):
    """Largest eigenvalue of the sample over signal strength: of the two roots of equation 7 it is the smaller one.

    The text of Theorem 3 says the largest root. That one belongs to another strength with the same eigenvalue of the
    population, which is below the threshold. On the right, the squared overlap of the eigenvectors of sample and
    population, with and without the factor theta/lambda of Theorem 4.
    """

    dim: int = parameter(Integers(40, 5000), "dimension of the embeddings; half of it is drawn too", 200, ours=600)
    vocab_ratio: float = parameter(Interval(0.02, 5), "dimension over vocabulary", 0.5, ours=0.5)
    sample_ratio: float = parameter(Interval(0.02, 5), "dimension over samples", 1 / 3, ours=1 / 3)
    strengths: int = parameter(Integers(3, 100), "signal strengths", 6, ours=15)
    table: Table = parameter(*setting.TABLE_MEANS, "additive", paper="additive")
    draws: int = parameter(*setting.DRAWS, 16, ours=20)
    small = {"dim": 80, "strengths": 4}
    caption = """Largest eigenvalue with both roots of equation 7 (left), and squared overlap with and
    without the factor of Theorem 4 (right). Points should follow the solid lines: the outlier is the smaller root,
    not the one in the text."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Samples of each strength."""
        threshold = float(critical_strength(self.vocab_ratio, self.sample_ratio))
        relative, fine = np.linspace(WEAKEST, STRONGEST, self.strengths), np.linspace(1.0, STRONGEST, 101)
        family = RecoveryPopulation(self.dim, self.vocab_ratio, self.sample_ratio, table=self.table)
        models, curve = ([family.model(each * threshold) for each in at] for at in (relative, fine))
        found = setting.draw_pairs(_quantities, setting.with_halves(models), self.draws, rng, "strengths")
        data: dict[str, Any] = {}
        for kind, dim, at in (("predicted_", "strength", models), ("curve_", "fine_strength", curve)):
            for name, values in self._theory(at).items():
                data[kind + name] = (dim, values)
        for number, name in enumerate(("location", "overlap")):
            data[name] = (("strength", "draw"), found.plain[..., number])
            data[f"limit_{name}"] = (("strength", "draw"), found.limit[..., number])
        coords = {"strength": ("strength", relative, {"units": "threshold"}), "fine_strength": fine}
        return xr.Dataset(data, coords=coords)

    def _theory(self, models: list[PooledSequences]) -> dict[str, Real]:
        """Both roots, and the overlap with and without the factor of Theorem 4."""
        kappa = models[0].kappa
        theta = np.array([float(each.population_spike().location) for each in models])
        smaller, larger = setting.outlier_roots(theta / kappa, self.vocab_ratio, self.sample_ratio)
        overlap = np.array([float(each.sample_spike().overlap) for each in models])
        return {
            "location": kappa * smaller,
            "larger": kappa * larger,
            "overlap": overlap,
            "bare": overlap * kappa * smaller / theta,
        }

    def statements(self, data: xr.Dataset) -> Claims:
        """The root, and the factor."""
        curves = data.limit_location.transpose("draw", "strength")
        text = "share of the larger root of equation 7 in the outliers over signal strength"
        rival = "the largest root, as printed", data.predicted_larger
        yield follows(text, "recovery: Theorem 3, Equation 7", curves, data.predicted_location, rival)
        text = f"largest eigenvalue from {WEAKEST} thresholds on"
        rival = "the largest root, as printed", data.predicted_larger
        yield Claim(text, "recovery: Theorem 3", data.limit_location, data.predicted_location, rival)
        text = "squared overlap of the eigenvectors of sample and population"
        rival = "the derivative alone, as in additive models", data.predicted_bare
        yield Claim(text, "recovery: Theorem 4, Lemma 2", data.limit_overlap, data.predicted_overlap, rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        left, right = grid[0]
        line(left, data.fine_strength, data.curve_location, label="smaller root")
        line(left, data.fine_strength, data.curve_larger, label="larger root (text)", **setting.RIVAL)
        line(right, data.fine_strength, data.curve_overlap, label="Theorem 4")
        line(right, data.fine_strength, data.curve_bare, label=r"without $\theta/\lambda$", **setting.RIVAL)
        for axes, name in ((left, "location"), (right, "overlap")):
            mean_marks(axes, data.strength, data[name])
            axes.set_xlabel(r"strength $\omega$ over its threshold")
        left.set_ylabel("largest eigenvalue")
        right.set(ylabel="squared overlap", ylim=(0, 1.03))
        left.legend(loc="upper left")
        right.legend(loc="lower right")
        setting.caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "draws")
        return figure


def _quantities(model: PooledSequences, rng: np.random.Generator) -> Real:
    """Largest eigenvalue of the sample, and overlap of its eigenvector with that of the population."""
    draw = model.draw(rng)
    last = model.dim - 1
    _, vectors = eigh(population_covariance(draw, model)[0], subset_by_index=(last, last))
    value, vector = setting.top(draw.rows)
    return np.array([value, (vector @ vectors[:, 0]) ** 2])
