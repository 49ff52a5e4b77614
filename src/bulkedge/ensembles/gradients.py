"""Gradients ``dX_L/dW_l`` of a stack with respect to its value matrices, measured on a draw.

Where the stack is linear, ``dX_L/dW_l = (W_{l+1} ... W_L)' (x) (A_L ... A_l X_{l-1})`` and its norm is a product of two
norms: exact, without the Kronecker product (*propagation*, equation 19). With a skip connection it is a sum of such
products over the layers that are passed by. Elsewhere torch differentiates.

>>> import numpy as np
>>> from bulkedge.ensembles.stack import AttentionStack
>>> stack = AttentionStack(2, 60, 60, gap=False)
>>> norms = gradient_norms(stack, stack.layers(np.random.default_rng(0)))
>>> [round(each, 1) for each in (norms / stack.predicted_gradient()).tolist()]
[0.7, 0.7]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bulkedge.arrays import Real
from bulkedge.ensembles.stack import AttentionStack, Layer, Weights

MOST_PATHS = 256
"""Ways through the layers above, up to which the sum over them is taken: eight layers with skip."""


def gradient_norms(stack: AttentionStack, layers: Iterable[Layer]) -> Real:
    """``|dX_L/dW_l|_F**2`` for every layer l of a draw, exact.

    Parameters
    ----------
    stack : AttentionStack
        A stack whose layers are linear: Markov or identity attention, no LayerNorm.
    layers : iterable of Layer
        A draw of it.
    """
    if not stack.linear:
        raise ValueError("the Kronecker form needs a linear stack; autograd_gradient_norms differentiates any")
    drawn = list(layers)
    if stack.skip is not None and 2 ** (len(drawn) - 1) > MOST_PATHS:
        raise ValueError(
            f"depth = {len(drawn)} with skip has 2**{len(drawn) - 1} ways through it, {MOST_PATHS} at most: "
            "use autograd_gradient_norms"
        )
    paths = _Paths(stack)
    norms = []
    for index in range(len(drawn) - 1, -1, -1):
        below = drawn[index - 1].signal if index else stack.start()
        norms.append(paths.norm(drawn[index].attention @ below))
        paths.extend(drawn[index])
    return np.array(norms[::-1])


class _Paths:
    """Ways from a layer to the top: for each, a weight, the product of the values and that of the attention."""

    def __init__(self, stack: AttentionStack) -> None:
        self.skip = 0.0 if stack.skip is None else stack.skip_weight
        self.ways = [(1.0, np.eye(stack.width), np.eye(stack.tokens))]

    def extend(self, layer: Layer) -> None:
        """Go one layer further down."""
        through = [
            (weight, layer.weights.values @ values, attention @ layer.attention)
            for weight, values, attention in self.ways
        ]
        past = [(self.skip * weight, values, attention) for weight, values, attention in self.ways]
        self.ways = through + (past if self.skip else [])

    def norm(self, source: Real) -> float:
        """Squared norm of ``sum_k weight_k values_k' (x) (attention_k source)``: inner products multiply."""
        values = np.stack([weight * values.ravel() for weight, values, _ in self.ways])
        tokens = np.stack([(attention @ source).ravel() for _, _, attention in self.ways])
        return float(np.sum((values @ values.T) * (tokens @ tokens.T)))


def autograd_gradient_norms(
    stack: AttentionStack, layers: Iterable[Layer], rng: np.random.Generator | None = None, probes: int = 8
) -> tuple[Real, Real]:
    """``|dX_L/dW_l|_F**2`` for every layer of a draw by automatic differentiation, and its standard error.

    Parameters
    ----------
    stack : AttentionStack
        Any stack that is differentiable: all but ``gap="all"``.
    layers : iterable of Layer
        A draw of it.
    rng : numpy.random.Generator, optional
        Estimates the norm from random probes g, as the mean of ``|J' g|**2``; without it all ``T d`` rows of J are
        computed, and the errors are zero.
    probes : int
        Number of probes, at least two.
    """
    import torch

    if stack.gap == "all":
        raise ValueError("gap = 'all' counts outliers, which is not differentiable")
    weights = [_as_tensors(layer.weights) for layer in layers]
    signal: Any = torch.as_tensor(stack.start())
    for each in weights:
        _, signal = stack.step(signal, each)
    values = [each.values for each in weights]
    if rng is None:
        directions: Any = torch.eye(signal.numel(), dtype=signal.dtype)
    else:
        directions = torch.as_tensor(rng.standard_normal((probes, signal.numel())))
    squares = np.array(
        [
            [float(torch.sum(each**2)) for each in _pullback(torch, signal, values, direction)]
            for direction in directions
        ]
    )
    if rng is None:
        return squares.sum(axis=0), np.zeros(len(values))
    return squares.mean(axis=0), squares.std(axis=0, ddof=1) / np.sqrt(probes)


def _as_tensors(weights: Weights) -> Weights:
    import torch

    parts = {name: torch.as_tensor(part) for name, part in vars(weights).items() if part is not None}
    parts["values"].requires_grad_()
    return Weights(**parts)


def _pullback(torch: Any, signal: Any, values: list[Any], direction: Any) -> Any:
    return torch.autograd.grad(signal, values, direction.reshape(signal.shape), retain_graph=True)
