"""From the eigenvalues of a sample covariance to those of the population, and to the best estimate of the covariance.

With c the dimension over samples, ``v(z) = -(1 - c)/z + (c/d) sum_i 1/(lambda_i - z)`` is known from the sample. The
population law H solves ``z + 1/v(z) = c int t/(1 + t v(z)) dH(t)``, which is linear in H (El Karoui 2008). The error of
the left side has a known covariance, from Bai and Silverstein's of v:
``cov(f(z), f(w)) = 2/n**2 (1/(v(z) - v(w))**2 - 1/(v'(z) v'(w) (z - w)**2))``. So the weights of H on a grid are a
least-squares problem with positive unknowns and equations of unit variance, and its misfit is a chi-squared.

>>> rng = np.random.default_rng(0)
>>> data = rng.standard_normal((400, 100)) * np.repeat([1.0, 2.0], 50)
>>> values = np.linalg.eigvalsh(data.T @ data / 400)
>>> found = free_deconvolve(values, ratio=0.25)
>>> round(float(found.law.cdf(2.0)), 1), round(found.law.mean(), 1), found.error < 0.2
(0.5, 2.5, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter1d
from scipy.optimize import isotonic_regression, nnls
from scipy.special import chdtrc

from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.spikes.rank_one import RATIO
from bulkedge.laws.spikes.shrinkage import point_masses, population_points
from bulkedge.support.arrays import Complex, Real
from bulkedge.support.domains import FINITE, shown
from bulkedge.support.errors import DomainError, UnresolvedError
from bulkedge.support.random import seeded

FEWEST = 10
"""Values from which on a population can be fitted."""
ZERO = 1e-10  # of the largest value: what is below is the kernel
ROUNDED = 1e-5  # of the largest value, up to which single precision moves those of the kernel
# Points z at which the sample is read, their height relative to the real part (less for small ratios, whose values move
# less), and the share of the values
# below the first: values next to a hard edge do not fluctuate like the rest. Chosen on eight populations of dimension
# 60.
POINTS, HEIGHT, LOWEST = 30, 0.7, 0.2
GRID = 100  # places of the population
ONE = 1e3  # weight of the equation that says that the population has mass one
REFITS, FEW_REFITS = 16, 8  # for an error, and for a mean


@dataclass(frozen=True, eq=False)
class Population:
    """The population spectrum behind a sample covariance.

    Attributes
    ----------
    law : EmpiricalLaw
        Its atoms: the population eigenvalues and their shares.
    error : float
        Root mean square Wasserstein distance between this law and those of refits with fresh noise. Differences on
        smaller scales are not resolved.
    misfit : float
        Chi-squared of the fit.
    freedom : int
        Number of equations.
    p_value : float
        Probability of a larger misfit. It is conservative, because the fit has free weights.
    """

    law: EmpiricalLaw
    error: float
    misfit: float
    freedom: int
    p_value: float


class MomentEquations(NamedTuple):
    """``matrix @ weights = right`` with unit noise, for weights at the places."""

    matrix: Real
    right: Real
    places: Real

    def misfit(self, weights: Real) -> float:
        """Chi-squared of a population."""
        return float(np.sum((self.matrix @ weights - self.right) ** 2))

    def solve(self, right: Real | None = None) -> Real:
        """The weights that fit best, none negative and of sum one."""
        given = np.append(self.right if right is None else right, ONE)
        weights = nnls(np.vstack([self.matrix, np.full(len(self.places), ONE)]), given, maxiter=50 * GRID)[0]
        return np.asarray(weights / weights.sum())

    def refits(self, count: int, rng: np.random.Generator) -> list[Real]:
        """Solutions for other noise."""
        return [self.solve(self.right + rng.standard_normal(len(self.right))) for _ in range(count)]


def free_deconvolve(values: ArrayLike, ratio: float, *, rng: int = 0) -> Population:
    """Estimate the population spectrum from the eigenvalues of a sample covariance.

    The inverse of the free product with a Marchenko-Pastur law: the population whose sample has these eigenvalues.

    Parameters
    ----------
    values : array_like
        All eigenvalues of the sample covariance, zeros included, at least ten.
    ratio : float
        Dimension over number of samples; of centred data, over the number minus one.
    rng : int
        Seed of the refits that give the error.

    Returns
    -------
    Population
        The law, its error, and how well it fits.

    Raises
    ------
    UnresolvedError
        If no population explains the values: the samples are not independent, or the ratio is wrong.

    Examples
    --------
    >>> from bulkedge.ensembles import Wishart
    >>> white = Wishart(dim=100, samples=200).spectrum(np.random.default_rng(0)).values
    >>> found = free_deconvolve(white, ratio=0.5)
    >>> round(found.law.mean(), 1), found.law.var() < 0.02, found.error < 0.1
    (1.0, True, True)
    """
    ordered, ratio = np.sort(_checked(values, ratio)), RATIO.check("ratio", ratio)
    size = ordered.mean()
    ordered = ordered / size
    equations = _equations(ordered, ratio)
    weights = equations.solve()
    misfit, freedom = equations.misfit(weights), len(equations.right)
    p_value = float(chdtrc(freedom, misfit))
    # p-value of the misfit below which there is no population
    if p_value < 1e-4:
        raise UnresolvedError(
            f"no population explains these values (chi-squared {misfit:.3g} of {freedom} equations): the samples are "
            f"not independent, or ratio = {ratio:g} is not dimension over samples"
        )
    refits = equations.refits(REFITS, seeded(rng))
    moved = [np.abs(np.cumsum(each - weights))[:-1] @ np.diff(equations.places) for each in refits]
    kept = weights > 1e-12
    law = EmpiricalLaw(size * equations.places[kept], weights[kept])
    return Population(law, float(size * np.sqrt(np.mean(np.square(moved)))), misfit, freedom, p_value)


def shrink_spectrum(values: ArrayLike, ratio: float) -> Real:
    """Estimate the variance of the population along each eigenvector of a sample covariance.

    Keep the eigenvectors of the sample and put these numbers in the place of its eigenvalues: the estimate of the
    covariance that has the least Frobenius error (Ledoit and Peche 2011). The population is fitted
    (:func:`free_deconvolve`). As far as the data do not tell it from an inverse Wishart law, the estimate is the linear
    shrinkage that is best for that law.

    Parameters
    ----------
    values : array_like
        All eigenvalues of the sample covariance, in any order; zeros where there are fewer samples than dimensions.
    ratio : float
        Dimension over number of samples, one and above included; of centred data, over the number minus one.

    Returns
    -------
    array
        The estimates, in the order of the values and with their mean.

    Raises
    ------
    DomainError
        If there are fewer than ten values, negative ones, or nothing but zeros.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> data = rng.standard_normal((200, 100)) * np.repeat([1.0, 2.0], 50)
    >>> values, vectors = np.linalg.eigh(data.T @ data / 200)
    >>> shrunk = shrink_spectrum(values, ratio=0.5)
    >>> covariance = (vectors * shrunk) @ vectors.T
    >>> values[[0, -1]].round(1), shrunk[[0, -1]].round(1)                 # the population has 1 and 4
    (array([0.1, 8.9]), array([1.2, 4.3]))
    """
    given, ratio = _checked(values, ratio), RATIO.check("ratio", ratio)
    order = np.argsort(given)
    ordered, found = given[order], np.empty(given.shape)
    size = ordered.mean()
    ordered = ordered / size
    equations = _equations(ordered, ratio)
    weights = equations.solve()
    fitted = equations.misfit(weights)
    # James and Stein's weight of the fit against the prior, which has no parameter but the variance
    gain = equations.misfit(_inverse_wishart(ordered, ratio, equations.places)) - fitted
    trust = 1 - max(len(equations.right), fitted) / gain if gain > 0 else 0.0
    shrunk = _linear(ordered, ratio)
    if trust > 0:
        refits = equations.refits(FEW_REFITS, np.random.default_rng(0))
        # places by which the mean of refits is smoothed: a fit is a few atoms, a population seldom is
        weights = gaussian_filter1d(np.mean([weights, *refits], axis=0), 2.0, mode="nearest")
        kept = weights > 1e-6
        mean = weights[kept] / weights[kept].sum()
        shrunk = (1 - trust) * shrunk + trust * _of_population(equations.places[kept], mean, ordered, ratio)
    found[order] = size * shrunk
    return found


def _checked(values: ArrayLike, ratio: float) -> Real:
    given = FINITE.check("values", values).astype(float)
    if given.ndim != 1 or len(given) < FEWEST:
        raise DomainError(f"values = {shown(values)} must be a list of {FEWEST} eigenvalues or more")
    largest = float(given.max())
    if largest <= 0 or given.min() < -ROUNDED * largest:
        raise DomainError(f"values go from {given.min():.3g} to {largest:.3g}: those of a covariance are not negative")
    kernel = max(1 - 1 / RATIO.check("ratio", ratio), 0.0)
    # so many values are zero, whatever rounding made of them
    last = np.append(0.0, np.sort(given))[round(kernel * len(given))]
    given = np.where(given <= min(last, ROUNDED * largest), 0.0, np.maximum(given, 0.0))
    zeros = float(np.mean(given <= ZERO * largest))
    if abs(zeros - kernel) > 2 / len(given):
        raise DomainError(
            f"{zeros:.0%} of the values are zero, and {kernel:.0%} at ratio = {ratio:g}, which is dimension/samples"
        )
    return given


def _equations(ordered: Real, ratio: float) -> MomentEquations:
    """The equations of a population, whitened."""
    positive, samples = ordered[ordered > ZERO * ordered[-1]], len(ordered) / ratio
    low, mean = positive[int(LOWEST * len(positive))], float(ordered.mean())
    z = np.geomspace(0.7 * low, 1.3 * positive[-1], POINTS) * (1 + 1j * HEIGHT * min(ratio, 1.0) ** 0.5)
    v, slope = _companion(ordered, ratio, z)
    noise = _noise(ordered, ratio, z, (v, slope)) / samples**2
    size = np.tile(1 / z.real, 2)
    sizes, directions = np.linalg.eigh(noise * size[:, None] * size)
    # directions whose noise is this much below that of the first are left out: the limit is no better
    kept = sizes > sizes[-1] / 1e4
    whiten = (directions[:, kept] / np.sqrt(sizes[kept])).T * size
    lowest = max(1e-3 * mean, 0.5 * low / (1 + min(ratio, 4.0) ** 0.5) ** 2)
    places = np.geomspace(lowest, positive[-1], GRID)
    matrix, right = ratio * places / (1 + places * v[:, None]), z + 1 / v
    return MomentEquations(whiten @ _real(matrix), whiten @ _real(right), places)


def _real(given: Complex) -> Real:
    return np.concatenate([given.real, given.imag])


def _companion(ordered: Real, ratio: float, z: Complex) -> tuple[Complex, Complex]:
    """The companion Stieltjes transform of the sample, and its derivative."""
    inverse = 1 / (ordered - z[:, None])
    share = ratio / len(ordered)
    return share * inverse.sum(axis=1) - (1 - ratio) / z, share * (inverse**2).sum(axis=1) + (1 - ratio) / z**2


def _noise(ordered: Real, ratio: float, z: Complex, known: tuple[Complex, Complex]) -> Real:
    """Covariance of real and imaginary parts of the left sides, times the squared number of samples."""
    v, slope = known

    def kernel(w: Complex, v_w: Complex, slope_w: Complex) -> Complex:
        with np.errstate(divide="ignore", invalid="ignore"):
            far = 1 / (v[:, None] - v_w) ** 2 - 1 / (slope[:, None] * slope_w * (z[:, None] - w) ** 2)
        return 2 * far

    hermitian, plain = kernel(z.conj(), v.conj(), slope.conj()), kernel(z, v, slope)
    beside = z * (1 + 1e-3)  # on the diagonal both parts are infinite, and their difference is smooth
    np.fill_diagonal(plain, np.diagonal(kernel(beside, *_companion(ordered, ratio, beside))))
    real, imaginary = (hermitian + plain) / 2, (plain - hermitian) / 2
    whole = np.block([[real.real, imaginary.imag], [real.imag, -imaginary.real]])
    return (whole + whole.T) / 2


def _inverse_wishart(ordered: Real, ratio: float, places: Real) -> Real:
    """The inverse Wishart law with the population's mean and variance, for which linear shrinkage is the best."""
    mean = ordered.mean()
    variance = max(float((ordered**2).mean() / mean**2) - 1 - ratio, 1e-4)
    inner = variance / (1 + variance)
    inverse = mean * (1 - inner) / places  # follows Marchenko and Pastur's law; its density by the logarithm
    weights = np.sqrt(np.maximum(((1 + inner**0.5) ** 2 - inverse) * (inverse - (1 - inner**0.5) ** 2), 0.0))
    if not np.any(weights):  # narrower than the grid
        weights[np.argmin(np.abs(places - mean))] = 1.0
    return np.asarray(weights / weights.sum())


