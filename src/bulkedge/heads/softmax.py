"""A softmax of independent Gaussian scores: entropy, participation and normaliser at any number and any spread of them.

With ``w = exp(beta z)`` and ``phi(s) = E exp(-s w)``, everything is an integral over one Laplace variable s, because
``1/Z**2 = int s e**(-s Z) ds`` makes products of single scores out of the normaliser ``Z = sum w``. What depends on the
spread beta alone, :class:`Transforms`, costs nearly all of the time; from there the sums of any number of scores are a
few dozen microseconds away, so that tables over numbers of scores share it. Rows of a head differ in their spread:
:func:`mean_rows` averages over it.

>>> row = softmax_of_gaussians(1.0, 1000)
>>> round(row.entropy, 3), round(row.participation, 5)
(6.41, 0.0027)
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import factorial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.polynomial.chebyshev import Chebyshev, chebpts2

from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import Interval

BETA = Interval(0, 48)
STEP = 0.25
"""Spacing of the trapezoidal rule in ``log s``, and of that in ``beta z``: the integrands are analytic in a strip of
half width ``pi/2`` and decay, so that the error of the rules is about ``exp(-pi**2/STEP)``, or ``1e-17``."""
COARSEST = 0.5
"""Largest spacing of the nodes of a Gaussian score, whose rule has an error of ``exp(-2 pi**2/COARSEST**2)``; and of
``log s`` for the number of keys, where ``exp(-pi**2/COARSEST)`` is enough."""
REACH = 10.0  # standard deviations up to which scores are looked at: beyond are ``1e-23`` of them
SHARPEST = 48.0
"""Largest spread of a row's scores in the tables. Sharper rows are frozen: what they lack to one key for all is the gap
between their largest scores, and falls as one over the spread (:func:`_frozen`, to 0.4 %)."""
FLATTER = np.array([1.0, 1.5, 2.0])  # where the series of sharper rows is fitted: :data:`SHARPEST` over these
MOST = 10**12  # largest number of keys in a row
Of = Literal["entropy", "participation", "keys"]


class Softmax(NamedTuple):
    """Means over T Gaussian scores at inverse temperature beta: entropy of the weights, and sum of their squares."""

    entropy: float
    participation: float


class Gibbs(NamedTuple):
    """Means over T Gaussian scores ``beta z``."""

    log_sum: float  # logarithm of the sum of their exponentials
    score: float  # mean z under the softmax weights: the derivative of log_sum in beta
    participation: float  # sum of the squared weights


@lru_cache(maxsize=4096)
def softmax_of_gaussians(beta: float, tokens: int) -> Softmax:
    """Entropy and participation of a row of attention with independent scores, for any T and beta."""
    # phi(s) = E exp(-s w), w = exp(beta z): E sum p_j**2 = T int s E[w**2 e**(-s w)] phi**(T-1) ds,
    # E sum p_j z_j = T int E[z w e**(-s w)] phi**(T-1) ds, E log Z = int (e**(-s) - phi**T) ds/s
    sums = gibbs_of_gaussians(beta, tokens)
    return Softmax(sums.log_sum - beta * sums.score, sums.participation)


def gibbs_of_gaussians(beta: float, tokens: int) -> Gibbs:
    """What :func:`softmax_of_gaussians` is made of, by the same integrals."""
    return transforms(BETA.check("beta", beta), tokens).sums(tokens)


class Transforms(NamedTuple):
    """Laplace transforms of the weights ``w = exp(beta z)`` of one Gaussian score, at nodes of ``log s``."""

    log_s: Real
    log_phi: Real  # log E exp(-x), x = s w
    square: Real  # E[x**2 e**-x]
    tilted: Real  # E[z x e**-x]

    def sums(self, tokens: float) -> Gibbs:
        """Means over so many scores."""
        others = np.exp((tokens - 1) * self.log_phi)
        participation = tokens * STEP * np.sum(self.square * others)
        energy = tokens * STEP * np.sum(self.tilted * others)
        log_sum = STEP * np.sum(np.exp(-np.exp(self.log_s)) - np.exp(tokens * self.log_phi))
        return Gibbs(float(log_sum), float(energy), float(participation))


def transforms(beta: float, most: float) -> Transforms:
    """What sums over any number of scores of one spread have in common."""
    # nodes of log s: Z lies between its largest weight, at least e**(-8 beta), and T times e**(8 beta)
    first = -np.log(most) - REACH * beta - 40
    log_s = first + STEP * np.arange(np.ceil((REACH * beta + 6 - first) / STEP))
    lost, square, tilted = _smooth(beta, log_s)
    # log(1 - lost) keeps the digits of a small loss, which counts T times
    return Transforms(log_s, np.log1p(-np.minimum(lost, 1 - EPS / 2)), square, tilted)


def _smooth(beta: float, log_s: Real) -> tuple[Real, Real, Real]:
    """``E[1 - e**-x]``, ``E[x**2 e**-x]`` and ``E[z x e**-x]`` over a Gaussian z, ``x = s exp(beta z)``, for each s."""
    # sums of positive terms keep the relative accuracy of small ones. The nodes of beta z are those of log s, which
    # makes the sums convolutions, unless beta is so small that the Gaussian would have too few
    shared = beta * COARSEST > STEP
    step = STEP / beta if shared else COARSEST
    z, mass = gaussian_rule(step)
    count = len(z) // 2
    log_x = log_s[0] + STEP * np.arange(-count, len(log_s) + count) if shared else log_s[:, None] + beta * z
    x = np.exp(np.minimum(log_x, 7.0))  # e**-x is zero there, and stays so
    density = x * np.exp(-x)

    def mean(values: Real, weights: Real) -> Real:
        return np.convolve(values, weights[::-1], "valid") if shared else values @ weights

    return mean(-np.expm1(-x), mass), mean(x * density, mass), mean(density, mass * z)


def gaussian_rule(step: float, reach: float = REACH) -> tuple[Real, Real]:
    """Nodes and weights of a standard Gaussian: the trapezoidal rule, up to so many standard deviations."""
    count = int(np.ceil(reach / step))
    z = step * np.arange(-count, count + 1)
    mass = np.exp(-(z**2) / 2)
    return z, mass / mass.sum()


def moments_of_weights(beta: float, tokens: int, powers: tuple[int, ...] = (2, 3, 4)) -> tuple[float, ...]:
    """``E sum_j p_j**k`` of the softmax of T Gaussian scores, for each power k."""
    # 1/Z**k = int s**(k-1) e**(-s Z) ds/(k-1)!: T int E[x**k e**-x] phi**(T-1) ds/s over (k-1)!, x = s exp(beta z)
    shared = transforms(BETA.check("beta", beta), tokens)
    step = min(COARSEST, STEP / max(beta, STEP))
    z, mass = gaussian_rule(step)
    x = np.exp(np.minimum(shared.log_s[:, None] + beta * z, 7.0))  # e**-x is zero there, and stays so
    others, falling = np.exp((tokens - 1) * shared.log_phi), np.exp(-x)
    return tuple(
        float(tokens * STEP * np.sum(((x**power * falling) @ mass) * others) / factorial(power - 1)) for power in powers
    )


# -- rows of a head ----------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A range of spreads, and the number of Chebyshev points through which it is interpolated."""

    low: float
    high: float
    points: int

    @property
    def nodes(self) -> Real:
        return self.low + (self.high - self.low) * (chebpts2(self.points) + 1) / 2

    def fit(self, values: Any) -> Chebyshev:
        """The polynomial through values at the nodes."""
        return Chebyshev.fit(self.nodes, values, self.points - 1, domain=[self.low, self.high])


