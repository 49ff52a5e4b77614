"""What moments of queries and keys say of all rows of an attention, at a cost that is linear in the tokens.

Scores of a row are taken as Gaussian about a mean of their own in each of sixteen blocks of neighbouring keys, with
one covariance of keys within blocks. Two kinds of keys are kept out of the Gaussian and scored one by one: the few of
largest mean score (sinks, mostly), and those near the row (of its chunk of sixteen tokens and the chunks beside it).
With ``s_b`` the scores of the blocks' means, ``n_b`` the keys of a block that the row sees, ``v`` the variance within
blocks and ``s_e`` the scores of the keys that are scored one by one, the shares of a row are

    p = softmax([s_b + log n_b + gain(v), s_e]),    gain(v) = v/2 for rows that are not frozen,

``exp(h)``, with ``h`` the entropy of the smooth part ``n_b exp(s_b)``, is the number of keys on which the Gaussian part
lives, and the entropy is that of the shares, with ``log n_b`` added for a block, less what the Gaussian takes from
``h``. The gain is the logarithm of the mean of ``exp(score)`` over Gaussian scores of variance ``v``.

Entropy and gain of Gaussian rows are tabulated: both are smooth in ``log(1 + beta)``, ``beta`` the standard deviation
of the scores, and in the logarithm of the number of keys, from uniform rows through freezing to rows on one key. The
integrals of :func:`bulkedge.heads.softmax.gibbs_of_gaussians` are refined by cubics to a grid on which straight lines
do, so that every row may have a spread and a number of keys of its own and nothing leaves the device.

Arrays are (layers, batch, key heads, heads that share them, ...).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.interpolate import RectBivariateSpline
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from bulkedge.heads.softmax import transforms
from bulkedge.models.watching.visible_blocks import HIDDEN, NEAR, VisibleBlocks
from bulkedge.support.arrays import Real
from bulkedge.visibility import Visibility

SINGLE = 8  # most keys that are scored one by one; at most an eighth of all
AT_ONCE = 2**27  # entries of the queries that are taken at a time
# largest spread in the table; beyond, frozen rows have the entropy c/beta + d/beta**2, fitted at FAR
SHARPEST, FAR = 12.0, 24.0
SPREADS, COUNTS = 41, 21  # nodes, evenly in log(1 + beta) up to SHARPEST, and at powers of two of the keys


class KeyBlocks(NamedTuple):
    """Keys of heads: single ones, and blocks of the others."""

    centred: Tensor  # (layers, batch, heads, keys, dim): keys minus their mean
    left: Tensor  # (layers, batch, heads, keys): one for keys of blocks, zero for single and unseen ones
    chosen: Tensor  # (layers, batch, heads, single): numbers of the single keys
    points: Tensor  # (layers, batch, heads, blocks + single, dim): means of blocks and single keys, minus that of all
    counts: Tensor  # (layers, batch, heads, blocks): keys of the blocks that are not single
    within: Tensor  # (layers, batch, heads, dim, dim): covariance within blocks
    covariance: Tensor  # the same of all keys


def moment_summary(
    query: Tensor, key: Tensor, scale: float, visible: Visibility, seen: VisibleBlocks
) -> dict[str, Tensor]:
    """What moments say of the heads of some layers."""
    weights = None if seen.rows is None else _with_groups(seen.rows / seen.rows.sum(-1, keepdim=True).clamp(min=1))
    mean = query.mean(-2, keepdim=True) if weights is None else weights[..., None, :] @ query
    keys = _split_keys(key, mean, seen)
    size = seen.rows.expand(query.shape[1], -1, -1).sum((0, 2)) if seen.rows is not None else None
    found = _row_means(query, keys, scale, visible, seen)
    rest = query - mean
    if seen.rows is not None:
        rest = rest * _with_groups(seen.rows)[..., None]
    total = query.shape[1] * query.shape[-2] if size is None else size[None, :, None, None, None]
    covariance = (rest.mT @ rest).sum(1) * (scale**2 / total)
    lengths = torch.linalg.vector_norm(query, dim=-1), torch.linalg.vector_norm(key, dim=-1)
    if seen.rows is not None:
        lengths = lengths[0] * _with_groups(seen.rows), lengths[1]
    if seen.real is not None:
        lengths = lengths[0], lengths[1] * seen.real
    bound = scale * lengths[0].amax((1, 4)) * lengths[1].amax((1, 3))[..., None]
    counts = seen.counts.amax((0, 2))[None, :, None].expand_as(bound)
    return found | _couplings(covariance, keys.covariance.mean(1)) | {"logit_bound": bound, "keys": counts}


def _with_groups(each: Tensor) -> Tensor:
    """(batch, heads, ...) as (layers, batch, key heads, group, ...); where heads differ, each has its own keys."""
    return each[None, :, :, None]


def _split_keys(key: Tensor, query: Tensor, seen: VisibleBlocks) -> KeyBlocks:
    """Split keys; ``query`` is the mean query of each head."""
    if seen.real is None:
        number: Tensor | float = float(key.shape[-2])
        centred = key - key.mean(-2, keepdim=True)
    else:
        number = seen.real.sum(-1).clamp(min=1)
        centred = (key - (seen.real[..., None, :] @ key) / number[..., None, None]) * seen.real[..., None]
    liking = (query[..., 0, :] @ centred.mT).amax(3)
    if seen.real is not None:
        liking = torch.where(seen.real > 0, liking, HIDDEN)
    chosen = liking.topk(max(1, min(SINGLE, key.shape[-2] // 8)), dim=-1).indices
    single = centred.gather(-2, chosen[..., None].expand(*chosen.shape, key.shape[-1]))
    left = torch.ones_like(liking).scatter_(-1, chosen, 0.0)
    if seen.real is not None:
        left = left * seen.real
    members = left[..., None, :] * seen.member
    counts = members.sum(-1)
    means = (members @ centred) / counts.clamp(min=1)[..., None]
    total = centred.mT @ centred
    taken = torch.cat([means * counts.sqrt()[..., None], single], dim=-2)
    within = (total - taken.mT @ taken) / counts.sum(-1).clamp(min=1)[..., None, None]
    everything = total / (number if isinstance(number, float) else number[..., None, None])
    return KeyBlocks(centred, left, chosen, torch.cat([means, single], dim=-2), counts, within, everything)


class _RowTotals(NamedTuple):
    """Sums over rows: of four numbers (4, layers, key heads, group), and of shares of the single keys by sequence."""

    values: Tensor
    shares: Tensor


def _row_means(
    query: Tensor, keys: KeyBlocks, scale: float, visible: Visibility, seen: VisibleBlocks
) -> dict[str, Tensor]:
    """Means over rows; rows are taken in parts if there are very many."""
    right = torch.cat([keys.within, keys.points.mT], dim=-1)[..., None, :, :] * scale
    each = query[..., :1, :].numel()
    step = max(1, AT_ONCE // (each * NEAR)) * NEAR
    found = []
    for start in range(0, query.shape[-2], step):
        part = slice(start, min(start + step, query.shape[-2]))
        some = seen._replace(
            part=seen.part[..., part, :],
            near=None if seen.near is None else seen.near[..., part, :],
            counts=seen.counts[..., part],
            rows=None if seen.rows is None else seen.rows[..., part],
        )
        found.append(_row_totals(query[..., part, :], keys, right, scale, (visible, some, start)))
    sums = found[0] if len(found) == 1 else _RowTotals(*(torch.stack(one).sum(0) for one in zip(*found, strict=True)))
    if seen.rows is None:
        rows: Tensor | int = query.shape[-2]
        total: Tensor | int = query.shape[1] * query.shape[-2]
    else:
        own = seen.rows.expand(query.shape[1], -1, -1).sum(-1)
        rows, total = own.clamp(min=1)[None, :, :, None, None], own.sum(0)[None, :, None]
    beta_square, beta, entropy, logit = sums.values / total
    liked, place = (sums.shares / rows).max(-1)
    sequence = liked.argmax(1, keepdim=True)
    place = keys.chosen[..., None, :].expand(*liked.shape, -1).gather(-1, place[..., None])[..., 0].gather(1, sequence)
    return {
        "beta": beta_square.sqrt(),
        "beta_mean": beta,
        "expected_entropy": entropy,
        "expected_logit": logit,
        "expected_popular": liked.mean(1),
        "expected_position": place[:, 0] + 0 * beta,
    }


def _row_totals(
    query: Tensor, keys: KeyBlocks, right: Tensor, scale: float, where: tuple[Visibility, VisibleBlocks, int]
) -> _RowTotals:
    """Sums over some rows, the first of which is ``where[2]``."""
    visible, seen, start = where
    dim, blocks = query.shape[-1], keys.counts.shape[-1]
    product = query @ right
    variance = ((product[..., :dim] * query).sum(-1) * scale).clamp(min=0)
    scores, bias = product[..., dim:], _bias(keys, visible, seen, start)
    if seen.near is not None:
        near = _near(query, keys.centred, start, seen.near.shape[-1]) * scale
        scores = torch.cat([scores, near], dim=-1)
    amounts = _key_counts(keys, seen) if visible.alike else bias.exp()
    values, shares = _row_values(variance, scores, bias, amounts, blocks)
    logit = values[1] * _with_groups(seen.counts).clamp(min=1).log().mul(2).sqrt()
    found, single = torch.stack([*values, logit]), shares[..., blocks : blocks + keys.chosen.shape[-1]]
    if seen.rows is not None:
        weight = _with_groups(seen.rows)
        found, single = found * weight, single * weight[..., None]
    return _RowTotals(found.sum((2, 5)), single.sum(-2))


def _near(query: Tensor, keys: Tensor, start: int, width: int) -> Tensor:
    """Products of queries with the keys near them: (layers, batch, key heads, group, rows, width)."""
    rows, group = query.shape[-2], query.shape[3]
    chunks = -(-rows // NEAR)
    if rows % NEAR:
        query = pad(query, (0, 0, 0, chunks * NEAR - rows))
    beside = query.reshape(*query.shape[:4], chunks, NEAR, -1).transpose(3, 4).flatten(4, 5)
    found = beside @ _windows(keys, -2, start, chunks, width)
    found = found.reshape(*found.shape[:4], group, NEAR, width)
    return found.transpose(3, 4).flatten(4, 5)[..., :rows, :]


def _windows(array: Tensor, dim: int, start: int, chunks: int, width: int) -> Tensor:
    """What is near each chunk of rows, from that of a row on: the axis becomes one of chunks, and one at last."""
    length = width + (chunks - 1) * NEAR
    after = max(0, start - NEAR + length - array.shape[dim])
    filled = pad(array, (*(0, 0) * (-1 - dim), NEAR, after))
    return filled.narrow(dim, start, length).unfold(dim, width, NEAR)


def _bias(keys: KeyBlocks, visible: Visibility, seen: VisibleBlocks, start: int) -> Tensor:
    """Logarithms of the keys that rows see of each block, and zero or :data:`HIDDEN` for keys that are scored."""
    # Of shape (layers, batch, key heads, 1, rows, blocks + single + near).
    blocks = torch.where(keys.counts > 0, keys.counts.log(), HIDDEN)[..., None, :] + seen.part
    rows = seen.part.shape[-2]
    single = torch.where(visible.sees(keys.chosen, start, rows), 0.0, HIDDEN)
    if seen.real is not None:  # of few keys hidden ones are chosen too
        real = seen.real.expand(*keys.chosen.shape[:3], -1).gather(-1, keys.chosen)
        single = torch.where(real[..., None, :] > 0, single, HIDDEN)
    found = [blocks.clamp(min=HIDDEN), single]
    if seen.near is not None:  # single keys are near no row
        chunks, width = -(-rows // NEAR), seen.near.shape[-1]
        left = _windows(keys.left, -1, start, chunks, width).repeat_interleave(NEAR, dim=-2)[..., :rows, :]
        found.append(torch.where(left > 0, seen.near, HIDDEN))
    return torch.cat(found, dim=-1)[..., None, :, :]


def _key_counts(keys: KeyBlocks, seen: VisibleBlocks) -> Tensor:
    """Keys of blocks, and single ones, where all rows see the same: with these the variance of a row is exact."""
    single = torch.ones_like(keys.chosen, dtype=keys.counts.dtype)
    if seen.real is not None:
        single = seen.real.expand(*keys.chosen.shape[:3], -1).gather(-1, keys.chosen)
    return torch.cat([keys.counts, single], dim=-1)[..., None, None, :]


def _row_values(
    inner: Tensor, scores: Tensor, bias: Tensor, amounts: Tensor, blocks: int
) -> tuple[list[Tensor], Tensor]:
    """Variance, spread and entropy of rows, and their shares of blocks and scored keys."""
    # inner (..., rows) is the variance within blocks; scores and bias are (..., rows, blocks + scored). amounts are the
    # keys that each column stands for in the variance; it may leave out the last columns.
    others, number = amounts[..., :blocks].sum(-1), amounts.sum(-1).clamp(min=1)
    far = bias[..., :blocks].exp().sum(-1)
    counted = scores[..., : amounts.shape[-1]]
    weighted = counted * amounts
    centre = weighted.sum(-1) / number
    variance = ((weighted * counted).sum(-1) + inner * others) / number - centre.square()
    spread = inner.sqrt()
    logits = scores + bias
    logits[..., :blocks] += gaussian_rows(spread, far.clamp(min=1).log()).gain[..., None]
    shares = logits.softmax(-1)
    terms = torch.addcmul(torch.special.entr(shares), shares, bias)
    smooth = shares[..., :blocks].sum(-1).clamp(min=1e-30)
    inside = (terms[..., :blocks].sum(-1) / smooth + smooth.log()).clamp(min=0)
    entropy = terms.sum(-1) - smooth * (inside - gaussian_rows(spread, inside).entropy)
    variance = variance.clamp(min=0)
    return [variance, variance.sqrt(), entropy], shares


def _couplings(queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
    """Effective dimension and largest squared coupling, from covariances (layers, key heads, group, dim, dim)."""
    product = queries @ keys[:, :, None]
    trace = _trace(product)
    dimension = trace.square() / (product * product.mT).sum((-2, -1))
    power = product
    # The power 2**6 gives a lower bound, right to one percent unless several couplings nearly share the place.
    for _ in range(6):  # eigenvalues are not negative, so that the trace bounds them
        power = power / _trace(power)[..., None, None]
        power = power @ power
    return {"dimension": dimension, "coupling": (product * power.mT).sum((-2, -1)) / _trace(power)}


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


# -- rows of Gaussian scores -------------------------------------------------------------------------------------------


class GaussianRows(NamedTuple):
    """Means over rows of Gaussian scores, in nats."""

    entropy: Tensor  # of the weights of a row
    gain: Tensor  # logarithm of the mean of exp(score) over the keys of a row: beta**2/2 as long as rows are not frozen


def gaussian_rows(spread: Tensor, log_count: Tensor) -> GaussianRows:
    """Rows of Gaussian scores, interpolated on their device: one launch and some arithmetic."""
    last_spread, last_count = float(np.log1p(SHARPEST)), float((COUNTS - 1) * np.log(2.0))
    across = spread.log1p().mul(2 / last_spread).sub(1)
    along = log_count.mul(2 / last_count).sub(1).expand_as(spread)
    places = torch.stack([along.reshape(-1), across.reshape(-1)], dim=-1)[None, :, None]
    found = grid_sample(_device_table(spread.device)[None], places, padding_mode="border", align_corners=True)
    inside, score, frozen = found[0, :, :, 0].reshape(3, *spread.shape)
    # beyond the table c/beta + d/beta**2, with the d that makes it continuous; inside it the ratio is one
    ratio = SHARPEST / spread.clamp(min=SHARPEST)
    entropy = ratio * torch.lerp(frozen / SHARPEST, inside, ratio)
    return GaussianRows(entropy, torch.addcmul(entropy, spread, score) - log_count)


@cache
def _device_table(device: torch.device) -> Tensor:
    return torch.tensor(entropy_table(), dtype=torch.float32).to(device, non_blocking=True)


@cache
def entropy_table() -> Real:
    """Entropy, mean score and frozen limit of rows of Gaussian scores, on a fine grid from zero in both directions."""
    spreads = np.expm1(np.linspace(0.0, np.log1p(SHARPEST), SPREADS))
    rows = []
    for spread in [*spreads.tolist(), FAR]:
        shared = transforms(spread, 2 ** (COUNTS - 1))  # for rows of all numbers of keys
        sums = [shared.sums(2**j) for j in range(COUNTS)]
        rows.append([(each.log_sum - spread * each.score, each.score) for each in sums])
    table = np.array(rows)
    table[:, 0] = 0.0  # a row of one key, of which rounding leaves a trace
    places = np.arange(SPREADS), np.arange(COUNTS)
    fine = [np.linspace(0.0, each[-1], each[-1] * 12 + 1) for each in places]
    entropies, scores = (np.maximum(RectBivariateSpline(*places, table[:-1, :, k])(*fine), 0.0) for k in (0, 1))
    last, far = SHARPEST * entropies[-1], FAR * np.interp(fine[1], places[1], table[-1, :, 0])
    frozen = (FAR * far - SHARPEST * last) / (FAR - SHARPEST)
    found: Real = np.stack([entropies, scores, np.broadcast_to(frozen, entropies.shape)])
    found.flags.writeable = False
    return found
