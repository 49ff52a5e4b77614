"""Operators made of a matrix, of functions or of operators: products of layers, Gram matrices, Hermitisation.

>>> import numpy as np
>>> layer = MatrixOperator(np.array([[1.0, 1.0], [0.0, 1.0]]))
>>> Product((layer, layer)).dense().tolist(), Gram(layer).dense().tolist()
([[1.0, 2.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 2.0]])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
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


class Product(Operator):
    """``M_1 M_2 ... M_k``: the layers of a stack, the last one applied first.

    Parameters
    ----------
    factors : sequence of Operator
        Each has as many columns as the next has rows.
    """

    def __init__(self, factors: Sequence[Operator]) -> None:
        shapes = [each.shape for each in factors]
        if not shapes or any(first[-1] != second[-2] for first, second in pairwise(shapes)):
            raise DomainError(f"factors of shapes {shapes} do not multiply: columns of each are the rows of the next")
        self.factors, self.like = tuple(factors), factors[0].like
        self.shape = (*shapes[0][:-1], shapes[-1][-1])

    def _forward(self, block: Any) -> Any:
        for factor in reversed(self.factors):
            block = factor._forward(block)
        return block

    def _backward(self, block: Any) -> Any:
        for factor in self.factors:
            block = factor._backward(block)
        return block

    def __getitem__(self, index: Any) -> Operator:
        return Product([each[index] for each in self.factors])


class Gram(Operator):
    """``M' M``, whose eigenvalues are the squared singular values of M.

    Parameters
    ----------
    operator : Operator
        M.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator, self.like = operator, operator.like
        self.shape = (*operator.batch, operator.shape[-1], operator.shape[-1])

    def _forward(self, block: Any) -> Any:
        return self.operator._sweep(block)[1]

    def _backward(self, block: Any) -> Any:
        return self._forward(block)

    def __getitem__(self, index: Any) -> Operator:
        return Gram(self.operator[index])


class Hermitised(Operator):
    """``[[0, M], [M', 0]]``, whose eigenvalues are the singular values of M with both signs.

    Parameters
    ----------
    operator : Operator
        M, of shape (rows, columns).
    """

    def __init__(self, operator: Operator) -> None:
        self.operator, self.like = operator, operator.like
        size = operator.shape[-2] + operator.shape[-1]
        self.shape = (*operator.batch, size, size)

    def _forward(self, block: Any) -> Any:
        rows = self.operator.shape[-2]
        parts = self.operator._forward(block[..., rows:, :]), self.operator._backward(block[..., :rows, :])
        return array_namespace(block).concat(parts, axis=-2)

    def _backward(self, block: Any) -> Any:
        return self._forward(block)

    def __getitem__(self, index: Any) -> Operator:
        return Hermitised(self.operator[index])
