"""What an operator is: a matrix known by its products with blocks of vectors, from either side.

An operator supplies :meth:`Operator._forward` and :meth:`Operator._backward`, products of the matrix and of its
transpose with blocks of columns; checks, transposes, multiples and differences are written here once.

>>> import numpy as np
>>> from bulkedge.spectra.operators import MatrixOperator
>>> op = MatrixOperator(np.diag([3.0, 1.0, 2.0])[:, :2])
>>> op @ np.ones(2), op.T @ np.ones(3), (2 * op).dense()[0]
(array([3., 1., 0.]), array([3., 1.]), array([6., 0.]))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from array_api_compat import array_namespace, device

from bulkedge.spectra.operators.directions import Polynomials
from bulkedge.support.domains import FLAG, Array, Interval, shown, takes
from bulkedge.support.errors import DomainError

FACTOR = Interval(-1e300, 1e300)
BLOCK = Array(least=1, booleans=True)
MOST_DENSE = 20_000  # rows or columns up to which an operator is written out
SQUARED = 1e6  # factors up to this, and down to one over it, are squared without harm in single precision


class Operator(ABC):
    """A matrix of shape (rows, columns), or a batch of them, known by its products.

    Attributes
    ----------
    shape : tuple of int
        (..., rows, columns); leading axes are those of a batch.
    like : array
        An array of the backend, the device and the floating type in which the operator computes.
    """

    shape: tuple[int, ...]
    like: Any
    # NumPy's numbers then leave ``number * operator`` to the operator, instead of making an array of it
    __array_ufunc__ = None

    # -- what an operator supplies -------------------------------------------------------------------------------------

    @abstractmethod
    def _forward(self, block: Any) -> Any:
        """``M V`` for a block of shape (..., columns, k)."""

    @abstractmethod
    def _backward(self, block: Any) -> Any:
        """``M' U`` for a block of shape (..., rows, k)."""

    @property
    def one_pass(self) -> bool:
        """Whether :meth:`_sweep` takes about the time of one product, and not of two."""
        return False

    def _sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        """``W = M V - L`` and ``M' W``, for blocks of shapes (..., columns, k) and (..., rows, k); L may be None."""
        image = self._forward(block) if less is None else self._forward(block) - less
        return image, self._backward(image)

    @takes(left=FLAG)
    def leading(self, *, left: bool = False) -> Polynomials | None:  # noqa: ARG002  # operators that know more use it
        """Directions that should contain the singular vectors of the largest values, as far as they are known.

        No product is spent on them, and nothing is promised: they are where to look first.

        Parameters
        ----------
        left : bool
            Whether left singular vectors are asked for instead of right ones.

        Returns
        -------
        Polynomials or None
            Their number, and on demand a basis; None, as for most operators, if nothing is known.
        """
        return None

    @property
    def low_rank(self) -> bool:
        """Whether the matrix is known to have a rank that is small beside its size."""
        return False

    # -- what follows --------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> tuple[int, ...]:
        """Leading axes; empty for a single matrix."""
        return self.shape[:-2]

    @property
    def T(self) -> Operator:  # noqa: N802  # as arrays name it
        """The transpose, which shares all memory with the operator."""
        return Transposed(self)

    def __matmul__(self, block: Any) -> Any:
        """``M V`` for a vector of length (columns,) or a block of columns (..., columns, k) of the same backend."""
        vector = getattr(block, "ndim", 0) == 1
        columns = self._on_backend(block)
        columns = columns[:, None] if vector else columns
        if columns.ndim < 2 or columns.shape[-2] != self.shape[-1]:
            raise DomainError(self._refusal(block))
        product = self._forward(columns)
        return product[..., 0] if vector else product

    def sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        """A product, and the product of the transpose with it: ``W = M V - L``, and ``M' W``.

        Attention by blocks of rows needs one pass for both (``one_pass`` is then true), and so do its multiples and
        differences with matrices of which products are cheap.
        """
        columns = self._on_backend(block)
        subtracted = None if less is None else self._on_backend(less, "less")
        if columns.ndim < 2 or columns.shape[-2] != self.shape[-1]:
            raise DomainError(self._refusal(block))
        if subtracted is not None and subtracted.shape[-2:] != (self.shape[-2], columns.shape[-1]):
            raise DomainError(
                f"less must have shape (..., {self.shape[-2]}, {columns.shape[-1]}); got {tuple(less.shape)}"
            )
        return self._sweep(columns, subtracted)

    def __mul__(self, factor: float) -> Operator:
        return Scaled(self, FACTOR.check("factor", factor))

    __rmul__ = __mul__

    def __sub__(self, other: Operator) -> Operator:
        if not isinstance(other, Operator) or other.shape[-2:] != self.shape[-2:]:
            raise DomainError(f"other = {shown(other)} is no operator of shape {self.shape}: only such are subtracted")
        return Difference(self, other)

    def less(self, left: Any, right: Any) -> Operator:
        """The operator minus a matrix of low rank, ``M - L R'``.

        Parameters
        ----------
        left : array of shape (..., rows, k)
            Columns L.
        right : array of shape (..., columns, k)
            Columns R, as many.

        Returns
        -------
        Operator
            Of the same shape; nothing of it is written out.
        """
        other = LowRank(self._on_backend(left, "left"), self._on_backend(right, "right"))
        if other.shape[-2:] != self.shape[-2:]:
            shapes = f"left and right have shapes {tuple(left.shape)} and {tuple(right.shape)}"
            raise DomainError(f"{shapes}: an operator of shape {self.shape} needs as many rows as it has, and columns")
        return Difference(self, other)

    def without(self, directions: Any) -> Operator:
        """The operator with directions of its domain projected away, ``M (I - Q Q')``.

        Parameters
        ----------
        directions : array of shape (columns, k)
            Vectors, independent of each other; Q is an orthonormal basis of what they span.

        Returns
        -------
        Operator
            Of the same shape. If the directions are right singular vectors, their singular values become zero and the
            others stay what they are.
        """
        vectors = self._on_backend(directions, "directions")
        if vectors.ndim != 2 or vectors.shape[0] != self.shape[-1] or vectors.shape[1] > vectors.shape[0]:
            raise DomainError(
                f"directions must have shape ({self.shape[-1]}, k), k independent columns; got {tuple(vectors.shape)}"
            )
        return Projected(self, array_namespace(vectors).linalg.qr(vectors)[0])

    def dense(self) -> Any:
        """The matrix itself, of shape (..., rows, columns): for small operators, and for tests."""
        rows, columns = self.shape[-2:]
        if max(rows, columns) > MOST_DENSE:
            raise DomainError(f"an operator of shape {self.shape} is not written out: at most {MOST_DENSE} each way")
        xp = array_namespace(self.like)
        return self._forward(xp.eye(columns, dtype=self.like.dtype, device=device(self.like)))

    def __getitem__(self, index: Any) -> Operator:
        """One matrix of a batch."""
        raise DomainError(f"an operator of shape {self.shape} has no members to choose from: index = {shown(index)}")

    def _refusal(self, block: Any) -> str:
        """What is wrong with a block that does not fit."""
        return (
            f"an operator of shape {self.shape} multiplies a block of shape (..., {self.shape[-1]}, k); "
            f"got {tuple(block.shape)}"
        )

    def _on_backend(self, block: Any, name: str = "block") -> Any:
        """A block on the backend of the operator: arrays of another library are refused, types are converted."""
        BLOCK.check(name, block)
        if array_namespace(block) is not array_namespace(self.like):
            library = array_namespace(self.like).__name__.rsplit(".")[-1]
            raise DomainError(f"{name} = {shown(block)} is no array of {library}, as the operator is")
        if hasattr(block, "detach"):
            return block.detach().to(device=self.like.device, dtype=self.like.dtype)
        return block.astype(self.like.dtype, copy=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, {self.like.dtype})"


