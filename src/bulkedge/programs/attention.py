"""Ready pieces of programs: attention, perceptron, LayerNorm, blocks with skip connections, and stacks of them.

A piece is a function of traced vectors, so pieces nest:
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import numpy as np
from array_api_compat import array_namespace

from bulkedge.programs.activations import ACTIVATIONS
from bulkedge.programs.graph import (
    TRACED,
    Program,
    Traced,
    center,
    dot,
    linear,
    nonlin,
    scalar,
    softmax,
    sum_copies,
    trace,
)
from bulkedge.programs.instructions import DotScaling
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FLAG, FUNCTION, Choice, Integers, Interval, Parametric, parameter, takes
from bulkedge.support.errors import DomainError

HEADS = Integers(1, 10_000)


@dataclass(frozen=True)
class Attention(Parametric):
    """Multi-head softmax attention at initialisation (*width*, section 3).

    ``y = sum_a W_O^a softmax(q^a · k^a / sqrt(d)) v^a`` over H heads, where the variance of the output is shared by the
    heads. Scores are over the root of the head width d, or over d (``"linear"``), where they vanish unless queries and
    keys are tied.

    >>> layer = trace(Attention(heads=2), equal_correlations(3, 0.5))
    >>> layer.limit(np.random.default_rng(0), draws=10_000).var(axis=0).round(1)
    array([0.7, 0.7, 0.7])
    """

    heads: int = parameter(HEADS, "number of heads H", 2)
    score_scaling: str = parameter(Choice(("sqrt", "linear")), "scores over the root of their width, or it", "sqrt")
    head_width: str = parameter(Choice(("full", "split")), "heads of width n, or of n/H", "full")
    tied: bool = parameter(FLAG, "whether queries and keys share their weights", default=False)
    projection: bool = parameter(FLAG, "whether there is an output projection", default=True)
    score_variance: float = parameter(Interval(1e-6, 1e6), "variance of query weights times that of key weights", 1.0)

    def __post_init__(self) -> None:
        """Check the parameters, and that the heads can be summed."""
        super().__post_init__()
        if self.head_width == "split" and not self.projection:
            raise DomainError("head_width = 'split' needs projection = True: outputs of width n/H are projected to n")

    def __call__(self, x: Traced) -> Traced:
        """Write the layer."""
        share = Fraction(1, self.heads if self.head_width == "split" else 1)
        deviation = self.score_variance**0.5
        query = linear(x, share, deviation, self.heads)
        key = query if self.tied else linear(x, share, deviation, self.heads)
        weights = scalar(softmax, dot(query, key, cast("DotScaling", self.score_scaling)))
        attended = weights @ linear(x, share, 1 / self.heads, self.heads)
        return sum_copies(linear(attended, copies=self.heads) if self.projection else attended)


@dataclass(frozen=True)
class Perceptron(Parametric):
    """``W_2 f(W_1 x)``, with a hidden layer several times as wide.

    >>> layer = trace(Perceptron("relu"), np.eye(2))
    >>> layer.limit(np.random.default_rng(0), draws=10_000).var(axis=0).round(1)
    array([1., 1.])
    """

    activation: str = parameter(Choice(tuple(ACTIVATIONS)), "activation f", "relu")
    variance: float = parameter(Interval(1e-6, 1e6), "variance of the second weights; 2 keeps the norm with ReLU", 2.0)
    expansion: int = parameter(Integers(1, 64), "width of the hidden layer over n", 1)

    def __call__(self, x: Traced) -> Traced:
        """Write the layer."""
        return linear(nonlin(ACTIVATIONS[self.activation], linear(x, self.expansion)), 1, self.variance)


@takes(x=TRACED)
def layer_norm(x: Traced) -> Traced:
    """Every vector minus its mean, over its standard deviation.

    Parameters
    ----------
    x : Traced
        Vectors of a program that is being traced, one for each position.

    Returns
    -------
    Traced
        As many vectors, whose coordinates have mean zero and mean square one at each position; a vector without any
        variance becomes zero. There is no gain and no bias.

    Examples
    --------
    >>> trace(lambda x: layer_norm(linear(x)), np.eye(2)).outputs
    ('y6',)
    """
    centred = center(x)
    return scalar(inverse_norms, dot(centred, centred, "linear")) @ centred


def inverse_norms(gram: Any) -> Any:
    """Diagonal matrices of inverse norms, from Gram matrices; zero vectors stay zero."""
    xp = array_namespace(gram)
    size = gram.shape[-2]
    one = xp.eye(size, dtype=gram.dtype, device=gram.device)[:, :, None]
    inside = one * gram
    return one * xp.where(inside > 0, xp.where(inside > 0, inside, 1.0) ** -0.5, 0.0)


@dataclass(frozen=True)
class Block(Parametric):
    """A transformer block: attention, and optionally a perceptron, LayerNorm and skip connections.

    >>> block = trace(Block(perceptron=Perceptron(), norm="pre"), np.eye(2))
    >>> block.limit(np.random.default_rng(0), draws=10_000).var(axis=0).round(1)
    array([2.6, 2.6])
    """

    attention: Attention = Attention()
    perceptron: Perceptron | None = None
    skip: bool = parameter(FLAG, "whether each part adds to its input", default=True)
    norm: str = parameter(Choice(("none", "pre", "post")), "LayerNorm before each part, after it, or nowhere", "none")

    def __call__(self, x: Traced) -> Traced:
        """Write the block."""
        for part in (self.attention, self.perceptron):
            if part is not None:
                x = self._step(part, x)
        return x

    def _step(self, part: Callable[[Traced], Traced], x: Traced) -> Traced:
        y = part(layer_norm(x) if self.norm == "pre" else x)
        if self.skip:
            y = x + y
        return layer_norm(y) if self.norm == "post" else y


def equal_correlations(inputs: int, correlation: float = 0.0) -> Real:
    """Gram matrix of inputs of unit norm, any two with the same correlation.

    Parameters
    ----------
    inputs : int
        Number of inputs (tokens).
    correlation : float
        Cosine between any two, from ``-1/(inputs - 1)`` to 1.

    Returns
    -------
    array of shape (inputs, inputs)
        ``x_i · x_j / n``: ones on the diagonal, the correlation elsewhere.

    Examples
    --------
    >>> equal_correlations(2, 0.5)
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    inputs = Integers(1, 10_000).check("inputs", inputs)
    correlation = Interval(-1 / max(inputs - 1, 1), 1).check("correlation", correlation)
    return (1 - correlation) * np.eye(inputs) + correlation


