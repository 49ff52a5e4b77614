"""Operators made of a matrix, of functions or of operators: products of layers, Gram matrices, Hermitisation.

>>> import numpy as np
>>> layer = MatrixOperator(np.array([[1.0, 1.0], [0.0, 1.0]]))
>>> Product((layer, layer)).dense().tolist(), Gram(layer).dense().tolist()
([[1.0, 2.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 2.0]])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from array_api_compat import array_namespace

from bulkedge.spectra.operators.base import Operator
from bulkedge.support.domains import FUNCTION, MATRICES, Array, Each, Instance, Integers, takes
from bulkedge.support.errors import DomainError

OPERATOR = Instance(Operator)


def as_operator(operator: Any) -> tuple[Operator, int]:
    """An operator for what may be an array, and how often it has each value: complex ``A + iB`` has it twice."""
    if isinstance(operator, Operator):
        return operator, 1
    matrix = replace(MATRICES, complex_too=True).check("operator", operator)
    xp = array_namespace(matrix)
    if not xp.isdtype(matrix.dtype, "complex floating"):
        return MatrixOperator(matrix), 1
    rows = [xp.concat([matrix.real, -matrix.imag], axis=-1), xp.concat([matrix.imag, matrix.real], axis=-1)]
    return MatrixOperator(xp.concat(rows, axis=-2)), 2


class MatrixOperator(Operator):
    """A matrix, or a batch of matrices, as an operator.

    >>> import numpy as np
    >>> MatrixOperator(np.diag([1.0, 2.0])) @ np.ones(2)
    array([1., 2.])

    Parameters
    ----------
    matrix : array of shape (..., rows, columns)
        Of NumPy or torch, real, in single or double precision.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = MATRICES.check("matrix", matrix)
        self.like, self.shape = self.matrix, tuple(self.matrix.shape)

    def _forward(self, block: Any) -> Any:
        return self.matrix @ block

    def _backward(self, block: Any) -> Any:
        return array_namespace(block).matrix_transpose(self.matrix) @ block

    def __getitem__(self, index: Any) -> Operator:
        return MatrixOperator(self.matrix[index])


class MapOperator(Operator):
    """A linear map given by two functions: a Jacobian by its products, a chain of layers, a structured matrix.

    >>> import numpy as np
    >>> reverse = MapOperator(np.flipud, np.flipud, shape=(3, 3), like=np.zeros(1))
    >>> reverse @ np.arange(3.0)
    array([2., 1., 0.])

    Parameters
    ----------
    forward : callable
        Takes a block of shape (columns, k) to ``M V``.
    backward : callable
        Takes a block of shape (rows, k) to ``M' U``. That it is the transpose of the other is for the caller to know;
        :func:`bulkedge.testing.check_operator` measures it.
    shape : tuple of int
        (rows, columns).
    like : array
        An array of the backend, device and floating type that both functions take.
    """

    @takes(forward=FUNCTION, backward=FUNCTION, shape=Each(Integers(1, 10**9), 2), like=Array())
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

    >>> import numpy as np
    >>> double = MatrixOperator(2 * np.eye(2))
    >>> Product((double, double)) @ np.ones(2)
    array([4., 4.])

    Parameters
    ----------
    factors : sequence of Operator
        Each has as many columns as the next has rows.
    """

    def __init__(self, factors: Sequence[Operator]) -> None:
        shapes = [each.shape for each in Each(OPERATOR).check("factors", factors)]
        if any(first[-1] != second[-2] for first, second in pairwise(shapes)):
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

    >>> import numpy as np
    >>> Gram(MatrixOperator(np.diag([1.0, 2.0]))) @ np.ones(2)
    array([1., 4.])

    Parameters
    ----------
    operator : Operator
        M.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator, self.like = OPERATOR.check("operator", operator), operator.like
        self.shape = (*operator.batch, operator.shape[-1], operator.shape[-1])

    def _forward(self, block: Any) -> Any:
        return self.operator._sweep(block)[1]

    def _backward(self, block: Any) -> Any:
        return self._forward(block)

    def __getitem__(self, index: Any) -> Operator:
        return Gram(self.operator[index])


class Hermitised(Operator):
    """``[[0, M], [M', 0]]``, whose eigenvalues are the singular values of M with both signs.

    >>> import numpy as np
    >>> Hermitised(MatrixOperator(np.array([[3.0]]))).dense()
    array([[0., 3.],
           [3., 0.]])

    Parameters
    ----------
    operator : Operator
        M, of shape (rows, columns).
    """

    def __init__(self, operator: Operator) -> None:
        self.operator, self.like = OPERATOR.check("operator", operator), operator.like
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
