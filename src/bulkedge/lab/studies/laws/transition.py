"""An outlier crosses the threshold of Baik, Ben Arous and Peche."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.linalg import eigh

from bulkedge.ensembles import Wigner
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, mean_marks, track
from bulkedge.laws import EmpiricalLaw, Semicircle, Spike
from bulkedge.plots.style import line, panels
from bulkedge.support.domains import Integers, Interval, parameter

PLACES = {
    "wigner": "laws: Benaych-Georges and Nadakuditi 2011",
    "covariance": "laws: Baik and Silverstein 2006, Paul 2007",
}
ABOVE, BELOW = 1.3, 0.7
"""Strengths, in thresholds, from which the outlier stands clear of the fluctuations of the edge, on either side."""
MODELS = {"wigner": "rank one plus Wigner", "covariance": "sample covariance"}


@dataclass(frozen=True)
class LawsTransition(Study):
    """Largest eigenvalue and overlap of its eigenvector with a planted direction, as the signal passes the threshold.

    Two models: a rank-one matrix added to a Wigner matrix, and one large population eigenvalue seen through a sample
    covariance of white noise.
    """

    size: int = parameter(Integers(50, 10_000), "rows of the matrices", 300, ours=1000)
    draws: int = parameter(Integers(2, 1000), "matrices for each strength", 8, ours=20)
    strengths: int = parameter(Integers(5, 200), "strengths between 0.4 and 2.5 thresholds", 15, ours=22)
    ratio: float = parameter(Interval(0.05, 5), "dimension over samples of the covariance", 0.5, ours=0.5)
    small = {"size": 100, "draws": 4}
    caption = """Largest eigenvalue (top) and squared overlap with the planted direction (bottom) over the
    strength of the signal. Both should stay flat up to the dotted threshold and follow the line beyond it, rounded
    by finite size only near the threshold."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Plant a direction of each strength in each model."""
        relative = np.linspace(0.4, 2.5, self.strengths)
        parts = [self._measure(model, relative, rng) for model in PLACES]
        return xr.concat(parts, dim=xr.Variable("model", list(PLACES))).assign_coords(
            strength=("strength", relative, {"units": "threshold"})
        )

    def _theory(self, model: str, theta: Real) -> Spike:
        if model == "wigner":
            return Semicircle().spike(theta)
        return EmpiricalLaw([1.0]).sample_spike(theta, self.ratio)

    def _measure(self, model: str, relative: Real, rng: np.random.Generator) -> xr.Dataset:
        threshold = self._theory(model, np.ones(1)).threshold
        fine = np.linspace(relative[0], relative[-1], 211)
        theory, curve = self._theory(model, threshold * relative), self._theory(model, threshold * fine)
        draw = self._wigner if model == "wigner" else self._covariance
        found = [
            [_top(draw(threshold * strength, rng)) for _ in range(self.draws)]
            for strength in track(relative.tolist(), model)
        ]
        location, overlap = np.moveaxis(np.array(found), 2, 0)
        return dataset(
            location=(("strength", "draw"), location, "largest eigenvalue"),
            overlap=(("strength", "draw"), overlap, "squared overlap with the planted direction"),
            predicted_location=("strength", theory.location),
            predicted_overlap=("strength", theory.overlap),
            curve_location=("fine_strength", curve.location),
            curve_overlap=("fine_strength", curve.overlap),
            threshold=((), threshold, "detection threshold"),
            coords={"fine_strength": ("fine_strength", fine, {"units": "threshold"})},
        )

    def _wigner(self, theta: float, rng: np.random.Generator) -> Real:
        matrix = Wigner(self.size).sample(rng)
        matrix[0, 0] += theta
        return matrix

    def _covariance(self, theta: float, rng: np.random.Generator) -> Real:
        samples = round(self.size / self.ratio)
        data = rng.standard_normal((samples, self.size))
        data[:, 0] *= np.sqrt(theta)
        return np.asarray(data.T @ data / samples)

    def statements(self, data: xr.Dataset) -> Claims:
        """Location and overlap above the threshold, and no overlap below it."""
        for model, place in PLACES.items():
            one = data.sel(model=model)
            above, below = one.sel(strength=slice(ABOVE, None)), one.sel(strength=slice(None, BELOW))
            rivals = {
                "location": ("the planted strength itself", float((above.strength * above.threshold).mean())),
                "overlap": ("the planted direction itself", 1.0),
            }
            for quantity, name in (("largest eigenvalue", "location"), ("squared overlap", "overlap")):
                text = f"{model}: mean {quantity} above {ABOVE} thresholds"
                predicted = above[f"predicted_{name}"].mean()
                reason = "fitted: at 50 rows means are 0.2/n to 0.9/n low, in 400 draws"
                yield Claim(text, place, above[name], predicted, rivals[name], finite_size=1 / self.size, reason=reason)
            text = f"{model}: mean squared overlap below {BELOW} thresholds, at most of order 1/n"
            rival = f"no threshold: as at {ABOVE}", above.predicted_overlap[0]
            finite_size = 12 / self.size
            reason = "derived: n times the overlap is at most about 1/(1 - 0.7)**2 = 11 there"
            one_sided = "there is no overlap in the limit, and a bound of order 1/n at finite size"
            yield Claim(text, place, below.overlap, 0.0, rival, finite_size, reason, relation="<=", one_sided=one_sided)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(2, data.sizes["model"])
        for column, model in enumerate(data.model.values.tolist()):
            one = data.sel(model=model)
            for axes, name in zip(grid[:, column], ("location", "overlap"), strict=True):
                line(axes, one.fine_strength, one[f"curve_{name}"])
                mean_marks(axes, one.strength, one[name], label="simulation, mean of draws")
                axes.axvline(1.0, color="black", lw=0.8, ls=":", zorder=0)
                axes.set_ylabel(one[name].attrs["long_name"].replace(" with", "\nwith"))
            grid[0, column].set_title(f"{MODELS[model]}, n = {self.size}, {one.sizes['draw']} draws")
            grid[1, column].set_xlabel("strength / threshold")
            grid[1, column].set_ylim(-0.03, 1)
            grid[1, column].legend(loc="lower right")
        return figure


def _top(matrix: Real) -> tuple[float, float]:
    """Largest eigenvalue, and the squared first entry of its eigenvector."""
    last = len(matrix) - 1
    values, vectors = eigh(matrix, subset_by_index=(last, last), overwrite_a=True)
    return float(values[0]), float(vectors[0, 0] ** 2)
