"""Sums over all singular values: Schatten norms, moments, and how many directions a matrix really has.

Of an operator they have error bars. Large values that have converged are summed one by one; the rest is estimated from
each probe on its own, so that the scatter of the probes is the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.spectra.dense import Spectrum, spectrum
from bulkedge.spectra.krylov import GolubKahan, Projection
from bulkedge.spectra.matrix_free import frame
from bulkedge.spectra.operators import Operator
from bulkedge.spectra.operators.algebra import as_operator
from bulkedge.spectra.quadrature import count_converged, ritz
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, FUNCTION, Each, Integers, Interval, takes
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate

PROBES, STEPS = Integers(2, 10**6), Integers(1, 10**6)
ORDER = Interval(0, 1e3, "(]")


@takes(function=FUNCTION)
def trace_of(
    function: Callable[[Real], Real], operator: Any, probes: int = 16, steps: int = 24, rng: Any = None
) -> Estimate:
    """``sum_i f(s_i)`` over all singular values, by stochastic Golub-Kahan quadrature.

    Parameters
    ----------
    function : callable
        f, of an array of singular values. Polynomials in ``s**2`` of degree below ``2 * steps`` have no error but that
        of sampling; of others the quadrature adds its own, which is not in the error bar, and more steps remove it.
    operator : Operator or array of shape (rows, columns)
        One matrix, real or complex if it is an array; the sum is over the smaller of its dimensions.
    probes : int
        Random orthonormal vectors.
    steps : int
        Golub-Kahan steps.
    rng : numpy.random.Generator or torch.Generator, optional
        Draws the probes; by default a generator of a fixed seed.

    Returns
    -------
    Estimate
        The sum, its standard error from the scatter of the probes, and their number minus one as its freedom. The error
        is zero where all values were found.

    Examples
    --------
    >>> round(trace_of(np.square, np.diag([3.0, 4.0])).value, 9)
    25.0
    """
    projection, size, copies = _project(operator, probes, steps, rng)
    total = _trace(function, projection, size)
    return Estimate(total.value / copies, total.error / copies, total.freedom)


def schatten_norm(operator: Any, order: float = 1, probes: int = 16, steps: int = 24, rng: Any = None) -> Estimate:
    """``(sum_i s_i**order)**(1/order)``: the nuclear norm for 1, the Frobenius norm for 2.

    Parameters
    ----------
    operator : Operator or array of shape (rows, columns)
        One matrix; an array may be complex.
    order : float
        Above zero; below one it is no norm, and the sum is the same.
    probes, steps : int
        As for :func:`trace_of`.
    rng : numpy.random.Generator or torch.Generator, optional
        Draws the probes.

    Returns
    -------
    Estimate
        The norm, with the error of the sum carried through the root.

    Examples
    --------
    >>> schatten_norm(np.diag([3.0, -4.0, 1.0]), order=1).value.__round__(9)
    8.0
    """
    order = ORDER.check("order", order)
    total = trace_of(lambda values: values**order, operator, probes, steps, rng)
    if not total.value > 0:
        return Estimate(0.0, 0.0)
    norm = total.value ** (1 / order)
    return Estimate(norm, norm * total.error / (order * total.value), total.freedom)


def trace_moments(operator: Any, powers: Any, probes: int = 16, steps: int = 24, rng: Any = None) -> list[Estimate]:
    """Means of ``s**(2 k)`` over all singular values: moments of the distribution of the squares.

    Parameters
    ----------
    operator : Operator or array of shape (rows, columns)
        One matrix; an array may be complex.
    powers : sequence of int
        The k, one or more each.
    probes, steps : int
        As for :func:`trace_of`; all moments share one run.
    rng : numpy.random.Generator or torch.Generator, optional
        Draws the probes.

    Returns
    -------
    list of Estimate
        One for each power.

    Examples
    --------
    >>> [round(each.value, 9) for each in trace_moments(np.diag([1.0, 2.0]), (1, 2))]
    [2.5, 8.5]
    """
    powers = Each(Integers(1, 1000)).check("powers", powers)
    projection, size, _ = _project(operator, probes, steps, rng)
    sums = [_trace(lambda values, k=power: values ** (2 * k), projection, size) for power in powers]  # type: ignore[misc]
    return [Estimate(each.value / size, each.error / size, each.freedom) for each in sums]


def estimated_stable_rank(operator: Any, probes: int = 16, steps: int = 24, rng: Any = None) -> Estimate:
    """``|M|_F**2/|M|**2`` of an operator."""
    projection, size, _ = _project(operator, probes, steps, rng)
    largest = float(np.linalg.norm(projection.matrix, 2)) if projection.matrix.size else 0.0
    if not largest > 0:
        raise DomainError("the rank of a matrix of zeros is not defined: matrix must have an entry that is not zero")
    total = _trace(lambda values: (values / largest) ** 2, projection, size)
    return Estimate(max(total.value, 1.0), total.error, total.freedom)


def _project(operator: Any, probes: int, steps: int, rng: Any) -> tuple[Projection, int, int]:
    """The projection of an operator, how many singular values it has, and how often each of those asked for is one."""
    operator, copies = as_operator(operator)
    if operator.batch:
        raise DomainError(f"operator has shape {operator.shape}, a batch: take its members one at a time")
    operator = operator.T if operator.shape[-1] > operator.shape[-2] else operator
    probes, steps = PROBES.check("probes", probes), STEPS.check("steps", steps)
    run = GolubKahan(operator, frame(operator, min(probes, operator.shape[-1]), rng))
    while run.steps < steps and not run.exhausted:
        run.step()
    return run.projection(), operator.shape[-1], copies


def _trace(function: Callable[[Real], Real], projection: Projection, size: int) -> Estimate:
    values, weights, residuals = ritz(projection)
    if projection.exhausted and len(values) >= size:
        return Estimate(float(np.sum(function(values[:size]))))
    locked = count_converged(values, weights, residuals, size, projection.noise)
    rest = weights[locked:]
    each = function(values[locked:]) @ (rest / np.maximum(rest.sum(axis=0), np.finfo(float).tiny))
    mean = Estimate.of(each) if len(each) > 1 else Estimate(float(each[0]), np.inf, 1.0)
    remaining = size - locked
    # a frame of as many probes as dimensions knows the trace exactly
    narrower = max(1 - projection.probes / remaining, 0.0) ** 0.5
    known = float(np.sum(function(values[:locked])))
    return Estimate(known + remaining * mean.value, remaining * mean.error * narrower, mean.freedom)


def stable_rank(matrix: Any) -> Any:
    """``|M|_F**2/|M|**2``, between one and the rank (*propagation*, equation 4).

    Parameters
    ----------
    matrix : array of shape (rows, columns) or Operator
        One matrix, of NumPy or torch, with an entry that is not zero.

    Returns
    -------
    float or Estimate
        Sum of the squared singular values over the largest of them; of an operator with a standard error, see
        :func:`~bulkedge.spectra.traces.estimated_stable_rank`.

    Examples
    --------
    >>> import numpy as np
    >>> stable_rank(np.diag([1.0, 1.0, 0.0])), stable_rank(np.ones((5, 3)))
    (2.0, 1.0)
    """
    if isinstance(matrix, Operator):
        return estimated_stable_rank(matrix)
    return 1 + stable_rank_excess(_values(matrix))


def stable_rank_excess(values: ArrayLike) -> float:
    """Stable rank minus one, from singular values: near a collapse the difference keeps its digits."""
    return float(np.sum(_relative(values)[:-1] ** 2))


def effective_rank(matrix: Any) -> float:
    """Exponential of the entropy of the normalised singular values (Roy and Vetterli 2007).

    Parameters
    ----------
    matrix : array of shape (rows, columns)
        One matrix, of NumPy or torch, with an entry that is not zero.

    Returns
    -------
    float
        Between one and the rank; the number of nonzero singular values if those are equal.

    Examples
    --------
    >>> import numpy as np
    >>> round(effective_rank(np.diag([1.0, 1.0, 0.0])), 12)
    2.0
    """
    share = _relative(_values(matrix))
    share = share[share > 0] / share.sum()
    return float(np.exp(-np.sum(share * np.log(share))))


def cosine_similarity(tokens: ArrayLike) -> float:
    """Mean cosine between two different rows: one when all tokens point the same way.

    Parameters
    ----------
    tokens : array_like of shape (tokens, features)
        A vector for each token; two tokens at least, none of them zero.

    Returns
    -------
    float
        Mean over all pairs of different tokens, between ``-1/(tokens - 1)`` and one.

    Examples
    --------
    >>> cosine_similarity([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]])
    1.0
    """
    rows = FINITE.check("tokens", tokens)
    if rows.ndim != 2 or len(rows) < 2:
        raise DomainError(f"tokens must be a matrix of two rows at least; got shape {rows.shape}")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.all(norms > 0):
        raise DomainError("tokens contain a row of zeros, which has no direction")
    count = len(rows)
    together = float(np.sum(np.sum(rows / norms, axis=0) ** 2))
    return (together - count) / (count * (count - 1))


def _values(matrix: Any) -> Real:
    found = spectrum(matrix)
    if not isinstance(found, Spectrum):
        raise DomainError(f"matrix must have two dimensions; got a batch of shape {found.shape}: take one at a time")
    return found.values


def _relative(values: ArrayLike) -> Real:
    """Values in increasing order over the largest."""
    ordered = np.sort(FINITE.check("values", values).ravel())
    if not ordered.size or not ordered[-1] > 0:
        raise DomainError("the rank of a matrix of zeros is not defined: matrix must have an entry that is not zero")
    return np.asarray(ordered / ordered[-1])
