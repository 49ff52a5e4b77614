"""Figure 1: from attention to its linear model, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.comparison import compare, separation
from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention, Stages
from bulkedge.estimates import Estimate
from bulkedge.laws import AttentionLaw, MarchenkoPastur
from bulkedge.laws.units import Unit
from bulkedge.progress import track
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, Rival

BINS, POINTS = 50, 400
REMOVED = 3
"""Largest values left out of the bulk, as in the paper."""


@dataclass(frozen=True)
class Bulk(Study):
    """Six matrices of the proof, from attention to the linear model: their squared singular values nearly coincide."""

    tokens: int = parameter(Integers(100, 10_000), "tokens", 500, paper=1000)
    head_dim: int = parameter(Integers(16, 10_000), "head dimension", 500, paper=1000)
    beta: float = parameter(Interval(0.05, 2), "inverse temperature", 1.0)
    draws: int = parameter(Integers(1, 1000), "draws", 2, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw the six matrices, and compare each with the law."""
        model = SoftmaxAttention(self.tokens, self.head_dim, self.beta)
        law = AttentionLaw(self.beta, self.head_dim / self.tokens)
        values = np.array(
            [
                [spectrum(matrix).squared().values for matrix in model.stages(rng)]
                for _ in track(range(self.draws), "draws")
            ]
        )
        bulk = values[..., :-REMOVED]
        bins = np.linspace(0, law.edge, BINS + 1)
        x = np.linspace(0, 1.05 * law.edge, POINTS)[1:]
        levels = (np.arange(self.tokens) + 0.5) / self.tokens
        density = [
            np.histogram(bulk[:, k], bins)[0] / np.diff(bins) / values[:, k].size for k in range(len(Stages._fields))
        ]
        rival = MarchenkoPastur(1.0, law.mean())
        distances = [
            [[compare(Spectrum.of(row, Unit.SQUARED), each).ks for each in (law, rival)] for row in stages]
            for stages in bulk
        ]
        return xr.Dataset(
            {
                "sorted": (("stage", "rank"), values.mean(axis=0)[:, ::-1], {"long_name": "squared singular value"}),
                "quantile": ("rank", law.ppf(levels)[::-1], {"long_name": "quantile of the law"}),
                "simulation": (("stage", "bin"), density),
                "bin_edge": ("end", bins),
                "x": ("point", x),
                "theory": ("point", law.pdf(x)),
                "rival": ("point", rival.pdf(x)),
                "kolmogorov": (("draw", "stage", "law"), distances, {"long_name": "Kolmogorov distance to the law"}),
                "separation": ((), separation(law, rival), {"long_name": "Kolmogorov distance of the two laws"}),
            },
            coords={"stage": list(Stages._fields), "law": ["theory", "rival"]},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Each stage follows the law."""
        size = min(self.tokens, self.head_dim)
        return [
            Claim(
                statement=f"{stage.replace('_', ' ')}: Kolmogorov distance of the bulk to the law",
                place="equivalence: Theorem 3.2, Figure 1",
                measured=Estimate.of(data.kolmogorov.sel(stage=stage, law="theory")),
                predicted=0.0,
                rival=Rival("Marchenko-Pastur", float(data.separation)),
                finite_size=(8 if stage.endswith("linear") else 30) / size,
                reason="8/n for a Gaussian model; 30/n with heavy tails, twice what i.i.d. ones were measured to need",
                relation="<=",
            )
            for stage in data.stage.values.tolist()
        ]
