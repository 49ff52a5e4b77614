"""*propagation*, "Scaling discussion": skip connections, values, and Xavier's queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.markov import without_gap
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.lab.studies.base import Claim, Claims, Study, dataset, difference, mean_marks, track
from bulkedge.lab.studies.propagation import SYMBOLS, decades, integers, sizes_axis
from bulkedge.plots.style import COLOURS, line, panels
from bulkedge.propagation.moments import finite_moments
from bulkedge.support.domains import Each, Integers, parameter

SCALINGS: tuple[Literal["plain", "rescaled"], ...] = ("plain", "rescaled")


@dataclass(frozen=True)
class PropagationScaling(Study):
    """With a plain skip connection attention has weight 1/sqrt(T); with values rescaled by sqrt(d), of order one.

    Also: how the size of the kernel changes with depth for three variances of the values, and how Xavier's scaling of
    queries and keys leaves nothing of attention once its gap is removed.
    """

    sizes: tuple[int, ...] = parameter(
        Each(Integers(16, 2000)), "numbers of tokens, increasing", (32, 64, 128, 256), ours=(100, 200, 400, 800)
    )
    draws: int = parameter(Integers(3, 100), "draws of each", 36, ours=40)
    tokens: int = parameter(Integers(16, 1000), "tokens of the part on values", 100, ours=300)
    depth: int = parameter(Integers(2, 20), "layers there", 6, ours=10)
    small = {"sizes": (32, 64, 128), "tokens": 60, "depth": 4, "draws": 10}
    caption = """Weight of the attention branch next to a skip connection, size of the kernel over layers,
    and variance of attention with Xavier's weights, over the sizes. Points should follow their lines: plain
    attention fades as tokens grow, and rescaled values keep it level."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Branches, then sizes, then Xavier."""
        return xr.merge([self._branches(rng), self._values(rng)])

    def _branches(self, rng: np.random.Generator) -> xr.Dataset:
        share = np.empty((2, 2, len(self.sizes), self.draws))
        leftover = np.empty((len(self.sizes), self.draws))
        for k, size in enumerate(track(list(self.sizes), "sizes")):
            for i, scaling in enumerate(SCALINGS):
                for j, gap in enumerate((True, False)):
                    stack = AttentionStack(
                        1, size, size, gap=gap, skip=1.0, skip_scaling=scaling, entries="exponential"
                    )
                    norms = [np.linalg.norm(stack.sample(rng) - stack.start()) for _ in range(self.draws)]
                    share[i, j, k] = norms / np.sqrt(size)
            xavier = AttentionStack(1, size, size, attention="xavier")
            leftover[k] = [np.sum(without_gap(next(xavier.layers(rng)).attention) ** 2) for _ in range(self.draws)]
        sizes = np.array(self.sizes)
        # exactly E |A|_F**2/T for rows that are uniform on the simplex, with the gap and without
        plain = np.sqrt(np.stack([2 / (sizes + 1), (sizes - 1) / (sizes + 1) / sizes]))
        dims = "skip_scaling", "gap", "size"
        return dataset(
            branch=((*dims, "draw"), share, "norm of the attention branch over that of the skip"),
            predicted_branch=(dims, np.stack([plain, plain * np.sqrt(sizes)])),
            xavier=(("size", "draw"), leftover, "variance of attention, T |A - uu'|_F^2/T"),
            predicted_xavier=("size", np.log(2) / sizes**2),
            coords={"skip_scaling": list(SCALINGS), "gap": ["kept", "removed"], "size": sizes},
        )

    def _values(self, rng: np.random.Generator) -> xr.Dataset:
        width = 2 * self.tokens
        powers = {"1/d": 1 / width, "gamma/sigma^2": self.tokens / width, "1": 1.0}
        means, predicted = np.empty((len(powers), self.depth, self.draws)), np.empty((len(powers), self.depth))
        for k, power in enumerate(powers.values()):
            stack = AttentionStack(
                self.depth, self.tokens, width, gap=False, value_variance=power, entries="exponential"
            )
            drawn = [[np.mean(layer.singular_values**2) for layer in stack.layers(rng)] for _ in range(self.draws)]
            means[k] = np.transpose(drawn)
            predicted[k] = [finite_moments(stack.at_depth(depth)).mean for depth in range(1, self.depth + 1)]
        return dataset(
            mean=(("values", "layer", "draw"), means, "mean eigenvalue of the kernel"),
            predicted_mean=(("values", "layer"), predicted),
            coords={"values": list(powers), "layer": np.arange(1, self.depth + 1)},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Weights of the branch, size of the kernel, and what Xavier leaves."""
        with_gap = data.assign(with_gap=data.predicted_branch.sel(gap="kept", drop=True))
        for scaling in SCALINGS:
            for gap in ("kept", "removed"):
                yield self._branch(with_gap.sel(skip_scaling=scaling, gap=gap).isel(size=-1))
        last, span = data.isel(size=-1), np.log(self.sizes[-1] / self.sizes[0])
        logs = np.log(data.xavier.isel(size=[0, -1])).values
        text = f"Xavier's scaling: variance of attention over beta^2/d^2 at T = {self.sizes[-1]}"
        place = "propagation: Proposition 1, Scaling discussion"
        rival = "beta^2/d, one factor of 1/sqrt(d) only", self.sizes[-1]
        reason = "derived: the mean of each row, 1/T, which softmax does not see, and its square"
        finite_size = 2 / self.sizes[-1]
        yield Claim(text, place, last.xavier / last.predicted_xavier, 1.0, rival, finite_size, reason)
        text = "Xavier's scaling: exponent of T in the variance of attention: it is uniform in the limit"
        measured = difference(logs[1] / span, logs[0] / span)
        finite_size = 2 / self.sizes[0] / span
        reason = "derived: the same at the smallest size"
        yield Claim(text, "propagation: Proposition 1", measured, -2.0, ("-1", -1.0), finite_size, reason)
        for kind in ("gamma/sigma^2", "1"):
            yield self._size(data.sel(values=kind).isel(layer=-1))

    def _branch(self, one: xr.Dataset) -> Claim:
        scaling, size = one.skip_scaling.item(), self.sizes[-1]
        if one.gap.item() == "removed":
            other = ("as with the gap", float(one.with_gap) ** 2)
        else:
            other = ("equal weights", 1.0) if scaling == "plain" else ("1/T, as with a plain skip", 1 / size)
        text = f"{scaling} skip, gap {one.gap.item()}: squared weight of attention at T = {size}"
        return Claim(text, "propagation: Scaling discussion", one.branch**2, float(one.predicted_branch) ** 2, other)

    def _size(self, one: xr.Dataset) -> Claim:
        kind = one["values"].item()
        grown = 2.0**self.depth  # d/T = 2
        text = f"values of variance {kind}: mean eigenvalue after {self.depth} layers over its expectation"
        rival = ("as of variance one", grown) if kind != "1" else ("kept at one", 1 / grown)
        return Claim(text, "propagation: Proposition 7, Remark", one["mean"] / one.predicted_mean, 1.0, rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 3, width=2.7)
        left, middle, right = grid[0]
        sizes = data["size"].values
        for k, kind in enumerate(data.skip_scaling.values.tolist()):
            for gap, symbol in (("kept", "o"), ("removed", "s")):
                one = data.sel(skip_scaling=kind, gap=gap)
                line(left, sizes, one.predicted_branch, label="", color=COLOURS[k])
                look = {"color": COLOURS[k], "fmt": symbol, "label": f"{kind}, gap {gap}"}
                mean_marks(left, sizes, one.branch, **look)
        decades(left)
        left.set(ylabel="weight of attention over skip", ylim=(None, 300))
        left.legend(loc="upper left")
        names = {"1/d": "$1/d$", "gamma/sigma^2": r"$\gamma/\sigma_A^2$", "1": "1"}
        for kind, colour, symbol in zip(data["values"].values.tolist(), COLOURS, SYMBOLS, strict=False):
            one = data.sel(values=kind)
            line(middle, data.layer, one.predicted_mean, label="", color=colour)
            mean_marks(middle, data.layer, one["mean"], color=colour, fmt=symbol, label=names[kind])
        decades(middle)
        middle.set_ylabel("mean eigenvalue of the kernel")
        integers(middle, "layer")
        middle.legend(title=r"$\sigma_V^2$", loc="lower left")
        line(right, sizes, data.predicted_xavier, label=r"$\beta^2/d^2$")
        line(right, sizes, data.predicted_xavier * sizes, label=r"$\beta^2/d$", color=COLOURS[-1], ls=":", lw=1.0)
        mean_marks(right, sizes, data.xavier, label="Xavier's queries and keys")
        decades(right)
        right.set_ylabel("variance of attention")
        right.set_ylim(None, 30 * float((data.predicted_xavier * sizes).max()))
        right.legend(loc="upper right")
        for axes in (left, right):
            sizes_axis(axes, sizes)
        tokens, draws = self.tokens, data.sizes["draw"]
        figure.suptitle(f"T = d, {draws} draws; middle: T = {tokens}, d = 2 T, gap removed; lines: theory", fontsize=8)
        return figure
