"""Array types and the rounding unit, named once, and the way from any array to NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating[Any]]
Complex = NDArray[np.complexfloating[Any, Any]]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]

EPS = float(np.finfo(float).eps)


def as_numpy(array: Any) -> Any:
    """Any array as a NumPy array of its own; a tensor is taken off its graph and its device.

    Parameters
    ----------
    array : array_like
        Numbers, nested lists, a NumPy array, or a tensor of torch, on any device and with or without a graph behind it.

    Returns
    -------
    numpy.ndarray
        A copy of the same shape. The type of the entries is kept, except that bfloat16, which NumPy does not have,
        becomes float32.
    """
    if not hasattr(array, "detach"):
        return np.array(array)
    tensor = array.detach().cpu()
    # NumPy has no bfloat16
    return np.array((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())


def filled(shape: tuple[int, ...], items: list[Any]) -> Any:
    """An array of objects.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    items : list
        What it holds, in order.

    Returns
    -------
    array of objects
        Of that shape.
    """
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)
