"""What attentions say of their heads: moments of all rows, and a few rows exactly, without leaving the device.

Nothing here waits for the device (no number comes to the host), nothing is differentiated, and no matrix of scores of
all rows is formed. All heads are read together, and as many layers as are small enough: on a GPU it is the number of
launches that costs where there are few tokens.

Where scores are capped, ``softcap tanh(s/softcap)``, moments of queries and keys do not say what they are: spreads are
those of the rows that are read exactly, and what else is made of moments is nan. Where a sink that is none of the keys
takes a part of every row, all readings but ``outside_mass`` are of the softmax over the keys, as those of a scan are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bulkedge.models.hooks.attention_hooks import AttentionInputs
from bulkedge.models.watching.moment_entropy import gaussian_rows, moment_summary
from bulkedge.models.watching.visible_blocks import HIDDEN, VisibleBlocks, visible_blocks
from bulkedge.support.errors import DomainError
from bulkedge.visibility import Visibility

NAMES = {  # what is read of each head, in the order of the rows of readings
    "beta": "spread of a row's scores, root of its mean square over rows",
    "beta_mean": "spread of a row's scores, mean over rows",
    "keys": "keys that the longest row sees",
    "expected_entropy": "mean entropy of all rows, from moments (nats)",
    "expected_logit": "how far the largest score of a row should be above its mean: beta sqrt(2 log keys), rows' mean",
    "expected_popular": "share of all attention on the key that gets most, from moments; mean over sequences",
    "expected_position": "place of that key in the sequence where it gets most",
    "logit_bound": "largest product of the lengths of a query and a key, with the scale",
    "dimension": "effective dimension: (sum of squared couplings)**2 over the sum of their fourth powers",
    "coupling": "largest squared coupling; beyond 1/2 the gap of a long head closes",
    "likeness": "share of the values' power that is in their mean: one where all tokens are alike",
    "entropy": "mean entropy of the rows that are read exactly (nats)",
    "predicted_entropy": "what Gaussian scores of the spreads of these rows have (nats)",
    "uniform_entropy": "mean logarithm of the number of keys of these rows",
    "logit": "largest score in these rows",
    "logit_excess": "how far the largest score of these rows is above the row's mean, rows' mean",
    "first_mass": "share of these rows' attention on the first key",
    "popular_mass": "share on the key that gets most, mean over sequences",
    "popular_uniform": "the same if the rows were uniform",
    "future_mass": "share of these rows' attention on keys after their own; zero where the mask hides the future",
    "key_distance": "from the keys of a head to the nearest ones of its layer, of their length; nan if all share keys",
    "outside_mass": "share of these rows' attention that a sink outside of the keys takes, zero where there is none",
    "update": "length of the last step's change of W_Q W_K', relative to its own; nan where no step or map was seen",
}
SEQUENCES = 8  # most sequences of a batch of which rows are read exactly
MAXIMA = ("keys", "logit", "logit_bound")  # of which processes take the largest; of others the mean
OWN = "expected_position"  # a place in a sequence of this process: of such numbers there is no mean
COMPARED = 16  # keys of each head that are compared with those of the others
UNCAPPED = ("expected_entropy", "expected_logit", "expected_popular", "expected_position", "dimension", "coupling")
"""Readings that moments say nothing about where scores are capped."""


def readings(layers: list[AttentionInputs], rows: int) -> Tensor:
    """Read the heads of attentions that fit together."""
    first = layers[0]
    visible, device = first.visible, first.query.device
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        query, key = (_stack([getattr(each, name) for each in layers]) for name in ("query", "key"))
        if visible.mask is not None and visible.mask.shape[1] > 1:  # who sees whom depends on the head: so do its keys
            key = key.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
        query = query.reshape(*key.shape[:3], -1, *query.shape[3:])
        seen = visible_blocks(visible, device)
        found = moment_summary(query, key, first.scale, visible, seen)
        exact = _exact(query[:, :SEQUENCES], key[:, :SEQUENCES], layers, rows)
        if first.softcap is not None:
            nothing = torch.full_like(exact["entropy"], torch.nan)
            found |= dict.fromkeys(UNCAPPED, nothing) | {name: exact[name] for name in ("beta", "beta_mean")}
            found["logit_bound"] = found["logit_bound"].clamp(max=first.softcap)
        found = (
            exact
            | found
            | {"likeness": _likeness(layers, query, seen), "key_distance": _key_distance(query, key, found["keys"])}
        )
        found["update"] = torch.full_like(exact["entropy"], torch.nan)  # who knows the weights writes it
        return torch.stack([found[name].flatten(1) for name in NAMES])


def _stack(each: list[Tensor]) -> Tensor:
    """Arrays of several layers as one, in single precision."""
    found = each[0].detach()[None] if len(each) == 1 else torch.stack([one.detach() for one in each])
    return found.to(torch.float32, memory_format=torch.contiguous_format)


def _key_distance(query: Tensor, key: Tensor, counts: Tensor) -> Tensor:
    """Distance of the first sequence's keys from the nearest of another head, of (layers, key heads, group) heads."""
    # not by products: of equal keys they leave the square root of the rounding
    some = key[:, 0, :, :: max(1, key.shape[-2] // COMPARED)]
    group, heads = query.shape[3], key.shape[2]
    if heads == 1:
        return key.new_full((1, 1, 1), torch.nan).expand(key.shape[0], 1, group)
    flat = some.flatten(2)
    apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")
    apart = apart + torch.eye(heads, device=key.device) * torch.finfo(torch.float32).max
    nearest = apart.amin(-1) / torch.linalg.vector_norm(flat, dim=-1).clamp(min=1e-30)
    # rows of a single key have nothing to compare
    return torch.where(counts >= 2, nearest[..., None].expand(-1, -1, group), torch.nan)


def _likeness(layers: list[AttentionInputs], query: Tensor, seen: VisibleBlocks) -> Tensor:
    """Share of the power of the values that is in their mean, of (layers, key heads, group) heads."""
    values = [each.value for each in layers]
    if any(each is None for each in values):
        return query.new_full((1, 1, 1), torch.nan).expand(query.shape[0], *query.shape[2:4])
    value = _stack([each for each in values if each is not None])
    if seen.real is None:
        mean, power = value.mean(-2), value.square().mean(-2)
    else:
        real = seen.real[:, :1] / seen.real[:, :1].sum(-1, keepdim=True).clamp(min=1)
        mean, power = real[..., None, :] @ value, real[..., None, :] @ value.square()
    part = mean.square().flatten(3).sum((1, 3)) / power.flatten(3).sum((1, 3))
    heads = query.shape[2] * query.shape[3]
    return part.repeat_interleave(heads // part.shape[1], dim=1).reshape(-1, *query.shape[2:4])


class _SampledRows(NamedTuple):
    """Rows that are read exactly, and what they see; axes ``b`` and ``h`` are of batch and heads, or one."""

    chosen: Tensor  # (some,): numbers of the rows
    bias: Tensor | None
    seen: Tensor | None  # (b, h, some, keys) of booleans; None if they see all
    counts: Tensor  # (b, h, some)
    real: Tensor  # (b, h, some): one for rows that see two keys and are no padding, zero for others


def _sample_rows(visible: Visibility, number: int, device: torch.device) -> _SampledRows:
    """Rows at even distances."""
    index = (2 * torch.arange(number, device=device) + 1) * visible.rows // (2 * number)
    if visible.mask is None and visible.alike:
        counts = torch.full((1, 1, number), float(visible.keys), device=device)
        return _SampledRows(index, None, None, counts, (counts >= 2).float())
    if visible.mask is not None and visible.mask.shape[0] > 1:
        visible = visible._replace(mask=visible.mask[:SEQUENCES])
    bias, seen = visible.bias(index)
    seen = seen.expand(*seen.shape[:2], number, -1)
    counts = seen.sum(-1).float()
    real = counts >= 2
    if visible.mask is not None and visible.rows == visible.keys:  # a token that nobody sees is padding
        real = real & seen.any(-2).index_select(-1, index)
    return _SampledRows(index, bias, seen, counts, real.float())


def _exact(query: Tensor, key: Tensor, layers: list[AttentionInputs], rows: int) -> dict[str, Tensor]:
    """Some rows as they are; arrays are (layers, batch, key heads, group, some rows, keys)."""
    first = layers[0]
    some = _sample_rows(first.visible, min(rows, first.visible.rows), query.device)
    bias, seen = (None if each is None else each[None, :, :, None] for each in (some.bias, some.seen))
    counts, real = (each[None, :, :, None] for each in (some.counts, some.real))
    scores = (query.index_select(-2, some.chosen) * first.scale) @ key.mT[:, :, :, None]
    scores = scores if first.softcap is None else first.softcap * (scores / first.softcap).tanh()
    scores = scores if bias is None else scores + bias
    spread, centre = _spread_and_centre(scores, seen, counts)
    scores = scores if seen is None else torch.where(seen, scores, HIDDEN)
    weights = scores.softmax(-1)
    largest = scores.amax(-1)
    if seen is None:
        mass = weights[..., 0]
    else:  # of the first keys that are seen, the first
        place = seen.any(-2, keepdim=True).to(torch.uint8).argmax(-1, keepdim=True)
        mass = weights.gather(-1, place.expand(*weights.shape[:-1], 1))[..., 0]
    values = {
        "entropy": torch.special.entr(weights).sum(-1),
        "predicted_entropy": gaussian_rows(spread, counts.clamp(min=1).log()).entropy,
        "uniform_entropy": counts.clamp(min=1).log().expand_as(mass),
        "logit_excess": largest - centre,
        "first_mass": mass,
        "future_mass": _future_share(weights, some.chosen, first.visible),
        "outside_mass": _outside_share(scores, layers),
        "beta": spread.square(),
        "beta_mean": spread,
    }
    total = real.expand(1, query.shape[1], -1, -1, -1).sum((1, 4))
    means = (torch.stack(list(values.values())) * real).sum((2, 5)) / total
    found = dict(zip(values, means, strict=True))
    even = (1.0 if seen is None else seen) / counts.clamp(min=1)[..., None]
    return found | {
        "beta": found["beta"].sqrt(),
        "logit": torch.where(real > 0, largest, HIDDEN).amax((1, 4)) + 0 / total,  # nan where there is none
        "popular_mass": _popular_share(weights, real),
        "popular_uniform": _popular_share(even, real).expand_as(found["entropy"]),
    }


def _spread_and_centre(scores: Tensor, seen: Tensor | None, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean of the scores of the keys that each row sees."""
    if seen is None:
        return torch.std_mean(scores, dim=-1, correction=0)
    centre = torch.where(seen, scores, 0.0).sum(-1) / counts.clamp(min=1)
    square = torch.where(seen, scores - centre[..., None], 0.0).square().sum(-1)
    return (square / counts.clamp(min=1)).sqrt(), centre


def _outside_share(scores: Tensor, layers: list[AttentionInputs]) -> Tensor:
    """Share of each row that the sink outside of its keys takes, of (layers, batch, key heads, group, rows) rows."""
    sinks = [each.sinks for each in layers if each.sinks is not None]
    if not sinks:
        return torch.zeros_like(scores[..., 0])
    column = torch.stack(sinks).to(scores).reshape(len(layers), 1, *scores.shape[2:4], 1)
    return torch.sigmoid(column - scores.logsumexp(-1))


def _future_share(weights: Tensor, chosen: Tensor, visible: Visibility) -> Tensor:
    """Share of each row on later keys."""
    if visible.rows != visible.keys or (visible.mask is None and visible.causal):
        return torch.zeros_like(weights[..., 0])
    later = torch.arange(visible.keys, device=weights.device) > chosen[:, None]
    return (weights * later).sum(-1)


def _popular_share(weights: Tensor, real: Tensor) -> Tensor:
    """Largest mean over rows of a key's weight, averaged over the sequences that have rows."""
    rows = real.sum(-1)
    shares = (weights * real[..., None]).sum(-2).amax(-1) / rows.clamp(min=1)
    return shares.sum(1) / (rows > 0).expand(1, shares.shape[1], -1, -1).sum(1)


# -- several processes -------------------------------------------------------------------------------------------------


def check_processes(found: list[Tensor], group: Any, device: torch.device) -> None:
    """Raise in all processes of a group if one of them could not read, or reads other heads than the others."""
    size = float(sum(each.numel() for each in found))
    flags = torch.tensor([size, -size], device=device)
    torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MIN, group=group)
    least, most = float(flags[0]), -float(flags[1])
    if least == 0:
        raise DomainError("another process of the group could not read its attention: its own message says why")
    if least != most:
        raise DomainError("processes of the group read different heads; give the group of those that share all layers")


def mean_of_processes(found: list[Tensor], group: Any) -> list[Tensor]:
    """Readings of all rows of a batch that is spread over processes: two collectives, and the host waits for none.

    A process that could not read gives nan throughout, and counts for nothing; so do heads without rows of two keys.
    """
    names = list(NAMES)
    values = torch.cat([each.flatten(1) for each in found], dim=1)
    counts = values[names.index("keys")]
    there = counts >= 2  # a head of more keys that is nan is broken, and makes the mean nan
    square = torch.tensor([name == "beta" for name in names], device=values.device)[:, None]  # a root mean square
    sums = torch.cat([torch.where(there, torch.where(square, values.square(), values), 0.0), there[None].float()])
    largest = torch.stack([values[names.index(name)] for name in MAXIMA])
    largest = torch.where(there, largest, -torch.inf)
    torch.distributed.all_reduce(sums, torch.distributed.ReduceOp.SUM, group=group)
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=group)
    means = sums[:-1] / sums[-1]
    means = torch.where(square, means.sqrt(), means)
    for name, each in zip(MAXIMA, largest, strict=True):
        means[names.index(name)] = torch.where(torch.isfinite(means[0]) | (name == "keys"), each, torch.nan)
    means[names.index("keys")] = torch.where(sums[-1] > 0, means[names.index("keys")], 1.0)
    means[names.index(OWN)] = values[names.index(OWN)]
    parts = torch.split(means, [each[0].numel() for each in found], dim=1)
    return [part.reshape(each.shape) for part, each in zip(parts, found, strict=True)]
