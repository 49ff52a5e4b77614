"""What a longer context does to the bulk and the gap, at a fixed head dimension (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.laws.finite_head import FiniteHeadLaw, log_coefficients
from bulkedge.progress import track
from bulkedge.spectra import spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Context(Study):
    """Second singular value of attention as the context grows to a million tokens: it stops falling, and the gap stays.

    Queries and keys are normalised. Once there are many more tokens than dimensions, the linear degree is of fixed
    rank, and ``s_2(A)`` tends to ``lambda_1/lambda_0``, about ``beta/sqrt(head_dim)``.
    """

    head_dim: int = parameter(Integers(8, 1024), "head dimension", 64)
    beta: float = parameter(Interval(0.1, 1.25), "inverse temperature", 1.0)
    largest: int = parameter(Integers(256, 20_000), "largest context that is simulated", 1024, paper=4096)
    draws: int = parameter(Integers(2, 20), "draws of each size", 3)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Edges by law up to 2**20 tokens, and by simulation as far as told."""
        tokens = 2 ** np.arange(7, 21)
        laws = [
            FiniteHeadLaw(self.beta, self.head_dim, int(size), qk_norm=True) for size in track(tokens.tolist(), "laws")
        ]
        second = np.full((len(tokens), self.draws), np.nan)
        for k in track(list(range(int(np.sum(tokens <= self.largest)))), "contexts"):
            model = SoftmaxAttention(int(tokens[k]), self.head_dim, self.beta, qk_norm=True)
            second[k] = [spectrum(model.sample(rng)).values[-2] for _ in range(self.draws)]
        logs = log_coefficients(self.head_dim, np.array([self.beta * np.sqrt(self.head_dim)]), 1)[:, 0]
        return xr.Dataset(
            {
                "edge": ("tokens", [np.sqrt(law.edge / size) for law, size in zip(laws, tokens, strict=True)]),
                "proportional": (
                    "tokens",
                    2 * np.sqrt(np.expm1(self.beta**2) / tokens),
                    {"long_name": "quarter circle"},
                ),
                "second": (("tokens", "draw"), second, {"long_name": "second singular value of A"}),
                "limit": ((), np.exp(logs[1] - logs[0])),
            },
            coords={"tokens": tokens},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The law where it can be simulated, and its limit."""
        last = int(np.sum(data.tokens <= self.largest)) - 1
        found = data.second.isel(tokens=last)
        error = standard_error(found)
        return [
            Claim(
                statement=f"second singular value at {int(data.tokens[last])} tokens",
                place="ours; theory/finite_head",
                predicted=float(data.edge[last]),
                measured=float(found.mean()),
                error=error,
                tolerance=4 * error + float(data.edge[last]) * self.head_dim ** (-2 / 3) / 2,
                reason="four standard errors; the largest of head_dim values lies about n^(-2/3) inside the edge",
            ),
            Claim(
                statement="edge at a million tokens over lambda_1/lambda_0",
                place="ours: the linear degree has rank head_dim, whatever the context",
                predicted=1.0,
                measured=float(data.edge[-1] / data.limit),
                error=0.0,
                tolerance=4 * (self.head_dim / float(data.tokens[-1])) ** 0.5,
                reason="the bulk of the linear degree has relative width 2 sqrt(head_dim/tokens) on either side",
            ),
        ]
