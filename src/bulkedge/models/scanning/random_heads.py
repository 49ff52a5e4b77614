"""The null of a scan: heads with random weights on the same inputs, and p-values of heads among them.

The attention module runs again on what it was given, with every linear map in it replaced by a random one: mask, rotary
positions, norms, shared keys and positional biases stay the model's own. What is random are the directions of queries
and keys; how sharp a head is does not count as structure, so random heads get several inverse temperatures, and their
numbers are interpolated to that of the head.

A layer has one null for all its heads. Every random head is measured at three inverse temperatures beta: those of the
layer's flattest and sharpest head, and one between them that differs from draw to draw. Numbers are interpolated in
``log(1 + beta)``, in which they are smooth after a map (:data:`TESTED`): a parabola for each draw, and higher powers
that all draws share (:func:`interpolate`). Parabolas alone err by more than random heads differ where these are alike.

A number of a head is standardised by the random heads of its layer at its own inverse temperature, and each random head
by the others. A deviation then means the same in every layer, so the p-values of all layers share their draws: from n
random heads in each of L layers none is below ``1/(n L + 1)``. The omnibus statistic of a head is its most surprising
number, each relative to what random heads show; it makes one p-value a head, and these are corrected for the number of
heads (Benjamini and Hochberg).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bulkedge.heads.measures.attention_measures import comparison_measures, spread
from bulkedge.heads.measures.singular_values import LEVELS
from bulkedge.support.arrays import Real
from bulkedge.support.errors import DomainError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bulkedge.models.hooks.capture import HeadScores, Visit

COORDINATE = "beta_without_sink"
"""Heads and random heads are comparison_measures at equal values of this."""
APART = 1.25
"""Least ratio of neighbouring inverse temperatures of random heads."""
TINY = 1e-9
BAND = (0.05, 0.5, 0.95)
"""Levels of the band of random spectra."""
ROUNDING = 1e-6
"""Random heads that differ by less count as different by this much: rounding is no surprise."""


def _logit(x: Real) -> Real:
    x = np.clip(x, TINY, 1 - TINY)
    return np.log(x / (1 - x))


def _log(x: Real) -> Real:
    return np.log(np.maximum(x, TINY))


TESTED: dict[str, tuple[Callable[[Real], Real], Callable[[Real], Real]]] = {
    "evenness": (lambda x: _log(1 - x), lambda y: 1 - np.exp(y)),
    "largest": (_logit, lambda y: 1 / (1 + np.exp(-y))),
    "offset_mass": (_log, np.exp),
    "near_mass": (lambda x: x, lambda y: y),
    "same_token_mass": (_log, np.exp),
    "column_energy": (_logit, lambda y: 1 / (1 + np.exp(-y))),
    "stable_rank": (lambda x: _log(x - 1), lambda y: 1 + np.exp(y)),
    "effective_rank": (_log, np.exp),
}
"""Measures with a null: the map that makes each smooth in the inverse temperature, and its inverse."""


@contextmanager
def random_weights(module: nn.Module, generator: Any) -> Iterator[None]:
    """Let every linear map in a module be a random one, without biases; the module is as before in the end."""
    import torch

    def draw(inputs: int, outputs: int, like: Tensor) -> Tensor:
        weights = torch.randn(inputs, outputs, generator=generator, dtype=torch.float32) / inputs**0.5
        return weights.to(device=like.device, dtype=like.dtype)

    maps: dict[int, Tensor] = {}

    def replace(linear: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if id(linear) not in maps:
            maps[id(linear)] = draw(given[0].shape[-1], output.shape[-1], output)
        return given[0].to(output.dtype) @ maps[id(linear)]

    linear = [each for each in module.modules() if _is_linear(each)]
    # torch's own module has its maps as parameters
    own = dict(module.named_parameters(recurse=False)) if isinstance(module, torch.nn.MultiheadAttention) else {}
    kept = {name: each.data for name, each in own.items()}
    handles: list[Any] = []
    try:
        handles.extend(each.register_forward_hook(replace) for each in linear)
        for parameter in own.values():
            if parameter.ndim == 2:
                parameter.data = draw(parameter.shape[1], parameter.shape[0], parameter).T
            else:
                parameter.data = torch.zeros_like(parameter)
        yield
    finally:
        for handle in handles:
            handle.remove()
        for name, parameter in own.items():
            parameter.data = kept[name]


def _is_linear(module: nn.Module) -> bool:
    """``torch.nn.Linear`` and what packages put in its place; transformers' ``Conv1D`` is one by another name."""
    from torch.nn import Linear

    name = type(module).__name__
    return isinstance(module, Linear) or name == "Conv1D" or "Linear" in name


