"""Gradients ``dX_L/dW_l`` of a stack with respect to its value matrices, measured on a draw.

Where the stack is linear, ``dX_L/dW_l = (W_{l+1} ... W_L)' (x) (A_L ... A_l X_{l-1})`` and its norm is a product of two
norms: exact, without the Kronecker product (*propagation*, equation 19). With a skip connection it is a sum of such
products over the layers that are passed by. Elsewhere, reverse-mode differentiation of random probes estimates it
(docs/theory/propagation.md, "Gradients").

>>> import numpy as np
>>> from bulkedge.ensembles.stack import AttentionStack
>>> stack = AttentionStack(2, 60, 60, gap=False)
>>> layers = list(stack.layers(np.random.default_rng(0)))
>>> norms = gradient_norms(stack, layers)
>>> [round(each, 1) for each in (norms / stack.predicted_gradient()).tolist()]
[0.7, 0.7]
>>> estimate, error = estimated_gradient_norms(stack, layers, np.random.default_rng(1))
>>> bool(np.all(np.abs(estimate - norms) < 4 * error))
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bulkedge.ensembles.stack import AttentionStack, StackLayer
from bulkedge.support.arrays import Real
from bulkedge.support.domains import GENERATOR, MATRIX, Each, Instance, Integers, takes
from bulkedge.support.errors import DomainError

STACK, LAYERS = Instance(AttentionStack), Each(Instance(StackLayer))
MOST_PATHS = 256  # ways through the layers above, up to which the sum over them is taken: eight layers with skip


@takes(stack=STACK, layers=LAYERS)
def gradient_norms(stack: AttentionStack, layers: Iterable[StackLayer]) -> Real:
    """``|dX_L/dW_l|_F**2`` for every layer l of a draw, exact.

    Parameters
    ----------
    stack : AttentionStack
        A stack whose layers are linear: Markov or identity attention, no LayerNorm.
    layers : iterable of StackLayer
        A draw of it.

    Returns
    -------
    array of shape (L,)
        The squared norms, first layer first.

    Raises
    ------
    DomainError
        If the stack is not linear, or has too many ways around its layers.

    Examples
    --------
    >>> stack = AttentionStack(2, 60, 60, gap=False)
    >>> gradient_norms(stack, stack.layers(np.random.default_rng(0))).round(1)
    array([42.1, 44.2])
    """
    drawn = list(layers)
    if not stack.linear:
        raise DomainError("the Kronecker form needs a linear stack; estimated_gradient_norms differentiates any")
    if stack.skip and 2 ** (len(drawn) - 1) > MOST_PATHS:
        raise DomainError(
            f"depth = {len(drawn)} with skip has 2**{len(drawn) - 1} ways through it, {MOST_PATHS} at most: "
            "use estimated_gradient_norms"
        )
    # ways from a layer to the top: for each, a weight, the product of the values and that of the attention
    ways, norms = [(1.0, np.eye(stack.width), np.eye(stack.tokens))], []
    for layer, below in zip(drawn[::-1], _inputs(stack, drawn)[::-1], strict=True):
        source = layer.attention @ below
        # squared norm of sum_k weight_k values_k' (x) (attention_k source): inner products multiply
        left = np.stack([weight * values.ravel() for weight, values, _ in ways])
        right = np.stack([(attention @ source).ravel() for _, _, attention in ways])
        norms.append(float(np.sum((left @ left.T) * (right @ right.T))))
        past = [(stack.skip * weight, values, attention) for weight, values, attention in ways] if stack.skip else []
        ways = [
            (weight, layer.weights.values @ values, attention @ layer.attention) for weight, values, attention in ways
        ]
        ways += past
    return np.array(norms[::-1])


def _inputs(stack: AttentionStack, layers: Sequence[StackLayer]) -> list[Real]:
    """The signal that enters each layer."""
    return [stack.start(), *(layer.signal for layer in layers[:-1])]


@takes(stack=STACK, layers=LAYERS, rng=GENERATOR, probes=Integers(2, 10**6))
def estimated_gradient_norms(
    stack: AttentionStack, layers: Iterable[StackLayer], rng: np.random.Generator, probes: int = 16
) -> tuple[Real, Real]:
    """``|dX_L/dW_l|_F**2`` for every layer of a draw of any stack, and its standard error.

    The mean of ``|J' g|**2`` over Gaussian probes g is ``|J|_F**2`` (Hutchinson 1989); :func:`pullback` gives ``J' g``.

    Parameters
    ----------
    stack : AttentionStack
        A stack that is differentiable: all but ``gap="all"``.
    layers : iterable of StackLayer
        A draw of it.
    rng : numpy.random.Generator
        Draws the probes.
    probes : int
        How many.

    Returns
    -------
    norms : array of shape (L,)
        Estimates of the squared norms, first layer first.
    errors : array of shape (L,)
        Their standard errors.

    Examples
    --------
    >>> stack, rng = AttentionStack(2, 60, 60, layer_norm=True), np.random.default_rng(0)
    >>> norms, errors = estimated_gradient_norms(stack, stack.layers(rng), rng)
    >>> bool((errors < 0.2 * norms).all())
    True
    """
    drawn = list(layers)
    squares = np.array(
        [
            [np.sum(part**2) for part in pullback(stack, drawn, rng.standard_normal(drawn[-1].signal.shape))]
            for _ in range(probes)
        ]
    )
    return squares.mean(axis=0), squares.std(axis=0, ddof=1) / np.sqrt(probes)


@takes(stack=STACK, layers=LAYERS, cotangent=MATRIX)
def pullback(stack: AttentionStack, layers: Sequence[StackLayer], cotangent: Real) -> list[Real]:
    """Gradients of ``sum(cotangent * X_L)`` with respect to the value matrices, by reverse-mode differentiation.

    Parameters
    ----------
    stack : AttentionStack
        A stack that is differentiable: all but ``gap="all"``.
    layers : sequence of StackLayer
        A draw of it.
    cotangent : array of shape (T, d)
        Weight of each entry of the last signal ``X_L``.

    Returns
    -------
    list of arrays of shape (d, d)
        The gradient of each layer's value matrix ``W_l``, first layer first.

    Raises
    ------
    DomainError
        For ``gap="all"``, whose number of outliers is not differentiable.

    Examples
    --------
    >>> stack = AttentionStack(2, 8, 16)
    >>> layers = list(stack.layers(np.random.default_rng(0)))
    >>> [each.shape for each in pullback(stack, layers, np.ones((8, 16)))]
    [(16, 16), (16, 16)]
    """
    if stack.gap == "all":
        raise DomainError("gap = 'all' counts outliers, which is not differentiable")
    if np.shape(cotangent) != layers[-1].signal.shape:
        raise DomainError(f"cotangent has shape {np.shape(cotangent)}; the signal has {layers[-1].signal.shape}")
    gradients: list[Real] = []
    for layer, below in zip(layers[::-1], _inputs(stack, layers)[::-1], strict=True):
        if stack.layer_norm:
            cotangent = _through_norm(stack, layer, below, cotangent)
        gradients.append((layer.attention @ below).T @ cotangent)
        cotangent = _through_attention(stack, layer, below, cotangent)
    return gradients[::-1]


def _through_norm(stack: AttentionStack, layer: StackLayer, below: Real, cotangent: Real) -> Real:
    """Before LayerNorm: changes along the token or of its mean have no effect, others are divided by its length."""
    raw = layer.attention @ below @ layer.weights.values
    if stack.skip:
        raw = raw + stack.skip * below
    length = np.linalg.norm(raw - raw.mean(axis=1, keepdims=True), axis=1, keepdims=True)
    across = cotangent - layer.signal * np.sum(cotangent * layer.signal, axis=1, keepdims=True)
    return np.asarray((across - across.mean(axis=1, keepdims=True)) / length)


def _through_attention(stack: AttentionStack, layer: StackLayer, below: Real, cotangent: Real) -> Real:
    """Cotangent of a layer's input: along the skip, through the values, and through the scores."""
    weights = layer.weights
    back = cotangent @ weights.values.T
    result = layer.attention.T @ back
    if stack.skip:
        result = result + stack.skip * cotangent
    if weights.query is None:
        return np.asarray(result)
    softmax = layer.attention + (0.0 if stack.gap else 1 / stack.tokens)
    slopes = back @ below.T
    scores = softmax * (slopes - np.sum(softmax * slopes, axis=1, keepdims=True)) / np.sqrt(stack.width)
    result = result + scores @ (below @ weights.key) @ weights.query.T
    return np.asarray(result + scores.T @ (below @ weights.query) @ weights.key.T)
