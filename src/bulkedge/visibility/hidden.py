"""The one rule for hidden keys, for arrays of NumPy and torch, and the softmax over the keys that are left."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.support.domains import Array, Integers, takes
from bulkedge.support.errors import DomainError

MASK = Array(least=1, booleans=True, empty=True)
# below the largest entry of a row: beyond any positional bias, and -1e4 is beyond it in every floating type
HIDDEN = 9000.0


def seen_keys(mask: Any) -> Any:
    """Which keys each row sees, whichever way the mask is written.

    Parameters
    ----------
    mask : array of shape (..., keys)
        Of NumPy or torch. Booleans, True for keys that are seen; or numbers that are added to scores, which hide a key
        where they are at least 9000 below the largest entry of their row. A row whose largest entry is at most -9000
        sees no key.

    Returns
    -------
    array of bool, of the shape of the mask
        On its device; no number comes to the host.

    Examples
    --------
    >>> seen_keys(np.array([[0.0, -1e9, -2.0], [-1e4, -1e4, -1e4]])).tolist()
    [[True, False, True], [False, False, False]]
    """
    # compilers follow: there is no branch on values
    if not hasattr(mask, "detach"):
        mask = MASK.check("mask", mask)
        if mask.dtype.kind != "f" or not mask.shape[-1]:
            return mask.astype(bool)
        top = mask.max(axis=-1, keepdims=True).astype(np.result_type(mask.dtype, np.float32))
        return mask > np.where(top > -HIDDEN, top - HIDDEN, top)
    if not mask.is_floating_point() or not mask.shape[-1]:
        return mask.bool()
    mask = mask.detach()
    top = mask.amax(-1, keepdim=True)
    # half precision knows 9000 too coarsely
    top = top if top.element_size() >= 4 else top.float()
    return mask > (top - HIDDEN).where(top > -HIDDEN, top)


def additive(mask: Any) -> Any:
    """The mask as numbers that are added to scores: minus infinity for hidden keys, in double precision."""
    seen, xp = seen_keys(mask), array_namespace(mask)
    bias = xp.zeros_like(mask, dtype=xp.float64) if mask.dtype == xp.bool else xp.astype(mask, xp.float64)
    return xp.where(seen, bias, -xp.inf)


def check_mask(name: str, mask: Any, shape: tuple[int, ...], like: Any) -> None:
    """Refuse a mask of another shape, type or device than that of attention matrices of a shape, in one sentence."""
    given = tuple(mask.shape)
    if len(given) < 2 or not _broadcasts(given, shape):
        raise DomainError(f"{name} has shape {given}; give one that broadcasts to {shape}, rows and keys last")
    if str(mask.dtype).rpartition(".")[2] not in {"bool", "float16", "bfloat16", "float32", "float64"}:
        raise DomainError(f"{name} is of {mask.dtype}; give booleans, True for keys that are seen, or additive numbers")
    if mask.device != like.device:
        raise DomainError(f"{name} is on {mask.device} and scores are on {like.device}; move it there")


def _broadcasts(shape: Any, to: Any) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(own in {1, size} for own, size in pairs)


@takes(scores=Array(least=1), visible=Array(booleans=True), axis=Integers(-64, 63))
def softmax(scores: Any, visible: Any = None, axis: int = -1) -> Any:
    """``exp(scores)`` over its sum along an axis, on any backend; hidden keys have weight zero.

    Parameters
    ----------
    scores : array
        Finite scores.
    visible : array of bool, optional
        True where scores count; broadcast against them.
    axis : int
        The axis that sums to one.

    Returns
    -------
    array
        The weights, of the shape of the scores.

    Examples
    --------
    >>> softmax(np.array([[0.0, 0.0, 9.0]]), np.array([True, True, False]))
    array([[0.5, 0.5, 0. ]])
    """
    xp = array_namespace(scores)
    if visible is not None and not _broadcasts(visible.shape, scores.shape):
        raise DomainError(f"visible has shape {tuple(visible.shape)}; it must broadcast to {tuple(scores.shape)}")
    if visible is not None and not str(visible.dtype).endswith("bool"):
        raise DomainError(f"visible is of {visible.dtype}: give booleans; numbers that are added belong into scores")
    seen = scores if visible is None else xp.where(visible, scores, -xp.inf)
    weights = xp.exp(seen - xp.max(seen, axis=axis, keepdims=True))
    total = xp.sum(weights, axis=axis, keepdims=True)
    if not isinstance(weights, np.ndarray):  # a tensor may need its exponentials for the gradient
        return weights / total
    weights /= total
    return weights
