"""Denoising: rank, noise level and error against what is known of the signal that was planted."""

import numpy as np
import pytest

import bulkedge as be


def planted(shape, strengths, noise, rng):
    """A signal of orthogonal directions, in units of the noise's threshold scale, and the same with noise."""
    left = np.linalg.qr(rng.standard_normal((shape[0], len(strengths))))[0]
    right = np.linalg.qr(rng.standard_normal((shape[1], len(strengths))))[0]
    signal = noise * max(shape) ** 0.5 * (left * strengths) @ right.T
    return signal, signal + noise * rng.standard_normal(shape)


@pytest.mark.parametrize("shape", [(300, 600), (600, 300), (400, 400)])
@pytest.mark.parametrize("noise", [1.0, 1e-3])
def test_rank_noise_and_overlaps(shape, noise):
    rng = np.random.default_rng(1)
    signal, matrix = planted(shape, [3.0, 2.0], noise, rng)
    found = be.denoise(matrix)
    assert found.rank == 2
    # two of 300 values are signal: they move the median by less than a hundredth
    assert found.noise == pytest.approx(noise, rel=0.02)
    left, _, right = np.linalg.svd(signal, full_matrices=False)
    ours = np.linalg.svd(found.matrix, full_matrices=False)
    # fluctuations of overlaps are of order n**(-1/2) = 0.05
    measured = [(left[:, 0] @ ours[0][:, 0]) ** 2, (left[:, 1] @ ours[0][:, 1]) ** 2]
    np.testing.assert_allclose(measured, found.left_overlap, atol=0.05)
    measured = [(right[0] @ ours[2][0]) ** 2, (right[1] @ ours[2][1]) ** 2]
    np.testing.assert_allclose(measured, found.right_overlap, atol=0.05)


@pytest.mark.parametrize("loss", ["frobenius", "operator", "nuclear"])
def test_no_other_value_is_better(loss):
    """For the observed vectors, no common factor on the shrunken values gives an error that is smaller by 2 %."""
    rng, norm = np.random.default_rng(2), {"frobenius": "fro", "operator": 2, "nuclear": "nuc"}[loss]
    signal, matrix = planted((300, 500), [1.6], 1.0, rng)
    found = be.denoise(matrix, noise=1.0, loss=loss)
    errors = [np.linalg.norm(scale * found.matrix - signal, norm) for scale in (1.0, 0.5, 0.8, 0.9, 1.1, 1.25, 1.6)]
    assert errors[0] < 1.02 * min(errors)
    assert errors[0] < 0.99 * np.linalg.norm(matrix - signal, norm)


def test_false_alarms():
    """Of 200 matrices of noise alone, at level 0.05, about ten are not of rank zero: 22 are four sigma."""
    rng = np.random.default_rng(3)
    ranks = [be.denoise(rng.standard_normal((60, 90)), noise=1.0, level=0.05).rank for _ in range(200)]
    assert np.count_nonzero(ranks) <= 22
    assert max(ranks) <= 1


def test_what_is_refused():
    with pytest.raises(be.DomainError, match="two rows"):
        be.denoise([1.0, 2.0])
    with pytest.raises(be.DomainError, match="does not tell its noise"):
        be.denoise(np.outer(np.arange(5.0), np.arange(5.0)) * 0)
    with pytest.raises(be.DomainError, match="matrix"):
        be.denoise([[1.0, np.nan], [0.0, 1.0]])
