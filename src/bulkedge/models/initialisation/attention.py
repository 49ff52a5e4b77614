"""Attention of a few random heads between groups of positions: what rows look like, and what they pass on and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bulkedge.heads.softmax import SHARPEST
from bulkedge.models.initialisation.blueprint import Blueprint, LayerPlan
from bulkedge.models.initialisation.moments import GROUPS, TINY, GroupMoments, Groups, gauss, row_tables
from bulkedge.support.arrays import Real

HEADS = 16  # sampled in every layer


class Cells(NamedTuple):
    """What the rows see, in pieces: (rows, cells); and counts by group."""

    group: Any
    number: Real  # of keys; zero for what is no cell
    distance: Real  # of the row from the middle of the piece
    width: Real
    visible: Real  # keys of every group that a row sees, (rows, groups)
    both: Real  # keys of a group that two rows see, (groups, groups, groups)
    window: int | None


def cells_of(groups: Groups, layer: LayerPlan, plan: Blueprint) -> Cells:
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
        return np.maximum(np.minimum(edges[1:], last[..., None]) - np.maximum(edges[:-1], first[..., None]), 0).astype(
            float
        )

    both = seen(np.maximum(lows[0::2, None], lows[None, 1::2]), np.minimum(highs[0::2, None], highs[None, 1::2]))
    return Cells(group, count, distance, np.maximum(count, 1.0), seen(lows, highs), both, layer.window)


@dataclass(frozen=True, eq=False)
class SampledHeads:
    """Attention of sampled heads between groups; arrays begin with heads, then with two rows a group."""

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

    def without_gap(self, cells: Cells) -> SampledHeads:
        """Attention minus the mean of what each row sees."""
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

    def outputs(self, values: GroupMoments) -> GroupMoments:
        """GroupMoments of attention times values, mean over heads."""
        passed = self.mass @ values.product
        square = (passed * self.mass).sum(-1)
        crossed = passed[:, 0] @ self.mass[:, 1].transpose(0, 2, 1)
        same = values.product.diagonal()
        power = (self.own.mean((0, 1)) @ values.power) + (square * self.apart).mean((0, 1)) - self.flat @ same
        product = self.shared @ values.power + (crossed * self.uncommon).mean(0) - self.uniform @ same
        return GroupMoments(power, product)

    def back(self, groups: Groups, given: GroupMoments) -> GroupMoments:
        """GroupMoments of gradients of the values, for those of the outputs: transposed attention."""
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
        return GroupMoments(power, product / np.maximum(groups.pairs, 1.0)).consistent(groups)


def attend(  # noqa: PLR0913, PLR0917
    plan: Blueprint, layer: LayerPlan, groups: Groups, cells: Cells, inputs: GroupMoments, rng: np.random.Generator
) -> SampledHeads:
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
    mean, here = spread0 * mean, cells.number > 0
    variance = spread0**2 * (length[..., None] ** 2 * own_keys[cells.group] + lost)
    portion = cells.number / cells.number.sum(-1, keepdims=True)
    centre = (portion * mean).sum(-1, keepdims=True)
    total = (portion * (variance + (mean - centre) ** 2)).sum(-1)
    shrink: Real
    if plan.softcap is not None:
        shrink = _capped(np.sqrt(total), plan.softcap)[..., None]
        mean, variance, total = mean * shrink, variance * shrink**2, total * shrink[..., 0] ** 2
    logits = np.where(
        here,
        np.log(np.maximum(cells.number, 1.0)) + mean + variance / 2 + _bias(plan, cells, len(queries), rng),
        -np.inf,
    )
    highest = logits.max(-1, keepdims=True)
    weights = np.exp(logits - highest)
    whole = weights.sum(-1, keepdims=True)
    weights = weights / whole
    flat = weights**2 / np.maximum(cells.number, 1.0)
    # keys of groups of one are known: their weights are as they are. Of all others, what they share is known
    several = here & (groups.size > 1)[cells.group]
    known = (flat * ~several).sum(-1)
    part, rest = (weights * several).sum(-1), np.maximum((flat * several).sum(-1), TINY**2)
    keys_seen = np.maximum(part**2 / rest, 1.0)
    spread = np.minimum(np.sqrt((weights * several * variance).sum(-1) / np.maximum(part, TINY)), SHARPEST)
    tables, at = row_tables(), np.log(keys_seen)
    entropy = part * (tables.entropy.ev(spread, at) - at)
    entropy = entropy - (weights * np.log(np.maximum(weights, 1e-300) / np.maximum(cells.number, 1.0))).sum(-1)
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
        groups, cells, mass, even, sharper, _correlations(queries, layer, groups, length),
        {"beta": total, "entropy": np.maximum(entropy, 0.0), "largest": largest},
        scatter, centring, plan.heads,
    )  # fmt: skip


def _centred(weights: Real, flat: Real, several: Any, cells: Cells) -> Real:
    """Share of the squared weights of known keys that is left where a row's mean is taken away."""
    alone = np.where(several, 0.0, weights)
    square = (flat * ~several).sum(-1)
    cube = (alone**3 / np.maximum(cells.number, 1.0) ** 2).sum(-1)
    found: Real = np.clip(1 + flat.sum(-1) - 2 * cube / np.maximum(square, TINY), 0.0, 1.0)
    return found


def _sample(plan: Blueprint, unit: GroupMoments, rng: np.random.Generator) -> tuple[Any, Any]:
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


def _shared_scores(queries: Any, keys: Any, layer: LayerPlan, cells: Cells) -> tuple[Real, Real]:
    """Products of queries with what keys share, mean over each piece, and their variance within it by rotation."""
    turned = layer.frequencies
    if not turned.size:
        found = np.real(queries @ np.conj(keys).transpose(0, 2, 1))
        return np.take_along_axis(found, np.broadcast_to(cells.group, (len(found), *cells.group.shape)), -1), np.zeros(
            1
        )
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


def _correlations(queries: Any, layer: LayerPlan, groups: Groups, length: Real) -> Real:
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
        bucket = np.where(distance < near, distance, np.minimum(log, size - 1)).astype(int) + size * (
            cells.distance < 0
        )
        table = plan.position_bias * rng.standard_normal((heads, 2 * size))
        return table[:, bucket]
    return np.zeros(1)


def _assemble(  # noqa: PLR0913, PLR0917
    groups: Groups,
    cells: Cells,
    mass: Real,
    even: Real,
    sharper: Real,
    correlation: Real,
    rows: dict[str, Real],
    scatter: Real,
    centring: Real,
    heads: int,
) -> SampledHeads:
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
    return SampledHeads(
        mass=by_rows(mass), own=by_rows(own), shared=shared.mean(0),
        uncommon=uncommon, uniform=(common * uncommon[..., None]).mean(0), apart=by_rows(apart),
        flat=by_rows(even * apart[..., None]).mean((0, 1)),
        participation=mean, scatter=np.maximum(square_mean / mean**2 - 1, 0.0) / heads, centring=left / mean,
        **{name: by_rows(each).mean((0, 1)) for name, each in rows.items()},
    )  # fmt: skip
