"""Directions of large singular values that are known without a product, and how a tall matrix is made orthonormal.

The entries of softmax attention are ``exp(q . k)`` over a normaliser of their row, and the exponential is a series in
polynomials of the keys times polynomials of the queries. Of full attention the right singular vectors of the largest
values are therefore close to polynomials of the keys, and the left ones to polynomials of the queries, of the first and
second degree: d and d(d + 1)/2 of them.

Tall matrices are worked on by blocks of rows and in place: beside the matrix itself, of n rows and r columns, memory is
for one block of rows and for a few matrices of r x r.

>>> import numpy as np
>>> points = np.random.default_rng(0).standard_normal((500, 3))
>>> known = Polynomials(points)
>>> basis = known.basis()
>>> known.count, basis.shape, bool(np.allclose(basis.T @ basis, np.eye(9)))
(9, (500, 9), True)
>>> square = points[:, 0] ** 2 - np.mean(points[:, 0] ** 2)
>>> bool(np.allclose(basis @ (basis.T @ square), square))
True
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device

from bulkedge.support.threads import thin_products

ROWS = 8192  # rows of a tall matrix that are worked on at a time
ROUNDING = 100.0  # rounding units, beside the largest, up to which the length of a column is rounding


class Polynomials:
    """Polynomials of the first and second degree of points, minus their means: a space of functions on these points."""

    def __init__(self, points: Any) -> None:
        self.points = points

    @property
    def count(self) -> int:
        """How many there are: d and d(d + 1)/2, fewer in the basis if some are constant on the points."""
        dim = self.points.shape[1]
        return int(dim + dim * (dim + 1) // 2)

    def basis(self) -> Any:
        """An orthonormal basis of the space."""
        points, white = self._white()
        xp, (size, _), dim = array_namespace(points), points.shape, white.shape[1]
        first, second = (xp.asarray(index, device=device(points)) for index in _pairs(dim))
        # products of white coordinates have the mean one if the two are the same, and zero otherwise
        means = xp.astype(first == second, points.dtype)
        columns = xp.empty((size, dim + dim * (dim + 1) // 2), dtype=points.dtype, device=device(points))
        with thin_products():
            for rows in _blocks(size):
                block = points[rows] @ white
                columns[rows, :dim] = block
                columns[rows, dim:] = block[:, first] * block[:, second] - means
        return orthonormalise(columns)[0]

    def _white(self) -> tuple[Any, Any]:
        """Points minus their mean, and a matrix that makes their covariance the identity, of their rank."""
        xp = array_namespace(self.points)
        mean = xp.sum(self.points, axis=0, dtype=xp.float64) / self.points.shape[0]
        points = self.points - xp.astype(mean, self.points.dtype)
        with thin_products():
            variances, vectors = _eigen(gram(points) / points.shape[0], points.dtype)
        return points, xp.astype(vectors / variances**0.5, points.dtype)


def orthonormalise(columns: Any) -> tuple[Any, Any, Any]:
    """An orthonormal basis of the span of columns, which is written over them; a second round mends the first."""
    with thin_products():
        squares, vectors = _eigen(gram(columns), columns.dtype)
        basis = _multiply(columns, vectors / squares**0.5)
        return _multiply(basis, _inverse_root(gram(basis))), squares, vectors


def gram(columns: Any) -> Any:
    """``Y' Y`` in double precision, by blocks of rows."""
    xp, total = array_namespace(columns), 0.0
    for rows in _blocks(columns.shape[0]):
        block = xp.astype(columns[rows], xp.float64)
        total = total + xp.matrix_transpose(block) @ block
    return total


def _eigen(matrix: Any, dtype: Any) -> tuple[Any, Any]:
    """Eigenvalues of a Gram matrix of columns of some type, in decreasing order, and vectors; without rounding."""
    xp = array_namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    values, vectors = xp.flip(values, axis=0), xp.flip(vectors, axis=1)
    # squared lengths up to this, beside the largest, are rounding of a Gram matrix in double precision
    least = max((ROUNDING * float(xp.finfo(dtype).eps)) ** 2, 1e-13) * float(values[0])
    # at least one, so that arrays are never empty: that of no length is no worse than another
    kept = max(1, int(xp.sum(xp.astype(values > least, xp.int64))))
    tiny = float(xp.finfo(dtype).smallest_normal)
    return xp.clip(values[:kept], min=tiny), vectors[:, :kept]


def _inverse_root(matrix: Any) -> Any:
    """``G^(-1/2)`` of the Gram matrix of nearly orthonormal columns: times it, they become so and hardly move."""
    xp = array_namespace(matrix)
    identity = xp.eye(matrix.shape[0], dtype=matrix.dtype, device=device(matrix))
    off = matrix - identity
    # how far from the identity a Gram matrix may be for three terms of a series: the fourth is below rounding in single
    # precision
    if float(xp.sum(off**2)) <= 3e-3**2:
        # the next term of the series is off**3
        return identity - off / 2 + 3 / 8 * (off @ off)
    values, vectors = xp.linalg.eigh(matrix)
    return (vectors / values**0.5) @ xp.matrix_transpose(vectors)


def _multiply(columns: Any, factor: Any) -> Any:
    """``Y T`` for a small matrix T with at most as many columns as rows, in the memory of Y."""
    xp, count = array_namespace(columns), factor.shape[1]
    small = xp.astype(factor, columns.dtype)
    for rows in _blocks(columns.shape[0]):
        columns[rows, :count] = columns[rows] @ small
    return columns[:, :count]


def _blocks(size: int) -> list[slice]:
    return [slice(start, min(start + ROWS, size)) for start in range(0, size, ROWS)]


def _pairs(dim: int) -> tuple[list[int], list[int]]:
    """Both members of all pairs of coordinates, those of equal ones among them."""
    pairs = [(first, second) for first in range(dim) for second in range(first, dim)]
    return [first for first, _ in pairs], [second for _, second in pairs]
