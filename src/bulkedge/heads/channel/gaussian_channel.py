"""A head as a Gaussian channel: what its attention does, from the first two moments of its queries and keys.

Let queries be ``N(m, S)`` and keys ``N(0, K)``, independent; a constant in all keys drops out of the softmax. In the
coordinates that diagonalise ``S**(1/2) K**(1/2)`` a score is ``sum a_i u_i y_i`` with keys ``y ~ N(0, I)`` and queries
``u ~ N(mu, I)``; the *couplings* ``a_i`` are the singular values. For many tokens ``T A_ij`` tends to ``t(u, y) = prod
exp(a_i u_i y_i - a_i**2 u_i**2/2)``, the density of a Gaussian channel ``y = a u + noise`` relative to its noise, and
everything factorises over directions (docs/theory/channel.md).

>>> channel = Channel([0.5, 0.3, 0.2, 0.1])
>>> round(channel.beta, 4), round(channel.effective_dim, 2), channel.condensed
(0.6245, 2.1, False)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike

from bulkedge.heads.channel.moments import (
    VECTORS,
    Couplings,
    DirectionSums,
    FactoredMoments,
    PopularityForms,
    VectorMoments,
    find_couplings,
    moments,
    on_one_device,
    working,
)
from bulkedge.heads.channel.popularity import forms, own_forms, saturate
from bulkedge.heads.law.channel_law import ChannelLaw
from bulkedge.heads.softmax import Softmax, mean_rows
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import FINITE, FLAG, REAL_NUMBER, Integers, takes
from bulkedge.support.errors import DomainError


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Channel:
    """The moments of a head, or of a batch of heads along leading axes, in the coordinates that make them independent.

    Of a channel made from moments, couplings and what depends on each of them are found when they are first asked for.
    Sums over directions and popularity need no couplings, only traces and Cholesky factors on the arrays' own device.

    >>> q, k = np.random.default_rng(0).standard_normal((2, 200, 16))
    >>> channel = Channel.from_qk(q, k)
    >>> round(float(channel.beta), 2), round(float(channel.effective_dim), 1)
    (0.99, 13.7)

    Parameters
    ----------
    couplings : array_like of shape (..., d)
        Couplings ``a`` of each head, none negative.
    mean : array_like, optional
        Mean ``mu`` of the queries in the same coordinates, in standard deviations, of a shape that broadcasts to that
        of the couplings; zero by default.
    """

    _source: Couplings | FactoredMoments

    def __init__(self, couplings: Any, mean: Any = None) -> None:
        """Plain arrays of the same shape."""
        couplings = FINITE.check("couplings", couplings)
        if couplings.ndim == 0 or couplings.shape[-1] == 0 or np.any(couplings < 0):
            raise DomainError(f"couplings have shape {couplings.shape}; each head has one or more, none negative")
        mean = np.zeros(couplings.shape) if mean is None else FINITE.check("mean", mean)
        try:
            mean = np.broadcast_to(mean, couplings.shape)
        except ValueError as error:
            raise DomainError(f"mean has shape {mean.shape}, couplings {couplings.shape}") from error
        object.__setattr__(self, "_source", Couplings(couplings, couplings * mean))
        self.__dict__["mean"] = mean  # as given, also where the coupling is zero

    def __repr__(self) -> str:
        """Couplings and mean."""
        return f"{type(self).__name__}(couplings={self.couplings!r}, mean={self.mean!r})"

    @classmethod
    @takes(q=VECTORS, k=VECTORS, scale=REAL_NUMBER)
    def from_qk(cls, q: Any, k: Any, scale: float | None = None) -> Self:
        """The channel of heads, from their queries and keys: ``O(T d**2)``, and no attention matrix.

        Sums over tokens are done by the library and on the device of the arrays, in double precision, or in single
        precision for single or half on a CPU: couplings are then right to about ``1e-6`` of the largest.

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
        shapes = tuple(q.shape), tuple(k.shape)
        if shapes[0][:-2] != shapes[1][:-2] or shapes[0][-1] != shapes[1][-1]:
            raise DomainError(f"q has shape {shapes[0]}, k {shapes[1]}; both are (..., tokens, d), of the same heads")
        if min(shapes[0][-2], shapes[1][-2]) < 2:
            raise DomainError(f"q has {shapes[0][-2]} tokens, k {shapes[1][-2]}: moments need two or more")
        factor = shapes[0][-1] ** -0.5 if scale is None else scale
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
            queries, keys = on_one_device(moments(q), moments(k))
            return cls._of(VectorMoments(factor * queries.mean, factor**2 * queries.covariance), keys)

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

        Raises
        ------
        DomainError
            If an entry is not finite or the shapes do not fit.
        """
        names = ("query_mean", "query_cov", "key_cov", "key_mean")
        given = (query_mean, query_cov, key_cov, np.zeros(np.shape(query_mean)) if key_mean is None else key_mean)
        mean, queries, keys, centre = (
            FINITE.check(name, each).astype(float) for name, each in zip(names, given, strict=True)
        )
        square = (*mean.shape, *mean.shape[-1:])
        if mean.ndim == 0 or queries.shape != square or keys.shape != square or centre.shape != mean.shape:
            raise DomainError(
                f"query_mean has shape {mean.shape}, query_cov {queries.shape}, key_cov {keys.shape}, key_mean "
                f"{centre.shape}; means are (..., d), covariances (..., d, d), of the same heads"
            )
        return cls._of(VectorMoments(mean, queries), VectorMoments(centre, keys))

    @classmethod
    def _of(cls, queries: VectorMoments, keys: VectorMoments) -> Self:
        made = cls.__new__(cls)
        object.__setattr__(made, "_source", FactoredMoments.of(queries, keys))
        return made

    # -- directions ----------------------------------------------------------------------------------------------------

    @cached_property
    def _directions(self) -> Couplings:
        known = self._source
        if isinstance(known, Couplings):
            return known
        return find_couplings(*(as_numpy(each) for each in (*known.queries, known.keys.covariance)))

    @property
    def couplings(self) -> Real:
        """Singular values ``a`` of ``S**(1/2) K**(1/2)``, largest first, with the scale of the scores: (..., d)."""
        return self._directions.couplings

    @property
    def drift(self) -> Real:
        """``a_i mu_i``: how the mean score of a key grows with each of its coordinates, of shape (..., d)."""
        return self._directions.drift

    @cached_property
    def mean(self) -> Real:
        """Mean ``mu`` of the queries in the couplings' coordinates, in standard deviations: (..., d).

        Zero where a coupling found from moments is; what the formulas need of it is :attr:`drift`, right there too.
        """
        couplings, drift = self._directions
        return np.divide(drift, couplings, out=np.zeros_like(drift), where=couplings > 0)

    @cached_property
    def _sums(self) -> DirectionSums:
        return DirectionSums.of(*self._source) if isinstance(self._source, Couplings) else self._source.sums

    @cached_property
    def _forms(self) -> PopularityForms:
        return own_forms(*self._source) if isinstance(self._source, Couplings) else self._source.forms

    # -- size of the scores --------------------------------------------------------------------------------------------

    @property
    def interaction(self) -> Any:
        """``sqrt(sum a_i**2)``: standard deviation of the scores minus their row and column means."""
        return as_plain(np.sqrt(self._sums.squares))

    @property
    def beta(self) -> Any:
        """``sqrt(sum a_i**2 (1 + mu_i**2))``: root mean square over rows of the spread of a row's scores."""
        return as_plain(np.sqrt(self._sums.squares + self._sums.drifts))

    @property
    def effective_dim(self) -> Any:
        """``(sum a_i**2)**2/sum a_i**4``: how many directions share the interaction; zero without any."""
        crowding = np.asarray(self._sums.crowding)
        return as_plain(np.divide(1.0, crowding, out=np.zeros_like(crowding), where=crowding > 0))

    @property
    def spread_moments(self) -> tuple[Real, Real]:
        """Mean and variance over rows of the variance ``sum a_i**2 u_i**2`` of a row's scores."""
        squares, drifts, crowding, mixed = self._sums
        return np.asarray(squares + drifts), np.asarray(2 * squares**2 * crowding + 4 * mixed)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rows(self, tokens: int) -> Softmax:
        """Mean entropy, in nats, and mean sum of squared weights of a row of that many keys.

        The scores of a row are Gaussian with the variance ``sum a_i**2 u_i**2`` of its query; entropy and participation
        of a softmax of so many of them are exact (:func:`bulkedge.propagation.softmax_of_gaussians`), so that rows of
        few or sharp keys freeze as they should. Over queries the variance is taken as gamma distributed, with its own
        mean and variance, which is within 0.002 nats and 3 % of the participation for two effective directions, and
        better for more. The first call for a number of tokens makes a table of these, in some 30 milliseconds.
        """
        tokens = Integers(1, 10**12).check("tokens", tokens)
        entropy, participation = mean_rows(*self.spread_moments, tokens)
        return Softmax(as_plain(entropy), as_plain(participation))

    # -- columns -------------------------------------------------------------------------------------------------------

    @takes(limit=FLAG)
    def popularity(self, k: Any, *, limit: bool = False) -> Any:
        """Predicted share of all attention that each key gets: its column sum, over the number of rows.

        ``pi(y) ~ prod exp((a_i mu_i y_i + a_i**2 y_i**2/2)/(1 + a_i**2))``: keys along the mean query and long keys are
        liked, less than by ``E exp(q . k)`` because rows that see them are normalised by them. That is the limit of
        many tokens. With as many keys as there are here, a key is itself a part of the normaliser of the rows that look
        at it, which cannot give it more than one: they give ``x/(1 + x)`` where the limit has ``x``, and where sharp
        rows freeze all ``x`` are larger by one factor, which makes the shares sum to one.

        Parameters
        ----------
        k : array of shape (..., tokens, d)
            Keys as :meth:`from_qk` had them; for a channel made of couplings, keys in its own coordinates.
        limit : bool, optional
            Whether to leave it at the limit of many tokens.

        Returns
        -------
        array of shape (..., tokens)
            Shares that sum to one, in the library and on the device of the keys; in single precision if these are in
            single or half on a CPU.

        Raises
        ------
        DomainError
            If these are not keys of these heads, or one of them is not finite.
        """
        keys = working(VECTORS.check("k", k))
        shape = tuple(keys.shape)
        own = tuple(self._forms.centre.shape)
        if shape[:-2] + shape[-1:] != own:
            raise DomainError(f"k has shape {shape}, couplings {own}: not keys of these heads")
        xp = array_namespace(keys)
        of_keys = forms(keys, self._forms)
        log = of_keys[..., 0]
        if not limit and shape[-2] > 1:  # a single key has everything
            count = float(np.log(shape[-2]))
            log = saturate(xp, log - count, of_keys[..., 1] - count, of_keys[..., 2])
        weights = xp.exp(log - xp.max(log, axis=-1, keepdims=True))
        total = xp.sum(weights, axis=-1, keepdims=True)
        if not bool(xp.all(xp.isfinite(total))):
            raise DomainError("k has entries that are not finite")
        return weights / total

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
        return as_plain(np.exp(self._log_squared_norm()))

    @property
    def perron(self) -> Any:
        """The largest population singular value ``s_1`` of the attention matrix; infinite for a condensed channel."""
        ratios = mehler(self.couplings)
        with np.errstate(invalid="ignore", divide="ignore"):
            log = (np.sum(np.log1p(-(ratios**2)), axis=-1) + self._log_squared_norm()) / 2
        return as_plain(np.where(self.condensed, np.inf, np.exp(log)))

    @property
    def ratio(self) -> Any:
        """``s_2/s_1`` for infinitely many tokens, ``r(a_max)``; one for a condensed channel."""
        return as_plain(mehler(self.couplings.max(axis=-1)))

    def gap(self) -> Any:
        """The relative gap ``1 - s_2/s_1`` below the largest singular value, for infinitely many tokens.

        It depends on the largest coupling alone: neither other directions nor a mean query make or close it. At a
        finite number of tokens ``s_2`` is larger (by 5 % at 4000 tokens and a coupling of a half), and the gap smaller.
        It is one for a head without couplings, and zero for a condensed channel, whose ``s_2`` nevertheless stays a
        random share below ``s_1`` at any number of tokens.
        """
        return as_plain(1 - mehler(self.couplings.max(axis=-1)))

    def singular_values(self, count: int) -> Real:
        """The largest population singular values, ``s_1 prod r(a_i)**n_i`` over all exponents n (Mehler's formula).

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        array of shape (..., count)
            In decreasing order.

        Raises
        ------
        DomainError
            For a condensed channel, which has none.
        """
        count = Integers(1, 100_000).check("count", count)
        if np.any(self.condensed):
            raise DomainError(
                f"the largest coupling squared is {self.couplings.max() ** 2:.3g} >= 1/2: the operator is unbounded, "
                "and singular values of attention grow with the number of tokens (growth)"
            )
        ratios = mehler(self.couplings)
        products = np.array([largest_products(each, count) for each in ratios.reshape(-1, ratios.shape[-1])])
        return np.asarray(self.perron)[..., None] * products.reshape(*ratios.shape[:-1], count)

    @property
    def growth(self) -> Any:
        """Exponent ``(2 a**2 - 1)/(2 (2 a**2 + 1))`` of ``s_1`` in the number of tokens, up to logarithms.

        Of the largest coupling; zero for a channel that is not condensed.
        """
        square = self.couplings.max(axis=-1) ** 2
        return as_plain(np.maximum((2 * square - 1) / (2 * (2 * square + 1)), 0.0))

    def law(self, tokens: int) -> ChannelLaw:
        """The whole spectrum of a head of this channel: squared singular values of ``sqrt(T) (A - 1 pi')``.

        Parameters
        ----------
        tokens : int
            Number of tokens T, from 16 to 4096.

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
            terms = -np.log(rest) / 2 + self.drift**2 / rest
        return np.where(np.any(rest <= 0, axis=-1), np.inf, np.sum(terms, axis=-1))


def as_plain(values: Any) -> Any:
    """A number for an array without axes, and arrays as they are."""
    return float(values) if np.ndim(values) == 0 else values


def mehler(couplings: Any) -> Any:
    """Ratio of consecutive singular values of one direction, ``(sqrt(1 + 2 a**2) - sqrt(1 - 2 a**2))/(2 a)``."""
    square = np.minimum(2 * np.asarray(couplings) ** 2, 1.0)
    # the same without the cancellation for small a
    return np.where(square < 1, 2 * np.sqrt(square / 2) / (np.sqrt(1 + square) + np.sqrt(1 - square)), 1.0)


def largest_products(ratios: Real, count: int) -> Real:
    """The largest products ``prod r_i**n_i`` of powers of numbers below one, over all exponents n."""
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
