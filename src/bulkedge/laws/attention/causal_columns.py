"""Columns of causal attention that are not alike: popular keys, and sinks at the first tokens.

Popularity that many keys share goes into the equations as sizes of columns. A sink is one key with a good part of every
row. Row i gives the sinks the share p_i and spreads the rest over the other keys. So without the sinks' columns the
rows are ``(1 - p_i)`` times those of a causal head of the other keys. With x the weight of the sinks over that of the
other keys, ``1 - p = 1/(1 + x)``, and x varies from row to row: rows have sizes
(docs/theory/causal_columns.md, "Sinks"). The sinks' own columns are a few large values beyond the bulk.

>>> popularity = np.ones(400)
>>> popularity[:2] = 200.0
>>> others, sinks = find_sinks(popularity)
>>> others[:3].tolist(), sinks.weights
([1.0, 1.0, 1.0], (200.0, 200.0))
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.sparse.linalg import LinearOperator, eigsh

from bulkedge.support.arrays import Real
from bulkedge.support.errors import RegimeWarning

LEVELS = np.array([0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.82, 0.9, 0.95, 0.98, 0.995, 1])
"""Quantiles of the popularity between which columns are taken together, at their mean square."""
SINK, STANDS_OUT = 0.02, 8.0
"""A sink has at least this share of the last row, and so many times the median popularity."""
FIRST = 8  # sinks are among the first tokens, so many or one in fifty
LATE = 0.08  # share of the last row from which a later key is warned of
NODES = 7  # quadrature nodes for the weight of the sinks in a row
SAMPLES, PLACES = 2000, 60  # draws of scores, and places, for the mean products of shares
DENSE = 500  # tokens up to which all singular values of the mean are computed


class ColumnPopularity(NamedTuple):
    """Popularity of columns: a mean that goes with the place, times one of a few sizes."""

    places: tuple[float, ...]  # middles of blocks of tokens
    means: tuple[float, ...]  # mean popularity in each block, in units of that of all tokens
    # mean popularity of the tokens up to each of these places: what rows there are normalised by
    prefixes: tuple[float, ...]
    # squares, shares: squared popularity of each size, in units of the mean of its block, and the share of the
    # columns that have it
    squares: tuple[float, ...]
    shares: tuple[float, ...]

    def interpolate(self, places: Real, of: str = "means") -> Real:
        """Mean popularity of the tokens about each place, or of all before it."""
        known = np.asarray(getattr(self, of))
        if len(known) == 1:
            return np.full(np.shape(places), known[0])
        logs = np.log(np.clip(places, self.places[0], self.places[-1]))
        return np.asarray(np.exp(PchipInterpolator(np.log(self.places), np.log(known))(logs)))


def column_popularity(popularity: Real, tokens: int) -> ColumnPopularity:
    """Popularities as a mean that goes with the place, and a few sizes about it."""
    values = popularity / popularity.mean()
    stops = np.array([len(values)])
    if len(values) == tokens:
        # blocks of tokens whose lengths grow in proportion to the place
        stops = np.unique(np.rint(np.geomspace(1, tokens, 24)).astype(int))
    starts = np.append(0, stops[:-1])
    counts = stops - starts
    sums = np.add.reduceat(values, starts)
    middles = (starts + stops + 1) / 2
    upto = np.interp(middles, np.append(0, stops), np.append(0, np.cumsum(sums)))
    ratio = values / np.repeat(sums / counts, counts)
    rank = np.argsort(np.argsort(ratio))
    _, size, members = np.unique(
        np.searchsorted(LEVELS[1:-1], (rank + 0.5) / len(values)), return_inverse=True, return_counts=True
    )
    return ColumnPopularity(
        places=tuple(middles.tolist()),
        means=tuple((sums / counts).tolist()),
        prefixes=tuple((upto / middles).tolist()),
        squares=tuple((np.bincount(size, ratio**2) / members).tolist()),
        shares=tuple((members / len(values)).tolist()),
    )


class Sinks(NamedTuple):
    """Sinks at the first tokens: their popularity in units of the mean popularity of the other keys."""

    weights: tuple[float, ...] = ()

    def row_sizes(self, others: Real, betas: Real) -> tuple[Real, Real]:
        """Shares (n,) and squares ``(1 - p)**2`` (rows, betas, n) of rows whose other keys have this popularity in all.

        ``betas`` are the spreads of the score of a sink over rows, one for each group of queries.
        """
        # a sum of log-normal weights is taken as log-normal with its mean and variance
        weights = np.array(self.weights)
        spread = np.log1p(np.expm1(betas**2) * (weights**2).sum() / weights.sum() ** 2)[:, None]
        nodes, shares = np.polynomial.hermite_e.hermegauss(NODES)
        relative = weights.sum() * np.exp(np.sqrt(spread) * nodes - spread / 2)
        return shares / shares.sum(), (1 + relative / others[:, None, None]) ** -2.0

    def moments(self, others: Real, beta: float) -> Real:
        """Mean products (rows, m + 1, m + 1) of what a row gives to each of the m sinks, and to the others together."""
        rng = np.random.default_rng(2026)
        scores = rng.standard_normal((SAMPLES, len(self.weights)))
        scores = np.concatenate([scores, -scores])
        given = np.array(self.weights) * np.exp(beta * scores - beta**2 / 2)
        places = np.geomspace(others.min(), others.max(), PLACES)
        found = [_mean_products(np.column_stack([given, np.full(len(given), place)])) for place in places]
        result = np.asarray(PchipInterpolator(np.log(places), np.array(found))(np.log(others)))
        # the rows of the sinks themselves see no other key, and not all of the sinks
        for row in range(len(self.weights)):
            result[row] = 0
            result[row, : row + 1, : row + 1] = _mean_products(given[:, : row + 1])
        return result

    def mean_values(self, popularity: Real, beta: float, count: int) -> tuple[Real, Real]:
        """Largest singular values of ``p_s`` in the sinks' columns beside ``1 - p`` times the mean of the others.

        With the share of each right singular vector on the sinks.
        """
        m, tokens = len(self.weights), len(popularity)
        own = popularity.copy()
        own[:m] = 0
        upto = np.maximum(np.cumsum(own), popularity[m] / 2)
        moments = self.moments(upto, beta)
        sinks, cross, rest = moments[:, :m, :m].sum(axis=0), moments[:, :m, m], moments[:, m, m]

        def gram(v: Real) -> Real:
            v = np.asarray(v).reshape(tokens)
            means = np.cumsum(own * v) / upto
            into = (cross @ v[:m] + rest * means) / upto
            result = own * np.cumsum(into[::-1])[::-1]
            result[:m] = sinks @ v[:m] + means @ cross
            return result

        if tokens <= DENSE:
            values, vectors = np.linalg.eigh(np.array([gram(row) for row in np.eye(tokens)]))
        else:
            operator = LinearOperator((tokens, tokens), matvec=gram, dtype=float)
            values, vectors = eigsh(operator, min(count, tokens // 2), v0=np.ones(tokens))
        order = np.argsort(-values)[:count]
        return np.sqrt(np.maximum(values[order], 0.0)), (vectors[:m, order] ** 2).sum(axis=0)


NO_SINKS = Sinks()


def _mean_products(weights: Real) -> Real:
    """Mean products of the shares that keys of these weights (draws, keys) have in a row."""
    shares = weights / weights.sum(axis=1, keepdims=True)
    return np.asarray(shares.T @ shares / len(shares))


def _first(tokens: int) -> int:
    """Among how many of the first tokens sinks are looked for."""
    return max(FIRST, tokens // 50)


def warn_of_late_sinks(popularity: Real) -> None:
    """Warn of a key behind the first tokens that takes a good part of the rows that see it."""
    first = _first(len(popularity))
    place = first + int(np.argmax(popularity[first:]))
    share = popularity[place] / popularity.sum()
    if share > LATE and popularity[place] > STANDS_OUT * np.median(popularity):
        warnings.warn(
            f"popularity: token {place + 1} takes {share:.0%} of the last row. Sinks are known to the law among the "
            f"first {first} tokens only: the Kolmogorov distance is up to 0.07. Simulate instead (be.null_of)",
            RegimeWarning,
            stacklevel=3,
        )


def find_sinks(popularity: Real) -> tuple[Real, Sinks]:
    """The popularity with that of sinks replaced by that of the keys behind them, in units of the mean; the sinks."""
    first = _first(len(popularity))
    large = popularity > np.maximum(SINK * popularity.sum(), STANDS_OUT * np.median(popularity))
    if not large[:first].any():
        return popularity, NO_SINKS
    count = int(np.flatnonzero(large[:first])[-1]) + 1
    others = popularity.copy()
    others[:count] = np.median(popularity[count : count + first])
    mean = others.mean()
    return others / mean, Sinks(tuple((popularity[:count] / mean).tolist()))
