"""*propagation*, Figure 1: random Markov matrices have one outlier and the bulk of a Gaussian matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.comparison import compare
from bulkedge.domains import Integers, parameter
from bulkedge.ensembles.markov import Entries, RandomMarkov, without_gap
from bulkedge.laws.semicircle import QuarterCircle
from bulkedge.progress import track
from bulkedge.spectra import spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

VARIANCES: dict[Entries, float] = {"lognormal": 1.0, "exponential": 1.0, "uniform": 1 / 3}
FOURTH: dict[Entries, float] = {"lognormal": 41.0, "exponential": 9.0, "uniform": 1.8}
"""Fourth central moment over the squared variance, which sets how fast the limit comes."""


@dataclass(frozen=True)
class Spectrum(Study):
    """Eigenvalues and singular values of random Markov matrices: one outlier at one, and a bulk of size 1/sqrt(T).

    The bulk is that of an i.i.d. matrix, a disc for eigenvalues and a quarter circle for singular values, whatever the
    entries. Values are shown times ``sqrt(T)/sigma``.
    """

    tokens: int = parameter(Integers(50, 5000), "number of tokens T", 300, paper=1000)
    draws: int = parameter(Integers(2, 100), "matrices of each kind", 4)
    bins: int = parameter(Integers(5, 200), "bins of the histogram", 25, paper=50)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Matrices with entries of each kind."""
        x = np.linspace(0, 2.2, 221)
        edges = np.linspace(0, 2.5, self.bins + 1)
        models = {name: RandomMarkov(self.tokens, power, name) for name, power in VARIANCES.items()}
        parts = [self._measure(model, edges, rng) for model in track(list(models.values()), "entries")]
        return (
            xr.concat(parts, dim=xr.Variable("entries", list(VARIANCES)))
            .assign({"theory": ("x", QuarterCircle().pdf(x))})
            .assign_coords(x=x, bin_edge=edges)
        )

    def _measure(self, model: RandomMarkov, edges: Real, rng: np.random.Generator) -> xr.Dataset:
        root = np.sqrt(self.tokens / model.variance)
        matrices = [model.sample(rng) for _ in range(self.draws)]
        found = [spectrum(root * each) for each in matrices]
        bulk = np.concatenate([each.values[:-1] for each in found])
        eigen = root * np.linalg.eigvals(matrices[0])
        distances = [
            compare(spectrum(root * without_gap(each)).squared(), QuarterCircle().squared()).ks for each in matrices
        ]
        counts, _ = np.histogram(bulk, edges)
        return xr.Dataset(
            {
                "first": ("draw", [each.values[-1] / root for each in found], {"long_name": "largest singular value"}),
                "second": ("draw", [each.values[-2] for each in found], {"long_name": "second, times sqrt(T)/sigma"}),
                "distance": ("draw", distances, {"long_name": "Kolmogorov distance of the squared bulk"}),
                "simulation": ("bin", counts / (len(bulk) * np.diff(edges))),
                "eigen_real": ("index", eigen.real),
                "eigen_imag": ("index", eigen.imag),
                "radius": ((), np.sort(np.abs(eigen))[-2], {"long_name": "second largest modulus"}),
            }
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The outlier, the edge and the bulk, for every kind of entries."""
        return [claim for name in VARIANCES for claim in self._claims(name, data.sel(entries=name))]

    def _claims(self, name: Entries, one: xr.Dataset) -> list[Claim]:
        model = RandomMarkov(self.tokens, VARIANCES[name], name)
        slack = FOURTH[name] / self.tokens
        squared = self.tokens * one["first"] ** 2
        error = standard_error(squared)
        edge = standard_error(one.second)
        return [
            Claim(
                statement=f"{name}: T s_1^2 = T + sigma^2, so s_1 tends to one",
                place="propagation, Theorem 2",
                predicted=model.outlier(),
                measured=float(squared.mean()),
                error=error,
                tolerance=5 * error + slack,
                reason="five standard errors; row sums take a share of order kurtosis/T off sigma^2",
            ),
            Claim(
                statement=f"{name}: second singular value times sqrt(T)/sigma",
                place="propagation, Theorem 2",
                predicted=2.0,
                measured=float(one.second.mean()),
                error=edge,
                tolerance=5 * edge + 2 * self.tokens ** (-2 / 3) + slack,
                reason="five standard errors, Tracy-Widom of order T^(-2/3), and kurtosis/T from single large entries",
            ),
            Claim(
                statement=f"{name}: second largest modulus of an eigenvalue times sqrt(T)/sigma",
                place="propagation, Theorem 2 (Bordenave, Caputo and Chafai 2011)",
                predicted=1.0,
                measured=float(one.radius),
                error=0.0,
                tolerance=2 * (np.log(self.tokens) / (4 * self.tokens)) ** 0.5,
                reason="twice the excess sqrt(log T/(4 T)) of the radius of an i.i.d. matrix",
                relation="<=",
            ),
            Claim(
                statement=f"{name}: Kolmogorov distance of the bulk from the quarter circle",
                place="propagation, Lemma 3",
                predicted=0.0,
                measured=float(one.distance.mean()),
                error=standard_error(one.distance),
                tolerance=(3 + FOURTH[name] / 6) / self.tokens,
                reason="a few 1/T, and the variance lost to row sums, of order kurtosis/T",
                relation="<=",
            ),
        ]
