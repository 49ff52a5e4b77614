"""The spectrum of an attention matrix, in the normalisation of the laws of attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from bulkedge.spectra.dense import spectrum
from bulkedge.spectra.operators import AttentionOperator
from bulkedge.support.arrays import as_numpy
from bulkedge.support.domains import MATRICES, shown
from bulkedge.support.errors import DomainError
from bulkedge.visibility import FullMask, Mask, MaskOrName, mask_for

TOLERANCE = 0.01  # Kolmogorov distance within which the distribution of an operator is wanted, unless another is given


def attention_spectrum(
    attention: Any, mask: str | Mask = "full", *, tolerance: float | None = None, placed: float | None = None
) -> Any:
    """Squared singular values of ``sqrt(keys) (A - C)``, C the mean matrix of the mask.

    That is the matrix of :class:`~bulkedge.laws.attention.proportional.AttentionLaw`,
    :class:`~bulkedge.laws.attention.finite_head. FiniteHeadLaw` and, for a causal mask, of
    :class:`~bulkedge.laws.attention.causal_head.CausalHeadLaw`.

    Parameters
    ----------
    attention : array of shape (..., queries, keys) or AttentionOperator
        Attention weights of one head, or of a batch of heads: rows sum to one. NumPy or torch. Of an operator, which
        has a mask of its own, the distribution is estimated; see :func:`~bulkedge.spectrum`.
    mask : {"full", "causal"} or Mask
        Who attends to whom. A mask that does not fit the matrix is refused: the wrong mean makes outliers of its own.
    tolerance : float, optional
        For an operator: Kolmogorov distance within which the distribution is wanted; 0.01 by default. All values of a
        matrix that is written out are computed, so that it takes none.
    placed : float, optional
        For an operator: share of the values to tell apart at least; see :func:`~bulkedge.spectrum`.

    Returns
    -------
    Spectrum or Spectra
        Squared singular values; a batch of them where there are leading axes. ``error`` of an estimated one says what
        was reached.

    Examples
    --------
    >>> import numpy as np
    >>> sharp = np.roll(np.eye(4), 1, axis=1)                    # each token attends to the next one
    >>> attention_spectrum(sharp).values.round(12) + 0.0
    array([0., 4., 4., 4.])
    """
    MaskOrName().check("mask", mask)
    if isinstance(attention, AttentionOperator):
        if not (isinstance(mask, str) and mask == "full") and mask_for(mask, attention.shape[-2]) != attention.mask:
            raise DomainError(f"mask = {mask!r} is not that of {attention!r}, which has its own")
        wanted, share = TOLERANCE if tolerance is None else tolerance, 0.0 if placed is None else placed
        return spectrum(attention.shape[-1] ** 0.5 * attention.centred(), tolerance=wanted, placed=share).squared()
    for name, value in (("tolerance", tolerance), ("placed", placed)):
        if value is not None:
            raise DomainError(f"{name} = {shown(value)} is for an AttentionOperator: matrices have all values computed")
    weights = MATRICES.check("attention", attention)
    rows, keys = weights.shape[-2:]
    seen = Mask.cross(rows, keys) if isinstance(mask, str) and mask == "full" else mask_for(mask, rows)
    if seen.shape != (rows, keys):
        raise DomainError(f"mask = {mask!r} has shape {seen.shape}, attention {(rows, keys)}")
    _check_weights(as_numpy(weights).astype(float), seen)
    return spectrum(keys**0.5 * (weights - seen.mean(weights))).squared()


def _check_weights(weights: Any, mask: Mask) -> None:
    """Refuse what is no attention, or not behind this mask."""
    off = float(np.abs(weights.sum(axis=-1) - 1).max())
    # half precision passes, dropout and attention sinks outside do not
    if off > 0.02 or weights.min() < 0:
        raise DomainError(
            f"attention must have rows of weights that sum to one; sums differ from it by {off:.3g} and the smallest "
            f"weight is {weights.min():.3g}. Are these scores, was dropout on, or is there a sink outside of the keys?"
        )
    visible = mask.visible()
    if np.any(weights[..., ~visible]):
        raise DomainError(f"attention has weight where {mask!r} hides keys: that is not its mask")
    unused = ~np.any(weights, axis=tuple(range(weights.ndim - 2)))
    rows, keys = mask.shape
    if isinstance(mask, FullMask) and rows == keys > 2 and np.all(unused[np.triu_indices(keys, 1)]):
        raise DomainError("attention is zero above the diagonal, so it is causal: pass mask='causal'")
    blind = np.flatnonzero(np.all(unused, axis=0) & np.any(visible, axis=0))
    if blind.size:
        raise DomainError(f"keys {blind[:5].tolist()} are attended to by none: if padding, pass Mask.padding(visible)")
