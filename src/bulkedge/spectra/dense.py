"""Spectra of dense matrices.

>>> import numpy as np
>>> spectrum(np.diag([3.0, -4.0])).values
array([3., 4.])
>>> spectrum(np.diag([3.0, -4.0]), kind="eigen").values
array([-4.,  3.])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike

from bulkedge.arrays import Real
from bulkedge.domains import Choice
from bulkedge.errors import DomainError

HERMITIAN_TOLERANCE = 1e-6
"""Relative asymmetry up to which a matrix counts as symmetric: float32 rounding passes, a wrong matrix does not."""


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues or singular values, in increasing order.

    Attributes
    ----------
    values : array
        The values.
    weights : array
        Their weights, which sum to one.
    size : int
        How many values the matrix has (more than listed here, if they were estimated).
    kind : {"singular", "eigen"}
        What they are.
    rounding : float
        Error of the decomposition: of values closer to zero than this only the number is known.
    """

    values: Real
    weights: Real
    size: int
    kind: Literal["singular", "eigen"]
    rounding: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike, kind: Literal["singular", "eigen"], rounding: float = 0.0) -> Spectrum:
        """Values that are all of the spectrum, in any order, with equal weights."""
        ordered = np.sort(np.asarray(values, dtype=float))
        return cls(ordered, np.full(len(ordered), 1 / len(ordered)), len(ordered), kind, rounding)

    def squared(self) -> Spectrum:
        """The squared values."""
        order = np.argsort(self.values**2, kind="stable")
        return replace(self, values=self.values[order] ** 2, weights=self.weights[order], rounding=self.rounding**2)

    def scaled(self, factor: float) -> Spectrum:
        """The values times a positive factor."""
        if not factor > 0:
            raise DomainError(f"factor = {factor!r} is outside its domain (0, inf)")
        return replace(self, values=factor * self.values, rounding=factor * self.rounding)


def spectrum(matrix: Any, kind: Literal["singular", "eigen"] = "singular") -> Spectrum:
    """All singular values of a matrix, or all eigenvalues of a symmetric one.

    Parameters
    ----------
    matrix : array of shape (m, n)
        NumPy or any array of the array API standard (torch included); computed where it lives.
    kind : {"singular", "eigen"}
        What to compute; eigenvalues need a symmetric (Hermitian) matrix.
    """
    kind = Choice(("singular", "eigen")).check("kind", kind)
    if getattr(matrix, "ndim", None) != 2 or 0 in matrix.shape:
        raise DomainError(f"matrix must be two-dimensional and not empty; got shape {getattr(matrix, 'shape', None)}")
    xp = array_namespace(matrix)
    if not bool(xp.all(xp.isfinite(matrix))):
        raise DomainError("matrix contains NaN or infinite entries; its spectrum is not defined")
    if kind == "singular":
        values = xp.linalg.svdvals(matrix)
    else:
        _require_hermitian(xp, matrix)
        values = xp.linalg.eigvalsh(matrix)
    rounding = float(xp.max(xp.abs(values))) * float(xp.finfo(values.dtype).eps) * max(matrix.shape) ** 0.5
    return Spectrum.of(values.cpu() if hasattr(values, "cpu") else values, kind, rounding)


def _require_hermitian(xp: Any, matrix: Any) -> None:
    if matrix.shape[0] != matrix.shape[1]:
        raise DomainError(f"eigenvalues need a square matrix; got shape {tuple(matrix.shape)} (use kind='singular')")
    asymmetry = float(xp.max(xp.abs(matrix - xp.conj(xp.matrix_transpose(matrix)))))
    if asymmetry > HERMITIAN_TOLERANCE * float(xp.max(xp.abs(matrix))):
        raise DomainError(
            f"eigenvalues need a symmetric matrix; entries differ from their mirror by {asymmetry:g} "
            "(use kind='singular')"
        )
