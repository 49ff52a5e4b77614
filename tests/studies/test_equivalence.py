"""Statements of *equivalence* that need no sampling, and the formulas that its studies measure against."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import airy
from scipy.stats import poisson

from bulkedge.ensembles.attention import SoftmaxAttention, taylor
from bulkedge.lab.studies.equivalence.bulk import BEYOND_EDGE, EquivalenceBulk, finite_signal, signal_of, squared_signal
from bulkedge.lab.studies.equivalence.coefficients import crossing
from bulkedge.lab.studies.equivalence.normaliser import mean_square
from bulkedge.lab.studies.equivalence.taylor import degree_reached
from bulkedge.lab.studies.equivalence.threshold import mean_threshold
from bulkedge.lab.studies.items import ITEMS
from bulkedge.laws import AttentionLaw, SumLaw


@pytest.mark.parametrize("beta", [0.05, 0.3, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0, 30.0])
def test_the_edge_is_beyond_that_of_marchenko_pastur(beta, ratio):
    """Strictly, and by as little as the scores' rank lets it: with many dimensions the two edges meet."""
    rival = 4 * np.expm1(beta**2)
    assert AttentionLaw(beta, ratio).edge > rival
    assert AttentionLaw(beta, 1e6).edge == pytest.approx(rival, rel=1e-5)


@pytest.mark.parametrize("mean", [0.5, 2.0, 5.0, 12.0])
def test_remainders_of_the_taylor_polynomial_are_poisson_tails(mean):
    """Relative to the exponential they are the tail itself, and at most (eK/n)^n; without the e that is wrong."""
    beta = 0.8
    degrees = np.arange(int(mean) + 1, int(3 * mean) + 8)
    for degree in degrees:
        tail = poisson.sf(degree, mean)
        polynomial = taylor(beta, int(degree))
        # differences to the value at zero do not know how the polynomial was centred
        approximated = polynomial(mean / beta) - polynomial(0.0)
        exact = np.exp(-(beta**2) / 2) * np.expm1(mean)
        assert 1 - approximated / exact == pytest.approx(tail / -np.expm1(-mean), rel=1e-6, abs=1e-13)
        count = degree + 1
        assert tail <= (np.e * mean / count) ** count
    assert np.any(poisson.sf(degrees, mean) > (mean / (degrees + 1)) ** (degrees + 1))


def test_values_beyond_a_soft_edge():
    """The integral of the Airy density of real matrices (Forrester 2010, chapter 7), which Marchenko-Pastur allows."""

    def density(x):
        value, slope, _, _ = airy(x)
        return slope**2 - x * value**2 + value / 2 * (1 - quad(lambda y: airy(y)[0], x, 20)[0])

    assert quad(density, 0, 12)[0] == pytest.approx(BEYOND_EDGE, abs=1e-4)


def test_noise_overtakes_the_linear_part():
    beta = crossing()
    assert np.expm1(beta**2) - beta**2 == pytest.approx(beta**2)
    assert beta == pytest.approx(1.1209, abs=1e-4)


def test_mean_square_of_the_normalisers():
    """To first order (theta_1 + beta^4/2)/T, the next one being of order 1/T of it; against half a million rows."""
    beta, tokens = 0.7, 10**6
    first = (np.expm1(beta**2) + beta**4 / 2) / tokens
    assert mean_square(beta, tokens, tokens) == pytest.approx(first, rel=1e-5)
    rng = np.random.default_rng(201)
    rows, tokens, dim = 500_000, 6, 9
    norms = np.sqrt(rng.chisquare(dim, size=(rows, 1)) / dim)
    sums = np.exp(beta * norms * rng.standard_normal((rows, tokens)) - beta**2 / 2).mean(axis=1)
    squares = (sums - 1) ** 2
    assert mean_square(beta, tokens, dim) == pytest.approx(squares.mean(), abs=5 * squares.std() / rows**0.5)


def test_the_threshold_of_the_mean_is_of_order_root_log():
    """The slope of its square in log T tends to 2/3."""
    sizes = [10**3, 10**6, 10**9]
    squares = np.array([mean_threshold(tokens) for tokens in sizes]) ** 2
    slopes = np.diff(squares) / np.diff(np.log(sizes))
    assert abs(slopes[1] - 2 / 3) < abs(slopes[0] - 2 / 3) < 0.03
    assert slopes[1] == pytest.approx(2 / 3, abs=0.01)


def test_degrees_between_integers():
    errors = 10.0 ** -np.arange(5)
    assert degree_reached(errors, 10**-2.25) == pytest.approx(3.25)
    assert (degree_reached(errors, 2.0), degree_reached(errors, 1e-9)) == (1.0, 5.0)


def test_items_are_named_once():
    names = [item.name for item in ITEMS["equivalence"]]
    assert len(set(names)) == len(names)


# -- planted errors of physics -----------------------------------------------------------------------------------------


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("factor", "beta"),
    [(0.8, 0.97), *(pytest.param(*each, marks=SLOW) for each in ((0.5, 0.96), (1.2, 0.95), (1.0, 0.94)))],
)
def test_a_wrong_theta_2_in_law_and_ensemble_is_noticed(monkeypatch, factor, beta):
    """A law and an ensemble that are wrong alike agree with each other; attention itself differs.

    Laws are kept by their parameters, so that each wrong one has a beta of its own.
    """

    def signal(beta):
        return factor * beta**2, np.expm1(beta**2) - factor * beta**2

    def stages(self, rng, right=SoftmaxAttention.stages):
        found, root = right(self, rng), self.tokens**0.5
        scores = (np.log1p(root * found.entrywise) + self.beta**2 / 2) / self.beta
        linear, noise = signal(self.beta)
        return found._replace(linear=(linear**0.5 * scores + noise**0.5 * rng.standard_normal(scores.shape)) / root)

    terms = property(lambda law: SumLaw(signal(law.beta), (law.head_ratio, np.inf)))
    monkeypatch.setattr(AttentionLaw, "_terms", terms)
    monkeypatch.setattr(SoftmaxAttention, "stages", stages)
    study = EquivalenceBulk(tokens=200, head_dim=200, draws=16, beta=beta)
    claims = study.claims(study.simulate(seed=1))
    failed = [claim.statement for claim in claims if claim.verdict == "fails"]
    noticed = [
        f"{name}: theta_2, the root of the mean over cycles of four entries" for name in ("entrywise", "attention")
    ]
    assert failed == [] if factor == 1 else set(noticed[:1]) <= set(failed) <= set(noticed)


@pytest.mark.parametrize(("beta", "head_dim"), [(0.5, 16), (1.0, 64)])
def test_theta_2_of_the_entrywise_matrix_is_known_at_any_size(beta, head_dim):
    """The mean over cycles, against draws of 150 by 150 scores: 4.5 standard errors of their mean."""
    rng = np.random.default_rng(2)
    draws = []
    for _ in range(60):
        query, key = rng.standard_normal((2, 150, head_dim))
        entries = np.expm1(beta * query @ key.T / head_dim**0.5 - beta**2 / 2)
        draws.append(squared_signal(entries / 150**0.5, head_dim))
    error = np.std(draws, ddof=1) / len(draws) ** 0.5
    assert np.mean(draws) == pytest.approx(finite_signal(beta, head_dim) ** 2, abs=4.5 * error)
    assert abs(finite_signal(beta, head_dim) - beta**2) > error  # the limit is told from it


def test_theta_2_of_a_law():
    for ratio in (0.3, 1.0, 4.0):
        assert signal_of(AttentionLaw(0.8, ratio), ratio) == pytest.approx(0.64, rel=1e-9)
