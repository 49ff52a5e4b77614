"""What one attention says of its heads: moments of all rows, and a few rows exactly, without leaving the device.

Nothing here waits for the device (no number comes to the host), nothing is differentiated, and no matrix of scores of
all rows is formed. With queries that include the scale, the scores of row ``i`` spread by ``sqrt(q_i' C q_i)``, where
``C`` is the covariance of the keys that the row sees. Where that depends on the row, rows are taken in
:data:`BLOCKS` blocks, each with the covariance of the keys that any of its rows sees.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bulkedge.heads.entropies import COUNT_STEP, COUNTS, HOTTEST, SPREAD_STEP, SPREADS, entropy_table

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = {
    "beta": "spread of a row's scores, root of its mean square over rows",
    "beta_mean": "spread of a row's scores, mean over rows",
    "keys": "keys that the longest row sees",
    "expected_entropy": "mean entropy of all rows, from their spreads (nats)",
    "expected_logit": "how far the largest score of a row should be above its mean: beta sqrt(2 log keys), rows' mean",
    "logit_bound": "largest product of the lengths of a query and a key, with the scale",
    "dimension": "effective dimension: (sum of squared couplings)**2 over the sum of their fourth powers",
    "entropy": "mean entropy of the rows that are read exactly (nats)",
    "predicted_entropy": "what Gaussian scores of the spreads of these rows have (nats)",
    "uniform_entropy": "mean logarithm of the number of keys of these rows",
    "logit": "largest score in these rows",
    "logit_excess": "how far the largest score of these rows is above the row's mean, rows' mean",
    "first_mass": "share of these rows' attention on the first key",
    "popular_mass": "share on the key that gets most, mean over sequences",
    "popular_uniform": "the same if the rows were uniform",
}
"""What is read of each head, in the order of the rows of :func:`readings`."""
BLOCKS = 8
"""Blocks of rows with a covariance of keys of their own, where rows see different keys."""
SEQUENCES = 8
"""Most sequences of a batch of which rows are read exactly."""


class Visible(NamedTuple):
    """Who may look at whom: what the mask hides, the future if it is causal, and what is outside of the window."""

    mask: Tensor | None
    """Booleans, or numbers that are added to the scores; broadcasts to (batch, heads, rows, keys)."""
    causal: bool
    window: int | None
    """Number of keys before and with its own that a row sees; None for all."""
    rows: int
    keys: int

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """First row and the row after the last of each block; one block if all rows see the same."""
        mask = self.mask
        alike = mask is None or mask.shape[-2] == 1 or mask.stride(-2) == 0
        count = 1 if alike and not self.causal and self.window is None else min(BLOCKS, self.rows)
        ends = [self.rows * each // count for each in range(count + 1)]
        return list(pairwise(ends))

    def bias(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What is added to the scores of some rows, and which keys these see.

        Parameters
        ----------
        rows : Tensor of shape (some,)
            Numbers of rows.

        Returns
        -------
        bias, seen : Tensor
            Numbers (zero where a key is hidden) and booleans; both broadcast to (batch, heads, some, keys).
        """
        place = rows[:, None] + (self.keys - self.rows)
        other = torch.arange(self.keys, device=rows.device)
        seen = torch.ones((1, 1, len(rows), self.keys), dtype=torch.bool, device=rows.device)
        if self.causal:
            seen = seen & (other <= place)
        if self.window is not None:
            seen = seen & (other > place - self.window)
        bias = torch.zeros((), device=rows.device)
        if self.mask is not None:
            mask = self.mask if self.mask.shape[-2] == 1 else self.mask.index_select(-2, rows)
            if mask.is_floating_point():
                seen = seen & (mask > torch.finfo(mask.dtype).min / 2)  # transformers writes the least number
                bias = torch.where(mask > torch.finfo(mask.dtype).min / 2, mask.float(), 0.0)
            else:
                seen = seen & mask.bool()
        return bias, seen


def readings(query: Tensor, key: Tensor, scale: float, sight: Visible, rows: int) -> Tensor:
    """Read the heads of an attention.

    Parameters
    ----------
    query : Tensor of shape (batch, heads, rows, dim)
        Queries, without the scale; of any floating type.
    key : Tensor of shape (batch, key heads, keys, dim)
        Keys, which several heads may share.
    scale : float
        Factor of the scores.
    sight : Visible
        Who may look at whom.
    rows : int
        Rows of a sequence that are read exactly, evenly spaced; all, if there are fewer.

    Returns
    -------
    Tensor of shape (len(NAMES), heads)
        In single precision, on the device of the queries; nan for heads without a row that sees two keys.
    """
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        query, key = query.detach().float() * scale, key.detach().float()
        if sight.mask is not None and sight.mask.ndim == 4 and sight.mask.shape[1] > 1:  # keys by the head
            key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        grouped = query.reshape(query.shape[0], key.shape[1], -1, *query.shape[2:])
        every = _moments(grouped, key, sight)
        some = _exact(grouped[:SEQUENCES], key[:SEQUENCES], sight, rows)
        return torch.stack([(every | some)[name] for name in NAMES])


