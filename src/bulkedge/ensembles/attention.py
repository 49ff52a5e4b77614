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
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from array_api_compat import array_namespace
from scipy.optimize import brentq

from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.entries import TRUSTED, LargeEntries, heavy_share
from bulkedge.ensembles.perron import BETA, perron
from bulkedge.laws.attention.causal import CausalLaw
from bulkedge.laws.attention.causal_head import SHARPEST, CausalHeadLaw
from bulkedge.laws.attention.finite_head import FiniteHeadLaw
from bulkedge.laws.attention.proportional import AttentionLaw
from bulkedge.laws.attention.token_head import TokenStatistics
from bulkedge.laws.classical.empirical import PoissonLaw
from bulkedge.laws.law import Law
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError, RegimeWarning
from bulkedge.support.random import normal
from bulkedge.visibility import FullMask, MaskOrName, WindowMask, mask_for, softmax

INDEPENDENT = 4
"""Head dimensions a token from which causal scores are as good as independent."""
MOST_TILT = 0.2
"""Variance of the popularity of keys up to which one-hot rows choose keys evenly, as the Poisson law has it."""
MOST_SPREAD = 0.06
"""Relative variance of the tokens' squared distances from their mean up to which one score scale stands for all: at
0.04 the law of inputs is 0.03 away from simulations of 256 tokens, at 0.16 it is 0.09."""
MOST_LIKENESS = 0.5
"""How many tokens may be like a given one, beyond Gaussian tokens of the same covariance, or be missing: at 0.1 the law
of inputs is 0.04 away, at 1.9 it is 0.3; below zero 0.06 at -0.8 and 0.36 at -70 (tokens of a few directions)."""
MOST_HEAVY = 0.4
"""Share of the variance in single large entries up to which values beyond the bulk are counted to within a third."""


class Regime(NamedTuple):
    """Which law applies, and why."""

    name: Literal["finite head", "heavy tails", "one-hot"]
    reason: str


