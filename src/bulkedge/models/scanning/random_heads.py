"""The null of a scan: heads with random weights on the same inputs, and p-values of heads among them.

The attention module runs again on what it was given, with every linear map in it replaced by a random one: mask, rotary
positions, norms, shared keys and positional biases stay the model's own. What is random are the directions of queries
and keys; how sharp a head is does not count as structure, so random heads get several inverse temperatures, and their
numbers are interpolated to that of the head.

A layer has one null for all its heads. Every random head is measured at three inverse temperatures beta: those of the
layer's flattest and sharpest head, and one between them that differs from draw to draw. Numbers are interpolated in
``log beta``, in which they are smooth after a map (:data:`TESTED`): a parabola for each draw, and higher powers that
all draws share (:func:`interpolate`). Parabolas alone err by more than random heads differ where these are alike.
Flat heads need the logarithm: there ``1 - evenness`` falls as ``beta**2``, and random heads hardly differ.

A number of a head is standardised by the random heads of its layer at its own inverse temperature. The head and the
random heads of its layer are then ranked as equals: each random head is standardised by all others and the head, so
that under the null any of them is as likely to be first. Deviations mean the same in every layer, so random heads of
other layers, each standardised by the others of its layer, count too: from n random heads in each of L layers no
p-value is below ``1/(n L + 1)``. The omnibus statistic of a head is its largest deviation; it makes one p-value a
head, and these are corrected for the number of heads (Benjamini and Hochberg).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
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

COORDINATE = "beta_without_sink"  # heads and random heads are compared at equal values of this
APART = 1.25
"""Least ratio of neighbouring inverse temperatures of random heads."""
FLATTEST, SHARPEST = 1e-3, 1e4
"""Inverse temperatures of random heads; a flatter head is uniform but for rounding, so it gets no p-values."""
TINY, SMALLEST = 1e-15, 1e-8
"""Least values before a logarithm is taken: of shares, and of singular values, below which they are rounding."""
BAND = (0.05, 0.5, 0.95)
"""Levels of the band of random spectra."""
ROUNDING = 1e-6  # random heads that differ by less count as different by this much: rounding alone stays below it


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
def random_weights(module: nn.Module, generator: Any) -> Iterator[nn.Module]:
    """What runs in the place of a module, with every linear map in it a random one, without biases, in this thread."""
    import torch

    from bulkedge.models.hooks.attention_hooks import ForwardPass, observe

    def draw(inputs: int, outputs: int, like: Tensor) -> Tensor:
        weights = torch.randn(inputs, outputs, generator=generator, dtype=torch.float32) / inputs**0.5
        return weights.to(device=like.device, dtype=like.dtype)

    linear = {id(each) for each in module.modules() if _is_linear(each)}
    maps: dict[int, Tensor] = {}

    class RandomMaps(ForwardPass):
        def around(self, run: Callable[[], Any], module: nn.Module, arguments: tuple[Any, ...], _: Any) -> Any:
            output = run()
            if id(module) not in linear:
                return output
            if id(module) not in maps:
                maps[id(module)] = draw(arguments[0].shape[-1], output.shape[-1], output)
            return arguments[0].to(output.dtype) @ maps[id(module)]

    if isinstance(module, torch.nn.MultiheadAttention):  # which has its maps as parameters
        twin = copy(module)
        twin._parameters = {
            name: None
            if each is None
            else torch.nn.Parameter(
                draw(each.shape[1], each.shape[0], each).T if each.ndim == 2 else torch.zeros_like(each),
                each.requires_grad,
            )
            for name, each in module._parameters.items()
        }
        module = twin
    with observe(RandomMaps()):
        yield module


def _is_linear(module: nn.Module) -> bool:
    """``torch.nn.Linear`` and what packages put in its place; transformers' ``Conv1D`` is one by another name."""
    from torch.nn import Linear

    name = type(module).__name__
    return isinstance(module, Linear) or name == "Conv1D" or "Linear" in name