def _linear(ordered: Real, ratio: float) -> Real:
    """Oracle-approximating linear shrinkage (Chen, Wiesel, Eldar and Hero 2010)."""
    dim, mean = len(ordered), float(ordered.mean())
    power = float((ordered**2).mean()) / dim
    excess = (dim / ratio + 1) * (power - mean**2 / dim)
    share = min((power + mean**2) / excess, 1.0) if excess > 0 else 1.0
    return np.asarray((1 - share) * ordered + share * mean)


def _of_population(places: Real, weights: Real, ordered: Real, ratio: float) -> Real:
    """Ledoit and Peche's estimates for a population, in order and with the trace of the sample."""
    positive = ordered > ZERO * ordered[-1]
    # height at which a fitted population is read, relative to the value
    points = population_points(point_masses(places, weights), ordered[positive], ratio, places[-1], 0.01)
    # means of population eigenvalues lie between the smallest and the largest, and increase
    bulk = np.clip(np.abs(points) ** 2 / ordered[positive], places[0], places[-1])
    bulk = isotonic_regression(bulk).x
    found = np.empty(ordered.shape)
    found[positive] = bulk
    if not np.all(positive):
        rest = (ordered.sum() - bulk.sum()) / np.sum(~positive)
        found[~positive] = min(max(rest, places[0]), bulk[0])
    return np.asarray(found * ordered.mean() / found.mean())
