"""A head as a Gaussian channel: what its attention does, from the first two moments of its queries and keys.

Let queries be ``N(m, S)`` and keys ``N(0, K)``, independent; a constant in all keys drops out of the softmax. In the
coordinates that diagonalise ``S**(1/2) K**(1/2)`` a score is ``sum a_i u_i y_i`` with keys ``y ~ N(0, I)`` and queries
``u ~ N(mu, I)``; the *couplings* ``a_i`` are the singular values. For many tokens ``l A_ij`` tends to ``t(u, y) = prod
exp(a_i u_i y_i - a_i**2 u_i**2/2)``, the density of a Gaussian channel ``y = a u + noise`` relative to its noise, and
everything factorises over directions (docs/theory/channel.md).

>>> channel = Channel([0.5, 0.3, 0.2, 0.1])
>>> round(channel.beta, 4), round(channel.effective_dim, 2), channel.condensed
(0.6245, 2.1, False)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike
from scipy.interpolate import CubicSpline

from bulkedge.arrays import Real, as_numpy
from bulkedge.domains import FINITE, Integers
from bulkedge.errors import DomainError
from bulkedge.heads.spectrum import ChannelLaw
from bulkedge.propagation.trainability import Softmax, softmax_of_gaussians

COUNT, TOKENS = Integers(1, 100_000), Integers(1, 10**12)
NODES = 12
"""Nodes of the rule over the spread of rows."""
NEGLIGIBLE = 1e-8
"""Weight of a node below which it does not matter."""
HOTTEST = 12.0
"""Largest spread of a row's scores that softmax_of_gaussians knows."""


