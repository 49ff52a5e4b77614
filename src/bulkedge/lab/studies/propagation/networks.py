"""Attention-only networks that learn the entrywise Heaviside function, many of them trained at once.

A layer is ``A X W_V W_O`` with trainable ``A`` (or queries and keys), values of a given deviation and outputs that
start as the identity, optionally beside a skip connection and before a layer normalisation (appendix A.3.1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from bulkedge.support.arrays import Real
from bulkedge.support.estimates import Estimate

GAPS = ("kept", "removed")


class Architecture(NamedTuple):
    """What a network is made of.

    Attributes
    ----------
    attention : {"markov", "identity", "key-query", "xavier"}
        Softmax of free scores that starts as a random Markov matrix of variance one; free entries that start as the
        identity; queries and keys with entries of variance one, or with Xavier's variance ``1/d``.
    parts : {"plain", "LN", "skip", "skip + LN"}
        What stands beside attention.
    depth : int
        Number of layers.
    value_std : float
        Standard deviation of the entries of the value matrices.
    """

    attention: str
    parts: str = "plain"
    depth: int = 1
    value_std: float = 1.0


def isometric(repeats: int, samples: int, tokens: int, rng: np.random.Generator) -> Real:
    """Orthonormal tokens, as many as they have dimensions."""
    return np.asarray(np.linalg.qr(rng.standard_normal((repeats, samples, tokens, tokens)))[0])


def trained(
    inputs: Real, network: Architecture, rates: tuple[float, ...], steps: int, rng: np.random.Generator
) -> Real:
    """Mean squared errors of networks before each step of Adam, and after the last.

    With the gap and without it and with each learning rate, training starts from the same weights. All run at once,
    each with an Adam of its own.
    """
    import torch

    repeats, _, tokens, _ = inputs.shape
    grid = np.meshgrid([0.0, 1 / tokens], rates, indexing="ij")
    mean, rate = (torch.tensor(np.repeat(each, repeats)).float() for each in grid)
    copies = len(mean) // repeats
    drawn = [draw_weights(network, tokens, rng) for _ in range(repeats)]
    # one matrix with a row for each network, so that one Adam serves all
    rows = np.stack([np.concatenate([part.ravel() for part in each.values()]) for each in drawn])
    weights: Any = torch.tensor(np.tile(rows, (copies, 1))).float().requires_grad_()
    shapes = {name: part.shape for name, part in drawn[0].items()}
    start = torch.tensor(np.tile(inputs, (copies, 1, 1, 1))).float()
    target, losses, adam = (start > 0).float(), [], Adam(weights, rate)
    for step in range(steps + 1):
        parts_of = weights.split([int(np.prod(shape)) for shape in shapes.values()], dim=1)
        named = {name: each.unflatten(1, shapes[name]) for name, each in zip(shapes, parts_of, strict=True)}
        outputs = forward(start, named, network.parts, mean.view(-1, 1, 1, 1))
        loss = (outputs - target).square().flatten(1).mean(1)
        losses.append(loss.detach().numpy())
        if step < steps:
            adam.step(torch.autograd.grad(loss.sum(), weights)[0])
    shape = (len(GAPS), len(rates), repeats, steps + 1)
    return np.stack(losses, axis=-1).reshape(shape).astype(float)


def levels(inputs: Real) -> dict[str, Any]:
    """Losses that curves are compared with, for each repetition."""
    target = inputs > 0
    return {
        "zero": ("draw", target.mean(axis=(1, 2, 3)), {"long_name": "loss of an output of zero"}),
        "collapsed": (
            "draw",
            target.var(axis=2).mean(axis=(1, 2)),
            {"long_name": "least loss of outputs whose tokens are all the same"},
        ),
    }


def best(data: xr.Dataset) -> xr.DataArray:
    """Loss curves at the learning rate with the best mean of last losses; one that diverged is not the best."""
    last = data.loss.isel(step=-1, drop=True).mean("draw", skipna=False)
    return data.loss.isel(rate=last.fillna(np.inf).argmin("rate"))


def log_ratio(over: xr.DataArray, under: xr.DataArray) -> Estimate:
    """Mean logarithm of a ratio of losses, a draw at a time, with its standard error."""
    return Estimate.of(np.log(over.values / under.values))


class Adam:
    """Adam on the rows of a matrix, each with a learning rate of its own, which torch's has not."""

    def __init__(self, weights: Any, rates: Any) -> None:
        self.weights, self.rates, self.count = weights, rates[:, None], 0
        self.first = self.second = 0 * weights.detach()

    def step(self, gradient: Any, decay: tuple[float, float] = (0.9, 0.999), floor: float = 1e-8) -> None:
        """Change the weights by one step of Adam along a gradient."""
        self.count += 1
        self.first = self.first.lerp(gradient, 1 - decay[0])
        self.second = self.second.lerp(gradient.square(), 1 - decay[1])
        size = (self.second / (1 - decay[1] ** self.count)).sqrt() + floor
        self.weights.data -= self.rates / (1 - decay[0] ** self.count) * self.first / size


def draw_weights(network: Architecture, width: int, rng: np.random.Generator) -> dict[str, Real]:
    """Initial weights of a network."""
    shape = (network.depth, width, width)
    unit = np.broadcast_to(np.eye(width), shape)
    drawn: dict[str, Any] = {"values": network.value_std * rng.standard_normal(shape), "outputs": unit}
    if network.attention == "identity":
        drawn |= {"matrix": unit}
    elif network.attention == "markov":  # lognormal entries of variance one
        drawn |= {"scores": np.sqrt(np.log(2)) * rng.standard_normal(shape)}
    else:
        scale = width**-0.5 if network.attention == "xavier" else 1.0
        drawn |= {name: scale * rng.standard_normal(shape) for name in ("queries", "keys")}
    if "LN" in network.parts:
        drawn |= {"gain": np.ones(shape[:2]), "bias": np.zeros(shape[:2])}
    return drawn


def forward(start: Any, weights: dict[str, Any], parts: str, mean: Any) -> Any:
    """Outputs of all networks for their inputs."""
    from torch.nn.functional import layer_norm

    signal = start
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
