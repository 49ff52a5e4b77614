"""The mean of the table is a spike of its own, and can be mistaken for the signal (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Choice, Integers, Interval, parameter
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim
from bulkedge.studies.recovery.setting import WEIGHTINGS, average, correlations, leading, weights_of, with_signal

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

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both tables over the signal."""
        correlation = correlations()["prefix"]
        weights = weights_of(self.weighting, correlation)
        signal = np.linspace(self.strongest / self.signals, self.strongest, self.signals)
        parts = []
        for label, centered in CENTRED.items():
            model = PooledSequences(self.dim, self.vocab, self.samples, 1.0, weights, correlation, centered=centered)
            models = [with_signal(model, each) for each in signal]
            found = leading(models, self.draws, rng, label)
            mean, outranked = model.mean_spike(), np.array([each.mean_outranks() for each in models])
            parts.append(
                xr.Dataset(
                    {
                        "location": (("signal", "draw"), found[..., 0], {"long_name": "largest eigenvalue"}),
                        "overlap": (
                            ("signal", "draw"),
                            found[..., 1],
                            {"long_name": "squared overlap with the signal"},
                        ),
                        "signal_spike": ("signal", [each.sample_spike().location for each in models]),
                        "alignment": ("signal", [each.alignment().total for each in models]),
                        "mean_spike": ((), mean.location),
                        "outranked": ("signal", outranked),
                        "edge": ((), model.bulk().edge),
                    },
                    coords={"signal": signal},
                )
            )
        crossing = np.sqrt(model.vocab_ratio * (1 / model.alpha - 1))
        fine = np.linspace(0.02, self.strongest, 30)
        curve = [with_signal(model, each) for each in fine]
        return (
            xr.concat(parts, dim=xr.Variable("table", list(CENTRED)))
            .assign(
                crossing=((), crossing, {"long_name": "signal from which it outranks the mean"}),
                curve_location=("fine_signal", [each.sample_spike().location for each in curve]),
                curve_overlap=("fine_signal", [each.alignment().total for each in curve]),
            )
            .assign_coords(fine_signal=fine)
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The spike of the mean, and that centring takes it away."""
        raw, centred = data.sel(table="as drawn"), data.sel(table="centred")
        weak = data.signal < 0.75 * data.crossing
        measured, error = average(raw.location[weak])
        lost, lost_error = average(raw.overlap[weak])
        strong = data.signal > 1.35 * data.crossing
        kept, kept_error = average(raw.overlap[strong])
        clear = average((centred.overlap - centred.alignment)[data.signal > data.crossing])
        return [
            Claim(
                statement="as drawn, weak signal: the largest eigenvalue is that of the mean",
                place="ours; THEORY section 2",
                predicted=float(raw.mean_spike),
                measured=measured,
                error=error,
                tolerance=4 * error + 10 / self.dim * float(raw.mean_spike),
                reason="four standard errors, and a few 1/d; the signal's spike pushes it up as it comes near",
            ),
            Claim(
                statement="as drawn, weak signal: squared overlap of the top eigenvector with the signal",
                place="ours; THEORY section 2",
                predicted=0.0,
                measured=lost,
                error=lost_error,
                tolerance=4 * lost_error + 10 / self.dim,
                reason="four standard errors, and order 1/d",
            ),
            Claim(
                statement="as drawn, strong signal: squared overlap",
                place="ours; THEORY section 2",
                predicted=float(raw.alignment[strong].mean()),
                measured=kept,
                error=kept_error,
                tolerance=4 * kept_error + 10 / self.dim,
                reason="four standard errors, and mixing with the mean's eigenvector, of order 1/d",
            ),
            Claim(
                statement="centred: squared overlap less its prediction, signals beyond the crossing",
                place="recovery, equation 8, with the noise of the class means",
                predicted=0.0,
                measured=clear[0],
                error=clear[1],
                tolerance=4 * clear[1] + 5 / self.dim,
                reason="four standard errors, and order 1/d",
            ),
        ]
