"""Exact oracles for matrix-free spectra: matrices whose spectrum is known, and what to hold an estimate against.

It is hard to test an estimated spectral density, unless the matrix is built around the answer. Here are matrices with
prescribed singular values, spectra that break careless recurrences, laws as references, and the share of error bars
that cover the truth. Nothing here needs pytest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from bulkedge.laws.distribution import Distribution, Unit
from bulkedge.spectra import Operator
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import (
    FINITE,
    FUNCTION,
    GENERATOR,
    MATRICES,
    Each,
    Instance,
    Integers,
    Interval,
    shown,
    takes,
)
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate
from bulkedge.support.random import numpy_generator

SIZE = Integers(1, 10**5)
CONFIDENCE = Interval(0, 1, "()")


def with_singular_values(values: ArrayLike, rng: np.random.Generator, rows: int | None = None) -> Real:
    """A matrix with the given singular values, its singular vectors uniformly random.

    Parameters
    ----------
    values : array_like
        The singular values, none negative.
    rng : numpy.random.Generator
        Draws the singular vectors.
    rows : int, optional
        Height of the matrix; as many as values by default.

    Returns
    -------
    array of shape (rows, values)
        The matrix.

    Examples
    --------
    >>> np.linalg.svd(with_singular_values([2.0, 1.0], np.random.default_rng(0)))[1].round(9)
    array([2., 1.])
    """
    sizes = FINITE.check("values", values).ravel().astype(float)
    count = len(sizes)
    height = count if rows is None else Integers(count, 10**5).check("rows", rows)
    if not count or sizes.min() < 0:
        raise DomainError("values must be one number at least, none of them negative: they are singular values")
    left, right = (_haar(each, count, numpy_generator(rng)) for each in (height, count))
    return np.asarray((left * sizes) @ right.T)


def _haar(rows: int, columns: int, rng: np.random.Generator) -> Real:
    """Orthonormal columns, uniformly distributed."""
    basis, triangle = np.linalg.qr(rng.standard_normal((rows, columns)))
    return np.asarray(basis * np.sign(np.diagonal(triangle)))


@takes(law=Instance(Distribution), size=SIZE)
def values_of(law: Distribution, size: int) -> Real:
    """Singular values that follow a law as closely as so many numbers can: its quantiles.

    Parameters
    ----------
    law : Distribution
        Of singular values, of their squares, or of eigenvalues that are not negative.
    size : int
        How many values.

    Returns
    -------
    array of shape (size,)
        Singular values in increasing order.

    Examples
    --------
    >>> from bulkedge import MarchenkoPastur
    >>> values_of(MarchenkoPastur(1.0), 2).round(3)
    array([0.395, 1.269])
    """
    quantiles = np.asarray(law.ppf((np.arange(size) + 0.5) / size))
    if law.unit not in {Unit.SINGULAR, Unit.SQUARED, Unit.EIGEN} or quantiles[0] < 0:
        raise DomainError(f"{law!r} is of {law.unit}, not of singular values or their squares")
    return quantiles if law.unit is Unit.SINGULAR else np.sqrt(quantiles)


def hard_spectra(size: int) -> dict[str, Real]:
    """Singular values on which recurrences without care divide by zero, lose orthogonality or count twice.

    Parameters
    ----------
    size : int
        How many values each, eight or more.

    Returns
    -------
    dict of str to array
        Singular values by what is hard about them.

    Examples
    --------
    >>> hard_spectra(8)["clusters"].tolist()
    [0.0, 0.0, 1.0, 1.0, 1.1, 1.1, 5.0, 5.0]
    """
    size = Integers(8, 10**5).check("size", size)
    half = np.linspace(0.5, 1.0, size)
    return {
        "zero": np.zeros(size),
        "equal": np.ones(size),
        "clusters": np.sort(np.resize([0.0, 1.0, 1.1, 5.0], size)),
        "rank deficient": np.where(np.arange(size) < size - size // 10, 0.0, half),
        "far out": np.append(half[1:], 1e6),
        "decades": np.logspace(-10, 0, size),
    }


@dataclass(frozen=True)
class OperatorErrors:
    """How far an operator is from being a matrix, and from a given one, relative to the sizes of what is compared."""

    # forward, backward: products with the operator and with its transpose, against the written matrix; nan without
    # one
    forward: float
    backward: float
    adjointness: float  # ``u'(M v)`` against ``(M' u)'v``
    linearity: float  # ``M (2 v - 3 w)`` against ``2 M v - 3 M w``


@takes(operator=Instance(Operator), matrix=MATRICES, rng=GENERATOR, columns=SIZE)
def check_operator(
    operator: Operator, matrix: Any = None, rng: np.random.Generator | None = None, columns: int = 3
) -> OperatorErrors:
    """Products of an operator on random blocks, held against each other and against the matrix that it should be.

    Parameters
    ----------
    operator : Operator
        What to check.
    matrix : array, optional
        What it should be.
    rng : numpy.random.Generator, optional
        Draws the blocks; of a fixed seed by default.
    columns : int
        Columns of each block.

    Returns
    -------
    OperatorErrors
        Relative errors of its products.

    Examples
    --------
    >>> from bulkedge.spectra import MatrixOperator
    >>> check_operator(MatrixOperator(np.eye(4)), np.eye(4)).forward < 1e-12
    True
    """
    rng = np.random.default_rng(0) if rng is None else rng
    first, second = (rng.standard_normal((operator.shape[-1], columns)) for _ in range(2))
    left = rng.standard_normal((operator.shape[-2], columns))
    image, other, both = (_product(operator, each) for each in (first, second, 2 * first - 3 * second))
    back = _product(operator.T, left)
    size = float(np.linalg.norm(image)) or 1.0
    forward = backward = float("nan")
    if matrix is not None:
        exact = as_numpy(matrix).astype(float)
        if exact.shape != operator.shape:
            raise DomainError(f"matrix has shape {exact.shape}, the operator {operator.shape}")
        forward = float(np.linalg.norm(image - exact @ first)) / size
        expected = exact.swapaxes(-1, -2) @ left
        backward = float(np.linalg.norm(back - expected)) / (float(np.linalg.norm(expected)) or 1.0)
    there, again = np.sum(left * image, axis=-2), np.sum(back * first, axis=-2)
    apart = float(np.abs(there - again).max()) / (float(np.linalg.norm(left)) * size)
    return OperatorErrors(forward, backward, apart, float(np.linalg.norm(both - 2 * image + 3 * other)) / (5 * size))


def _product(operator: Operator, block: Real) -> Real:
    xp = array_namespace(operator.like)
    given = xp.asarray(block, dtype=operator.like.dtype, device=device(operator.like))
    return np.asarray(as_numpy(operator @ given).astype(float))


@takes(estimates=Each(Instance(Estimate), 10**7), truth=Interval(-math.inf, math.inf), confidence=CONFIDENCE)
def coverage(estimates: Iterable[Estimate], truth: float, confidence: float = 0.9) -> float:
    """Share of estimates whose interval, by Student's distribution at a confidence, holds the truth.

    Parameters
    ----------
    estimates : iterable of Estimate
        Of one number.
    truth : float
        That number.
    confidence : float
        Of the intervals.

    Returns
    -------
    float
        The share; near the confidence if the errors are right.

    Examples
    --------
    >>> coverage([Estimate(1.0, 0.1), Estimate(1.5, 0.1)], truth=1.1)
    0.5
    """
    level = (1 + confidence) / 2
    inside = [
        abs(each.value - truth) <= each.error * float(stdtrit(min(each.freedom, 1e9), level)) + 1e-12 * abs(truth)
        for each in estimates
    ]
    if not inside:
        raise DomainError("estimates is empty: one at least")
    return float(np.mean(inside))


@takes(run=FUNCTION, seeds=SIZE)
def covered(run: Callable[[np.random.Generator], tuple[float, float]], seeds: int) -> float:
    """Share of runs whose actual error is at most the one that they state.

    Parameters
    ----------
    run : callable
        Takes a generator to the actual error of an estimate and the error that it states.
    seeds : int
        How many runs; seeds are 0, 1, ...

    Returns
    -------
    float
        The share.

    Examples
    --------
    >>> covered(lambda rng: (abs(rng.standard_normal()), 3.0), seeds=20)
    1.0
    """
    pairs = [run(np.random.default_rng(seed)) for seed in range(seeds)]
    if not all(np.shape(each) == (2,) for each in pairs):
        raise DomainError(f"run returned {shown(pairs[0])}: it must return an actual error and the one stated")
    return float(np.mean([actual <= stated for actual, stated in pairs]))
