"""What both sides of the claims of ``width/depth`` share: an error in it would cancel there."""

import numpy as np
import pytest

from bulkedge.lab.studies.width.depth import correlations


def test_correlations_are_those_of_numpy():
    """Kernels of known correlation: that of each pair by ``np.corrcoef`` of vectors that have the kernel as Gram."""
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((2, 3, 4, 50)) * rng.uniform(0.1, 10, (2, 3, 4, 1))
    vectors -= vectors.mean(axis=-1, keepdims=True)
    kernels = tuple(layer @ layer.transpose(0, 2, 1) for layer in vectors)
    expected = [[np.corrcoef(draw)[np.triu_indices(4, 1)].mean() for draw in layer] for layer in vectors]
    assert correlations(kernels) == pytest.approx(np.array(expected))


def test_correlations_at_the_ends_of_their_range():
    ones, apart = np.full((1, 3, 3), 4.0), 7 * np.eye(3)[None]
    assert correlations((ones, apart)).ravel() == pytest.approx([1.0, 0.0])
    opposite = np.array([[[1.0, -2.0], [-2.0, 4.0]]])
    assert correlations((opposite,)).ravel() == pytest.approx([-1.0])
