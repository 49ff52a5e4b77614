"""Moments of activations, against direct integration and closed forms."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

from bulkedge.programs import CLIP, GELU, IDENTITY, RELU, SOFTPLUS, TANH, PiecewiseLinear, Smooth
from bulkedge.programs.activations import LARGEST_REST, cholesky, first_moment, mean, product, second_moment, transpose

LEAKY = PiecewiseLinear("leaky", (0.3,), (0.1, 1.0), value=0.2)
ALL = [IDENTITY, RELU, CLIP, LEAKY, GELU, SOFTPLUS, TANH]


def gauss(function, points=()):
    """Mean over a standard Gaussian, split at the kinks."""
    ends = [-9.0, *sorted(point for point in points if abs(point) < 9), 9.0]
    density = lambda z: function(z) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)  # noqa: E731
    return sum(quad(density, a, b, epsabs=1e-11, epsrel=1e-11)[0] for a, b in pairwise(ends))


def nested(f, g, left, right, rho):
    """Two nested adaptive integrals, each split at the kinks."""
    a, b, rest = np.sqrt(left), np.sqrt(right), np.sqrt(1 - rho**2)
    kinks = [knot / a for knot in getattr(f, "knots", ())]

    def inner(z):
        inside = [(knot / b - rho * z) / rest for knot in getattr(g, "knots", ())]
        return gauss(lambda w: g(np.asarray(b * (rho * z + rest * w))), inside)

    return gauss(lambda z: f(np.asarray(a * z)) * inner(z), kinks)


@pytest.mark.parametrize(
    ("f", "g"),
    [(RELU, CLIP), (CLIP, CLIP), (LEAKY, RELU), (GELU, IDENTITY), (TANH, RELU), (SOFTPLUS, GELU), (GELU, GELU)],
)
def test_second_moments_against_nested_integrals(f, g):
    """1e-8: both sides are far below that; checked at variances and correlations of no significance."""
    left, right, rho = 1.3, 0.7, -0.62
    found = second_moment(f, g, np.array([left]), np.array([right]), np.array([rho * np.sqrt(left * right)]))
    assert found[0] == pytest.approx(nested(f, g, left, right, rho), abs=1e-8)


@pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)
@pytest.mark.parametrize("variance", [0.3, 1.0, 2.5])
def test_moments_of_one_variable(f, variance):
    """At correlations of one and minus one, where Mehler's series is at its worst: what it certifies."""
    one = np.array([variance])
    kinks = [knot / np.sqrt(variance) for knot in getattr(f, "knots", ())]
    assert first_moment(f, one)[0] == pytest.approx(
        gauss(lambda z: f(np.asarray(np.sqrt(variance) * z)), kinks), abs=1e-9
    )
    square = gauss(lambda z: f(np.asarray(np.sqrt(variance) * z)) ** 2, kinks)
    assert second_moment(f, f, one, one, one)[0] == pytest.approx(square, rel=LARGEST_REST)
    minus = gauss(
        lambda z: f(np.asarray(np.sqrt(variance) * z)) * f(np.asarray(-np.sqrt(variance) * z)),
        [*kinks, *(-k for k in kinks)],
    )
    assert second_moment(f, f, one, one, -one)[0] == pytest.approx(minus, abs=LARGEST_REST * square)


def test_arc_cosine_kernel():
    """Cho and Saul 2009."""
    rho = np.linspace(-1, 1, 41)
    one = np.ones_like(rho)
    angle = np.arccos(rho)
    exact = (np.sin(angle) + (np.pi - angle) * rho) / (2 * np.pi)
    assert second_moment(RELU, RELU, one, one, rho) == pytest.approx(exact, abs=1e-14)


def test_degenerate_variances():
    zero, one = np.zeros(1), np.ones(1)
    assert second_moment(CLIP, CLIP, zero, one, zero)[0] == pytest.approx(0, abs=1e-12)
    assert second_moment(SOFTPLUS, SOFTPLUS, zero, zero, zero)[0] == pytest.approx(np.log(2) ** 2, rel=1e-12)


def test_an_undeclared_kink_is_noticed():
    kinked = Smooth("abs", np.abs)
    with pytest.raises(ValueError, match=r"coefficients of abs and abs may leave out.*must be a PiecewiseLinear"):
        second_moment(kinked, kinked, np.ones(1), np.ones(1), 0.9 * np.ones(1))
    with pytest.raises(ValueError, match="did not settle"):
        mean(lambda u, v: np.abs(u + v), np.eye(2)[:, :, None])
    with pytest.raises(ValueError, match="functions of 5 Gaussian vectors"):
        mean(lambda *u: sum(u), np.eye(5)[:, :, None])


def test_means_of_several_variables():
    """``E exp(a · g) = exp(a' C a/2)`` and a moment of fourth order (Wick), 1e-7."""
    root = np.random.default_rng(0).standard_normal((4, 4)) / 2
    covariance = root @ root.T
    for size in (1, 2, 3, 4):
        c = covariance[:size, :size]
        found = mean(lambda *g: np.exp(0.5 * sum(g)), c[:, :, None])[0]
        assert found == pytest.approx(np.exp(c.sum() / 8), rel=1e-7)
    fourth = mean(lambda a, b, c, d: a * b * c * d, covariance[:, :, None])[0]
    c = covariance
    assert fourth == pytest.approx(c[0, 1] * c[2, 3] + c[0, 2] * c[1, 3] + c[0, 3] * c[1, 2], abs=1e-7)


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_cholesky_of_semidefinite_matrices(rank):
    """1e-10: rounding, magnified by small pivots."""
    root = np.random.default_rng(1).standard_normal((2, 5, rank, 7))
    covariance = product(root, transpose(root))
    factor = cholesky(covariance)
    assert product(factor, transpose(factor)) == pytest.approx(covariance, abs=1e-10)
    assert np.all(factor[:, np.triu_indices(5, 1)[0], np.triu_indices(5, 1)[1]] == 0)
