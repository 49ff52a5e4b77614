"""The parts of an attention matrix that studies read one by one, against their definitions."""

import numpy as np
import pytest

import bulkedge as be


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_normalisers_are_the_means_of_the_exponentials(beta):
    model = be.SoftmaxAttention(tokens=20, head_dim=8, beta=beta)
    scores = model.scores(np.random.default_rng(0))
    expected = [np.mean([np.exp(beta * score) for score in row]) for row in scores]
    np.testing.assert_allclose(model.normalisers(scores), expected, rtol=1e-13)


@pytest.mark.parametrize("beta", [0.5, 1.5])
def test_the_first_stages_from_their_definitions(beta):
    """Attention, and the same with the limit of its normaliser, from the scores of the same draw."""
    model = be.SoftmaxAttention(tokens=30, head_dim=8, beta=beta)
    scores = model.scores(np.random.default_rng(3))
    stages = model.stages(np.random.default_rng(3))
    weights = np.exp(beta * scores)
    root = 30**0.5
    centred = root * (weights / weights.sum(axis=1, keepdims=True) - 1 / 30)
    np.testing.assert_allclose(stages.attention, centred, atol=1e-12)
    fixed = weights / np.exp(beta**2 / 2) / root
    np.testing.assert_allclose(stages.entrywise, fixed - 1 / root, atol=1e-12)
    np.testing.assert_allclose(stages.fixed_normaliser, fixed - fixed.mean(axis=1, keepdims=True), atol=1e-12)
