"""The whole spectrum of an anisotropic head, from its couplings or from its own queries and keys (ours).

A head is expanded in products of functions of its queries and of its keys (:mod:`bulkedge.heads.features`), and only
the sizes of these functions at the tokens enter the equations of its resolvent (:mod:`bulkedge.heads.resolvent`). Which
functions, is decided at each point of the spectrum: those that are orthogonal for the weights that the resolvent itself
gives the tokens there. Repeated tokens come once, with multiplicities, and the values that they leave at zero are an
atom. docs/theory/channel.md derives it, docs/laws/channel.md shows it.

>>> from bulkedge.heads import Channel
>>> law = Channel([0.4, 0.3, 0.3, 0.2, 0.2, 0.1]).law(tokens=300)
>>> law.cdf([1e-6, 1e-3, 1e-1, 3.0]).round(2)
array([0.1 , 0.5 , 0.82, 0.97])
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from bulkedge.arrays import Real, as_numpy
from bulkedge.domains import FINITE, REAL, Integers
from bulkedge.errors import AccuracyWarning, DomainError
from bulkedge.heads.features import Expander, Tokens
from bulkedge.heads.resolvent import Equations
from bulkedge.laws.distribution import Atoms, Distribution
from bulkedge.laws.units import Unit

TOKENS = Integers(16, 4096)
SAMPLES = 256, 1024
"""Fewest and most tokens that stand for those of a channel without tokens of its own."""
TERMS = 3, 500, 6000
"""Terms of the expansion for each value of the spectrum, and their least and largest number."""
ANGLES = 6
"""Gauss nodes on the half-circle: twice as many change the distribution function by less than 0.001."""
TOLERANCE, ROUGH = 1e-5, 3e-3
ROUNDS, SETTLED = 16, 0.02
"""Rounds in which functions and weights are fitted to each other, and the change of all weights that ends them. Errors
of the weights enter the distribution function squared."""
RISE = 0.07
"""What the distribution function rises by between points of its table, about."""
STEPS = 0.4, 3.0
"""Least and largest distance of the logarithms of these points."""
FALL = 0.02
"""Functions of neighbouring points differ, so that a distribution function may fall a little; more is warned of."""
FLOOR = 1e-26
"""Squares this small beside the largest are rounding errors."""


@dataclass(frozen=True, eq=False)
class ChannelLaw(Distribution):
    """Squared singular values of ``sqrt(l) (A - 1 pi')``, A the attention of one head and pi its mean row.

    It is no :class:`~bulkedge.laws.base.Law`: there is a distribution function, read off a table of about twenty
    points that is made when it is first used, and no density. Made by :meth:`from_qk`, or by
    :meth:`bulkedge.heads.Channel.law`.

    Attributes
    ----------
    queries, keys : Tokens
        Distinct queries and keys, with multiplicities and the logarithms of what normalises rows and columns.
    tokens : int
        Number of tokens l.
    sampled : bool
        Whether the tokens are a sample that stands for l others.
    """

    queries: Tokens = field(repr=False)
    keys: Tokens = field(repr=False)
    tokens: int
    sampled: bool = False

    unit = Unit.SQUARED
    matrix = "sqrt(l) (A - 1 pi'), A attention and pi its mean row"

    @classmethod
    def from_qk(
        cls,
        q: Any,
        k: Any,
        scale: float | None = None,
        labels: ArrayLike | None = None,
        popularity: ArrayLike | None = None,
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
            Tokens of the same label, as of the same word, are taken as repeats of one, at the mean of their queries and
            keys. By default only exact repeats are.
        popularity : array_like of shape (tokens,), optional
            Measured share of all attention that each key gets, for heads that are more than a softmax of ``q . k``;
            by default that of the softmax.

        Returns
        -------
        ChannelLaw
            Of all tokens; repeats make an atom at zero.

        Raises
        ------
        DomainError
            If the shapes do not fit, an entry is not finite, all queries or all keys are equal, or there are fewer
            than 16 tokens.
        """
        queries, keys = (FINITE.check(name, as_numpy(each)) for name, each in (("q", q), ("k", k)))
        if queries.ndim != 2 or queries.shape != keys.shape:
            raise DomainError(f"q has shape {queries.shape}, k {keys.shape}; both are (tokens, d), of one head")
        tokens = TOKENS.check("number of tokens", len(queries))
        factor = queries.shape[1] ** -0.5 if scale is None else float(FINITE.check("scale", scale))
        given = None if labels is None else np.asarray(labels)
        if given is not None and given.shape != (tokens,):
            raise DomainError(f"labels has shape {given.shape}; one for each of {tokens} tokens")
        rows, columns = _distinct(factor * queries, given), _distinct(keys, given)
        if min(len(rows.vectors), len(columns.vectors)) < 3:
            raise DomainError("fewer than three distinct queries or keys: there is nothing but an atom at zero")
        column_logs = np.zeros(len(columns.vectors))
        row_logs = _normaliser(rows, columns, column_logs, tokens)
        if popularity is not None:
            wanted = _shares(popularity, columns.members)
            mean = logsumexp(row_logs[:, None] + rows.vectors @ columns.vectors.T, axis=0, b=rows.counts[:, None])
            column_logs = np.log(wanted) - (mean - np.log(tokens))
        return cls(rows.tokens(row_logs), columns.tokens(column_logs), tokens)

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
        count = int(np.clip(tokens, *SAMPLES))
        queries, keys = (_gaussian(count, len(strengths), seed) for seed in (1, 2))
        rows, columns = _distinct(strengths * (queries + centre), None), _distinct(keys, None)
        zero = np.zeros(count)
        return cls(rows.tokens(_normaliser(rows, columns, zero, count)), columns.tokens(zero), tokens, sampled=True)

    # -- the distribution ----------------------------------------------------------------------------------------------

    @property
    def atoms(self) -> Atoms:
        """What repeats leave at zero, and the one value that rows of equal sums leave there."""
        return ((0.0, self._vanishing),)

    def cdf(self, x: ArrayLike) -> Any:
        """Mass at or below x, interpolated in ``log x`` between about twenty points at which it is solved for.

        Raises
        ------
        UnresolvedError
            If the equations were not solved.
        """
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
        distinct = self.tokens if self.sampled else min(len(self.queries.vectors), len(self.keys.vectors))
        return 1 - (distinct - 1) / self.tokens

    @cached_property
    def _table(self) -> _Table:
        return _tabulated(self)


class _Distinct(NamedTuple):
    """Distinct vectors, how often each comes, and which of them every token is."""

    vectors: Real
    counts: Real
    members: Real

    def tokens(self, logs: Real) -> Tokens:
        return Tokens(self.vectors, self.counts, logs)


def _distinct(vectors: Real, labels: Any) -> _Distinct:
    options: Any = {"return_inverse": True, "return_counts": True}
    if labels is None:
        found, members, counts = np.unique(vectors, axis=0, **options)
        return _Distinct(found, counts.astype(float), members.ravel())
    _, members, counts = np.unique(labels, **options)
    sums = np.zeros((len(counts), vectors.shape[1]))
    np.add.at(sums, members, vectors)
    return _Distinct(sums / counts[:, None], counts.astype(float), members)


def _shares(popularity: ArrayLike, members: Real) -> Real:
    """Mean popularity over the repeats of each distinct key, times the number of tokens."""
    given = FINITE.check("popularity", popularity)
    if given.shape != members.shape or np.any(given <= 0):
        raise DomainError(f"popularity has shape {given.shape}; a positive share for each of {len(members)} tokens")
    shares = given / given.sum() * len(given)
    return np.bincount(members, weights=shares) / np.bincount(members)


def _normaliser(rows: _Distinct, columns: _Distinct, column_logs: Real, tokens: int) -> Real:
    """Logarithms of the factors that make the mean over all keys of ``exp(scores)`` one in each row."""
    scores = rows.vectors @ columns.vectors.T + column_logs
    return np.log(tokens) - np.asarray(logsumexp(scores, axis=1, b=columns.counts))


def _gaussian(count: int, dim: int, seed: int) -> Real:
    """Standard Gaussian points of low discrepancy: the same ones every time."""
    # whole powers of two are what the sequence is balanced for; more than asked for are dropped
    points = qmc.Sobol(dim, seed=seed).random_base2(int(np.ceil(np.log2(count))))[:count]
    normal: Real = ndtri(np.clip(points, 1e-9, 1 - 1e-9))
    return normal


class _Table:
    """A distribution function on the positive axis: monotone cubics in ``log x``, and a power of x below."""

    def __init__(self, logs: Real, masses: Real) -> None:
        self._logs = logs
        self._masses = np.maximum.accumulate(np.clip(masses, 1e-12, 1.0))
        self._between = PchipInterpolator(logs, self._masses)
        rise = np.log(self._masses[1] / self._masses[0]) / (logs[1] - logs[0])
        self._power = max(float(rise), 1e-3)

    def cdf(self, log: Real) -> Real:
        first, last = self._logs[[0, -1]]
        tail = self._masses[0] * np.exp(self._power * (np.minimum(log, first) - first))
        return np.where(log < first, tail, np.where(log >= last, 1.0, self._between(np.clip(log, first, last))))

    def log_quantile(self, level: Real) -> Real:
        low, high = np.full(level.shape, self._logs[0]), np.full(level.shape, self._logs[-1])
        for _ in range(60):
            middle = (low + high) / 2
            reached = self._between(middle) >= level
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        with np.errstate(divide="ignore"):
            tail = self._logs[0] + np.log(level / self._masses[0]) / self._power
        return np.where(level < self._masses[0], tail, high)


class _Walk:
    """The mass at or below one point after another.

    Where sinks or hot directions hold a head, weights that agree with their own functions may be two: one lets the few
    large tokens shape the functions, the other the many small ones. Small values only have the second, and it is the
    better one, so each point starts from the weights of the nearest one below, or from equal ones.
    """

    def __init__(self, law: ChannelLaw) -> None:
        self._law = law
        self._size = len(law.queries.vectors), len(law.keys.vectors)
        per_value, least, most = TERMS
        values = law.tokens if law.sampled else min(self._size)
        self._expand = Expander(law.queries, law.keys, int(np.clip(per_value * values, least, most)))
        self._counts = law.queries.counts, law.keys.counts
        self._weights: dict[float, tuple[Real, Real]] = {}
        self._total = self._size[0] if law.sampled else law.tokens
        rest = self._expand.matrix - self._counts[0] @ self._expand.matrix / self._counts[0].sum()
        squares = np.sum(self._counts[0][:, None] * rest**2 * self._counts[1])
        self.largest = float(squares) * law.tokens / self._total**2
        """No squared singular value is larger than their sum."""

    def mass(self, x: float) -> float:
        """Share of the values that are not zero by their number at or below x."""
        equations, state = self._settled(np.sqrt(x))
        nodes, weights = np.polynomial.legendre.leggauss(ANGLES)
        z = np.sqrt(x * np.exp(0.5j * np.pi * (nodes + 1)))
        start = state * (1j * np.sqrt(x) / z)
        start = np.where(start.imag < 0, start, start.real - 1e-3j * np.abs(start))
        found = equations.solve(z, start, TOLERANCE)[: self._size[0]]
        rows = float(np.sum(weights / 2 * np.sum(z * found, axis=0).real))
        # rows beyond the number of columns are zeros, which the atom counts
        least = min(self._size)
        return (rows - (self._size[0] - least)) / least

    def _settled(self, root: float) -> tuple[Equations, Any]:
        """Functions that are orthogonal for the weights of the resolvent at ``-root**2``, and that resolvent."""
        point = np.array([1j * root])
        state = np.full((sum(self._size), 1), 1 / point[0])
        below = [each for each in self._weights if each < root]
        weights = self._weights[max(below)] if below else self._counts
        before, power, best = np.inf, 1.0, (np.inf, None, state, weights)
        for _ in range(ROUNDS):
            products, rows, columns, rest = self._expand(*weights)
            left, right = self._counts
            equations = Equations(
                products[1:] ** 2,
                rows[1:] ** 2 * left,
                columns[1:] ** 2 * right,
                rest**2 * left[:, None] * right,
                self._law.tokens,
                self._total,
            )
            state = equations.solve(point, state, ROUGH)
            sizes = -state[:, 0].imag
            new = left * rows[0] ** 2 * sizes[: len(left)], right * columns[0] ** 2 * sizes[len(left) :]
            used = weights
            change, weights = _moved(weights, new, power)
            if change <= best[0]:
                best = change, equations, state, used
            if change < SETTLED:
                break
            # steps that grow swing between two states; those that shrink slowly may be longer
            power = power / 2 if change > before else min(1.3 * power, 1.7)
            before = change
        _, equations, state, self._weights[root] = best
        return equations, state


def _moved(old: tuple[Real, Real], new: tuple[Real, Real], power: float) -> tuple[float, tuple[Real, Real]]:
    """How much weights change, and the next ones: old ones times a power of the quotient of new and old."""
    change, found = 0.0, []
    for before, after in zip(old, new, strict=True):
        shares = before / before.sum(), after / after.sum()
        change += float(np.sum(np.abs(shares[0] - shares[1])))
        found.append(shares[0] * (np.maximum(shares[1], 1e-300) / np.maximum(shares[0], 1e-300)) ** power)
    return change, (found[0], found[1])


def _mended(points: dict[float, float], walk: _Walk) -> None:
    """Where the function falls, a point was made before its neighbour below: start it from there."""
    known = sorted(points)
    for low, high in zip(known[:-1], known[1:], strict=True):
        if points[high] < points[low]:
            points[high] = max(points[high], walk.mass(float(np.exp(high))))


def _tabulated(law: ChannelLaw) -> _Table:
    """Walk down from the middle of the spectrum to its smallest values, and from there up."""
    walk = _Walk(law)
    top = np.log(walk.largest)
    last = top + np.log(FLOOR)
    points: dict[float, float] = {}
    log, mass, step = top - 9.0, 1.0, STEPS[1]
    while log > last:
        mass = points[log] = walk.mass(float(np.exp(log)))
        if mass < RISE / 3:
            break
        log -= step
    # points that are too far apart, and those above
    known = sorted(points)
    while known[-1] < top - STEPS[0]:
        slope = 0.0
        if len(known) > 1:
            slope = (points[known[-1]] - points[known[-2]]) / (known[-1] - known[-2])
        if points[known[-1]] > 1 - 0.3 / law.tokens:
            break
        log = min(known[-1] + float(np.clip(RISE / max(slope, 1e-9), *STEPS)), top - STEPS[0])
        mass = walk.mass(float(np.exp(log)))
        if mass < points[known[-1]]:  # among the last few values, which are no bulk, weights may not settle
            break
        points[log] = mass
        known = sorted(points)
    for low, high in zip(known[:-1], known[1:], strict=True):
        parts = min(int(np.ceil((points[high] - points[low]) / (2 * RISE))), int((high - low) / STEPS[0]))
        for k in range(1, parts):
            log = low + (high - low) * k / parts
            points[log] = walk.mass(float(np.exp(log)))
    _mended(points, walk)
    points[top] = 1.0
    logs = np.array(sorted(points))
    masses = np.array([points[each] for each in logs])
    fall = float(np.max(np.maximum.accumulate(masses) - masses))
    if fall > FALL:
        message = f"the distribution function falls by {fall:.2g} somewhere: a few tokens hold most of this head"
        warnings.warn(message, AccuracyWarning, stacklevel=4)
    return _Table(logs, masses)
