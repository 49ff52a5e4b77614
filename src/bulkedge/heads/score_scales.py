"""The score scale that a longer context needs, head by head, and the rules that long-context recipes use instead.

More keys dilute a row of attention. A factor on the scores sharpens it again; which one depends on what is to be kept
and on the spread of the head's scores: flat heads need large factors, sharp ones, whose rows are frozen, small ones.

>>> round(score_scales(2.0, 4096, 131072, keep="entropy"), 3)
1.7
>>> score_scales([1.0, 2.0, 3.0], 4096, 131072, keep="participation").round(2)
array([2.13, 1.44, 1.31])
>>> {rule: round(factor, 2) for rule, factor in published_rules(4096, 131072).items()}
{'log length': 1.42, 'SSMax': 1.42, 'YaRN': 1.81, 'LongRoPE': 1.42, 'Llama 4': 1.28}
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
from bulkedge.heads.channel.popularity import top_share
from bulkedge.heads.softmax import Of, rows_of
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import FINITE, Choice, Integers
from bulkedge.support.errors import DomainError

Keep = Literal["entropy", "relative entropy", "participation", "mean participation", "gap", "popularity"]
KEEP = Choice(("entropy", "relative entropy", "participation", "mean participation", "gap", "popularity"))
TOKENS = Integers(2, 10**12)
RowProperty: TypeAlias = Callable[[Real, int], Real]
"""What is to be kept, for factors on the scores of heads and a number of keys: a number that falls with the factor."""
PLACES, SHARES = (np.polynomial.legendre.leggauss(8)[0] + 1) / 2, np.polynomial.legendre.leggauss(8)[1] / 2
"""Relative positions in a causal context that stand for all, and their weights."""
QUERIES = 2048
"""Queries that stand for all."""
CLASSES = np.round(QUERIES * np.linspace(0, 1, 49) ** 2).astype(int)
"""Where classes of rows begin and end, in the order of the spread of their scores."""
STEPS, CLOSE = np.linspace(0, 3, 9), 1e-4
"""Logarithms of factors between which one is looked for to keep a share of keys, and how closely it is found: such a
share is known less well, takes longer, and past the freezing of rows need not grow with the factor."""
LLAMA_SCALE, LLAMA_FLOOR = 0.1, 8192
"""``attn_scale`` and ``floor_scale`` of the configuration of Llama 4."""


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
    """
    keep = KEEP.check("keep", keep)
    tokens, new_tokens = TOKENS.check("tokens", tokens), TOKENS.check("new_tokens", new_tokens)
    if isinstance(channel_or_beta, CausalChannel):
        if keep in {"gap", "popularity"}:
            raise DomainError(f"keep = {keep!r} is not known for causal heads; give the Channel of all their tokens")
        spread, weights = _causal_spreads(channel_or_beta)
        return _factors_for_rows(_causal_row_property(spread, weights, keep), spread.shape[:-1], tokens, new_tokens)
    if isinstance(channel_or_beta, Channel):
        channel = channel_or_beta
        if keep == "gap":
            return as_plain(np.where(channel.condensed, np.nan, 1.0))
        if keep == "popularity":
            return _factors_for_share(channel, tokens, new_tokens)
        beta, weights = _spreads(channel)
    else:
        if keep in {"gap", "popularity"}:
            raise DomainError(f"keep = {keep!r} needs a Channel, not only the spread of the scores")
        beta = _check_beta(channel_or_beta)[..., None]
        weights = np.ones_like(beta)
    return _factors_for_rows(_row_property(beta, weights, keep), beta.shape[:-1], tokens, new_tokens)


def _spreads(channel: Channel) -> tuple[Real, Real]:
    """Spreads of rows, in classes, and the shares of these: both (heads, classes).

    Of fixed queries, the same for all heads, each coordinate of which has its quantiles once. Rows of small spread are
    in small classes: they look at many keys, and count most in means of the number of keys.
    """
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
    found = np.asarray(FINITE.check("beta", as_numpy(beta)), dtype=float)
    if np.any(found < 0):
        raise DomainError(f"beta = {beta!r} is a standard deviation: none is negative")
    return found


def _row_property(beta: Real, weights: Real, keep: str) -> RowProperty:
    def mean(of: Of, factor: Real, tokens: int) -> Real:
        return np.sum(weights * rows_of(factor[..., None] * beta, tokens, of), axis=-1)

    if keep == "participation":
        return lambda factor, tokens: -np.log(mean("participation", factor, tokens))
    if keep == "mean participation":
        return lambda factor, tokens: np.log(mean("keys", factor, tokens))
    relative = keep == "relative entropy"
    return lambda factor, tokens: mean("entropy", factor, tokens) / (log(tokens) if relative else 1.0)


def _causal_row_property(beta: Real, weights: Real, keep: str) -> RowProperty:
    """The same for causal rows: means over Gauss points of the position in the context."""
    of: Of = {"participation": "participation", "mean participation": "keys"}.get(keep, "entropy")  # type: ignore[assignment]

    def kept(factor: Real, tokens: int) -> Real:
        rows = [np.sum(weights * rows_of(factor[..., None] * beta, each, of), axis=-1) for each in _keys_at(tokens)]
        if of == "entropy":
            return np.tensordot(SHARES, rows, 1) / (SHARES @ np.log(_keys_at(tokens)) if keep != "entropy" else 1.0)
        return (1.0 if of == "keys" else -1.0) * np.tensordot(SHARES, np.log(rows), 1)

    return kept


