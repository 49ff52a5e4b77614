"""Rows of Gaussian scores, interpolated on their device: one launch and some arithmetic."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from bulkedge.heads.channel.entropies import LAST_COUNT, LAST_SPREAD, SHARPEST, entropy_table


class GaussianRows(NamedTuple):
    """Means over rows of Gaussian scores, in nats."""

    entropy: Tensor
    """Of the weights of a row."""
    gain: Tensor
    """Logarithm of the mean of ``exp(score)`` over the keys of a row: ``beta**2/2`` as long as rows are not frozen."""


def gaussian_rows(spread: Tensor, log_count: Tensor) -> GaussianRows:
    """Rows of Gaussian scores."""
    across = spread.log1p().mul(2 / LAST_SPREAD).sub(1)
    along = log_count.mul(2 / LAST_COUNT).sub(1).expand_as(spread)
    places = torch.stack([along.reshape(-1), across.reshape(-1)], dim=-1)[None, :, None]
    found = grid_sample(_table(spread.device)[None], places, padding_mode="border", align_corners=True)
    inside, score, frozen = found[0, :, :, 0].reshape(3, *spread.shape)
    # beyond the table c/beta + d/beta**2, with the d that makes it continuous; inside it the ratio is one
    ratio = SHARPEST / spread.clamp(min=SHARPEST)
    entropy = ratio * torch.lerp(frozen / SHARPEST, inside, ratio)
    return GaussianRows(entropy, torch.addcmul(entropy, spread, score) - log_count)


@cache
def _table(device: torch.device) -> Tensor:
    return torch.tensor(entropy_table(), dtype=torch.float32).to(device, non_blocking=True)
