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
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj
from numpy.typing import ArrayLike

from bulkedge.arrays import Real, as_numpy
from bulkedge.domains import FINITE, Integers
from bulkedge.errors import DomainError
from bulkedge.heads.mehler import THRESHOLD, largest_products, mehler
from bulkedge.heads.moments import coupled, moments, portions, working
from bulkedge.heads.popularity import constants, quadratics, saturated
from bulkedge.heads.rows import mean_rows
from bulkedge.heads.spectrum import ChannelLaw
from bulkedge.propagation.trainability import Softmax

COUNT, TOKENS = Integers(1, 100_000), Integers(1, 10**12)


@dataclass(frozen=True, eq=False)
class Channel:
    """The moments of a head, or of a batch of heads along leading axes, in the coordinates that make them independent.

    Attributes
    ----------
    couplings : array of shape (..., d)
        Singular values ``a`` of ``S**(1/2) K**(1/2)``, largest first, the scale of the scores included.
    mean : array of shape (..., d)
        Mean ``mu`` of the queries in the same coordinates, in standard deviations; zero by default, and where the
        coupling is zero. What the formulas need of it is :attr:`drift`, which is right there too.
    """

    couplings: Any
    mean: Any = None
    _drift: Any = field(default=None, repr=False)
    _maps: tuple[Real, Real, Real, Real] | None = field(default=None, repr=False)

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
        if q.ndim < 2 or shapes[0][:-2] != shapes[1][:-2] or shapes[0][-1] != shapes[1][-1]:
            raise DomainError(f"q has shape {shapes[0]}, k {shapes[1]}; both are (..., tokens, d), of the same heads")
        if min(shapes[0][-2], shapes[1][-2]) < 2:
            raise DomainError(f"q has {shapes[0][-2]} tokens, k {shapes[1][-2]}: moments need two or more")
        factor = shapes[0][-1] ** -0.5 if scale is None else float(FINITE.check("scale", scale))
        queries, keys = moments("q", q), moments("k", k)
        return cls.from_moments(factor * queries.mean, factor**2 * queries.covariance, keys.covariance, keys.mean)

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
        mean = FINITE.check("query_mean", query_mean)
        queries, keys = (FINITE.check(name, each) for name, each in (("query_cov", query_cov), ("key_cov", key_cov)))
        centre = np.zeros(mean.shape) if key_mean is None else FINITE.check("key_mean", key_mean)
        square = (*mean.shape, *mean.shape[-1:])
        if mean.ndim == 0 or queries.shape != square or keys.shape != square or centre.shape != mean.shape:
            raise DomainError(
                f"query_mean has shape {mean.shape}, query_cov {queries.shape}, key_cov {keys.shape}, key_mean "
                f"{centre.shape}; means are (..., d), covariances (..., d, d), of the same heads"
            )
        found = coupled(mean, queries, keys)
        unit = np.divide(found.drift, found.couplings, out=np.zeros_like(found.drift), where=found.couplings > 0)
        return cls(found.couplings, unit, found.drift, (centre, found.features, found.linear, found.constant))

    # -- size of the scores --------------------------------------------------------------------------------------------

    @property
    def interaction(self) -> Any:
        """``sqrt(sum a_i**2)``: standard deviation of the scores less their row and column means."""
        return _plain(np.sqrt(np.sum(self.couplings**2, axis=-1)))

    @property
    def drift(self) -> Real:
        """``a_i mu_i``: how the mean score of a key grows with each of its coordinates, of shape (..., d)."""
        found: Real = self.couplings * self.mean if self._drift is None else self._drift
        return found

    @property
    def beta(self) -> Any:
        """``sqrt(sum a_i**2 (1 + mu_i**2))``: root mean square over rows of the spread of a row's scores."""
        return _plain(np.sqrt(np.sum(self.couplings**2 + self.drift**2, axis=-1)))

    @property
    def effective_dim(self) -> Any:
        """``(sum a_i**2)**2/sum a_i**4``: how many directions share the interaction; zero without any."""
        size = self.couplings.max(axis=-1, keepdims=True)
        squares = np.divide(self.couplings, size, out=np.zeros_like(self.couplings), where=size > 0) ** 2
        fourth = np.sum(squares**2, axis=-1)
        return _plain(np.divide(np.sum(squares, axis=-1) ** 2, fourth, out=np.zeros_like(fourth), where=fourth > 0))

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rows(self, tokens: int) -> Softmax:
        """Mean entropy, in nats, and mean sum of squared weights of a row of that many keys.

        The scores of a row are Gaussian with the variance ``sum a_i**2 u_i**2`` of its query; entropy and participation
        of a softmax of so many of them are exact (:func:`bulkedge.propagation.softmax_of_gaussians`), so that rows of
        few or hot keys freeze as they should. Over queries the variance is taken as gamma distributed, with its own
        mean and variance, which is within 0.002 nats and 3 % of the participation for two effective directions, and
        better for more. The first call for a number of tokens makes a table of these, in some 30 milliseconds.

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
        squares, drifts = self.couplings**2, self.drift**2
        mean = np.sum(squares + drifts, axis=-1)
        variance = np.sum(2 * squares * (squares + 2 * drifts), axis=-1)
        entropy, participation = mean_rows(mean, variance, tokens)
        return Softmax(_plain(entropy), _plain(participation))

    # -- columns -------------------------------------------------------------------------------------------------------

    def popularity(self, k: Any, *, limit: bool = False) -> Any:
        """Predicted share of all attention that each key gets: its column sum, over the number of rows.

        ``pi(y) ~ prod exp((a_i mu_i y_i + a_i**2 y_i**2/2)/(1 + a_i**2))``: keys along the mean query and long keys are
        liked, less than by ``E exp(q . k)`` because rows that see them are normalised by them. That is the limit of
        many tokens. With as many keys as there are here, a key is itself a part of the normaliser of the rows that look
        at it, which cannot give it more than one: they give ``x/(1 + x)`` where the limit has ``x``, and where hot rows
        freeze all ``x`` are larger by one factor, which makes the shares sum to one.

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
        keys = working(k if is_array_api_obj(k) else np.asarray(k))
        shape = tuple(keys.shape)
        if len(shape) < 2 or shape[:-2] + shape[-1:] != self.couplings.shape:
            raise DomainError(f"k has shape {shape}, couplings {self.couplings.shape}: not keys of these heads")
        xp = array_namespace(keys)
        forms = self._forms(keys)
        log = forms[..., 0]
        if not limit and shape[-2] > 1:  # a single key has everything
            count = float(np.log(shape[-2]))
            log = saturated(xp, log - count, forms[..., 1] - count, forms[..., 2])
        weights = xp.exp(log - xp.max(log, axis=-1, keepdims=True))
        total = xp.sum(weights, axis=-1, keepdims=True)
        if not bool(xp.all(xp.isfinite(total))):
            raise DomainError("k has entries that are not finite")
        return weights / total

    def _forms(self, keys: Any) -> Any:
        """The three forms of popularity of all keys, of shape (..., tokens, 3), but for the number of keys."""
        centre, features, linear, constant = self._maps or self._own_maps()
        maps = (centre[..., None, :], features, quadratics(self.couplings), linear, constant[..., None, :])
        flat = [each.reshape(-1, *each.shape[-2:]) for each in maps]
        xp, start, found = array_namespace(keys), 0, []
        for portion in portions(keys):
            stop = start + portion.shape[0]
            centre, features, squares, linear, constant = (
                xp.asarray(each[start:stop], dtype=keys.dtype, device=device(keys)) for each in flat
            )
            rest = portion - centre
            found.append(xp.matmul(xp.matmul(rest, features) ** 2, squares) + xp.matmul(rest, linear) + constant)
            start = stop
        return xp.reshape(xp.concat(found, axis=0), (*keys.shape[:-1], 3))

    def _own_maps(self) -> tuple[Real, Real, Real, Real]:
        """Centre, features, linear and constant parts for keys in the channel's own coordinates."""
        shrink = 1 / (1 + self.couplings**2)
        once = self.drift * shrink
        lost = once * (1 - shrink)
        features = self.couplings[..., None] * np.eye(self.couplings.shape[-1])
        linear = np.stack([once, once - lost, -2 * shrink * lost], axis=-1)
        constant = constants(self.couplings, *(np.sum(once * each, axis=-1) for each in (self.drift, once, lost)))
        return np.zeros(self.couplings.shape), features, linear, constant

    # -- singular values -----------------------------------------------------------------------------------------------

    @property
    def condensed(self) -> Any:
        """Whether the largest squared coupling is a half or more: the operator of the channel is unbounded then."""
        found = self.couplings.max(axis=-1) ** 2 >= THRESHOLD
        return bool(found) if np.ndim(found) == 0 else found

    @property
    def squared_norm(self) -> Any:
        """Sum of all squared population singular values, ``prod (1 - 2 a**2)**(-1/2) exp(a**2 mu**2/(1 - 2 a**2))``.

        Infinite for a condensed channel.
        """
        return _plain(np.exp(self._log_squared_norm()))

    @property
    def perron(self) -> Any:
        """The largest population singular value ``s_1`` of the attention matrix; infinite for a condensed channel."""
        ratios = mehler(self.couplings)
        with np.errstate(invalid="ignore", divide="ignore"):
            log = (np.sum(np.log1p(-(ratios**2)), axis=-1) + self._log_squared_norm()) / 2
        return _plain(np.where(self.condensed, np.inf, np.exp(log)))

    @property
    def ratio(self) -> Any:
        """``s_2/s_1`` for infinitely many tokens, ``r(a_max)``; one for a condensed channel."""
        return _plain(mehler(self.couplings.max(axis=-1)))

    def gap(self) -> Any:
        """The relative gap ``1 - s_2/s_1`` below the largest singular value, for infinitely many tokens.

        It depends on the largest coupling alone: neither other directions nor a mean query make or close it. At a
        finite number of tokens ``s_2`` is larger (by 5 % at 4000 tokens and a coupling of a half), and the gap smaller.

        Returns
        -------
        float or array
            One for a head without couplings, zero for a condensed channel, whose ``s_2`` nevertheless stays a random
            share below ``s_1`` at any number of tokens.
        """
        return _plain(1 - mehler(self.couplings.max(axis=-1)))

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
        count = COUNT.check("count", count)
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
            terms = -np.log(rest) / 2 + self.drift**2 / rest
        return np.where(np.any(rest <= 0, axis=-1), np.inf, np.sum(terms, axis=-1))


def _plain(values: Any) -> Any:
    return float(values) if np.ndim(values) == 0 else values
