"""Lemma 1: causal self-attention with scores scaled by 1/d pools with the harmonic weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.progress import track
from bulkedge.recovery.weights import causal_weights, mean_weights, self_attention_spread, self_attention_weights
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error
from bulkedge.studies.recovery.setting import LENGTH, correlations

BLOCK = 200


@dataclass(frozen=True)
class Harmonic(Study):
    """Weights of causal self-attention on drawn sequences, and their distance to the harmonic weights as d grows.

    The distance falls as d**(-1/2), as the lemma has it; a good part of its square is due to tokens that occur twice
    in a sequence, whose score does not vanish.
    """

    dims: tuple[int, ...] = parameter(
        Each(Integers(10, 5000)), "dimensions", (50, 100, 200, 400), paper=(100, 200, 400, 800, 1600)
    )
    vocab_ratio: float = parameter(Interval(0.01, 2), "dimension over vocabulary", 0.5)
    signal: float = parameter(Interval(0, 10), "length of the signal", 1.0)
    temperature: float = parameter(Interval(0.01, 3), "factor tau of the scores", 1.0)
    sequences: int = parameter(Integers(100, 10**6), "sequences", 4000, paper=20_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Weights and squared distances at each dimension."""
        correlation, limit = correlations()["prefix"], causal_weights(LENGTH)
        weights, squares, distinct, predicted = [], [], [], []
        for dim in track(self.dims, "dimensions"):
            vocab = 2 * round(dim / self.vocab_ratio / 2)
            found, apart = self._weights(dim, vocab, rng)
            distance = np.sum((found - limit) ** 2, axis=1)
            weights.append(found.mean(axis=0))
            squares.append((distance.mean(), standard_error(distance)))
            distinct.append((distance[apart].mean(), standard_error(distance[apart])))
            predicted.append(
                [self_attention_spread(correlation, dim, size, self.temperature) ** 2 for size in (vocab, 10**12)]
            )
        return xr.Dataset(
            {
                "weights": (("dim", "position"), np.array(weights), {"long_name": "mean weight"}),
                "limit": ("position", limit, {"long_name": "harmonic weight"}),
                "square": (("dim", "tokens"), np.stack([squares, distinct], axis=1)[..., 0]),
                "error": (("dim", "tokens"), np.stack([squares, distinct], axis=1)[..., 1]),
                "predicted": (("dim", "tokens"), np.array(predicted), {"long_name": "mean squared distance"}),
            },
            coords={"dim": list(self.dims), "position": np.arange(1, LENGTH + 1), "tokens": ["all", "distinct"]},
        )

    def _weights(self, dim: int, vocab: int, rng: np.random.Generator) -> tuple[Real, Real]:
        """Weights of each sequence, and whether its tokens are all distinct."""
        model = PooledSequences(dim, vocab, self.sequences, self.signal, mean_weights(LENGTH), correlations()["prefix"])
        draw = model.draw(rng)
        blocks = np.array_split(draw.tokens, max(1, self.sequences // BLOCK))
        found = np.concatenate([self_attention_weights(draw.table[block], self.temperature) for block in blocks])
        return found, np.all(np.diff(np.sort(draw.tokens, axis=1), axis=1) > 0, axis=1)

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The rate, and the distance at the largest dimension."""
        slope = np.polyfit(np.log(data.dim), np.log(data.square.sel(tokens="all")) / 2, 1)[0]
        largest = data.isel(dim=-1)
        spread = float((data.error / data.square).sel(tokens="all").max())
        claims = [
            Claim(
                statement="slope of log distance over log d",
                place="recovery, Lemma 1 and Appendix G",
                predicted=-0.5,
                measured=float(slope),
                error=spread / float(np.log(self.dims[-1] / self.dims[0])),
                tolerance=4 * spread / float(np.log(self.dims[-1] / self.dims[0])) + 1 / self.dims[0],
                reason="four standard errors of the ends, and the next order, 1/d at the smallest",
            )
        ]
        for tokens, place in (("distinct", "recovery, Appendix G"), ("all", "ours: tokens that occur twice count")):
            one = largest.sel(tokens=tokens)
            claims.append(
                Claim(
                    statement=f"mean squared distance at the largest d, {tokens} tokens",
                    place=place,
                    predicted=float(one.predicted),
                    measured=float(one.square),
                    error=float(one.error),
                    tolerance=4 * float(one.error) + 5 / self.dims[-1] * float(one.predicted),
                    reason="four standard errors, and a few 1/d of it",
                )
            )
        return claims
