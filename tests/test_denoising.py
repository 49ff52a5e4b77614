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


def noise_values(short, long, draws, rng):
    """Largest and median singular values of Gaussian matrices, by the bidiagonal form of Dumitriu and Edelman."""
    index, forms = np.arange(short), np.zeros((draws, short, short))
    forms[:, index, index] = np.sqrt(rng.chisquare(long - index, (draws, short)))
    forms[:, index[1:], index[:-1]] = np.sqrt(rng.chisquare(index[:0:-1], (draws, short - 1)))
    values = np.linalg.svd(forms, compute_uv=False)
    return values[:, 0], np.median(values, axis=1)


def false_alarms(shape, level, draws, seed, noise=None):
    """Share of noise matrices with rank above zero: the edge is the noise times a number that the shape determines."""
    rng = np.random.default_rng([*shape, seed])
    some = rng.standard_normal(shape)
    found = be.denoise(some, noise, level=level)
    largest, median = noise_values(*shape, draws, rng)
    if noise is not None:
        return np.mean(noise * largest > found.finite_edge)
    return np.mean(largest / median > found.finite_edge / np.median(np.linalg.svd(some, compute_uv=False)))


@pytest.mark.parametrize(
    ("shape", "level", "noise"),
    [
        ((30, 30), 0.05, None),
        ((30, 60), 0.05, None),
        ((11, 11), 0.05, None),
        ((5, 9), 0.05, None),
        ((30, 30), 0.01, None),
        ((30, 30), 0.05, 1.0),
    ],
)
def test_false_alarms(shape, level, noise):
    """The rates are 0.9 to 1.1 of the level, to which three standard errors are added.

    The edge of the law alone, without the fluctuation of the median, has 2.2, 1.5, 3.2, 2.3 and 4.3 times the level,
    and 0.7 of it where the noise is known.
    """
    draws = 6000
    rate = false_alarms(shape, level, draws, 0, noise)
    assert abs(rate / level - 1) < 0.1 + 3 / np.sqrt(level * draws)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(10, 10), (30, 30), (31, 31), (30, 40), (30, 300), (60, 90), (100, 100), (100, 200)])
@pytest.mark.parametrize("noise", [None, 1.0])
def test_false_alarms_are_the_level(shape, noise):
    """Forty thousand draws: standard errors are 2 % and 5 % of the two levels."""
    for level in (0.05, 0.01):
        rates = [false_alarms(shape, level, 4000, seed, noise) for seed in range(1, 11)]
        assert 0.9 - 3 * (level * 40_000) ** -0.5 < np.mean(rates) / level < 1.1 + 3 * (level * 40_000) ** -0.5


@pytest.mark.slow
def test_false_alarms_of_large_matrices():
    """A thousand draws at 300 by 300: a standard error is 14 % of the level."""
    assert 0.6 < false_alarms((300, 300), 0.05, 1000, 1) / 0.05 < 1.5


@pytest.mark.parametrize("noise", [None, 1.0])
def test_any_level_has_an_edge(noise):
    """Edges increase as levels decrease, down to matrices with two rows, whose median may be next to nothing."""
    for shape in ((2, 2), (2, 50), (5, 3)):
        some = np.random.default_rng(1).standard_normal(shape)
        edges = [be.denoise(some, noise, level=level).finite_edge for level in (0.999, 0.5, 0.05, 1e-3, 1e-12)]
        assert edges == sorted(edges)
        assert edges[0] >= 0


def test_noise_of_known_covariance():
    """Each column has its own noise. No common factor is better by 3 %, and white denoising has ten times the error."""
    rng, deviations, errors = np.random.default_rng(5), np.geomspace(0.2, 3.0, 200), []
    for _ in range(4):
        signal = planted((300, 200), [3.5, 2.6], 1.0, rng)[0]
        matrix = signal + rng.standard_normal((300, 200)) * deviations
        found = be.denoise(matrix, np.diag(deviations**2))
        assert found.rank == 2
        white = be.denoise(matrix, found.noise).matrix
        estimates = [found.matrix, white, *(scale * found.matrix for scale in (0.8, 0.9, 1.1, 1.25))]
        errors.append([np.sum((each - signal) ** 2) for each in estimates])
    best, white, *scaled = np.mean(errors, axis=0)
    assert white > 10 * best
    assert best < 1.03 * min(scaled)


def test_a_covariance_of_equal_noise_is_white_noise():
    rng = np.random.default_rng(6)
    for shape in ((60, 100), (100, 60)):
        _, matrix = planted(shape, [3.0], 0.7, rng)
        white, coloured = be.denoise(matrix, 0.7), be.denoise(matrix, 0.49 * np.eye(shape[1]))
        # the length of a right vector is one, whose share of noise is what its overlap says
        np.testing.assert_allclose(coloured.matrix, white.matrix, rtol=1e-8, atol=1e-10)
        law = be.denoise(matrix, be.MarchenkoPastur(0.6, 0.49).scaled(100))
        np.testing.assert_allclose(law.shrunk, white.shrunk, rtol=1e-8)
        assert law.noise == pytest.approx(0.7)
    assert be.denoise(rng.standard_normal((60, 100)), np.diag(np.linspace(1, 2, 100))).rank <= 1


def test_noise_of_a_known_law():
    """A product of two Gaussian matrices as noise; the best common factor on four draws is one to 5 %."""
    rng, law, errors = np.random.default_rng(7), be.ProductLaw((1.0, 1.0)).scaled(200), []
    for _ in range(4):
        noise = rng.standard_normal((200, 200)) @ rng.standard_normal((200, 200)) / 200**0.5
        signal = planted((200, 200), [3.5], 1.0, rng)[0]
        found = be.denoise(signal + noise, law)
        assert found.rank == 1
        errors.append([np.sum((scale * found.matrix - signal) ** 2) for scale in (1.0, 0.85, 1.15)])
    assert np.argmin(np.mean(errors, axis=0)) == 0
    assert found.noise == pytest.approx(1.0)


def test_what_is_refused():
    matrix = np.eye(5) + np.ones((5, 5))
    for message, noise, loss in (
        ("a row of 5", np.eye(4), "frobenius"),
        ("is singular", np.diag([1.0, 1.0, 1.0, 1.0, 0.0]), "frobenius"),
        ("only 'frobenius'", np.eye(5), "operator"),
        ("of symmetrised", be.SumLaw((1.0,), (np.inf,)), "frobenius"),
        ("square matrix", np.ones(5), "frobenius"),
    ):
        with pytest.raises(be.DomainError, match=message):
            be.denoise(matrix, noise, loss=loss)
    with pytest.raises(be.DomainError, match="two rows"):
        be.denoise([1.0, 2.0])
    with pytest.raises(be.DomainError, match="does not tell its noise"):
        be.denoise(np.outer(np.arange(5.0), np.arange(5.0)) * 0)
    with pytest.raises(be.DomainError, match="matrix"):
        be.denoise([[1.0, np.nan], [0.0, 1.0]])


def test_values_inside_the_bulk_are_no_signal_at_any_level():
    """At level 0.999 the edge is inside the bulk: values beyond it have no overlap, and a size of zero."""
    noise = np.random.default_rng(77).standard_normal((40, 30))
    found, plain = (be.denoise(noise, each, level=0.999) for each in (np.eye(30), 1.0))
    assert found.rank == plain.rank > 0
    assert np.array_equal(found.shrunk, plain.shrunk)
    assert not np.any(found.matrix)
