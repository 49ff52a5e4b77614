"""Softmax attention at initialisation: the matrix, the steps from it to its linear model, its law and its outliers.

>>> import numpy as np
>>> model = SoftmaxAttention(tokens=400, head_dim=32, beta=0.5)
>>> bool(np.allclose(model.sample(np.random.default_rng(0)).sum(axis=1), 1.0))
True
>>> model.regime().name
'finite head'
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from array_api_compat import array_namespace
from scipy.optimize import brentq

from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.entries import LargeEntries
from bulkedge.laws.attention.causal import CausalLaw
from bulkedge.laws.attention.causal_head import MOST_DIMENSIONS, CausalHeadLaw, MaskBlocks, mean_values, shifted_values
from bulkedge.laws.attention.finite_head import (
    ANY_BETA,
    FARTHEST,
    MOST_BETA,
    MOST_DEVIATION,
    FiniteHeadLaw,
    finite_size,
    heavy_share,
)
from bulkedge.laws.attention.head import HeadLaw
from bulkedge.laws.attention.perron import perron
from bulkedge.laws.attention.proportional import AttentionLaw
from bulkedge.laws.attention.token_head import TokenStatistics
from bulkedge.laws.attention.window import WindowLaw
from bulkedge.laws.classical.empirical import PoissonLaw
from bulkedge.laws.classical.images import MixtureLaw
from bulkedge.laws.law import Law
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.domains import MATRIX, Array, Choice, Integers, Interval, Parametric, parameter, takes
from bulkedge.support.errors import DomainError, RegimeWarning
from bulkedge.support.random import normal
from bulkedge.visibility import FullMask, MaskOrName, WindowMask, mask_for, softmax
from bulkedge.visibility.layers import Window, structure

TRUSTED = 0.05  # share of the variance in single large entries up to which the law of the bulk is the best one
ONE_HOT = 8.0
"""Inverse temperature over ``sqrt(log T)`` from which draws are nearer to the Poisson law of one-hot rows than to the
sharpest finite-head law: between 7 and 12 from 100 to 1300 tokens. Both are FARTHEST away there."""
FEWEST_DIRECTIONS, CROWDED = 20, 40
"""Directions that inputs fill, from which on the law of inputs is within 0.05 of draws, for tokens of one length and
for others: at 30 it is within 0.04, at 16 0.05 to 0.2 away; at 25, with lengths that vary, 0.08."""
UNEVEN, MOST_SPREAD = 0.06, 0.2
"""Relative variance of the tokens' squared distances from their mean, from which on these lengths vary, and up to which
the law of inputs knows them: at 0.23 it is 0.02 to 0.06 away from simulations of 280 and 512 tokens, at 1.5 0.25."""
PERRON_ERROR, ENTRY_ERROR = 0.03, 0.1
"""Relative errors of the value of the mean and of those of entries, from simulations (docs/theory/outliers.md)."""
MOST_HEAVY = 0.4
"""Share of the variance in single large entries up to which values beyond the bulk are counted to within a third."""


LEAST_CHUNK = 64  # tokens that a last chunk needs for a law of its own


REGIMES = Choice(("auto", "finite head", "proportional", "one-hot", "sharp"))
RegimeName = Literal["auto", "finite head", "proportional", "one-hot", "sharp"]


class Regime(NamedTuple):
    """Which law applies, and why."""

    name: Literal["finite head", "one-hot", "sharp"]
    reason: str


class PredictedOutlier(NamedTuple):
    """An expected squared singular value beyond the bulk, its origin, and its error (infinite for a lower bound)."""

    kind: Literal["mean", "entry", "sink"]
    location: float
    error: float


class Stages(NamedTuple):
    """The matrices of *equivalence*, Figure 1, from one draw of the scores."""

    attention: Any
    fixed_normaliser: Any
    entrywise: Any
    taylor: Any
    taylor_linear: Any
    linear: Any


@dataclass(frozen=True, eq=False, repr=False)
class SoftmaxAttention(Parametric, Ensemble):
    """``A = softmax(beta S)``, ``S = X W_Q W_K' X'/sqrt(head_dim)``; the law is that of ``sqrt(T) (A - uu')``, squared.

    With a mask the mean is not ``uu'`` but the mask's own, C, whose row i is uniform on what token i sees: for causal
    attention the Cesaro matrix.
    By default the tokens are orthonormal, so that queries and keys are independent Gaussian vectors (*equivalence*,
    section 2). ``inputs`` is any matrix X with a row for each token.

    >>> from bulkedge.inference.comparison import compare
    >>> model = SoftmaxAttention(tokens=300, head_dim=32, beta=0.5)
    >>> round(compare(model.spectrum(np.random.default_rng(0)), model.law()).ks, 2)
    0.02
    """

    tokens: int = parameter(Integers(16, 10**6), "number of tokens T")
    head_dim: int = parameter(Integers(2, 10**5), "dimension of queries and keys")
    beta: float = parameter(Interval(1e-3, 1e3), "inverse temperature", 1.0)
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)
    mask: Any = parameter(MaskOrName(), "who attends to whom", "full")
    inputs: Any = None

    def __post_init__(self) -> None:
        """Check the parameters, and the shapes of mask and inputs."""
        super().__post_init__()
        object.__setattr__(self, "mask", mask_for(self.mask, self.tokens))
        if self.inputs is not None:
            object.__setattr__(self, "inputs", MATRIX.check("inputs", self.inputs))
            if len(self.inputs) != self.tokens:
                raise DomainError(f"inputs has shape {self.inputs.shape}: give a row for each of {self.tokens} tokens")

    # -- simulation ----------------------------------------------------------------------------------------------------

    def scores(self, rng: Any) -> Any:
        """Draw the scores ``S = Q K'/sqrt(head_dim)``, before beta multiplies them, on the backend of the generator."""
        width = self.tokens if self.inputs is None else self.inputs.shape[1]
        query, key = (normal(rng, (width, self.head_dim)) for _ in range(2))
        xp = array_namespace(query)
        if self.inputs is not None:
            tokens = xp.asarray(self.inputs, dtype=query.dtype)
            query, key = tokens @ query, tokens @ key
        if self.qk_norm:
            query, key = (
                each * (self.head_dim**0.5 / xp.linalg.vector_norm(each, axis=1, keepdims=True))
                for each in (query, key)
            )
        return query @ xp.matrix_transpose(key) / self.head_dim**0.5

    def sample(self, rng: Any) -> Any:
        """Draw the attention matrix A, of shape (tokens, tokens); its rows sum to one."""
        return self._softmax(self.scores(rng))

    def _softmax(self, scores: Any) -> Any:
        return softmax(self.beta * scores, None if self._sees_all else self.mask.visible(scores))

    @property
    def _sees_all(self) -> bool:
        return isinstance(self.mask, FullMask)

    @property
    def causal(self) -> bool:
        """Whether tokens attend to themselves and all earlier ones."""
        return isinstance(self.mask, WindowMask) and self.mask.unlimited

    def spectrum(self, rng: Any) -> Spectrum:
        """Squared singular values of ``sqrt(T) (A - C)``, C the mean of the mask: ``uu'`` if every token sees all."""
        weights = self.sample(rng)
        mean = 1 / self.tokens if self._sees_all else self.mask.mean(weights)
        found: Spectrum = spectrum(self.tokens**0.5 * (weights - mean)).squared()
        return found

    @takes(scores=Array(least=2))
    def normalisers(self, scores: Any) -> Any:
        """``Z_i/T``, which tends to ``exp(beta**2/2)`` (*equivalence*, Lemma 4.1)."""
        xp = array_namespace(scores)
        return xp.mean(xp.exp(self.beta * scores), axis=1)

    @takes(degree=Integers(0, 60))
    def stages(self, rng: Any, degree: int | None = None) -> Stages:
        """The steps of the proof, from attention to the linear model, from one draw."""
        self._require_plain("the stages of the proof")
        scores = self.scores(rng)
        xp, root = array_namespace(scores), self.tokens**0.5
        noise = normal(rng, (self.tokens, self.tokens))
        entrywise = (xp.exp(self.beta * scores - self.beta**2 / 2) - 1) / root
        polynomial = taylor(self.beta, degree or taylor_degree(self.head_dim))
        theta = float(np.expm1(self.beta**2)), self.beta**2
        theta_taylor = polynomial.variance, polynomial.slope**2

        def linear(variance: float, signal: float) -> Any:
            return (signal**0.5 * scores + max(variance - signal, 0.0) ** 0.5 * noise) / root

        return Stages(
            attention=root * (self._softmax(scores) - 1 / self.tokens),
            fixed_normaliser=entrywise - xp.mean(entrywise, axis=1, keepdims=True),
            entrywise=entrywise,
            taylor=polynomial(scores) / root,
            taylor_linear=linear(*theta_taylor),
            linear=linear(*theta),
        )

    # -- prediction ----------------------------------------------------------------------------------------------------

    def heavy_share(self) -> float:
        """Share of the variance of an entry that lies in entries large enough to leave the bulk on their own.

        Such an entry exceeds ``sqrt(T)`` times its standard deviation. The linear model needs this share to be small,
        which is the threshold ``beta << sqrt(log T)`` of *equivalence*, as a number.
        """
        return heavy_share(self._scale * self.beta, self.tokens)

    def regime(self) -> Regime:
        """Which law applies, and why."""
        share = self.heavy_share()
        if share > TRUSTED and self._sharp is not None:
            return Regime("sharp", f"{share:.0%} of the variance is in single large entries, which leave the bulk")
        if self.beta > ONE_HOT * np.sqrt(np.log(self.tokens)):
            return Regime("one-hot", f"beta = {self.beta:g} is far above sqrt(log T): rows attend to one token each")
        return Regime(
            "finite head", f"degrees of the exponential over head_dim = {self.head_dim}, tokens = {self.tokens}"
        )

    @cached_property
    def _sharp(self) -> HeadLaw | None:
        """The law of a head at any inverse temperature, where there is one and it is not that of a flat head."""
        if self.inputs is not None or not (self._sees_all or self.causal):
            return None
        try:
            law = HeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm, self.causal)
        except DomainError:
            return None
        return None if law.is_flat else law

    def law(self, regime: RegimeName = "auto") -> Law:
        """The law of the values that :meth:`spectrum` draws.

        Parameters
        ----------
        regime : str
            ``"finite head"`` is the law of the bulk, without the large entries that leave it.
            ``"sharp"`` is :class:`~bulkedge.laws.attention.head.HeadLaw`, for any beta: it takes some seconds.
            ``"proportional"`` (*equivalence*, Theorem 3.2) is for as many dimensions as tokens, and ``"one-hot"`` (its
            Figure 4) for very large beta. ``"auto"`` takes the best law, as :meth:`regime` says.
            Causal attention, windows, chunks and inputs have one law each, ``"auto"``. That of inputs
            is made from their Gram matrix (:class:`~bulkedge.laws.attention.token_head.TokenHeadLaw`), is right to
            0.01 to 0.05 in its distribution function, and warns where it is not.

        Returns
        -------
        Law
            Of squared singular values of ``sqrt(T) (A - C)``, C the mean of the mask. Where draws were found to be
            farther than 0.02 from it, a :class:`~bulkedge.support.errors.RegimeWarning` says how far.

        Raises
        ------
        DomainError
            For a mask or a score scale without a law, or a regime that is not for this model.

        Examples
        --------
        >>> model = SoftmaxAttention(tokens=2048, head_dim=64, qk_norm=True)
        >>> [tuple(round(end, 2) for end in interval) for interval in model.law().support]
        [(0.0, 3.36), (18.91, 50.38)]
        """
        REGIMES.check("regime", regime)
        if structure(self.mask) is None:
            raise DomainError(f"no law is known for mask = {self.mask!r}. Simulate it (be.null_of)")
        if not (self._sees_all and self.inputs is None) and regime != "auto":
            raise DomainError(f"regime = {regime!r} is for full attention of orthonormal tokens; here it is 'auto'")
        try:
            if not self._sees_all:
                return self._law_of_masked()
            if self.inputs is not None:
                return self._law_of_inputs()
            return self._law_in(self.regime().name if regime == "auto" else regime)
        except DomainError as error:
            raise DomainError(f"no law is known for {self!r}: {error}. Simulate it (be.null_of)") from error

    def _law_of_masked(self) -> Law:
        if self.inputs is not None:
            raise DomainError("the laws of masked attention are for orthonormal tokens")
        seen = structure(self.mask)
        if isinstance(seen, Window):
            beta = min(self.beta, MOST_BETA)
            stands_for = self.beta if beta < self.beta else ANY_BETA.low
            return WindowLaw(beta, self.head_dim, self.tokens, *seen, self.qk_norm, stands_for)
        if seen is None or seen.width == self.tokens:
            return self._law_of_causal()
        # blocks beside each other have the values of all; a last chunk of a few tokens counts with the others
        rest = self.tokens % seen.width
        sizes = [seen.width, rest] if rest >= LEAST_CHUNK else [seen.width]
        kind = "causal" if seen.causal else "full"
        laws = [replace(self, tokens=size, mask=kind).law().scaled(self.tokens / size) for size in sizes]
        share = rest / self.tokens
        return laws[0] if len(laws) == 1 else MixtureLaw(tuple(laws), (1 - share, share))

    def _law_of_causal(self) -> Law:
        if self.heavy_share() > TRUSTED and self._sharp is not None:
            return self._sharp
        head_dim = self.head_dim
        if head_dim > MOST_DIMENSIONS and head_dim >= 4 * self.tokens:  # as good as independent scores
            if 4 * self.tokens <= MOST_DIMENSIONS:
                head_dim = MOST_DIMENSIONS
            elif self.beta <= 1:
                return CausalLaw(np.expm1(self.beta**2))
        beta = min(self.beta, MOST_BETA)
        return CausalHeadLaw(beta, head_dim, self.tokens, self.qk_norm, self.beta if beta < self.beta else ANY_BETA.low)

    def _law_in(self, regime: str) -> Law:
        if regime == "proportional":
            self._warn_of_distance("degrees of the exponential are taken as noise", self._moved_from_noise())
            return AttentionLaw(self.beta, self.head_dim / self.tokens)
        if regime == "sharp":
            return self._sharp or HeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm)
        if regime == "one-hot":
            why = "weights are just below one, and values below the atoms"
            self._warn_of_distance(why, FARTHEST, "law('sharp') is nearer up to beta = 50; or simulate")
            return PoissonLaw(1.0).scaled(self.tokens)
        beta = min(self.beta, MOST_BETA)
        stands_for = self.beta if beta < self.beta else ANY_BETA.low
        return FiniteHeadLaw(beta, self.head_dim, self.tokens, self.qk_norm, head_beta=stands_for)

    def _moved_from_noise(self) -> float:
        """By how much draws are away from the proportional law, at most: low degrees of few channels, large entries."""
        few = min(0.55, 0.5 * self.tokens / self.head_dim**2)
        return float(min(1.0, few + 0.17 * self.beta**2 * self.heavy_share()))

    def _finite_head(self, beta: float) -> FiniteHeadLaw:
        """The law without its warning, where what is made of it has an error of its own."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RegimeWarning)
            return FiniteHeadLaw(beta, self.head_dim, self.tokens, self.qk_norm)

    def _warn_of_distance(self, why: str, moved: float, remedy: str = "Simulate instead") -> None:
        """Say how far draws are, if that is more than their finite size."""
        if moved > MOST_DEVIATION:
            warnings.warn(
                f"beta = {self.beta:g}: {why}, and the Kolmogorov distance of draws is up to "
                f"{min(1.0, moved + finite_size(self.tokens)):.2g}. {remedy} (be.null_of)",
                RegimeWarning,
                stacklevel=4,
            )

    def _law_of_inputs(self) -> Law:
        """The law of the tokens' Gram matrix, with a warning where that does not say enough."""
        if self.qk_norm:
            raise DomainError("with inputs the law is for queries and keys without qk_norm")
        sizes = TokenStatistics.of(np.asarray(self.inputs, dtype=float))
        why = ""
        if sizes.directions < (CROWDED if sizes.spread > UNEVEN else FEWEST_DIRECTIONS):
            why = f"fill about {sizes.directions:.2g} directions only: it may be off by 0.2"
        elif sizes.spread > MOST_SPREAD:
            why = f"have squared distances from their mean that vary by {sizes.spread**0.5:.0%}: it may be off by 0.2"
        if why:
            warnings.warn(
                f"the law is not near for these inputs, which {why}. Simulate instead (be.null_of)",
                RegimeWarning,
                stacklevel=3,
            )
        return sizes.law(self.beta, self.head_dim)

    @property
    def _scale(self) -> float:
        """Standard deviation of the scores in a row: lengths of tokens, and their distances from the mean token."""
        if self.inputs is None:
            return 1.0
        tokens = np.asarray(self.inputs, dtype=float)
        lengths, distances = (np.mean(np.sum(each**2, axis=1)) for each in (tokens, tokens - tokens.mean(axis=0)))
        return float(np.sqrt(lengths * distances))

    def _require_plain(self, what: str) -> None:
        if not self._sees_all or self.inputs is not None:
            raise DomainError(f"{what} are known for attention to all of orthonormal tokens: no mask, no inputs")

    def perron(self) -> float:
        """``T s_1(A)**2``, about ``T (1 + beta**4/(2 d)) + exp(beta**2) - 1`` while beta is small.

        The column sums of A are not all one: entries fluctuate, and keys of larger norm are liked more
        (:mod:`bulkedge.laws.attention.perron` has the derivation, at any beta). The mean over draws is within 3 % of
        this. Where a single entry is nearly one, or column sums vary by more than a third, the top singular value is
        no longer that of the mean: then a :class:`~bulkedge.support.errors.RegimeWarning` says so, and this is a lower
        bound. With a mask it is the first of :meth:`outliers`.
        """
        return self._of_the_mean(1)[0].location

    def _of_the_mean(self, most: int) -> list[PredictedOutlier]:
        if self.inputs is not None:
            raise DomainError("outliers are known for orthonormal tokens: without inputs")
        if self._sees_all:
            return [self._perron_outlier()]
        most = Integers(1, self.tokens).check("most", most)
        if self.causal:
            found = mean_values(self.tokens, self.beta, most)
        else:
            seen = self.mask.visible().astype(float)
            blocks = MaskBlocks(self.mask.mean(), seen, seen.sum(axis=1), np.ones(self.tokens))
            found = shifted_values(blocks, self.beta, most)
        return [PredictedOutlier(*each) for each in found.outliers(self.tokens)]

    def _perron_outlier(self) -> PredictedOutlier:
        found = perron(self.beta, self.head_dim, self.tokens, qk_norm=self.qk_norm)
        if not found.trusted:
            warnings.warn(
                f"beta = {self.beta:g} is too large for the Perron value at {self.tokens} tokens: the largest weight "
                f"is {found.largest:.2f}, column sums vary by {found.spread**0.5:.2f}. This is a lower bound only",
                RegimeWarning,
                stacklevel=4,
            )
        square = self.tokens * found.square
        return PredictedOutlier("mean", square, PERRON_ERROR * square if found.trusted else np.inf)

    @takes(most=Integers(0, 10**6))
    def outliers(self, most: int = 10) -> list[PredictedOutlier]:
        """Expected values beyond the bulk, largest first: those of the mean, and those of single large entries.

        The m-th largest of entries is where their expected number beyond is ``m - 1/2``. With a mask the mean has many
        values, which the fluctuations of the rows move outwards
        (:func:`~bulkedge.laws.attention.causal_head.mean_values`); which of its entries stand out is not known.

        Parameters
        ----------
        most : int
            How many entries to list at most, besides the mean; with a mask, how many values of the mean.

        Returns
        -------
        list of PredictedOutlier
            Squared singular values of ``sqrt(T) A``, each with its kind, ``"mean"`` or ``"entry"``, and its error.

        Examples
        --------
        >>> head = SoftmaxAttention(tokens=1024, head_dim=64, beta=0.5, mask="causal")
        >>> [(round(each.location), round(each.error)) for each in head.outliers(2)]
        [(3162, 18), (1753, 28)]
        """
        found = self._of_the_mean(most)
        if not self._sees_all:
            return found
        ranks = range(1, min(most, int(self.expected_entry_outliers() + 0.5)) + 1)
        entries = [self._where_beyond(rank - 0.5) for rank in ranks]
        return found + [PredictedOutlier("entry", each, ENTRY_ERROR * each) for each in entries]

    def median_second(self) -> float:
        """Median of the second largest squared singular value of ``sqrt(T) A``: the edge, or an entry beyond it."""
        if self._entries.beyond(self._finite_edge) > np.log(2):
            return self._where_beyond(np.log(2))
        return self._bulk_law.finite_edge(self.tokens, 0.5)

    def expected_entry_outliers(self) -> float:
        """Expected number of values of :meth:`spectrum` beyond the ``finite_edge`` of the bulk.

        They come from large entries, alone, with others in their row or column, or by pushing the edge outwards
        (:mod:`bulkedge.ensembles.entries`). Means of simulations are within a third of this, mostly below it; where
        more than 40 % of the variance is in large entries a :class:`~bulkedge.support.errors.RegimeWarning` says that
        there is no such bulk.
        """
        count = self._entries.beyond(self._finite_edge)
        if self.heavy_share() > MOST_HEAVY:
            warnings.warn(
                f"{self.heavy_share():.0%} of the variance is in single large entries: there is "
                "no bulk to count values beyond",
                RegimeWarning,
                stacklevel=2,
            )
        return count

    @cached_property
    def _bulk_law(self) -> Law:
        self._require_plain("outliers")
        return self._finite_head(self.beta)

    @cached_property
    def _finite_edge(self) -> float:
        return self._bulk_law.finite_edge(self.tokens)

    @cached_property
    def _entries(self) -> LargeEntries:
        self._require_plain("outliers")
        return LargeEntries(self.beta, self.head_dim, self.tokens, self.qk_norm)

    def _where_beyond(self, number: float) -> float:
        """The point beyond which so many values are expected, fewer than beyond the edge."""
        low = self._finite_edge
        high = 2 * low
        while self._entries.beyond(high) > number:
            low, high = high, 2 * high
        log = brentq(lambda x: self._entries.beyond(np.exp(x)) - number, np.log(low), np.log(high), xtol=1e-3)
        return float(np.exp(log))


