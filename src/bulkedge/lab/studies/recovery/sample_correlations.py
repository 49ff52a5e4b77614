"""Open point (ii): correlations that differ from sequence to sequence (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.correlations import draw_signs, prefix_correlation
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.ensembles.weights import optimal_weights, pool
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, mean_marks
from bulkedge.plots.style import COLOURS, panels, shared_legend
from bulkedge.support.domains import Integers, parameter

LENGTH, SHORT, LONG = 20, 4, 16
"""Positions, and the prefix of one half of the sequences and of the other."""
QUANTITIES = (("location", "largest eigenvalue"), ("overlap", "squared overlap with the signal"))


@dataclass(frozen=True)
class RecoverySampleCorrelations(Study):
    """Two kinds of sequences, of short and of long prefixes: only the mean of their correlations matters.

    With the same weights for all, a row of either kind has the same noise, and the resolvent is the same at all rows:
    what the outlier sees is the mean of ``(w.xi)**2``, ``w' E[R] w``. So the theorems hold with the mean of the
    correlations, and the best weights are the top eigenvector of that.
    """

    dim: int = parameter(*setting.DIM, 120, ours=400)
    vocab_ratio: float = parameter(*setting.VOCAB_RATIO, 0.5, ours=0.5)
    sample_ratio: float = parameter(*setting.SAMPLE_RATIO, 1 / 3, ours=1 / 3)
    signal: float = parameter(*setting.SIGNAL_LENGTH, 1.2, ours=1.2)
    draws: int = parameter(Integers(4, 1000), "draws of each weighting", 100, ours=60)
    small = {"dim": 80, "draws": 40}
    caption = """Largest eigenvalue and squared overlap of a mixture of two kinds of sequences, for two
    weightings. Points should lie on the orange bars, which take the mean of both correlations, and not on those of
    either kind alone."""

    def models(self, weighting: str) -> dict[str, PooledSequences]:
        """The ensembles whose sequences are all of one kind, and that of the mean correlation."""
        short, long = (prefix_correlation(LENGTH, each, setting.CORRELATION) for each in (SHORT, LONG))
        mixed = (short + long) / 2
        weights = optimal_weights(mixed) if weighting == "optimal" else setting.weights_of(weighting, mixed)
        sizes = self.dim, 2 * round(self.dim / self.vocab_ratio / 2), round(self.dim / self.sample_ratio)
        parts = {"short": short, "long": long, "mixed": mixed}
        return {name: PooledSequences(*sizes, self.signal, weights, matrix) for name, matrix in parts.items()}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Mixtures of the two kinds, with two poolings."""
        shown = ("causal", "optimal")
        parts = []
        for weighting in shown:
            models = self.models(weighting)
            found = setting.draw_pairs(_quantities, setting.with_halves([models["mixed"]]), self.draws, rng, weighting)
            data: dict[str, Any] = {}
            for number, (name, meaning) in enumerate(QUANTITIES):
                data[name] = ("draw", found.plain[0, :, number], {"long_name": meaning})
                data[f"limit_{name}"] = ("draw", found.limit[0, :, number])
            theory = {
                "predicted_location": ("kind", [float(each.sample_spike().location) for each in models.values()]),
                "predicted_overlap": ("kind", [each.alignment().total for each in models.values()]),
            }
            parts.append(xr.Dataset(data | theory, coords={"kind": list(models)}))
        return xr.concat(parts, dim=xr.Variable("weighting", list(shown)))

    def statements(self, data: xr.Dataset) -> Claims:
        """The mean correlation, not that of one kind."""
        for weighting in data.weighting.values.tolist():
            one = data.sel(weighting=weighting)
            for name, meaning in QUANTITIES:
                predicted = one[f"predicted_{name}"]
                for rival, said in (("long", "as if all prefixes were long"), ("short", "as if all were short")):
                    if name == "overlap" and rival == "long":
                        continue
                    text = f"{weighting} weights, two kinds of prefixes: {meaning}, not {said}"
                    place = "recovery: Open problem (ii); ours"
                    against = said, predicted.sel(kind=rival)
                    yield Claim(text, place, one[f"limit_{name}"], predicted.sel(kind="mixed"), against)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        names = {"mixed": "mean of the correlations", "short": "short prefixes alone", "long": "long prefixes alone"}
        places = range(data.sizes["weighting"])
        for axes, (name, label) in zip(grid[0], setting.NAMES.items(), strict=True):
            mean_marks(axes, list(places), data[name], label="half of each kind")
            for kind, colour in zip(names, (COLOURS[1], COLOURS[2], COLOURS[3]), strict=True):
                theory = data[f"predicted_{name}"].sel(kind=kind)
                axes.scatter(list(places), theory, marker="_", s=400, color=colour, label=names[kind])
            axes.set(ylabel=label, xlim=(-0.5, len(places) - 0.5), ylim=(0, None))
            axes.set_xticks(list(places), [f"{each} weights" for each in data.weighting.values.tolist()])
        grid[0, 1].set_ylim(0, 1.03)
        shared_legend(figure, [grid[0, 0]], 4)
        setting.caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "signal", "draws")
        return figure


def _quantities(model: PooledSequences, rng: np.random.Generator) -> Real:
    """Largest eigenvalue and overlap of a draw, half of whose sequences have the short prefix."""
    signs = []
    for prefix, count in ((SHORT, model.samples // 2), (LONG, model.samples - model.samples // 2)):
        signs.append(draw_signs(prefix_correlation(LENGTH, prefix, setting.CORRELATION), count, rng))
    table = replace(model, samples=2).draw(rng)
    half = model.vocab // 2
    chosen = np.concatenate(signs)
    tokens = rng.integers(0, half, chosen.shape) + np.where(chosen > 0, 0, half)
    value, vector = setting.top(pool(table.table, tokens, model.weights))
    return np.array([value, (vector @ table.mean) ** 2 / model.signal**2])