class Transposed(Operator):
    """``M'``."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.like = operator, operator.like
        *batch, rows, columns = operator.shape
        self.shape = (*batch, columns, rows)

    @property
    def T(self) -> Operator:  # noqa: N802
        """The operator itself."""
        return self.operator

    def _forward(self, block: Any) -> Any:
        return self.operator._backward(block)

    def _backward(self, block: Any) -> Any:
        return self.operator._forward(block)

    def leading(self, *, left: bool = False) -> Polynomials | None:
        """Those of the operator, from the other side."""
        return self.operator.leading(left=not left)

    def __getitem__(self, index: Any) -> Operator:
        return self.operator[index].T


class Scaled(Operator):
    """``c M`` for a number c."""

    def __init__(self, operator: Operator, factor: float) -> None:
        self.operator, self.factor = operator, factor
        self.shape, self.like = operator.shape, operator.like

    def _forward(self, block: Any) -> Any:
        return self.factor * self.operator._forward(block)

    def _backward(self, block: Any) -> Any:
        return self.factor * self.operator._backward(block)

    @property
    def one_pass(self) -> bool:
        """As that of the operator, unless the square of the factor would leave the range of single precision."""
        return self.operator.one_pass and 1 / SQUARED <= abs(self.factor) <= SQUARED

    def _sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        if not self.one_pass:
            return super()._sweep(block, less)
        image, back = self.operator._sweep(block, None if less is None else less / self.factor)
        return self.factor * image, self.factor**2 * back

    def leading(self, *, left: bool = False) -> Polynomials | None:
        """Those of the operator."""
        return self.operator.leading(left=left)

    def __getitem__(self, index: Any) -> Operator:
        return Scaled(self.operator[index], self.factor)


class Difference(Operator):
    """``M - N``; N may be one matrix that is taken off every member of a batch."""

    def __init__(self, operator: Operator, other: Operator) -> None:
        self.operator, self.other = operator, other
        self.shape, self.like = operator.shape, operator.like

    def _forward(self, block: Any) -> Any:
        return self.operator._forward(block) - self.other._forward(block)

    def _backward(self, block: Any) -> Any:
        return self.operator._backward(block) - self.other._backward(block)

    @property
    def one_pass(self) -> bool:
        """As that of the operator that the other is taken off."""
        return self.operator.one_pass

    def _sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        subtracted = self.other._forward(block)
        image, back = self.operator._sweep(block, subtracted if less is None else subtracted + less)
        return image, back - self.other._backward(image)

    def leading(self, *, left: bool = False) -> Polynomials | None:
        """Those of the operator, if what is taken off it has few directions of its own."""
        return self.operator.leading(left=left) if self.other.low_rank else None

    def __getitem__(self, index: Any) -> Operator:
        return Difference(self.operator[index], self.other[index] if self.other.batch else self.other)


class LowRank(Operator):
    """``L R'`` with few columns."""

    def __init__(self, left: Any, right: Any) -> None:
        if left.ndim < 2 or right.ndim < 2 or left.shape[-1] != right.shape[-1]:
            raise DomainError(
                f"left and right must have shapes (..., rows, k) and (..., columns, k); got {tuple(left.shape)} and "
                f"{tuple(right.shape)}"
            )
        self.left, self.right, self.like = left, right, left
        self.shape = (*left.shape[:-1], right.shape[-2])

    @property
    def low_rank(self) -> bool:
        """Few columns were given."""
        return True

    def _forward(self, block: Any) -> Any:
        return self.left @ (array_namespace(block).matrix_transpose(self.right) @ block)

    def _backward(self, block: Any) -> Any:
        return self.right @ (array_namespace(block).matrix_transpose(self.left) @ block)

    def __getitem__(self, index: Any) -> Operator:
        return LowRank(self.left[index], self.right[index])


class Projected(Operator):
    """``M (I - Q Q')`` with Q of orthonormal columns."""

    def __init__(self, operator: Operator, basis: Any) -> None:
        self.operator, self.basis = operator, basis
        self.shape, self.like = operator.shape, operator.like

    def _forward(self, block: Any) -> Any:
        return self.operator._forward(self._project(block))

    def _backward(self, block: Any) -> Any:
        return self._project(self.operator._backward(block))

    @property
    def one_pass(self) -> bool:
        """As that of the operator."""
        return self.operator.one_pass

    def _sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        image, back = self.operator._sweep(self._project(block), less)
        return image, self._project(back)

    def _project(self, block: Any) -> Any:
        return block - self.basis @ (array_namespace(block).matrix_transpose(self.basis) @ block)

    def __getitem__(self, index: Any) -> Operator:
        return Projected(self.operator[index], self.basis)