@dataclass(frozen=True, eq=False)
class RandomHeads:
    """Numbers of the random heads of one layer at several inverse temperatures."""

    betas: Real
    """Inverse temperatures of each, sinks taken away, increasing along each row: (draws, 3)."""
    numbers: dict[str, Real]
    """The :data:`TESTED` measures, mapped: (draws, 3)."""
    spectra: Real
    """Logarithms of singular values at ``LEVELS``: (draws, 3, levels)."""

    @property
    def draws(self) -> int:
        """Number of random heads."""
        return len(self.betas)

    def at(self, beta: float) -> tuple[dict[str, Real], Real]:
        """Their numbers and spectra at an inverse temperature."""
        place = np.log1p(np.clip(beta, self.betas[:, 0] / APART, self.betas[:, 2] * APART))
        nodes = np.log1p(self.betas)
        numbers = {name: interpolate(nodes, each, place) for name, each in self.numbers.items()}
        return numbers, interpolate(nodes, self.spectra, place)


def interpolate(nodes: Real, values: Real, place: Real) -> Real:
    """Values of draws between their nodes: a parabola for each draw, and higher powers that all draws share.

    How far the value at a middle node is from the chord between the outer ones tells of one draw how it bends, and of
    many draws, whose middle nodes differ, how the bend changes along the way. The common curve is fitted to that by
    least squares; what is left of a draw's bend is its own, a parabola that vanishes at the outer nodes.
    """
    low, middle, high = nodes.T
    # constants and slopes are each draw's own; every common power above them needs four draws
    centre, exponents = nodes.mean(), np.arange(2, 6)[: max(1, len(nodes) // 4)]
    powers = (nodes - centre)[..., None] ** exponents
    bend = np.array([0.0, 1.0, 0.0]) - _chord(nodes, middle)
    share = (place - low) * (place - high) / ((middle - low) * (middle - high))
    own = (
        _chord(nodes, place) + np.clip(share, -3.0, 3.0)[:, None] * bend
    )  # inside, the margin of _grid magnifies by 2.8
    missed = (place - centre)[:, None] ** exponents - _node_sums(own, powers)
    common = np.linalg.pinv(_node_sums(bend, powers)) @ _node_sums(bend, values)
    return _node_sums(own, values) + missed @ common


def _chord(nodes: Real, place: Real) -> Real:
    """Weights of the nodes in the straight line through the outer ones; beyond these, for no more than its length."""
    part = np.clip((place - nodes[:, 0]) / (nodes[:, 2] - nodes[:, 0]), -1.0, 2.0)
    return np.stack([1 - part, np.zeros_like(part), part], axis=1)


def _node_sums(weights: Real, values: Real) -> Real:
    """Weighted sums over the nodes of each draw."""
    return np.einsum("dn,dn...->d...", weights, values)


def draw_random_heads(visit: Visit, ids: Any, betas: Real, draws: int, generator: Any) -> RandomHeads:
    """Random heads of the layer that has just run."""
    from bulkedge.models.hooks.capture import map_heads  # which needs torch

    grid = _grid(betas, draws)
    found: list[dict[str, Real]] = []
    done = 0
    while done < draws:
        with random_weights(visit.module, generator):
            layer = visit.again()
        if bool((layer.query == visit.layer.query).all()):
            raise DomainError(
                f"{layer.name}: queries are not made by linear maps inside of the attention module, so there are no "
                "random weights to compare with; use draws=0"
            )
        found.extend(map_heads(_at_several, layer, ids, grid[done:], "random heads"))
        done = sum(len(each[COORDINATE]) for each in found)
    joined = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    # a sink may hide a step
    increasing = np.maximum.accumulate(joined[COORDINATE], axis=1) + TINY * np.arange(grid.shape[1])
    numbers = {name: forward(joined[name]) for name, (forward, _) in TESTED.items()}
    return RandomHeads(increasing, numbers, _log(joined["spectrum"]))


def _grid(betas: Real, draws: int) -> Real:
    """Three inverse temperatures a draw: of the flattest head, of the sharpest, and between, evenly over the draws."""
    low, high = (float(np.clip(each, 0.05, 50.0)) for each in (np.min(betas), np.max(betas)))
    middle = np.sqrt(low * high)
    low, high = min(low, middle / APART), max(high, middle * APART)
    # a tenth of the range apart from the outer ones, or bends would be magnified without bound
    between = np.expm1(np.interp(np.linspace(0.1, 0.9, draws), [0, 1], np.log1p([low, high])))
    return np.stack([np.full(draws, low), between, np.full(draws, high)], axis=1)


def _at_several(scores: HeadScores, grid: Real) -> dict[str, Real]:
    """Numbers of heads at several inverse temperatures each, (heads, grid)."""
    one = spread(scores.products, scores.sight)
    points = []
    for betas in grid.T:
        factors = _factors(scores, one, one.new_tensor(betas))
        points.append(comparison_measures(_scaled_scores(scores, factors), scores.sight, scores.operator(factors)))
    return {name: np.stack([each[name] for each in points], axis=1) for name in points[0]}


def _scaled_scores(scores: HeadScores, factors: Tensor) -> Callable[[slice], Tensor]:
    """Scores (heads, rows, tokens) of rows of heads whose products are multiplied by a factor each, before the cap."""
    return lambda rows: scores.layer.capped(factors[:, None, None] * scores.products(rows))


def _factors(scores: HeadScores, one: Tensor, betas: Tensor) -> Tensor:
    """Factors that bring heads to an inverse temperature each, from the one that they have.

    The layer caps what comes out of queries and keys, so these are scaled up until the capped scores are as sharp as
    wanted, or as the cap allows.
    """
    factors = betas / one
    if scores.layer.softcap is not None:
        for _ in range(8):
            reached = spread(_scaled_scores(scores, factors), scores.sight)
            factors = factors * (betas / reached).clamp(max=APART**2)
    return factors


def spectral_distance(spectrum: Real, reference: Real) -> Real:
    """Kolmogorov distance of spectra to a reference, all as increasing quantiles at the same levels."""
    spectrum, reference = np.broadcast_arrays(spectrum, reference)
    flat = zip(spectrum.reshape(-1, len(LEVELS)), reference.reshape(-1, len(LEVELS)), strict=True)
    found = [np.max(np.abs(np.interp(other, own, LEVELS) - LEVELS)) for own, other in flat]
    return np.array(found).reshape(spectrum.shape[:-1])


# -- p-values ----------------------------------------------------------------------------------------------------------


class Deviations(NamedTuple):
    """How far the heads of a layer are from its random heads: (heads,) and (draws, heads) each, by measure."""

    heads: dict[str, Real]
    """Absolute deviations, in standard deviations; of the spectrum, its distance."""
    null: dict[str, Real]
    """The same for every random head, among the others, at the inverse temperature of each head."""
    middle: dict[str, Real]
    """Medians of random heads."""
    distance: Real
    """Of the spectra, to that of the random heads."""
    null_distance: Real
    """Median of what random heads have."""
    band: Real
    """Quantiles of random singular values, (levels of :data:`BAND`, heads, levels)."""


def deviations(measures: dict[str, Real], null: RandomHeads) -> Deviations:
    """Compare the heads of a layer with its random heads."""
    at = [null.at(beta) for beta in measures[COORDINATE]]
    heads, others, middle = {}, {}, {}
    for name, (forward, back) in TESTED.items():
        draws = np.stack([numbers[name] for numbers, _ in at], axis=1)
        middle[name] = back(np.median(draws, axis=0))
        heads[name] = np.abs(_standardise(forward(measures[name]), draws))
        others[name] = np.abs(_leave_one_out(draws))
    spectra = np.stack([each for _, each in at], axis=1)
    own = np.log(np.maximum(measures["spectrum"], np.exp(spectra.min())))
    mean = np.mean(spectra, axis=0)
    rest = (len(spectra) * mean - spectra) / (len(spectra) - 1)
    heads["spectrum"], others["spectrum"] = spectral_distance(own, mean), spectral_distance(spectra, rest)
    band = np.exp(np.quantile(spectra, BAND, axis=0))
    return Deviations(heads, others, middle, heads["spectrum"], np.median(others["spectrum"], axis=0), band)


def _standardise(value: Real, draws: Real) -> Real:
    """Deviation from draws along the first axis, in standard deviations of one more draw."""
    count = len(draws)
    deviation = np.maximum(np.std(draws, axis=0, ddof=1), ROUNDING)
    return np.asarray((value - np.mean(draws, axis=0)) / (deviation * np.sqrt(1 + 1 / count)))


def _leave_one_out(draws: Real) -> Real:
    """Deviation of each draw from the others."""
    return np.stack([_standardise(draws[i], np.delete(draws, i, axis=0)) for i in range(len(draws))])


def p_values(layers: Sequence[Deviations]) -> dict[str, Real]:
    """P-values of all heads, with the draws of all layers."""
    found: dict[str, Real] = {}
    top: Real | float = 0.0
    null_top: list[Real] = [np.zeros_like(next(iter(each.null.values()))) for each in layers]
    for name in layers[0].heads:
        heads = np.concatenate([each.heads[name] for each in layers])
        null = [each.null[name] for each in layers]
        found[f"p_{name}"] = _tail(heads, null)
        if np.isnan(heads).all():
            continue
        # in units of a quantile of random heads; where these differ by rounding alone, so may heads
        common = max(np.nanquantile(np.concatenate([each.ravel() for each in null]), 0.95), ROUNDING)
        top = np.fmax(top, heads / common)
        null_top = [np.fmax(one, each / common) for one, each in zip(null_top, null, strict=True)]
    found["p"] = _tail(np.asarray(top), null_top)
    found["q"] = benjamini_hochberg(found["p"])
    return found


def _tail(heads: Real, null: list[Real]) -> Real:
    """Share of random heads that are as far out; each is there at many inverse temperatures and counts once."""
    sizes = [np.full(each.size, 1 / each.shape[1]) for each in null]
    values, weights = np.concatenate([each.ravel() for each in null]), np.concatenate(sizes)
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
