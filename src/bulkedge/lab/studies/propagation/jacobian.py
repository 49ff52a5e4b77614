"""*propagation*, Proposition 8: the Jacobian of gap-free attention, and what isometry costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.inference.comparison import separation
from bulkedge.lab.studies import propagation as setting
from bulkedge.lab.studies.base import Claims, Real, Study, dataset, mean_marks, track
from bulkedge.laws import FussCatalan, Law
from bulkedge.plots.style import COLOURS, line, panels
from bulkedge.propagation.moments import tradeoff
from bulkedge.support.domains import Each, Integers, Interval, parameter

BINS, POINTS = 40, 2000
PLACES = setting.Places("propagation: Proposition 8", "propagation: Proposition 8, Theorem 8", "propagation: Theorem 8")
RIVALS = setting.Rivals("variance 2l, a free product", "variance 2l, a free product", "a free product")
FLOOR = 0.45
SMOOTH = f"fitted: at 60 tokens it is 0.25 to 0.36 of log(n)/n, n the smaller of T and d, of which {FLOOR} are allowed"


@dataclass(frozen=True)
class PropagationJacobian(Study):
    """Squared singular values of ``dX_l/dX_0`` without the gap: products of two independent Fuss-Catalan variables.

    At mean one their variance is ``l (l + 2)`` for any shape of the layers, and no scale brings them close to one.
    """

    tokens: int = parameter(Integers(20, 1000), "number of tokens T", 200, ours=300)
    ratios: tuple[float, ...] = parameter(Each(Interval(0.1, 10)), "ratios T/d", (0.5, 1.0, 2.0), ours=(0.5, 1.0, 2.0))
    depth: int = parameter(Integers(1, 6), "largest number of layers", 3, ours=3)
    draws: int = parameter(Integers(4, 1000), "draws of each", 16, ours=24)
    small = {"tokens": 60, "depth": 2, "draws": 10}
    caption = """Squared singular values of the Jacobian without the gap with their law, and below them
    how far from an isometry it is. The bars should follow the law into the tail, where the dotted free product ends
    too early."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both factors of the Kronecker product, layer by layer."""
        whole = setting.gap_free_stack(self.depth, self.tokens, 1.0)
        stacks = [whole.at_depth(layer) for layer in range(1, self.depth + 1)]
        laws = [stack.jacobian_law() for stack in stacks]  # at mean one, the same for every ratio
        apart = [separation(law, FussCatalan(2 * k + 2), 500) for k, law in enumerate(laws)]
        parts = [self._measure(ratio, laws, rng) for ratio in track(list(self.ratios), "ratios")]
        found = xr.concat(parts, dim=xr.Variable("ratio", list(self.ratios)))
        layer = np.arange(1, self.depth + 1)
        return found.merge(self._isometry(stacks[0])).assign(
            spread=("layer", layer * (layer + 2.0), {"long_name": "variance over squared mean"}),
            rival_spread=("layer", 2.0 * layer),
            separation=("layer", apart),
        )

    def _isometry(self, stack: AttentionStack) -> xr.Dataset:
        """The trade-off of mean and variance, over the mean and over depth, for T = d."""
        mean, steps = np.linspace(0, 1.2, 61), np.arange(1, 13)
        curves = [tradeoff(stack.at_depth(layer), "jacobian").distortion(mean) for layer in range(1, self.depth + 1)]
        kinds = [(values, of) for of in ("kernel", "jacobian") for values in ("gaussian", "orthogonal")]
        least = [
            [tradeoff(replace(stack, values=values, depth=int(step)), of).least for step in steps]  # type: ignore[arg-type]
            for values, of in kinds
        ]
        return dataset(
            distortion=(("layer", "target"), np.array(curves), "E (x - 1)^2"),
            least=(("kind", "step"), least, "least E (x - 1)^2 over all scales"),
            coords={"target": mean, "step": steps, "kind": [f"{of}, {values} values" for values, of in kinds]},
        )

    def _measure(self, ratio: float, laws: list[Law], rng: np.random.Generator) -> xr.Dataset:
        stack = setting.gap_free_stack(self.depth, self.tokens, ratio)
        drawn = [squared_singular_values(stack, rng) for _ in range(self.draws)]
        parts = [
            _layer(stack.at_depth(k + 1), [each[k] for each in drawn], law).assign_coords(layer=k + 1)
            for k, law in enumerate(laws)
        ]
        return xr.concat(parts, dim="layer")

    def statements(self, data: xr.Dataset) -> Claims:
        """Mean, second moment and law, for every ratio and depth."""
        yield from setting.gap_free_claims(data, PLACES, RIVALS, SMOOTH)

    def figure(self, data: xr.Dataset) -> Figure:
        columns = max(data.sizes["layer"], 3)
        figure, grid = panels(data.sizes["ratio"] + 1, columns, width=2.4, height=1.8)
        setting.densities(grid[:-1], data, "squared singular value", "free product")
        for unused in (*grid[:-1, data.sizes["layer"] :].ravel(), *grid[-1, 3:]):
            unused.set_visible(False)
        moments, curve, least = grid[-1, :3]
        line(moments, data.layer, (1.0 + data.layer) ** 2, label=r"$(1 + \ell)^2$")
        line(moments, data.layer, 1.0 + 2 * data.layer, label=r"$1 + 2\ell$, free product", **setting.RIVAL)
        for k, ratio in enumerate(data.ratio.values.tolist()):
            look = {"color": COLOURS[k % 7], "fmt": setting.SYMBOLS[k % 6], "label": f"T/d = {ratio:g}"}
            values = data.second.sel(ratio=ratio)
            mean_marks(moments, data.layer + 0.08 * (k - 1), values, **look)
        for k, layer in enumerate(data.layer.values.tolist()):
            line(curve, data.target, data.distortion.sel(layer=layer), label=f"ℓ = {layer}", color=COLOURS[k])
        for k, kind in enumerate(data.kind.values.tolist()):
            line(least, data.step, data.least.sel(kind=kind), label=kind, color=COLOURS[k], ls=("-", "--", "-", ":")[k])
        setting.integers(moments, "layer ℓ")
        moments.set(ylabel="second moment at mean one", ylim=(0, 1.5 * float((1 + data.layer[-1]) ** 2)))
        curve.set(xlabel="mean of the squared singular values", ylabel=r"$E\,(x - 1)^2$", ylim=(0, None))
        setting.integers(least, "layer ℓ")
        least.set(ylabel="its least value", ylim=(0, 1.02))
        for axes, place in ((moments, "upper left"), (curve, "upper left"), (least, "lower right")):
            axes.legend(loc=place, fontsize=6)
        figure.suptitle(f"Jacobian without the gap: T = {self.tokens}, {data.sizes['draw']} draws", fontsize=8)
        return figure


