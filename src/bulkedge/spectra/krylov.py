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

A block is made orthonormal by its Gram matrix, ``Q = W G^(-1/2)``: tall matrices meet products alone, and one small
matrix goes to the processor and one comes back, which on a GPU takes less time than any tall decomposition. Sums are
taken in double precision, so that rounding of the Gram matrix, times the square of a condition, stays below that of
single precision; in double precision it is done twice. A block that is too ill conditioned for that is decomposed by
Householder reflections, and one that has lost rank is narrowed to its rank, so that clusters, zeros and exhausted
spaces end the recurrence instead of dividing by zero.

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
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.spectra.operators.base import Operator
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.errors import DomainError
from bulkedge.support.threads import thin_products


@dataclass(frozen=True)
class Projection:
    """What a run knows of the matrix: ``B = U' M V``, and how far V is from being mapped into itself."""

    # (left, right): blocks ``R_j`` on the diagonal of B, in double precision: columns of each block of U and of V
    diagonal: list[Real]
    # (next, left): blocks ``S_j``: transposed they stand beside the diagonal; the last one is what leaves the bases
    off_diagonal: list[Real]
    probes: int  # columns of the first block, which come first in B
    steps: int  # blocks of V
    # values up to this are noise: the rounding unit of the operator times its largest value and the root of its size,
    # with a factor of safety
    rounding: float
    noise: float  # ten rounding units of the largest value: what rounding adds to residuals
    unit: float  # rounding unit in which the operator computes
    like: Any  # an array on the operator's backend and device

    @property
    def coupling(self) -> Real:
        """S of shape (next, last): from the last block of U to the next block of V; empty where bases are invariant."""
        return self.off_diagonal[-1]

    @cached_property
    def matrix(self) -> Real:
        """B, of shape (rows, columns)."""
        rows, columns = (np.cumsum([0, *(each.shape[axis] for each in self.diagonal)]) for axis in (0, 1))
        matrix = np.zeros((rows[-1], columns[-1]))
        for j, block in enumerate(self.diagonal):
            matrix[rows[j] : rows[j + 1], columns[j] : columns[j + 1]] = block
            if j + 1 < self.steps:
                matrix[rows[j] : rows[j + 1], columns[j + 1] : columns[j + 2]] = self.off_diagonal[j].T
        return matrix

    @property
    def exhausted(self) -> bool:
        """Whether the bases are invariant: then the values of B are values of M."""
        return self.coupling.shape[0] == 0


NEGLIGIBLE = 10.0  # rounding units of the largest value, times the root of the size: smaller columns have no direction
POOR = 1e-2  # size of a column, beside the largest value, below which its direction is cleaned of rounding again

LITTLE = 0.5  # length of what is taken off a column, over what is left of it, up to which it need not be cleaned again
WELL = 10.0
"""Condition of a factor up to which it may be divided by: this multiplies rounding, and stays within ``noise``."""
FAIR = 1e3
"""Condition of a block up to which its Gram matrix is used: rounding in double precision times its square is below a
hundredth of that in single precision, and the square of that below rounding in double precision."""
SINGLE = 1e-8
"""Rounding units below this are those of double precision, in which one Gram matrix is not accurate enough."""
REPRESENTED = 1e-250  # squared lengths that are smaller may have lost digits to the range of double precision

JOINED = 8  # blocks of a basis that are columns of one array


class Basis(list[Any]):
    """Blocks of orthonormal columns. Several are columns of one array: few products clean a block of all of them."""

    def __init__(self, joined: int | None = None) -> None:
        super().__init__()
        self._joined = joined or JOINED
        self._arrays: list[tuple[Any, int]] = []

    def append(self, block: Any) -> None:
        """Add a block, which is copied."""
        (size, width), xp = block.shape, array_namespace(block)
        array, filled = self._arrays.pop() if self._arrays else (block, width)
        if filled + width > array.shape[1]:
            if self:
                self._arrays.append((array, filled))
            array, filled = xp.empty((size, self._joined * width), dtype=block.dtype, device=device(block)), 0
        array[:, filled : filled + width] = block
        self._arrays.append((array, filled + width))
        super().append(array[:, filled : filled + width])

    def less(self, block: Any) -> tuple[Any, Any]:
        """A block minus its components along all columns."""
        xp, parts = array_namespace(block), []
        for array, filled in self._arrays:
            known = array[:, :filled]
            parts.append(xp.matrix_transpose(known) @ block)
            block = block - known @ parts[-1]
        if not parts:
            return block, xp.zeros(block.shape[1], dtype=xp.float64, device=device(block))
        with np.errstate(over="ignore"):
            return block, xp.sum(_wide(xp.concat(parts, axis=0)) ** 2, axis=0)