class _Rows(NamedTuple):
    """Of all rows: spreads, keys seen, and whether they count; (batch, key heads, group, rows) or broadcast to it."""

    spread: Tensor
    counts: Tensor
    real: Tensor


def _moments(query: Tensor, key: Tensor, sight: Visible) -> dict[str, Tensor]:
    """What the moments of the keys say of all rows; ``query`` is (batch, key heads, group, rows, dim)."""
    found, covariance, real = _spreads(query, key, sight)
    spread, weight = found.spread, found.real.expand_as(found.spread).float()
    total = weight.sum((0, 3))

    def mean(values: Tensor) -> Tensor:
        return ((values * weight).sum((0, 3)) / total).flatten()

    # what is left of queries without their mean: their covariance in each head
    centre = (query * weight[..., None]).sum((0, 3), keepdim=True) / total[None, ..., None, None]
    rest = (query - centre) * weight[..., None]
    queries = torch.einsum("bhgrd,bhgre->hgde", rest, rest) / total[..., None, None]
    product = queries @ covariance.mean(0)[:, None]
    trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)
    lengths = (query.norm(dim=-1) * weight).amax((0, 3)), (key.norm(dim=-1) * real).amax((0, 2))
    logs = (2 * found.counts.clamp(min=1).log()).sqrt()
    return {
        "beta": mean(spread**2).sqrt(),
        "beta_mean": mean(spread),
        "keys": found.counts.expand_as(spread).amax((0, 3)).flatten(),
        "expected_entropy": mean(gaussian_entropy(spread, found.counts)),
        "expected_logit": mean(spread * logs),
        "logit_bound": (lengths[0] * lengths[1][:, None]).flatten(),
        "dimension": (trace**2 / (product * product.mT).sum((-2, -1))).flatten(),
    }


def _spreads(query: Tensor, key: Tensor, sight: Visible) -> tuple[_Rows, Tensor, Tensor]:
    """Spreads of all rows, the covariance of all keys (batch, key heads, dim, dim), and which keys anybody sees."""
    seen, counts = zip(*_seen(sight, query.device), strict=True)
    real = torch.as_tensor(sum(each.long() for each in seen)) > 0
    centred = key - key.mean(-2, keepdim=True)
    spreads = []
    covariance = centred.new_zeros(())
    for (low, high), visible in zip(sight.blocks, seen, strict=True):
        covariance = _covariance(centred, visible.float())
        block = query[..., low:high, :]
        spreads.append(((block @ covariance[:, :, None]) * block).sum(-1).clamp(min=0).sqrt())
    count = torch.cat(counts, dim=-1)[:, :, None]
    counted = count >= 2
    if sight.mask is not None and sight.rows == sight.keys:  # the row of a token that nobody sees is padding
        counted = counted & real[:, :, None]
    if len(seen) > 1:
        covariance = _covariance(centred, real.float())
    return _Rows(torch.cat(spreads, dim=-1), count.float(), counted), covariance, real