def _layer(stack: AttentionStack, drawn: list[Real], law: Law) -> xr.Dataset:
    """Moments, distances and densities of the squared singular values of each draw, in increasing order."""
    known = setting.expectations(stack, "jacobian", stack.depth * (stack.depth + 2.0))
    small = min(stack.tokens, stack.width)
    known |= {"floor": FLOOR * np.log(small) / small}
    edges = law.edge * np.linspace(0, 1, BINS + 1) ** 3
    x = law.edge * np.linspace(0.02, 1, 300) ** 3
    ranks = (np.arange(len(drawn[0])) + 0.5) / len(drawn[0])
    every = slice(None, None, max(1, len(ranks) // POINTS))
    # the law is compared at the mean that T tokens have
    distances = [np.max(np.abs(law.cdf(each[every] / known["expected_mean"]) - ranks[every])) for each in drawn]
    rival = FussCatalan(2 * stack.depth)
    return setting.of_layer("squared singular value", drawn, distances, (law, rival), edges, x, known)


def squared_singular_values(stack: AttentionStack, rng: np.random.Generator) -> list[Real]:
    """Squared singular values of ``(W_1 ... W_l)' (x) (A_l ... A_1)`` for every layer l, in increasing order."""
    values, attention = np.eye(stack.width), np.eye(stack.tokens)
    found = []
    for layer in stack.layers(rng):
        values, attention = values @ layer.weights.values, layer.attention @ attention
        of_values, of_attention = (np.linalg.svd(part, compute_uv=False) ** 2 for part in (values, attention))
        found.append(np.sort(np.outer(of_values, of_attention).ravel()))
    return found
