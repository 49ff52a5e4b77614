"""Causal attention: a law of its own, and a mean with a family of outliers (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Study, mean_marks
from bulkedge.lab.studies.claims import Claim, Rival, share
from bulkedge.lab.studies.equivalence.setting import UNKNOWN, doubling_axis, plain_logarithms
from bulkedge.laws import CausalHeadLaw, CausalLaw, MarchenkoPastur
from bulkedge.plots.style import COLOURS, histogram, line, panels
from bulkedge.spectra import spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Each, Integers, Interval, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track
from bulkedge.visibility import Mask, prefix_mean_values

SHOWN, BINS = 8, 40
CLAIMED = 3
"""Singular values of the mean that are claimed together."""
TIMES = 3
"""So many times more draws for the singular values of the mean, which fluctuate with the first rows."""
LEVELS = np.array([0.15, 0.3, 0.5, 0.7, 0.9])
"""Levels of the law of independent scores at whose quantiles distribution functions are compared."""
INDEPENDENT = 4
"""Head dimensions a token from which scores are as good as independent, as ``SoftmaxAttention.law`` takes them: there
the rival is attention without a mask."""


class Shifted(NamedTuple):
    """Singular values of the mean, and what the fluctuations of the rows do to them."""

    bare: Real
    """Those of the Cesaro matrix."""
    shift: Real
    """Mean shift to second order in the fluctuations."""
    error: Real
    """Size of the next order: the square of the shift over the distance to the nearest value."""


@dataclass(frozen=True)
class EquivalenceCausal(Study):
    """The bulk of causal attention beside the law of independent scores and that of real heads, and its mean's values.

    The law of independent scores holds where the head dimension exceeds the tokens; at the size of real heads the
    scores have low rank, which the distribution of causal heads knows. The mean is the Cesaro matrix, whose singular
    values are those of causal attention up to a shift by the fluctuations of the first rows.
    """

    tokens: int = parameter(Integers(64, 10_000), "tokens", 300, ours=1000)
    head_dims: tuple[int, ...] = parameter(
        Each(Integers(32, 4096), most=10), "head dimensions, in any order", (32, 128, 1200), ours=(32, 128, 512, 4096)
    )
    beta: float = parameter(Interval(0.05, 1), "inverse temperature", 0.6, ours=0.6)
    qk_norm: bool = parameter(
        Choice((False, True)), "whether queries and keys are normalised", default=True, ours=False
    )
    draws: int = parameter(Integers(2, 100), "draws", 16, ours=16)
    small: ClassVar = {"tokens": 100, "head_dims": (400,), "draws": 8}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Distribution functions for each head dimension; bulk and largest values for the largest."""
        dims = sorted(set(self.head_dims))
        law, dense = CausalLaw(np.expm1(self.beta**2)), MarchenkoPastur(1.0, float(np.expm1(self.beta**2)))
        points = law.ppf(LEVELS)
        masses, heads = np.empty((len(dims), self.draws, len(points))), np.empty((len(dims), len(points)))
        for k, dim in enumerate(track(dims, "head dimensions")):
            model = SoftmaxAttention(self.tokens, dim, self.beta, self.qk_norm, mask="causal")
            found = [model.spectrum(rng) for _ in range(self.draws)]
            masses[k] = [np.searchsorted(each.values, points, side="right") / self.tokens for each in found]
            heads[k] = CausalHeadLaw(self.beta, dim, self.tokens, self.qk_norm).cdf(points)
        bins, shown = np.linspace(-8, 4, BINS + 1), np.linspace(-8, 4, 300)
        logs = np.log10(np.maximum([each.values for each in found], 1e-300))
        counts = [np.histogram(row, bins)[0] / len(row) / np.diff(bins) for row in logs]
        bulk = xr.Dataset(
            {
                "mass": (("head_dim", "draw", "level"), masses, {"long_name": "distribution function"}),
                "heads": (("head_dim", "level"), heads, {"long_name": "that of causal heads"}),
                "dense": ("level", dense.cdf(points), {"long_name": "that of attention without a mask"}),
                "simulation": (("draw", "bin"), counts),
                "theory": ("point", law.pdf(10**shown) * 10**shown * np.log(10)),
                "unmasked": ("point", dense.pdf(10**shown) * 10**shown * np.log(10)),
            },
            coords={"head_dim": dims, "level": LEVELS, "point": shown, "bin_edge": bins},
        )
        return bulk.merge(self._largest(model, rng))

    def _largest(self, model: SoftmaxAttention, rng: np.random.Generator) -> xr.Dataset:
        top = [spectrum(model.sample(rng)).values[: -SHOWN - 1 : -1] for _ in range(TIMES * self.draws)]
        sizes, mean = 2 ** np.arange(4, 17), shifted(self.tokens, self.beta, SHOWN)
        norms = [prefix_mean_values(size, 1)[0] for size in sizes.tolist()]
        return xr.Dataset(
            {
                "value": (("sample", "rank"), np.array(top), {"long_name": "singular value of A"}),
                "mean": ("rank", mean.bare, {"long_name": "that of the Cesaro matrix"}),
                "shift": ("rank", mean.shift, {"long_name": "its mean shift by the fluctuations of rows"}),
                "next": ("rank", mean.error, {"long_name": "size of the next order"}),
                "norm": ("tokens", norms, {"long_name": "norm of the Cesaro matrix"}),
            },
            coords={"rank": np.arange(1, SHOWN + 1), "tokens": sizes},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The bulk for small and for large heads, and the first values of the mean."""
        return [*self._bulk(data), *self._mean(data)]

    def _bulk(self, data: xr.Dataset) -> list[Claim]:
        claims = []
        for dim in data.head_dim.values.tolist():
            one = data.sel(head_dim=dim)
            low_rank = dim < INDEPENDENT * self.tokens
            name = "the law of independent scores" if low_rank else "the law without a mask"
            theory, rival = one.heads.values, LEVELS if low_rank else one.dense.values
            direction = rival - theory
            claims.append(
                Claim(
                    statement=f"share of {name} in the bulk, head dimension {dim}",
                    place="ours",
                    measured=share(one.mass, theory, rival),
                    predicted=0.0,
                    rival=Rival(name, 1.0),
                    finite_size=UNKNOWN / self.tokens * np.abs(direction).sum() / (direction @ direction),
                    reason="rank of what no law knows over T, as the zero of the constant vector",
                )
            )
        return claims

    def _mean(self, data: xr.Dataset) -> list[Claim]:
        first = data.sel(rank=slice(None, CLAIMED))
        reason = "the next order of the expansion in the fluctuations of rows"
        return [
            Claim(
                statement="largest singular value of causal attention",
                place="ours",
                measured=Estimate.of(data.value.sel(rank=1)),
                predicted=float((data["mean"] + data["shift"]).sel(rank=1)),
                rival=Rival("one, as without a mask", 1.0),
                finite_size=float(data.next.sel(rank=1)),
                reason=reason,
            ),
            Claim(
                statement=f"mean of its first {CLAIMED} singular values: the Cesaro matrix's, shifted by fluctuations",
                place="ours",
                measured=Estimate.of(first.value.mean("rank")),
                predicted=float((first["mean"] + first["shift"]).mean()),
                rival=Rival("those of the Cesaro matrix alone", float(first["mean"].mean())),
                finite_size=float(first.next.mean()),
                reason=reason,
            ),
        ]

    def figure(self, data: xr.Dataset) -> Figure:
        """The bulk, its distance over the head dimension, largest values over rank, and the norm of the mean."""
        figure, grid = panels(2, 2, height=2.4)
        (bulk, distance), (top, norm) = grid
        histogram(bulk, 10**data.bin_edge, data.simulation.mean("draw"))
        line(bulk, 10**data.point, data.theory, label="causal law")
        line(bulk, 10**data.point, data.unmasked, label="without a mask", color=COLOURS[2], lw=0.9, ls="--")
        bulk.set(xscale="log", xlabel="squared singular value", ylabel="density, per decade", ylim=(0, None))
        bulk.set_title(f"head dimension {int(data.head_dim[-1])}")
        independent = np.abs(data.mass - data.level).max("level")
        heads = np.abs(data.mass - data["heads"]).max("level")
        mean_marks(distance, data.head_dim, independent, label="to the law of independent scores")
        mean_marks(distance, data.head_dim, heads, label="to that of causal heads", fmt="s", color=COLOURS[2])
        distance.set(xscale="log", yscale="log", xlabel="head dimension", ylim=(None, 4 * float(independent.max())))
        distance.set_ylabel("largest difference, five levels")
        distance.xaxis.set_major_locator(FixedLocator(data.head_dim.values.tolist()))
        distance.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        distance.xaxis.set_minor_formatter(NullFormatter())
        plain_logarithms(distance.yaxis)
        line(top, data["rank"], data["mean"] + data["shift"], label="with fluctuations", marker=".")
        line(top, data["rank"], data["mean"], label="Cesàro matrix", color=COLOURS[2], lw=0.9, ls="--")
        mean_marks(top, data["rank"], data.value.rename(sample="draw"), label="causal attention")
        top.set(xlabel="rank", ylabel="singular value", xticks=data["rank"].values)
        line(norm, data.tokens, data["norm"], label="norm of the Cesàro matrix")
        norm.axhline(2.0, color=COLOURS[-1], ls=":", lw=0.9, label="limit")
        doubling_axis(norm, data.tokens[::4])
        norm.set(xlabel="tokens", ylabel="largest singular value")
        for axes, place in (
            (bulk, "upper left"),
            (distance, "upper right"),
            (top, "upper right"),
            (norm, "lower right"),
        ):
            axes.legend(loc=place)
        figure.suptitle(f"{self.tokens} tokens, β = {self.beta:g}, {self.draws} draws")
        return figure


def shifted(tokens: int, beta: float, ranks: int) -> Shifted:
    """Singular values of causal attention of independent scores, to second order in the fluctuations of its rows.

    With ``C = sum_k s_k u_k v_k'`` the mean and F the fluctuation, ``s_r`` moves on average by the sum over k of
    ``(s_r E[(u_k'F v_r)**2 + (u_r'F v_k)**2] + 2 s_k E[(u_k'F v_r)(u_r'F v_k)])/(2 (s_r**2 - s_k**2))``. Row i has i
    weights of mean 1/i that sum to one, and ``i E A_ij**2 = exp(beta**2)/(i + exp(beta**2) - 1)``.
    """
    count = np.arange(1.0, tokens + 1)
    left, values, right = np.linalg.svd(Mask.causal(tokens).mean())
    second = np.exp(beta**2) / (count + np.expm1(beta**2)) / count
    variance = second - 1 / count**2
    # weights of a row sum to one: they are correlated by -1/(i - 1)
    pairs = -variance / np.maximum(count - 1, 1)
    sums, shifts, errors = right.cumsum(axis=1), [], []
    for rank in range(ranks):
        others = np.delete(np.arange(tokens), rank)
        u, v, s = left[:, rank], right[rank], values[rank]
        own = (variance - pairs) * np.cumsum(v**2) + pairs * sums[rank] ** 2
        theirs = (variance - pairs) * np.cumsum(right[others] ** 2, axis=1) + pairs * sums[others] ** 2
        joint = (variance - pairs) * np.cumsum(right[others] * v, axis=1) + pairs * sums[others] * sums[rank]
        square = (left[:, others] ** 2).T @ own + theirs @ u**2
        cross = np.sum(left[:, others].T * joint * u, axis=1)
        shifts.append(np.sum((s * square + 2 * values[others] * cross) / (2 * (s**2 - values[others] ** 2))))
        errors.append(shifts[-1] ** 2 / np.abs(values[others] - s).min())
    return Shifted(values[:ranks], np.array(shifts), np.array(errors))
