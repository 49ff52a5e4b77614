"""One layer of a stack: what is drawn for it, and what it does to a signal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bulkedge.spectra import cosine_similarity, effective_rank, spectrum, stable_rank_excess
from bulkedge.support.arrays import Real


@dataclass(frozen=True)
class Weights:
    """What is drawn for one layer: the values, and the attention or the queries and keys that make it."""

    values: Any
    attention: Any = None
    query: Any = None
    key: Any = None


@dataclass(frozen=True)
class Layer:
    """One layer of a draw: its weights, the attention it used (as repaired) and the signal it put out."""

    weights: Weights
    attention: Real
    signal: Real

    @cached_property
    def singular_values(self) -> Real:
        """Singular values of the signal, in increasing order; their squares are those of ``Sigma_l = X_l X_l'``."""
        return spectrum(self.signal).values

    @property
    def stable_rank_excess(self) -> float:
        """Stable rank of ``Sigma_l`` less one, free of cancellation."""
        return stable_rank_excess(self.singular_values**2)

    @property
    def stable_rank(self) -> float:
        """Stable rank of ``Sigma_l`` (*propagation*, equation 5)."""
        return 1 + self.stable_rank_excess

    @property
    def effective_rank(self) -> float:
        """Effective rank of the signal."""
        return effective_rank(self.signal)

    @property
    def cosine_similarity(self) -> float:
        """Mean cosine of two tokens."""
        return cosine_similarity(self.signal)

    @property
    def distinct_share(self) -> float:
        """Share of the signal's power that tokens do not have in common: ``1 - T |mean token|**2/|X|**2``."""
        apart = self.signal - self.signal.mean(axis=0)
        return float(np.sum(apart**2) / np.sum(self.signal**2))
