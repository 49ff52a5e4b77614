"""Figure 1(b): how fast an attention layer converges in its width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, exponent, sign, track
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.programs import FiniteMixture, HeadMixture, equal_correlations, kl_divergence
from bulkedge.support.domains import Each, Integers, parameter

REACH, FITTED, WHOLE = 9.0, 64, 16
"""How far densities are integrated; the widest layer for the fitted exponent; the widest layer with all draws."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(100)
NAMES = {"kl": "Kullback-Leibler divergence", "energy": "energy distance"}


@dataclass(frozen=True)
class WidthKlDecay(Study):
    """Divergence of a coordinate from its limit: about one over n squared; below width 64 slower, as predicted.

    The law at width n is known, so the divergence is an integral, ``c/n**2 (1 - b/n + ...)``. It is measured without a
    bandwidth: a coordinate is Gaussian given all but the last weight, and its density is the mean of those Gaussians.
    The paper's kernel estimates are drawn beside it, with the floor below which they see nothing. Layers wider than 16
    have fewer draws, in proportion.
    """

    inputs: int = parameter(*setting.INPUTS, 2, ours=2)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 1.0, ours=1.0)
    widths: tuple[int, ...] = parameter(
        Each(Integers(4, 8192)), "widths n", (4, 8, 16, 64, 256), ours=(4, 8, 16, 32, 64, 256, 1024)
    )
    draws: int = parameter(Integers(1000, 10**8), "draws at each width", 200_000, ours=2_000_000)
    small = {"draws": 20_000, "widths": (4, 6, 8)}
    caption = """Kullback–Leibler divergence and energy distance of a coordinate from its limit over the
    width. Circles should follow the exact line below the dotted power; squares stop falling at the dashed level,
    where a kernel estimate sees nothing more."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Mean densities and characteristic functions at each width, batch by batch."""
        gram = equal_correlations(self.inputs)
        limit = HeadMixture(gram, 1, 0, self.score_variance)
        layer = setting.before_projection(gram, 1, self.score_variance)
        x, t = REACH * (NODES + 1) / 2, 20 * (NODES + 1) / 2
        wide = limit.kernel_values(self.score_variance)
        base = gaussians(wide[0], x) @ wide[1]
        rows = []
        reference = self._limit(rng, layer, self.draws)
        for width in track(self.widths, "widths"):
            groups = np.array_split(layer.finite(width, rng, self._count(width))[:, 0, 0], setting.BATCHES)
            law = FiniteMixture(limit, width)
            rows.append(
                {
                    "density": [gaussians(group, x).mean(axis=1) for group in groups],
                    "characteristic": [np.exp(-(t[:, None] ** 2) * group / 2).mean(axis=1) for group in groups],
                    "exact_density": law.pdf(x),
                    "exact_characteristic": law.characteristic(t),
                    "kernel": kernel_estimate(np.concatenate(groups), reference, self.kernel_draws, rng),
                }
            )
        again = self._limit(rng, layer, setting.BATCHES * self.kernel_draws)
        gathered = {name: ("width", [row[name] for row in rows]) for name in rows[0]}
        dims = {"density": ("batch", "x"), "characteristic": ("batch", "t"), "kernel": ("statistic",)}
        dims |= {"exact_density": ("x",), "exact_characteristic": ("t",)}
        return xr.Dataset(
            {name: (("width", *dims[name]), values) for name, (_, values) in gathered.items()}
            | {
                "limit_density": ("x", base),
                "limit_characteristic": ("t", limit.characteristic(t)),
                "floor": ("statistic", kernel_estimate(again, reference, self.kernel_draws, rng)),
            },
            coords={"width": list(self.widths), "x": x, "t": t, "statistic": list(setting.STATISTIC)},
        )

    def _count(self, width: int) -> int:
        return max(self.draws * WHOLE // max(width, WHOLE), 4 * setting.BATCHES)

    @property
    def kernel_draws(self) -> int:
        """Draws of a kernel estimate, the same at each width: a quarter of what the widest layer has."""
        return self._count(max(self.widths)) // 4

    def _limit(self, rng: np.random.Generator, layer: object, draws: int) -> Real:
        return np.asarray(layer.limit(rng, draws)[:, 0, 0])  # type: ignore[attr-defined]

    def statements(self, data: xr.Dataset) -> Claims:
        """Each width, the exponent, and what a kernel estimate can see."""
        exact, first = exact_divergences(data), min(self.widths)
        narrowest = float(exact[0, self.widths.index(first)])
        for width in self.widths:
            slow = ("a power -3/2 from the narrowest on", narrowest * (first / width) ** 1.5)
            leading = ("the leading order alone", leading_order(self) / width**2)
            text = f"Kullback-Leibler divergence from the limit at width {width}"
            place = "width: Figure 1(b), Mechanism 3"
            predicted = exact[0, self.widths.index(width)]
            yield Claim(text, place, divergence(data, width), predicted, leading if width == first else slow)
        yield from self._exponents(data)
        value, error = data.floor.values.tolist()
        text = f"what a kernel estimate from {self.kernel_draws} draws sees of the limit itself"
        yield sign(text, "width: Figure 1(b)", Estimate(value, error, setting.BATCHES - 1), "nothing, without bias")

    def _exponents(self, data: xr.Dataset) -> Claims:
        fitted = [width for width in self.widths if width <= FITTED]
        exact = exact_divergences(data)[:, [self.widths.index(width) for width in fitted]]
        if len(fitted) < 2:
            return
        for row, kind in enumerate(NAMES):
            curves = data[CURVES[kind]].sel(width=fitted).transpose("batch", "width", ...).values

            def measure(batches: Real, kind: str = kind) -> float:
                found = [STATISTICS[kind](batches[:, k], data) for k in range(len(fitted))]
                return exponent(fitted, np.maximum(found, 1e-300))

            predicted = exponent(fitted, exact[row])
            text = f"exponent of the {NAMES[kind]}, fitted from width {fitted[0]} to {fitted[-1]}"
            rival = "one over the power 3/2 of n", -1.5
            yield Claim(text, "width: Figure 1(b)", Estimate.jackknife(measure, curves), predicted, rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.6)
        titles = {"kl": "Kullback–Leibler divergence", "energy": "energy distance"}
        widths = data.width.values
        for axes, kind, exact in zip(grid[0], titles, exact_divergences(data), strict=True):
            found = [divergence(data, width, kind) for width in widths.tolist()]
            value, error = np.array([each.value for each in found]), np.array([each.error for each in found])
            seen = value > 2 * error
            marks(axes, widths[seen], value[seen], error[seen], label="drawn, last weight averaged")
            bound = np.maximum(value, 0) + 2 * error
            if not seen.all():
                look: Any = {"ms": 4, "mfc": "none", "color": COLOURS[0], "label": "drawn, two errors above"}
                axes.plot(widths[~seen], bound[~seen], "v", **look)
            line(axes, widths, exact, label="exact")
            line(axes, widths, exact[0] * (widths[0] / widths) ** 1.5, label=r"$n^{-3/2}$", **setting.RIVAL)
            if kind == "kl":
                at = data.kernel.values
                label = f"kernel estimate, {self.kernel_draws:,} draws"
                marks(axes, widths, at[:, 0], at[:, 1], label=label, fmt="s", color=COLOURS[3])
                label = "kernel estimate of the limit itself"
                axes.axhline(float(data.floor[0]), color=COLOURS[3], ls="--", lw=0.9, label=label)
            setting.log_axes(axes, widths)
            axes.set(xlabel="width n", title=titles[kind], ylim=(exact.min() / 300, None))  # room for the legend
            axes.legend(loc="lower left", handlelength=1.4)
        grid[0, 0].set_ylabel("distance to the limit")
        setting.sizes_title(figure, self, "inputs", "score_variance")
        return figure


def gaussians(variances: Real, x: Real) -> Real:
    """Centred Gaussian densities."""
    return np.asarray(np.exp(-(x[:, None] ** 2) / (2 * variances)) / np.sqrt(2 * np.pi * variances))


def kernel_estimate(variances: Real, reference: Real, size: int, rng: np.random.Generator) -> list[float]:
    """The paper's divergence of kernel density estimates, from draws of a coordinate, with its error over groups."""
    wide = np.sqrt(reference) * rng.standard_normal(len(reference))
    y = np.sqrt(variances) * rng.standard_normal(len(variances))
    starts = range(0, min(len(y), setting.BATCHES * size) - size + 1, size)
    return setting.pairs([Estimate.of([kl_divergence(y[start : start + size], wide) for start in starts])])[0]


def _kl(batches: Real, data: xr.Dataset) -> float:
    """Divergence of the mean density, minus the bias that its scatter over batches gives to second order."""
    base, found = data.limit_density.values, batches.mean(axis=0)
    bias = batches.var(axis=0, ddof=1) / len(batches) / (2 * found)
    return float(REACH * WEIGHTS @ (found * np.log(found / base) - bias))


def _energy(batches: Real, data: xr.Dataset) -> float:
    """``(2/pi) int (phi_n - phi)**2/t**2 dt`` over t > 0, from products of different batches: without bias."""
    apart = batches - data.limit_characteristic.values
    total, own = apart.sum(axis=0), np.sum(apart**2, axis=0)
    products = (total**2 - own) / (len(batches) * (len(batches) - 1))
    return float(10 * WEIGHTS @ (products / data.t.values**2) * 2 / np.pi)


STATISTICS = {"kl": _kl, "energy": _energy}
CURVES = {"kl": "density", "energy": "characteristic"}


def divergence(data: xr.Dataset, width: int, kind: str = "kl") -> Estimate:
    """A divergence from the limit at one of the widths, its error by the jackknife over batches."""
    return Estimate.jackknife(partial(STATISTICS[kind], data=data), data[CURVES[kind]].sel(width=width).values)


def exact_divergences(data: xr.Dataset) -> Real:
    """Both divergences of the exact laws."""
    density, base = data.exact_density.values, data.limit_density.values
    apart = (data.exact_characteristic.values - data.limit_characteristic.values) / data.t.values
    return np.array([REACH * (density * np.log(density / base)) @ WEIGHTS, 20 / np.pi * apart**2 @ WEIGHTS])


def leading_order(study: WidthKlDecay) -> float:
    """``n**2`` times the divergence as n grows: one step of Richardson's extrapolation from widths of thousands."""
    limit = HeadMixture(equal_correlations(study.inputs), 1, 0, study.score_variance)
    x = REACH * (NODES + 1) / 2
    values, weights, _ = limit.kernel_values(study.score_variance)
    base = gaussians(values, x) @ weights
    found = []
    for width in (1024, 2048):
        density = FiniteMixture(limit, width).pdf(x)
        found.append(float(width**2 * REACH * WEIGHTS @ (density * np.log(density / base))))
    return 2 * found[1] - found[0]
