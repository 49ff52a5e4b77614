"""Figure 3, its first panel: what the linear model is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.optimize import brentq

from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, follows, mean_marks
from bulkedge.plots.style import COLOURS, line, panels
from bulkedge.support.domains import Integers, Interval, parameter

BATCHES = 20


@dataclass(frozen=True)
class EquivalenceCoefficients(Study):
    """Variance ``theta_1 = E f**2`` and signal ``theta_2 = (E f')**2`` of an entry: from beta = 1.12 on most is noise.

    Here ``f(s) = exp(beta s - beta**2/2) - 1``. The part of the variance that is noise overtakes the part that is
    linear in the scores where ``exp(beta**2) = 1 + 2 beta**2``, at beta = 1.121.
    """

    first: float = parameter(Interval(0.01, 0.5), "smallest beta", 0.1, ours=0.1)
    last: float = parameter(Interval(1.3, 5), "largest beta", 3.0, ours=3.0)
    steps: int = parameter(Integers(10, 500), "values of beta", 30, ours=100)
    samples: int = parameter(Integers(1000, 10**8), "Gaussian scores", 4 * 10**6, ours=2 * 10**7)
    small = {"samples": 200_000}
    caption = """The variance θ₁ of an entry, its linear part θ₂ and their difference over β, with samples
    as points. Right of the dotted line the difference exceeds θ₂: most of an entry's variance is then noise."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both by formula, and by averages over Gaussian scores, in independent batches."""
        beta = np.linspace(self.first, self.last, self.steps)
        # up to this beta averages over Gaussian scores are reliable: the variance of f**2 grows like exp(6 beta**2)
        sampled = beta[beta <= 1.3]
        variance, slope = np.empty((2, BATCHES, len(sampled)))
        for batch in range(BATCHES):
            scores = rng.standard_normal(self.samples // BATCHES)
            for k, each in enumerate(sampled.tolist()):
                f = np.expm1(each * scores - each**2 / 2)
                # the mean slope, E f' = E[s f] by partial integration
                variance[batch, k], slope[batch, k] = np.mean(f**2), np.mean(scores * f)
        return dataset(
            variance=("beta", np.expm1(beta**2), "theta_1"),
            signal=("beta", beta**2, "theta_2"),
            sampled_variance=(("draw", "sampled"), variance, "mean of f**2"),
            sampled_slope=(("draw", "sampled"), slope, "mean slope of f"),
            crossing=((), crossing(), "beta where noise overtakes the linear part"),
            coords={"beta": beta, "sampled": sampled},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Both coefficients, where samples can tell, and where the noise overtakes the linear part."""
        at = data.sampled.values
        near = at <= 1.0
        variance, slope = data.sampled_variance.values, data.sampled_slope.values

        def met(draws: Real) -> float:
            return _crosses(at, draws[:, 0].mean(axis=0), draws[:, 1].mean(axis=0) ** 2)

        text = "theta_1 = exp(beta^2) - 1 up to beta = 1: share of its linear part alone"
        place = "equivalence: Figure 3, Theorem 3.2"
        yield follows(text, place, variance[:, near], np.expm1(at[near] ** 2), ("beta^2", at[near] ** 2))
        text = "root of theta_2 = beta^2 up to beta = 1: share of the slope's mean square"
        rival = "beta exp(beta^2/2), the root of E f'^2", at[near] * np.exp(at[near] ** 2 / 2)
        yield follows(text, "equivalence: Figure 3, Theorem 3.2", slope[:, near], at[near], rival)
        text = "the beta at which noise, theta_1 - theta_2, overtakes the linear part, theta_2"
        measured = Estimate.jackknife(met, np.stack([variance, slope], axis=1))
        finite_size = 1.2 * float(np.diff(at).max()) ** 2 / 8
        reason = "derived: linear interpolation between values of beta; curvature over slope is 1.2 there"
        yield Claim(text, "equivalence: Figure 3", measured, data.crossing, ("beta = 1", 1.0), finite_size, reason)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 1, height=2.6)
        axes = grid[0, 0]
        line(axes, data.beta, data.variance, label=r"$\theta_1=e^{\beta^2}-1$")
        line(axes, data.beta, data.signal, label=r"$\theta_2=\beta^2$", color=COLOURS[0])
        line(axes, data.beta, data.variance - data.signal, label=r"$\theta_1-\theta_2$", color=COLOURS[2], ls="--")
        shown = slice(None, None, max(1, data.sizes["sampled"] // 8))
        for sampled, label in ((data.sampled_variance, "sampled"), (data.sampled_slope**2, "")):
            mean_marks(axes, data.sampled[shown], sampled.isel(sampled=shown), label=label, color="black")
        axes.axvline(float(data.crossing), color="0.5", ls=":", lw=0.9, label=f"β = {float(data.crossing):.3f}")
        axes.set(yscale="log", xlabel="β", ylabel="coefficient", title=f"{self.samples:,} Gaussian scores")
        axes.legend(loc="upper left")
        return figure


def crossing() -> float:
    """Where ``exp(beta**2) = 1 + 2 beta**2``."""
    return float(brentq(lambda beta: np.expm1(beta**2) - 2 * beta**2, 0.5, 2.0))


def _crosses(at: Real, variance: Real, signal: Real) -> float:
    """Where the variance is twice the signal, between values of beta by its logarithm."""
    excess = np.log(variance / (2 * signal))
    after = int(np.argmax(excess > 0))
    if not after:
        return float("nan")
    before = after - 1
    return float(at[before] + (at[after] - at[before]) * excess[before] / (excess[before] - excess[after]))
