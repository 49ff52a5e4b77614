"""The largest singular values of an operator, each with a bound on its error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.spectra.krylov import GolubKahan
from bulkedge.spectra.matrix_free import frame
from bulkedge.spectra.operators.algebra import as_operator
from bulkedge.spectra.operators.base import Operator
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import MATRICES, Integers, Interval
from bulkedge.support.errors import DomainError, UnresolvedError

STEPS, RESTARTS = 8, 40  # steps from one block, and how often the best of what was found is the next block


@dataclass(frozen=True, eq=False)
class TopSingular:
    """The largest singular values of a matrix M, with their vectors.

    Attributes
    ----------
    values : array of shape (k,)
        In decreasing order.
    residuals : array of shape (k,)
        ``|M' u - s v|``, beside ``M v = s u``: a singular value lies within this of each value, as many as there are
        values in any cluster of them.
    left : array of shape (rows, k)
        Left singular vectors, on the operator's backend.
    right : array of shape (columns, k)
        Right singular vectors.
    """

    values: Real
    residuals: Real
    left: Any = field(repr=False)
    right: Any = field(repr=False)


def top_singular(operator: Any, count: int = 1, tolerance: float = 1e-5, rng: Any = None) -> TopSingular:
    """The largest singular values, by block Golub-Kahan steps that are restarted with the best vectors found.

    Parameters
    ----------
    operator : Operator or array of shape (rows, columns)
        One matrix; an array may be complex.
    count : int
        How many values; more than these are found if they are equal to the last one.
    tolerance : float
        Largest residual, relative to the largest value. In single precision not less than about 1e-5.
    rng : numpy.random.Generator or torch.Generator, optional
        Draws the first vectors; by default a generator of a fixed seed.

    Returns
    -------
    TopSingular
        Values, vectors and residuals.

    Raises
    ------
    UnresolvedError
        If the residuals do not become that small.

    Examples
    --------
    >>> top_singular(np.diag([3.0, 4.0j, 1.0]), 2).values.round(9)
    array([4., 3.])
    """
    given = operator
    operator, copies = as_operator(given)
    if operator.batch:
        raise DomainError(f"operator has shape {operator.shape}, a batch: take its members one at a time")
    if copies > 1:
        return _top_complex(
            replace(MATRICES, complex_too=True).check("operator", given), operator, count, tolerance, rng
        )
    if operator.shape[-1] > operator.shape[-2]:
        turned = top_singular(operator.T, count, tolerance, rng)
        return TopSingular(turned.values, turned.residuals, turned.right, turned.left)
    size = operator.shape[-1]
    count = Integers(1, size).check("count", count)
    tolerance = Interval(1e-14, 0.1).check("tolerance", tolerance)
    # vectors beyond those asked for carry what is close to the last one
    block = frame(operator, min(size, count + 8), rng)
    for _ in range(RESTARTS):
        found, block = _round(operator, block, count)
        if np.all(found.residuals <= tolerance * max(found.values[0], np.finfo(float).tiny)):
            return found
    raise UnresolvedError(
        f"after {RESTARTS} rounds of {STEPS} steps the residuals of the {count} largest values are up to "
        f"{found.residuals.max():.3g}, relative to the largest {found.residuals.max() / found.values[0]:.3g}, not "
        f"{tolerance:g}: ask for a larger tolerance, or for another number of values if they are close to each other"
    )


def _top_complex(matrix: Any, real: Operator, count: int, tolerance: float, rng: Any) -> TopSingular:
    """Those of a complex matrix, in the space of the vectors of the real one, which has each of them twice."""
    count, xp = Integers(1, min(matrix.shape)).check("count", count), array_namespace(matrix)
    found, columns = top_singular(real, 2 * count, tolerance, rng), matrix.shape[1]
    basis = xp.linalg.svd(found.right[:columns] + 1j * found.right[columns:], full_matrices=False)[0]
    left, values, right = xp.linalg.svd(matrix @ basis, full_matrices=False)
    left, values, right = left[:, :count], values[:count], basis @ xp.conj(xp.matrix_transpose(right))[:, :count]
    residuals = xp.linalg.vector_norm(xp.conj(xp.matrix_transpose(matrix)) @ left - values * right, axis=0)
    return TopSingular(as_numpy(values).astype(float), as_numpy(residuals).astype(float), left, right)


def _round(operator: Operator, block: Any, count: int) -> tuple[TopSingular, Any]:
    """Steps from a block; the largest values found, and the block of the best right vectors, for the next round."""
    run = GolubKahan(operator, block)
    while run.steps < STEPS and not run.exhausted:
        run.step()
    projection, xp = run.projection(), array_namespace(block)
    left, values, right = np.linalg.svd(projection.matrix)
    values = np.append(values, np.zeros(len(right) - len(values)))
    # residuals belong to left vectors; a right vector without one is in the kernel of B
    residuals = np.zeros(len(right))
    if projection.coupling.size:
        leaving = np.linalg.norm(projection.coupling @ left[len(left) - projection.coupling.shape[1] :], axis=0)
        residuals[: len(leaving)] = leaving[: len(right)]
    bases = [xp.concat(each, axis=-1) for each in (run.left, run.right[: projection.steps])]
    width = block.shape[1]
    best = bases[1] @ _as_block(block, right[:width].T)
    images = bases[0] @ _as_block(block, left[:, :count])
    top = TopSingular(values[:count], residuals[:count] + projection.rounding, images, best[:, :count])
    return top, xp.linalg.qr(best)[0]


def _as_block(block: Any, matrix: Real) -> Any:
    return array_namespace(block).asarray(np.ascontiguousarray(matrix), dtype=block.dtype, device=block.device)
