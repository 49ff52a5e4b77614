"""Pooled sequences beyond two equal classes: several classes of any sizes, with noise of any covariance (ours).

The table has ``V_k`` rows ``mu_k + z`` of class k, z of covariance Sigma. Labels along a sequence occur as often as in
the table, ``pi_k = V_k/V``, and are correlated by ``R_ts = a_t a_s``: position t takes the label of its sequence with
probability a_t, and else one of its own. Given the table, the covariance of a pooled row is then ``kappa sum_k pi_k S_k
+ alpha sum_k pi_k (m_k - m)(m_k - m)'``, with S_k the scatter of class k in the table, ``m_k = mu_k + noise`` its mean
and m their average. So there are K - 1 spikes, and :class:`PooledMixture` says where they are. Class means have random
directions, or are given in the principal axes of the noise (:meth:`PooledMixture.aligned`): signal along loud axes of
the noise stands out further than along quiet ones.

>>> import numpy as np
>>> from bulkedge.recovery import causal_weights, prefix_correlation
>>> gram = 1.3**2 * np.array([[1, -1], [-1, 1]])             # as PooledSequences with signal 1.3
>>> model = PooledMixture(500, (500, 500), 1500, gram, causal_weights(10), prefix_correlation(10, 4, 0.6))
>>> [round(each, 3) for each in model.spikes()[0][:2]]
[1.387, 0.674]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import brentq

from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.correlations import CORRELATION, product_loading
from bulkedge.ensembles.pooled import repetition, warn_of_repetition
from bulkedge.ensembles.weights import WEIGHTS, pool, require_positions
from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.classical.free import free_mul
from bulkedge.laws.classical.product import MarchenkoPastur
from bulkedge.laws.law import Law
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Each, Instance, Integers, Parametric, SymmetricMatrix, parameter
from bulkedge.support.errors import DomainError
from bulkedge.support.random import numpy_generator

WHITE = EmpiricalLaw([1.0])


class ClassSpike(NamedTuple):
    """One of the K - 1 directions between classes."""

    location: float  # eigenvalue of the sample covariance; the edge of the bulk if it does not leave it
    alignment: float  # squared length of its eigenvector within the span of the class means
    detectable: bool  # whether it leaves the bulk


@dataclass(frozen=True, eq=False, repr=False)
class PooledMixture(Parametric, Ensemble):
    """Pooled rows of sequences over a table of several classes; the law is that of the eigenvalues of ``Y'Y/N``.

    Class means have the inner products ``gram`` and otherwise random directions. Rows are centred by their mean given
    the table.

    >>> model = PooledMixture(100, (100, 100), 300, np.diag([4.0, 4.0]), np.full(4, 0.25), np.eye(4))
    >>> round(model.law().edge, 3), [round(each, 3) for each in model.spikes()[0]]
    (0.995, [1.094, 0.486, 1])
    """

    dim: int = parameter(Integers(2, 10**6), "dimension D of the embeddings")
    sizes: tuple[int, ...] = parameter(Each(Integers(2, 10**8), most=100), "rows V_k of each class in the table")
    samples: int = parameter(Integers(2, 10**8), "sequences N")
    gram: Any = parameter(SymmetricMatrix(), "inner products of the class means")
    weights: Any = parameter(WEIGHTS, "pooling weights")
    correlation: Any = parameter(CORRELATION, "correlation of the labels along a sequence")
    noise_covariance: Law = parameter(Instance(Law), "law of the eigenvalues of the noise covariance", WHITE)
    loadings: Any = None
    """Class means in the principal axes of the noise, smallest variance first; None for random directions."""

    def __post_init__(self) -> None:
        """Check the parameters, and that they fit each other."""
        super().__post_init__()
        if not 2 <= len(self.gram) == len(self.sizes) <= self.dim:
            raise DomainError(
                f"sizes are for {len(self.sizes)} classes and gram for {len(self.gram)}; they must be as many, "
                f"two at least and at most dim = {self.dim}"
            )
        require_positions(self.weights, self.correlation)
        if self.noise_covariance.lower_edge < 0 or not np.isfinite(self.noise_covariance.edge):
            raise DomainError(
                f"noise_covariance = {self.noise_covariance!r} is not a law on a bounded part of [0, inf)"
            )
        if self.loadings is not None:
            object.__setattr__(self, "loadings", self._checked_loadings())
        if self._loading.min() < 0:
            raise DomainError("correlation must be a_t a_s off the diagonal, with a_t >= 0: labels are copied or fresh")

    @classmethod
    def aligned(cls, means: Any, covariance: Any, **others: Any) -> PooledMixture:
        """The mixture of given class means and a given covariance of the noise, both in one basis.

        Parameters
        ----------
        means : array of shape (classes, dim)
            Class means.
        covariance : array of shape (dim, dim)
            Covariance of the noise.
        **others
            ``sizes``, ``samples``, ``weights`` and ``correlation``, as of :class:`PooledMixture`.

        Returns
        -------
        PooledMixture
            With the means in the principal axes of the noise.

        Examples
        --------
        >>> others = {"sizes": (100, 100), "samples": 300, "weights": np.full(4, 0.25), "correlation": np.eye(4)}
        >>> noise, found = np.diag(np.repeat([0.2, 1.8], 50)), []
        >>> for axis in (0, 99):                                          # along the quietest and the loudest axis
        ...     means = 2.0 * np.outer([1, -1], np.eye(100)[axis])
        ...     found.append(round(PooledMixture.aligned(means, noise, **others).spikes()[0].location, 2))
        >>> found
        [1.43, 1.76]
        """
        variances, axes = np.linalg.eigh(SymmetricMatrix().check("covariance", covariance))
        means = FINITE.check("means", means)
        if means.ndim != 2 or means.shape[1] != len(variances):
            raise DomainError(f"means have the shape {means.shape}; it must be (classes, {len(variances)})")
        loadings = means @ axes
        noise = EmpiricalLaw(np.maximum(variances, 0.0))
        gram = loadings @ loadings.T
        return cls(dim=len(variances), gram=gram, noise_covariance=noise, loadings=loadings, **others)

    def _checked_loadings(self) -> Real:
        loadings: Real = FINITE.check("loadings", self.loadings)
        if loadings.shape != (len(self.gram), self.dim):
            raise DomainError(
                f"loadings have the shape {loadings.shape}; it must be {(len(self.gram), self.dim)}, classes and dim"
            )
        if not np.allclose(loadings @ loadings.T, self.gram, rtol=1e-6, atol=1e-9 * np.abs(self.gram).max()):
            raise DomainError("gram differs from loadings @ loadings.T; PooledMixture.aligned makes it so")
        return loadings

    @cached_property
    def _variances(self) -> Real:
        """Variances of the noise along its principal axes, in increasing order."""
        return self.noise_covariance.ppf((np.arange(self.dim) + 0.5) / self.dim)

    @cached_property
    def _loading(self) -> Real:
        """Probabilities a_t with which positions take the label of their sequence; negative where there are none."""
        loading = product_loading(self.correlation)
        return np.full(len(self.correlation), -1.0) if loading is None else loading

    # -- simulation ----------------------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> Real:
        """The pooled rows, N x D."""
        return self._draw(rng)[0]

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Eigenvalues of ``Y'Y/N``."""
        rows = self.sample(rng)
        return spectrum(rows.T @ rows / self.samples, kind="eigen")

    def leading(self, rng: np.random.Generator) -> Real:
        """Top K - 1 eigenvalues of a draw, with the squared length of their vectors in the span of the class means."""
        rows, means = self._draw(rng)
        last = self.dim - 1
        values, vectors = eigh(rows.T @ rows / self.samples, subset_by_index=(last - len(means) + 2, last))
        directions, sizes, _ = np.linalg.svd(means.T, full_matrices=False)
        kept = directions[:, sizes > 1e-9 * max(sizes[0], 1.0)]
        return np.stack([values, np.sum((kept.T @ vectors) ** 2, axis=0)], axis=1)[::-1]

    def _draw(self, rng: np.random.Generator) -> tuple[Real, Real]:
        """Pooled rows, and class means."""
        rng, classes = numpy_generator(rng), len(self.sizes)
        means = self.loadings
        if means is None:
            axes = np.linalg.qr(rng.standard_normal((self.dim, classes)))[0].T
            values, vectors = np.linalg.eigh(self.gram)
            means = np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)) @ axes)
        table = rng.standard_normal((sum(self.sizes), self.dim)) * np.sqrt(self._variances)
        table += np.repeat(means, self.sizes, axis=0)
        table -= table.mean(axis=0)
        shape = self.samples, len(self.weights)
        common, own = (rng.choice(classes, size, p=self._shares) for size in ((self.samples, 1), shape))
        labels = np.where(rng.random(shape) < self._loading, common, own)
        starts, sizes = np.cumsum((0, *self.sizes[:-1])), np.array(self.sizes)
        tokens = starts[labels] + rng.integers(0, sizes[labels])
        return pool(table, tokens, self.weights), means

    # -- prediction ----------------------------------------------------------------------------------------------------

    @property
    def _shares(self) -> Real:
        """``pi_k = V_k/V``."""
        return np.array(self.sizes) / sum(self.sizes)

    @property
    def _kappa(self) -> float:
        return float(self.weights @ self.weights)

    def population_bulk(self) -> Law:
        """``kappa Sigma * MP(D/V)``, free product: the noise given the table, with unlimited samples."""
        return self._population

    @cached_property
    def _population(self) -> Law:
        return free_mul(self.noise_covariance, MarchenkoPastur(self.dim / sum(self.sizes), self._kappa))

    def _warn_of_repetition(self, what: str) -> None:
        excess = repetition(self.weights, self.dim / sum(self.sizes), self.dim / self.samples)
        warn_of_repetition(what, self.weights, excess)

    def law(self) -> Law:
        """The population's bulk seen through N samples; a warning says where too few positions have the weight."""
        self._warn_of_repetition("the bulk")
        return free_mul(self._population, MarchenkoPastur(self.dim / self.samples))

    def spikes(self) -> list[ClassSpike]:
        """The K - 1 spikes between classes, largest first.

        With Q the noise over kappa, ``G = tr (z - Q)**-1/D`` and ``tau = tr Sigma (z - Q)**-1/D``, an outlier is where
        an eigenvalue of ``M(z) = alpha/kappa A (gram G + diag(D/V_k) tau) A'`` is one, ``A = sqrt(pi) (1 - 1 pi')``,
        because class means are ``mu_k`` plus noise of covariance ``Sigma/V_k``. Silverstein's equation gives ``tau =
        psi/(1 + delta psi)`` with ``psi = z G - 1``, ``delta = D/V``. The eigenvector q of M gives the squared length
        within the span of the means, ``-alpha/kappa G**2 q'A gram A'q/q'M'q``. For means with loadings ``gram G`` is
        ``B = mu'(z - Q)**-1 mu = mu'(z - (1 + delta psi) Sigma)**-1 mu``, and ``G**2 gram`` is ``B gram**-1 B``.
        """
        self._warn_of_repetition("where the spikes are")
        bulk = self._population
        ratio = self.dim / self.samples
        spikes = []
        for rank in range(1, len(self.sizes)):
            z = self._outlier(rank)
            seen = bulk.sample_spike(bulk.edge if z is None else self._kappa * z, ratio)
            alignment = float(seen.overlap) * self._population_alignment(rank, z) if z is not None else 0.0
            spikes.append(ClassSpike(float(seen.location), alignment, bool(seen.detectable)))
        return spikes

    @cached_property
    def _contrast(self) -> Real:
        """``sqrt(alpha/kappa) sqrt(pi) (1 - 1 pi')``."""
        alpha = float(self.weights @ self.correlation @ self.weights)
        centred = np.eye(len(self.sizes)) - self._shares
        return np.asarray(np.sqrt(alpha / self._kappa * self._shares)[:, None] * centred)

    def _forms(self, z: float) -> tuple[Real, Real, Real]:
        """``B(z)``, ``M(z)`` and ``M'(z)`` of :meth:`spikes`, z in units of kappa; each has a row for each class."""
        point = np.array([self._kappa * z + 0j])
        g, g_slope, psi, psi_slope = (float(part.real[0]) for part in self._population.transforms(point))
        g, g_slope, psi_slope = self._kappa * g, self._kappa**2 * g_slope, self._kappa * psi_slope
        spreads, whole = self.dim / np.array(self.sizes), self.dim / sum(self.sizes)
        tau, tau_slope = psi / (1 + whole * psi), psi_slope / (1 + whole * psi) ** 2
        seen, seen_slope = self.gram * g, self.gram * g_slope
        if self.loadings is not None:
            apart = z - (1 + whole * psi) * self._variances
            seen = (self.loadings / apart) @ self.loadings.T
            seen_slope = (self.loadings * (whole * psi_slope * self._variances - 1) / apart**2) @ self.loadings.T
        form, slope = (
            self._contrast @ (one + np.diag(spreads) * other) @ self._contrast.T
            for one, other in ((seen, tau), (seen_slope, tau_slope))
        )
        return seen, form, slope

    def _outlier(self, rank: int) -> float | None:
        """Where the eigenvalue of M of that rank is one, beyond the edge of the population's bulk."""

        def excess(z: float) -> float:
            return float(np.linalg.eigvalsh(self._forms(z)[1])[-rank]) - 1

        low = self._population.edge / self._kappa * (1 + 1e-9)
        if excess(low) <= 0:
            return None
        high = 2 * low
        while excess(high) > 0:
            high *= 2
        return float(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))

    def _population_alignment(self, rank: int, z: float) -> float:
        seen, form, slope = self._forms(z)
        q = np.linalg.eigh(form)[1][:, -rank]
        turned = seen @ self._contrast.T @ q
        return float(-(turned @ np.linalg.pinv(self.gram, rcond=1e-10, hermitian=True) @ turned) / (q @ slope @ q))
