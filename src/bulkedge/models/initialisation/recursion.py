"""A configuration at initialisation, layer by layer, without weights: second moments of tokens, and of their gradients.

At large width, tokens enter a layer only by their Gram matrix, and gradients leave it only by theirs. Positions are put
into some twenty groups, log-spaced from the start, within which tokens are alike: of a group, the power of a token and
the products of different tokens are known. What tokens of a group share makes scores that a few sampled heads have
explicitly, rotary positions included; what each has to itself is a random-energy model, of which entropy and
participation are known at any number of keys (:mod:`bulkedge.heads.softmax`). So nothing costs more for more tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bulkedge.laws.classical.product import ProductLaw
from bulkedge.models.initialisation.attention import Cells, SampledHeads, attend, cells_of
from bulkedge.models.initialisation.blueprint import Blueprint
from bulkedge.models.initialisation.moments import TINY, GroupMoments, Groups, feed_forward, gauss
from bulkedge.support.arrays import Real

FEWEST = 16  # keys of a row that counts for beta and entropy


class _Normed(NamedTuple):
    """A norm at some point: tokens behind it, and by what it multiplies them and their gradients."""

    output: GroupMoments
    scale: Real


class _LayerMoments(NamedTuple):
    """What the way back needs of a layer."""

    attention: SampledHeads
    inputs: GroupMoments  # of attention
    before: Real  # scales of the norms before attention, behind its branch, behind their sum
    behind: Real
    summed: Real
    forward: GroupMoments  # the feed-forward branch's factor of gradients, with the norms around it
    last: Real
    uneven: Real  # mean of 1/power behind attention over one over its mean, as rows differ in their participation
    tied: Real  # the same of those rows' share of the power
    visible: Real  # keys of every group that a row of every group sees, (groups, groups)


def _norm(plan: Blueprint, gram: GroupMoments, *, there: bool = True) -> _Normed:
    """A norm, or nothing."""
    scale = plan.norm_gain / np.sqrt(gram.power + plan.eps) if there else np.ones_like(gram.power)
    return _Normed(gram.scaled(scale), scale)


def entry(plan: Blueprint, groups: Groups, repeats: float) -> GroupMoments:
    """Tokens that enter the first layer; `repeats` is how often two are the same."""
    power = np.full(len(groups.size), plan.embedding_power + plan.position_power + plan.common_power)
    product = np.full((len(power), len(power)), plan.common_power + repeats * plan.embedding_power)
    if plan.first_power is not None:
        power[0] = plan.first_power + plan.position_power
        product[0] = product[:, 0] = 0.0
    gram = GroupMoments(power, product).consistent(groups)
    return _norm(plan, gram, there=plan.entry_norm).output


def recursion(  # noqa: PLR0913
    plan: Blueprint,
    tokens: int,
    *,
    repeats: float | None = None,
    rate: float | None = None,
    gradients: bool = True,
    seed: int = 0,
) -> dict[str, Real]:
    """Numbers of every layer at initialisation, as ``measure`` has them of an instance."""
    rng = np.random.default_rng(seed)
    windows = [layer.window for layer in plan.layers if layer.window is not None]
    groups = Groups.of(tokens, min(windows, default=None), causal=plan.causal)
    stream = entry(plan, groups, 1 / plan.vocabulary if repeats is None else repeats)
    before, both = plan.placement in {"pre", "sandwich"}, plan.placement in {"sandwich", "branch"}
    found: list[dict[str, float]] = []
    moments: list[_LayerMoments] = []
    cells = {id(layer): cells_of(groups, layer, plan) for layer in {id(each): each for each in plan.layers}.values()}
    out = plan.value**2 * plan.width * plan.output**2 * plan.heads * plan.head_dim
    variance: Real = np.outer(stream.power, stream.power) / plan.width  # of products of different tokens
    for layer in plan.layers:
        entering = _norm(plan, stream, there=before)
        heads = attend(plan, layer, groups, cells[id(layer)], entering.output, rng)
        found.append(_numbers(plan, groups, cells[id(layer)], stream, heads))
        heads = heads.without_gap(cells[id(layer)]) if plan.gap_free else heads
        branch = _norm(plan, heads.outputs(entering.output).consistent(groups).times(out), there=both)
        middle = _norm(plan, stream.plus(branch.output).consistent(groups), there=plan.placement == "post")
        variance = _scatter(
            plan, variance, stream, branch.output, (plan.shared_heads or plan.heads) * plan.head_dim, middle.scale
        )
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
                heads,
                entering.output,
                entering.scale,
                branch.scale,
                middle.scale,
                back,
                end.scale,
                uneven,
                tied,
                cells[id(layer)].visible.reshape(len(groups.size), 2, -1).mean(1),
            )
        )
    if not gradients:
        return {name: np.array([each[name] for each in found]) for name in found[0]}
    last = _norm(plan, stream, there=plan.final_norm)
    size = np.full(len(groups.size), plan.readout**2 * plan.width / tokens**2)
    gradient = GroupMoments(size, np.zeros((len(size), len(size)))).consistent(groups).scaled(last.scale)
    for numbers, each in zip(reversed(found), reversed(moments), strict=True):
        gradient, change = _back(plan, groups, each, gradient, out, rate)
        numbers["gradient"] = float(np.sqrt(groups.size @ gradient.power))
        numbers["score_change"] = change
    return {name: np.array([each[name] for each in found]) for name in found[0]}


def _scatter(  # noqa: PLR0913, PLR0917
    plan: Blueprint, variance: Real, stream: GroupMoments, branch: GroupMoments, inner: int, scale: Real
) -> Real:
    """Variance of products of different tokens after a branch of finite width is added, and a norm."""
    x, y = stream.power, branch.power
    crossed = np.outer(x, y) + np.outer(y, x) + np.outer(y, y)
    found: Real = variance + crossed / plan.width + np.outer(y, y) / inner
    return found * np.outer(scale, scale) ** 2


def _uneven(heads: SampledHeads, power: Real | None, branch: Real) -> tuple[Real, Real]:
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
    plan: Blueprint, groups: Groups, at: _LayerMoments, given: GroupMoments, out: float, rate: float | None
) -> tuple[GroupMoments, float]:
    """Gradients before a layer, for those behind it, and by how much its scores change in a first step."""
    given = given.scaled(at.last)
    factor = GroupMoments(at.forward.power * given.power, at.forward.product * given.product)
    through = given.plus(GroupMoments(factor.power * at.tied, factor.product)).consistent(groups).scaled(at.summed)
    given = given.plus(GroupMoments(factor.power * at.uneven, factor.product)).consistent(groups).scaled(at.summed)
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
    queries = GroupMoments(branch.power * spread, branch.product * (attention.shared @ (values * keys_own))).times(per)
    left = np.sqrt(left)
    keys = attention.back(groups, GroupMoments(branch.power * unit.power, branch.product * unit.product).scaled(left))
    keys = GroupMoments(keys.power * values, np.zeros_like(keys.product)).times(per)
    if plan.qk_norm != "none":
        size = 1 / np.sqrt(inputs.power + plan.eps / (plan.query**2 * plan.width))
        queries, keys = queries.scaled(size), keys.scaled(size)
    change = _score_change(plan, n, inputs, (queries.power, keys.power), at.visible, rate)
    found = given.plus(back.plus(queries).plus(keys).scaled(at.before))
    return found.consistent(groups), change


def _score_change(  # noqa: PLR0913, PLR0917
    plan: Blueprint, size: Real, inputs: GroupMoments, gradients: tuple[Real, Real], visible: Real, rate: float | None
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


def _numbers(
    plan: Blueprint, groups: Groups, cells: Cells, stream: GroupMoments, heads: SampledHeads
) -> dict[str, float]:
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


def _singular_values(plan: Blueprint, n: Real, heads: SampledHeads) -> dict[str, float]:
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
