"""Overlaps of rows of softmax attention, and the similarity of tokens that they predict."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.propagation import (
    Trainability,
    overlaps,
    participation_variance,
    softmax_of_gaussians,
    softmax_overlap,
)


def two_tokens(beta, correlation):
    """Two tokens: A is a logistic function of one Gaussian, so that the overlap is an integral over two of them."""
    nodes = np.linspace(-9, 9, 601)
    mass = np.exp(-(nodes**2) / 2)
    mass /= mass.sum()
    other = correlation * nodes[:, None] + np.sqrt(1 - correlation**2) * nodes
    first, second = (1 / (1 + np.exp(-np.sqrt(2) * beta * each)) for each in (nodes[:, None], other))
    return mass @ (first * second + (1 - first) * (1 - second)) @ mass


@pytest.mark.parametrize("correlation", [-1.0, -0.4, 0.001, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("beta", [0.01, 0.7, 3.0, 6.0])
def test_overlap_of_two_tokens(beta, correlation):
    """Trapezoidal rules of both sides converge geometrically: 1e-10."""
    assert softmax_overlap(beta, 2, correlation) == pytest.approx(two_tokens(beta, correlation), rel=1e-10)


@pytest.mark.parametrize(("beta", "tokens"), [(0.01, 10**6), (1.0, 40), (4.0, 10**6), (9.0, 100)])
def test_overlap_of_a_row_with_itself_is_its_participation(beta, tokens):
    assert softmax_overlap(beta, tokens) == pytest.approx(softmax_of_gaussians(beta, tokens).participation, rel=1e-10)


def test_overlap_of_independent_or_uniform_rows():
    """They have one over T in common; nearly independent ones differ by the slope, beta**2/T for small beta."""
    assert softmax_overlap(3.0, 50, 0.0) == softmax_overlap(0.0, 50, 0.7) == 1 / 50
    slope = (softmax_overlap(0.1, 50, 1e-3) - softmax_overlap(0.1, 50, -1e-3)) / 2e-3
    assert slope == pytest.approx(0.1**2 / 50 * (1 - 1 / 50), rel=0.02)


@pytest.mark.parametrize(("beta", "tokens", "correlation"), [(3.0, 64, 0.5), (5.0, 64, -0.3), (2.0, 256, 0.9)])
def test_overlap_against_rows_that_are_drawn(beta, tokens, correlation):
    """Five standard errors."""
    rng = np.random.default_rng(20261120)
    first, fresh = rng.standard_normal((2, 2**20 // tokens, tokens))
    second = correlation * first + np.sqrt(1 - correlation**2) * fresh
    rows = [np.exp(beta * each) for each in (first, second)]
    one, two = (each / each.sum(axis=1, keepdims=True) for each in rows)
    found = (one * two).sum(axis=1)
    error = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - softmax_overlap(beta, tokens, correlation)) < 5 * error
    square = (one**2).sum(axis=1)
    away = (square - square.mean()) ** 2
    assert abs(away.mean() - participation_variance(beta, tokens)) < 5 * away.std() / np.sqrt(len(away))


@pytest.mark.parametrize(("beta", "tokens"), [(1.0, 30), (3.5, 30), (4.0, 512)])
def test_overlaps_are_interpolated(beta, tokens):
    """Chebyshev points in the similarity: 2e-5."""
    for similarity in (-1 / (tokens - 1), -0.5 / tokens, 0.0, 0.137, 0.61, 0.98, 1.0):
        spread = beta * np.sqrt(1 - similarity)
        expected = softmax_overlap(spread, tokens), softmax_overlap(spread, tokens, similarity)
        assert overlaps(beta, tokens, similarity) == pytest.approx(expected, abs=2e-5)
    with pytest.raises(ValueError, match=r"similarity = 1\.5 is outside its domain"):
        overlaps(beta, tokens, 1.5)


def kernels(design, beta, draws, rng):
    """Mean cosines (draw, layer) of wide key-query stacks: scores have covariance K x K given the kernel."""
    tokens, skip, gap = design.tokens, design.skip, design.gap
    kernel = np.broadcast_to(np.eye(tokens), (draws, tokens, tokens))
    found = []
    for _ in range(design.depth):
        values, vectors = np.linalg.eigh(kernel)
        root = vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
        scores = beta * (root @ rng.standard_normal(kernel.shape) @ root.swapaxes(1, 2))
        attention = np.exp(scores - scores.max(axis=2, keepdims=True))
        attention = attention / attention.sum(axis=2, keepdims=True) - (0 if gap else 1 / tokens)
        kernel = skip**2 * kernel + (1 - skip**2) * attention @ kernel @ attention.swapaxes(1, 2)
        lengths = np.sqrt(np.diagonal(kernel, axis1=1, axis2=2))
        kernel = kernel / (lengths[:, :, None] * lengths[:, None, :])
        found.append((kernel.sum(axis=(1, 2)) - tokens) / (tokens * (tokens - 1)))
    return np.array(found).T


@pytest.mark.parametrize("gap", [True, False])
@pytest.mark.parametrize(("beta", "allowed"), [(1.0, 0.001), (3.0, 0.01)])
def test_similarities_of_wide_stacks(beta, allowed, gap):
    """Weak attention, as in a transformer with values of variance 0.2: lengths move the cosine by 0.75 b**2 var P.

    Over twelve layers that is 12 * 0.75 * 0.17**2 * 0.04 = 0.01 of a cosine at beta = 3, and a tenth at beta = 1.
    """
    design = Trainability(48, 12, 0.913, gap=gap, attention="key-query")
    drawn = kernels(design, beta, 12, np.random.default_rng(7))
    error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    assert np.all(np.abs(drawn.mean(axis=0) - design.similarities(beta)[1:]) < allowed + 5 * error)


def test_two_rows_matter_and_infinitely_many_tokens_are_far():
    """Forty layers at twice sqrt(log T), 96 tokens: without the overlap, or in the limit, the cosine is off."""
    tokens, skip, beta = 96, 0.913, 2 * np.sqrt(np.log(96))
    design = Trainability(tokens, 40, skip, attention="key-query")
    found = kernels(design, beta, 3, np.random.default_rng(8)).mean(axis=0)
    limit = Trainability(tokens, 40, skip, attention="key-query", rows="limit")
    path = [0.0]
    for _ in range(40):
        path.append(design.next_similarity(path[-1], design.overlaps(beta, path[-1])._replace(other=1 / tokens)))
    far = [np.abs(each[1:] - found).max() for each in (design.similarities(beta), limit.similarities(beta), path)]
    assert far[0] < 0.035
    assert min(far[1:]) > 0.1


def test_similarity_and_share_are_one_number():
    design = Trainability(64, 6, 0.8, attention="key-query")
    assert design.distinct_share(2.0) == pytest.approx((1 - 1 / 64) * (1 - design.similarities(2.0)[-1]))
    assert design.similarities(0.0)[1] == pytest.approx((1 - 0.64) / 64 / (0.64 + 0.36 / 64))  # uniform attention
    assert design.similarities(2.0, start=1.0).tolist() == pytest.approx([1.0] * 7)
    assert Trainability(64, 3, gap=False, attention="key-query").similarities(0.0).tolist() == [0, 1, 1, 1]
    low, high = design.window()
    assert design.distinct_share((low + high) / 2) > 0.5
    with pytest.raises(ValueError, match="attention = 'key-query'"):
        Trainability(64, 6).similarities(1.0)


def test_rows_in_the_limit_freeze():
    """Uniform below sqrt(2 log T), and a share 1 - beta_c/beta of one token above."""
    design = Trainability(1000, 3, rows="limit")
    critical = be.propagation.freezing_beta(1000)
    assert design.passed(0.99 * critical) == 0
    assert design.passed(2 * critical) == pytest.approx(0.5 * (1 - 1 / 1000))
    assert design.overlaps(3 * critical, 0.75).same == pytest.approx(1 / 3 + 2 / 3 / 1000)