def _seen(sight: Visible, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """For each block which keys any of its rows sees, (batch, heads, keys), and how many each row sees."""
    for low, high in sight.blocks:
        if sight.mask is None and sight.window is None:
            place = torch.arange(low, high, device=device) + 1 + sight.keys - sight.rows
            last = high + sight.keys - sight.rows if sight.causal else sight.keys
            seen = torch.arange(sight.keys, device=device) < last
            count = place if sight.causal else torch.full_like(place, sight.keys)
            yield seen[None, None], count[None, None]
        else:
            _, visible = sight.bias(torch.arange(low, high, device=device))
            yield visible.any(-2), visible.sum(-1).expand(*visible.shape[:2], high - low)


def _covariance(centred: Tensor, weight: Tensor) -> Tensor:
    """Covariance of the keys of weight one; ``weight`` broadcasts to (batch, key heads, keys)."""
    total = weight.sum(-1).clamp(min=1)[..., None, None]
    weighted = centred * weight[..., None]
    mean = weighted.sum(-2, keepdim=True) / total
    return weighted.mT @ centred / total - mean.mT * mean


def _exact(query: Tensor, key: Tensor, sight: Visible, rows: int) -> dict[str, Tensor]:
    """Some rows as they are; arrays are (batch, key heads, group, some rows, keys)."""
    number = min(rows, sight.rows)
    index = (2 * torch.arange(number, device=query.device) + 1) * sight.rows // (2 * number)
    if sight.mask is not None and sight.mask.shape[0] > 1:
        sight = sight._replace(mask=sight.mask[:SEQUENCES])
    bias, seen = sight.bias(index)
    scores = query.index_select(-2, index) @ key.mT[:, :, None]
    bias, seen = (each if each.ndim == 0 else _by_group(each, scores) for each in (bias, seen))
    scores = scores + bias
    count = seen.sum(-1).float()
    real = (count >= 2) & _own_seen(seen, index, sight)
    hidden = scores.masked_fill(~seen, -torch.inf)
    weights = torch.where(count[..., None] > 0, hidden, 0.0).softmax(-1)
    visible = torch.where(seen, scores, 0.0)
    centre = visible.sum(-1) / count
    spread = torch.where(seen, (scores - centre[..., None]) ** 2, 0.0).sum(-1).div(count).sqrt()
    entropy = hidden.logsumexp(-1) - (weights * visible).sum(-1)
    weight = real.expand_as(spread).float()
    total = weight.sum((0, 3))

    def mean(values: Tensor) -> Tensor:  # rows that do not count may be nan
        return (torch.where(weight > 0, values, 0.0).sum((0, 3)) / total).flatten()

    largest = torch.where(weight > 0, hidden.amax(-1), -torch.inf)
    first = seen.any(-2).float().argmax(-1)  # of the first keys that are seen, the first
    first = first[..., None, None].expand(*weights.shape[:-1], 1)
    return {
        "entropy": mean(entropy),
        "predicted_entropy": mean(gaussian_entropy(spread, count)),
        "uniform_entropy": mean(count.log().expand_as(spread)),
        "logit": largest.amax((0, 3)).flatten(),
        "logit_excess": mean(largest - centre),
        "first_mass": mean(weights.gather(-1, first)[..., 0]),
        "popular_mass": _most(weights, weight),
        "popular_uniform": _most((seen / count.clamp(min=1)[..., None]).expand_as(weights), weight),
    }


def _by_group(each: Tensor, scores: Tensor) -> Tensor:
    """Of (batch, heads, rows, keys), heads split as those of the scores."""
    return each[:, :, None] if each.shape[1] == 1 else each.reshape(each.shape[0], *scores.shape[1:3], *each.shape[2:])


def _own_seen(seen: Tensor, index: Tensor, sight: Visible) -> Tensor:
    """Whether the token of a row is seen by any of the rows that are read after it: if not, it is padding."""
    if sight.mask is None or sight.rows != sight.keys:
        return torch.ones((), dtype=torch.bool, device=seen.device)
    return seen.any(-2).index_select(-1, index)


def _most(weights: Tensor, weight: Tensor) -> Tensor:
    """Largest mean over rows of a key's weight, averaged over the sequences that have rows."""
    rows = weight.sum(-1)
    shares = (weights * weight[..., None]).sum(-2).amax(-1) / rows.clamp(min=1)
    return (shares.sum(0) / (rows > 0).sum(0)).flatten()


def gaussian_entropy(spread: Tensor, count: Tensor) -> Tensor:
    """Mean entropy of rows of Gaussian scores, on the device of the rows.

    Parameters
    ----------
    spread : Tensor
        Standard deviations of the scores of rows.
    count : Tensor
        Numbers of keys that the rows see; broadcasts with the spreads.

    Returns
    -------
    Tensor
        In nats, right to a few thousandths; of the shape of both.
    """
    table = _table(spread.device)
    inside = spread.clamp(max=HOTTEST)
    across, across_weights = _cubic(inside.log1p() / SPREAD_STEP, SPREADS)
    along, along_weights = _cubic(count.clamp(min=1).log() / COUNT_STEP, COUNTS)
    value, constant = torch.zeros_like(spread * count), torch.zeros_like(spread * count)
    for j in range(4):
        constant = constant + along_weights[j] * table[SPREADS][along + j]
        for i in range(4):
            value = value + across_weights[i] * along_weights[j] * table[across + i, along + j]
    # beyond the table c/beta + d/beta**2, with the d that makes it continuous; inside it the ratio is one
    ratio = inside / spread.clamp(min=1e-30)
    ratio = torch.where(spread > HOTTEST, ratio, 1.0)
    return (ratio**2 * value + ratio * (1 - ratio) * constant / HOTTEST).clamp(min=0)


def _cubic(place: Tensor, nodes: int) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """First of the four nodes around each place, and Lagrange's weights of the four; near an end they are the last."""
    first = place.nan_to_num(nan=1.0).floor().clamp(1, nodes - 3).long() - 1  # what is not a number stays none
    t = place - first - 1
    weights = (
        -t * (t - 1) * (t - 2) / 6,
        (t + 1) * (t - 1) * (t - 2) / 2,
        -(t + 1) * t * (t - 2) / 2,
        (t + 1) * t * (t - 1) / 6,
    )
    return first, weights


@cache
def _table(device: torch.device) -> Tensor:
    return torch.tensor(entropy_table(), dtype=torch.float32).to(device, non_blocking=True)
