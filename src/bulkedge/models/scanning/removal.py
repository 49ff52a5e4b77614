r"""Which heads of a model can go, and what predictions lose without them, from one pass for all heads.

To second order a set of heads costs :math:`\frac12 E (\sum_h F_h)^2`, where :math:`F_h` is the effect of a head's gate
on the loss of labels that were drawn from the model (:mod:`bulkedge.models.scanning.importance`). The sum stands inside
of the square: two heads that do the same cost more together than one by one, and two that undo each other less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Any

import numpy as np
import xarray as xr

from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, Interval
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate

EFFECTS = ("effects_text", "effects_copies")
"""Effects of gates on the loss of drawn labels, (draws, heads); copies are those of decoders that read tokens."""
SURE = 4.0  # standard errors that do not count where two heads undo each other


@dataclass(frozen=True)
class Removal:
    """Heads that can go, cheapest first: iterates as (layer, head).

    Attributes
    ----------
    heads : tuple of (int, int)
        Layer and head of each.
    cost : Estimate
        What predictions are expected to lose without all of them, to second order, in nats a token on the texts plus
        nats a token on copied random tokens. Its error is that of the drawn labels. The heads were chosen by the same
        draws, so that the cost is a little too small. Of a removal in steps, how far predictions were found to move.
    modules : mapping of int to str
        Paths of the attention modules of these layers.
    means : mapping of str to array of shape (heads, dimension)
        Mean outputs of all heads of these modules, before the projection, where the scan has them.
    """

    heads: tuple[tuple[int, int], ...]
    cost: Estimate
    modules: Mapping[int, str] = field(default_factory=dict, repr=False)
    means: Mapping[str, Real] = field(default_factory=dict, repr=False, compare=False)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Layer and head of each."""
        return iter(self.heads)

    def __len__(self) -> int:
        """How many heads go."""
        return len(self.heads)


def cheapest_heads(  # noqa: PLR0913 - how many, in which ways
    data: xr.Dataset,
    heads: int | None = None,
    share: float | None = None,
    budget: float | None = None,
    *,
    groups: bool = False,
    steps: int = 1,
    material: Any = None,
) -> Removal:
    """Heads of a scan, one after the other, each the one that adds least to what the set costs."""
    if sum(each is not None for each in (heads, share, budget)) != 1:
        raise DomainError("say how much to remove by one of heads=, share= and budget=")
    count, limit = data.sizes["item"], np.inf
    if heads is not None:
        count = Integers(1, count).check("heads", heads)
    elif share is not None:
        count = floor(Interval(0, 1).check("share", share) * count + 1e-9)
    else:
        limit = Interval(0, np.inf).check("budget", budget)
    units = _units(data, groups=groups)
    if Integers(1, 1000).check("steps", steps) > 1:
        order, cost = _stepwise(data, units, (count, limit, steps), material)
    else:
        effects = _effects(data, units, data)
        order = _greedy(effects, np.array([len(each) for each in units]), count, limit)
        cost = _cost(effects, order)
    places = list(zip(data["layer"].to_numpy().tolist(), data["head"].to_numpy().tolist(), strict=True))
    chosen = [each for unit in order for each in units[unit]]
    modules = {int(data["layer"][each]): str(data["module"].to_numpy()[each]) for each in chosen}
    means = {name: each for name, each in mean_outputs(data).items() if name in modules.values()}
    return Removal(tuple(places[each] for each in chosen), cost, modules, means)


