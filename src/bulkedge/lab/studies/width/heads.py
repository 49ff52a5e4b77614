"""From one head to the Gaussian limit of infinitely many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Study, track
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.programs import HeadMixture, equal_correlations, infinite_head_kernel
from bulkedge.support.domains import Each, Integers, parameter


@dataclass(frozen=True)
class WidthHeads(Study):
    """Excess kurtosis of a coordinate falls as one over the number of heads; with infinitely many it is Gaussian."""

    inputs: int = parameter(Integers(2, 3), "inputs s", 3, ours=3)
    correlation: float = parameter(*setting.CORRELATION, 0.2, ours=0.2)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 4.0, ours=4.0)
    heads: tuple[int, ...] = parameter(
        Each(Integers(1, 1024)), "numbers of heads", (1, 2, 4, 8), ours=(1, 2, 4, 8, 16, 32)
    )
    width: int = parameter(*setting.WIDTH, 32, paper=256)
    draws: int = parameter(Integers(100, 10**6), "draws at finite width", 10_000, ours=20_000)
    small = {"draws": 2000, "heads": (1, 4)}
    caption = """Excess kurtosis of a coordinate over the number of heads, at finite width and in the
    limit. Both should fall along their lines, in inverse proportion to the heads and faster than the dotted
    power."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Variances given what the output projection sees, at finite width and in the limit."""
        gram = equal_correlations(self.inputs, self.correlation)
        found: dict[str, list[Estimate]] = {name: [] for name in ("finite", "limit", "kernel")}
        theory, exact = [], []
        for heads in track(self.heads, "heads"):
            program = setting.before_projection(gram, heads, self.score_variance)
            given = setting.over_heads(program.finite(self.width, rng, self.draws))
            wide = setting.over_heads(program.limit(rng, 5 * self.draws))
            found["finite"].append(setting.kurtosis(given[:, 0, 0]))
            found["limit"].append(setting.kurtosis(wide[:, 0, 0]))
            found["kernel"].append(Estimate.of(wide[:, 0, 0]))
            mixture = HeadMixture(gram, heads, 0, self.score_variance)
            theory.append(mixture.excess_kurtosis())
            exact.append(mixture.excess_kurtosis(self.width))
        names = {
            "finite": "excess kurtosis at finite width",
            "limit": "excess kurtosis from draws of the limit",
            "kernel": "mean kernel of the limit",
        }
        return xr.Dataset(
            {
                key: (("heads", "statistic"), setting.pairs(found[key]), {"long_name": name})
                for key, name in names.items()
            }
            | {
                "theory": ("heads", theory, {"long_name": "excess kurtosis of the limit, by quadrature"}),
                "exact": ("heads", exact, {"long_name": "excess kurtosis at this width, by quadrature"}),
                "infinite": ((), infinite_head_kernel(gram, self.score_variance).value[0, 0]),
                "uniform": ((), gram.mean(), {"long_name": "kernel of uniform attention"}),
            },
            coords={"heads": list(self.heads), "statistic": list(setting.STATISTIC)},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Kurtosis for each number of heads, how it falls, and the mean kernel."""
        one = float(data.exact[0] * data.heads[0])
        found = {heads: setting.from_pair(data.finite.sel(heads=heads), self.draws - 1) for heads in self.heads}
        for heads in self.heads:
            text = f"excess kurtosis at width {self.width}, {heads} head{'s' if heads > 1 else ''}"
            other = ("a Gaussian's", 0.0) if heads == 1 else ("as with one head", one)
            yield Claim(text, "width: Infinitely many heads", found[heads], data.exact.sel(heads=heads), other)
        if len(self.heads) > 1:
            text = "exponent of the excess kurtosis in the number of heads"
            measured = setting.slope(self.heads, list(found.values()))
            rival = "one over the root of their number", -0.5
            yield Claim(text, "width: Infinitely many heads", measured, -1.0, rival)
        text = f"mean kernel of the limit with {self.heads[-1]} heads: that of infinitely many"
        measured = setting.from_pair(data.kernel.isel(heads=-1), 5 * self.draws - 1)
        yield Claim(text, "width: Infinitely many heads", measured, data.infinite, ("uniform attention", data.uniform))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 1, height=2.6)
        axes = grid[0, 0]
        line(axes, data.heads, data.theory, label="limit, quadrature")
        line(axes, data.heads, data.exact, label="finite width, quadrature", **setting.GREEN)
        for name, look in (("limit", {"fmt": "s", "color": COLOURS[3]}), ("finite", {})):
            value, error = (data[name].sel(statistic=each) for each in ("value", "error"))
            marks(axes, data.heads, value, error, label=f"{name}{' width' if name == 'finite' else ''}, drawn", **look)
        power = data.exact[0] * (data.heads[0] / data.heads) ** 0.5
        line(axes, data.heads, power, label=r"$H^{-1/2}$", **setting.RIVAL)
        setting.log_axes(axes, data.heads.values)
        axes.set(xlabel="heads H", ylabel="excess kurtosis of a coordinate", ylim=(float(data.theory[-1]) / 12, None))
        axes.legend(loc="lower left")
        setting.sizes_title(figure, self, "width", "inputs")
        return figure
