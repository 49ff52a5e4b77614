"""Figure 4: alignment over signal strength, for three poolings and two correlation models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Integers, parameter
from bulkedge.ensembles.pooled import TABLE, PooledSequences, Table
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, average
from bulkedge.studies.recovery.setting import (
    WEIGHTINGS,
    Predictions,
    correlations,
    leading,
    weights_of,
)

CLEAR = 1.5
"""Signals from so many thresholds on, beyond which finite-size effects are of order 1/d."""


@dataclass(frozen=True)
class Alignment(Study):
    """Squared overlap of the top eigenvector with the signal: optimal weights find it first, wherever the signal is."""

    dim: int = parameter(Integers(50, 5000), "dimension of the embeddings", 150, paper=600)
    vocab: int = parameter(Integers(50, 100_000), "rows of the table, even", 300, paper=1200)
    samples: int = parameter(Integers(50, 100_000), "sequences", 450, paper=1800)
    signals: int = parameter(Integers(4, 100), "signal strengths", 8, paper=20)
    table: Table = parameter(TABLE, "class means of the table", "finite")
    draws: int = parameter(Integers(2, 1000), "draws of each", 6, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Simulate each model with each weighting."""
        signal, fine = np.linspace(0.2, 3.0, self.signals), np.linspace(0.02, 3.0, 200)
        models = {
            (name, weighting): PooledSequences(
                self.dim, self.vocab, self.samples, 1.0, weights_of(weighting, matrix), matrix, self.table
            )
            for name, matrix in correlations().items()
            for weighting in WEIGHTINGS
        }
        found = [
            leading([replace(model, signal=each) for each in signal], self.draws, rng, " ".join(key))[..., 1]
            for key, model in models.items()
        ]
        shape = len(correlations()), len(WEIGHTINGS)
        dims = "model", "weighting"
        return xr.Dataset(
            {
                "measured": ((*dims, "signal", "draw"), np.reshape(found, (*shape, self.signals, self.draws))),
                "predicted": ((*dims, "signal"), self._curves(models, signal)),
                "curve": ((*dims, "fine_signal"), self._curves(models, fine)),
                "threshold": (dims, np.reshape([each.threshold().sample for each in models.values()], shape)),
                "snr": (dims, np.reshape([each.alpha / each.kappa for each in models.values()], shape)),
            },
            coords={
                "model": list(correlations()),
                "weighting": list(WEIGHTINGS),
                "signal": signal,
                "fine_signal": fine,
            },
        )

    def _curves(self, models: dict[tuple[str, str], PooledSequences], signal: Real) -> Real:
        curves = [
            Predictions(each.alpha / each.kappa, each.sample_ratio, self.table).alignment(
                signal, np.array(each.vocab_ratio)
            )
            for each in models.values()
        ]
        return np.reshape(curves, (len(correlations()), len(WEIGHTINGS), len(signal)))

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Alignment well above the thresholds, and the order of the weightings."""
        claims = []
        for name in data.model.values.tolist():
            for weighting in WEIGHTINGS:
                one = data.sel(model=name, weighting=weighting)
                clear = one.where(one.signal > CLEAR * max(float(one.threshold), 0.3), drop=True)
                if not clear.sizes["signal"]:
                    continue
                measured, error = average(clear.measured)
                claims.append(
                    Claim(
                        statement=f"{name}, {weighting} weights: mean alignment beyond {CLEAR} thresholds",
                        place="recovery, equation 8 and Figure 4, with the noise of the class means",
                        predicted=float(clear.predicted.mean()),
                        measured=measured,
                        error=error,
                        tolerance=4 * error + 3 / self.dim,
                        reason="four standard errors, and a few 1/d at finite size",
                    )
                )
        best = data.measured.mean(("signal", "draw"))
        for name, others in (("prefix", ("causal", "mean")), ("spiked", ("mean", "causal"))):
            others_best = max(float(best.sel(model=name, weighting=each)) for each in others)
            claims.append(
                Claim(
                    statement=f"{name}: mean alignment of optimal weights above that of the others",
                    place="recovery, Theorem 5 and Figure 4",
                    predicted=others_best,
                    measured=float(best.sel(model=name, weighting="optimal")),
                    error=average(data.measured.sel(model=name, weighting="optimal"))[1],
                    tolerance=0.0,
                    reason="optimal weights have the largest alpha/kappa",
                    relation=">=",
                )
            )
        return claims
