"""Array types and the rounding unit, named once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating[Any]]
Complex = NDArray[np.complexfloating[Any, Any]]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]

EPS = float(np.finfo(float).eps)
