"""How many directions a matrix really has, and how alike its rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.spectra.dense import Spectrum, spectrum
from bulkedge.spectra.operators import Operator
from bulkedge.spectra.traces import estimated_stable_rank
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE
from bulkedge.support.errors import DomainError


def stable_rank(matrix: Any) -> Any:
    """``|M|_F**2/|M|**2``, between one and the rank (*propagation*, equation 4).

    Parameters
    ----------
    matrix : array of shape (rows, columns) or Operator
        One matrix, of NumPy or torch, with an entry that is not zero.

    Returns
    -------
    float or Estimate
        Sum of the squared singular values over the largest of them; of an operator with a standard error, see
        :func:`~bulkedge.spectra.traces.estimated_stable_rank`.

    Examples
    --------
    >>> import numpy as np
    >>> stable_rank(np.diag([1.0, 1.0, 0.0])), stable_rank(np.ones((5, 3)))
    (2.0, 1.0)
    """
    if isinstance(matrix, Operator):
        return estimated_stable_rank(matrix)
    return 1 + stable_rank_excess(_values(matrix))


def stable_rank_excess(values: ArrayLike) -> float:
    """Stable rank less one, from singular values: near a collapse the difference keeps its digits."""
    return float(np.sum(_relative(values)[:-1] ** 2))


def effective_rank(matrix: Any) -> float:
    """Exponential of the entropy of the normalised singular values (Roy and Vetterli 2007).

    Parameters
    ----------
    matrix : array of shape (rows, columns)
        One matrix, of NumPy or torch, with an entry that is not zero.

    Returns
    -------
    float
        Between one and the rank; the number of nonzero singular values if those are equal.

    Examples
    --------
    >>> import numpy as np
    >>> round(effective_rank(np.diag([1.0, 1.0, 0.0])), 12)
    2.0
    """
    share = _relative(_values(matrix))
    share = share[share > 0] / share.sum()
    return float(np.exp(-np.sum(share * np.log(share))))


def cosine_similarity(tokens: ArrayLike) -> float:
    """Mean cosine between two different rows: one when all tokens point the same way.

    Parameters
    ----------
    tokens : array_like of shape (tokens, features)
        A vector for each token; two tokens at least, none of them zero.

    Returns
    -------
    float
        Mean over all pairs of different tokens, between ``-1/(tokens - 1)`` and one.

    Examples
    --------
    >>> cosine_similarity([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]])
    1.0
    """
    rows = FINITE.check("tokens", tokens)
    if rows.ndim != 2 or len(rows) < 2:
        raise DomainError(f"tokens must be a matrix of two rows at least; got shape {rows.shape}")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.all(norms > 0):
        raise DomainError("tokens contain a row of zeros, which has no direction")
    count = len(rows)
    together = float(np.sum(np.sum(rows / norms, axis=0) ** 2))
    return (together - count) / (count * (count - 1))


def _values(matrix: Any) -> Real:
    found = spectrum(matrix)
    if not isinstance(found, Spectrum):
        raise DomainError(f"matrix must have two dimensions; got a batch of shape {found.shape}: take one at a time")
    return found.values


def _relative(values: ArrayLike) -> Real:
    """Values in increasing order over the largest."""
    ordered = np.sort(FINITE.check("values", values).ravel())
    if not ordered.size or not ordered[-1] > 0:
        raise DomainError("the rank of a matrix of zeros is not defined: matrix must have an entry that is not zero")
    return np.asarray(ordered / ordered[-1])