@dataclass(frozen=True, eq=False)
class RandomHeads:
    """Numbers of the random heads of one layer at several inverse temperatures."""

    betas: Real  # inverse temperatures of each, sinks taken away, increasing along each row: (draws, 3)
    numbers: dict[str, Real]  # the :data:`TESTED` measures, mapped: (draws, 3)
    spectra: Real  # logarithms of singular values at ``LEVELS``: (draws, 3, levels)

    @property
    def draws(self) -> int:
        """Number of random heads."""
        return len(self.betas)

    def at(self, beta: float) -> tuple[dict[str, Real], Real]:
        """Their numbers and spectra at an inverse temperature."""
        place = np.log(np.clip(beta, self.betas[:, 0] / APART, self.betas[:, 2] * APART))
        nodes = np.log(self.betas)
        numbers = {name: interpolate(nodes, each, place) for name, each in self.numbers.items()}
        return numbers, np.maximum(interpolate(nodes, self.spectra, place), np.log(SMALLEST))


def interpolate(nodes: Real, values: Real, place: Real) -> Real:
    """Values of draws between their nodes: a parabola for each draw, and higher powers that all draws share."""
    # how far the value at a middle node is from the chord says how a draw bends; as the middle nodes differ, many draws
    # say how the bend changes along the way, which least squares fit; the rest of a draw's bend is its own parabola
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
        with random_weights(visit.module, generator) as module:
            layer = visit.again(module)
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
    return RandomHeads(increasing, numbers, np.log(np.maximum(joined["spectrum"], SMALLEST)))


def _grid(betas: Real, draws: int) -> Real:
    """Three inverse temperatures a draw: of the flattest head, of the sharpest, and between, evenly over the draws."""
    low, high = (float(np.clip(each, FLATTEST, SHARPEST)) for each in (np.min(betas), np.max(betas)))
    middle = np.sqrt(low * high)
    low, high = min(low, middle / APART), max(high, middle * APART)
    # a tenth of the range apart from the outer ones, or bends would be magnified without bound
    between = np.exp(np.interp(np.linspace(0.1, 0.9, draws), [0, 1], np.log([low, high])))
    return np.stack([np.full(draws, low), between, np.full(draws, high)], axis=1)


def _at_several(scores: HeadScores, grid: Real) -> dict[str, Real]:
    """Numbers of heads at several inverse temperatures each, (heads, grid)."""
    one = spread(scores.products, scores.visibility)
    points = []
    for betas in grid.T:
        factors = _factors(scores, one, one.new_tensor(betas))
        points.append(comparison_measures(_scaled_scores(scores, factors), scores.visibility, scores.operator(factors)))
    return {name: np.stack([each[name] for each in points], axis=1) for name in points[0]}


def _scaled_scores(scores: HeadScores, factors: Tensor) -> Callable[[slice], Tensor]:
    """Scores (heads, rows, tokens) of rows of heads whose products are multiplied by a factor each, before the cap."""
    return lambda rows: scores.layer.cap(factors[:, None, None] * scores.products(rows))


def _factors(scores: HeadScores, one: Tensor, betas: Tensor) -> Tensor:
    """Factors that bring heads to an inverse temperature each, from the one that they have."""
    factors = betas / one
    if scores.layer.softcap is not None:  # scaled up until capped scores are as sharp as wanted, or the cap allows
        for _ in range(8):
            reached = spread(_scaled_scores(scores, factors), scores.visibility)
            factors = factors * (betas / reached).clamp(max=APART**2)
    return factors


def spectral_distance(spectrum: Real, reference: Real) -> Real:
    """Kolmogorov distance of spectra to a reference, all as increasing quantiles at the same levels."""
    # values that are rounding are all alike; a slope much smaller than any difference keeps them in step
    spectrum, reference = (each + ROUNDING * LEVELS for each in np.broadcast_arrays(spectrum, reference))
    flat = zip(spectrum.reshape(-1, len(LEVELS)), reference.reshape(-1, len(LEVELS)), strict=True)
    found = [np.max(np.abs(np.interp(other, own, LEVELS) - LEVELS)) for own, other in flat]
    return np.array(found).reshape(spectrum.shape[:-1])


# -- p-values ----------------------------------------------------------------------------------------------------------


class Deviations(NamedTuple):
    """How far the heads of a layer are from its random heads, in standard deviations: (heads,) or (draws, heads)."""

    heads: dict[str, Real]  # by measure; of the spectrum, how unusual the logarithm of its distance is
    peers: dict[str, Real]  # the same of every random head, among the others and the head
    others: dict[str, Real]
    """The same of every random head, among the others alone, at the inverse temperature of each head."""
    middle: dict[str, Real]  # medians of random heads
    distance: Real  # of the spectra, to that of the random heads
    null_distance: Real  # median of what random heads have
    band: Real  # quantiles of random singular values, (levels of :data:`BAND`, heads, levels)


