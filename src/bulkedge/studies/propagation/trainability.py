"""Which score scales carry a signal: between rank collapse and entropy collapse (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.progress import track
from bulkedge.propagation import trainability as theory
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

FINE_BETAS = tuple(k / 2 for k in range(1, 11))
FINE_SKIPS = tuple(k / 10 for k in range(10))
PAIR = 2
"""Draws with key-query attention at each point."""
CLEAR = 4
"""Standard errors from the threshold beyond which a verdict is clear of fluctuations; a tenth is asked for besides."""


@dataclass(frozen=True)
class Trainability(Study):
    """Score scale, skip and depth: where tokens stay distinct, and where attention freezes on one token.

    The predicted share of the signal that tokens do not have in common, and the predicted entropy, stand beside
    simulation at every point of the map: attention with independent scores, for which the theory is, and key-query
    attention with LayerNorm.
    """

    tokens: int = parameter(Integers(16, 500), "number of tokens T", 40, paper=100)
    betas: tuple[float, ...] = parameter(
        Each(Interval(0.05, 8)), "score scales", (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5), paper=FINE_BETAS
    )
    skips: tuple[float, ...] = parameter(
        Each(Interval(0, 0.999)), "weights of the skip connection", (0.0, 0.3, 0.5, 0.7, 0.85), paper=FINE_SKIPS
    )
    depths: tuple[int, ...] = parameter(Each(Integers(1, 64)), "depths, increasing", (2, 6, 12), paper=(3, 12, 48))
    draws: int = parameter(Integers(2, 100), "draws at each point", 6, paper=4)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Theory and simulation over the map."""
        shape = (len(self.skips), len(self.betas), len(self.depths))
        predicted, verdict = np.empty(shape), np.empty(shape, dtype=int)
        found, entropy = np.empty((*shape, self.draws)), np.empty((*shape[:2], self.draws))
        key_query = np.empty((*shape, PAIR))
        names = ["rank collapse", "inside", "entropy collapse"]
        for i, skip in enumerate(track(list(self.skips), "skips")):
            for j, beta in enumerate(self.betas):
                for k, depth in enumerate(self.depths):
                    design = theory.Trainability(self.tokens, depth, skip)
                    predicted[i, j, k] = design.distinct_share(beta)
                    verdict[i, j, k] = names.index(design.verdict(beta))
                for draw in range(self.draws):
                    found[i, j, :, draw], entropy[i, j, draw] = self._simulate(skip, beta, rng)
                for draw in range(PAIR):
                    options: dict[str, Any] = {"attention": "key-query", "layer_norm": True}
                    key_query[i, j, :, draw], _ = self._simulate(skip, beta, rng, **options)
        dims = ("skip", "beta", "depth")
        rows = [theory.softmax_of_gaussians(beta, self.tokens).entropy for beta in self.betas]
        return xr.Dataset(
            {
                "predicted": (dims, predicted, {"long_name": "share of the signal that tokens do not have in common"}),
                "verdict": (dims, verdict, {"long_name": "0 rank collapse, 1 inside, 2 entropy collapse"}),
                "share": ((*dims, "draw"), found),
                "key_query": (
                    (*dims, "pair"),
                    key_query,
                    {"long_name": "share with key-query attention and LayerNorm"},
                ),
                "entropy": (("skip", "beta", "draw"), entropy, {"long_name": "mean entropy of a row"}),
                "predicted_entropy": ("beta", rows),
                "freezing": ((), theory.freezing_beta(self.tokens), {"long_name": "sqrt(2 log T)"}),
            },
            coords={"skip": list(self.skips), "beta": list(self.betas), "depth": list(self.depths)},
        )

    def _simulate(
        self, skip: float, beta: float, rng: np.random.Generator, **options: Any
    ) -> tuple[list[float], float]:
        stack = AttentionStack(
            self.depths[-1],
            self.tokens,
            2 * self.tokens,
            skip=skip,
            value_variance=1 - skip**2,
            variance=np.expm1(beta**2),
            **options,
        )
        shares, entropies = [], []
        for depth, layer in enumerate(stack.layers(rng), start=1):
            weights = layer.attention
            entropies.append(-np.sum(weights * np.log(np.maximum(weights, 1e-300))) / self.tokens)
            if depth in self.depths:
                shares.append(layer.distinct_share)
        return shares, float(np.mean(entropies))

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The share, the entropy, and the verdicts."""
        return [*self._shares(data), self._entropy(data), self._verdicts(data)]

    def _shares(self, data: xr.Dataset) -> list[Claim]:
        miss = data.share.mean("draw") - data.predicted
        error = float(np.sqrt(np.mean(data.share.var("draw", ddof=1) / self.draws)))
        return [
            Claim(
                statement="distinct share, simulated less predicted: root mean square over the map",
                place="ours",
                predicted=0.0,
                measured=float(np.sqrt(np.mean(miss**2))),
                error=error,
                tolerance=1.5 * error + self.depths[-1] / (8 * 2 * self.tokens),
                reason="the errors of the points, and L/(8 d), the bias of a ratio of fluctuating powers",
                relation="<=",
            ),
            Claim(
                statement="the same with key-query attention and LayerNorm",
                place="ours",
                predicted=0.0,
                measured=float(np.sqrt(np.mean((data.key_query.mean("pair") - data.predicted) ** 2))),
                error=error * (self.draws / PAIR) ** 0.5,
                tolerance=0.1,
                reason="the theory is for independent scores; those of tokens that grow alike are not",
                relation="<=",
            ),
        ]

    def _entropy(self, data: xr.Dataset) -> Claim:
        miss = data.entropy.mean(("draw", "skip")) - data.predicted_entropy
        error = max(standard_error(data.entropy.sel(beta=beta)) for beta in self.betas)
        return Claim(
            statement="entropy of a row, simulated less predicted: largest over score scales",
            place="random energy model (Derrida 1981), at finite T",
            predicted=0.0,
            measured=float(np.abs(miss).max()),
            error=error,
            tolerance=5 * error,
            reason="five standard errors, the largest of several",
            relation="<=",
        )

    def _verdicts(self, data: xr.Dataset) -> Claim:
        spread = data.share.std("draw", ddof=1) / self.draws**0.5
        clear = np.abs(data.predicted - 0.5) > CLEAR * spread + 0.1
        agree = ((data.share.mean("draw") > 0.5) == (data.predicted > 0.5)).where(clear).mean()
        return Claim(
            statement=f"share of the verdicts that simulation confirms, {CLEAR} errors + 0.1 off the threshold",
            place="ours",
            predicted=1.0,
            measured=float(agree),
            error=0.0,
            tolerance=0.0,
            reason="beyond the fluctuations every verdict should be right",
        )
