"""How far the largest of n values strays from the edge, and how often an outlier is called where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.linalg import eigvalsh_tridiagonal

from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.laws import Semicircle, TracyWidom
from bulkedge.plots.style import histogram, line, panels
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

BINS = np.linspace(-5, 4, 46)


@dataclass(frozen=True)
class LawsEdge(Study):
    """The largest eigenvalue of many Gaussian matrices against the Tracy-Widom law, and the rate of false alarms."""

    size: int = parameter(Integers(10, 10_000), "rows of the matrices", 200, ours=1000)
    draws: int = parameter(Integers(100, 1_000_000), "matrices", 4000, ours=100_000)
    level: float = parameter(Interval(0.001, 0.5), "false-alarm rate asked for", 0.05, ours=0.05)
    small: ClassVar = {"size": 50, "draws": 500}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw tridiagonal forms (Dumitriu and Edelman 2002), whose largest eigenvalue is that of the full matrix."""
        law, unit = Semicircle(), Semicircle().edge_scale * self.size ** (-2 / 3)
        tops = np.array([self._top(rng) for _ in track(range(self.draws), "matrices")])
        x = np.linspace(BINS[0], BINS[-1], 400)
        scaled = (tops - law.edge) / unit
        return xr.Dataset(
            {
                "theory": ("x", TracyWidom(1).pdf(x), {"long_name": "Tracy-Widom density"}),
                "simulation": ("bin", np.histogram(scaled, BINS)[0] / np.diff(BINS) / self.draws),
                "bin_edge": ("end", BINS),
                "mean": ((), scaled.mean(), {"long_name": "mean of the scaled largest values"}),
                "error": ((), Estimate.of(scaled).error, {"long_name": "its standard error"}),
                "alarms": ((), np.mean(tops > law.finite_edge(self.size, self.level)), {"long_name": "false alarms"}),
            },
            coords={"x": ("x", x, {"long_name": "(largest value - edge) / (edge_scale n^(-2/3))"})},
        )

    def _top(self, rng: np.random.Generator) -> float:
        n = self.size
        main = rng.normal(scale=np.sqrt(2 / n), size=n)
        off = np.sqrt(rng.chisquare(np.arange(n - 1, 0, -1)) / n)
        return float(eigvalsh_tridiagonal(main, off, select="i", select_range=(n - 1, n - 1))[0])

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The mean, and the rate."""
        bare = float(TracyWidom(1).sf(0.0))
        spread = np.sqrt(self.level * (1 - self.level) / self.draws)
        return [
            Claim(
                statement="mean of the scaled largest eigenvalue",
                place="laws: Tracy and Widom 1996",
                measured=Estimate(float(data["mean"]), float(data.error), self.draws - 1),
                predicted=TracyWidom(1).mean(),
                rival=Rival("the law of complex matrices", TracyWidom(2).mean()),
                finite_size=self.size ** (-1 / 3),
                reason="corrections of order n**(-1/3) to the limit",
            ),
            Claim(
                statement=f"false alarms at level {self.level:g}; at finite size they are rarer than asked for",
                place="ours",
                measured=Estimate(float(data.alarms), spread),
                predicted=self.level,
                rival=Rival("the bare edge as threshold", bare),
                relation="<=",
            ),
        ]

    def figure(self, data: xr.Dataset) -> Figure:
        """The scaled largest values over the Tracy-Widom density."""
        figure, grid = panels(1, 1)
        axes = grid[0, 0]
        histogram(axes, data.bin_edge, data.simulation, label="largest values")
        line(axes, data.x, data.theory, label="Tracy-Widom, β = 1")
        axes.set_title(f"{self.draws} matrices of {self.size} rows")
        axes.set_xlabel(r"(largest value $-$ edge) / (edge scale $n^{-2/3}$)")
        axes.set_ylabel("density")
        axes.legend(loc="upper right")
        return figure