def deviations(measures: dict[str, Real], null: RandomHeads) -> Deviations:
    """Compare the heads of a layer with its random heads; nan for heads that are flatter than any of these."""
    known = measures[COORDINATE] >= FLATTEST
    at = [null.at(beta) for beta in measures[COORDINATE]]
    heads, peers, others, middle = {}, {}, {}, {}
    for name, (forward, back) in TESTED.items():
        draws = np.stack([numbers[name] for numbers, _ in at], axis=1)
        middle[name] = back(np.median(draws, axis=0))
        ranked = np.abs(_leave_one_out(np.concatenate([draws, forward(measures[name])[None]])))
        heads[name], peers[name] = np.where(known, ranked[-1], np.nan), ranked[:-1]
        others[name] = np.abs(_leave_one_out(draws))
    spectra = np.stack([each for _, each in at], axis=1)
    own = np.log(np.maximum(measures["spectrum"], SMALLEST))
    together, apart = _distances(np.concatenate([spectra, own[None]])), _distances(spectra)
    ranked = _leave_one_out(np.log(np.maximum(together, ROUNDING)))
    heads["spectrum"], peers["spectrum"] = np.where(known, ranked[-1], np.nan), ranked[:-1]
    others["spectrum"] = _leave_one_out(np.log(np.maximum(apart, ROUNDING)))
    band = np.exp(np.quantile(spectra, BAND, axis=0))
    return Deviations(heads, peers, others, middle, together[-1], np.median(apart, axis=0), band)


def no_deviations(heads: int) -> Deviations:
    """Deviations of a layer without random heads."""
    nothing = np.full(heads, np.nan)
    one, none = dict.fromkeys((*TESTED, "spectrum"), nothing), dict.fromkeys((*TESTED, "spectrum"), nothing[None])
    band = np.full((len(BAND), heads, len(LEVELS)), np.nan)
    return Deviations(one, none, none, dict.fromkeys(TESTED, nothing), nothing, nothing, band)


def _distances(spectra: Real) -> Real:
    """Distance of each spectrum along the first axis to the mean of the others."""
    return spectral_distance(spectra, (np.sum(spectra, axis=0) - spectra) / (len(spectra) - 1))


def _leave_one_out(values: Real) -> Real:
    """Deviation of each value along the first axis from the others, in standard deviations of one more of these."""
    count = len(values) - 1
    away = values - np.mean(values, axis=0)
    squares = np.sum(away**2, axis=0) - away**2 * (count + 1) / count  # of the others about their own mean
    deviation = np.maximum(np.sqrt(np.clip(squares, 0.0, None) / (count - 1)), ROUNDING)
    return np.asarray(away * np.sqrt((count + 1) / count) / deviation)


def p_values(layers: Sequence[Deviations]) -> dict[str, Real]:
    """P-values of all heads, with the draws of all layers."""
    names = layers[0].heads
    found = {
        f"p_{name}": _tail([(each.heads[name], each.peers[name], each.others[name]) for each in layers])
        for name in names
    }
    tops = [tuple(np.fmax.reduce(list(those.values())) for those in each[:3]) for each in layers]
    found["p"] = _tail(tops)
    found["q"] = benjamini_hochberg(found["p"])
    return found


def _tail(layers: Sequence[tuple[Real, ...]]) -> Real:
    """Share of random heads that are as far out as heads; of other layers each counts once, at any of their heads."""
    heads = np.concatenate([own for own, _, _ in layers])
    above, draws, start = np.zeros(len(heads)), 0, 0
    for own, peers, others in layers:
        values = np.sort(others[~np.isnan(others)])
        counts = (len(values) - np.searchsorted(values, heads)) / others.shape[1]
        counts[start : start + len(own)] = np.sum(peers >= own, axis=0)
        above, draws, start = above + counts, draws + len(values) / others.shape[1], start + len(own)
    return np.where(np.isnan(heads), np.nan, (1 + above) / (1 + draws))


def benjamini_hochberg(p: Real) -> Real:
    """Adjusted p-values, the smallest false discovery rate at which each is rejected; nan stays nan."""
    adjusted, known = np.full(len(p), np.nan), np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known])]
    ranked = p[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1.0)
    return adjusted
