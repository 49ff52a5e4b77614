"""What a head would be with fresh random weights, on its own inputs: the null of a scan.

The attention module runs again on what it was given, with every linear map in it replaced by a random one: mask, rotary
positions, norms, shared keys and positional biases stay the model's own. What is random are the queries' and keys'
directions; how sharp the head is does not count as structure, so fresh heads get several inverse
temperatures, and their numbers interpolated to that of the head.

A layer has one null for all its heads. Every fresh head is measured at three inverse temperatures beta: those of the
layer's flattest and sharpest head, and one between them that differs from draw to draw. Numbers are interpolated in
``log(1 + beta)``, in which they are smooth after a map (:data:`TESTED`): a parabola for each draw, and higher powers
that all draws share (:func:`interpolated`). Parabolas alone err by more than fresh heads differ where these are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bulkedge.heads.measures.measures import LEVELS, compared, spread
from bulkedge.models.hooks.capture import HeadScores, Visit, map_heads
from bulkedge.support.arrays import Real
from bulkedge.support.errors import DomainError

if TYPE_CHECKING:
    from torch import Tensor, nn

COORDINATE = "beta_without_sink"
"""What heads and fresh heads are compared at equal values of."""
APART = 1.25
"""Least ratio of neighbouring inverse temperatures of fresh heads."""
FLATTEST, SHARPEST = 0.05, 50.0
"""Fresh heads get no other beta."""
POWERS = np.arange(2, 6)
"""Powers of the curve that fresh heads share, from the lowest on; constants and slopes are their own."""
DRAWS_A_POWER = 4
"""So many fresh heads are needed for each of them."""
MARGIN = 0.1
"""Least distance of middle inverse temperatures to the outer ones, as a part of the range."""
FARTHEST = 3.0
"""Most by which a fresh head's own bend is magnified; between the outer nodes a margin of 0.1 magnifies by 2.8."""
HEATINGS = 8
"""How often fresh heads under a cap are heated to come nearer to the inverse temperature that is wanted."""
TINY = 1e-9


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
def fresh_weights(module: nn.Module, generator: Any) -> Iterator[None]:
    """Let every linear map in a module be a random one, without biases; the module is as before in the end."""
    import torch

    def drawn(inputs: int, outputs: int, like: Tensor) -> Tensor:
        weights = torch.randn(inputs, outputs, generator=generator, dtype=torch.float32) / inputs**0.5
        return weights.to(device=like.device, dtype=like.dtype)

    maps: dict[int, Tensor] = {}

    def replaced(linear: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if id(linear) not in maps:
            maps[id(linear)] = drawn(given[0].shape[-1], output.shape[-1], output)
        return given[0].to(output.dtype) @ maps[id(linear)]

    linear = [each for each in module.modules() if _is_linear(each)]
    # torch's own module has its maps as parameters
    own = dict(module.named_parameters(recurse=False)) if isinstance(module, torch.nn.MultiheadAttention) else {}
    kept = {name: each.data for name, each in own.items()}
    handles: list[Any] = []
    try:
        handles.extend(each.register_forward_hook(replaced) for each in linear)
        for parameter in own.values():
            if parameter.ndim == 2:
                parameter.data = drawn(parameter.shape[1], parameter.shape[0], parameter).T
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
class FreshHeads:
    """Numbers of fresh heads of one layer at several inverse temperatures.

    Attributes
    ----------
    betas : array of shape (draws, 3)
        Inverse temperatures of each fresh head, sinks taken away, increasing along each row.
    numbers : dict of str to array of shape (draws, 3)
        The :data:`TESTED` measures, mapped.
    spectra : array of shape (draws, 3, levels)
        Logarithms of the singular values at the :data:`~bulkedge.heads.measures.measures.LEVELS`.
    """

    betas: Real
    numbers: dict[str, Real]
    spectra: Real

    @property
    def draws(self) -> int:
        """Number of fresh heads."""
        return len(self.betas)

    def at(self, beta: float) -> tuple[dict[str, Real], Real]:
        """Numbers of the fresh heads at an inverse temperature."""
        place = np.log1p(np.clip(beta, self.betas[:, 0] / APART, self.betas[:, 2] * APART))
        nodes = np.log1p(self.betas)
        numbers = {name: interpolated(nodes, each, place) for name, each in self.numbers.items()}
        return numbers, interpolated(nodes, self.spectra, place)


def interpolated(nodes: Real, values: Real, place: Real) -> Real:
    """Values of draws between their nodes: a parabola for each draw, and higher powers that all draws share.

    How far the value at a middle node is from the chord between the outer ones tells of one draw how it bends, and of
    many draws, whose middle nodes differ, how the bend changes along the way. The common curve is fitted to that by
    least squares; what is left of a draw's bend is its own, a parabola that vanishes at the outer nodes.
    """
    low, middle, high = nodes.T
    centre, exponents = nodes.mean(), POWERS[: max(1, len(nodes) // DRAWS_A_POWER)]
    powers = (nodes - centre)[..., None] ** exponents
    bend = np.array([0.0, 1.0, 0.0]) - _chord(nodes, middle)
    share = (place - low) * (place - high) / ((middle - low) * (middle - high))
    own = _chord(nodes, place) + np.clip(share, -FARTHEST, FARTHEST)[:, None] * bend
    missed = (place - centre)[:, None] ** exponents - _sums(own, powers)
    common = np.linalg.pinv(_sums(bend, powers)) @ _sums(bend, values)
    return _sums(own, values) + missed @ common


def _chord(nodes: Real, place: Real) -> Real:
    """Weights of the nodes in the straight line through the outer ones; beyond these, for no more than its length."""
    part = np.clip((place - nodes[:, 0]) / (nodes[:, 2] - nodes[:, 0]), -1.0, 2.0)
    return np.stack([1 - part, np.zeros_like(part), part], axis=1)


def _sums(weights: Real, values: Real) -> Real:
    """Weighted sums over the nodes of each draw."""
    return np.einsum("dn,dn...->d...", weights, values)


def draw_fresh(visit: Visit, ids: Any, betas: Real, draws: int, generator: Any) -> FreshHeads:
    """Fresh heads of the layer that has just run."""
    grid = _grid(betas, draws)
    found: list[dict[str, Real]] = []
    done = 0
    while done < draws:
        with fresh_weights(visit.module, generator):
            layer = visit.again()
        if bool((layer.query == visit.layer.query).all()):
            raise DomainError(
                f"{layer.name}: queries are not made by linear maps inside of the attention module, so there are no "
                "fresh weights to compare with; use draws=0"
            )
        found.extend(map_heads(_at_several, layer, ids, grid[done:], "fresh heads"))
        done = sum(len(each[COORDINATE]) for each in found)
    joined = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    # a sink may hide a step
    increasing = np.maximum.accumulate(joined[COORDINATE], axis=1) + TINY * np.arange(grid.shape[1])
    numbers = {name: forward(joined[name]) for name, (forward, _) in TESTED.items()}
    return FreshHeads(increasing, numbers, _log(joined["spectrum"]))


def _grid(betas: Real, draws: int) -> Real:
    """Three inverse temperatures a draw: of the flattest head, of the sharpest, and between, evenly over the draws."""
    low, high = (float(np.clip(each, FLATTEST, SHARPEST)) for each in (np.min(betas), np.max(betas)))
    middle = np.sqrt(low * high)
    low, high = min(low, middle / APART), max(high, middle * APART)
    between = np.expm1(np.interp(np.linspace(MARGIN, 1 - MARGIN, draws), [0, 1], np.log1p([low, high])))
    return np.stack([np.full(draws, low), between, np.full(draws, high)], axis=1)


def _at_several(scores: HeadScores, grid: Real) -> dict[str, Real]:
    """Numbers of heads at several inverse temperatures each, (heads, grid)."""
    one = spread(scores.products, scores.sight)
    points = [_at(scores, _factors(scores, one, one.new_tensor(betas))) for betas in grid.T]
    return {name: np.stack([each[name] for each in points], axis=1) for name in points[0]}


def _at(scores: HeadScores, factors: Tensor) -> dict[str, Real]:
    """Numbers of heads whose queries and keys are heated by a factor each."""
    return compared(_heated(scores, factors), scores.sight, scores.operator(factors))


def _heated(scores: HeadScores, factors: Tensor) -> Callable[[slice], Tensor]:
    """Scores of rows of such heads, (heads, rows, tokens)."""
    return lambda rows: scores.layer.capped(factors[:, None, None] * scores.products(rows))


def _factors(scores: HeadScores, one: Tensor, betas: Tensor) -> Tensor:
    """Factors that bring heads to an inverse temperature each, from the one that they have.

    The layer caps what comes out of queries and keys, so these are scaled up until the capped scores are as sharp as
    wanted, or as the cap allows.
    """
    factors = betas / one
    if scores.layer.softcap is not None:
        for _ in range(HEATINGS):
            reached = spread(_heated(scores, factors), scores.sight)
            factors = factors * (betas / reached).clamp(max=APART**2)
    return factors


def spectral_distance(spectrum: Real, reference: Real) -> Real:
    """Kolmogorov distance of spectra to a reference, all as increasing quantiles at the same levels."""
    spectrum, reference = np.broadcast_arrays(spectrum, reference)
    flat = zip(spectrum.reshape(-1, len(LEVELS)), reference.reshape(-1, len(LEVELS)), strict=True)
    found = [np.max(np.abs(np.interp(other, own, LEVELS) - LEVELS)) for own, other in flat]
    return np.array(found).reshape(spectrum.shape[:-1])
