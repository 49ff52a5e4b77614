"""Signal recovery from pooled sequences: which pooling of token embeddings keeps the signal (*recovery*).

A table has ``vocab`` rows ``e_v = s_v mu + z_v``, half of each class ``s_v = +-1``. A sequence has signs with
correlation R along its positions, and at each position a token drawn from the class of its sign; the rows at its tokens
are summed with weights w. With ``delta = D/V``, ``gamma = D/N``, ``alpha = w'Rw``, ``kappa = |w|**2`` the eigenvalues
of ``Y'Y/N`` are a bulk ``kappa MP(delta) * MP(gamma)`` (free product) and a spike of strength ``omega`` along mu.

The free product is for rows that mix many tokens. Where few positions have the weight, tokens repeat:
:func:`repetition` measures by how much, and :func:`counted_bulk` is the law if each row is one token.

>>> from bulkedge.recovery import causal_weights, prefix_correlation
>>> model = PooledSequences(1000, 2000, 3000, 1.3, causal_weights(10), prefix_correlation(10, 4, 0.6))
>>> round(float(model.sample_spike().location), 3), round(model.alignment().total, 3)     # simulated: 1.37 and 0.675
(1.387, 0.674)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.special import betaln, xlog1py, xlogy

from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.correlations import CORRELATION, draw_signs
from bulkedge.ensembles.weights import WEIGHTS, pool, require_positions
from bulkedge.laws.classical.free import free_add
from bulkedge.laws.classical.product import MarchenkoPastur, ProductLaw
from bulkedge.laws.law import Law
from bulkedge.laws.spikes.rank_one import Outlier, Spike
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError, RegimeWarning
from bulkedge.support.random import numpy_generator

SMALLEST = float(np.finfo(float).tiny)
Table = Literal["finite", "additive"]
Noise = Literal["gaussian", "uniform", "rademacher"]
TABLE, NOISE = Choice(get_args(Table)), Choice(get_args(Noise))


class PooledDraw(NamedTuple):
    """One draw of the model; the first half of the table's rows is the positive class."""

    table: Real  # embeddings, V x D, centred if the model says so
    signs: Real  # signs of the positions, N x L
    tokens: Any  # rows of the table that they took, N x L
    rows: Real  # pooled sequences Y, N x D
    mean: Real  # the signal mu


class Leading(NamedTuple):
    """The top of a measured covariance."""

    location: float  # largest eigenvalue of ``Y'Y/N``
    overlap: float  # squared overlap of its eigenvector with the signal


class PooledAlignment(NamedTuple):
    """Squared overlap of the top eigenvector with the signal, factor by factor (*recovery*, equation 8)."""

    sample: float  # of the sample's top eigenvector with the population's: finite N
    population: float
    """Of the population's top eigenvector with the difference of the class means in the table: finite V."""
    table: float  # of that difference with mu: one in the additive table, where class means are exact

    @property
    def total(self) -> float:
        """Their product."""
        return float(self.sample * self.population * self.table)


class SignalThresholds(NamedTuple):
    """Smallest signal strength at which an eigenvalue leaves the bulk; zero where one always does."""

    population: float  # with unlimited samples (*recovery*, equation 34)
    sample: float  # with the N samples there are (*recovery*, equation 36)


