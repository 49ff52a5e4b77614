"""Training of attention-only networks with and without the gap (Figures 6 and 8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

ATTENTIONS = ("markov", "identity", "key-query", "xavier")
PARTS = ("plain", "LN", "skip", "skip + LN")
GAPS = ("kept", "removed")
EARLY = 50
"""Steps within which claims are made: later some networks leave the plateau, at a time that depends on their size."""


@dataclass(frozen=True)
class Training(Study):
    """Attention-only networks learn the entrywise Heaviside function of orthonormal tokens, with and without the gap.

    A layer is ``A X W_V W_O`` with trainable ``A`` (or queries and keys), optionally with a skip connection and layer
    normalisation. All learning rates, repetitions and both gaps of an architecture are trained at once, each with an
    Adam of its own. The best learning rate is chosen by the mean of the last losses. Sizes are ours.
    """

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    tokens: int = parameter(Integers(4, 512), "tokens, and dimensions of each", 24, paper=48)
    depth: int = parameter(Integers(1, 16), "layers", 2)
    samples: int = parameter(Integers(1, 1000), "inputs to be learnt", 8, paper=16)
    steps: int = parameter(Integers(10, 10_000), "steps of Adam", 50, paper=300)
    rates: tuple[float, ...] = parameter(
        Each(Interval(1e-6, 1)), "learning rates", (0.01, 0.03), paper=(0.001, 0.003, 0.01, 0.03, 0.1)
    )
    repeats: int = parameter(Integers(2, 20), "networks of each kind", 2, paper=3)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train every architecture."""
        inputs = np.stack([_orthonormal(self.tokens, rng) for _ in range(self.samples)])
        losses = np.empty((len(ATTENTIONS), len(PARTS), len(GAPS), len(self.rates), self.repeats, self.steps))
        with one_thread():
            for a, p in track(list(product(range(len(ATTENTIONS)), range(len(PARTS)))), "architectures"):
                losses[a, p] = self._trained(inputs, ATTENTIONS[a], PARTS[p], rng)
        target = inputs > 0
        return xr.Dataset(
            {
                "loss": (("attention", "parts", "gap", "rate", "repeat", "step"), losses),
                "zero": ((), float(np.mean(target)), {"long_name": "loss of an output of zero"}),
                "collapsed": (
                    (),
                    float(target.var(axis=1).mean()),
                    {"long_name": "least loss of outputs whose tokens are all the same"},
                ),
            },
            coords={
                "attention": list(ATTENTIONS),
                "parts": list(PARTS),
                "gap": list(GAPS),
                "rate": list(self.rates),
                "step": np.arange(self.steps),
            },
        )

    def _trained(self, inputs: Any, attention: str, parts: str, rng: np.random.Generator) -> Any:
        """Losses with axes gap, rate, repeat, step."""
        import torch

        grid = np.meshgrid([0.0, 1 / self.tokens], self.rates, indexing="ij")
        mean, rate = (torch.tensor(np.repeat(each, self.repeats)).float() for each in grid)
        shape = (self.depth, self.tokens, self.tokens)
        drawn = [_weights(attention, parts, shape, rng) for _ in range(self.repeats)]
        # all gaps and rates start from the same weights, in one matrix with a row for each network
        rows = np.stack([np.concatenate([part.ravel() for part in each.values()]) for each in drawn])
        weights: Any = torch.tensor(np.tile(rows, (len(mean) // self.repeats, 1))).float().requires_grad_()
        shapes = {name: part.shape for name, part in drawn[0].items()}
        start = torch.tensor(inputs).float()
        target, losses, adam = (start > 0).float(), [], Adam(weights, rate)
        for _ in range(self.steps):
            parts_of = weights.split([int(np.prod(shape)) for shape in shapes.values()], dim=1)
            named = {name: each.unflatten(1, shapes[name]) for name, each in zip(shapes, parts_of, strict=True)}
            loss = (_network(start, named, parts, mean.view(-1, 1, 1, 1)) - target).square().flatten(1).mean(1)
            losses.append(loss.detach().numpy())
            adam.step(torch.autograd.grad(loss.sum(), weights)[0])
        return np.stack(losses, axis=-1).reshape(len(GAPS), len(self.rates), self.repeats, self.steps)

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The plateau of Xavier's scale, and what the gap does to it and to random Markov attention."""
        reached = best(data.isel(step=slice(EARLY))).isel(step=-1)
        xavier, markov = reached.sel(attention="xavier"), reached.sel(attention="markov")
        step, place = int(reached.step) + 1, "propagation, Figures 6 and 8"
        plateaus = [
            Claim(
                statement=f"Xavier, {parts}, gap kept: loss after {step} steps over the least of equal tokens",
                place=place,
                predicted=1.0,
                measured=float(xavier.sel(parts=parts, gap="kept").mean() / data.collapsed),
                error=standard_error(xavier.sel(parts=parts, gap="kept") / data.collapsed),
                tolerance=0.1,
                reason="attention is uniform but for terms of order 1/width, which begin to tell the tokens apart",
            )
            for parts in ("plain", "LN")
        ]
        ratio = markov.sel(gap="removed") / markov.sel(gap="kept")
        worst = ratio.isel(parts=int(ratio.mean("repeat").argmax("parts")))
        without = {
            parts: xavier.sel(parts=parts, gap="removed") / xavier.sel(parts=parts, gap="kept") for parts in PARTS
        }
        return [
            *plateaus,
            Claim(
                statement=f"Xavier, LN: loss after {step} steps without the gap over that with it",
                place=place,
                predicted=1.0,
                measured=float(without["LN"].mean()),
                error=standard_error(without["LN"]),
                tolerance=0.0,
                reason="normalised, what the mean hid is of order one: the plateau is left",
                relation="<=",
            ),
            Claim(
                statement=f"Xavier, plain: loss after {step} steps without the gap over that with it",
                place="ours: without normalisation, removing the gap of uniform attention leaves next to nothing",
                predicted=1.0,
                measured=float(without["plain"].mean()),
                error=standard_error(without["plain"]),
                tolerance=0.0,
                reason="outputs and gradients start at order width**(-depth)",
                relation=">=",
            ),
            Claim(
                statement=f"Markov: largest ratio of losses without and with the gap after {step} steps",
                place=place,
                predicted=1.0,
                measured=float(worst.mean()),
                error=standard_error(worst),
                tolerance=0.0,
                reason="removing the gap speeds up every architecture",
                relation="<=",
            ),
        ]


def best(data: xr.Dataset) -> xr.DataArray:
    """Loss curves at the learning rate with the best mean of last losses; one that diverged is not the best.

    Parameters
    ----------
    data : xarray.Dataset
        ``loss`` over ``rate``, ``step``, ``repeat`` and the dimensions of the networks.

    Returns
    -------
    xarray.DataArray
        The curves, without the dimension ``rate``: each network has its own best one.
    """
    last = data.loss.isel(step=-1, drop=True).mean("repeat", skipna=False)
    return data.loss.isel(rate=last.fillna(np.inf).argmin("rate"))


class Adam:
    """Adam on the rows of a matrix, each with a learning rate of its own, which torch's has not."""

    def __init__(self, weights: Any, rates: Any) -> None:
        self.weights, self.rates, self.count = weights, rates[:, None], 0
        self.first = self.second = 0 * weights.detach()

    def step(self, gradient: Any, decay: tuple[float, float] = (0.9, 0.999), floor: float = 1e-8) -> None:
        """Change the weights by one step of Adam along a gradient.

        Parameters
        ----------
        gradient : Tensor
            Of the shape of the weights.
        decay : tuple of two floats
            How much of the running means of gradients and of their squares a step keeps.
        floor : float
            What is added to the root of the latter, so that nothing is divided by zero.
        """
        self.count += 1
        self.first = self.first.lerp(gradient, 1 - decay[0])
        self.second = self.second.lerp(gradient.square(), 1 - decay[1])
        size = (self.second / (1 - decay[1] ** self.count)).sqrt() + floor
        self.weights.data -= self.rates / (1 - decay[0] ** self.count) * self.first / size


def _orthonormal(size: int, rng: np.random.Generator) -> Any:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def _weights(attention: str, parts: str, shape: tuple[int, int, int], rng: np.random.Generator) -> dict[str, Any]:
    """Weights of a network, a layer in each row."""
    unit = np.broadcast_to(np.eye(shape[1]), shape)
    drawn = {"values": rng.standard_normal(shape), "outputs": unit}
    if attention == "identity":
        drawn |= {"matrix": unit}
    elif attention == "markov":  # lognormal entries of variance one
        drawn |= {"scores": np.sqrt(np.log(2)) * rng.standard_normal(shape)}
    else:
        scale = shape[1] ** -0.5 if attention == "xavier" else 1.0
        drawn |= {name: scale * rng.standard_normal(shape) for name in ("queries", "keys")}
    if "LN" in parts:
        drawn |= {"gain": np.ones(shape[:2]), "bias": np.zeros(shape[:2])}
    return drawn


def _network(start: Any, weights: dict[str, Any], parts: str, mean: Any) -> Any:
    """Outputs of all networks for all inputs; `mean` is subtracted from the entries of attention."""
    from torch.nn.functional import layer_norm

    signal = start[None]
    for layer in range(weights["values"].shape[1]):
        # networks along the first dimension, inputs along the second
        here = {name: each[:, None, layer] for name, each in weights.items()}
        if "matrix" in here:
            matrix = here["matrix"]
        elif "scores" in here:
            matrix = here["scores"].softmax(-1)
        else:
            queries, keys = signal @ here["queries"], signal @ here["keys"]
            matrix = (queries @ keys.mT / start.shape[-1] ** 0.5).softmax(-1)
        branch = (matrix - mean) @ signal @ (here["values"] @ here["outputs"])
        signal = signal + branch if "skip" in parts else branch
        if "LN" in parts:
            signal = here["gain"][..., None, :] * layer_norm(signal, signal.shape[-1:]) + here["bias"][..., None, :]
    return signal


@contextmanager
def one_thread() -> Iterator[None]:
    """The rounding of torch's sums depends on the number of its threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