def _stepwise(
    data: xr.Dataset, units: list[Real], wanted: tuple[int, float, int], material: Any
) -> tuple[list[int], Estimate]:
    """Units in steps: those of each are the cheapest once the ones before are off, and what is off is measured."""
    if material is None:
        raise DomainError("a loaded scan has no model to measure again: leave steps out, or scan anew")
    count, limit, steps = wanted
    sizes, items, order = np.array([len(each) for each in units]), material.items, list[int]()

    def at(gone: list[int]) -> Any:
        return material.gates_without(each for unit in gone for each in units[unit])

    cost = Estimate(0.0, 0.0, 1)
    for step in range(1, steps + 1):
        effects = _effects(data, units, {name: each[:, items] for name, each in material.effects(at(order)).items()})
        room = (limit - cost.value) / (steps + 1 - step)
        more = _greedy(effects, sizes, count * step // steps, room, order)
        while more:
            measured = material.cost(at([*order, *more]))
            if measured.value <= limit:
                order, cost = [*order, *more], measured
                break
            more = more[: len(more) // 2]  # it costs more than was predicted
    return order, cost


def cost_curve(data: xr.Dataset) -> tuple[Real, Real, Real]:
    """How many heads go, the cheapest first and half of them at most; what they are predicted to cost; its error."""
    units = _units(data, groups=False)
    sizes = np.array([len(each) for each in units])
    effects = _effects(data, units, data)
    order = _greedy(effects, sizes, max(1, data.sizes["item"] // 2), np.inf)
    found = [Estimate.of(np.square(np.cumsum(each[:, order], axis=1)) / 2) for each in effects]
    errors = np.sqrt(sum(each.error**2 for each in found))
    return np.cumsum(sizes[order]), np.asarray(sum(each.value for each in found)), np.asarray(errors)


def mean_outputs(data: xr.Dataset) -> dict[str, Real]:
    """Mean outputs of the heads of each module, (heads, dimension); of those that were read whole."""
    found = {}
    for name, one in data[["mean_output"]].groupby("module") if "mean_output" in data else ():
        outputs = one.isel(item=np.unique(one["head"], return_index=True)[1])["mean_output"].to_numpy()
        if len(outputs := outputs[:, ~np.isnan(outputs).any(0)]) and outputs.shape[1]:
            found[str(name)] = outputs
    return found


def _units(data: xr.Dataset, *, groups: bool) -> list[Real]:
    """Heads that go together: those of one key, if asked for, and those of a module that is called several times."""
    numbers = data["key_head" if groups else "head"].to_numpy().tolist()
    found: dict[tuple[str, int], list[int]] = {}
    for item, each in enumerate(zip(data["module"].to_numpy().tolist(), numbers, strict=True)):
        found.setdefault(each, []).append(item)
    return [np.array(each) for each in found.values()]


def _effects(data: xr.Dataset, units: list[Real], effects: Mapping[Any, Any]) -> list[Real]:
    """Effects of the units on texts and on copies, (draws, units) each, from those of the heads."""
    names = list(zip(data["module"].to_numpy().tolist(), data["head"].to_numpy().tolist(), strict=True))
    calls = np.array([names.count(each) for each in names])  # the gate of a module is that of all of its calls
    own = [np.asarray(effects[name]) / calls for name in EFFECTS if name in effects]
    return [np.stack([each[:, unit].sum(1) for unit in units], 1) for each in own]


def _greedy(effects: list[Real], sizes: Real, count: int, limit: float, gone: Sequence[int] = ()) -> list[int]:
    """Units in the order in which they go, while there are no more than so many heads and the cost is in the limit."""
    left, order = np.ones(len(sizes), dtype=bool), list[int]()
    left[list(gone)] = False
    count -= int(sizes[list(gone)].sum())
    while True:
        # of those that went, and each one more
        costs = sum(np.square(each[:, order].sum(1, keepdims=True) + each).mean(0) / 2 for each in effects)
        fits = left & (sizes[order].sum() + sizes <= count) & (costs <= limit)
        if not fits.any():
            return order
        added = sum(_added(each[:, order].sum(1, keepdims=True), each) for each in effects)
        chosen = int(np.argmin(np.where(fits, added / sizes, np.inf)))
        left[chosen] = False
        order.append(chosen)


def _added(together: Real, effects: Real) -> Real:
    """What each unit adds to the cost of those that went, where those that undo them have to be sure to do so."""
    # of many units some undo the others by the chance of the draws, and the cheapest is looked for among them
    products = together * effects
    error = products.std(0, ddof=1) / len(products) ** 0.5 if len(products) > 1 else 0.0
    shared = products.mean(0)
    shared = np.where(shared < 0, np.minimum(shared + SURE * error, 0), shared)
    return np.asarray(np.square(effects).mean(0) / 2 + shared)


def _cost(effects: list[Real], order: list[int]) -> Estimate:
    """What units cost together, summed over texts and copies."""
    parts = [Estimate.of(np.square(each[:, order].sum(1)) / 2) for each in effects]
    error = float(np.sqrt(sum(each.error**2 for each in parts)))
    return Estimate(sum(each.value for each in parts), error, min(each.freedom for each in parts))