PIECES = _Piece(0.0, 12.0, 49), _Piece(12.0, SHARPEST, 25)
"""Between the points, entropies are right to ``2e-7`` nats and participations to ``2e-4`` of themselves at any number
of tokens (``2e-8``, ``4e-6`` at thousands)."""


def mean_rows(mean: Real, variance: Real, tokens: int) -> tuple[Any, Any]:
    """Mean entropy and participation of rows of Gaussian scores whose variance is gamma distributed over the rows."""
    beta, weights = spreads(mean, variance)
    entropy, participation = (rows_of(beta, tokens, of) for of in ("entropy", "participation"))
    return np.sum(weights * entropy, axis=-1), np.sum(weights * participation, axis=-1)


def spreads(mean: Real, variance: Real) -> tuple[Real, Real]:
    """Spreads of a few rows, with weights, that stand for all rows of heads: a Gauss rule."""
    nodes, weights = _gamma_rule(np.where(variance > 0, mean**2 / np.where(variance > 0, variance, 1.0), 1.0))
    scale = np.divide(variance, mean, out=np.zeros_like(mean), where=mean > 0)
    # a rule of shape one and scale zero is the point zero: rows that all have the same spread need their own
    spread = np.where((variance > 0)[..., None], scale[..., None] * nodes, mean[..., None])
    return np.sqrt(spread), weights


