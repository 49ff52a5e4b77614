"""What an ensemble is: a finite random matrix and its limit, born from the same parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from bulkedge.laws.base import Law
from bulkedge.spectra import Spectrum


class Ensemble(ABC):
    """A random matrix model; ``spectrum`` of a draw follows ``law`` as the matrix grows."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Any:
        """Draw the matrix."""

    @abstractmethod
    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Draw the matrix and return the values whose limit :meth:`law` is."""

    @abstractmethod
    def law(self) -> Law:
        """The limiting law."""
