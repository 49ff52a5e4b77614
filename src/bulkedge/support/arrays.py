"""Array types and the rounding unit, named once, and the way from any array to NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating[Any]]
Complex = NDArray[np.complexfloating[Any, Any]]
Index = NDArray[np.intp]
BoolArray = NDArray[np.bool_]

EPS = float(np.finfo(float).eps)


def as_numpy(array: Any) -> Any:
    """Any array as a NumPy array of its own; a tensor is taken off its graph and its device."""
    if not hasattr(array, "detach"):
        return np.array(array)
    tensor = array.detach().cpu()
    # NumPy has no bfloat16
    return np.array((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())


def object_array(shape: tuple[int, ...], items: list[Any]) -> Any:
    """An array of objects."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)