def _gamma_rule(shape: Real, nodes: int = 12) -> tuple[Real, Real]:
    """Gauss-Laguerre rules for gamma distributions of these shapes and scale one (Golub and Welsch)."""
    n, after = np.arange(nodes), np.arange(1, nodes)
    rows = np.zeros((*shape.shape, nodes, nodes))
    rows[..., n, n] = 2 * n + shape[..., None]
    rows[..., after, after - 1] = np.sqrt(after * (after + shape[..., None] - 1))  # eigh reads the lower half
    values, vectors = np.linalg.eigh(rows)
    return np.maximum(values, 0.0), vectors[..., 0, :] ** 2


def rows_of(beta: Real, tokens: int, of: Of) -> Real:
    """What rows of independent Gaussian scores have in the mean, at any spread and number of tokens, from tables."""
    values = _interpolate(np.minimum(beta, SHARPEST), tokens, of)
    sharp = beta > SHARPEST
    if np.any(sharp):
        values[sharp] = _frozen(SHARPEST / beta[sharp], _interpolate(SHARPEST / FLATTER, tokens, of), of)
    return values


def _interpolate(beta: Real, tokens: int, of: Of) -> Real:
    """What :func:`rows_of` returns, for spreads in the tables."""
    found = np.empty(beta.shape)
    for piece in PIECES:
        # sharp rows cost ten times as much as others: their table is made only if there are any
        here = (beta >= piece.low) & ((beta <= piece.high) if piece.high == SHARPEST else (beta < piece.high))
        if np.any(here):
            value = _table(piece, tokens, of)(beta[here])
            found[here] = value if of == "entropy" else np.exp(value)
    return found


def _frozen(flat: Real, known: Real, of: Of) -> Real:
    """Sharper rows than the tables have, at the share ``flat`` of one over :data:`SHARPEST`."""
    one = 0.0 if of == "entropy" else 1.0  # what is lacking is a series in one over the spread; three terms
    terms = np.linalg.solve(FLATTER[:, None] ** (1, 2, 3), known - one)
    return one + flat[..., None] ** (1, 2, 3) @ terms


@lru_cache(maxsize=128)
def _sums(piece: _Piece, tokens: int) -> list[Gibbs]:
    return [each.sums(tokens) for each in _shared(piece)]


@lru_cache(maxsize=256)
def _table(piece: _Piece, tokens: int, of: Of) -> Chebyshev:
    """Interpolant in the spread of the entropy, or of the logarithm of what spans decades."""
    if of == "keys":
        return piece.fit([np.log(each.mean(tokens)) for each in _shared_keys(piece)])
    sums = _sums(piece, tokens)
    if of == "participation":
        return piece.fit(np.log([each.participation for each in sums]))
    return piece.fit([each.log_sum - spread * each.score for each, spread in zip(sums, piece.nodes, strict=True)])


