"""A configuration at initialisation, layer by layer, without weights: second moments of tokens, and of their gradients.

At large width, tokens enter a layer only by their Gram matrix, and gradients leave it only by theirs. Positions are put
into some twenty groups, log-spaced from the start, within which tokens are alike: of a group, the power of a token and
the products of different tokens are known. What tokens of a group share (`common`) makes scores that a few sampled heads
have explicitly, rotary positions included; what each has to itself is a random-energy model, of which entropy and
participation are known at any number of keys (:mod:`bulkedge.heads.softmax`). So nothing costs more for more tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import RectBivariateSpline
from scipy.special import erf, expit, log_ndtr, ndtr, ndtri

from bulkedge.heads.softmax import MOST, SHARPEST, transforms
from bulkedge.laws.classical.product import ProductLaw
from bulkedge.models.initialisation.blueprint import Blueprint, Layer
from bulkedge.support.arrays import Real

HEADS = 16  # sampled in every layer
GROUPS = 22  # of positions, log-spaced
EVEN = 6  # groups where every row sees every key
MOST_GROUPS = 48  # where a window wants them small
FEWEST = 16  # keys of a row that counts for beta and entropy
NODES, ORDER = 120, 24  # of the quadrature over preactivations; highest Hermite polynomial
TINY = 1e-12


class Groups(NamedTuple):
    """Positions in groups, with two rows that stand for each."""

    start: Real
    size: Real
    rows: Any  # positions, (groups, 2)

    @property
    def tokens(self) -> int:
        return int(self.size.sum())

    @property
    def pairs(self) -> Real:
        """Ordered pairs of different tokens of two groups."""
        return np.outer(self.size, self.size) - np.diag(self.size)

    @classmethod
    def of(cls, tokens: int, window: int | None, *, causal: bool) -> Groups:
        """Log-spaced groups, none larger than a quarter of the window; a few even ones where all see all."""
        spaced = np.geomspace(1, tokens, GROUPS + 1) if causal else np.linspace(1, tokens, min(EVEN, tokens - 1) + 1)
        edges = np.concatenate([[0], np.unique(np.round(spaced).astype(int))])
        if window is not None and window < tokens:
            most = max(window // 4, -(-tokens // MOST_GROUPS), 1)
            cuts = [np.linspace(a, b, -(-(b - a) // most) + 1) for a, b in zip(edges, edges[1:], strict=False)]
            edges = np.unique(np.round(np.concatenate(cuts)).astype(int))
        start, size = edges[:-1], np.diff(edges)
        rows = start[:, None] + np.round((size - 1)[:, None] * np.array([0.25, 0.75])).astype(int)
        return cls(start, size.astype(float), rows)


class Gram(NamedTuple):
    """Second moments of vectors, of the whole or for each entry: a token's own, and those of different tokens."""

    power: Real  # (groups,)
    product: Real  # (groups, groups)

    def scaled(self, scale: Real) -> Gram:
        return Gram(self.power * scale**2, self.product * np.outer(scale, scale))

    def times(self, factor: float) -> Gram:
        return Gram(self.power * factor, self.product * factor)

    def plus(self, other: Gram) -> Gram:
        return Gram(self.power + other.power, self.product + other.product)

    def consistent(self, groups: Groups) -> Gram:
        """With products that are symmetric, and a token's own in groups of one."""
        product = (self.product + self.product.T) / 2
        bound = np.sqrt(np.outer(self.power, self.power))
        product = np.clip(product, -bound, bound)
        product[np.diag_indices_from(product)] = np.where(groups.size > 1, product.diagonal(), self.power)
        return Gram(self.power, product)

    def root(self) -> Real:
        """A factor of the products; what noise of the heads made negative is left out, and rows keep their length."""
        values, vectors = np.linalg.eigh(self.product)
        found: Real = vectors * np.sqrt(np.maximum(values, 0.0))
        length, due = (found**2).sum(1), np.maximum(self.product.diagonal(), 0.0)
        return found * np.sqrt(due / np.maximum(length, TINY * self.power))[:, None]


# -- rows of independent scores ----------------------------------------------------------------------------------------


class RowTables(NamedTuple):
    """Numbers of rows of independent scores, by the spread of these and the log number of keys."""

    entropy: RectBivariateSpline
    participation: RectBivariateSpline  # its logarithm
    largest: RectBivariateSpline  # its logarithm
    scatter: RectBivariateSpline  # squared deviation of the participation over the square of its mean
    centring: RectBivariateSpline  # sum of A**2 (1 - 2 A + sum of A**2) over the sum of A**2


@lru_cache(maxsize=1)
def row_tables() -> RowTables:
    """For spreads up to :data:`SHARPEST` and up to ten million keys."""
    spreads = np.concatenate([np.arange(0, 8, 0.25), np.arange(8, 20, 1.0), np.linspace(20, SHARPEST, 8)])
    log_keys = np.linspace(0, np.log(1e7), 36)
    shared = [transforms(float(each), MOST) for each in spreads]
    sums = [[each.sums(float(np.exp(keys))) for keys in log_keys] for each in shared]
    entropy = np.array([[s.log_sum - b * s.score for s in row] for b, row in zip(spreads, sums, strict=True)])
    power = np.array([[np.log(s.participation) for s in row] for row in sums])
    each = (entropy, power, *_largest(spreads, np.exp(log_keys)))
    return RowTables(*(RectBivariateSpline(spreads, log_keys, table, kx=3, ky=3) for table in each))