@dataclass(frozen=True)
class CentredPolynomial:
    """A centred polynomial, with its variance and mean slope for a standard Gaussian."""

    coefficients: tuple[float, ...]
    variance: float
    slope: float

    def __call__(self, x: Any) -> Any:
        """Evaluate, by Horner's rule."""
        total = 0.0 * x + self.coefficients[-1]
        for each in self.coefficients[-2::-1]:
            total = total * x + each
        return total


def taylor(beta: float, degree: int) -> CentredPolynomial:
    """The Taylor polynomial of ``f(x) = exp(beta x - beta**2/2) - 1``, centred (*equivalence*, section 4)."""
    steps = np.cumprod(np.append(1.0, beta / np.arange(1, degree + 1)))
    raw = np.exp(-(beta**2) / 2) * steps
    nodes, weights = np.polynomial.hermite_e.hermegauss(degree + 2)
    weights = weights / weights.sum()
    values = np.polynomial.polynomial.polyval(nodes, raw)
    mean = float(weights @ values)
    slope = float(weights @ np.polynomial.polynomial.polyval(nodes, np.polynomial.polynomial.polyder(raw)))
    return CentredPolynomial((float(raw[0]) - mean, *raw[1:].tolist()), float(weights @ (values - mean) ** 2), slope)


def taylor_degree(dim: int, constant: float = 2.0) -> int:
    """``ceil(c log d/log log d)``, the degree that *equivalence* takes."""
    return int(np.ceil(constant * np.log(dim) / np.log(np.log(max(dim, 16)))))
