"""Block Golub-Kahan bidiagonalisation: the recurrence, and nothing about densities.

Started from an orthonormal block ``V_1`` it builds orthonormal bases V and U with ``M V = U B`` and ``M' U = V B' +
V_next S E'``, where B is block upper bidiagonal and E picks the last block of U. Singular values of B approximate those
of M: the ends of the spectrum first, and up to a block's width of equal ones at a time.

Both bases are orthogonalised against all their blocks, twice where much was taken off, because a basis that is only
orthogonal to its neighbours finds large values again and again. Where memory matters more, ``two_sided=False`` keeps V
alone: U is then orthogonal through the recurrence as far as B is well conditioned (Simon and Zha 2000).

A step takes a product with M and one with its transpose. An operator that finds both in one pass (``one_pass``) is
asked for ``W = M V_j - U_(j-1) S'`` and ``M' W``; with ``W = U_j R_j`` this gives ``M' U_j = (M' W) R_j^(-1)``. It is
not a recurrence for ``M' M``, in which values below the root of the rounding unit drown, but the same one, with the
rounding of a product times the condition of a triangle of the block's width. That was 1.4 to 4.1 for attention, full or
causal; where it is large, the second product is made.

A block that has lost rank is narrowed to its rank, so that clusters, zeros and exhausted spaces end the recurrence
instead of dividing by zero.

>>> import numpy as np
>>> from bulkedge.spectra.operators import MatrixOperator
>>> run = GolubKahan(MatrixOperator(np.diag([3.0, 2.0, 2.0, 1.0])), np.full((4, 1), 0.5))
>>> while not run.exhausted:
...     run.step()
>>> run.steps, np.linalg.svd(run.projection().matrix, compute_uv=False).round(12).tolist()   # three different values
(3, [3.0, 2.0, 1.0])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.arrays import Real, as_numpy
from bulkedge.errors import DomainError
from bulkedge.spectra.operators.base import Operator
from bulkedge.threads import thin_products


@dataclass(frozen=True)
class Projection:
    """What a run knows of the matrix: ``B = U' M V``, and how far V is from being mapped into itself.

    Attributes
    ----------
    matrix : array of shape (rows, columns)
        B, in double precision.
    coupling : array of shape (next, last)
        S: what leaves the bases, from the last block of U to the next block of V; empty where the bases are invariant.
    probes : int
        Columns of the first block, which come first in B.
    steps : int
        Blocks of V.
    rounding : float
        Values up to this are noise: the rounding unit of the operator times its largest value and the root of its size,
        with a factor of safety.
    noise : float
        Ten rounding units of the largest value: what rounding adds to residuals.
    """

    matrix: Real
    coupling: Real
    probes: int
    steps: int
    rounding: float
    noise: float

    @property
    def exhausted(self) -> bool:
        """Whether the bases are invariant: then the values of B are values of M."""
        return self.coupling.shape[0] == 0


NEGLIGIBLE = 10.0
"""Rounding units of the largest value, times the root of the size: smaller columns have no direction."""
POOR = 1e-2
"""Size of a column, beside the largest value, below which its direction is cleaned of rounding again."""

LITTLE = 0.5
"""Length of what is taken off a column, over what is left of it, up to which it need not be cleaned again."""
WELL = 10.0
"""Condition of a triangle up to which it may be divided by: this multiplies rounding, and stays within ``noise``."""


JOINED = 8
"""Blocks of a basis that are columns of one array."""


class Basis(list[Any]):
    """Blocks of orthonormal columns. Several are columns of one array: few products clean a block of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._arrays: list[tuple[Any, int]] = []

    def append(self, block: Any) -> None:
        """Add a block, which is copied.

        Parameters
        ----------
        block : array of shape (size, width)
            Its columns are orthogonal to those of the blocks before.
        """
        (size, width), xp = block.shape, array_namespace(block)
        array, filled = self._arrays.pop() if self._arrays else (block, width)
        if filled + width > array.shape[1]:
            if self:
                self._arrays.append((array, filled))
            array, filled = xp.empty((size, JOINED * width), dtype=block.dtype, device=device(block)), 0
        array[:, filled : filled + width] = block
        self._arrays.append((array, filled + width))
        super().append(array[:, filled : filled + width])

    def less(self, block: Any) -> Any:
        """A block less its components along all columns.

        Parameters
        ----------
        block : array of shape (size, k)
            Any columns.

        Returns
        -------
        array of shape (size, k)
            Orthogonal to the basis, up to rounding.
        """
        for array, filled in self._arrays:
            known = array[:, :filled]
            block = block - known @ (array_namespace(block).matrix_transpose(known) @ block)
        return block


