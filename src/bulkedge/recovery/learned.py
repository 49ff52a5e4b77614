"""Pooling weights learned together with a ridge classifier (*recovery*, equation 44 and Appendix J).

For labels y and rows ``Y_i = sum_t w_t e(token_it)`` of an embedding table, the map computed here is

``w -> min_b |Y b - y|**2/N + ridge |b|**2``,

minimised over the simplex, ``w = softmax(theta)``. The inner problem is a ridge regression. At its optimum the
derivative in w is that of the residual alone (envelope theorem), ``-2/N sum_i r_i e(token_it).b``: the scores of the
table, gathered by token, so that no array of samples x length x dim is ever needed.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> table, tokens = rng.standard_normal((40, 5)), rng.integers(0, 40, (300, 3))
>>> labels = np.sign(table[tokens[:, 1], 0])                              # only the middle position matters
>>> learned_weights(table, tokens, labels, 0.01, rng).weights.round(1) + 0.0
array([0., 1., 0.])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve
from scipy.optimize import minimize

from bulkedge.ensembles.weights import pool
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import FINITE, GENERATOR, MATRIX, Integers, Interval, takes
from bulkedge.support.errors import DomainError
from bulkedge.visibility import softmax

REACH = 15.0  # bound on the logits: weights down to exp(-30) of the largest differ from zero


class LearnedWeights(NamedTuple):
    """Weights on the simplex, and the regularised training loss that they attain."""

    weights: Real
    loss: float


class LossGradient(NamedTuple):
    """The smallest regularised loss at given weights, and its derivative in each of them."""

    loss: float
    gradient: Real


def ridge_coefficients(rows: Real, labels: Real, ridge: float) -> Real:
    """The minimiser of ``|Y b - y|**2/N + ridge |b|**2``, by the smaller of its two normal equations."""
    samples, dim = rows.shape
    if dim <= samples:
        gram = rows.T @ rows / samples + ridge * np.eye(dim)
        return np.asarray(solve(gram, rows.T @ labels / samples, assume_a="pos"))
    gram = rows @ rows.T / samples + ridge * np.eye(samples)
    return np.asarray(rows.T @ solve(gram, labels / samples, assume_a="pos"))


def ridge_loss(table: Real, tokens: Any, labels: Real, ridge: float, weights: Real) -> LossGradient:
    """The smallest regularised loss at these weights, and its gradient by the envelope theorem."""
    rows = pool(table, tokens, weights)
    coefficients = ridge_coefficients(rows, labels, ridge)
    residual = labels - rows @ coefficients
    loss = residual @ residual / len(labels) + ridge * coefficients @ coefficients
    scores = (table @ coefficients)[tokens]
    return LossGradient(float(loss), -2 / len(labels) * residual @ scores)


def learned_weights(  # noqa: PLR0913  # three arrays of data, then how to fit them
    table: ArrayLike, tokens: ArrayLike, labels: ArrayLike, ridge: float, rng: np.random.Generator, *, restarts: int = 4
) -> LearnedWeights:
    """Pooling weights that minimise the training loss of a ridge classifier.

    Parameters
    ----------
    table : array of shape (vocab, dim)
        Embeddings.
    tokens : array of integers, shape (samples, length)
        Rows of the table that make up each sequence.
    labels : array of shape (samples,)
        Targets of the regression, +1 and -1 for two classes.
    ridge : float
        Penalty on the squared norm of the coefficients, with the loss averaged over the samples.
    rng : numpy.random.Generator
        For the starting points.
    restarts : int
        Starting points: equal weights first, then random ones. The loss is not convex; the best minimum is kept.

    Returns
    -------
    LearnedWeights
        The weights and the loss there.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tokens = rng.integers(0, 20, (200, 4))
    >>> table = np.sign(np.arange(20) - 9.5)[:, None] + 0.1 * rng.standard_normal((20, 3))
    >>> labels = np.sign(tokens[:, 0] - 9.5)                            # the first token says it all
    >>> int(learned_weights(table, tokens, labels, 0.1, rng).weights.argmax())
    0
    """
    embeddings, sequences, targets = _check_sequences(table, tokens, labels)
    loss = partial(ridge_loss, embeddings, sequences, targets, Interval(1e-12, 1e12).check("ridge", ridge))
    return minimise_on_simplex(loss, sequences.shape[1], rng, restarts)


def through_softmax(theta: Real, gradient: Real) -> Real:
    """Derivative in the logits, from the derivative in the weights."""
    weights = softmax(theta)
    return np.asarray(weights * (gradient - weights @ gradient))


@takes(rng=GENERATOR, restarts=Integers(1, 10_000))
def minimise_on_simplex(
    loss: Callable[[Real], LossGradient], length: int, rng: np.random.Generator, restarts: int
) -> LearnedWeights:
    """The best of several runs of L-BFGS-B in the logits, of a loss that comes with its gradient in the weights."""

    def objective(theta: Real) -> tuple[float, Real]:
        value, gradient = loss(np.asarray(softmax(theta)))
        return value, through_softmax(theta, gradient)

    starts = [np.zeros(length), *rng.standard_normal((restarts - 1, length))]
    bounds = [(-REACH, REACH)] * length
    found = [minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
    best = min(found, key=lambda each: float(each.fun))
    return LearnedWeights(np.asarray(softmax(best.x)), float(best.fun))


def _check_sequences(table: ArrayLike, tokens: ArrayLike, labels: ArrayLike) -> tuple[Real, Any, Real]:
    embeddings, targets = MATRIX.check("table", table), FINITE.check("labels", labels)
    FINITE.check("tokens", tokens)
    sequences = as_numpy(tokens)
    if sequences.ndim != 2 or not sequences.size or sequences.dtype.kind not in "iu":
        raise DomainError(
            f"tokens of shape {sequences.shape} and type {sequences.dtype} is outside its domain: "
            "matrices of integers, a row for a sequence"
        )
    if sequences.min() < 0 or sequences.max() >= len(embeddings):
        raise DomainError(
            f"tokens between {sequences.min()} and {sequences.max()} do not all have a row in a table of "
            f"{len(embeddings)}"
        )
    if targets.shape != (len(sequences),):
        raise DomainError(
            f"labels of shape {targets.shape} is outside its domain: a finite number for each of the "
            f"{len(sequences)} sequences in tokens"
        )
    return embeddings, sequences, targets
