"""What the studies of Propositions 7 and 8 share: the stack without its gap, and claims on its moments and law."""

from __future__ import annotations

from typing import NamedTuple

import xarray as xr

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.studies.claims import Claim, standard_error


class Places(NamedTuple):
    """Where the paper states the mean, the second moment and the law."""

    mean: str
    second: str
    law: str


def gap_free_stack(depth: int, tokens: int, ratio: float) -> AttentionStack:
    """A stack without the gap, with values of the variance ``gamma/sigma_A**2`` that keeps the mean at one.

    Parameters
    ----------
    depth : int
        Number of layers.
    tokens : int
        Number of tokens T.
    ratio : float
        ``gamma = T/d``; the width is ``T/ratio``, rounded.

    Returns
    -------
    AttentionStack
        With exponential entries, whose variance ``sigma_A**2`` is one.
    """
    width = round(tokens / ratio)
    return AttentionStack(depth, tokens, width, gap=False, value_variance=tokens / width, entries="exponential")


def gap_free_claims(data: xr.Dataset, tokens: int, places: Places, slack: float) -> list[Claim]:
    """Mean, second moment and law, for every ratio and layer; distances may be ``slack + layer/2`` over T.

    Parameters
    ----------
    data : xarray.Dataset
        ``mean``, ``second`` and ``distance`` of the spectrum over ``ratio``, ``layer`` and ``draw``, and the predicted
        ``spread``.
    tokens : int
        Number of tokens T.
    places : Places
        Where the paper states each.
    slack : float
        Distance that may be left beside one layer's, times T.

    Returns
    -------
    list of Claim
        Three for each ratio and layer.
    """
    return [
        claim
        for ratio in data.ratio.values.tolist()
        for layer in data.layer.values.tolist()
        for claim in _claims(data.sel(ratio=ratio, layer=layer), tokens, places, slack)
    ]


def _claims(one: xr.Dataset, tokens: int, places: Places, slack: float) -> list[Claim]:
    layer, where = int(one.layer), f"T/d = {float(one.ratio):g}, layer {int(one.layer)}: "
    mean, second = standard_error(one["mean"]), standard_error(one.second)
    predicted = 1 + float(one.spread)
    return [
        Claim(
            statement=where + one["mean"].attrs["long_name"],
            place=places.mean,
            predicted=1.0,
            measured=float(one["mean"].mean()),
            error=mean,
            tolerance=4 * mean + 3 * layer / tokens,
            reason="four standard errors; row sums and a lost dimension take 3/T off at each layer",
        ),
        Claim(
            statement=where + "second moment",
            place=places.second,
            predicted=predicted,
            measured=float(one.second.mean()),
            error=second,
            tolerance=4 * second + 6 * layer * predicted / tokens,
            reason="four standard errors, and twice that share",
        ),
        Claim(
            statement=where + "Kolmogorov distance to the law",
            place=places.law,
            predicted=0.0,
            measured=float(one.distance.mean()),
            error=standard_error(one.distance),
            tolerance=(slack + layer / 2) / tokens,
            reason="a few 1/T, more with each layer",
            relation="<=",
        ),
    ]
