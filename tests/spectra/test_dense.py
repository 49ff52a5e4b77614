"""Spectra of dense matrices."""

import numpy as np
import pytest

import bulkedge as be


def test_prescribed_singular_values():
    rng = np.random.default_rng(0)
    u, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    v, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    matrix = u[:, :4] * [4.0, 3.0, 2.0, 1.0] @ v
    result = be.spectrum(matrix)
    assert np.allclose(result.values, [1, 2, 3, 4])
    assert result.size == 4
    assert result.weights.sum() == pytest.approx(1)
    assert np.allclose(result.squared().values, [1, 4, 9, 16])
    assert np.allclose(result.scaled(2).values, [2, 4, 6, 8])


def test_prescribed_eigenvalues():
    u, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    matrix = u * [-3.0, 1.0, 2.0] @ u.T
    matrix = (matrix + matrix.T) / 2
    result = be.spectrum(matrix, kind="eigen")
    assert np.allclose(result.values, [-3, 1, 2])
    assert np.allclose(result.squared().values, [1, 4, 9])


def test_single_precision_is_symmetric_enough():
    matrix = np.random.default_rng(0).standard_normal((50, 50)).astype(np.float32)
    assert be.spectrum(matrix @ matrix.T, kind="eigen").values.min() >= -1e-4


@pytest.mark.parametrize(
    ("matrix", "kind", "message"),
    [
        (np.array([1.0, 2.0]), "singular", "two dimensions or more"),
        (np.zeros((0, 3)), "singular", "none of them empty"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "singular", "NaN"),
        (np.array([[1.0, 2.0], [0.0, 1.0]]), "eigen", "symmetric matrix"),
        (np.ones((2, 3)), "eigen", "square matrix"),
        (np.eye(2), "values", "kind = 'values' is outside its domain"),
    ],
)
def test_bad_input(matrix, kind, message):
    with pytest.raises(ValueError, match=message):
        be.spectrum(matrix, kind=kind)


def test_scaled_needs_a_positive_factor():
    with pytest.raises(ValueError, match="factor = -1"):
        be.spectrum(np.eye(2)).scaled(-1)
