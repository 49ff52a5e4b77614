"""What the studies of *recovery* share: the two correlation models, the three weightings, and draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bulkedge.arrays import Real
from bulkedge.ensembles.pooled import PooledSequences, Table, critical_strength, spectral_alignment
from bulkedge.progress import track
from bulkedge.recovery.correlations import prefix_correlation, spiked_correlation
from bulkedge.recovery.weights import causal_weights, mean_weights, optimal_weights

LENGTH, PREFIX, CORRELATION = 10, 4, 0.6
"""Positions, those with a signal, and their correlation, in the prefix model."""
DIRECTION, STRENGTH = (0, 0, 1, 0, -1, 0, 0, 1, 0, 0), 6.0
"""Direction and strength of the spiked model; the paper has a sign pattern on a few positions."""
WEIGHTINGS = ("mean", "causal", "optimal")


def correlations() -> dict[str, Real]:
    """The two models of Figure 4."""
    return {
        "prefix": prefix_correlation(LENGTH, PREFIX, CORRELATION),
        "spiked": spiked_correlation(LENGTH, DIRECTION, STRENGTH),
    }


def weights_of(weighting: str, correlation: Real) -> Real:
    """The pooling weights of that name for a correlation matrix.

    Parameters
    ----------
    weighting : {"mean", "causal", "optimal"}
        Which weights.
    correlation : array of shape (L, L)
        Correlation of the signs, for the optimal weights; the others read its size.

    Returns
    -------
    array of shape (L,)
        Weights that sum to one.
    """
    if weighting == "optimal":
        return optimal_weights(correlation)
    return (mean_weights if weighting == "mean" else causal_weights)(len(correlation))


@dataclass(frozen=True)
class Predictions:
    """Alignment and threshold of the sample for arrays of signals and vocabulary ratios, in closed form."""

    snr: Any
    """Alpha over kappa."""
    sample_ratio: float
    table: Table

    def _spread(self, vocab_ratio: Real) -> Real:
        return vocab_ratio if self.table == "finite" else 0.0 * vocab_ratio

    def alignment(self, signal: Real, vocab_ratio: Real) -> Real:
        """Squared overlap of equation 8, with the factor for the noise of the table's class means.

        Parameters
        ----------
        signal : array
            Lengths of the signal.
        vocab_ratio : array
            ``delta = d/V``, of a shape that broadcasts with the first.

        Returns
        -------
        array
            Squared overlap of the top eigenvector with the signal; zero below the threshold.
        """
        square, spread = signal**2, self._spread(vocab_ratio)
        spectral = spectral_alignment(self.snr * (square + spread), vocab_ratio, self.sample_ratio)
        return np.asarray(spectral * square / (square + spread))

    def threshold(self, vocab_ratio: Real) -> Real:
        """Equation 36; zero where the noise of the class means leaves the bulk alone.

        Parameters
        ----------
        vocab_ratio : array
            ``delta = d/V``.

        Returns
        -------
        array
            The smallest length of the signal that is seen, of the same shape.
        """
        square = critical_strength(vocab_ratio, self.sample_ratio) / self.snr - self._spread(vocab_ratio)
        return np.sqrt(np.maximum(square, 0.0))


def leading(models: Sequence[PooledSequences], draws: int, rng: np.random.Generator, label: str) -> Real:
    """Top eigenvalue and overlap of so many draws of each model: an array of models x draws x 2.

    Parameters
    ----------
    models : sequence of PooledSequences
        The ensembles.
    draws : int
        Draws of each.
    rng : numpy.random.Generator
        Source of all randomness.
    label : str
        What the progress bar counts.

    Returns
    -------
    array of shape (models, draws, 2)
        Location and overlap of each draw.
    """
    return np.array([[each.leading(rng) for _ in range(draws)] for each in track(models, label)])