def _largest(spreads: Real, keys: Real, draws: int = 400, kept: int = 12) -> tuple[Real, Real, Real]:
    """What single large weights decide: the largest scores as points of a process, all others by their mean."""
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(size=(draws, kept)), axis=1)
    largest, scatter, centring = np.empty((3, len(spreads), len(keys)))
    for k, count in enumerate(keys):
        many = max(min(kept, int(count) - 1), 1) if count >= 2 else 1
        # of `count` uniform numbers, the largest: exponential spacings over the sum of all
        total = arrivals[:, many - 1] + rng.gamma(max(count - many + 1, 1e-9), size=draws)
        share = np.minimum(arrivals[:, :many] / total[:, None], 1 - 1e-12)
        top = -ndtri(share)
        rest = max(count - many, 0.0)
        for b, spread in enumerate(spreads):
            weights, moments = np.exp(spread * (top - top[:, :1])), []
            for n in (1, 2, 3):
                tail = (n * spread) ** 2 / 2 + log_ndtr(top[:, -1] - n * spread) - log_ndtr(top[:, -1])
                moments.append((weights**n).sum(1) + rest * np.exp(tail - n * spread * top[:, 0]))
            whole, square, cube = moments
            power = square / whole**2
            largest[b, k] = np.log(np.mean(1 / whole))
            scatter[b, k] = np.var(power) / np.mean(power) ** 2
            centring[b, k] = 1 + np.mean(power**2 - 2 * cube / whole**3) / np.mean(power)
    return largest, scatter, np.maximum(centring, 0.0)


# -- feed-forward layers -----------------------------------------------------------------------------------------------


def _gelu_tanh(x: Real) -> Real:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[Real], Real]] = {
    "silu": lambda x: x * expit(x),
    "swish": lambda x: x * expit(x),
    "gelu": lambda x: x / 2 * (1 + erf(x / np.sqrt(2))),
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * expit(1.702 * x),
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
}


@lru_cache(maxsize=8)
def gauss(nodes: int) -> tuple[Real, Real]:
    """Nodes and weights for a mean over a standard Gaussian."""
    z, mass = np.polynomial.hermite_e.hermegauss(nodes)
    return z, mass / mass.sum()


class Kernel(NamedTuple):
    """``E f(u) f(v)`` of Gaussian preactivations: coefficients of Hermite polynomials, and the whole power."""

    coefficients: Real  # (groups, order)
    power: Real  # (groups,)

    def products(self, cosine: Real) -> Real:
        """For these cosines of preactivations; what the polynomials lack is taken as of the next order."""
        lacks = np.sqrt(np.maximum(self.power - (self.coefficients**2).sum(1), 0.0))
        terms = np.column_stack([self.coefficients, lacks]).T
        found = np.zeros_like(cosine)
        for each in terms[::-1]:
            found = found * cosine + np.outer(each, each)
        return found


def kernel(function: Callable[[Real], Real], spread: Real) -> Kernel:
    """The kernel of a function at these deviations of preactivations."""
    z, mass = gauss(NODES)
    values = function(spread[:, None] * z)
    hermite = np.empty((ORDER + 1, NODES))  # orthonormal
    hermite[0], hermite[1] = 1.0, z
    for n in range(1, ORDER):
        hermite[n + 1] = (z * hermite[n] - np.sqrt(n) * hermite[n - 1]) / np.sqrt(n + 1)
    return Kernel((values * mass) @ hermite.T, values**2 @ mass)


class FeedForward(NamedTuple):
    """A feed-forward branch: what it returns, and by what it multiplies gradients."""

    output: Gram
    back: Gram  # of gradients at its input over those at its output


