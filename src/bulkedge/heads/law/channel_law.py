"""The whole spectrum of an anisotropic head, from its couplings or from its own queries and keys (ours).

A head is expanded in products of functions of its queries and of its keys (:mod:`bulkedge.heads.law.channel_cdf`), and
only the sizes of these functions at the tokens enter the equations of its resolvent
(:mod:`bulkedge.heads.law.resolvent`). Which functions, is decided at each point of the spectrum: those that are
orthogonal for the weights that the resolvent itself gives the tokens there, or for all tokens alike, or none, whichever
says the same with fewer values. Repeated tokens come once, with multiplicities, and the values that they leave at zero
are an atom. docs/theory/anisotropic.md derives it, docs/laws/channel.md shows it.

>>> from bulkedge.heads import Channel
>>> law = Channel([0.4, 0.3, 0.3, 0.2, 0.2, 0.1]).law(tokens=300)
>>> law.cdf([1e-6, 1e-3, 1e-1, 3.0]).round(2)
array([0.35, 0.71, 0.89, 0.97])
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from bulkedge.heads.law.channel_cdf import Tokens, tabulate
from bulkedge.laws.attention.sharp_head import LogTable
from bulkedge.laws.distribution import Distribution, PointMasses, Unit
from bulkedge.support.arrays import Index, Real, as_numpy
from bulkedge.support.domains import FINITE, LABELS, MATRIX, REAL, REAL_NUMBER, Integers, takes
from bulkedge.support.errors import DomainError, UnresolvedError
from bulkedge.visibility import softmax

TOKENS = Integers(16, 4096)
SINKHORN = 2000  # rounds in which rows and columns are given their sums in turn


@dataclass(frozen=True, eq=False)
class ChannelLaw(Distribution):
    """Squared singular values of ``sqrt(T) (A - 1 pi')``, A the attention of one head and pi its mean row.

    It is no :class:`~bulkedge.laws.law.Law`: there is a distribution function, read off a table of about twenty
    points that is made when it is first used, and no density. Made by :meth:`from_qk`, or by
    :meth:`bulkedge.heads.Channel.law`.

    >>> q, k = np.random.default_rng(0).standard_normal((2, 60, 16))
    >>> ChannelLaw.from_qk(q, k).cdf([0.01, 0.1, 1.0]).round(2)
    array([0.19, 0.41, 0.72])

    Attributes
    ----------
    queries, keys : Tokens
        Distinct queries and keys, with multiplicities and the logarithms of what normalises rows and columns.
    tokens : int
        Number of tokens T.
    sampled : bool
        Whether the tokens are a sample that stands for T others.
    paired : bool
        Whether row i and column i are the same token.
    """

    queries: Tokens = field(repr=False)
    keys: Tokens = field(repr=False)
    tokens: int
    sampled: bool = False
    paired: bool = False

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - 1 pi'), A attention and pi its mean row"

    @classmethod
    @takes(scale=REAL_NUMBER)
    def from_qk(  # noqa: PLR0913 - what a head may be given
        cls,
        q: Any,
        k: Any,
        scale: float | None = None,
        labels: ArrayLike | None = None,
        popularity: ArrayLike | None = None,
        *,
        average: bool = True,
    ) -> Self:
        """The law of a head with these queries and keys, from their moments and the sizes of functions at them.

        Parameters
        ----------
        q : array of shape (tokens, d)
            Queries of one head as the scores see them, NumPy or torch.
        k : array of shape (tokens, d)
            Its keys.
        scale : float, optional
            What scores ``q . k`` are multiplied by; ``1/sqrt(d)`` by default.
        labels : array_like of shape (tokens,), optional
            Tokens of the same label, as of the same word, are taken as repeats of one: the law is then that of the
            attention *between labels*, ``P A P`` with P the projection onto what is equal for equal labels, each token
            in its place. With ``average=False`` the law is that of A, and labels say which tokens are nearly alike. By
            default only exact repeats are repeats, and the law is that of A too.
        popularity : array_like of shape (tokens,), optional
            Measured share of all attention that each key gets, for heads that are more than a softmax of ``q . k``:
            columns are given factors for it, and rows normalised. By default it is that of the softmax of all tokens
            in their places, as any head of such a softmax measures it.
        average : bool
            Whether attention is averaged over the places of each label.

        Returns
        -------
        ChannelLaw
            Of all tokens; repeats make an atom at zero.

        Raises
        ------
        DomainError
            If the shapes do not fit, an entry is not finite, or there are fewer than 16 tokens, three distinct queries,
            three distinct keys or three labels.
        UnresolvedError
            If no factors were found that give the columns their popularity.
        """
        queries, keys = (MATRIX.check(name, each) for name, each in (("q", q), ("k", k)))
        if queries.ndim != 2 or queries.shape != keys.shape:
            raise DomainError(f"q has shape {queries.shape}, k {keys.shape}; both are (tokens, d), of one head")
        tokens = TOKENS.check("number of tokens", len(queries))
        factor = queries.shape[1] ** -0.5 if scale is None else scale
        given = None if labels is None else LABELS.check("labels", labels)
        if given is not None and len(given) != tokens:
            raise DomainError(f"labels has shape {given.shape}; one for each of {tokens} tokens")
        rows, columns, paired = _sides(factor * queries, keys, given, average=average)
        if min(len(rows.counts), len(columns.counts)) < 3:
            raise DomainError("fewer than three distinct queries or keys: there is nothing but an atom at zero")
        wanted = None if popularity is None else _shares(popularity, columns)
        row_logs, column_logs = _normalisers(rows, columns, wanted)
        made = cls(rows.tokens(row_logs), columns.tokens(column_logs), tokens, paired=paired)
        if given is None or average:
            return made
        # one given token of each place says which word it is of
        words = np.unique(given[np.unique(rows.members, return_index=True)[1]], return_inverse=True)[1]
        return replace(made, queries=replace(made.queries, words=words))

    @classmethod
    def from_channel(cls, couplings: ArrayLike, mean: ArrayLike, tokens: int) -> Self:
        """The law of a head of Gaussian queries and keys, at fixed tokens of low discrepancy.

        Parameters
        ----------
        couplings, mean : array_like of shape (d,)
            As those of :class:`bulkedge.heads.Channel`.
        tokens : int
            Number of tokens, from 16 to 4096.

        Returns
        -------
        ChannelLaw
            Without anything random.
        """
        tokens = TOKENS.check("tokens", tokens)
        strengths, centre = (FINITE.check(name, each) for name, each in (("couplings", couplings), ("mean", mean)))
        if strengths.ndim != 1 or centre.shape != strengths.shape or not np.any(strengths > 0):
            raise DomainError(f"couplings have shape {strengths.shape}, mean {centre.shape}; of one head, not all zero")
        kept = strengths > 1e-3 * strengths.max()
        strengths, centre = strengths[kept], centre[kept]
        count = int(np.clip(tokens, 256, 1024))
        queries, keys = (_gaussian(count, len(strengths), seed) for seed in (1, 2))
        rows, columns = _distinct(strengths * (queries + centre)), _distinct(keys)
        row_logs, column_logs = _normalisers(rows, columns, None)
        return cls(rows.tokens(row_logs), columns.tokens(column_logs), tokens, sampled=True)

    # -- the distribution ----------------------------------------------------------------------------------------------

    @property
    def atoms(self) -> PointMasses:
        """What repeats leave at zero, and the one value that rows of equal sums leave there."""
        return ((0.0, self._vanishing),)

    def cdf(self, x: ArrayLike) -> Any:
        """Mass at or below x, interpolated in ``log x`` between about twenty points at which it is solved for."""
        points = REAL.check("x", x)
        mass = np.where(np.isnan(points), np.nan, np.where(points < 0, 0.0, np.where(points > 0, 1.0, self._vanishing)))
        inside = (points > 0) & np.isfinite(points)
        if inside.any():
            mass[inside] = self._vanishing + (1 - self._vanishing) * self._table.cdf(np.log(points[inside]))
        return mass[()]

    def ppf(self, q: ArrayLike) -> Any:
        """Smallest x with ``cdf(x) >= q``; nan outside [0, 1]."""
        levels = REAL.check("q", q)
        valid = (levels >= 0) & (levels <= 1)
        result = np.full(levels.shape, np.nan)
        rest = (levels[valid] - self._vanishing) / (1 - self._vanishing)
        result[valid] = np.where(rest > 0, np.exp(self._table.log_quantile(np.clip(rest, 0.0, 1.0))), 0.0)
        return result[()]

    @property
    def _vanishing(self) -> float:
        distinct = self.tokens if self.sampled else min(len(self.queries.counts), len(self.keys.counts))
        return 1 - (distinct - 1) / self.tokens

    @cached_property
    def _table(self) -> LogTable:
        return tabulate(self.queries, self.keys, self.tokens, sampled=self.sampled, paired=self.paired)


class _Distinct(NamedTuple):
    """The t tokens that were given as c distinct ones at p places: those of one token after those of another."""

    vectors: Real  # (p, d): queries or keys at the places
    counts: Real  # (c,): how many of the given tokens each distinct one is
    places: Index | None  # (c,): number of places of each distinct token; one by default
    members: Index  # (t,): the place of each given token
    repeats: Real  # (p,): how many of the given tokens are at each place

    def tokens(self, logs: Real) -> Tokens:
        return Tokens(self.vectors, self.counts, logs, self.places)


def _distinct(vectors: Real) -> _Distinct:
    """Tokens of which only exact repeats are the same, at one place."""
    options: Any = {"return_inverse": True, "return_counts": True}
    found, members, counts = np.unique(vectors, axis=0, **options)
    return _Distinct(found, counts.astype(float), None, members.ravel(), counts.astype(float))


def _by_label(vectors: Real, labels: Any) -> _Distinct:
    """Tokens of which those of the same label are one, at as many places."""
    order = np.argsort(labels, kind="stable")
    counts = np.unique(labels, return_counts=True)[1]
    members = np.empty(len(order), dtype=int)
    members[order] = np.arange(len(order))
    return _Distinct(vectors[order], counts.astype(float), counts, members, np.ones(len(order)))


def _sides(queries: Real, keys: Real, labels: Any, *, average: bool) -> tuple[_Distinct, _Distinct, bool]:
    """Both sides of a head, and whether row i and column i are the same token."""
    if labels is not None and average:
        return _by_label(queries, labels), _by_label(keys, labels), True
    rows, columns, both = _distinct(queries), _distinct(keys), _distinct(np.hstack([queries, keys]))
    # with words each side has all pairs, in the same order: what is equal on one side only is a mode of size zero
    if labels is None and not len(rows.counts) == len(columns.counts) == len(both.counts):
        return rows, columns, False
    left, right = np.hsplit(both.vectors, 2)
    return both._replace(vectors=left), both._replace(vectors=right), True


def _shares(popularity: ArrayLike, columns: _Distinct) -> Real:
    """Mean popularity over the exact repeats of each key, times the number of tokens."""
    given = FINITE.check("popularity", popularity)
    if given.shape != columns.members.shape or np.any(given <= 0):
        count = len(columns.members)
        raise DomainError(f"popularity has shape {given.shape}; a positive share for each of {count} tokens")
    shares = given / given.sum() * len(given)
    return np.bincount(columns.members, weights=shares) / columns.repeats


def _normalisers(rows: _Distinct, columns: _Distinct, wanted: Real | None) -> tuple[Real, Real]:
    """Log factors that make the row means of ``exp(scores)`` one; with ``wanted``, of columns too (Sinkhorn)."""
    scores, column_logs = rows.vectors @ columns.vectors.T, np.zeros(len(columns.vectors))
    tokens = np.log(columns.repeats.sum())
    for _ in range(SINKHORN):
        row_logs = tokens - np.asarray(logsumexp(scores + column_logs, axis=1, b=columns.repeats))
        if wanted is None:
            return row_logs, column_logs
        mean = np.asarray(logsumexp(row_logs[:, None] + scores, axis=0, b=rows.repeats[:, None])) - tokens
        before, column_logs = column_logs, np.log(wanted) - mean
        if np.max(np.abs(column_logs - before)) < 1e-9:
            return row_logs, column_logs
    raise UnresolvedError(f"no attention with these scores and this popularity was found in {SINKHORN} rounds")


def _gaussian(count: int, dim: int, seed: int) -> Real:
    """Standard Gaussian points of low discrepancy: the same ones every time."""
    # whole powers of two are what the sequence is balanced for; more than asked for are dropped
    points = qmc.Sobol(dim, seed=seed).random_base2(int(np.ceil(np.log2(count))))[:count]
    normal: Real = ndtri(np.clip(points, 1e-9, 1 - 1e-9))
    return normal


class MatrixAndLaw(NamedTuple):
    """A matrix, and the law of its squared singular values."""

    matrix: Real
    law: ChannelLaw


@takes(scale=REAL_NUMBER, labels=LABELS)
def matrix_and_law(
    q: Any, k: Any, scale: float | None = None, labels: ArrayLike | None = None, *, average: bool = True
) -> MatrixAndLaw:
    """The attention of a head of these queries and keys, and the law that its squared singular values follow.

    Parameters
    ----------
    q, k : array of shape (tokens, d)
        Queries and keys of one head as the scores see them, NumPy or torch; every token sees all.
    scale : float, optional
        What scores ``q . k`` are multiplied by; ``1/sqrt(d)`` by default.
    labels : array_like of shape (tokens,), optional
        The word of each token. Attention is then averaged over all places of each word, in rows and in columns. By
        default it is taken as it is.
    average : bool
        With ``False`` attention is taken as it is, and labels only say which tokens are nearly alike: the law is nearer
        to it than without labels.

    Returns
    -------
    MatrixAndLaw
        ``sqrt(T) P (A - 1 pi') P`` and its law: A is the attention, pi its mean row and P the projection onto what is
        equal for equal labels, or the identity without labels or average.

    Raises
    ------
    DomainError
        As for :meth:`ChannelLaw.from_qk`.

    Examples
    --------
    >>> q, k = np.random.default_rng(1).standard_normal((2, 64, 16))
    >>> matrix, law = matrix_and_law(q, k, scale=0.1)
    >>> matrix.shape, law.tokens
    ((64, 64), 64)
    """
    law = ChannelLaw.from_qk(q, k, scale, labels, average=average)
    queries, keys = (np.asarray(as_numpy(each), dtype=float) for each in (q, k))
    tokens, dim = queries.shape
    attention = softmax((dim**-0.5 if scale is None else scale) * queries @ keys.T)
    centred = np.sqrt(tokens) * (attention - attention.mean(axis=0))
    if labels is None or not average:
        return MatrixAndLaw(centred, law)
    _, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    equal = (members[:, None] == members) / counts[members]
    return MatrixAndLaw(equal @ centred @ equal, law)
