"""Figure 3: the bulk and the outlier, for two poolings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.comparison import compare
from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.pooled import TABLE, PooledSequences, Table
from bulkedge.progress import track
from bulkedge.spectra import Spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error
from bulkedge.studies.recovery.setting import correlations, weights_of

BINS, POINTS = 60, 400
SHOWN = ("mean", "causal")


@dataclass(frozen=True)
class Bulk(Study):
    """Eigenvalues of the covariance of pooled sequences: causal weights widen the bulk and part it from the outlier."""

    dim: int = parameter(Integers(50, 10_000), "dimension of the embeddings", 300, paper=1000)
    vocab: int = parameter(Integers(50, 100_000), "rows of the table, even", 600, paper=2000)
    samples: int = parameter(Integers(50, 100_000), "sequences", 900, paper=3000)
    signal: float = parameter(Interval(0.1, 10), "length of the signal", 1.3)
    table: Table = parameter(TABLE, "class means of the table", "finite")
    draws: int = parameter(Integers(2, 1000), "draws", 8, paper=10)

    def model(self, weighting: str) -> PooledSequences:
        """The ensemble of the study, pooled with these weights.

        Parameters
        ----------
        weighting : {"mean", "causal", "optimal"}
            How sequences are pooled.

        Returns
        -------
        PooledSequences
            Of the study's sizes, with the prefix correlation.
        """
        correlation = correlations()["prefix"]
        weights = weights_of(weighting, correlation)
        return PooledSequences(self.dim, self.vocab, self.samples, self.signal, weights, correlation, self.table)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Eigenvalues of all draws."""
        parts = [self._measure(self.model(weighting), weighting, rng) for weighting in SHOWN]
        return xr.concat(parts, dim=xr.Variable("weighting", list(SHOWN)))

    def _measure(self, model: PooledSequences, label: str, rng: np.random.Generator) -> xr.Dataset:
        law, spike = model.bulk(), model.sample_spike()
        values = np.array([model.spectrum(rng).values for _ in track(range(self.draws), label)])
        bins = np.linspace(0, 1.02 * law.edge, BINS + 1)
        x = np.linspace(0, 1.02 * law.edge, POINTS)[1:]
        distance = [compare(Spectrum.of(row[:-1], "eigenvalues"), law).ks for row in values]
        return xr.Dataset(
            {
                "simulation": ("bin", np.histogram(values, bins)[0] / np.diff(bins) / values.size),
                "bin_edge": ("end", bins),
                "x": ("point", x),
                "theory": ("point", law.pdf(x)),
                "kolmogorov": ("draw", distance, {"long_name": "Kolmogorov distance of the bulk to the law"}),
                "largest": ("draw", values[:, -1], {"long_name": "largest eigenvalue"}),
                "edge": ((), law.edge),
                "outlier": ((), spike.location, {"long_name": "predicted outlier"}),
            }
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Bulk and outlier for both, and which is further apart."""
        claims = []
        for weighting in SHOWN:
            one = data.sel(weighting=weighting)
            error, predicted = standard_error(one.largest), float(one.outlier)
            claims += [
                Claim(
                    statement=f"{weighting} weights: Kolmogorov distance of the bulk to the law",
                    place="recovery, Theorem 1 and Figure 3",
                    predicted=8 / self.dim,
                    measured=float(one.kolmogorov.mean()),
                    error=standard_error(one.kolmogorov),
                    tolerance=0.0,
                    reason="8/d for a Gaussian model",
                    relation="<=",
                ),
                Claim(
                    statement=f"{weighting} weights: outlier",
                    place="recovery, Theorem 3 and Figure 3, with the noise of the class means",
                    predicted=predicted,
                    measured=float(one.largest.mean()),
                    error=error,
                    tolerance=4 * error + 3 * predicted / self.dim,
                    reason="four standard errors, and a relative shift of a few 1/d",
                ),
            ]
        parted = data.largest.mean("draw") / data.edge
        claims.append(
            Claim(
                statement="outlier over edge, causal over mean weights",
                place="recovery, Figure 3",
                predicted=1.0,
                measured=float(parted.sel(weighting="causal") / parted.sel(weighting="mean")),
                error=standard_error(data.largest.sel(weighting="causal")) / float(data.edge[1]),
                tolerance=0.0,
                reason="the paper: causal weights separate better",
                relation=">=",
            )
        )
        return claims
