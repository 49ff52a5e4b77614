"""A ridge classifier on pooled sequences: simulated, and its test accuracy in closed form (*recovery*, Figure 6).

The paper leaves the accuracy open; docs/theory/classification.md, "Ridge classification", derives it.

A pooled row is ``a m + eta``: ``a = w.xi`` the pooled sign, m half the difference of the class means, and eta noise of
covariance ``S = kappa C``, C the scatter within classes. With ``q = E[a y]``, y the label, and ``alpha = E[a**2]``, the
ridge solution gives a test row the score ``t a + sigma g``, g Gaussian. With Q the resolvent at -ridge of the noise's
sample covariance, of law ``kappa MP(delta) * MP(gamma)``, and ``tau = 1 - gamma + gamma ridge tr Q/D``, Q is equivalent
to ``R = (tau S + ridge)**-1``, and ``Q S Q`` to ``R S R/(1 - x)`` with ``x = tau**2 tr(S R S R)/N``.

The limit is that of samples, dim and vocab. Taking eta as Gaussian also needs weight on several positions: the sparse
matrix that pools has the first three moments of a Gaussian one, but its fourth exceeds that by ``(V/N)**2 (sum
w**4/kappa**2)**2``. With all the weight on one position the formula is not to be trusted.

>>> import numpy as np
>>> model = RidgeClassifier(100, 200, 400, signal=1.0, ridge=0.1, population=prefix_majority(9, 3, 0.6))
>>> mean, prefix = np.full(9, 1 / 9), np.array([1, 1, 1, 0, 0, 0, 0, 0, 0]) / 3
>>> round(model.accuracy(mean), 3), round(model.accuracy(prefix), 3)
(0.733, 0.929)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from bulkedge.ensembles.weights import pool
from bulkedge.laws.classical.product import MarchenkoPastur, ProductLaw
from bulkedge.laws.law import Law
from bulkedge.recovery.learned import LearnedWeights, LossGradient, minimise_on_simplex, ridge_coefficients
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, GENERATOR, Instance, Integers, Interval, Parametric, parameter, takes
from bulkedge.support.errors import DomainError

# a law is resolved once: models that differ in signal or ridge share it
_product, _noise = lru_cache(maxsize=16)(ProductLaw), lru_cache(maxsize=16)(MarchenkoPastur)
LONGEST = 18  # longest sequence whose sign patterns are listed one by one


class LabelledSigns(NamedTuple):
    """The joint law of the signs of a sequence of T positions and its label, over m patterns.

    Attributes
    ----------
    signs : array of shape (m, L)
        The patterns, of entries 1 and -1.
    labels, probabilities : arrays of shape (m,)
        The label of each pattern, 1 or -1, and its probability.
    """

    signs: Real
    labels: Real
    probabilities: Real


class LabelledSequences(NamedTuple):
    """A draw: the centred table (V, D), the tokens of each sequence (sequences, T) and their labels (sequences,).

    >>> model = RidgeClassifier(10, 20, 40, signal=1.0, ridge=0.1, population=prefix_majority(3, 1, 0.8))
    >>> model.sample(np.random.default_rng(0)).tokens.shape
    (40, 3)
    """

    table: Real
    tokens: Any
    labels: Real


class Score(NamedTuple):
    """What the classifier gives a test row: ``slope * a + sqrt(variance) * g``."""

    slope: float
    variance: float


def prefix_majority(length: int, prefix: int, correlation: float) -> LabelledSigns:
    """Signs of the prefix model, labelled by the majority of the prefix (*recovery*, section 6).

    Prefix signs are a hidden fair sign, each kept with probability ``(1 + sqrt(correlation))/2``; the others are fair.

    Parameters
    ----------
    length : int
        Positions.
    prefix : int
        Leading positions that carry the label; odd, so that there is a majority.
    correlation : float
        Correlation of any two prefix signs.

    Returns
    -------
    LabelledSigns
        All ``2**length`` patterns of signs, with label and probability.

    Raises
    ------
    DomainError
        If the prefix is even, or the length beyond 18.

    Examples
    --------
    >>> signs, labels, probabilities = prefix_majority(3, 1, 0.5)
    >>> signs.shape, round(float(probabilities.sum()), 12)
    ((8, 3), 1.0)
    """
    length = Integers(1, LONGEST).check("length", length)
    prefix = Integers(1, length).check("prefix", prefix)
    if prefix % 2 == 0:
        raise DomainError(f"prefix = {prefix} is even, so signs may tie: take an odd one")
    kept = np.sqrt(Interval(0, 1).check("correlation", correlation))
    signs = np.array(list(product((-1.0, 1.0), repeat=length)))
    given = [np.prod((1 + hidden * kept * signs[:, :prefix]) / 2, axis=1) for hidden in (-1, 1)]
    probabilities = (given[0] + given[1]) / 2 ** (length - prefix + 1)
    return LabelledSigns(signs, np.sign(signs[:, :prefix].sum(axis=1)), probabilities)


@dataclass(frozen=True, eq=False)
class RidgeClassifier(Parametric):
    """Ridge regression of labels on pooled rows of a two-class table, used as a classifier by its sign.

    >>> model = RidgeClassifier(100, 200, 400, signal=1.0, ridge=0.1, population=prefix_majority(3, 1, 0.8))
    >>> round(model.accuracy(np.full(3, 1 / 3)), 3), round(model.accuracy([1.0, 0.0, 0.0]), 3)
    (0.66, 0.928)
    """

    dim: int = parameter(Integers(2, 10**6), "dimension D of the embeddings")
    vocab: int = parameter(Integers(4, 10**7), "rows V of the table, even")
    samples: int = parameter(Integers(2, 10**7), "training sequences N")
    signal: float = parameter(Interval(0, 1e3), "half the distance of the class means")
    ridge: float = parameter(
        Interval(1e-6, 1e6), "penalty on the squared norm of the coefficients, beside the mean squared error"
    )
    population: LabelledSigns = parameter(Instance(LabelledSigns), "joint law of the signs and the label")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab % 2:
            raise DomainError(f"vocab = {self.vocab} is odd: the two classes have the same size, take an even one")
        signs, labels, probabilities = self.population
        fitting = signs.ndim == 2 and labels.shape == probabilities.shape == signs.shape[:1]
        known = np.all(np.abs(signs) == 1) and np.all(np.abs(labels) == 1) and np.all(probabilities >= 0)
        if not (fitting and known and abs(probabilities.sum() - 1) <= 1e-9):
            raise DomainError("population is outside its domain: signs and labels of +1 and -1, with a law over them")
        if max(abs(probabilities @ labels), *np.abs(probabilities @ signs)) > 1e-9:
            raise DomainError("population is outside its domain: labels and signs must have mean zero")

    # -- simulation ----------------------------------------------------------------------------------------------------

    @takes(rng=GENERATOR)
    def sample(self, rng: np.random.Generator, tests: int = 0) -> LabelledSequences:
        """A centred table, the training sequences, and then the given number of test sequences.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of all randomness.
        tests : int
            How many test sequences to draw after the ``samples`` training sequences.

        Returns
        -------
        LabelledSequences
            The centred table, and tokens and labels of ``samples + tests`` sequences.
        """
        tests = Integers(0, 10**8).check("tests", tests)
        table = rng.standard_normal((self.vocab, self.dim))
        half = self.vocab // 2
        table[:half, 0] += self.signal
        table[half:, 0] -= self.signal
        signs, labels, probabilities = self.population
        chosen = rng.choice(len(labels), size=self.samples + tests, p=probabilities / probabilities.sum())
        tokens = rng.integers(0, half, size=(len(chosen), signs.shape[1])) + half * (signs[chosen] < 0)
        return LabelledSequences(table - table.mean(axis=0), tokens, labels[chosen])

    def tested(self, data: LabelledSequences, weights: ArrayLike) -> float:
        """Share of the test sequences of a draw that a classifier trained on the others gets right.

        Parameters
        ----------
        data : LabelledSequences
            A draw of :meth:`sample` with test sequences in it.
        weights : array_like of shape (L,)
            Pooling weights, a finite number for each position.

        Returns
        -------
        float
            The share, between 0 and 1.

        Raises
        ------
        DomainError
            If the draw has no test sequences.
        """
        if len(data.labels) <= self.samples:
            raise DomainError(f"there are no test sequences: sample(rng, tests) draws them after {self.samples} others")
        rows = pool(data.table, data.tokens, self._weights(weights))
        train, test = slice(self.samples), slice(self.samples, None)
        coefficients = ridge_coefficients(rows[train], data.labels[train], self.ridge)
        return float(np.mean(np.sign(rows[test] @ coefficients) == data.labels[test]))

    # -- prediction ----------------------------------------------------------------------------------------------------

    def accuracy(self, weights: ArrayLike) -> float:
        """Limit of the test accuracy as samples, dimension and vocabulary grow together.

        Parameters
        ----------
        weights : array_like of shape (L,)
            Pooling weights, a finite number for each position.

        Returns
        -------
        float
            Between 0 and 1.
        """
        w = self._weights(weights)
        score = self.score(w)
        margin = self.population.labels * (self.population.signs @ w) * score.slope
        return float(self.population.probabilities @ ndtr(margin / np.sqrt(score.variance)))

    def score(self, weights: ArrayLike) -> Score:
        """Limits of the slope and the variance of the scores; see the module.

        Parameters
        ----------
        weights : array_like of shape (L,)
            Pooling weights, a finite number for each position.

        Returns
        -------
        Score
            t and ``sigma**2``: a test row with pooled sign a has the score ``t a + sigma g``, g standard Gaussian.
        """
        kappa, alpha, q = self._pooling_factors(self._weights(weights))
        tau, gain, _, _ = self._resolvent(kappa)
        slope = q * gain / (1 + alpha * gain)
        place = self.ridge / (tau * kappa)  # R = 1/(tau kappa (C + place))
        _, _, psi, psi_slope = _transforms_at(_noise(self.dim / self.vocab), -place)
        x = self.dim / self.samples * (place * psi_slope - psi)
        along = (q - alpha * slope) ** 2 * self._squared_mean * -psi_slope / kappa
        return Score(slope, (along + x * (1 - 2 * slope * q + slope**2 * alpha)) / (1 - x))

    def loss(self, weights: ArrayLike) -> LossGradient:
        """Limit of the training loss, and its derivative in each weight.

        Parameters
        ----------
        weights : array_like of shape (L,)
            Pooling weights, a finite number for each position.

        Returns
        -------
        LossGradient
            The regularised loss for each sample, and its gradient of shape (L,).
        """
        w = self._weights(weights)
        kappa, alpha, q = self._pooling_factors(w)
        tau, gain, tau_slope, gain_slope = self._resolvent(kappa)
        slope = q * gain / (1 + alpha * gain)
        by_kappa = tau_slope * (1 - q * slope) - tau * q**2 * gain_slope / (1 + alpha * gain) ** 2
        gradient = 2 * (by_kappa * w + tau * slope**2 * self._correlation @ w - tau * slope * self._label_correlation)
        return LossGradient(tau * (1 - q * slope), gradient)

    def learned(self, rng: np.random.Generator, *, restarts: int = 4) -> LearnedWeights:
        """Limit of :func:`~bulkedge.recovery.learned.learned_weights`: the minimiser of the limiting loss.

        Parameters
        ----------
        rng : numpy.random.Generator
            Draws the starting points.
        restarts : int
            How many of them; the first has equal weights. The best minimum is kept.

        Returns
        -------
        LearnedWeights
            Non-negative weights that sum to one, and the limiting loss there.
        """
        return minimise_on_simplex(self.loss, self.population.signs.shape[1], rng, restarts)

    @cached_property
    def _correlation(self) -> Real:
        signs, _, probabilities = self.population
        return np.asarray(signs.T @ (probabilities[:, None] * signs))

    @cached_property
    def _label_correlation(self) -> Real:
        signs, labels, probabilities = self.population
        return np.asarray((probabilities * labels) @ signs)

    @property
    def _squared_mean(self) -> float:
        """``|m|**2``: the class means are means of V/2 noisy rows."""
        return self.signal**2 + self.dim / self.vocab

    def _pooling_factors(self, weights: Real) -> tuple[float, float, float]:
        """What the pooling keeps of the noise, the signal and the label: kappa, alpha and q."""
        signal = weights @ self._correlation @ weights
        return float(weights @ weights), float(signal), float(weights @ self._label_correlation)

    def _resolvent(self, kappa: float) -> tuple[float, float, float, float]:
        """``tau`` and ``tau h``, and their derivatives in kappa."""
        gamma, place = self.dim / self.samples, -self.ridge / kappa
        g, g_slope, psi, psi_slope = _transforms_at(_product((self.dim / self.vocab, gamma)), place)
        tau, tau_slope = 1 + gamma * psi, -gamma * psi_slope * place / kappa
        gain = -tau * self._squared_mean * g / kappa
        return tau, gain, tau_slope, gain * (tau_slope / tau - (g_slope / g * place + 1) / kappa)

    def _weights(self, weights: ArrayLike) -> Real:
        given, length = FINITE.check("weights", weights), self.population.signs.shape[1]
        if given.shape != (length,) or not np.any(given):
            raise DomainError(
                f"weights of shape {given.shape} is outside its domain: a finite number for each of the {length} "
                "positions, not all zero"
            )
        return given


def _transforms_at(law: Law, place: float) -> tuple[float, float, float, float]:
    """``G``, ``G'``, ``psi`` and ``psi'`` at a real place outside the law."""
    g, g_slope, psi, psi_slope = (float(part.real[0]) for part in law.transforms(np.array([place + 0j])))
    return g, g_slope, psi, psi_slope
