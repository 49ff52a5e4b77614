"""The mean of the table is a spike of its own, and can be mistaken for the signal (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from bulkedge.domains import Choice, Integers, Interval, parameter
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, average
from bulkedge.studies.recovery.setting import WEIGHTINGS, correlations, leading, weights_of

CENTRED = {"as drawn": False, "centred": True}


@dataclass(frozen=True)
class MeanSpike(Study):
    """Largest eigenvalue and alignment with and without centring the table.

    Not centred, the table has a mean of squared length d/V, which every pooled row carries whole while of the signal
    only alpha is kept: until the signal is strong the top eigenvector is that mean, and tells nothing.
    """

    dim: int = parameter(Integers(50, 5000), "dimension of the embeddings", 150, paper=600)
    vocab: int = parameter(Integers(50, 100_000), "rows of the table, even", 300, paper=1200)
    samples: int = parameter(Integers(50, 100_000), "sequences", 450, paper=1800)
    weighting: str = parameter(Choice(WEIGHTINGS), "pooling", "mean")
    strongest: float = parameter(Interval(0.5, 10), "strongest signal", 3.2)
    signals: int = parameter(Integers(4, 100), "signal strengths", 9, paper=20)
    draws: int = parameter(Integers(2, 1000), "draws of each", 10, paper=20)

    def model(self) -> PooledSequences:
        """The ensemble, not centred, at unit signal."""
        correlation = correlations()["prefix"]
        weights = weights_of(self.weighting, correlation)
        return PooledSequences(self.dim, self.vocab, self.samples, 1.0, weights, correlation, centered=False)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both tables over the signal; the signal's own spike is the same in both."""
        signal = np.linspace(self.strongest / self.signals, self.strongest, self.signals)
        raw = self.model()
        models, curve = (
            [replace(raw, signal=each) for each in at] for at in (signal, np.linspace(0.02, self.strongest, 24))
        )
        found = np.array(
            [
                leading([replace(each, centered=centered) for each in models], self.draws, rng, label)
                for label, centered in CENTRED.items()
            ]
        )
        dims = "table", "signal", "draw"
        return xr.Dataset(
            {
                "location": (dims, found[..., 0], {"long_name": "largest eigenvalue"}),
                "overlap": (dims, found[..., 1], {"long_name": "squared overlap with the signal"}),
                "alignment": ("signal", [each.alignment().total for each in models]),
                "curve_location": ("fine_signal", [each.sample_spike().location for each in curve]),
                "curve_overlap": ("fine_signal", [each.alignment().total for each in curve]),
                "mean_spike": ((), raw.mean_spike().location),
                "crossing": ((), np.sqrt(raw.vocab_ratio * (1 / raw.alpha - 1))),
            },
            coords={"table": list(CENTRED), "signal": signal, "fine_signal": [each.signal for each in curve]},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The spike of the mean, and that centring takes it away."""
        clear = (data.sel(table="centred").overlap - data.sel(table="centred").alignment)[data.signal > data.crossing]
        measured, error = average(clear)
        return [
            *self._as_drawn(data.sel(table="as drawn")),
            Claim(
                statement="centred: squared overlap less its prediction, signals beyond the crossing",
                place="recovery, equation 8, with the noise of the class means",
                predicted=0.0,
                measured=measured,
                error=error,
                tolerance=4 * error + 3 / self.dim,
                reason="four standard errors, and order 1/d",
            ),
        ]

    def _as_drawn(self, data: xr.Dataset) -> list[Claim]:
        weak, strong = data.signal < 0.75 * data.crossing, data.signal > 1.35 * data.crossing
        location, overlap = average(data.location[weak]), average(data.overlap[weak])
        kept = average(data.overlap[strong])
        return [
            Claim(
                statement="as drawn, weak signal: the largest eigenvalue is that of the mean",
                place="ours; theory/recovery",
                predicted=float(data.mean_spike),
                measured=location[0],
                error=location[1],
                tolerance=4 * location[1] + 5 / self.dim * float(data.mean_spike),
                reason="four standard errors, and a few 1/d; the signal's spike pushes it up as it comes near",
            ),
            Claim(
                statement="as drawn, weak signal: squared overlap of the top eigenvector with the signal",
                place="ours; theory/recovery",
                predicted=0.0,
                measured=overlap[0],
                error=overlap[1],
                tolerance=4 * overlap[1] + 5 / self.dim,
                reason="four standard errors, and order 1/d",
            ),
            Claim(
                statement="as drawn, strong signal: squared overlap",
                place="ours; theory/recovery",
                predicted=float(data.alignment[strong].mean()),
                measured=kept[0],
                error=kept[1],
                tolerance=4 * kept[1] + 5 / self.dim,
                reason="four standard errors, and mixing with the mean's eigenvector, of order 1/d",
            ),
        ]
