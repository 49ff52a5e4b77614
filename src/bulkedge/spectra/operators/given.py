"""Operators whose products are given: a matrix that is written out, or two functions.

>>> import numpy as np
>>> matrix = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]])
>>> same = MapOperator(lambda v: matrix @ v, lambda u: matrix.T @ u, (3, 2), matrix)
>>> bool(np.all((same.T @ np.ones(3)) == MatrixOperator(matrix).T @ np.ones(3)))
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

from bulkedge.spectra.operators.base import Operator
from bulkedge.support.domains import shown
from bulkedge.support.errors import DomainError


class MatrixOperator(Operator):
    """A matrix, or a batch of them, that is written out.

    Parameters
    ----------
    matrix : array of shape (..., rows, columns)
        Of NumPy or torch, real, in single or double precision.
    """

    def __init__(self, matrix: Any) -> None:
        if getattr(matrix, "ndim", 0) < 2 or 0 in matrix.shape:
            raise DomainError(f"matrix must have two axes or more, none of them empty; got {shown(matrix)}")
        if not bool(array_namespace(matrix).all(array_namespace(matrix).isfinite(matrix))):
            raise DomainError("matrix contains NaN or infinite entries")
        self.matrix = matrix.detach() if hasattr(matrix, "detach") else matrix
        self.like, self.shape = self.matrix, tuple(matrix.shape)

    def _forward(self, block: Any) -> Any:
        return self.matrix @ block

    def _backward(self, block: Any) -> Any:
        return array_namespace(block).matrix_transpose(self.matrix) @ block

    def __getitem__(self, index: Any) -> Operator:
        return MatrixOperator(self.matrix[index])


class MapOperator(Operator):
    """A linear map given by two functions: a Jacobian by its products, a chain of layers, a structured matrix.

    Parameters
    ----------
    forward : callable
        Takes a block of shape (columns, k) to ``M V``.
    backward : callable
        Takes a block of shape (rows, k) to ``M' U``. That it is the transpose of the other is for the caller to know;
        :func:`bulkedge.testing.adjointness` measures it.
    shape : tuple of int
        (rows, columns).
    like : array
        An array of the backend, device and floating type that both functions take.
    """

    def __init__(
        self, forward: Callable[[Any], Any], backward: Callable[[Any], Any], shape: tuple[int, int], like: Any
    ) -> None:
        self.forward, self.backward, self.shape, self.like = forward, backward, tuple(shape), like

    def _forward(self, block: Any) -> Any:
        return self.forward(block)

    def _backward(self, block: Any) -> Any:
        return self.backward(block)