class Factor(NamedTuple):
    """R of a block ``W = Q R``, on the processor and on the device of the blocks; and its inverse if it is stable."""

    matrix: Real
    on_device: Any
    inverse: Any


class GolubKahan:
    """A run of the recurrence, one step at a time."""

    def __init__(self, operator: Operator, block: Any, *, two_sided: bool = True) -> None:
        xp = array_namespace(block)
        self._unit = float(xp.finfo(block.dtype).eps)
        overlap = as_numpy(xp.matrix_transpose(block) @ block).astype(float)
        off = float(np.abs(overlap - np.eye(len(overlap))).max())
        if not off < 100 * self._unit * block.shape[0] ** 0.5:
            raise DomainError(f"the first block must have orthonormal columns; they differ from it by {off:.3g}")
        self.operator, self.two_sided = operator, two_sided
        self.right, self.left = Basis(), Basis(None if two_sided else 1)
        self.right.append(block)
        self._diagonal: list[Real] = []
        self._coupling: list[Real] = []
        self._scale = 0.0
        self._well = True
        self._known: Any = None

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return len(self._diagonal)

    @property
    def exhausted(self) -> bool:
        """Whether a step more would find nothing new."""
        return bool(self._coupling) and self._coupling[-1].shape[0] == 0

    def step(self) -> None:
        """Extend both bases by a block: one product with M and one with its transpose."""
        if self.exhausted:
            return
        block = self.right[-1]
        image, swept = self._image(block, self._known)
        with thin_products():
            left, diagonal = self._orthonormal(image, self.left)
            self._diagonal.append(diagonal.matrix)
            if not self.two_sided:
                self.left = Basis(joined=1)
            self.left.append(left)
            if not left.shape[1]:
                self._coupling.append(np.zeros((0, 0)))
                return
            self._well = diagonal.inverse is not None
            # nothing of U but R is in W to rounding: what else was taken off it is in the span of the blocks before,
            # and its image in that of the blocks of V, which are taken off next
            back = swept @ diagonal.inverse if self._well and swept is not None else None
        if back is None:
            back = self.operator.T @ left
        with thin_products():
            following, coupling = self._orthonormal(back - block @ _transpose(diagonal.on_device), self.right)
            self._known = left @ _transpose(coupling.on_device)
        self._coupling.append(coupling.matrix)
        if following.shape[1]:
            self.right.append(following)

    def projection(self, steps: int | None = None) -> Projection:
        """B after all steps, or after the first few: what the run would have known then."""
        steps = self.steps if steps is None else min(steps, self.steps)
        noise = 10 * self._scale * self._unit
        rounding = NEGLIGIBLE * self._scale * self._unit * max(self.operator.shape[-2:]) ** 0.5
        diagonal, off_diagonal, probes = self._diagonal[:steps], self._coupling[:steps], self.right[0].shape[1]
        return Projection(diagonal, off_diagonal, probes, steps, rounding, noise, self._unit, self.operator.like)

    def _image(self, block: Any, known: Any) -> tuple[Any, Any]:
        """``W = M V - L``, and ``M' W`` if one pass finds both and the last one could be used; None otherwise."""
        if self.operator.one_pass and self._well:
            return self.operator.sweep(block, known)
        image = self.operator @ block
        return image if known is None else image - known, None

    def _orthonormal(self, block: Any, known: Basis) -> tuple[Any, Factor]:
        """An orthonormal basis Q of what a block adds to a basis, and R with block = Q R up to rounding."""
        clean, taken = known.less(block)
        wide = _wide(clean)
        gram, beyond = _gram(wide, taken)
        own = np.diagonal(gram)
        # twice is enough, and once where little was taken off: what is left of it is its rounding
        if known and not np.all((own > REPRESENTED) & (own < np.inf) & (beyond <= LITTLE**2 * own)):
            clean, taken = known.less(clean)
            wide = _wide(clean)
            gram, _ = _gram(wide, taken)
        sizes, root, inverse = _roots(gram)
        scale, least = max(self._scale, float(sizes[0])), NEGLIGIBLE * self._unit * block.shape[0] ** 0.5
        if not (sizes[-1] * FAIR >= sizes[0] and sizes[-1] > least * scale):
            return self._decompose(clean, known)
        self._scale, poor = scale, bool(sizes[-1] < POOR * scale)
        basis, pair = self._divide(wide, root, inverse)
        if poor or self._unit < SINGLE:
            # rounding is large beside what is left of these columns, or beside that of the block: take it off once more
            wide = _wide(known.less(basis)[0] if poor else basis)
            again, more, less = _roots(_gram(wide, taken)[0])
            if not again[-1] * 2 >= again[0]:
                return self._decompose(clean, known)
            root, inverse = more @ root, inverse @ less
            basis, _ = self._divide(wide, more, less)
            pair = self._like(np.stack([root, inverse]))
        well = bool(sizes[0] <= WELL * sizes[-1])
        return basis, Factor(root, pair[0], pair[1] if well else None)

    def _divide(self, wide: Any, root: Real, inverse: Real) -> tuple[Any, Any]:
        """``W R^(-1)`` of a block in double precision, and both R and its inverse, which travel together."""
        xp, dtype = array_namespace(wide), self.right[0].dtype
        pair = xp.asarray(np.stack([root, inverse]), dtype=xp.float64, device=device(wide))
        return xp.astype(wide @ pair[1], dtype, copy=False), xp.astype(pair, dtype, copy=False)

    def _decompose(self, clean: Any, known: Basis) -> tuple[Any, Factor]:
        """The same by Householder reflections, for a block that is ill conditioned or has lost rank."""
        xp = array_namespace(clean)
        basis, triangle = xp.linalg.qr(clean)
        factor = as_numpy(triangle).astype(float)
        if not np.all(np.isfinite(factor)):
            raise DomainError("a product with the operator is not finite")
        rotation, sizes, right = np.linalg.svd(factor)
        self._scale = max(self._scale, float(sizes[0]))
        rank = int(np.sum(sizes > NEGLIGIBLE * self._unit * clean.shape[0] ** 0.5 * self._scale))
        if rank < len(sizes):
            basis, factor = basis @ self._like(rotation[:, :rank]), sizes[:rank, None] * right[:rank]
        if rank and sizes[rank - 1] < POOR * self._scale:
            # rounding is large beside what is left of these columns: take it off once more
            basis, triangle = xp.linalg.qr(known.less(basis)[0])
            factor = as_numpy(triangle).astype(float) @ factor
        well = bool(rank and sizes[0] <= WELL * sizes[rank - 1])
        inverse = self._like(np.linalg.pinv(factor)) if well else None
        return basis, Factor(factor, self._like(factor), inverse)

    def _like(self, matrix: Real) -> Any:
        """A small matrix on the backend of the operator."""
        first = self.right[0]
        return array_namespace(first).asarray(np.ascontiguousarray(matrix), dtype=first.dtype, device=first.device)


def _wide(block: Any) -> Any:
    """A block in double precision."""
    xp = array_namespace(block)
    return xp.astype(block, xp.float64, copy=False)


def _transpose(matrix: Any) -> Any:
    return array_namespace(matrix).matrix_transpose(matrix)


def _gram(wide: Any, taken: Any) -> tuple[Real, Real]:
    """``W' W`` of a block in double precision, and what was taken off it, on the processor: one transfer for both."""
    with np.errstate(over="ignore", invalid="ignore"):
        both = as_numpy(array_namespace(wide).concat([_transpose(wide) @ wide, taken[None, :]], axis=0))
    return both[:-1], both[-1]


def _roots(gram: Real) -> tuple[Real, Real, Real]:
    """Singular values of a block in decreasing order, ``G^(1/2)`` and its inverse; zeros if they cannot be had."""
    if not np.all(np.isfinite(gram)):
        return np.zeros(len(gram)), gram, gram
    squares, vectors = np.linalg.eigh(gram)
    if not squares[0] > REPRESENTED:
        return np.zeros(len(gram)), gram, gram
    sizes = np.sqrt(squares)
    return sizes[::-1], (vectors * sizes) @ vectors.T, (vectors / sizes) @ vectors.T