@dataclass(frozen=True, eq=False, repr=False)
class PooledSequences(Parametric, Ensemble):
    """Pooled rows Y of sequences over a two-class table; the law is that of the eigenvalues of ``Y'Y/N``.

    The *finite* table is the model as it is described: class means are means of V/2 noisy rows. In the *additive* one,
    which the formulas of the paper are for, the noise is centred in each class, so that class means are exact.

    Given the table, the population covariance is ``kappa S + alpha m m' + c c'`` with S the scatter within classes over
    V, m half the difference of the class means and c their average. Finite: ``m = mu + noise`` of squared length
    ``|mu|**2 + delta``, and c is noise of squared length delta, removed by centring. Additive: ``m = mu``, ``c = 0``.

    >>> model = PooledSequences(100, 200, 300, 1.3, weights=np.full(4, 0.25), correlation=np.eye(4))
    >>> round(model.law().edge, 3), round(float(model.sample_spike().location), 3)
    (0.995, 1.043)
    """

    dim: int = parameter(Integers(2, 10**6), "dimension D of the embeddings")
    vocab: int = parameter(Integers(4, 10**8), "rows V of the table, an even number")
    samples: int = parameter(Integers(2, 10**8), "sequences N")
    signal: float = parameter(Interval(0, 1e6), "length of mu")
    weights: Any = parameter(WEIGHTS, "pooling weights")
    correlation: Any = parameter(CORRELATION, "correlation R of the signs along a sequence")
    table: Table = parameter(TABLE, "what the class means are", "finite")
    centered: bool = parameter(Choice((False, True)), "whether the mean of the table is taken off", default=True)
    noise: Noise = parameter(NOISE, "entries of the noise, of unit variance", "gaussian")

    def __post_init__(self) -> None:
        """Check the parameters, and that they fit each other."""
        super().__post_init__()
        if self.vocab % 2:
            raise DomainError(f"vocab = {self.vocab} is odd; the two classes have half of the table each")
        require_positions(self.weights, self.correlation)

    # -- the numbers that matter ---------------------------------------------------------------------------------------

    @property
    def vocab_ratio(self) -> float:
        """``delta = D/V``."""
        return self.dim / self.vocab

    @property
    def sample_ratio(self) -> float:
        """``gamma = D/N``."""
        return self.dim / self.samples

    @property
    def alpha(self) -> float:
        """Signal that the pooling keeps, ``w'Rw`` (*recovery*, equation 4)."""
        return max(float(self.weights @ self.correlation @ self.weights), 0.0)

    @property
    def kappa(self) -> float:
        """Noise that the pooling keeps, ``|w|**2`` (*recovery*, equation 4)."""
        return float(self.weights @ self.weights)

    @property
    def repetition(self) -> float:
        """How much repeated tokens matter: ``delta gamma**2/((delta + gamma) n)**2``, n effective positions.

        The fourth free cumulant of the bulk exceeds that of ``kappa MP(delta) * MP(gamma)`` by this many squared
        variances, as two sequences may share a token at all four places where they meet. Beyond
        ``MOST_REPETITION`` a :class:`~bulkedge.support.errors.RegimeWarning` says that the free product is off.
        """
        return repetition(self.weights, self.vocab_ratio, self.sample_ratio)

    @property
    def strength(self) -> float:
        """``omega``, the spike over the noise: ``alpha (|mu|**2 + delta)/kappa``; additive: ``alpha |mu|**2/kappa``."""
        return self.alpha * (self.signal**2 + self._spread) / self.kappa

    @property
    def _spread(self) -> float:
        """Squared length of the noise in the class means."""
        return self.vocab_ratio if self.table == "finite" else 0.0

    # -- simulation ----------------------------------------------------------------------------------------------------

    def draw(self, rng: np.random.Generator) -> PooledDraw:
        """Everything of one draw: table, signs, tokens, pooled rows and signal.

        Pooling is a sparse N x V matrix times the table: the N x T x D array of embedded sequences is never made.
        """
        rng = numpy_generator(rng)
        mean = np.full(self.dim, self.signal / np.sqrt(self.dim))
        table = self._draw_table(mean, rng)
        signs = draw_signs(self.correlation, self.samples, rng)
        half = self.vocab // 2
        tokens = rng.integers(0, half, signs.shape)
        tokens += np.where(signs > 0, 0, half)
        return PooledDraw(table, signs, tokens, pool(table, tokens, self.weights), mean)

    def _draw_table(self, mean: Real, rng: np.random.Generator) -> Real:
        table = draw_noise(self.noise, (self.vocab, self.dim), rng)
        positive, negative = np.split(table, 2)
        if self.table == "additive":
            positive -= positive.mean(axis=0)
            negative -= negative.mean(axis=0)
        positive += mean
        negative -= mean
        if self.centered:
            table -= table.mean(axis=0)
        return table

    def sample(self, rng: np.random.Generator) -> Real:
        """The pooled rows Y, N x D."""
        return self.draw(rng).rows

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Eigenvalues of ``Y'Y/N``."""
        rows = self.sample(rng)
        return spectrum(rows.T @ rows / self.samples, kind="eigen")

    def leading(self, rng: np.random.Generator) -> Leading:
        """Largest eigenvalue of a draw, and the squared overlap of its eigenvector with the signal's direction."""
        rows = self.sample(rng)
        values, vectors = eigh(
            rows.T @ rows / self.samples, subset_by_index=(self.dim - 1, self.dim - 1), overwrite_a=True
        )
        along = vectors[:, 0].sum() / np.sqrt(self.dim)  # mu points along the constant vector
        return Leading(float(values[0]), float(along**2))

    # -- prediction ----------------------------------------------------------------------------------------------------

    def bulk(self) -> Law:
        """``kappa MP(delta) * MP(gamma)``, free product (*recovery*, Theorem 1); of counted tokens for one position."""
        if np.count_nonzero(self.weights) == 1 and self.repetition > MOST_REPETITION:  # a row is one token
            return self._counted_bulk
        self._warn_of_repetition("the bulk")
        return ProductLaw((self.vocab_ratio, self.sample_ratio), self.kappa)

    @cached_property
    def _counted_bulk(self) -> Law:
        return counted_bulk(self.dim, self.vocab, self.samples).scaled(self.kappa)

    def _warn_of_repetition(self, what: str) -> None:
        warn_of_repetition(what, self.weights, self.repetition)

    def law(self) -> Law:
        """The bulk."""
        return self.bulk()

    def population_bulk(self) -> MarchenkoPastur:
        """``kappa MP(delta)``: the noise given the table, with unlimited samples."""
        return MarchenkoPastur(self.vocab_ratio, self.kappa)

    def population_spike(self) -> Spike:
        """Top eigenvalue with unlimited samples; the overlap is with m (*recovery*, Theorem 2, equation 6)."""
        return self._spikes[0]

    def sample_spike(self) -> Spike:
        """Top eigenvalue of ``Y'Y/N``; the overlap is with the population's eigenvector (*recovery*, Theorems 3 and 4).

        ``threshold`` is in units of the population's eigenvalue; :meth:`threshold` has it as a signal strength.
        """
        self._warn_of_repetition("the spike of the sample")
        return self._spikes[1]

    @cached_property
    def _spikes(self) -> tuple[Spike, Spike]:
        return self._spikes_of(self.strength)

    def _spikes_of(self, strength: float) -> tuple[Spike, Spike]:
        """The outliers of the population and of the sample for a spike ``omega = strength``, in closed form."""
        # with fewer tokens than dimensions, an outlier in the gap above the kernel is not the top: the laws find it
        delta, gamma = self.vocab_ratio, self.sample_ratio
        x, least, critical = strength - delta, np.sqrt(delta), critical_strength(delta, gamma) - delta

        def level(excess: float) -> float:
            return float(self.kappa * (1 + excess) * (excess + delta) / excess)

        def seen_at(excess: float) -> float:
            return level(excess) * (1 + gamma / excess)

        kept = 1 - delta / x**2 if x > least else 0.0
        population = Spike(level(max(x, least)), kept, x > least, self.kappa * (delta + least))
        overlap = spectral_alignment(strength, delta, gamma) / kept if x > critical else 0.0
        sample = Spike(seen_at(max(x, critical)), overlap, x > critical, level(critical))
        return (
            _with_outlier(population, level(least), self.kappa * strength),
            _with_outlier(sample, seen_at(critical), float(population.location)),
        )

    def alignment(self) -> PooledAlignment:
        """Squared overlap of the top eigenvector of ``Y'Y/N`` with mu, in factors (*recovery*, equation 8).

        Where the mean of the table outranks the signal (:meth:`mean_outranks`), it is that of the second eigenvector.
        """
        self._warn_of_repetition("the alignment")
        population, sample = self._spikes
        kept = self.signal**2
        table = kept / (kept + self._spread) if kept else 0.0
        return PooledAlignment(float(sample.overlap), float(population.overlap), table)

    def threshold(self) -> SignalThresholds:
        """Signal strengths at which the spike leaves the bulk, of the population and of the sample.

        Both are a critical ``omega``, solved for ``|mu|``. In a finite table the noise of the class means counts
        towards omega: where it is enough alone, the threshold is zero, and an outlier does not tell of a signal.
        """
        self._warn_of_repetition("the threshold of the sample")
        delta = self.vocab_ratio
        population, sample = delta + np.sqrt(delta), critical_strength(delta, self.sample_ratio)
        return SignalThresholds(*(self._signal_of(float(omega)) for omega in (population, sample)))

    def _signal_of(self, omega: float) -> float:
        """The signal that makes a strength; infinite if the pooling cancels it."""
        if not self.alpha:
            return np.inf
        return float(np.sqrt(max(omega * self.kappa / self.alpha - self._spread, 0.0)))

    # -- the mean of the table -----------------------------------------------------------------------------------------

    @property
    def mean_strength(self) -> float:
        """``(sum w)**2 delta/kappa``, the mean of the table over the noise; zero in centred and additive tables."""
        return 0.0 if self.centered else self._spread * float(self.weights.sum()) ** 2 / self.kappa

    def mean_spike(self) -> Spike:
        """The eigenvalue of ``Y'Y/N`` that comes from the mean of the table; its eigenvector is independent of mu."""
        self._warn_of_repetition("the spike of the mean")
        return self._spikes_of(self.mean_strength)[1]

    def mean_outranks(self) -> bool:
        """Whether the top eigenvalue is the mean's: ``delta > alpha (|mu|**2 + delta)``, and it leaves the bulk."""
        return bool(self.mean_strength > self.strength and self.mean_spike().detectable)


