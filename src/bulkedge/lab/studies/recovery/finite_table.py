"""Which table the formulas are about: exact class means or those of a finite vocabulary (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.pooled import NOISE, Noise, PooledSequences, Table
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, mean_marks
from bulkedge.plots.style import COLOURS, line, panels, shared_legend
from bulkedge.support.domains import Choice, Each, Integers, Interval, parameter

TABLES: tuple[Table, ...] = ("finite", "additive")
OTHERS: tuple[Noise, ...] = ("uniform", "rademacher")
QUANTITIES = (("location", "largest eigenvalue"), ("overlap", "squared overlap with the signal"))


@dataclass(frozen=True)
class RecoveryFiniteTable(Study):
    """Largest eigenvalue and alignment over the vocabulary ratio: the paper's form, the finite form, and simulation.

    The paper takes the class means of the table as exact. Drawn as it is described, the table has class means of V/2
    noisy rows, which raises the outlier and lowers the alignment; the finite form knows it. The paper's form is right
    for tables whose noise is centred in each class. Neither depends on the law of the noise's entries.
    """

    dim: int = parameter(Integers(50, 5000), "dimension of the embeddings; half of it is drawn too", 120, ours=400)
    ratios: tuple[float, ...] = parameter(
        Each(Interval(0.02, 5)),
        "vocabulary ratios D/V",
        (0.1, 0.5, 1.0, 2.0),
        ours=(0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    )
    sample_ratio: float = parameter(Interval(0.01, 10), "dimension over samples", 1 / 3, ours=1 / 3)
    signal: float = parameter(*setting.SIGNAL_LENGTH, 1.8, ours=1.8)
    weighting: str = parameter(Choice(setting.WEIGHTINGS), "pooling", "causal", ours="causal")
    noise: Noise = parameter(NOISE, "entries of the noise in the figure", "gaussian", ours="gaussian")
    draws: int = parameter(*setting.DRAWS, 20, ours=30)
    small = {"dim": 80, "ratios": (0.5, 2.0), "draws": 16}
    caption = """Largest eigenvalue and squared overlap over the vocabulary ratio for a table with drawn
    class means and one with exact ones. Each table follows the form of its colour, and the two part as the
    vocabulary gets small."""

    def model(self, ratio: float, table: Table, noise: Noise) -> PooledSequences:
        """The ensemble of the study at a vocabulary ratio."""
        correlation = prefix_correlation(setting.LONG, setting.LONG_PREFIX, setting.CORRELATION)
        sizes = self.dim, 2 * round(self.dim / ratio / 2), round(self.dim / self.sample_ratio)
        weights = setting.weights_of(self.weighting, correlation)
        return PooledSequences(*sizes, self.signal, weights, correlation, table, noise=noise)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both tables, simulated and predicted; at one ratio, tables of other noise too."""
        fine = np.geomspace(min(self.ratios), max(self.ratios), 16)
        found = [
            setting.leading([self.model(ratio, table, self.noise) for ratio in self.ratios], self.draws, rng, table)
            for table in TABLES
        ]
        universal = setting.leading([self.model(1.0, "finite", each) for each in OTHERS], 2 * self.draws, rng, "noise")
        points, curves = (np.array([[self._predict(r, t) for r in at] for t in TABLES]) for at in (self.ratios, fine))
        whole = np.array([self._predict(1.0, table) for table in TABLES])
        data: dict[str, Any] = {}
        for k, (name, meaning) in enumerate(QUANTITIES):
            dims = "table", "ratio", "draw"
            data[name] = (dims, np.array([each.plain for each in found])[..., k], {"long_name": meaning})
            data[f"limit_{name}"] = (dims, np.array([each.limit for each in found])[..., k])
            data[f"predicted_{name}"] = (("table", "ratio"), points[..., k])
            data[f"curve_{name}"] = (("table", "fine_ratio"), curves[..., k])
            data[f"universal_{name}"] = (("noise", "many"), universal.limit[..., k])
            data[f"whole_{name}"] = ("table", whole[:, k])
        coords = {"table": list(TABLES), "ratio": list(self.ratios), "fine_ratio": fine, "noise": list(OTHERS)}
        return xr.Dataset(data, coords=coords)

    def _predict(self, ratio: float, table: Table) -> Real:
        model = self.model(ratio, table, self.noise)
        return np.array([model.sample_spike().location, model.alignment().total])

    def statements(self, data: xr.Dataset) -> Claims:
        """Each form for its own table, and the finite form for noise that is not Gaussian."""
        for name, meaning in QUANTITIES:
            for table in TABLES:
                rival, said = setting.other(table)
                place = "Theorem 3" if name == "location" else "Theorem 4, Equation 8"
                place = f"recovery: {place}" + ("; ours" if table == "finite" else "")
                measured, predicted = data[f"limit_{name}"].sel(table=table), data[f"predicted_{name}"]
                others = said, predicted.sel(table=rival)
                yield Claim(f"{table} table: mean {meaning}", place, measured, predicted.sel(table=table), others)
            for noise in OTHERS:
                text = f"{noise} noise, D = V: {meaning}"
                measured = data[f"universal_{name}"].sel(noise=noise).rename(many="draw")
                against = setting.other("finite")[1], data[f"whole_{name}"].sel(table="additive")
                yield Claim(text, "recovery: Remark 1", measured, data[f"whole_{name}"].sel(table="finite"), against)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        looks = {"finite": (COLOURS[0], "o", "finite form"), "additive": (COLOURS[1], "s", "paper's form")}
        for axes, name, label in zip(
            grid[0], ("location", "overlap"), ("largest eigenvalue", "squared overlap"), strict=True
        ):
            for table, (colour, symbol, form) in looks.items():
                one = data.sel(table=table)
                line(axes, one.fine_ratio, one[f"curve_{name}"], label=form, color=colour)
                mean_marks(axes, one.ratio, one[name], label=f"{table} table", color=colour, fmt=symbol)
            axes.set(xlabel=r"vocabulary ratio $\delta = D/V$", ylabel=label)
        grid[0, 1].set_ylim(-0.03, 1.03)
        shared_legend(figure, [grid[0, 0]], 4)
        setting.caption(figure, self, "dim", "sample_ratio", "signal", "weighting", "noise", "draws")
        return figure
