"""Formulas of docs/theory that no other test holds against a simulation."""

import numpy as np
import pytest
from scipy.sparse import coo_array

import bulkedge as be


@pytest.mark.parametrize("theta", [3.0, 5.0])
def test_spikes_of_singular_values(theta):
    """``M + theta a b'``: outlier and both overlaps are the spike of the symmetrised law; six draws, bias of 5/n."""
    size, variances, ratios = 500, (1.0, 0.7), (0.5, np.inf)
    rng = np.random.default_rng(20261120)
    found = []
    for _ in range(6):
        a, b = (each / np.linalg.norm(each) for each in rng.standard_normal((2, size)))
        matrix = be.GaussianSum(size, variances, ratios).sample(rng)
        left, values, right = np.linalg.svd(matrix + theta * np.outer(a, b))
        found.append([values[0], (left[:, 0] @ a) ** 2, (right[0] @ b) ** 2])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    spike = be.SumLaw(variances, ratios).spike(theta)
    expected = np.array([spike.location, spike.overlap, spike.overlap])
    assert np.all(np.abs(mean - expected) < 5 * error + 5 / size)


def test_where_free_spikes_and_independent_entries_part():
    """One entry of size +-1 in a row: moments of the squares agree up to the third, the fourth exceeds by ``2 n**2``.

    The free ones have all even cumulants ``n = 1``: moments 1, 3, 12, 55. Twenty draws, five standard errors.
    """
    size, rng = 40_000, np.random.default_rng(20261121)
    found = []
    for _ in range(20):
        places, signs = rng.integers(size, size=(2, size)), rng.choice([-1.0, 1.0], size)
        matrix = coo_array((signs, tuple(places)), shape=(size, size)).tocsr()
        gram = matrix @ matrix.T
        square = gram @ gram
        products = [gram.diagonal(), gram.multiply(gram), square.multiply(gram), square.multiply(square)]
        found.append([each.sum() / size for each in products])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(np.abs(mean - [1, 3, 12, 57]) < 5 * error + 1e-3)
    assert mean[3] - 5 * error[3] > 55
