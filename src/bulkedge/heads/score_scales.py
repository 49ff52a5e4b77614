"""The score scale that a longer context needs, head by head, and the rules that long-context recipes use instead.

More keys dilute a row of attention. A factor on the scores sharpens it again; which one depends on what is to be kept
and on the spread of the head's scores: flat heads need large factors, sharp ones, whose rows are frozen, small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import floor, log
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy import special

from bulkedge.heads.channel.causal_channel import CausalChannel
from bulkedge.heads.channel.gaussian_channel import Channel, as_plain
from bulkedge.heads.channel.popularity import roots_of_heads, top_share
from bulkedge.heads.softmax import Of, rows_of
from bulkedge.support.arrays import Index, Real, as_numpy
from bulkedge.support.domains import FINITE, Choice, Integers, shown
from bulkedge.support.errors import DomainError

Keep = Literal["entropy", "relative entropy", "participation", "mean participation", "gap", "popularity"]
KEEP = Choice(("entropy", "relative entropy", "participation", "mean participation", "gap", "popularity"))
TOKENS = Integers(2, 10**12)
RowProperty: TypeAlias = Callable[[Real, int, Index], Real]
"""What is to be kept, for factors on the scores of some heads and a number of keys; it falls with the factor."""
PLACES, SHARES = (np.polynomial.legendre.leggauss(8)[0] + 1) / 2, np.polynomial.legendre.leggauss(8)[1] / 2
"""Relative positions in a causal context that stand for all, and their weights."""
QUERIES = 2048
"""Queries that stand for all."""
CLASSES = np.round(QUERIES * np.linspace(0, 1, 49) ** 2).astype(int)
"""Where classes of rows begin and end, in the order of the spread of their scores."""
STEPS, CLOSE = np.linspace(0, 3, 9)[1:], 1e-4
"""Logarithms of factors between which one is looked for to keep a share of keys, and how closely it is found: such a
share is known less well, takes longer, and past the freezing of rows need not grow with the factor."""
LLAMA_SCALE, LLAMA_FLOOR = 0.1, 8192  # ``attn_scale`` and ``floor_scale`` of the configuration of Llama 4


def score_scales(channel_or_beta: Any, tokens: int, new_tokens: int, keep: Keep = "entropy") -> Any:
    """Factor on the scores of heads that keeps a property of their rows as the number of keys changes.

    Rows have Gaussian scores, and means over rows are exact at any number of keys, also where rows freeze
    (:func:`bulkedge.propagation.softmax_of_gaussians`); the rows of a channel differ in their spread. What is kept:

    ``"entropy"``
        The mean entropy of a row, in nats. Of a flat head it is ``log T - beta**2/2``.
    ``"relative entropy"``
        The mean entropy over the logarithm of the number of keys: rows may spread over more keys in proportion.
    ``"participation"``
        The number of keys that share a row, as one over the mean of ``sum_j A_ij**2``: rows that look at few keys
        count most.
    ``"mean participation"``
        The mean of ``1/sum_j A_ij**2``: rows that look at many keys count most, and the factor is larger. Such rows of
        a channel may be few: it is kept to 10 % there.
    ``"gap"``
        The limit ``s_2/s_1 = r(a_max)`` of many tokens. It depends on the largest coupling alone, so the factor is one.
        At finite numbers of tokens the ratio is somewhat larger and falls to its limit, for which nothing is done here.
        Needs a channel; nan for a condensed one, which has no such limit.
    ``"popularity"``
        The share of all attention that the most popular of so many Gaussian keys gets, in the median. Needs a channel.
        The share is an approximation, to some 20 % for heads whose rows do not freeze. Beyond it is too small, hardly
        depends on the factor, and there often is none: nan. Takes about a millisecond a head.

    Rows of a :class:`CausalChannel` see different numbers of keys, from one to all: what is kept is then the mean over
    positions in the context, of the entropy or of the logarithm of a number of keys, where rows of the same relative
    position have the same spreads. The spreads are those of the head's own rows, but for the first eighth of them. The
    first two need no more than that; gap and popularity are not known for it.

    Parameters
    ----------
    channel_or_beta : Channel, CausalChannel, float or array
        The heads: their channel, or the standard deviation of a row's scores, the same for all rows of a head.
    tokens, new_tokens : int
        Number of keys in a row, now and then; in the last row, if it is causal.
    keep : str
        What to keep.

    Returns
    -------
    float or array
        Of the shape of the heads. Nan where no factor does: a head without scores stays uniform, and no row over fewer
        keys than its entropy asks for has that entropy.

    Raises
    ------
    DomainError
        If a number is outside its domain, or only a channel says what is to be kept.

    Examples
    --------
    >>> round(score_scales(1.0, tokens=512, new_tokens=4096), 4)
    2.3143
    """
    keep = KEEP.check("keep", keep)
    tokens, new_tokens = TOKENS.check("tokens", tokens), TOKENS.check("new_tokens", new_tokens)
    places, shares = np.ones(1), np.ones(1)
    if isinstance(channel_or_beta, CausalChannel):
        if keep in {"gap", "popularity"}:
            raise DomainError(f"keep = {keep!r} is not known for causal heads; give the Channel of all their tokens")
        beta, weights = _causal_spreads(channel_or_beta)
        places, shares = PLACES, SHARES
    elif isinstance(channel_or_beta, Channel):
        if keep == "gap":
            return as_plain(np.where(channel_or_beta.condensed, np.nan, 1.0))
        if keep == "popularity":
            return _factors_for_share(channel_or_beta, tokens, new_tokens)
        beta, weights = _spreads(channel_or_beta)
    else:
        if keep in {"gap", "popularity"}:
            raise DomainError(f"keep = {keep!r} needs a Channel, not only the spread of the scores")
        beta = _check_beta(channel_or_beta)[..., None]
        weights = np.ones(1)
    kept = _row_property(_flat(beta), weights, keep, places, shares)
    return _factors_for_rows(kept, beta.shape[:-1], tokens, new_tokens)


def _spreads(channel: Channel) -> tuple[Real, Real]:
    """Spreads of rows, in classes from small to large, and the shares of these: both (heads, classes)."""
    # the queries are fixed, the same for all heads, and each coordinate has its quantiles once
    couplings, drift = channel.couplings, channel.drift
    squares = [
        np.sum((one * _queries(one.size) + other) ** 2, axis=-1)
        for one, other in zip(*map(_flat, (couplings, drift)), strict=True)
    ]
    beta = np.sort(np.sqrt(squares), axis=-1)
    counts = np.diff(CLASSES)
    means = np.add.reduceat(beta, CLASSES[:-1], axis=-1) / counts
    return means.reshape(*couplings.shape[:-1], counts.size), counts / QUERIES


def _causal_spreads(channel: CausalChannel) -> tuple[Real, Real]:
    """Spreads of the rows of causal heads in 24 classes of equal shares, and these: (heads, classes) and (classes,)."""
    spread = np.sort(as_numpy(channel.spread).astype(float)[..., as_numpy(channel.spread).shape[-1] // 8 :], axis=-1)
    edges = np.unique(np.round(np.linspace(0, spread.shape[-1], 25)).astype(int))
    counts = np.diff(edges)
    # the root mean square: entropies fall with the square of the spread
    return np.sqrt(np.add.reduceat(spread**2, edges[:-1], axis=-1) / counts), counts / counts.sum()


def _flat(array: Real) -> Real:
    return array.reshape(-1, array.shape[-1])


@lru_cache(maxsize=8)
def _queries(dims: int) -> Real:
    """Gaussian queries, (:data:`QUERIES`, dims): a Latin hypercube, the same in every process."""
    rng = np.random.default_rng(0)
    order = rng.permuted(np.tile(np.arange(QUERIES), (dims, 1)), axis=1).T
    return special.ndtri((order + 0.5) / QUERIES)


def _check_beta(beta: Any) -> Real:
    found = np.asarray(FINITE.check("channel_or_beta", beta), dtype=float)
    if np.any(found < 0):
        raise DomainError(f"channel_or_beta = {shown(beta)} is a standard deviation: none is negative")
    return found


def _row_property(beta: Real, weights: Real, keep: str, places: Real, shares: Real) -> RowProperty:
    """The mean over rows, and over positions in the context, of an entropy or of the logarithm of a number of keys."""
    of: Of = {"participation": "participation", "mean participation": "keys"}.get(keep, "entropy")  # type: ignore[assignment]

    def row_property(factor: Real, tokens: int, heads: Index) -> Real:
        keys = [max(1, round(each * tokens)) for each in places]
        spreads = factor[:, None] * beta[heads]
        rows = np.array([np.sum(weights * rows_of(spreads, each, of), axis=-1) for each in keys])
        if of == "entropy":
            return shares @ rows / (shares @ np.log(keys) if keep == "relative entropy" else 1.0)
        return (1.0 if of == "keys" else -1.0) * (shares @ np.log(rows))

    return row_property


def _factors_for_rows(row_property: RowProperty, shape: tuple[int, ...], tokens: int, new_tokens: int) -> Any:
    heads = np.arange(int(np.prod(shape)))
    one = np.ones(heads.size)
    if tokens == new_tokens:
        return as_plain(one.reshape(shape))
    wanted = row_property(one, tokens, heads)
    excess = row_property(one, new_tokens, heads) - wanted
    low, high = -20.0 * (excess < 0), 20.0 * (excess > 0)  # logarithms of the least and largest factor
    found = np.exp(
        roots_of_heads(lambda logs, of: row_property(np.exp(logs), new_tokens, of) - wanted[of], low, high, 1e-12)
    )
    # no factor changes a head without scores: it keeps what is the same at both numbers of keys
    return as_plain(np.where(np.abs(excess) < 1e-11, 1.0, found).reshape(shape))


def _factors_for_share(channel: Channel, tokens: int, new_tokens: int) -> Any:
    couplings, drift = _flat(channel.couplings), _flat(channel.drift)
    shape, left = channel.couplings.shape[:-1], np.arange(len(couplings))
    if tokens == new_tokens:
        return as_plain(np.ones(shape))

    def spread_out(logs: Real, number: int, of: Index) -> Real:
        factor = np.exp(logs)[:, None]
        return -np.log(top_share(factor * couplings[of], factor * drift[of], number))

    wanted = spread_out(np.zeros(left.size), tokens, left)
    near, far = np.zeros(left.size), np.full(left.size, np.nan)
    # a step at a time, for the heads that have not got past the wanted share before
    for step in STEPS if new_tokens > tokens else -STEPS:
        excess = spread_out(np.full(left.size, step), new_tokens, left) - wanted[left]
        past = excess * step < 0
        far[left[past]], left = step, left[~past]
        near[left] = step
        if not left.size:
            break
    heads = np.flatnonzero(np.isfinite(far))

    def excess_of(logs: Real, of: Index) -> Real:
        return spread_out(logs, new_tokens, heads[of]) - wanted[heads[of]]

    found = np.full(near.size, np.nan)
    if heads.size:
        low, high = np.sort([near[heads], far[heads]], axis=0)
        found[heads] = roots_of_heads(excess_of, low, high, CLOSE)
    return as_plain(np.exp(found).reshape(shape))


def published_rules(tokens: float, new_tokens: float) -> dict[str, float]:
    """Factors on the scores by which published recipes go from one context to a longer one, the same for all heads.

    ``"log length"``
        ``log T'/log T`` (Su 2021; Chiang and Cholak 2022).
    ``"SSMax"``
        Scalable softmax multiplies scores by ``s log T``, with s learnt for each head (Nakanishi 2025): for a trained s
        the same ratio.
    ``"YaRN"``
        ``(0.1 log(T'/T) + 1)**2``: queries and keys are each multiplied by the root (Peng et al. 2023).
    ``"LongRoPE"``
        ``1 + log(T'/T)/log T``: queries and keys are each multiplied by the root (Ding et al. 2024); as a factor on the
        scores that is ``log T'/log T`` again.
    ``"Llama 4"``
        ``1 + 0.1 log(1 + floor(p/8192))`` at the position p of the query, relative to the last of ``tokens``: it does
        not depend on the head nor, but for that quotient, on the context of its training.

    Parameters
    ----------
    tokens, new_tokens : float
        Number of tokens of the context now, and of the longer one.

    Returns
    -------
    dict of str to float
        By the name of the rule.

    Examples
    --------
    >>> published_rules(4096, 4096)["YaRN"]
    1.0
    """
    tokens, new_tokens = (TOKENS.check(name, each) for name, each in (("tokens", tokens), ("new_tokens", new_tokens)))
    longer = new_tokens / tokens
    ratio = log(new_tokens) / log(tokens)
    yarn = (0.1 * log(longer) + 1) ** 2 if longer > 1 else 1.0
    longrope = 1 + log(longer) / log(tokens) if longer > 1 else 1.0
    llama = [1 + LLAMA_SCALE * log(1 + floor(each / LLAMA_FLOOR)) for each in (tokens, new_tokens)]
    return {"log length": ratio, "SSMax": ratio, "YaRN": yarn, "LongRoPE": longrope, "Llama 4": llama[1] / llama[0]}