@cache
def _shared(piece: _Piece) -> list[Transforms]:
    """What tables of all numbers of keys share, at the points of interpolation: nearly all of their time."""
    return [transforms(float(each), MOST) for each in piece.nodes]


@cache
def _shared_keys(piece: _Piece) -> list[KeyNumbers]:
    """The same for the mean number of keys."""
    return [KeyNumbers.of(float(each), MOST) for each in piece.nodes]


def log_mean_exponential(xp: Any, deviation: Any, count: int) -> tuple[Any, Any]:
    """Mean logarithm of the mean of ``count`` exponentials of Gaussian scores, and its slope in their scale."""
    low, high, _ = PIECES[0]
    inside = xp.clip(deviation, low, high)
    position = (2 * inside - low - high) / (high - low)
    value, score = (_clenshaw(coefficients, position) for coefficients in _logs(count))
    return value + (deviation - inside) * score, deviation * score


@lru_cache(maxsize=64)
def _logs(count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Chebyshev coefficients in the deviation of the logarithm, and of the mean z under the weights."""
    sums = _sums(PIECES[0], count)
    values = [each.log_sum - np.log(count) for each in sums], [each.score for each in sums]
    first, second = (tuple(float(each) for each in PIECES[0].fit(of).coef) for of in values)
    return first, second


def _clenshaw(coefficients: tuple[float, ...], position: Any) -> Any:
    """A Chebyshev series by Clenshaw's recurrence, which any array library can do."""
    ahead = after = 0 * position
    for each in reversed(coefficients[1:]):
        ahead, after = each + 2 * position * ahead - after, ahead
    return coefficients[0] + position * ahead - after


def forget() -> None:
    """Drop all tables that were made, so that the next call makes its own: for measurements of its time."""
    for each in (_table, _logs, _sums, _shared, _shared_keys):
        each.cache_clear()


class KeyNumbers(NamedTuple):
    """``E[1/sum_j A_j**2]``, the mean number of keys that share a row, for one spread and any number of keys."""

    # int (T E[x e**-x] phi**(T-1) + (T-1) E[x**(1/2) e**-x]**2 phi**(T-2)) ds/s, x = s w**2, w = exp(beta z),
    # phi = E e**-x; arrays are over nodes of log s, and empty where all weights are alike

    step: float
    root: Real
    whole: Real
    log_phi: Real

    @classmethod
    def of(cls, beta: float, most: float) -> Self:
        """For numbers of keys up to ``most``."""
        if beta == 0:
            return cls(0.0, *np.empty((3, 0)))
        double = 2 * beta
        # nodes of a score are those of log s, at most half a standard deviation apart
        step = min(COARSEST, COARSEST * double)
        first = -np.log(most) - REACH * double - 40
        mass = gaussian_rule(step / double)[1]
        count = len(mass) // 2
        nodes = int(np.ceil((REACH * double + 6 - first) / step))
        # e**-x is zero from there on, and stays so
        x = np.exp(np.minimum(first + step * np.arange(-count, nodes + count), 7.0))
        falling = np.exp(-x)
        means = (np.convolve(each, mass, "valid") for each in (np.sqrt(x) * falling, x * falling, -np.expm1(-x)))
        root, whole, lost = means
        return cls(step, root, whole, np.log1p(-np.minimum(lost, 1 - EPS / 2)))

    def mean(self, tokens: int) -> float:
        """The mean number of keys that share a row of so many."""
        if not self.root.size or tokens == 1:
            return float(tokens)
        one = self.whole * np.exp((tokens - 1) * self.log_phi)
        two = (tokens - 1) * self.root**2 * np.exp((tokens - 2) * self.log_phi)
        return float(tokens * self.step * np.sum(one + two))
