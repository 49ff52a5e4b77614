"""Which law a matrix looks like: beta and dimensions of an attention matrix, distances to several laws, outliers.

For an attention matrix the logarithm of its entries are the scores, up to a constant in each row. Less the means of
rows and columns they are those of a head without popular keys: their spread is beta, and the participation of their
singular values, ``(sum s**2)**2/sum s**4 = 1/(1/d + 2/T)`` for Gaussian queries and keys, tells the dimension d.

>>> import bulkedge as be
>>> found = fit(be.SoftmaxAttention(tokens=256, head_dim=64, beta=0.7, qk_norm=True).sample(np.random.default_rng(0)))
>>> found.kind, round(found.beta, 2), 55 < found.head_dim < 75
('attention', 0.7, True)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

import bulkedge as be
from bulkedge.laws import Law
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE
from bulkedge.support.errors import BulkedgeError, DomainError, RegimeWarning, UnresolvedError

ROW_SUM = 0.01
"""How far the sums of rows may be from one: half precision rounds a thousand weights so."""
NEAR, NOISE = 0.05, 4.5
"""Kolmogorov distance from which on no law is suggested; it is larger for the few values of small matrices, because
that of pure noise from its own law reaches this many over their number."""
SMALLEST_GAUSSIAN, NEARLY = 32, 0.9
"""Smallest dimension of laws of heads without QK-norm, and the share of it that is taken for it, as estimates err."""
LARGEST_DIM = 4096
"""Largest dimension of laws of heads: scores that tell none are taken to have this one."""
MOST_ZEROS = 0.01
"""Share of weights of zero from which on scores are not known: softmax has none, but masks and rounding make them."""
SMALLEST_ENTRY, LARGEST_ENTRY = 1e-90, 1e90
"""Between these the largest entry of a matrix lies, because singular values are squared twice."""
UNTOLD = 12
"""Independent scores of n rows and m columns tell a dimension of nm/3, give or take: 1/d is told from 12/(nm) on."""
DRAWS, FEW_DRAWS = 39, 19
"""Heads that are drawn, and of large ones, which take longer."""
STREAM = 8052
"""Keeps the draws apart from those of readers, who begin to count their seeds at zero as well."""
LARGE, DENSE = 1024, 200
"""Tokens from which on there are few draws, and up to which all values are computed."""


class FreshHead(NamedTuple):
    """A head as it would be without structure: a null for the outliers of an attention matrix.

    Tracy and Widom's law at the edge of a head's law will not do. Without QK-norm a few queries and keys are long, and
    their large entries push values far beyond the edge: of fresh heads with beta = 1, 64 dimensions and 256 tokens
    four in ten have an outlier by that law, with p-values down to 1e-24.

    ``head_dim`` is None for independent scores; ``liked`` has the popularity of every key, or is None where all are
    alike.
    """

    tokens: int
    beta: float
    head_dim: int | None
    qk_norm: bool
    causal: bool
    liked: tuple[float, ...] | None = None

    @property
    def draws(self) -> int:
        """How many heads are drawn."""
        return FEW_DRAWS if self.tokens > LARGE else DRAWS

    def sample(self, rng: np.random.Generator) -> Real:
        """The attention matrix of one head."""
        if self.head_dim is None:
            scores = rng.standard_normal((self.tokens, self.tokens))
        else:
            scores = be.SoftmaxAttention(self.tokens, self.head_dim, self.beta, self.qk_norm).scores(rng)
        logs = self.beta * scores + (0.0 if self.liked is None else np.log(self.liked))
        if self.causal:
            logs = np.where(np.tri(self.tokens, dtype=bool), logs, -np.inf)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def p_value(self, value: float) -> float:
        """Share of fresh heads, this one counted, whose largest value is as large."""
        found = largest_values(self)
        return float((1 + np.sum(found >= value)) / (1 + len(found)))


def centre(attention: Real, *, causal: bool) -> Real:
    """Attention less its mean, times the root of the tokens: the matrix whose values laws of heads are of."""
    tokens = len(attention)
    mean = be.Mask.causal(tokens).mean() if causal else attention.mean(axis=0)
    return np.sqrt(tokens) * (attention - mean)


@lru_cache(maxsize=32)
def largest_values(head: FreshHead) -> Real:
    """The largest squared singular value of each of some fresh heads."""
    found = []
    for seed in range(head.draws):
        rng = np.random.default_rng([STREAM, seed])
        matrix = centre(head.sample(rng), causal=head.causal)
        found.append(_largest(matrix, rng) ** 2)
    return np.array(found)


def _largest(matrix: Real, rng: np.random.Generator) -> float:
    if len(matrix) > DENSE:
        try:
            return float(be.top_singular(matrix, 1, 1e-4, rng).values[0])
        except UnresolvedError:
            pass  # values that are close to each other take all of them
    return float(np.linalg.norm(matrix, 2))


class Candidate(NamedTuple):
    """A law, how far the matrix is from it, and the fresh head that has this law if it is one of heads."""

    name: str
    law: Law
    distance: float
    fresh: FreshHead | None = None

    def p_value(self, value: float, size: int) -> float:
        """Probability that the largest value without structure is as large."""
        return tail(self.law, size, value) if self.fresh is None else self.fresh.p_value(value)

    @property
    def least(self) -> float:
        """The least p-value that there is: one over the number of draws and one for heads."""
        return 0.0 if self.fresh is None else 1 / (1 + self.fresh.draws)


class MatrixOutlier(NamedTuple):
    """A value beyond the edge of the suggested law; the p-value is that of the largest value of noise."""

    value: float
    p_value: float


Trial = tuple[str, Any, "FreshHead | None"]
"""Name of a law, what makes it, and the fresh head that has it."""


@dataclass(frozen=True, eq=False)
class Fit:
    """What was found.

    Attributes
    ----------
    kind : str
        ``"attention"``, ``"causal attention"`` or ``"matrix"``.
    matrix : str
        What the values are of.
    values : array
        Squared singular values, in increasing order.
    beta, head_dim : float
        Of attention: spread of the scores less their row and column means, and the dimension they seem to have. NaN
        where weights of zero hide the scores; the dimension is infinite where scores look independent.
    candidates : list of Candidate
        Nearest first.
    outliers : list of MatrixOutlier
        Largest first; of the nearest law.
    note : str
        What to think of it, in a sentence.
    """

    kind: Literal["attention", "causal attention", "matrix"]
    matrix: str
    values: Real
    beta: float
    head_dim: float
    candidates: list[Candidate]
    outliers: list[MatrixOutlier]
    note: str


def fit(matrix: Any) -> Fit:
    """Compare a matrix with laws that it may have."""
    given = FINITE.check("matrix", matrix).astype(float)
    if given.ndim != 2 or min(given.shape) < 2:
        raise DomainError(f"matrix has shape {given.shape}: it must have two axes, each longer than one")
    largest = float(np.abs(given).max())
    if not SMALLEST_ENTRY <= largest <= LARGEST_ENTRY:
        say = (
            "all entries of the matrix are zero" if not largest else f"the largest entry of the matrix is {largest:.2g}"
        )
        raise DomainError(f"{say}; one between {SMALLEST_ENTRY:g} and {LARGEST_ENTRY:g} is needed: scale the matrix")
    if is_attention(given):
        return _fit_attention(given)
    return _fit_matrix(given)


def is_attention(matrix: Real) -> bool:
    """Whether a matrix is one of attention: square, no entry negative, rows that sum to one."""
    square = matrix.shape[0] == matrix.shape[1]
    return bool(square and matrix.min() >= -1e-6 and np.all(np.abs(matrix.sum(axis=1) - 1) < ROW_SUM))


def scores_of(attention: Real) -> tuple[float, float, Real]:
    """Spread and dimension of the scores of a block of attention, and how much its keys are liked."""
    positive = attention > 0
    smallest = attention[positive].min() if np.any(positive) else 1.0
    logs = np.log(np.maximum(attention, smallest))
    logs = logs - logs.mean(axis=1, keepdims=True)
    columns = logs.mean(axis=0)
    scores = logs - columns
    freedom = max((scores.shape[0] - 1) * (scores.shape[1] - 1), 1)  # what the means of rows and columns leave
    beta = float(np.sqrt(np.sum(scores**2) / freedom))
    liked = np.exp(columns - columns.max())
    liked = liked / liked.mean()
    if np.mean(~positive) > MOST_ZEROS:
        return float("nan"), float("nan"), liked
    power = np.linalg.svd(scores, compute_uv=False) ** 2
    total = float(np.sum(power)) ** 2
    alike = float(np.sum(power**2)) / total - 1 / len(scores) - 1 / scores.shape[1] if total > 1e-200 else 0.0
    return beta, 1 / alike if alike > UNTOLD / freedom else float("inf"), liked


def _fit_attention(attention: Real) -> Fit:
    tokens = len(attention)
    causal = bool(np.all(np.triu(attention, 1) < 1e-9))
    half = tokens // 2
    beta, dim, liked = scores_of(attention[half:, :half] if causal else attention)
    values = be.spectrum(centre(attention, causal=causal)).squared().values
    kind: Any = "causal attention" if causal else "attention"
    matrix = "√T (A − C)" if causal else "√T (A − 1π′)"
    if np.isnan(beta):
        laws = iter(()) if causal else _one_hot(tokens)
        hidden = "Too many weights are zero to read the scores, so that β and the dimension are not known. "
        return _judge(kind, matrix, values, laws, beta, dim, hidden)
    rounded = int(np.clip(round(min(dim, LARGEST_DIM)), 2, LARGEST_DIM))
    laws = _causal_laws(beta, rounded, tokens) if causal else _full_laws(beta, rounded, tokens, liked)
    return _judge(kind, matrix, values, laws, beta, dim)


def _one_hot(tokens: int) -> Iterator[Trial]:
    yield "one-hot rows (Poisson)", lambda: be.PoissonLaw(1.0).scaled(tokens), None


def _gaussian_dim(dim: int) -> int | None:
    """The dimension to try without QK-norm: that of the estimate, or the smallest if the estimate is just below it."""
    return max(dim, SMALLEST_GAUSSIAN) if dim >= NEARLY * SMALLEST_GAUSSIAN else None


def _full_laws(beta: float, dim: int, tokens: int, liked: Real) -> Iterator[Trial]:
    even = float(np.std(np.log(liked))) < 2 * beta / np.sqrt(tokens)  # means of so many scores differ by half of that
    for norm in (False, True):
        size = dim if norm else _gaussian_dim(dim)
        if size is not None:
            kept = f"FiniteHeadLaw, {'normalised' if norm else 'Gaussian'} queries and keys"
            fresh = FreshHead(tokens, beta, size, norm, causal=False)
            yield kept, lambda norm=norm, size=size: be.FiniteHeadLaw(beta, size, tokens, norm), fresh
            if not even:
                yield (
                    f"{kept}, popular columns",
                    lambda norm=norm, size=size: be.FiniteHeadLaw(beta, size, tokens, norm).with_columns(liked),
                    fresh._replace(liked=tuple(liked.tolist())),
                )
    fresh = FreshHead(tokens, beta, dim, qk_norm=False, causal=False)
    yield "AttentionLaw (many dimensions)", lambda: be.AttentionLaw(beta, dim / tokens), fresh
    alone = fresh._replace(head_dim=None)
    yield "independent scores", lambda: be.MarchenkoPastur(1.0, float(np.expm1(beta**2))), alone
    yield from _one_hot(tokens)


def _causal_laws(beta: float, dim: int, tokens: int) -> Iterator[Trial]:
    for norm in (False, True):
        name, size = f"CausalHeadLaw, {'normalised' if norm else 'Gaussian'} queries and keys", dim
        if not norm:
            size = _gaussian_dim(dim) or dim  # the law refuses what is smaller
        fresh = FreshHead(tokens, beta, size, norm, causal=True)
        yield name, lambda norm=norm, size=size: be.CausalHeadLaw(beta, size, tokens, norm), fresh
    alone = FreshHead(tokens, beta, None, qk_norm=False, causal=True)
    yield "CausalLaw (independent scores)", lambda: be.CausalLaw(float(np.expm1(beta**2))), alone


def _fit_matrix(matrix: Real) -> Fit:
    wide = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    rows, columns = wide.shape
    values = np.linalg.svd(wide, compute_uv=False)[::-1] ** 2 / rows
    ratio = columns / rows

    def noise() -> Law:
        return be.MarchenkoPastur(ratio, be.denoise(wide).noise ** 2)  # raises at low rank: there is no noise

    def laws() -> Iterator[Trial]:
        yield "MarchenkoPastur: independent entries", noise, None
        yield "ProductLaw: a product of two", lambda: be.ProductLaw((ratio, ratio), float(values.mean())), None

    return _judge("matrix", "M/√rows", values, laws(), np.nan, np.nan)


def _judge(  # noqa: PLR0913, PLR0917 - all that a Fit is made of
    kind: Any, matrix: str, values: Real, laws: Iterator[Trial], beta: float, dim: float, hidden: str = ""
) -> Fit:
    found = be.Spectrum.of(values, "squared singular values")
    candidates, comparisons = [], {}
    for name, make, fresh in laws:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RegimeWarning)
            try:
                law = make()
                compared = be.compare(found, law)
            except BulkedgeError:
                continue  # outside of its domain: no candidate
        candidates.append(Candidate(name, law, compared.ks, fresh))
        comparisons[name] = compared
    candidates.sort(key=lambda each: each.distance)
    if not candidates:
        note = "No law covers this matrix, and without one no value can be said to stand out."
        return Fit(kind, matrix, values, beta, dim, [], [], hidden + note)
    best = candidates[0]
    beyond = sorted(comparisons[best.name].outliers, reverse=True)[:12]
    outliers = [MatrixOutlier(each, best.p_value(each, len(values))) for each in beyond]
    near = f"The nearest law is at a Kolmogorov distance of {best.distance:.3f}"
    close = best.distance < max(NEAR, NOISE / len(values))
    said = "." if close else ", too far to call it the law of this matrix: it has structure of its own."
    return Fit(kind, matrix, values, beta, dim, candidates, outliers, hidden + near + said)


def tail(law: Law, size: int, value: float) -> float:
    """Probability that the largest of so many values of a law is as large."""
    spectrum = be.Spectrum.of([value], law.unit)
    try:
        return be.LawNull(law, size).p_value(spectrum).value
    except BulkedgeError:
        return float("nan")