class GolubKahan:
    """A run of the recurrence, one step at a time.

    Parameters
    ----------
    operator : Operator
        M, a single matrix.
    block : array of shape (columns, probes)
        The first block, of orthonormal columns, on the operator's backend.
    two_sided : bool
        Whether to keep the left basis and orthogonalise against all of it.
    """

    def __init__(self, operator: Operator, block: Any, *, two_sided: bool = True) -> None:
        xp = array_namespace(block)
        self._unit = float(xp.finfo(block.dtype).eps)
        overlap = as_numpy(xp.matrix_transpose(block) @ block).astype(float)
        off = float(np.abs(overlap - np.eye(len(overlap))).max())
        if not off < 100 * self._unit * block.shape[0] ** 0.5:
            raise DomainError(f"the first block must have orthonormal columns; they differ from it by {off:.3g}")
        self.operator, self.two_sided = operator, two_sided
        self.right, self.left = Basis(), Basis()
        self.right.append(block)
        self._diagonal: list[Real] = []
        self._coupling: list[Real] = []
        self._scale = 0.0
        self._well = True

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return len(self._diagonal)

    @property
    def exhausted(self) -> bool:
        """Whether a step more would find nothing new."""
        return bool(self._coupling) and self._coupling[-1].shape[0] == 0

    def step(self) -> None:
        """Extend both bases by a block: one product with M and one with its transpose.

        Raises
        ------
        DomainError
            If a product is not finite.
        """
        if self.exhausted:
            return
        block = self.right[-1]
        with thin_products():
            known = self.left[-1] @ self._like(self._coupling[-1].T) if self.left else None
        image, swept = self._image(block, known)
        with thin_products():
            left, diagonal = self._orthonormal(image, self.left)
        self._diagonal.append(diagonal)
        if not self.two_sided:
            self.left = Basis()
        self.left.append(left)
        if not left.shape[1]:
            self._coupling.append(np.zeros((0, 0)))
            return
        back = self._back(left, diagonal, swept)
        with thin_products():
            following, coupling = self._orthonormal(back - block @ self._like(diagonal.T), self.right)
        self._coupling.append(coupling)
        if following.shape[1]:
            self.right.append(following)

    def projection(self, steps: int | None = None) -> Projection:
        """B after all steps, or after the first few: what the run would have known then.

        Parameters
        ----------
        steps : int, optional
            How many steps, at least one; all by default.

        Returns
        -------
        Projection
            The matrix, and what leaves it.
        """
        steps = self.steps if steps is None else min(steps, self.steps)
        rows, columns = (np.cumsum([0, *(each.shape[axis] for each in self._diagonal[:steps])]) for axis in (0, 1))
        matrix = np.zeros((rows[-1], columns[-1]))
        for j in range(steps):
            matrix[rows[j] : rows[j + 1], columns[j] : columns[j + 1]] = self._diagonal[j]
            if j + 1 < steps:
                matrix[rows[j] : rows[j + 1], columns[j + 1] : columns[j + 2]] = self._coupling[j].T
        noise = 10 * self._scale * self._unit
        rounding = NEGLIGIBLE * self._scale * self._unit * max(self.operator.shape[-2:]) ** 0.5
        return Projection(matrix, self._coupling[steps - 1], self.right[0].shape[1], steps, rounding, noise)

    def _image(self, block: Any, known: Any) -> tuple[Any, Any]:
        """``W = M V - L``, and ``M' W`` if one pass finds both and the last one could be used; None otherwise."""
        if self.operator.one_pass and self._well:
            return self.operator.sweep(block, known)
        image = self.operator @ block
        return image if known is None else image - known, None

    def _back(self, left: Any, diagonal: Real, swept: Any) -> Any:
        """``M' U`` for a new block with ``W = U R``: from ``M' W`` where R may be divided by, or by a product.

        Nothing of U but R is in W to rounding: what else was taken off it is in the span of the blocks before, and its
        image in that of the blocks of V, which are taken off next.
        """
        with thin_products():
            rotation, sizes, right = np.linalg.svd(diagonal, full_matrices=False)
        self._well = bool(sizes[0] <= WELL * sizes[-1])
        if swept is None or not self._well:
            return self.operator.T @ left
        with thin_products():
            return swept @ self._like((right.T / sizes) @ rotation.T)

    def _orthonormal(self, block: Any, known: Basis) -> tuple[Any, Real]:
        """An orthonormal basis Q of what a block adds to a basis, and R with block = Q R up to rounding."""
        xp = array_namespace(block)
        clean = known.less(block)
        # twice is enough, and once where little was taken off: what is left of it is its rounding
        if known and not np.all(_lengths(block - clean) <= LITTLE * _lengths(clean)):
            clean = known.less(clean)
        basis, triangle = xp.linalg.qr(clean)
        factor = as_numpy(triangle).astype(float)
        if not np.all(np.isfinite(factor)):
            raise DomainError("a product with the operator is not finite")
        rotation, sizes, right = np.linalg.svd(factor)
        self._scale = max(self._scale, float(sizes[0]))
        rank = int(np.sum(sizes > NEGLIGIBLE * self._unit * block.shape[0] ** 0.5 * self._scale))
        if rank < len(sizes):
            basis, factor = basis @ self._like(rotation[:, :rank]), sizes[:rank, None] * right[:rank]
        if rank and sizes[rank - 1] < POOR * self._scale:
            # rounding is large beside what is left of these columns: take it off once more
            basis, triangle = xp.linalg.qr(known.less(basis))
            factor = as_numpy(triangle).astype(float) @ factor
        return basis, factor

    def _like(self, matrix: Real) -> Any:
        """A small matrix on the backend of the operator."""
        first = self.right[0]
        return array_namespace(first).asarray(np.ascontiguousarray(matrix), dtype=first.dtype, device=first.device)


def _lengths(block: Any) -> Real:
    """Lengths of columns, whose squares may be out of range."""
    xp = array_namespace(block)
    largest = xp.max(xp.abs(block)) + xp.finfo(block.dtype).smallest_normal
    return as_numpy(largest * xp.sum((block / largest) ** 2, axis=0) ** 0.5).astype(float)