@dataclass(frozen=True, eq=False)
class Channel:
    """The moments of a head, or of a batch of heads along leading axes, in the coordinates that make them independent.

    Attributes
    ----------
    couplings : array of shape (..., d)
        Singular values ``a`` of ``S**(1/2) K**(1/2)``, largest first, the scale of the scores included.
    mean : array of shape (..., d)
        Mean ``mu`` of the queries in the same coordinates, in standard deviations; zero by default.
    """

    couplings: Any
    mean: Any = None
    _maps: tuple[Any, Any, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Plain arrays of the same shape."""
        couplings = FINITE.check("couplings", as_numpy(self.couplings))
        if couplings.ndim == 0 or couplings.shape[-1] == 0 or np.any(couplings < 0):
            raise DomainError(f"couplings have shape {couplings.shape}; each head has one or more, none negative")
        mean = np.zeros(couplings.shape) if self.mean is None else FINITE.check("mean", as_numpy(self.mean))
        try:
            mean = np.broadcast_to(mean, couplings.shape)
        except ValueError as error:
            raise DomainError(f"mean has shape {mean.shape}, couplings {couplings.shape}") from error
        object.__setattr__(self, "couplings", couplings)
        object.__setattr__(self, "mean", mean)

    @classmethod
    def from_qk(cls, q: Any, k: Any, scale: float | None = None) -> Self:
        """The channel of heads, from their queries and keys: ``O(l d**2)``, and no attention matrix.

        Parameters
        ----------
        q : array of shape (..., tokens, d)
            Queries as the scores see them (after rotary positions and norms), NumPy or torch.
        k : array of shape (..., tokens, d)
            Keys, likewise; their number may differ from that of the queries.
        scale : float, optional
            What scores ``q . k`` are multiplied by; ``1/sqrt(d)`` by default.

        Returns
        -------
        Channel
            Of all heads along the leading axes.

        Raises
        ------
        DomainError
            If the shapes do not fit, an entry is not finite, or there are fewer than two tokens.
        """
        xp = array_namespace(q, k)
        shapes = tuple(q.shape), tuple(k.shape)
        if q.ndim < 2 or shapes[0][:-2] != shapes[1][:-2] or shapes[0][-1] != shapes[1][-1]:
            raise DomainError(f"q has shape {shapes[0]}, k {shapes[1]}; both are (..., tokens, d), of the same heads")
        if min(shapes[0][-2], shapes[1][-2]) < 2:
            raise DomainError(f"q has {shapes[0][-2]} tokens, k {shapes[1][-2]}: moments need two or more")
        factor = shapes[0][-1] ** -0.5 if scale is None else float(FINITE.check("scale", scale))
        moments = []
        for each in (q, k):
            wide = xp.astype(each, xp.float64)
            mean = xp.mean(wide, axis=-2, keepdims=True)
            rest = wide - mean
            covariance = xp.matmul(xp.matrix_transpose(rest), rest) / each.shape[-2]
            moments.append((as_numpy(mean)[..., 0, :], as_numpy(covariance)))
        (query_mean, query_cov), (key_mean, key_cov) = moments
        return cls.from_moments(factor * query_mean, factor**2 * query_cov, key_cov, key_mean)

    @classmethod
    def from_moments(
        cls, query_mean: ArrayLike, query_cov: ArrayLike, key_cov: ArrayLike, key_mean: ArrayLike | None = None
    ) -> Self:
        """The channel of queries and keys of known moments, the scale of the scores in the queries.

        Parameters
        ----------
        query_mean : array_like of shape (..., d)
            Mean of the queries.
        query_cov, key_cov : array_like of shape (..., d, d)
            Covariances of queries and keys.
        key_mean : array_like of shape (..., d), optional
            Mean of the keys. The softmax does not see it, but :meth:`popularity` needs it to know the keys' centre.

        Returns
        -------
        Channel
            Couplings, and the mean of the queries in their coordinates.
        """
        mean = FINITE.check("query_mean", query_mean)
        queries, keys = (FINITE.check(name, each) for name, each in (("query_cov", query_cov), ("key_cov", key_cov)))
        centre = np.zeros(mean.shape) if key_mean is None else FINITE.check("key_mean", key_mean)
        left, right = _root(queries), _root(keys)
        _, couplings, turned = np.linalg.svd(left @ right)
        # a mu = V' K**(1/2) m, which needs no inverse of the queries' covariance
        drift = (turned @ right @ mean[..., None])[..., 0]
        size = couplings.max(axis=-1, keepdims=True)
        known = couplings > 1e-9 * np.maximum(size, 1e-300)
        unit = np.divide(drift, couplings, out=np.zeros_like(drift), where=known)
        # popularity in the original coordinates: exp(k'Pk/2 + k'v), P = (1 + S K)**-1 S, v = (1 + S K)**-1 m
        mixed = np.eye(mean.shape[-1]) + queries @ keys
        quadratic = np.linalg.solve(mixed, queries)
        linear = np.linalg.solve(mixed, mean[..., None])[..., 0]
        return cls(couplings, unit, (centre, (quadratic + np.swapaxes(quadratic, -1, -2)) / 2, linear))

    # -- size of the scores --------------------------------------------------------------------------------------------

    @property
    def interaction(self) -> Any:
        """``sqrt(sum a_i**2)``: standard deviation of the scores less their row and column means."""
        return _plain(np.sqrt(np.sum(self.couplings**2, axis=-1)))

    @property
    def beta(self) -> Any:
        """``sqrt(sum a_i**2 (1 + mu_i**2))``: root mean square over rows of the spread of a row's scores."""
        return _plain(np.sqrt(np.sum(self.couplings**2 * (1 + self.mean**2), axis=-1)))

    @property
    def effective_dim(self) -> Any:
        """``(sum a_i**2)**2/sum a_i**4``: how many directions share the interaction."""
        squares = self.couplings**2
        return _plain(np.sum(squares, axis=-1) ** 2 / np.sum(squares**2, axis=-1))

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rows(self, tokens: int) -> Softmax:
        """Mean entropy, in nats, and mean sum of squared weights of a row of that many keys.

        The scores of a row are Gaussian with the variance ``sum a_i**2 u_i**2`` of its query; entropy and participation
        of a softmax of so many of them are exact (:func:`bulkedge.propagation.softmax_of_gaussians`), so that rows of
        few or hot keys freeze as they should. Over queries the variance is taken as gamma distributed, with its own
        mean and variance, which is within 0.002 nats and 3 % of the participation for two effective directions, and
        better for more. The first call for a number of tokens takes about a second.

        Parameters
        ----------
        tokens : int
            Number of keys.

        Returns
        -------
        Softmax
            Arrays over the heads, or numbers for a single one.
        """
        tokens = TOKENS.check("tokens", tokens)
        squares = self.couplings**2
        mean = np.sum(squares * (1 + self.mean**2), axis=-1)
        variance = np.sum(squares**2 * (2 + 4 * self.mean**2), axis=-1)
        nodes, weights = _gamma_rule(np.where(variance > 0, mean**2 / np.where(variance > 0, variance, 1.0), 1.0))
        scale = np.divide(variance, mean, out=np.zeros_like(mean), where=mean > 0)
        beta = np.sqrt(scale[..., None] * nodes)
        heavy = np.where(weights > NEGLIGIBLE, beta, 0.0).max(initial=0.0)
        if heavy > HOTTEST:
            raise DomainError(f"scores of a row spread by up to {heavy:.3g}: rows are known up to {HOTTEST:g}")
        found = np.sum(weights[..., None] * _rows_of(tokens)(np.minimum(beta, HOTTEST)), axis=-2)
        return Softmax(_plain(found[..., 0]), _plain(found[..., 1]))

    # -- columns -------------------------------------------------------------------------------------------------------

    def popularity(self, k: Any) -> Any:
        """Predicted share of all attention that each key gets: its column sum, over the number of rows.

        ``pi(y) ~ prod exp((a_i mu_i y_i + a_i**2 y_i**2/2)/(1 + a_i**2))``: keys along the mean query and long keys are
        liked, less than by ``E exp(q . k)`` because rows that see them are normalised by them.

        Parameters
        ----------
        k : array of shape (..., tokens, d)
            Keys as :meth:`from_qk` had them; for a channel made of couplings, keys in its own coordinates.

        Returns
        -------
        array of shape (..., tokens)
            Shares that sum to one.
        """
        keys = FINITE.check("k", as_numpy(k))
        if keys.ndim < 2 or keys.shape[:-2] + keys.shape[-1:] != self.couplings.shape:
            raise DomainError(f"k has shape {keys.shape}, couplings {self.couplings.shape}: not keys of these heads")
        if self._maps is None:
            shrunk = 1 / (1 + self.couplings**2)
            quadratic, linear = self.couplings**2 * shrunk, self.couplings * self.mean * shrunk
            log = np.sum(0.5 * quadratic[..., None, :] * keys**2 + linear[..., None, :] * keys, axis=-1)
        else:
            centre, matrix, vector = self._maps
            rest = keys - centre[..., None, :]
            log = 0.5 * np.sum((rest @ matrix) * rest, axis=-1) + (rest @ vector[..., None])[..., 0]
        log = log - log.max(axis=-1, keepdims=True)
        weights = np.exp(log)
        return weights / weights.sum(axis=-1, keepdims=True)

    # -- singular values -----------------------------------------------------------------------------------------------

    @property
    def condensed(self) -> Any:
        """Whether the largest squared coupling is a half or more: the operator of the channel is unbounded then."""
        found = self.couplings.max(axis=-1) ** 2 >= 0.5
        return bool(found) if np.ndim(found) == 0 else found

    @property
    def squared_norm(self) -> Any:
        """Sum of all squared population singular values, ``prod (1 - 2 a**2)**(-1/2) exp(a**2 mu**2/(1 - 2 a**2))``.

        Infinite for a condensed channel.
        """
        return _plain(np.exp(self._log_squared_norm()))

    @property
    def perron(self) -> Any:
        """The largest population singular value of the attention matrix; infinite for a condensed channel."""
        ratios = _mehler(self.couplings)
        with np.errstate(invalid="ignore", divide="ignore"):
            log = (np.sum(np.log1p(-(ratios**2)), axis=-1) + self._log_squared_norm()) / 2
        return _plain(np.where(self.condensed, np.inf, np.exp(log)))

    @property
    def ratio(self) -> Any:
        """``s_2/s_1`` for infinitely many tokens, ``r(a_max)``; one for a condensed channel."""
        return _plain(_mehler(self.couplings.max(axis=-1)))

    def singular_values(self, count: int) -> Real:
        """The largest population singular values, ``s_1 prod r(a_i)**n_i`` over all exponents n (Mehler's formula).

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        array of shape (count,)
            In decreasing order.

        Raises
        ------
        DomainError
            For a batch of heads, or a condensed channel, which has none.
        """
        count = COUNT.check("count", count)
        if self.couplings.ndim > 1:
            raise DomainError("singular_values is of one head; index the couplings of a batch")
        if self.condensed:
            raise DomainError(
                f"the largest coupling squared is {self.couplings.max() ** 2:.3g} >= 1/2: the operator is unbounded, "
                "and singular values of attention grow with the number of tokens"
            )
        return self.perron * _products(_mehler(self.couplings), count)

    @property
    def growth(self) -> Any:
        """Exponent ``(2 a**2 - 1)/(2 (2 a**2 + 1))`` of ``s_1`` in the number of tokens, up to logarithms.

        Of the largest coupling; zero for a channel that is not condensed.
        """
        square = self.couplings.max(axis=-1) ** 2
        return _plain(np.maximum((2 * square - 1) / (2 * (2 * square + 1)), 0.0))

    def law(self, tokens: int) -> ChannelLaw:
        """The whole spectrum of a head of this channel: squared singular values of ``sqrt(l) (A - 1 pi')``.

        Parameters
        ----------
        tokens : int
            Number of tokens l, from 16 to 4096.

        Returns
        -------
        ChannelLaw
            A distribution, at fixed Gaussian tokens of low discrepancy: nothing in it is random.

        Raises
        ------
        DomainError
            For a batch of heads, or couplings that are all zero.
        """
        return ChannelLaw.from_channel(self.couplings, self.mean, tokens)

    def _log_squared_norm(self) -> Real:
        rest = 1 - 2 * self.couplings**2
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = -np.log(rest) / 2 + (self.couplings * self.mean) ** 2 / rest
        return np.where(np.any(rest <= 0, axis=-1), np.inf, np.sum(terms, axis=-1))


def _mehler(couplings: Any) -> Any:
    """``r(a) = (sqrt(1 + 2 a**2) - sqrt(1 - 2 a**2))/(2 a)``, one from ``a**2 = 1/2`` on."""
    square = np.minimum(2 * np.asarray(couplings) ** 2, 1.0)
    # the same without the cancellation for small a
    return np.where(square < 1, 2 * np.sqrt(square / 2) / (np.sqrt(1 + square) + np.sqrt(1 - square)), 1.0)


def _products(ratios: Real, count: int) -> Real:
    """The largest products of powers of numbers below one, in decreasing order: a heap of exponents, each made once."""
    known = ratios[ratios > 0]
    found, heap = np.zeros(count), [(-1.0, 0)]
    # an entry stands for a product whose last factor has this index; successors only use it or later ones
    for k in range(count):
        if not heap:
            break
        value, first = heappop(heap)
        found[k] = -value
        for index in range(first, len(known)):
            heappush(heap, (value * float(known[index]), index))
    return found


def _root(covariance: Real) -> Real:
    """Symmetric root of a covariance; eigenvalues that rounding made negative are zero."""
    values, vectors = np.linalg.eigh(covariance)
    scaled: Real = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return scaled @ np.swapaxes(vectors, -1, -2)


def _gamma_rule(shape: Real) -> tuple[Real, Real]:
    """Gauss-Laguerre rules for gamma distributions of these shapes and scale one (Golub and Welsch)."""
    n = np.arange(NODES)
    rows, after = np.zeros((*shape.shape, NODES, NODES)), np.arange(1, NODES)
    rows[..., n, n] = 2 * n + shape[..., None]
    rows[..., after, after - 1] = np.sqrt(after * (after + shape[..., None] - 1))  # eigh reads the lower half
    nodes, vectors = np.linalg.eigh(rows)
    return np.maximum(nodes, 0.0), vectors[..., 0, :] ** 2


@lru_cache(maxsize=16)
def _rows_of(tokens: int) -> CubicSpline:
    """Entropy and participation of a row as functions of the spread of its scores."""
    beta = np.linspace(0, HOTTEST, 73)
    return CubicSpline(beta, [softmax_of_gaussians(float(each), tokens) for each in beta])


def _plain(values: Any) -> Any:
    return float(values) if np.ndim(values) == 0 else values
