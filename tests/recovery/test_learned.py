"""Weights learned with a ridge classifier: the gradient, the minimum, and what is refused."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import softmax

from bulkedge.ensembles.weights import pool
from bulkedge.recovery.learned import (
    learned_weights,
    ridge_coefficients,
    ridge_loss,
    through_softmax,
)


def problem(seed, vocab=30, dim=6, samples=80, length=4):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((vocab, dim))
    tokens = rng.integers(0, vocab, (samples, length))
    labels = np.sign(table[tokens[:, 0], 0] + 0.5 * table[tokens[:, 1], 0] + 0.2 * rng.standard_normal(samples))
    return table, tokens, labels


def test_pooled_rows_are_weighted_sums():
    table, tokens, _ = problem(0)
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    assert pool(table, tokens, weights) == pytest.approx(np.einsum("t,ntd->nd", weights, table[tokens]))


@pytest.mark.parametrize("samples", [80, 4])
def test_ridge_is_the_minimiser_by_either_route(samples):
    """The gradient of the objective vanishes at the coefficients, to rounding."""
    table, tokens, labels = problem(1, samples=samples)
    rows = pool(table, tokens, np.full(4, 0.25))
    b = ridge_coefficients(rows, labels, 0.3)
    assert rows.T @ (rows @ b - labels) / samples + 0.3 * b == pytest.approx(np.zeros(6), abs=1e-13)


@pytest.mark.parametrize("samples", [80, 4])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_against_finite_differences(seed, samples):
    """In the weights and through the softmax; central differences of step 1e-5 are good to 1e-8 here."""
    data = problem(10 + seed, samples=samples)
    theta = np.random.default_rng(seed).standard_normal(4)

    def loss(logits):
        return ridge_loss(*data, 0.1, softmax(logits)).loss

    def central(function, at, step=1e-5):
        return np.array([(function(at + e) - function(at - e)) / (2 * step) for e in step * np.eye(len(at))])

    gradient = ridge_loss(*data, 0.1, softmax(theta)).gradient
    assert gradient == pytest.approx(central(lambda w: ridge_loss(*data, 0.1, w).loss, softmax(theta)), abs=1e-8)
    assert through_softmax(theta, gradient) == pytest.approx(central(loss, theta), abs=1e-8)
    assert through_softmax(theta, gradient) == pytest.approx(approx_fprime(theta, loss), abs=1e-5)


def test_learned_weights_beat_every_other_on_a_grid():
    """No point of a grid over the simplex has a smaller training loss, nor does any restart make it larger."""
    data = problem(20, length=3)
    found = learned_weights(*data, 0.1, np.random.default_rng(0))
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert found.loss == pytest.approx(ridge_loss(*data, 0.1, found.weights).loss, abs=1e-12)
    steps = np.linspace(0, 1, 21)
    grid = [(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-12]
    assert min(ridge_loss(*data, 0.1, np.array(each)).loss for each in grid) >= found.loss - 1e-9
    assert learned_weights(*data, 0.1, np.random.default_rng(0), restarts=8).loss <= found.loss + 1e-9


def test_same_seed_same_weights():
    data = problem(21)
    first, second = (learned_weights(*data, 0.1, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(first.weights, second.weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": np.ones(3)}, "table has shape"),
        ({"table": np.full((30, 6), np.nan)}, "table contains"),
        ({"tokens": np.zeros((80, 4))}, "type float64"),
        ({"tokens": np.zeros(80, dtype=int)}, r"tokens of shape \(80,\)"),
        ({"tokens": np.full((80, 4), 30)}, "do not all have a row in a table of 30"),
        ({"tokens": np.full((80, 4), -1)}, "do not all have a row in a table of 30"),
        ({"labels": np.ones(79)}, r"labels of shape \(79,\)"),
        ({"labels": np.full(80, np.nan)}, "labels"),
        ({"ridge": 0.0}, "ridge = 0.0 is outside its domain"),
        ({"restarts": 0}, "restarts = 0 is outside its domain"),
    ],
)
def test_bad_input(change, message):
    given = dict(zip(("table", "tokens", "labels"), problem(0), strict=True)) | {"ridge": 0.1} | change
    with pytest.raises(ValueError, match=message):
        learned_weights(**given, rng=np.random.default_rng(0))
