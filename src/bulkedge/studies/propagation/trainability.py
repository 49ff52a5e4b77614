"""Which score scales carry a signal: between rank collapse and entropy collapse (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.estimates import Estimate
from bulkedge.progress import track
from bulkedge.propagation import trainability as theory
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, Rival, share

FINE_BETAS = tuple(k / 2 for k in range(1, 11))
FINE_SKIPS = tuple(k / 10 for k in range(10))
CLOSE = 0.1
"""How far key-query attention may be from the map, root mean square."""
VERDICTS = ("rank collapse", "inside", "entropy collapse")


@dataclass(frozen=True)
class Trainability(Study):
    """Score scale, skip and depth: where tokens stay distinct, and where attention freezes on one token.

    The predicted share of the signal that tokens do not have in common, and the predicted entropy, stand beside
    simulation at every point of the map: attention with independent scores, for which the theory is exact at any size,
    and key-query attention with LayerNorm, for which it is not.
    """

    tokens: int = parameter(Integers(16, 500), "number of tokens T", 40, ours=100)
    betas: tuple[float, ...] = parameter(
        Each(Interval(0.05, 8)), "score scales", (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5), ours=FINE_BETAS
    )
    skips: tuple[float, ...] = parameter(
        Each(Interval(0, 0.999)), "weights of the skip connection", (0.0, 0.3, 0.5, 0.7, 0.85), ours=FINE_SKIPS
    )
    depths: tuple[int, ...] = parameter(Each(Integers(1, 64)), "depths, increasing", (2, 6, 12), ours=(3, 12, 48))
    draws: int = parameter(Integers(2, 100), "draws at each point, of each kind of attention", 12, ours=8)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Theory and simulation over the map."""
        shape = (len(self.skips), len(self.betas), len(self.depths), self.draws)
        apart, total, key_query = np.empty((3, *shape))
        entropy = np.empty((*shape[:2], self.draws))
        for i, skip in enumerate(track(list(self.skips), "skips")):
            for j, k in product(range(len(self.betas)), range(self.draws)):
                apart[i, j, :, k], total[i, j, :, k], entropy[i, j, k] = self._simulate(skip, self.betas[j], rng)
                normed = self._simulate(skip, self.betas[j], rng, attention="key-query", layer_norm=True)
                key_query[i, j, :, k] = normed[0] / normed[1]
        dims = ("skip", "beta", "depth")
        rows = [theory.softmax_of_gaussians(beta, self.tokens).entropy for beta in self.betas]
        return xr.Dataset(
            {
                **{name: (dims, each) for name, each in self._theory().items()},
                "apart": ((*dims, "draw"), apart, {"long_name": "power that tokens do not have in common, a token"}),
                "power": ((*dims, "draw"), total, {"long_name": "power of the signal, a token"}),
                "key_query": ((*dims, "draw"), key_query, {"long_name": "share, key-query attention and LayerNorm"}),
                "entropy": (("skip", "beta", "draw"), entropy, {"long_name": "mean entropy of a row"}),
                "predicted_entropy": ("beta", rows),
                "freezing": ((), theory.freezing_beta(self.tokens), {"long_name": "sqrt(2 log T)"}),
            },
            coords={"skip": list(self.skips), "beta": list(self.betas), "depth": list(self.depths)},
            attrs={"tokens": self.tokens},
        )

    def _theory(self) -> dict[str, Real]:
        """Shares and verdicts over the map; shares of the rivals: wide attention, no gap, no skip connection."""
        wide = [min(np.expm1(beta**2) / self.tokens, 1 - 1 / self.tokens) for beta in self.betas]
        shape = (len(self.skips), len(self.betas), len(self.depths))
        found: dict[str, Real] = {
            name: np.empty(shape) for name in ("predicted", "verdict", "mean_power", "wide", "no_gap", "no_skip")
        }
        for cell in np.ndindex(shape):
            skip, beta, depth = (each[k] for each, k in zip((self.skips, self.betas, self.depths), cell, strict=True))
            design = theory.Trainability(self.tokens, depth, skip)
            apart, common = powers(design, design.passed(beta))
            found["predicted"][cell], found["mean_power"][cell] = design.distinct_share(beta), apart + common
            found["verdict"][cell] = VERDICTS.index(design.verdict(beta))
            apart, common = powers(design, wide[cell[1]])
            found["wide"][cell] = apart / (apart + common)
            found["no_gap"][cell] = theory.Trainability(self.tokens, depth, skip, gap=False).distinct_share(beta)
            found["no_skip"][cell] = theory.Trainability(self.tokens, depth).distinct_share(beta)
        return found

    def _simulate(self, skip: float, beta: float, rng: np.random.Generator, **options: Any) -> tuple[Real, Real, float]:
        """Powers of a token at each depth, what tokens do not share and all; mean entropy of the rows."""
        width = 2 * self.tokens
        stack = AttentionStack(
            self.depths[-1],
            self.tokens,
            width,
            skip=skip,
            # the stack divides it by the width beside a skip connection only
            value_variance=1 - skip**2 if skip else 1 / width,
            variance=np.expm1(beta**2),
            **options,
        )
        found, entropies = [], []
        for depth, layer in enumerate(stack.layers(rng), start=1):
            weights = layer.attention
            entropies.append(-np.sum(weights * np.log(np.maximum(weights, 1e-300))) / self.tokens)
            if depth in self.depths:
                total = np.sum(layer.signal**2) / self.tokens
                found.append((layer.distinct_share * total, total))
        apart, totals = np.array(found).T
        return apart, totals, float(np.mean(entropies))

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The share over the map and on both sides of its boundary, key-query attention, and the entropy."""
        return [*self._shares(data), self._key_query(data), self._entropy(data)]

    def _shares(self, data: xr.Dataset) -> list[Claim]:
        # the mean of this is the predicted share exactly, at any size, where that of the ratio of powers is not
        found = data.predicted + (data.apart - data.predicted * data.power) / data.mean_power
        map_of = {name: np.ravel(data[name]) for name in ("predicted", "wide", "no_gap", "no_skip", "verdict")}
        curves = np.stack([np.ravel(found.sel(draw=k)) for k in range(self.draws)])
        claims = [
            Claim(
                statement="distinct share over the map: 0 as predicted, 1 as in the limit of wide attention",
                place="ours",
                measured=share(curves, map_of["predicted"], map_of["wide"]),
                predicted=0.0,
                rival=Rival("attention passes on (exp(beta**2) - 1)/T", 1.0),
            )
        ]
        for verdict, name, rival in (
            ("rank collapse", "without the gap", "no_gap"),
            ("inside", "without the skip connection", "no_skip"),
        ):
            here = map_of["verdict"] == VERDICTS.index(verdict)
            if here.any():
                claims.append(
                    Claim(
                        statement=f"mean distinct share where the map says {verdict!r}",
                        place="ours",
                        measured=Estimate.of(curves[:, here].mean(axis=1)),
                        predicted=float(map_of["predicted"][here].mean()),
                        rival=Rival(f"the share {name}", float(map_of[rival][here].mean())),
                    )
                )
        return claims

    def _key_query(self, data: xr.Dataset) -> Claim:
        miss = np.stack([np.ravel((data.key_query - data.predicted).sel(draw=k)) for k in range(self.draws)])
        return Claim(
            statement="key-query attention with LayerNorm: mean square of its distance from the map, noise taken off",
            place="ours",
            measured=Estimate.jackknife(_mean_square, miss),
            predicted=CLOSE**2,
            rival=Rival("a map that says nothing: its own variance", float(np.var(data.predicted))),
            relation="<=",
        )

    def _entropy(self, data: xr.Dataset) -> Claim:
        limit = np.maximum(np.log(self.tokens) - np.array(self.betas) ** 2 / 2, 0.0)
        curves = data.entropy.mean("skip").transpose("draw", "beta")
        return Claim(
            statement="entropy of a row over score scales: 0 as predicted, 1 as in the limit of many tokens",
            place="ours; laws: random energy model (Derrida 1981)",
            measured=share(curves, data.predicted_entropy, limit),
            predicted=0.0,
            rival=Rival("log T - beta**2/2", 1.0),
        )


def powers(design: theory.Trainability, passed: float) -> tuple[float, float]:
    """Expected powers of a token after the last layer, if attention with its gap passes on ``passed`` of differences.

    Parameters
    ----------
    design : bulkedge.propagation.Trainability
        Tokens, depth and skip connection; its gap is kept.
    passed : float
        ``Y``, as :meth:`bulkedge.propagation.Trainability.passed` has it.

    Returns
    -------
    apart, common : float
        Of the difference from the mean token, and of the mean token; the input has ``1 - 1/T`` and ``1/T``.
    """
    through, apart, common = 1 - design.skip**2, 1 - 1 / design.tokens, 1 / design.tokens
    for _ in range(design.depth):
        common += through * passed * apart / (design.tokens - 1)
        apart *= design.skip**2 + through * passed
    return apart, common


def _mean_square(miss: Real) -> float:
    """Mean over cells of the square of the expected miss: products of two different draws, which noise leaves alone."""
    count = len(miss)
    products = miss.sum(axis=0) ** 2 - (miss**2).sum(axis=0)
    return float(np.mean(products) / (count * (count - 1)))
