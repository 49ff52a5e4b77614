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
from typing import Any, Literal, NamedTuple

import numpy as np

import bulkedge as be
from bulkedge.arrays import Real
from bulkedge.domains import FINITE
from bulkedge.errors import BulkedgeError, DomainError, RegimeWarning
from bulkedge.laws import Law

ROW_SUM = 0.01
"""How far the sums of rows may be from one: half precision rounds a thousand weights so."""
MOST_OUTLIERS = 12
NEAR = 0.05
"""Kolmogorov distance from which on no law is suggested."""
SMALLEST_GAUSSIAN = 32


class Candidate(NamedTuple):
    """A law, and how far the matrix is from it."""

    name: str
    law: Law
    distance: float


class Outlier(NamedTuple):
    """A value beyond the edge of the suggested law; the p-value is that of the largest value of noise."""

    value: float
    p_value: float


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
        Of attention: spread of the scores less their row and column means, and the dimension they seem to have.
    candidates : list of Candidate
        Nearest first.
    outliers : list of Outlier
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
    outliers: list[Outlier]
    note: str


def fit(matrix: Any) -> Fit:
    """Compare a matrix with laws that it may have.

    Parameters
    ----------
    matrix : array_like of shape (rows, columns)
        An attention matrix, whose rows sum to one, or any other.

    Returns
    -------
    Fit
        Laws and outliers.

    Raises
    ------
    DomainError
        If it is no matrix of finite numbers.
    """
    given = FINITE.check("matrix", matrix).astype(float)
    if given.ndim != 2 or min(given.shape) < 2:
        raise DomainError(f"matrix has shape {given.shape}: it must have two axes, each longer than one")
    if is_attention(given):
        return _fit_attention(given)
    return _fit_matrix(given)


def is_attention(matrix: Real) -> bool:
    """Whether a matrix is one of attention: square, no entry negative, rows that sum to one.

    Parameters
    ----------
    matrix : array of shape (rows, columns)
        Finite numbers.

    Returns
    -------
    bool
        Whether it is, up to the rounding of half precision.
    """
    square = matrix.shape[0] == matrix.shape[1]
    return bool(square and matrix.min() >= -1e-6 and np.all(np.abs(matrix.sum(axis=1) - 1) < ROW_SUM))


def scores_of(attention: Real) -> tuple[float, float, Real]:
    """Spread and dimension of the scores of a block of attention, and how much its keys are liked.

    Parameters
    ----------
    attention : array of shape (rows, columns)
        Weights, none of them negative; zeros count as the smallest weight there is.

    Returns
    -------
    beta : float
        Spread of the scores less the means of their rows and columns.
    head_dim : float
        The dimension that the participation of their singular values tells.
    popularity : array of shape (columns,)
        Of mean one: exponentials of the columns' mean scores.
    """
    smallest = attention[attention > 0].min() if np.any(attention > 0) else 1.0
    logs = np.log(np.maximum(attention, smallest))
    logs = logs - logs.mean(axis=1, keepdims=True)
    columns = logs.mean(axis=0)
    scores = logs - columns
    freedom = (scores.shape[0] - 1) * (scores.shape[1] - 1)  # what the means of rows and columns leave
    beta = float(np.sqrt(np.sum(scores**2) / max(freedom, 1)))
    power = np.linalg.svd(scores, compute_uv=False) ** 2
    crowding = float(np.sum(power**2) / max(np.sum(power) ** 2, 1e-300))
    dim = 1 / max(crowding - 1 / len(scores) - 1 / scores.shape[1], 1e-6)
    liked = np.exp(columns - columns.max())
    return beta, dim, liked / liked.mean()


def _fit_attention(attention: Real) -> Fit:
    tokens = len(attention)
    causal = bool(np.all(np.triu(attention, 1) < 1e-9))
    half = tokens // 2
    beta, dim, liked = scores_of(attention[half:, :half] if causal else attention)
    mean = be.Mask.causal(tokens).mean() if causal else np.tile(attention.mean(axis=0), (tokens, 1))
    values = be.spectrum(np.sqrt(tokens) * (attention - mean)).squared().values
    rounded = int(np.clip(round(dim), 2, 4096))
    laws = _causal_laws(beta, rounded, tokens) if causal else _full_laws(beta, rounded, tokens, liked)
    kind: Any = "causal attention" if causal else "attention"
    return _judged(kind, "√T (A − C)" if causal else "√T (A − 1π′)", values, laws, beta, dim)


