"""Where Theorem 1 ends: rows of a single token, which are counted and not mixed (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claims, Real, Study, dataset, follows
from bulkedge.laws import ProductLaw
from bulkedge.plots.style import histogram, line, panels
from bulkedge.support.domains import Integers, parameter

BINS, POINTS, LEVELS = 40, 300, np.linspace(0.05, 0.95, 37)


@dataclass(frozen=True)
class RecoveryRepetition(Study):
    """If each row is a single token, the free product of Theorem 1 fails; the law of the counts of tokens holds.

    With all weight on one position a row is a row of the table, and one that is drawn three times is a sample of
    weight three. The bulk is then a free sum over counts. With weight on many positions the difference goes, as the
    square of the number of positions that count.
    """

    dim: int = parameter(*setting.DIM, 160, ours=600)
    vocab: int = parameter(Integers(40, 10_000), "rows of the table, even", 320, ours=1200)
    samples: int = parameter(Integers(40, 10_000), "sequences", 160, ours=600)
    draws: int = parameter(Integers(4, 1000), "draws", 30, ours=30)
    small = {"dim": 80, "vocab": 160, "samples": 80}
    caption = """Eigenvalues of the covariance of rows that are a single token each, with the law of token
    counts and the free product. The bars should follow the solid line; near zero and at the edge the dotted one
    misses them."""

    def model(self) -> PooledSequences:
        """The ensemble: one position, no signal, exact class means."""
        return PooledSequences(self.dim, self.vocab, self.samples, 0.0, np.ones(1), np.eye(1), "additive")

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Empirical distribution functions at quantiles of the law of counts."""
        model = self.model()
        law = model.bulk()
        free = ProductLaw((model.vocab_ratio, model.sample_ratio))
        least = law.atoms[0][1] if law.atoms else 0.0
        levels = least + (1 - least) * LEVELS
        places, values = law.ppf(levels), []

        def below(drawn: PooledSequences, rng: np.random.Generator) -> Real:
            found = drawn.spectrum(rng).values
            if drawn is model:
                values.append(found)
            return np.searchsorted(found, places, side="right") / drawn.dim

        drawn = setting.draw_pairs(below, setting.with_halves([model]), self.draws, rng, "draws")
        edge = max(law.edge, free.edge)
        bins, x = np.linspace(0.02 * edge, edge, BINS + 1), np.linspace(0.02 * edge, edge, POINTS)
        return dataset(
            simulation=("bin", np.histogram(values, bins)[0] / np.diff(bins) / np.size(values)),
            bin_edge=("end", bins),
            x=("point", x),
            theory=("point", law.pdf(x)),
            rival_theory=("point", free.pdf(x)),
            below=(("draw", "level"), drawn.limit[0]),
            rival_level=("level", free.cdf(places)),
            coords={"level": levels},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """The law of counts, not the free product."""
        text = "one position: share of the free product in the bulk, the law of counted tokens being zero"
        rival = "Theorem 1, whatever the weights", data.rival_level
        yield follows(text, "recovery: Theorem 1; ours", data.below, data.level, rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 1, width=4.4, height=2.6)
        axes = grid[0, 0]
        histogram(axes, data.bin_edge, data.simulation, label="simulation")
        line(axes, data.x, data.theory, label="counted tokens")
        line(axes, data.x, data.rival_theory, label="Theorem 1", **setting.RIVAL)
        axes.set(xlabel=r"eigenvalue of $Y^{\top}Y/N$", ylabel="density", ylim=(0, 1.1 * float(data.simulation.max())))
        axes.legend()
        setting.caption(figure, self, "dim", "vocab", "samples", "draws")
        return figure