def _keys_at(tokens: int) -> list[int]:
    """Keys of the rows at the Gauss points."""
    return [max(1, round(each * tokens)) for each in PLACES]


def _factors_for_rows(kept: RowProperty, shape: tuple[int, ...], tokens: int, new_tokens: int) -> Any:
    one = np.ones(shape)
    if tokens == new_tokens:
        return as_plain(one)
    wanted = kept(one, tokens)
    excess = kept(one, new_tokens) - wanted
    low, high = -20.0 * (excess < 0), 20.0 * (excess > 0)  # logarithms of the least and largest factor
    found = np.exp(crossing(lambda logs: kept(np.exp(logs), new_tokens) - wanted, low, high))
    # no factor changes a head without scores: it keeps what is the same at both numbers of keys
    return as_plain(np.where(np.abs(excess) < 1e-11, 1.0, found))


def _factors_for_share(channel: Channel, tokens: int, new_tokens: int) -> Any:
    couplings, drift = _flat(channel.couplings), _flat(channel.drift)
    shape = channel.couplings.shape[:-1]
    if tokens == new_tokens:
        return as_plain(np.ones(shape))

    def spread_out(logs: Real, number: int, of: Any) -> Real:
        factor = np.exp(logs)[:, None]
        return -np.log(top_share(factor * couplings[of], factor * drift[of], number))

    left, sign = np.arange(len(couplings)), 1.0 if new_tokens > tokens else -1.0
    wanted = spread_out(np.zeros(left.size), tokens, left)
    # a step at a time, for the heads that have not got past the wanted share before; ends by (near, far) of each head
    at, value = np.zeros((2, left.size)), np.empty((2, left.size))
    value[1] = spread_out(at[1], new_tokens, left) - wanted
    for step in STEPS[1:]:
        at[0, left], value[0, left] = at[1, left], value[1, left]
        at[1, left] = sign * step
        value[1, left] = spread_out(at[1, left], new_tokens, left) - wanted[left]
        left = left[sign * value[1, left] >= 0]
        if not left.size:
            break
    heads = np.setdiff1d(np.arange(len(couplings)), left)
    order = slice(None, None, int(sign))
    low, high, below, above = (*at[order][:, heads], *value[order][:, heads])
    found = np.full(len(couplings), np.nan)
    last, excess = np.full(heads.size, np.nan), np.empty(heads.size)

    def falling(logs: Real) -> Real:
        moved = np.flatnonzero(logs != last)  # heads that have their factor stay where they are
        if moved.size:
            last[moved] = logs[moved]
            excess[moved] = spread_out(logs[moved], new_tokens, heads[moved]) - wanted[heads[moved]]
        return excess.copy()

    if heads.size:
        found[heads] = crossing(falling, low, high, CLOSE, (below, above))
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


def crossing(
    falling: Callable[[Real], Real], low: Real, high: Real, close: float = 1e-12, ends: tuple[Real, Real] | None = None
) -> Real:
    """Chandrupatla's method: the inverse parabola through three points where it can be trusted, and halves elsewhere.

    For all heads at once, one evaluation a step. A parabola is trusted if it is monotone over the interval, which needs
    no memory of how the steps before went (Chandrupatla 1997).

    Examples
    --------
    >>> crossing(lambda x: np.array([2.0, 3.0]) - np.exp(x), np.zeros(2), np.full(2, 5.0)).round(6)
    array([0.693147, 1.098612])
    """
    below, above = (falling(low), falling(high)) if ends is None else ends
    found = (below >= 0) & (above <= 0)
    one, at_one, two, at_two = high, above, low, below  # the newest point and the one across the zero from it
    best, done = np.where(above == 0, high, low), ~found | (above == 0) | (below == 0)
    share = np.full(np.shape(found), 0.5)
    for _ in range(80):  # five to ten are usual
        if np.all(done):
            break
        point = np.where(done, best, one + share * (two - one))
        value = np.where(done, 0.0, falling(point))
        same = np.sign(value) == np.sign(at_one)
        three, at_three = np.where(same, one, two), np.where(same, at_one, at_two)
        two, at_two = np.where(same, two, one), np.where(same, at_two, at_one)
        one, at_one = point, value
        best = np.where(done, best, np.where(np.abs(at_one) < np.abs(at_two), one, two))
        width = np.maximum(np.abs(two - one), 2 * close)
        done |= (width <= 2 * close) | (value == 0)
        share = np.clip(_parabola((one, two, three), (at_one, at_two, at_three)), close / width, 1 - close / width)
    return np.where(found, best, np.nan)


def _parabola(points: tuple[Real, Real, Real], values: tuple[Real, Real, Real]) -> Real:
    """Where from the first to the second point the inverse parabola is zero; a half if it is not to be trusted."""
    (one, two, three), (at_one, at_two, at_three) = points, values
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        place, level = (one - two) / (three - two), (at_one - at_two) / (at_three - at_two)
        trusted = (level**2 < place) & ((1 - level) ** 2 < 1 - place)
        first = at_one / (at_two - at_one) * at_three / (at_two - at_three)
        second = (three - one) / (two - one) * at_one / (at_three - at_one) * at_two / (at_three - at_two)
    found = first + second
    return np.where(trusted & np.isfinite(found), found, 0.5)
