"""*propagation*, Figure 7: what leaves the bulk of key-query attention in deeper layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.comparison import compare
from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.markov import without_gap
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.laws import AttentionLaw, CorrelatedAttentionLaw, EmpiricalLaw, Law
from bulkedge.progress import track
from bulkedge.spectra import spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

SHOWN = 40
COLLAPSED = 0.01
"""Scale of the scores below which tokens count as collapsed: where the law for their Gram matrix stops."""


@dataclass(frozen=True)
class Outliers(Study):
    """Key-query attention in deeper layers: with the gap one more outlier, without it none, but a wider bulk.

    After a layer with the gap, tokens share a direction. Queries along it weigh the keys alike in every row, ``A`` is
    about ``u w'`` with w not constant, and ``A - uu'`` keeps an outlier of size ``sqrt(T (exp(beta**2 c (1 - c)) -
    1))``, c the share of the tokens' power that is common. Without the gap the tokens share no direction. What then
    lies beyond the edge of the first layer, and looks like many outliers, is bulk: the law for tokens with their Gram
    matrix holds it, though beyond the second layer it only bounds the edge. Tokens are normalised.
    """

    tokens: int = parameter(Integers(50, 2000), "number of tokens and of dimensions", 150, paper=500)
    beta: float = parameter(Interval(0.1, 1), "inverse temperature", 0.5)
    depth: int = parameter(Integers(2, 6), "layers", 3, paper=5)
    draws: int = parameter(Integers(2, 100), "draws", 3, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Every layer of stacks with and without the gap."""
        first = AttentionLaw(self.beta, 1.0)
        parts = [
            xr.concat([self._draw(gap, first, rng) for _ in track(range(self.draws), f"gap = {gap}")], dim="draw")
            for gap in (True, False)
        ]
        return xr.concat(parts, dim=xr.Variable("gap", ["kept", "removed"])).assign(
            first_edge=((), np.sqrt(first.edge), {"long_name": "edge for orthonormal tokens"})
        )

    def _draw(self, gap: bool, first: Law, rng: np.random.Generator) -> xr.Dataset:  # noqa: FBT001
        stack = AttentionStack(
            self.depth,
            self.tokens,
            self.tokens,
            attention="key-query",
            gap=gap,
            layer_norm=True,
            variance=np.expm1(self.beta**2),
        )
        signal, rows = stack.start(), []
        for _ in range(self.depth):
            weights = stack.weights(rng)
            rows.append(self._measure(signal, stack.attend(signal, weights), first))
            _, signal = stack.step(signal, weights)
        return xr.concat(rows, dim=xr.Variable("layer", np.arange(1, self.depth + 1)))

    def _measure(self, signal: Real, attention: Real, first: Law) -> xr.Dataset:
        found = spectrum(np.sqrt(self.tokens) * without_gap(attention)).squared()
        apart = signal - signal.mean(axis=0)
        gram = np.maximum(np.linalg.eigvalsh(apart @ apart.T), 0.0)
        share = gram.sum() / np.sum(signal**2)
        own = self._law(gram, share, first)
        comparison = compare(found, own)
        return xr.Dataset(
            {
                "value": ("rank", np.sqrt(found.values[::-1][:SHOWN]), {"long_name": "sqrt(T) s_k of A - uu'"}),
                "edge": ((), np.sqrt(own.edge), {"long_name": "edge of the bulk for these tokens"}),
                "tilt": ((), np.sqrt(self.tokens * np.expm1(self.beta**2 * share * (1 - share)))),
                "beyond_first": ((), float(np.sum(found.values > first.finite_edge(self.tokens)))),
                "beyond_own": ((), float(len(comparison.outliers))),
                "distance": ((), comparison.ks, {"long_name": "Kolmogorov distance to the law of these tokens"}),
            },
            coords={"rank": np.arange(1, SHOWN + 1)},
        )

    def _law(self, gram: Real, share: float, first: Law) -> Law:
        """The law for keys and queries that differ as much as these tokens do.

        Where they have collapsed attention is uniform, and the first layer's law, scaled down, stands for no bulk.
        """
        if np.ptp(gram[1:]) < 1e-9 or self.beta * share < COLLAPSED:
            return first.scaled(share**2)
        return CorrelatedAttentionLaw(self.beta * share, 1.0, EmpiricalLaw(gram / gram.mean()))

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The first layer, the second with the gap, and the deeper ones without it."""
        kept, removed = data.sel(gap="kept"), data.sel(gap="removed")
        top = kept.value.sel(layer=2, rank=1)
        ratio = top / kept.tilt.sel(layer=2)
        error = standard_error(ratio)
        beyond = removed.sel(layer=slice(2, 3))
        return [
            self._count("layer 1: values of A - uu' beyond the edge", data.beyond_first.sel(layer=1), 0.0, 0.5),
            Claim(
                statement="layer 2, gap kept: largest value of A - uu' over sqrt(T (exp(beta^2 c (1-c)) - 1))",
                place="propagation, Figure 7; ours for the value",
                predicted=1.0,
                measured=float(ratio.mean()),
                error=error,
                tolerance=4 * error + 0.1,
                reason="four standard errors; the weights w are a softmax of T numbers, and the bulk adds edge^2/T",
            ),
            self._count("layer 2, gap kept: outliers of A - uu'", kept.beyond_own.sel(layer=2), 1.0, 0.9),
            Claim(
                statement="layer 2, gap removed: Kolmogorov distance to the law of these tokens",
                place="ours; theory/attention",
                predicted=0.0,
                measured=float(removed.distance.sel(layer=2).mean()),
                error=standard_error(removed.distance.sel(layer=2)),
                tolerance=0.2 * self.beta + 3 / self.tokens,
                reason="the law takes the noise as white, which is wrong at order beta^2 of a variance beta^2",
                relation="<=",
            ),
            self._count("layers 2 and 3, gap removed: values beyond their own bulk", beyond.beyond_own, 0.0, 1.0),
            Claim(
                statement="layers 2 and 3, gap removed: values beyond the first layer's edge, per token",
                place="propagation, Figure 7",
                predicted=0.02,
                measured=float(beyond.beyond_first.mean()) / self.tokens,
                error=standard_error(beyond.beyond_first) / self.tokens,
                tolerance=0.0,
                reason="a share of the tokens, not a number: a bulk, not outliers",
                relation=">=",
            ),
        ]

    def _count(self, statement: str, found: xr.DataArray, predicted: float, slack: float) -> Claim:
        return Claim(
            statement=statement,
            place="propagation, Figure 7; ours",
            predicted=predicted,
            measured=float(found.mean()),
            error=standard_error(found),
            tolerance=slack,
            reason="a false alarm in a hundred draws, and single large entries of the softmax",
        )
