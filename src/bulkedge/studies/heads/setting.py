"""What several studies of real heads share: where large matrices are drawn."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

LARGE = 4096
"""Tokens from which on a GPU is worth the import of torch."""


def generator(rng: np.random.Generator, tokens: int) -> Any:
    """A generator for attention of so many tokens: on the GPU, if they are many and there is one, else as it came.

    Parameters
    ----------
    rng : numpy.random.Generator
        What seeds the GPU's.
    tokens : int
        Number of tokens.

    Returns
    -------
    numpy.random.Generator or torch.Generator
        For ``Ensemble.spectrum``. The numbers of the two differ; each has the same numbers for the same seed.
    """
    if tokens < LARGE or find_spec("torch") is None:
        return rng
    import torch

    if not torch.cuda.is_available():
        return rng
    return torch.Generator("cuda").manual_seed(int(rng.integers(2**62)))
