"""Random arrays on the backend of their generator: NumPy for NumPy's, torch (on its device) for torch's."""

from __future__ import annotations

from typing import Any

import numpy as np

from bulkedge.errors import DomainError


def normal(rng: Any, shape: tuple[int, ...]) -> Any:
    """Standard Gaussian numbers in double precision."""
    if isinstance(rng, np.random.Generator):
        return rng.standard_normal(shape)
    if type(rng).__module__.startswith("torch"):
        import torch

        return torch.randn(shape, generator=rng, device=rng.device, dtype=torch.float64)
    raise DomainError(f"rng = {rng!r} is neither a numpy.random.Generator nor a torch.Generator")