def feed_forward(plan: Blueprint, inputs: Gram, variance: Real) -> FeedForward:
    """Moments of a feed-forward branch, for tokens whose products scatter with this variance from pair to pair."""
    function = ACTIVATIONS[plan.activation]
    into = plan.up**2 * plan.width
    spread = np.sqrt(into * inputs.power)
    step = 1e-4
    here = kernel(function, spread)
    slope = kernel(lambda x: (function(x + step) - function(x - step)) / (2 * step), spread)
    whole = np.outer(inputs.power, inputs.power)
    cosine = inputs.product / np.sqrt(whole)
    deviation = np.sqrt(np.maximum(variance, 0.0) / whole) * (1 - np.minimum(cosine**2, 1.0))
    gate = into * np.sqrt(whole) if plan.gated else None
    passed, back = np.zeros_like(cosine), np.zeros_like(cosine)
    for z, mass in ((-np.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (np.sqrt(3.0), 1 / 6)):
        at = np.clip(cosine + z * deviation, -1.0, 1.0)
        forward, slopes = here.products(at), slope.products(at)
        if gate is not None:
            forward, slopes = forward * gate * at, slopes * gate * at + forward
        passed, back = passed + mass * forward, back + mass * slopes
    own, own_back = here.power, slope.power
    if plan.gated:
        own, own_back = own * into * inputs.power, own_back * into * inputs.power + own
    out = plan.down**2 * plan.feed_forward
    return FeedForward(Gram(own, passed).times(out), Gram(own_back, back).times(out * into))


# -- attention ---------------------------------------------------------------------------------------------------------


class Cells(NamedTuple):
    """What the rows see, in pieces: (rows, cells); and counts by group."""

    group: Any
    count: Real  # zero for what is no cell
    distance: Real  # of the row from the middle of the piece
    width: Real
    visible: Real  # keys of every group that a row sees, (rows, groups)
    both: Real  # keys of a group that two rows see, (groups, groups, groups)
    window: int | None


def cells_of(groups: Groups, layer: Layer, plan: Blueprint) -> Cells:
    """Keys of every row, cut at the borders of groups and, where positions matter, at log-spaced distances."""
    tokens, edges = groups.tokens, np.append(groups.start, groups.tokens)
    near = np.unique(np.round(np.geomspace(1, max(tokens, 2), 28)).astype(int))
    near = near if layer.frequencies.size or plan.alibi or plan.position_bias else near[:0]
    pieces, low, high = [], [], []
    for row in groups.rows.ravel():
        first = 0 if layer.window is None or not plan.causal else max(0, row - layer.window + 1)
        last = row + 1 if plan.causal else tokens
        cuts = np.concatenate([[first, last], edges, row + 1 - near, row + near])
        cuts = np.unique(cuts[(cuts >= first) & (cuts <= last)])
        pieces.append((cuts[:-1], np.diff(cuts), row))
        low.append(first)
        high.append(last)
    most = max(len(each[0]) for each in pieces)
    group, count, distance = (np.zeros((len(pieces), most), dtype=kind) for kind in (int, float, float))
    for k, (begin, size, row) in enumerate(pieces):
        n = len(begin)
        group[k, :n] = np.searchsorted(edges, begin, side="right") - 1
        count[k, :n], distance[k, :n] = size, row - (begin + (size - 1) / 2)
    lows, highs = np.array(low), np.array(high)

    def seen(first: Any, last: Any) -> Real:
        return np.maximum(np.minimum(edges[1:], last[..., None]) - np.maximum(edges[:-1], first[..., None]), 0).astype(float)

    both = seen(
        np.maximum(lows[0::2, None], lows[None, 1::2]), np.minimum(highs[0::2, None], highs[None, 1::2])
    )
    return Cells(group, count, distance, np.maximum(count, 1.0), seen(lows, highs), both, layer.window)


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention of sampled heads between groups; arrays begin with heads, then two rows a group, where they have them."""

    mass: Real  # (heads, 2, groups, groups): of a row on a group
    own: Real  # sum of squared weights on a group, likewise
    shared: Real  # mean over heads of what two rows of two groups have in common on a group, (groups, groups, groups)
    uncommon: Real  # by what products of masses exceed those of different keys, (heads, groups, groups)
    uniform: Real  # `shared` of uniform weights, times `uncommon`, mean over heads
    apart: Real  # the same of one row, (heads, 2, groups)
    flat: Real  # `own` of uniform weights, times `apart`, mean over heads and rows, (groups, groups)
    beta: Real  # squared, (groups,)
    entropy: Real
    largest: Real
    participation: Real
    scatter: Real  # of the participation of a token's rows, mean over heads: squared deviation over squared mean
    centring: Real  # share of `own` that is left where a row's mean is taken away

    def without_gap(self, cells: Cells) -> Attention:
        """Attention less the mean of what each row sees."""
        seen = cells.visible.sum(1, keepdims=True)
        even = cells.visible / seen
        alone = (cells.visible / seen**2).reshape(-1, 2, even.shape[1]).transpose(1, 0, 2)
        together = cells.both / (seen[0::2, None] * seen[None, 1::2])
        mass = self.mass - even.reshape(-1, 2, even.shape[1]).transpose(1, 0, 2)
        return replace(
            self, mass=mass, own=np.maximum(self.own - alone, 0.0), shared=self.shared - together,
            uniform=self.uniform - together * self.uncommon.mean(0)[..., None],
            flat=np.maximum(self.flat - alone.mean(0) * self.apart.mean((0, 1))[:, None], 0.0),
        )  # fmt: skip

    def outputs(self, values: Gram) -> Gram:
        """Moments of attention times values, mean over heads."""
        passed = self.mass @ values.product
        square = (passed * self.mass).sum(-1)
        crossed = passed[:, 0] @ self.mass[:, 1].transpose(0, 2, 1)
        same = values.product.diagonal()
        power = (self.own.mean((0, 1)) @ values.power) + (square * self.apart).mean((0, 1)) - self.flat @ same
        product = self.shared @ values.power + (crossed * self.uncommon).mean(0) - self.uniform @ same
        return Gram(power, product)

    def back(self, groups: Groups, given: Gram) -> Gram:
        """Moments of gradients of the values, for those of the outputs: transposed attention."""
        n, pairs = groups.size, groups.pairs * given.product
        own, mass = self.own.mean((0, 1)), self.mass
        power = ((n * given.power) @ own + np.einsum("gl,glh->h", pairs, self.shared)) / n
        weight = (n * given.power) * self.apart / 2
        flattened = mass.reshape(-1, mass.shape[-1])
        product = (weight.reshape(-1, 1) * flattened).T @ flattened
        product += (mass[:, 0].transpose(0, 2, 1) @ ((pairs * self.uncommon) @ mass[:, 1])).sum(0)
        product /= len(mass)
        flat = (n * given.power) @ self.flat + np.einsum("gl,glh->h", pairs, self.uniform)
        product -= np.diag(flat)
        return Gram(power, product / np.maximum(groups.pairs, 1.0)).consistent(groups)


def attend(plan: Blueprint, layer: Layer, groups: Groups, cells: Cells, inputs: Gram, rng: np.random.Generator) -> Attention:
    """Attention of sampled heads on tokens of these moments."""
    count = len(groups.size)
    unit = inputs
    if plan.qk_norm != "none":  # its eps matters where the stream is tiny
        unit = inputs.scaled(1 / np.sqrt(inputs.power + plan.eps / (plan.query**2 * plan.width)))
    queries, keys = _sample(plan, unit, rng)
    spread0 = plan.score_deviation * layer.rotary_gain / np.sqrt(plan.head_dim)  # of a product of entries
    own_keys = np.maximum(unit.power - unit.product.diagonal(), 0.0)
    length = np.sqrt((np.abs(queries) ** 2).sum(-1))  # (heads, rows)
    mean, lost = _shared_scores(queries, keys, layer, cells)
    mean, here = spread0 * mean, cells.count > 0
    variance = spread0**2 * (length[..., None] ** 2 * own_keys[cells.group] + lost)
    portion = cells.count / cells.count.sum(-1, keepdims=True)
    centre = (portion * mean).sum(-1, keepdims=True)
    total = (portion * (variance + (mean - centre) ** 2)).sum(-1)
    shrink = 1.0
    if plan.softcap is not None:
        shrink = _capped(np.sqrt(total), plan.softcap)[..., None]
        mean, variance, total = mean * shrink, variance * shrink**2, total * shrink[..., 0] ** 2
    logits = np.where(here, np.log(np.maximum(cells.count, 1.0)) + mean + variance / 2 + _bias(plan, cells, len(queries), rng), -np.inf)
    highest = logits.max(-1, keepdims=True)
    weights = np.exp(logits - highest)
    whole = weights.sum(-1, keepdims=True)
    kept = 1 / (1 + np.exp(-highest) / whole) if plan.sinks else np.ones_like(whole)
    weights = weights / whole
    flat = weights**2 / np.maximum(cells.count, 1.0)
    # keys of groups of one are known: their weights are as they are. Of all others, what they share is known
    several = here & (groups.size > 1)[cells.group]
    known = (flat * ~several).sum(-1)
    part, rest = (weights * several).sum(-1), np.maximum((flat * several).sum(-1), TINY**2)
    keys_seen = np.maximum(part**2 / rest, 1.0)
    spread = np.minimum(np.sqrt((weights * several * variance).sum(-1) / np.maximum(part, TINY)), SHARPEST)
    tables, at = row_tables(), np.log(keys_seen)
    entropy = part * (tables.entropy.ev(spread, at) - at)
    entropy = entropy - (weights * np.log(np.maximum(weights, 1e-300) / np.maximum(cells.count, 1.0))).sum(-1)
    power = np.clip(np.exp(tables.participation.ev(spread, at)), 1 / keys_seen, 1.0)
    largest = part * np.clip(np.exp(tables.largest.ev(spread, at)), power, 1.0)
    largest = np.maximum(largest, np.where(several, 0.0, weights).max(-1))
    member = ((cells.group[..., None] == np.arange(count)) & here[..., None]).astype(float)
    mass, even = (np.moveaxis(np.moveaxis(each, 1, 0) @ member, 0, 1) for each in (weights, flat))
    sharper = np.where(groups.size > 1, (power * keys_seen)[..., None], 1.0)
    unknown = part**2 * power / (known + part**2 * power)  # share of the participation
    scatter = unknown**2 * np.maximum(tables.scatter.ev(spread, at), 0.0)
    centring = _centred(weights, flat, several, cells) * (1 - unknown)
    centring += unknown * np.clip(tables.centring.ev(spread, at), 0.0, 1.0)
    return _assemble(
        groups, cells, mass * kept, even * kept**2, sharper, _correlations(queries, layer, groups, length),
        {"beta": total, "entropy": np.maximum(entropy, 0.0), "largest": largest * kept[..., 0]},
        scatter, centring, plan.heads,
    )  # fmt: skip


def _centred(weights: Real, flat: Real, several: Any, cells: Cells) -> Real:
    """Share of the squared weights of known keys that is left where a row's mean is taken away."""
    alone = np.where(several, 0.0, weights)
    square = (flat * ~several).sum(-1)
    cube = (alone**3 / np.maximum(cells.count, 1.0) ** 2).sum(-1)
    found: Real = np.clip(1 + flat.sum(-1) - 2 * cube / np.maximum(square, TINY), 0.0, 1.0)
    return found


def _sample(plan: Blueprint, unit: Gram, rng: np.random.Generator) -> tuple[Any, Any]:
    """Queries of two rows a group, and what keys of a group share: entries in pairs, as complex numbers."""
    count, half = len(unit.power), plan.head_dim // 2
    heads = HEADS if count <= 2 * GROUPS else HEADS // 2
    root, own = unit.root(), np.sqrt(np.maximum(unit.power - unit.product.diagonal(), 0.0))

    def draw(*shape: int) -> Any:
        return rng.standard_normal((*shape, half)) + 1j * rng.standard_normal((*shape, half))

    keys = np.einsum("gk,skd->sgd", root, draw(heads, root.shape[1]))
    common = np.einsum("gk,skd->sgd", root, draw(heads, root.shape[1]))
    queries = common[:, :, None] + own[:, None, None] * draw(heads, count, 2)
    queries = queries.reshape(heads, 2 * count, half)
    due = np.repeat(plan.head_dim * unit.power, 2)
    queries = queries * np.sqrt(due / (np.abs(queries) ** 2).sum(-1).mean(0))[:, None]  # less noise of few heads
    if plan.qk_norm == "head":
        queries = queries * np.sqrt(due[:, None] / (np.abs(queries) ** 2).sum(-1, keepdims=True))
    return queries, keys


def _shared_scores(queries: Any, keys: Any, layer: Layer, cells: Cells) -> tuple[Real, Real]:
    """Products of queries with what keys share, mean over each piece, and their variance within it by rotation."""
    turned = layer.frequencies
    if not turned.size:
        found = np.real(queries @ np.conj(keys).transpose(0, 2, 1))
        return np.take_along_axis(found, np.broadcast_to(cells.group, (len(found), *cells.group.shape)), -1), np.zeros(1)
    if len(turned) < queries.shape[-1]:
        turned = np.append(turned, np.zeros(queries.shape[-1] - len(turned)))
    smooth = np.sinc(cells.width[..., None] * turned / (2 * np.pi))  # mean of a wave over a piece
    turn = (np.exp(1j * cells.distance[..., None] * turned) * smooth).astype(np.complex64)
    lacks = ((1 - smooth**2) / 2).astype(np.float32)
    mean = np.empty((len(queries), *cells.group.shape))
    lost = np.empty_like(mean)
    for s, (query, key) in enumerate(zip(queries.astype(np.complex64), keys.astype(np.complex64), strict=True)):
        product = query[:, None] * np.conj(key)[cells.group]
        mean[s] = np.einsum("rcf,rcf->rc", product.real, turn.real) - np.einsum("rcf,rcf->rc", product.imag, turn.imag)
        lost[s] = np.einsum("rcf,rcf->rc", product.real**2 + product.imag**2, lacks)
    return mean, lost


def _correlations(queries: Any, layer: Layer, groups: Groups, length: Real) -> Real:
    """Cosine of the queries of two rows, turned to the same position: of their scores of a key's own part."""
    first, second = queries[:, 0::2], queries[:, 1::2]
    if layer.frequencies.size:
        turned = np.append(layer.frequencies, np.zeros(queries.shape[-1] - len(layer.frequencies)))
        first = first * np.exp(1j * groups.rows[:, 0, None] * turned)
        second = second * np.exp(1j * groups.rows[:, 1, None] * turned)
    found = np.real(first @ np.conj(second).transpose(0, 2, 1))
    scale = length[:, 0::2, None] * length[:, None, 1::2]
    return np.clip(found / np.maximum(scale, TINY), -1, 1)


def _capped(beta: Real, cap: float) -> Real:
    """By what a soft cap multiplies the deviation of Gaussian scores."""
    z, mass = gauss(40)
    capped = cap * np.tanh(beta[..., None] * z / cap)
    return np.sqrt(capped**2 @ mass) / np.maximum(beta, TINY)


def _bias(plan: Blueprint, cells: Cells, heads: int, rng: np.random.Generator) -> Real:
    """What positions add to scores: ALiBi's slopes, or T5's random numbers for buckets of distances."""
    if plan.alibi:
        slopes = 2.0 ** (-8 * (np.arange(plan.heads) + 1) / plan.heads)
        chosen = slopes[np.arange(heads) * plan.heads // heads]
        return -chosen[:, None, None] * np.abs(cells.distance)
    if plan.position_bias:
        near, far, size = 8, 128, 16
        distance = np.abs(cells.distance)
        log = near + np.log(np.maximum(distance, 1) / near) / np.log(far / near) * (size - near)
        bucket = np.where(distance < near, distance, np.minimum(log, size - 1)).astype(int) + size * (cells.distance < 0)
        table = plan.position_bias * rng.standard_normal((heads, 2 * size))
        return table[:, bucket]
    return np.zeros(1)


def _assemble(  # noqa: PLR0913, PLR0917
    groups: Groups, cells: Cells, mass: Real, even: Real, sharper: Real, correlation: Real, rows: dict[str, Real],
    scatter: Real, centring: Real, heads: int,
) -> Attention:
    """Attention of heads from masses, uniform parts, and by how much weights within them are sharper than uniform."""
    count = len(groups.size)
    seen = np.maximum(cells.visible, 1.0)
    first, second = mass[:, 0::2], mass[:, 1::2]
    density = cells.both / (seen[0::2, None] * seen[None, 1::2])
    common = first[:, :, None] * second[:, None] * density  # of uniform weights within groups
    whole = common.sum(-1)
    log_sharper = np.log(np.maximum(sharper, 1.0))
    boost = correlation[..., None] * (log_sharper[:, 0::2, None] + log_sharper[:, None, 1::2]) / 2
    shared = common * np.exp(boost)
    total = mass.sum(-1)
    square = total[:, 0::2, None] * total[:, None, 1::2]
    shared *= np.minimum(1.0, square / np.maximum(shared.sum(-1), TINY))[..., None]
    uncommon = np.maximum(square - shared.sum(-1), 0) / np.maximum(square - whole, TINY)
    own = even * np.maximum(sharper, 1.0)
    own *= np.minimum(1.0, total**2 / np.maximum(own.sum(-1), TINY))[..., None]
    alone = even.sum(-1)
    apart = np.maximum(total**2 - own.sum(-1), 0) / np.maximum(total**2 - alone, TINY)

    def by_rows(x: Real) -> Real:
        return np.moveaxis(x.reshape(len(x), count, 2, *x.shape[2:]), 2, 1)

    power = own.sum(-1)
    mean, square_mean, left = (
        by_rows(each).mean((0, 1)) for each in (power, power**2 * (1 + scatter), power * centring)
    )
    return Attention(
        mass=by_rows(mass), own=by_rows(own), shared=shared.mean(0),
        uncommon=uncommon, uniform=(common * uncommon[..., None]).mean(0), apart=by_rows(apart),
        flat=by_rows(even * apart[..., None]).mean((0, 1)),
        participation=mean, scatter=np.maximum(square_mean / mean**2 - 1, 0.0) / heads, centring=left / mean,
        **{name: by_rows(each).mean((0, 1)) for name, each in rows.items()},
    )  # fmt: skip


# -- a model -----------------------------------------------------------------------------------------------------------


class _Norm(NamedTuple):
    """A norm at some point: tokens behind it, and by what it multiplies them and their gradients."""

    output: Gram
    scale: Real


class _LayerMoments(NamedTuple):
    """What the way back needs of a layer."""

    attention: Attention
    inputs: Gram  # of attention
    before: Real  # scales of the norms before attention, behind its branch, behind their sum
    behind: Real
    summed: Real
    forward: Gram  # the feed-forward branch's factor of gradients, with the norms around it
    last: Real
    uneven: Real  # mean of 1/power behind attention over one over its mean, as rows differ in their participation
    tied: Real  # the same of those rows' share of the power
    visible: Real  # keys of every group that a row of every group sees, (groups, groups)


def _norm(plan: Blueprint, gram: Gram, *, there: bool = True) -> _Norm:
    """A norm, or nothing."""
    scale = plan.norm_gain / np.sqrt(gram.power + plan.eps) if there else np.ones_like(gram.power)
    return _Norm(gram.scaled(scale), scale)


def entry(plan: Blueprint, groups: Groups, repeats: float) -> Gram:
    """Tokens that enter the first layer; `repeats` is how often two are the same."""
    power = np.full(len(groups.size), plan.embedding_power + plan.position_power + plan.common_power)
    product = np.full((len(power), len(power)), plan.common_power + repeats * plan.embedding_power)
    if plan.first_power is not None:
        power[0] = plan.first_power + plan.position_power
        product[0] = product[:, 0] = 0.0
    gram = Gram(power, product).consistent(groups)
    return _norm(plan, gram, there=plan.entry_norm).output


def recursion(
    plan: Blueprint,
    tokens: int,
    *,
    repeats: float | None = None,
    rate: float | None = None,
    gradients: bool = True,
    seed: int = 0,
) -> dict[str, Real]:
    """Numbers of every layer at initialisation, as :func:`bulkedge.models.initialisation.measuring.measure` has them."""
    rng = np.random.default_rng(seed)
    windows = [layer.window for layer in plan.layers if layer.window is not None]
    groups = Groups.of(tokens, min(windows, default=None), causal=plan.causal)
    stream = entry(plan, groups, 1 / plan.vocabulary if repeats is None else repeats)
    before, both = plan.placement in {"pre", "sandwich"}, plan.placement in {"sandwich", "branch"}
    found: list[dict[str, float]] = []
    moments: list[_LayerMoments] = []
    cells = {id(layer): cells_of(groups, layer, plan) for layer in {id(each): each for each in plan.layers}.values()}
    out = plan.value**2 * plan.width * plan.output**2 * plan.heads * plan.head_dim
    variance = np.outer(stream.power, stream.power) / plan.width  # of products of different tokens
    for layer in plan.layers:
        entering = _norm(plan, stream, there=before)
        heads = attend(plan, layer, groups, cells[id(layer)], entering.output, rng)
        found.append(_numbers(plan, groups, cells[id(layer)], stream, heads))
        heads = heads.without_gap(cells[id(layer)]) if plan.gap_free else heads
        branch = _norm(plan, heads.outputs(entering.output).consistent(groups).times(out), there=both)
        middle = _norm(plan, stream.plus(branch.output).consistent(groups), there=plan.placement == "post")
        variance = _scatter(plan, variance, stream, branch.output, plan.heads * plan.head_dim, middle.scale)
        second = _norm(plan, middle.output, there=before)
        uneven, tied = _uneven(heads, middle.output.power if before and not both else None, branch.output.power)
        forward = feed_forward(plan, second.output, variance * np.outer(second.scale, second.scale) ** 2)
        after = _norm(plan, forward.output, there=both)
        end = _norm(plan, middle.output.plus(after.output).consistent(groups), there=plan.placement == "post")
        variance = _scatter(plan, variance, middle.output, after.output, plan.feed_forward, end.scale)
        stream = end.output
        back = forward.back.scaled(second.scale * after.scale)
        moments.append(
            _LayerMoments(
                heads, entering.output, entering.scale, branch.scale, middle.scale, back, end.scale, uneven, tied,
                cells[id(layer)].visible.reshape(len(groups.size), 2, -1).mean(1),
            )
        )
    if not gradients:
        return {name: np.array([each[name] for each in found]) for name in found[0]}
    last = _norm(plan, stream, there=plan.final_norm)
    size = np.full(len(groups.size), plan.readout**2 * plan.width / tokens**2)
    gradient = Gram(size, np.zeros((len(size), len(size)))).consistent(groups).scaled(last.scale)
    for numbers, each in zip(reversed(found), reversed(moments), strict=True):
        gradient, change = _back(plan, groups, each, gradient, out, rate)
        numbers["gradient"] = float(np.sqrt(groups.size @ gradient.power))
        numbers["score_change"] = change
    return {name: np.array([each[name] for each in found]) for name in found[0]}


def _scatter(plan: Blueprint, variance: Real, stream: Gram, branch: Gram, inner: int, scale: Real) -> Real:
    """Variance of products of different tokens after a branch of finite width is added, and a norm."""
    x, y = stream.power, branch.power
    crossed = np.outer(x, y) + np.outer(y, x) + np.outer(y, y)
    found: Real = variance + crossed / plan.width + np.outer(y, y) / inner
    return found * np.outer(scale, scale) ** 2


def _uneven(heads: Attention, power: Real | None, branch: Real) -> tuple[Real, Real]:
    """How rows of different participation y, log-normal, change the mean of 1/(a + y), and of y/(a + y)."""
    if power is None:
        return np.ones_like(branch), np.ones_like(branch)
    z, mass = gauss(9)
    deviation = np.sqrt(np.log1p(heads.scatter))
    y = np.exp(deviation[:, None] * z - deviation[:, None] ** 2 / 2)
    part = np.clip(branch / power, 0.0, 1.0)[:, None]
    inverse = 1 / (1 - part + part * y)
    return inverse @ mass, (inverse * y) @ mass


def _back(  # noqa: PLR0913, PLR0917
    plan: Blueprint, groups: Groups, at: _LayerMoments, given: Gram, out: float, rate: float | None
) -> tuple[Gram, float]:
    """Gradients before a layer, for those behind it, and by how much its scores change in a first step."""
    given = given.scaled(at.last)
    factor = Gram(at.forward.power * given.power, at.forward.product * given.product)
    through = given.plus(Gram(factor.power * at.tied, factor.product)).consistent(groups).scaled(at.summed)
    given = given.plus(Gram(factor.power * at.uneven, factor.product)).consistent(groups).scaled(at.summed)
    branch = through.scaled(at.behind)
    n, inputs, attention = groups.size, at.inputs, at.attention
    back = attention.back(groups, branch).times(out)
    # scores: the gradient of a query is sum_j A_j (e_j - mean e) k_j, with e_j = g v_j
    unit = inputs.scaled(1 / np.sqrt(inputs.power)) if plan.qk_norm != "none" else inputs
    per = plan.score_deviation**2 * out
    values = np.maximum(inputs.power - inputs.product.diagonal(), 0.0)
    keys_own = np.maximum(unit.power - unit.product.diagonal(), 0.0)
    left = attention.centring
    mean = attention.mass.mean((0, 1))
    spread = (attention.own.mean((0, 1)) @ (values * keys_own)) * left
    # of what groups share, about the mean of each row: sum A A' (G - AG - GA + AGA) K, with A, G and K by groups
    one, two, both = (mean @ each for each in (inputs.product, unit.product, inputs.product * unit.product))
    shared = (both * mean).sum(1) - 2 * (mean * one * two).sum(1) + (one * mean).sum(1) * (two * mean).sum(1)
    spread += np.maximum(shared, 0.0)
    queries = Gram(branch.power * spread, branch.product * (attention.shared @ (values * keys_own))).times(per)
    left = np.sqrt(left)
    keys = attention.back(groups, Gram(branch.power * unit.power, branch.product * unit.product).scaled(left))
    keys = Gram(keys.power * values, np.zeros_like(keys.product)).times(per)
    if plan.qk_norm != "none":
        size = 1 / np.sqrt(inputs.power + plan.eps / (plan.query**2 * plan.width))
        queries, keys = queries.scaled(size), keys.scaled(size)
    change = _score_change(plan, n, inputs, (queries.power, keys.power), at.visible, rate)
    found = given.plus(back.plus(queries).plus(keys).scaled(at.before))
    return found.consistent(groups), change


def _score_change(  # noqa: PLR0913, PLR0917
    plan: Blueprint, size: Real, inputs: Gram, gradients: tuple[Real, Real], visible: Real, rate: float | None
) -> float:
    """Size of the change of scores in Adam's first step over that of the scores, both over all that rows see."""
    if rate is None:
        return float("nan")
    keys = visible.sum(1)
    counted = (size * (1 - 1 / np.maximum(keys, 1.0)))[:, None] * visible  # scores of rows of a group with keys
    relative, axes = 0.0, (1, 0)
    # what a row's query gains is a mean of its keys, and meets these again; both gains raise the same scores
    again = 2 * plan.head_dim / np.maximum(keys, 1.0)[:, None] * np.ones_like(visible)
    for sigma, weight, axis in zip((plan.query, plan.key), gradients, axes, strict=True):
        seen = counted.sum(axis)
        twice = 1 + (counted * again).sum(axis) / np.maximum(seen, TINY)
        # x G = sum_j (x x_j) g_j with independent g_j; the sign of G keeps sqrt(2/pi) of its direction
        squared = inputs.product**2
        aligned = squared @ (size * weight) + (inputs.power**2 - squared.diagonal()) * weight
        along = aligned / np.maximum((size * weight) @ inputs.power, 1e-300)
        step = (rate / sigma) ** 2 * (1 + plan.width * (2 / np.pi) * twice * along / inputs.power)
        relative += float(seen @ step / seen.sum())
    return float(np.sqrt(relative))


def _numbers(plan: Blueprint, groups: Groups, cells: Cells, stream: Gram, heads: Attention) -> dict[str, float]:
    """A layer's numbers, means over rows and heads."""
    n = groups.size
    first = cells.visible.sum(1)
    seen = np.exp(np.log(first).reshape(-1, 2).mean(1))
    # representatives say what rows lack; how many keys the rows see is counted
    keys = _keys(plan, groups.tokens, cells.window)
    keys = keys[keys >= min(FEWEST, keys.max())]
    counted = n * (seen >= min(FEWEST, seen.max()))
    counted = counted / counted.sum()
    unit = stream.scaled(1 / np.sqrt(stream.power))
    own = np.maximum(1 - unit.product.diagonal(), 0.0)
    shared = np.linalg.eigvalsh(np.sqrt(np.outer(n, n)) * unit.product).max()
    noise, ratio = n @ own / n.sum(), n.sum() / plan.width
    edge = noise * (1 + np.sqrt(ratio)) ** 2
    spiked = (shared + noise) * (1 + noise * ratio / shared) if shared > noise * np.sqrt(ratio) else edge
    return {
        "beta": float(np.sqrt(counted @ heads.beta)),
        "entropy": float(np.log(keys).mean() - counted @ (np.log(seen) - heads.entropy)),
        "largest": float(min((1 / keys).mean() / (counted @ (1 / seen)) * (counted @ heads.largest), 1.0)),
        **_singular_values(plan, n, heads),
        "cosine": float((groups.pairs * unit.product).sum() / max(groups.pairs.sum(), 1.0)),
        "token_rank": float(n.sum() / max(spiked, edge)),
        "power": float(n @ stream.power / n.sum()),
    }


@lru_cache(maxsize=64)
def _product_edge(ratio: float) -> float:
    """Largest squared singular value of Q K' for independent entries, over the number of tokens squared."""
    return float(ProductLaw(ratios=(ratio, ratio), scale=1.0).edge)


def _keys(plan: Blueprint, tokens: int, window: int | None) -> Real:
    """Number of keys that every row sees."""
    if not plan.causal:
        return np.full(1, float(tokens))
    return np.minimum(np.arange(1.0, tokens + 1), tokens if window is None else window)


def _singular_values(plan: Blueprint, n: Real, heads: Attention) -> dict[str, float]:
    """Gap and stable rank of attention matrices: of the products of their rows, and a bulk of what rows lack."""
    products = heads.shared.sum(-1)
    products = (products + products.T) / 2
    products[np.diag_indices_from(products)] = np.where(n > 1, products.diagonal(), heads.participation)
    values = np.linalg.eigvalsh(np.sqrt(np.outer(n, n)) * products)[::-1]
    own = np.maximum(heads.participation - products.diagonal(), 0.0)
    total = float(n @ heads.participation)
    noise = float(n @ own / n.sum())
    first = values[0] + noise
    # a term of rank head_dim, linear in the scores, and what is left without structure
    squared = min(float(n @ heads.beta / n.sum()) / n.sum(), noise)
    edge = squared * n.sum() / plan.head_dim * _product_edge(plan.head_dim / float(n.sum())) + 4 * (noise - squared)
    second = max(values[1] if len(values) > 1 else 0.0, edge)
    return {"gap": float(1 - np.sqrt(min(second / first, 1.0))), "rank": float(total / first)}
