"""Figure 2: where the signal is recovered, over its strength and the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.pooled import TABLE, PooledSequences, Table
from bulkedge.recovery.correlations import spiked_correlation
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, average
from bulkedge.studies.recovery.setting import LENGTH, Predictions, leading, weights_of

SHOWN = ("mean", "optimal")
SUPPORT, STRENGTH = 3, 6.0
PROBES = ((0.6, 0.25), (1.5, 0.5), (2.5, 1.0), (3.0, 1.8))
"""Signals and vocabulary ratios at which the map is checked by simulation."""


@dataclass(frozen=True)
class PhaseDiagram(Study):
    """Alignment with the signal over signal strength and vocabulary ratio, for mean and for optimal weights.

    Signs have the spiked correlation of the paper, on the first three positions. Dashed: where the outlier of the
    sample leaves the bulk.
    """

    resolution: int = parameter(Integers(10, 2000), "points along each axis", 200)
    sample_ratio: float = parameter(Interval(0.01, 10), "dimension over samples", 1 / 3)
    table: Table = parameter(TABLE, "class means of the table", "finite")
    dim: int = parameter(Integers(50, 5000), "dimension of the simulations", 150, paper=600)
    draws: int = parameter(Integers(2, 1000), "draws of each simulated point", 12, paper=20)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """The two maps with their boundaries, and simulations at a few points."""
        signal = np.linspace(0.02, 3.5, self.resolution)
        ratio = np.linspace(0.02, 2.0, self.resolution)
        correlation = spiked_correlation(LENGTH, np.arange(LENGTH) < SUPPORT, STRENGTH)
        parts = []
        for weighting in SHOWN:
            weights = weights_of(weighting, correlation)
            snr = float(weights @ correlation @ weights / (weights @ weights))
            predicted = Predictions(snr, self.sample_ratio, self.table)
            models = [self._model(weights, correlation, *probe) for probe in PROBES]
            found = leading(models, self.draws, rng, weighting)[..., 1]
            parts.append(
                xr.Dataset(
                    {
                        "alignment": (("vocab_ratio", "signal"), predicted.alignment(signal[None], ratio[:, None])),
                        "boundary": (
                            "vocab_ratio",
                            predicted.threshold(ratio),
                            {"long_name": "threshold of the signal"},
                        ),
                        "measured": (("probe", "draw"), found, {"long_name": "simulated alignment"}),
                        "predicted": ("probe", [each.alignment().total for each in models]),
                        "snr": ((), snr, {"long_name": "alpha/kappa"}),
                    },
                    coords={"signal": signal, "vocab_ratio": ratio},
                )
            )
        places = {"probe_signal": ("probe", [a for a, _ in PROBES]), "probe_ratio": ("probe", [b for _, b in PROBES])}
        return xr.concat(parts, dim=xr.Variable("weighting", list(SHOWN))).assign_coords(places)

    def _model(self, weights: Real, correlation: Real, signal: float, ratio: float) -> PooledSequences:
        vocab, samples = 2 * round(self.dim / ratio / 2), round(self.dim / self.sample_ratio)
        return PooledSequences(self.dim, vocab, samples, signal, weights, correlation, self.table)

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The maps where they were simulated, and which recovers more."""
        claims = []
        for weighting in SHOWN:
            one = data.sel(weighting=weighting)
            measured, error = average(one.measured)
            claims.append(
                Claim(
                    statement=f"{weighting} weights: mean alignment at the simulated points",
                    place="recovery, equation 8 and Figure 2, with the noise of the class means",
                    predicted=float(one.predicted.mean()),
                    measured=measured,
                    error=error,
                    tolerance=4 * error + 5 / self.dim,
                    reason="four standard errors, and a few 1/d at finite size",
                )
            )
        return claims + self._gain(data)

    def _gain(self, data: xr.Dataset) -> list[Claim]:
        """What optimal weights recover beyond mean ones."""
        share = (data.alignment > 0).mean(("signal", "vocab_ratio"))
        rise = data.boundary.sel(weighting="optimal") - data.boundary.sel(weighting="mean")
        return [
            Claim(
                statement="largest rise of the threshold from mean to optimal weights, over the map",
                place="recovery, section 4: the frontier moves to weaker signals at every vocabulary ratio",
                predicted=0.0,
                measured=float(rise.max()),
                error=0.0,
                tolerance=0.0,
                reason="thresholds fall as alpha/kappa grows",
                relation="<=",
            ),
            Claim(
                statement="recoverable part of the map, optimal over mean weights",
                place="recovery, Figure 2",
                predicted=1.0,
                measured=float(share.sel(weighting="optimal") / share.sel(weighting="mean")),
                error=0.0,
                tolerance=0.0,
                reason="optimal weights have the larger alpha/kappa",
                relation=">=",
            ),
        ]