def _with_outlier(spike: Spike, edge: float, strength: float) -> Spike:
    """The same with its outlier listed, if it is one: above a bulk that ends at the edge."""
    outlier = Outlier(float(spike.location), float(spike.overlap), (edge, np.inf), strength)
    return replace(spike, outliers=(outlier,) if spike.detectable else ())


def draw_noise(kind: Noise, shape: tuple[int, int], rng: np.random.Generator) -> Real:
    """Independent entries of mean zero and unit variance."""
    if kind == "gaussian":
        return rng.standard_normal(shape)
    if kind == "uniform":
        return rng.uniform(-np.sqrt(3), np.sqrt(3), shape)
    return 2.0 * rng.integers(0, 2, shape, dtype=np.int8) - 1.0


def spectral_alignment(strength: ArrayLike, vocab_ratio: ArrayLike, sample_ratio: ArrayLike) -> Any:
    """The first two factors of equation 8 of *recovery*, for arrays of ``omega``, ``delta`` and ``gamma``."""
    # psi = 1/x with x = omega - delta, at which the sample's outlier is kappa (1 + x)(x + delta)(x + gamma)/x**2;
    # the overlap is x/(x + gamma) times the second factor, which vanishes at the threshold
    omega, delta, gamma = (np.asarray(each, dtype=float) for each in (strength, vocab_ratio, sample_ratio))
    x = np.maximum(omega - delta, SMALLEST ** (1 / 4))
    kept = 1 - (delta + gamma + delta * gamma) / x**2 - 2 * delta * gamma / x**3
    return np.maximum(x / (x + gamma) * kept, 0.0)[()]


