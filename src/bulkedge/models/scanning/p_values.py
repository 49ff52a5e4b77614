"""How surprising the numbers of heads are beside those of fresh ones: p-values that know their draws.

A number of a head is standardised by the fresh heads of its layer at its own inverse temperature, and each fresh head
by the others. What a head deviates by then means the same in every layer, so the p-values of all layers share their
draws: from n fresh heads in each of L layers none is below ``1/(n L + 1)``. The omnibus statistic of a head is its most
surprising number, each relative to what fresh heads show; it makes one p-value a head, and these are corrected for the
number of heads (Benjamini and Hochberg).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bulkedge.heads.measures.singular_values import LEVELS
from bulkedge.models.scanning.random_heads import COORDINATE, TESTED, FreshHeads, spectral_distance
from bulkedge.support.arrays import Real

BAND = (0.05, 0.5, 0.95)
"""Levels of the band of fresh spectra."""
COMMON = 0.95
"""Numbers are taken relative to this quantile of what fresh heads show."""
STILL = 1e-6
"""Fresh heads that differ by less are taken to differ by so much: rounding is no surprise."""


class Beside(NamedTuple):
    """A layer's heads beside its fresh ones: (heads,) and (draws, heads) each, by measure."""

    heads: dict[str, Real]
    """Absolute deviations, in standard deviations; of the spectrum, its distance."""
    fresh: dict[str, Real]
    """The same for every fresh head, among the others, at the inverse temperature of each head."""
    middle: dict[str, Real]
    """Medians of fresh heads."""
    distance: Real
    """Of the spectra, to that of the fresh heads."""
    null_distance: Real
    """Median of what fresh heads have."""
    band: Real
    """Quantiles of fresh singular values, (levels of :data:`BAND`, heads, levels)."""


def beside(measures: dict[str, Real], fresh: FreshHeads) -> Beside:
    """Hold the heads of a layer beside its fresh heads."""
    at = [fresh.at(beta) for beta in measures[COORDINATE]]
    heads, others, middle = {}, {}, {}
    for name, (forward, back) in TESTED.items():
        draws = np.stack([numbers[name] for numbers, _ in at], axis=1)
        middle[name] = back(np.median(draws, axis=0))
        heads[name] = np.abs(_standard(forward(measures[name]), draws))
        others[name] = np.abs(_among(draws))
    spectra = np.stack([each for _, each in at], axis=1)
    own = np.log(np.maximum(measures["spectrum"], np.exp(spectra.min())))
    mean = np.mean(spectra, axis=0)
    rest = (len(spectra) * mean - spectra) / (len(spectra) - 1)
    heads["spectrum"], others["spectrum"] = spectral_distance(own, mean), spectral_distance(spectra, rest)
    band = np.exp(np.quantile(spectra, BAND, axis=0))
    return Beside(heads, others, middle, heads["spectrum"], np.median(others["spectrum"], axis=0), band)


def _standard(value: Real, draws: Real) -> Real:
    """Deviation from draws along the first axis, in standard deviations of one more draw."""
    count = len(draws)
    deviation = np.maximum(np.std(draws, axis=0, ddof=1), STILL)
    return np.asarray((value - np.mean(draws, axis=0)) / (deviation * np.sqrt(1 + 1 / count)))


def _among(draws: Real) -> Real:
    """Deviation of each draw from the others."""
    return np.stack([_standard(draws[i], np.delete(draws, i, axis=0)) for i in range(len(draws))])


def p_values(layers: Sequence[Beside]) -> dict[str, Real]:
    """P-values of all heads, with the draws of all layers."""
    found: dict[str, Real] = {}
    top: Real | float = 0.0
    fresh_top: list[Real] = [np.zeros_like(next(iter(each.fresh.values()))) for each in layers]
    for name in layers[0].heads:
        heads = np.concatenate([each.heads[name] for each in layers])
        fresh = [each.fresh[name] for each in layers]
        found[f"p_{name}"] = _tail(heads, fresh)
        if np.isnan(heads).all():
            continue
        # where fresh heads differ by rounding alone, heads that do so too are no surprise beside them
        common = max(np.nanquantile(np.concatenate([each.ravel() for each in fresh]), COMMON), STILL)
        top = np.fmax(top, heads / common)
        fresh_top = [np.fmax(one, each / common) for one, each in zip(fresh_top, fresh, strict=True)]
    found["p"] = _tail(np.asarray(top), fresh_top)
    found["q"] = benjamini_hochberg(found["p"])
    return found


def _tail(heads: Real, fresh: list[Real]) -> Real:
    """Share of fresh heads that are at least as far out; each is there at many inverse temperatures and counts once."""
    sizes = [np.full(each.size, 1 / each.shape[1]) for each in fresh]
    values, weights = np.concatenate([each.ravel() for each in fresh]), np.concatenate(sizes)
    known = ~np.isnan(values)
    order = np.argsort(values[known])
    values, weights = values[known][order], weights[known][order]
    above = np.concatenate([np.cumsum(weights[::-1])[::-1], [0.0]])
    p = (1 + above[np.searchsorted(values, heads)]) / (1 + weights.sum())
    return np.where(np.isnan(heads), np.nan, p)


def benjamini_hochberg(p: Real) -> Real:
    """Adjusted p-values: the smallest false discovery rate at which each is rejected.

    Examples
    --------
    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5])).round(4)
    array([0.04  , 0.0533, 0.0533, 0.5   ])
    """
    order = np.argsort(p)
    ranked = p[order] * len(p) / np.arange(1, len(p) + 1)
    adjusted = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1.0)
    return adjusted[np.argsort(order)]


def thinned(quantiles: Real, levels: Real) -> Real:
    """Quantiles at fewer levels."""
    flat = quantiles.reshape(-1, quantiles.shape[-1])
    return np.array([np.interp(levels, LEVELS, each) for each in flat]).reshape(*quantiles.shape[:-1], len(levels))