class PredictedOutlier(NamedTuple):
    """An expected value beyond the bulk: squared singular value of ``sqrt(T) A``, and where it comes from."""

    kind: Literal["mean", "entry"]
    location: float


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
        if self.inputs is not None and (np.ndim(self.inputs) != 2 or len(self.inputs) != self.tokens):
            raise DomainError(
                f"inputs must have a row for each of the {self.tokens} tokens; got {np.shape(self.inputs)}"
            )
        if self.inputs is not None and not np.all(np.isfinite(np.asarray(self.inputs))):
            rows = np.flatnonzero(~np.isfinite(np.asarray(self.inputs)).all(axis=1))
            raise DomainError(
                f"inputs has entries that are NaN or infinite, in row {rows[0]} for one; they must be finite"
            )

    # -- simulation ----------------------------------------------------------------------------------------------------

    def scores(self, rng: Any) -> Any:
        """Draw the scores ``S = Q K'/sqrt(head_dim)``, before beta multiplies them, on the backend of the generator.

        Parameters
        ----------
        rng : numpy.random.Generator or torch.Generator
            Chooses backend and device.

        Returns
        -------
        array of shape (tokens, tokens)
            Scores of unit variance if tokens have unit norm; beta is not in them yet.
        """
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

    def normalisers(self, scores: Any) -> Any:
        """``Z_i/T``, which tends to ``exp(beta**2/2)`` (*equivalence*, Lemma 4.1).

        Parameters
        ----------
        scores : array of shape (tokens, tokens)
            A draw of :meth:`scores`.

        Returns
        -------
        array of shape (tokens,)
            ``Z_i/T = mean_j exp(beta S_ij)``, for each row.
        """
        xp = array_namespace(scores)
        return xp.mean(xp.exp(self.beta * scores), axis=1)

    def stages(self, rng: Any, degree: int | None = None) -> Stages:
        """The steps of the proof, from attention to the linear model, from one draw.

        Parameters
        ----------
        rng : numpy.random.Generator or torch.Generator
            Draws the scores, then the noise of the linear models.
        degree : int, optional
            Degree of the Taylor polynomial; by default :func:`~bulkedge.ensembles.attention.taylor_degree` of the head
            dimension.

        Returns
        -------
        Stages
            Matrices of shape (tokens, tokens), each of them next to the one before in the order of the proof.

        Raises
        ------
        DomainError
            With a mask or with inputs: the proof is for attention to all of orthonormal tokens.
        """
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
        if self.beta > 4 * np.sqrt(np.log(self.tokens)):
            return Regime("one-hot", f"beta = {self.beta:g} is far above sqrt(log T): rows attend to one token each")
        if share > TRUSTED:
            return Regime(
                "heavy tails", f"{share:.0%} of the variance is in single large entries, which leave the bulk"
            )
        return Regime(
            "finite head", f"degrees of the exponential over head_dim = {self.head_dim}, tokens = {self.tokens}"
        )

    def law(self, regime: Literal["auto", "finite head", "proportional", "one-hot"] = "auto") -> Law:
        """The law of the values that :meth:`spectrum` draws.

        Parameters
        ----------
        regime : str
            ``"finite head"`` and ``"proportional"`` (*equivalence*, Theorem 3.2) for moderate beta, ``"one-hot"`` (its
            Figure 4) for large beta, ``"auto"`` as :meth:`regime` says; a warning tells when no law is to be trusted.
            Causal attention and inputs have one law each, ``"auto"``; of other masks none is known. That of inputs
            knows their covariance, mean and repetitions (:class:`~bulkedge.laws.attention.token_head.TokenHeadLaw`),
            and warns where these do not say enough.

        Returns
        -------
        Law
            Of squared singular values of ``sqrt(T) (A - C)``, C the mean of the mask.

        Raises
        ------
        DomainError
            For a mask without a law, or a regime that is not for this model.

        Examples
        --------
        >>> model = SoftmaxAttention(tokens=2048, head_dim=64, qk_norm=True)
        >>> [tuple(round(end, 2) for end in interval) for interval in model.law().support]
        [(0.0, 3.36), (18.91, 50.38)]
        """
        Choice(("auto", "finite head", "proportional", "one-hot")).check("regime", regime)
        if not self._sees_all and not self.causal:
            raise DomainError(f"no law is known for mask = {self.mask!r}: simulate it (be.SimulatedNull)")
        if (self.causal or self.inputs is not None) and regime != "auto":
            raise DomainError(
                f"regime = {regime!r} is for attention to all of orthonormal tokens; here there is one, 'auto'"
            )
        if self.causal:
            law = self._law_of_causal()
        elif self.inputs is not None:
            law = self._law_of_inputs()
        else:
            law = self._law_in(regime)
        if regime == "auto" and self._sees_all and self.inputs is None and law.atoms:
            self._check_popularity()
        if regime == "auto" and self.regime().name == "heavy tails":
            reason = self.regime().reason
            warnings.warn(f"{reason}: the law of the bulk is not reliable here", RegimeWarning, stacklevel=2)
        return law

    def _law_of_causal(self) -> Law:
        if self.inputs is not None:
            raise DomainError("the law of causal attention is for orthonormal tokens: no inputs")
        independent = CausalLaw(np.expm1(self.beta**2))
        if self.head_dim >= INDEPENDENT * self.tokens:
            return independent
        try:
            law = CausalHeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm)
        except DomainError as error:
            warnings.warn(
                f"scores of rank head_dim = {self.head_dim} are not independent over {self.tokens} tokens, as the law "
                f"returned takes them to be, and that of causal heads does not apply ({error})",
                RegimeWarning,
                stacklevel=3,
            )
            return independent
        if self.beta > SHARPEST:
            warnings.warn(
                f"beta = {self.beta:g}: large entries are no noise at this beta, and the law of causal heads is "
                "not reliable here",
                RegimeWarning,
                stacklevel=3,
            )
        return law

    def _law_in(self, regime: str) -> Law:
        if regime == "auto":
            regime = "one-hot" if self.regime().name == "one-hot" else "finite head"
        if regime == "one-hot":
            return PoissonLaw(1.0).scaled(self.tokens)
        if regime == "proportional":
            return AttentionLaw(self.beta, self.head_dim / self.tokens)
        return FiniteHeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm)

    def _check_popularity(self) -> None:
        """Warn where keys of large norm win more rows than others: then columns are not Poisson."""
        tilt = perron(min(self.beta, BETA.high), self.head_dim, self.tokens, qk_norm=self.qk_norm).tilt
        if tilt > MOST_TILT:
            warnings.warn(
                f"one-hot rows choose keys of large norm: with head_dim = {self.head_dim} squared column sums exceed "
                f"those of the Poisson law by {tilt:.2g}. qk_norm or more dimensions help",
                RegimeWarning,
                stacklevel=3,
            )

    def _law_of_inputs(self) -> Law:
        """The law of the tokens' sizes, with a warning where these do not say enough."""
        if self.qk_norm:
            raise DomainError(
                "with inputs the law is for queries and keys without qk_norm: simulate (be.SimulatedNull)"
            )
        sizes = TokenStatistics.of(np.asarray(self.inputs, dtype=float), self.head_dim)
        if sizes.spread > MOST_SPREAD or abs(sizes.likeness) > MOST_LIKENESS:
            why = (
                f"squared distances of tokens from their mean vary by {sizes.spread**0.5:.0%}"
                if sizes.spread > MOST_SPREAD
                else f"tokens are more, or less, alike than Gaussian ones of their covariance ({sizes.likeness:.2g})"
            )
            warnings.warn(
                f"no law is known for these inputs: {why}. This one may be off by 0.1 and more in its distribution "
                "function; simulate instead (be.SimulatedNull)",
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
        (:mod:`bulkedge.ensembles.perron` has the derivation, at any beta). The mean over draws is within 3 % of this.
        Where a single entry is nearly one, or column sums vary by more than a third, the top singular value is no
        longer that of the mean: then a :class:`~bulkedge.support.errors.RegimeWarning` says so, and this is a lower
        bound.
        """
        self._require_plain("outliers")
        found = perron(self.beta, self.head_dim, self.tokens, qk_norm=self.qk_norm)
        if not found.trusted:
            warnings.warn(
                f"beta = {self.beta:g} is too large for the Perron value at {self.tokens} tokens: the largest weight "
                f"is {found.largest:.2f}, column sums vary by {found.spread**0.5:.2f}. This is a lower bound only",
                RegimeWarning,
                stacklevel=2,
            )
        return self.tokens * found.square

    def outliers(self, most: int = 10) -> list[PredictedOutlier]:
        """Expected values beyond the bulk, largest first: the mean's, and those of single large entries.

        The m-th largest of entries is where their expected number beyond is ``m - 1/2``. The mean of causal attention
        has many values, those of the Cesaro matrix; which of its entries stand out is not known.

        Parameters
        ----------
        most : int
            How many entries to list at most, besides the mean; with a mask, how many values of the mean.

        Returns
        -------
        list of PredictedOutlier
            Squared singular values of ``sqrt(T) A``, each with its kind, ``"mean"`` or ``"entry"``.
        """
        if not self._sees_all:
            values = self.mask.singular_values(most)
            return [PredictedOutlier("mean", self.tokens * value**2) for value in values.tolist()]
        found = [PredictedOutlier("mean", self.perron())]
        count = self.expected_entry_outliers()
        ranks = range(1, min(most, int(count + 0.5)) + 1)
        return found + [PredictedOutlier("entry", self._where_beyond(rank - 0.5)) for rank in ranks]

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
                f"{self.regime().reason}: with {self.heavy_share():.0%} of it there is no bulk to count values beyond",
                RegimeWarning,
                stacklevel=2,
            )
        return count

    @cached_property
    def _bulk_law(self) -> Law:
        self._require_plain("outliers")
        return FiniteHeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm)

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
    """The Taylor polynomial of ``f(x) = exp(beta x - beta**2/2) - 1``, centred (*equivalence*, section 4).

    >>> polynomial = taylor(beta=1.0, degree=30)
    >>> round(polynomial.variance, 6), round(polynomial.slope, 6)    # of exp(x - 1/2) they are e - 1 and 1
    (1.718282, 1.0)
    """
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
