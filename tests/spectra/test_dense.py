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
        (np.array([1.0, 2.0]), "singular", "2 or more axes"),
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


GRADIENT = "requires_grad"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "bool", GRADIENT])
def test_tensors_as_they_come(dtype):
    """Half precision rounds entries to 2**-8 at worst; everything else is exact."""
    torch = pytest.importorskip("torch")
    entries = np.array([[3.0, 1.0], [0.0, 1.0]])
    if dtype == GRADIENT:
        tensor = torch.tensor(entries, requires_grad=True)
    else:
        tensor = torch.tensor(entries).to(getattr(torch, dtype))
    expected = np.linalg.svd(tensor.detach().to(torch.float64).numpy(), compute_uv=False)
    assert be.spectrum(tensor).values == pytest.approx(expected[::-1], rel=1e-6)
    assert be.spectrum(tensor[None]).shape == (1,)


@pytest.mark.parametrize("matrix", [[[1, 2], [3, 4]], ((1.0, 2.0), (3.0, 4.0)), np.array([[1, 2], [3, 4]])])
def test_lists_and_integers(matrix):
    assert be.spectrum(matrix).values == pytest.approx(np.linalg.svd(matrix, compute_uv=False)[::-1])


@pytest.mark.parametrize(
    ("values", "unit", "message"),
    [
        ([1.0, np.nan], "eigenvalues", "NaN"),
        ([1.0, np.inf], "eigenvalues", "NaN or infinite"),
        ([1.0, 2.0 + 1j], "eigenvalues", "complex entries"),
        ([], "eigenvalues", "is empty"),
        ([-1.0, 2.0], "singular values", "are not negative"),
        ([1.0], "eigen", "unit = 'eigen' is outside its domain"),
        (["a"], "eigenvalues", "not an array of numbers"),
        ([[1.0], [1.0, 2.0]], "eigenvalues", "not an array of numbers"),
        (np.ma.masked_array([1.0, 2.0], [False, True]), "eigenvalues", "masked entries"),
    ],
)
def test_values_are_numbers(values, unit, message):
    with pytest.raises(be.DomainError, match=message):
        be.Spectrum.of(values, unit)


def test_masked_matrices_are_refused():
    with pytest.raises(be.DomainError, match="masked entries"):
        be.spectrum(np.ma.masked_array(np.eye(2), np.eye(2, dtype=bool)))


@pytest.mark.parametrize(
    ("values", "weights", "message"),
    [
        ([2.0, 1.0], [0.5, 0.5], "must increase"),
        ([1.0, 2.0], [0.5, 0.6], "sum to one"),
        ([1.0, 2.0], [1.0], "vectors of one length"),
        ([1.0, 2.0], [0.0, 1.0], "positive"),
    ],
)
def test_made_by_hand(values, weights, message):
    with pytest.raises(be.DomainError, match=message):
        be.Spectrum(np.array(values), np.array(weights), 2, be.Unit.EIGEN)


def test_short_repr():
    assert repr(be.spectrum(np.eye(1000))) == "Spectrum(1000 singular values from 1 to 1)"
    assert len(repr(be.spectrum(np.ones((3, 5, 5))))) < 120