def critical_strength(vocab_ratio: ArrayLike, sample_ratio: ArrayLike) -> Any:
    """The ``omega`` from which the sample's top eigenvalue leaves the bulk, for arrays of ``delta`` and ``gamma``."""
    # omega - delta is the positive root of x**3 - (delta + gamma + delta gamma) x - 2 delta gamma (*recovery*, eq. 36)
    delta, gamma = (np.asarray(each, dtype=float) for each in (vocab_ratio, sample_ratio))
    third = (delta + gamma + delta * gamma) / 3
    angle = np.arccos(np.minimum(delta * gamma / third**1.5, 1.0)) / 3
    return (delta + 2 * np.sqrt(third) * np.cos(angle))[()]


MOST_REPETITION = 0.03
"""Excess fourth free cumulant over squared variance up to which the free product is trusted: beyond, the Kolmogorov
distance is 0.015 to 0.17 at 300 dimensions, below it is that of exact laws, 0.01."""


def repetition(weights: Real, vocab_ratio: float, sample_ratio: float) -> float:
    """What repeated tokens add to the fourth free cumulant of the bulk, in units of its squared variance (ours)."""
    # delta gamma**2 times the chance 1/n**2 that two meetings of a position are at one token; n positions count
    share = float(np.sum(weights**4)) / float(weights @ weights) ** 2
    return vocab_ratio * (share * sample_ratio / (vocab_ratio + sample_ratio)) ** 2


def warn_of_repetition(what: str, weights: Real, excess: float) -> None:
    """Warn where few positions have the weight; of the line that asked the model."""
    if excess <= MOST_REPETITION:
        return
    count = float(weights @ weights) ** 2 / float(np.sum(weights**4))
    message = (
        f"{what} is for rows that mix many tokens: here {count:.3g} positions count, tokens repeat, and the fourth "
        f"cumulant is off by {excess:.2g} squared variances (more than {MOST_REPETITION:g}). More samples or more even "
        "weights help"
    )
    warnings.warn(message, RegimeWarning, stacklevel=4)


def counted_bulk(dim: int, vocab: int, samples: int) -> Law:
    """Eigenvalues of ``Y'Y/N`` when each of the N rows is one of V tokens, drawn evenly, with unit white noise."""
    # V p_k tokens occur k times: a Marchenko-Pastur law of ratio delta/p_k and mean p_k k V/N each, and these are free;
    # counts that less than half a token is expected to have join the largest that is kept
    counts = np.arange(1.0, samples + 1)[: int(samples / vocab + 40 * np.sqrt(samples / vocab) + 40)]
    # binomial probabilities, by the logarithm of the beta function
    choices = -betaln(counts + 1, samples - counts + 1) - np.log(samples + 1)
    shares = np.exp(choices + xlogy(counts, 1 / vocab) + xlog1py(samples - counts, -1 / vocab))
    kept = vocab * shares >= 1 / 2
    kept[int(np.argmax(shares))] = True
    shares, counts, beyond = shares[kept], counts[kept], shares[~kept].sum()
    shares[-1] += beyond
    means = shares * counts / (shares @ counts)
    parts: list[Law] = [MarchenkoPastur(dim / vocab / share, mean) for share, mean in zip(shares, means, strict=True)]
    return reduce(free_add, parts[1:], parts[0])