def attention_layer(gram: Any, heads: int = 2, score_scaling: DotScaling = "sqrt", **options: Any) -> Program:
    """One attention layer on inputs with a Gram matrix (*width*, section 3).

    Parameters
    ----------
    gram : array_like of shape (inputs, inputs)
        ``x_i · x_j / n`` of the inputs; symmetric, positive semidefinite.
    heads : int
        Number of heads H.
    score_scaling : {"sqrt", "linear"}
        Scores are ``q · k`` over the root of their width, random in the limit, or over the width, where they vanish
        unless queries and keys are tied.
    **options : object
        Further parameters of :class:`Attention`, by name.

    Returns
    -------
    Program
        It returns the vectors after attention, one for each input.

    Examples
    --------
    >>> layer = attention_layer(np.eye(3), heads=2)
    >>> layer.limit(np.random.default_rng(0), draws=5).shape     # a coordinate of the three vectors
    (5, 3)
    """
    return trace(Attention(heads, score_scaling, **options), gram)


@takes(block=FUNCTION)
def stack(gram: Any, block: Callable[[Traced], Traced], depth: int) -> Program:
    """A stack of blocks; returns the kernels ``x_i · x_j / n`` after each of them, and the last vectors.

    In the limit the kernels are a Markov chain: each is drawn given the one before.

    Parameters
    ----------
    gram : array_like of shape (inputs, inputs)
        ``x_i · x_j / n`` of the inputs; symmetric, positive semidefinite.
    block : callable
        From traced vectors to traced vectors, as many and as wide: :class:`Attention` or what is built on it.
    depth : int
        How many blocks, each with weights of its own.

    Returns
    -------
    Program
        Its outputs are ``depth`` families of scalars of shape (inputs, inputs), then the vectors.

    Examples
    --------
    >>> kernels = stack(np.eye(2), Attention(heads=1), depth=2).limit(np.random.default_rng(0), draws=5)
    >>> [each.shape for each in kernels]
    [(5, 2, 2), (5, 2, 2), (5, 2)]
    """
    Integers(1, 1000).check("depth", depth)

    def write(x: Traced) -> tuple[Traced, ...]:
        kernels = []
        for _ in range(depth):
            x = block(x)
            kernels.append(dot(x, x, "linear"))
        return (*kernels, x)

    return trace(write, gram)
