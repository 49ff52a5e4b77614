"""Random arrays on the backend of their generator: NumPy for NumPy's, torch (on its device) for torch's."""

from __future__ import annotations

from typing import Any

import numpy as np

from bulkedge.support.domains import GENERATOR, shown
from bulkedge.support.errors import DomainError


def numpy_generator(rng: Any) -> np.random.Generator:
    """The generator, if it is NumPy's; the random arrays of many models are."""
    generator: np.random.Generator = GENERATOR.check("rng", rng)
    return generator


def seeded(rng: Any) -> np.random.Generator:
    """NumPy's generator of a seed, or the generator itself."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise DomainError(f"rng = {shown(rng)} is neither a seed, a whole number from zero, nor a generator") from None


def normal(rng: Any, shape: tuple[int, ...]) -> Any:
    """Standard Gaussian numbers in double precision."""
    if isinstance(rng, np.random.Generator):
        return rng.standard_normal(shape)
    if type(rng).__module__.startswith("torch"):
        import torch

        if isinstance(rng, torch.Generator):
            return torch.randn(shape, generator=rng, device=rng.device, dtype=torch.float64)
    raise DomainError(f"rng = {shown(rng)} is neither a numpy.random.Generator nor a torch.Generator")