def _full_laws(beta: float, dim: int, tokens: int, liked: Real) -> Iterator[tuple[str, Any]]:
    even = float(np.std(np.log(liked))) < 2 * beta / np.sqrt(tokens)  # means of so many scores differ by half of that
    for norm in (False, True):
        if norm or dim >= SMALLEST_GAUSSIAN:
            kept = f"FiniteHeadLaw, {'normalised' if norm else 'Gaussian'} queries and keys"
            yield kept, lambda norm=norm: be.FiniteHeadLaw(beta, dim, tokens, norm)
            if not even:
                yield (
                    f"{kept}, popular columns",
                    lambda norm=norm: be.FiniteHeadLaw(beta, dim, tokens, norm).with_columns(liked),
                )
    yield "AttentionLaw (many dimensions)", lambda: be.AttentionLaw(beta, dim / tokens)
    yield "independent scores", lambda: be.MarchenkoPastur(1.0, float(np.expm1(beta**2)))
    yield "one-hot rows (Poisson)", lambda: be.PoissonLaw(1.0).scaled(tokens)


def _causal_laws(beta: float, dim: int, tokens: int) -> Iterator[tuple[str, Any]]:
    for norm in (False, True):
        name = f"CausalHeadLaw, {'normalised' if norm else 'Gaussian'} queries and keys"
        yield name, lambda norm=norm: be.CausalHeadLaw(beta, dim, tokens, norm)
    yield "CausalLaw (independent scores)", lambda: be.CausalLaw(float(np.expm1(beta**2)))


def _fit_matrix(matrix: Real) -> Fit:
    wide = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    rows, columns = wide.shape
    values = np.linalg.svd(wide, compute_uv=False)[::-1] ** 2 / rows
    noise = be.denoise(wide).noise
    ratio = columns / rows

    def laws() -> Iterator[tuple[str, Any]]:
        yield "MarchenkoPastur: independent entries", lambda: be.MarchenkoPastur(ratio, noise**2)
        yield "ProductLaw: a product of two", lambda: be.ProductLaw((ratio, ratio), float(values.mean()))

    return _judged("matrix", "M/√rows", values, laws(), np.nan, np.nan)


def _judged(  # noqa: PLR0913, PLR0917 - all that a Fit is made of
    kind: Any, matrix: str, values: Real, laws: Iterator[tuple[str, Any]], beta: float, dim: float
) -> Fit:
    found = be.Spectrum.of(values, "squared singular values")
    candidates, seen = [], {}
    for name, make in laws:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RegimeWarning)
            try:
                law = make()
                compared = be.compare(found, law)
            except BulkedgeError:
                continue  # outside of its domain: no candidate
        candidates.append(Candidate(name, law, compared.ks))
        seen[name] = compared
    candidates.sort(key=lambda each: each.distance)
    if not candidates:
        return Fit(kind, matrix, values, beta, dim, [], [], "No law covers these parameters.")
    best = candidates[0]
    beyond = sorted(seen[best.name].outliers, reverse=True)[:MOST_OUTLIERS]
    outliers = [Outlier(each, tail(best.law, len(values), each)) for each in beyond]
    near = f"The nearest law is at a Kolmogorov distance of {best.distance:.3f}"
    said = "." if best.distance < NEAR else ", too far to call it the law of this matrix: it has structure of its own."
    return Fit(kind, matrix, values, beta, dim, candidates, outliers, near + said)


def tail(law: Law, size: int, value: float) -> float:
    """Probability that the largest of so many values of a law is as large.

    Parameters
    ----------
    law : Law
        Of the bulk.
    size : int
        Number of values.
    value : float
        The value.

    Returns
    -------
    float
        By Tracy and Widom's law at a square-root edge; NaN where the edge is no such.
    """
    spectrum = be.Spectrum.of([value], law.unit)
    try:
        return be.LawNull(law, size).p_value(spectrum).value
    except BulkedgeError:
        return float("nan")
