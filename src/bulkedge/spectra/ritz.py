"""Ritz values of a run of Golub-Kahan steps: singular values of B, what the probes weigh them by, how many are known.

Of the singular vectors of B two pieces are used: the rows of the first block, which are coordinates of the probes, and
the image of the last block, through which a run leaves what it knows. Both come from right vectors alone: ``B v = s u``
gives the last rows of u as those of B times v, over s. So the symmetric eigenproblem of ``B' B`` is enough, at half the
time of a decomposition of B, where its rounding does not matter: it loses values below 1e-8 of the largest, and a run
in single precision has lost those before. It is solved where the run was made, if that is a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.spectra.krylov import SINGLE, Projection
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.threads import thin_products

ANGLE = 0.01
"""Largest angle between locked Ritz vectors and singular vectors: weights are then wrong by its square."""
UNLIKELY = 4.0
"""Standard deviations by which the probes' weight of locked values may differ from their number over the size."""
LARGE = 384
"""Columns from which on a GPU is asked to decompose a matrix."""


def ritz(projection: Projection) -> tuple[Real, Real, Real]:
    """Singular values of B with what the probes weigh them by."""
    rows = sum(len(each) for each in projection.diagonal)
    last = projection.coupling.shape[1] if projection.coupling.size else 0
    squared = projection.unit > SINGLE and rows > 0
    values, first, leaving = (_by_squares if squared else _by_values)(projection, last)
    residuals = np.zeros(len(values))
    if last:
        residuals = np.linalg.norm(projection.coupling @ leaving, axis=0)
        if squared:  # left vectors of what is only rounding are not known, but their length is
            residuals[values <= projection.rounding] = np.linalg.norm(projection.coupling, 2)
    # right vectors without a left one are in the kernel of B
    values[rows:] = residuals[rows:] = 0.0
    return values, first.T**2, residuals


def _by_values(projection: Projection, last: int) -> tuple[Real, Real, Real]:
    """Singular values, first rows of right vectors, and last rows of left ones, from B itself."""
    left, found, right = np.linalg.svd(projection.matrix)
    columns = len(right)
    values, leaving = np.zeros(columns), np.zeros((last, columns))
    values[: len(found)] = found
    shared = min(columns, len(left))
    leaving[:, :shared] = left[len(left) - last :, :shared]
    return values, right[:, : projection.probes].T, leaving


def _by_squares(projection: Projection, last: int) -> tuple[Real, Real, Real]:
    """The same from ``B' B``; left vectors of values that are only rounding are not vectors of length one."""
    probes, ending = projection.probes, projection.diagonal[-1]
    squares, vectors = _eigen(projection)
    start, xp = vectors.shape[0] - ending.shape[1], array_namespace(vectors)
    # one transfer of what is used
    used = as_numpy(xp.concat([squares[None, :], vectors[:probes], vectors[start:]], axis=0))[:, ::-1]
    values = np.sqrt(np.maximum(used[0], 0.0))
    # of the last rows of B only the last block of columns has entries
    leaving = ending[:last] @ used[1 + probes :] / np.maximum(values, max(projection.rounding, 1e-300))
    return values, used[1 : 1 + probes], leaving


def _eigen(projection: Projection) -> tuple[Any, Any]:
    """Eigenvalues of ``B' B`` in increasing order, and its vectors as columns: on a GPU if the run was made there."""
    if _on_gpu(projection) and projection.steps * projection.probes >= LARGE:
        matrix = _squares_beside(projection)
        return array_namespace(matrix).linalg.eigh(matrix)
    diagonal, below = _squares(projection)
    columns = np.cumsum([0, *(len(each) for each in diagonal)])
    dense = np.zeros((columns[-1], columns[-1]))
    for j, block in enumerate(diagonal):
        own = slice(columns[j], columns[j + 1])
        dense[own, own] = block
        if j:
            dense[own, columns[j - 1] : columns[j]] = below[j - 1]
    with thin_products():
        # only what is on and below the diagonal is read
        return np.linalg.eigh(dense)


def _squares(projection: Projection) -> tuple[list[Real], list[Real]]:
    """``B' B``, which is block tridiagonal: the blocks on its diagonal, and those below."""
    pairs = zip(projection.beside[:-1], projection.diagonal[:-1], strict=True)
    below: list[Real] = [between @ block for between, block in pairs]
    diagonal: list[Real] = [block.T @ block for block in projection.diagonal]
    for j in range(1, projection.steps):
        diagonal[j] += projection.beside[j - 1] @ projection.beside[j - 1].T
    return diagonal, below


def _squares_beside(projection: Projection) -> Any:
    """``B' B`` in double precision on the device of the run: blocks travel there, and not the zeros between them."""
    (diagonal, below), steps, probes = _squares(projection), projection.steps, projection.probes
    xp, place = array_namespace(projection.like), device(projection.like)
    blocks = xp.asarray(np.stack(diagonal + below), dtype=xp.float64, device=place)
    matrix = xp.zeros((steps, probes, steps, probes), dtype=xp.float64, device=place)
    index = xp.arange(steps, device=place)
    matrix[index, :, index, :] = blocks[:steps]
    matrix[index[1:], :, index[:-1], :] = blocks[steps:]
    matrix[index[:-1], :, index[1:], :] = xp.matrix_transpose(blocks[steps:])
    return xp.reshape(matrix, (steps * probes, steps * probes))


def _on_gpu(projection: Projection) -> bool:
    """Whether a run was made on a GPU, in blocks of one width."""
    square = projection.probes, projection.probes
    regular = all(each.shape == square for each in projection.diagonal)
    return regular and getattr(device(projection.like), "type", "cpu") == "cuda"


def converged(values: Real, weights: Real, residuals: Real, size: int, noise: float = 0.0) -> int:
    """How many of the largest values are known one by one."""
    # the next value has not converged: it may be as much larger as its residual says
    gaps = values[:-1] - values[1:] - residuals[1:]
    worst = np.sqrt(np.cumsum(residuals[:-1] ** 2)) + noise
    known = np.flatnonzero((worst <= ANGLE * gaps) & (gaps > 0))
    share = np.arange(1, len(values)) / size
    # equal values in greater number than there are probes are found as many times as there are probes only
    spread = np.sqrt(2 * share * np.maximum(1 - share, 0) / (size * weights.shape[1]))
    plausible = np.abs(np.cumsum(weights.mean(axis=1))[:-1] - share) <= UNLIKELY * spread + 1e-12
    # a value found fewer times than it is there has too much weight: nothing below it is counted right
    wrong = known[~plausible[known]]
    known = known[known < wrong[0]] if wrong.size else known
    return int(known[-1]) + 1 if known.size else 0
