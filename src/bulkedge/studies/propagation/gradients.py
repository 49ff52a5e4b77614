"""*propagation*, Figures 4, 5 and 9: gradients explode with the gap, and grow linearly without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, parameter
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.progress import track
from bulkedge.propagation.gradients import estimated_gradient_norms, gradient_norms
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

VARIANTS: dict[str, dict[str, Any]] = {
    "Markov": {},
    "Markov + LayerNorm": {"layer_norm": True},
    "key-query": {"attention": "key-query"},
    "key-query + LayerNorm": {"attention": "key-query", "layer_norm": True},
}
LINEAR = "Markov"


@dataclass(frozen=True)
class Gradients(Study):
    """Squared gradient norms of the first layer's values: ``T**L`` with the gap, linear in T without it.

    Over the number of tokens at a few depths, exactly; over depth for Markov and key-query attention, with and without
    LayerNorm, by reverse-mode differentiation where the stack is not linear.
    """

    sizes: tuple[int, ...] = parameter(
        Each(Integers(8, 1000)), "numbers of tokens, increasing", (24, 48, 96), paper=(50, 100, 200, 400)
    )
    depths: tuple[int, ...] = parameter(Each(Integers(1, 6)), "depths of the part on width", (1, 2, 3))
    draws: int = parameter(Integers(4, 1000), "draws of each", 24, paper=60)
    tokens: int = parameter(Integers(8, 500), "tokens of the part on depth", 32, paper=100)
    deepest: int = parameter(Integers(2, 20), "largest depth there", 5, paper=8)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Over width, then over depth."""
        return xr.merge([self._over_width(rng), self._over_depth(rng)])

    def _over_width(self, rng: np.random.Generator) -> xr.Dataset:
        shape = (2, len(self.depths), len(self.sizes))
        norms, predicted = np.empty((*shape, self.draws)), np.empty(shape)
        for k, size in enumerate(track(list(self.sizes), "widths")):
            for i, gap in enumerate((True, False)):
                for j, depth in enumerate(self.depths):
                    stack = AttentionStack(depth, size, size, gap=gap, entries="exponential")
                    norms[i, j, k] = [gradient_norms(stack, stack.layers(rng))[0] for _ in range(self.draws)]
                    predicted[i, j, k] = stack.predicted_gradient()
        dims = ("gap", "depth", "size")
        return xr.Dataset(
            {
                "norm": ((*dims, "draw"), norms, {"long_name": "squared gradient norm of the first layer"}),
                "predicted": (dims, predicted, {"long_name": "its expectation"}),
            },
            coords={"gap": ["kept", "removed"], "depth": list(self.depths), "size": list(self.sizes)},
        )

    def _over_depth(self, rng: np.random.Generator) -> xr.Dataset:
        steps = np.arange(1, self.deepest + 1)
        found = np.empty((2, len(VARIANTS), len(steps)))
        for i, gap in enumerate((True, False)):
            for j, options in enumerate(track(list(VARIANTS.values()), "variants")):
                for k, depth in enumerate(steps.tolist()):
                    stack = AttentionStack(depth, self.tokens, self.tokens, gap=gap, **options)
                    draws = [estimated_gradient_norms(stack, stack.layers(rng), rng, 8)[0][0] for _ in range(4)]
                    found[i, j, k] = np.exp(np.mean(np.log(draws)))
        curve = [
            [AttentionStack(depth, self.tokens, self.tokens, gap=gap).predicted_gradient() for depth in steps.tolist()]
            for gap in (True, False)
        ]
        return xr.Dataset(
            {
                "over_depth": (("gap", "variant", "step"), found, {"long_name": "squared gradient norm, first layer"}),
                "predicted_over_depth": (("gap", "step"), curve),
            },
            coords={"variant": list(VARIANTS), "step": steps},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Expectations, growth with T, and with depth."""
        claims = []
        for gap in ("kept", "removed"):
            for depth in self.depths:
                one = data.sel(gap=gap, depth=depth).isel(size=-1)
                ratio = one.norm / one.predicted
                error = standard_error(ratio)
                claims.append(
                    Claim(
                        statement=f"gap {gap}, depth {depth}: gradient over its expectation at T = {self.sizes[-1]}",
                        place="propagation, Propositions 4 and 6, with their constants (ours)",
                        predicted=1.0,
                        measured=float(ratio.mean()),
                        error=error,
                        tolerance=4 * error + 2 * depth / self.sizes[-1],
                        reason="four standard errors, and 2/T of the variance for each layer's row sums",
                    )
                )
        return [*claims, *(self._growth(data, gap) for gap in ("kept", "removed")), *self._explosion(data)]

    def _growth(self, data: xr.Dataset, gap: str) -> Claim:
        """Slope between the smallest and the largest size, at the largest depth."""
        one = np.log(data.norm.sel(gap=gap).isel(depth=-1))
        ends = one.isel(size=[0, -1])
        span = np.log(self.sizes[-1] / self.sizes[0])
        slope = float((ends.mean("draw")[1] - ends.mean("draw")[0]) / span)
        error = float(np.hypot(standard_error(ends[0]), standard_error(ends[1])) / span)
        depth = self.depths[-1]
        return Claim(
            statement=f"gap {gap}: exponent of T in the gradient at depth {depth}",
            place="propagation, Proposition 4" if gap == "kept" else "propagation, Proposition 6",
            predicted=depth if gap == "kept" else 1.0,
            measured=slope,
            error=error,
            tolerance=4 * error + 2 * depth / self.sizes[0] / span,
            reason="four standard errors, and 2/T for each layer at the smallest size",
        )

    def _explosion(self, data: xr.Dataset) -> list[Claim]:
        """Factor from the first depth to the last, on a logarithmic scale."""
        rise = np.log(data.over_depth.isel(step=-1) / data.over_depth.isel(step=0))
        lost = data.over_depth.sel(gap="removed", variant="key-query")
        peak = np.log(lost.max() / lost.isel(step=0))
        reach = (self.deepest - 1) * np.log(self.tokens)
        return [
            Claim(
                statement="Markov attention: log-growth with depth, gap kept, over (L - 1) log T",
                place="propagation, Figure 5",
                predicted=1.0,
                measured=float(rise.sel(gap="kept", variant=LINEAR)) / reach,
                error=0.0,
                tolerance=0.3,
                reason="four draws of a norm whose logarithm has standard deviation about sqrt(4 L/T)",
            ),
            Claim(
                statement="Markov attention: the same with the gap removed",
                place="propagation, Figure 5",
                predicted=0.0,
                measured=float(rise.sel(gap="removed", variant=LINEAR)) / reach,
                error=0.0,
                tolerance=0.3,
                reason="likewise",
            ),
            Claim(
                statement="key-query attention without its gap: gradients still explode, as this power of T or more",
                place="propagation, Figures 5 and 9",
                predicted=2.0,
                measured=float(peak / np.log(self.tokens)),
                error=0.0,
                tolerance=0.0,
                reason="T^2 is an explosion; later layers may freeze, and their gradients vanish",
                relation=">=",
            ),
        ]
